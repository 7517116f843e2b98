/* The lines of a batch: one request each in the input, one record each in the output, as OpenAI's batch files
 * have them. A record is one write, and names its line; so a process that was killed is continued by what the
 * output lacks. Not thread-safe. */
#ifndef KVASIR_LINES_H
#define KVASIR_LINES_H

#include "config/base/buf.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum { LINE_PREFIXES = 5 }; /* of 256 bytes to 64 KiB */

struct line {
    uint64_t at;                    /* in the input */
    uint64_t check;                 /* of its bytes, and of whose line it is */
    uint64_t prefix[LINE_PREFIXES]; /* equal prompts begin with equal ones */
    uint32_t len, ordinal;
    bool answered; /* its record is in an output */
};

struct lines {
    int fd;         /* of the input; borrowed */
    uint64_t owner; /* a part of the records' ids */
    size_t most;    /* bytes of a line */
    struct line *line;
    uint32_t count;
    size_t cap;
    struct buf text; /* scratch: a line */
};

/* A line that was read: borrowed, until the next call of its lines. */
struct line_request {
    const char *url;
    json_t *root, *custom_id, *body; /* root is owned */
};

/* Reads all lines and checks them: at most count_most of them, all for `endpoint` (NULL: any). errors: an
 * array that gets OpenAI's error objects, a hundred at most. ST_IO, ST_NOMEM. */
enum status lines_read(struct lines *l, const char *endpoint, uint32_t count_most, json_t *errors,
                       struct err *err) KV_MUST_CHECK;
/* Marks the lines whose records an earlier process left in fd, before lines_sort; what follows the last whole
 * record of these lines is cut off. *count: how many. */
enum status lines_resume(struct lines *l, int fd, uint32_t *count, struct err *err) KV_MUST_CHECK;
/* Its request; ST_IO: the input has changed. */
struct post;
enum status line_post(struct lines *l, struct line *line, struct post *p) KV_MUST_CHECK;
void lines_sort(struct lines *l); /* so that lines with equal prefixes follow each other */
enum status line_load(struct lines *l, const struct line *line, struct line_request *out) KV_MUST_CHECK;
/* Appends the record of a line to fd at its end. body: JSON; NULL: `code` and `message` say why there is
 * none. On an error the output is as before. */
struct line_answer {
    long status;
    const char *request_id, *code, *message;
    const struct buf *body;
};
enum status line_record(const struct line *line, const json_t *custom_id, const struct line_answer *a, int fd,
                        struct err *err) KV_MUST_CHECK;
void lines_free(struct lines *l);
bool line_endpoint_known(const char *url);

#endif
