/* Files of the disk tier: names, format, checks. Any thread; a directory has one writer, which holds its
 * lock.
 *
 *   DIR/kvasir-cache/lock
 *                   /writing                              a record that is not complete
 *                   /0000000000000017-5be9d2c07a1f0e64    id and the first bytes of the binding:
 *                       struct record_header, meta, payload */
#ifndef KVASIR_RECORD_FILE_H
#define KVASIR_RECORD_FILE_H

#include "config/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Also stored on disk: values don't change. */
enum record_kind { RECORD_KV = 1, RECORD_WINDOW = 2, RECORD_STATE = 3, RECORD_IMAGE = 4, RECORD_KINDS = 5 };

#define RECORD_META_MAX    (1u << 20) /* bytes */
#define RECORD_PAYLOAD_MAX (1ull << 30)

#define RECORD_ID_MAX (1ull << 62)
#define RECORD_PAGE   4096u /* files are counted in whole pages */

struct record_header { /* as on disk, little endian */
    char magic[8];
    uint64_t id, parent;
    uint32_t kind, meta_bytes;
    uint64_t payload_bytes;
    uint8_t salt[32], binding[32];
    char about[64];
    uint64_t meta_sum, payload_sum;
    uint64_t parent_sum; /* header_sum of the parent: not of another record that got its id */
    uint64_t header_sum; /* of all that precedes it */
};

struct cache_dir {
    int fd, lock; /* lock: -1 without one */
};
/* DIR/kvasir-cache. writer: makes what is missing, takes the lock, removes an incomplete record. ST_NOT_FOUND
 * (only without `writer`), ST_AGAIN: locked by another process; ST_IO. */
enum status cache_dir_open(const char *dir, bool writer, struct cache_dir *out,
                           struct err *err) KV_MUST_CHECK;
void cache_dir_close(struct cache_dir *d);

struct record_file {
    uint64_t id, tag; /* tag: the first 8 bytes of the binding */
    uint64_t bytes;   /* in whole pages */
    uint64_t used;    /* nanoseconds since 1970: mtime */
};
/* *out is owned by the caller, by ascending id, ids are unique. foreign: entries that are no records. */
enum status cache_dir_list(const struct cache_dir *d, struct record_file **out, size_t *count,
                           size_t *foreign, struct err *err) KV_MUST_CHECK;
uint64_t cache_dir_bytes(const struct cache_dir *d);                /* of the directory itself */
uint64_t record_bytes(uint64_t meta_bytes, uint64_t payload_bytes); /* of its file, in whole pages */
uint64_t record_tag(const uint8_t binding[32]);

enum file_state {
    FILE_OK = 0,
    FILE_GONE,    /* there is no such file */
    FILE_DAMAGED, /* or of another format, or foreign */
    FILE_FAILED,  /* errno says why */
    FILE_LATER,   /* the process lacks memory or descriptors */
};
/* Reads and checks header and meta. *meta (may be NULL: not wanted) is malloc'd. */
enum file_state record_head(const struct cache_dir *d, uint64_t id, uint64_t tag, struct record_header *h,
                            uint8_t **meta);
/* Reads and checks the payload; its header must be the one with `header_sum`. dst has `bytes` bytes, the
 * payload's size; NULL: only checks. */
enum file_state record_payload(const struct cache_dir *d, uint64_t id, uint64_t tag, uint64_t header_sum,
                               void *dst, uint64_t bytes);
/* Fills in magic, sums and sizes; FILE_OK, FILE_FAILED or FILE_LATER. */
enum file_state record_write(const struct cache_dir *d, struct record_header *h, const void *meta,
                             const void *payload);
void record_remove(const struct cache_dir *d, uint64_t id, uint64_t tag);
void record_set_used(const struct cache_dir *d, uint64_t id, uint64_t tag, uint64_t used);

#endif
