/* Serialization of cache events: the records of the queue between the engine thread and the publisher, and
 * the msgpack of a batch. Plain functions, no state. */
#ifndef KVASIR_KV_WIRE_H
#define KVASIR_KV_WIRE_H

#include "config/base/buf.h"
#include "server/kv_events/kv_events.h"

#include <msgpack.h>

enum kv_record_kind { KV_STORED = 0, KV_REMOVED, KV_CLEARED };

/* A record is this header and its data, in the order of the fields; `bytes` includes the header and is a
 * multiple of 8. */
struct kv_record {
    uint64_t bytes, parent;
    uint32_t kind, group, window, block_tokens;
    uint32_t count, first, image_count;
    uint32_t salted, recurrent, tier, unused;
    /* uint64_t hashes[count];
     * KV_STORED: struct cache_image images[image_count]; uint32_t tokens[count * block_tokens];
     * uint8_t salt[32] */
};

/* ST_NOMEM, ST_TOO_LARGE: `to` is unchanged. */
enum status kv_put_stored(struct buf *to, uint32_t block_tokens,
                          const struct cache_stored *what) KV_MUST_CHECK;
enum status kv_put_removed(struct buf *to, enum cache_tier tier, uint32_t group, const uint64_t *hashes,
                           uint32_t count) KV_MUST_CHECK;
enum status kv_put_cleared(struct buf *to) KV_MUST_CHECK;

/* Encoding of events. */
struct kv_layout {
    bool map;       /* {"type": name, field: value ...} instead of [name, value ...] */
    bool one_group; /* no group field */
    kv_lora *lora;  /* NULL: there are no adapters */
    void *lora_arg;
};

/* Packs records from data[0..len) as one batch, at least one and up to about `most` bytes; returns the bytes
 * consumed. */
size_t kv_pack_batch(msgpack_sbuffer *out, const char *data, size_t len, size_t most, double time,
                     struct kv_layout layout);

#endif
