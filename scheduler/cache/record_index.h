/* The records of a cache directory by id and by last use. The store's thread only; pure, but for mtimes and
 * deletions, which it applies to the files.
 *
 * A record's `used` is never before its children's, so the least recently used one has no children; of equal
 * ones that with the highest id. */
#ifndef KVASIR_RECORD_INDEX_H
#define KVASIR_RECORD_INDEX_H

#include "scheduler/cache/record_file.h"

struct index_entry {
    struct record_file file;
    uint64_t parent, payload_bytes, header_sum; /* known: */
    uint64_t stored_used;                       /* mtime */
    uint32_t children;                          /* known ones */
    bool known;                                 /* its header was read, or written by this process */
    bool dead;
};
struct record_index {
    struct cache_dir dir;
    struct index_entry *at; /* by ascending id */
    size_t count, cap, dead;
    uint64_t bytes; /* of all records */
    uint64_t clock; /* the last time handed out */
    struct by_use { /* the records by last use, as of some moment, the oldest last */
        uint64_t used, id;
    } * by_use;
    size_t by_use_count;
};

/* Takes over an opened directory, also on error. */
enum status index_open(struct record_index *x, const struct cache_dir *d, size_t *foreign,
                       struct err *err) KV_MUST_CHECK;
void index_close(struct record_index *x);
struct index_entry *index_find(const struct record_index *x,
                               uint64_t id); /* NULL: none; valid until index_add */
struct index_entry *index_next(const struct record_index *x,
                               uint64_t id); /* the first with at least this id */
void index_adopt(const struct record_index *x, uint64_t parent, int children); /* it has so many more */
/* Appends; its id is above all others. False: out of memory. */
bool index_add(struct record_index *x, const struct index_entry *e);
uint64_t index_now(struct record_index *x); /* above all times so far */
/* It and its ancestors were used then. NULL is fine. */
void index_use(struct record_index *x, struct index_entry *e, uint64_t when);
void index_remove(struct record_index *x, struct index_entry *e); /* and its file */
/* The least recently used one, in amortised O(log n). NULL: empty, or out of memory. */
struct index_entry *index_oldest(struct record_index *x);

#endif
