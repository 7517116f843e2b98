/* The request log (--request-log FILE, docs/replay.md): a line of JSON per answered request, and the images
 * of all lines in FILE.images/, each by the SHA-256 of its file. A thread of its own does all file access:
 * nobody waits for the disk. What finds no room in its queue, or on the disk, is counted as lost.
 *
 * Once FILE and its images have bytes_max bytes, both are renamed to FILE.1 and FILE.1.images, in place of
 * older ones. A FILE that somebody moved or removed is made again. What is no regular file, such as a pipe,
 * gets the lines alone. */
#ifndef KVASIR_REQUEST_LOG_H
#define KVASIR_REQUEST_LOG_H

#include "config/base/buf.h"
#include "server/json/writer.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* In place of a string, or of what follows ";base64," in one, with the hexadecimal hash of a file: its bytes
 * in base64; or, for strings that look like one of these, the bytes themselves. */
#define REQUEST_LOG_IMAGE "kvasir-image:sha256:"
#define REQUEST_LOG_TEXT  "kvasir-text:sha256:"

struct request_log;

/* A line that is being written; one thread at a time. */
struct log_record {
    struct request_log *log;
    struct buf text, files; /* files: the hashes of those that it names, 64 digits each */
    struct json_writer o;   /* into text */
    bool fetched;           /* "fetched" is open: an object of hashes by URL */
    bool lost;              /* a part of it is missing */
};

/* Opens FILE, which no other server may have as its log, and starts the thread. ST_IO: names it. */
enum status request_log_open(const char *path, uint64_t bytes_max, struct request_log **out,
                             struct err *err) KV_MUST_CHECK;
void request_log_close(struct request_log *l);          /* first writes what is queued; NULL is fine */
uint64_t request_log_lost(const struct request_log *l); /* lines; any thread; of NULL 0 */

struct log_record *request_log_record(struct request_log *l); /* NULL: out of memory */
void log_record_free(struct log_record *r);                   /* NULL is fine */
/* Writes v with its images left out: strings of base64, and data: URIs. */
void log_record_value(struct log_record *r, const json_t *v);
/* The file of a URL, which is not in the body. */
void log_record_fetched(struct log_record *r, const char *url, size_t url_len, const void *bytes, size_t len);
void log_record_write(struct log_record *r); /* queues the line, and takes r */

#endif
