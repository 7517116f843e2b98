/* See kv_wire.h. A batch is vLLM's KVEventBatch: [time, [event ...], rank]. vLLM writes events as arrays or,
 * in later versions, as maps. Numbers in a record are the machine's own. */
#include "server/kv_events/kv_wire.h"

#include "config/base/checked.h"

#include <stdio.h>
#include <string.h>

/* ---- records ---- */

static enum status put(struct buf *to, struct kv_record *r, const struct cache_stored *what,
                       const uint64_t *hashes)
{
    static const struct cache_stored nothing;
    if (!what) what = &nothing;
    size_t hash_bytes, token_bytes = 0, image_bytes = 0, total = sizeof *r;
    if (mul_overflows(r->count, sizeof *hashes, &hash_bytes) ||
        mul_overflows(r->count, r->block_tokens * sizeof(uint32_t), &token_bytes) ||
        mul_overflows(r->image_count, sizeof(struct cache_image), &image_bytes) ||
        add_overflows(total, hash_bytes, &total) || add_overflows(total, image_bytes, &total) ||
        add_overflows(total, token_bytes, &total) || add_overflows(total, 32 + 7, &total))
        return ST_TOO_LARGE;
    total = total / 8 * 8;
    r->bytes = total;
    enum status st = buf_reserve(to, total);
    if (st) return st;
    char *at = to->data + to->len;
    memset(at, 0, total);
    memcpy(at, r, sizeof *r);
    at += sizeof *r;
    if (hash_bytes && hashes) memcpy(at, hashes, hash_bytes);
    at += hash_bytes;
    if (image_bytes && what->images) memcpy(at, what->images, image_bytes);
    at += image_bytes;
    if (token_bytes && what->tokens) memcpy(at, what->tokens, token_bytes);
    if (r->salted && what->salt) memcpy(at + token_bytes, what->salt, 32);
    to->len += total;
    return ST_OK;
}

enum status kv_put_stored(struct buf *to, uint32_t block_tokens, const struct cache_stored *what)
{
    static const uint8_t none[32];
    struct kv_record r = {.kind = KV_STORED,
                          .tier = what->tier,
                          .group = what->group,
                          .window = what->window,
                          .recurrent = what->recurrent,
                          .block_tokens = block_tokens,
                          .count = what->count,
                          .first = what->first,
                          .parent = what->parent,
                          .image_count = what->image_count,
                          .salted = memcmp(what->salt, none, sizeof none) != 0};
    return put(to, &r, what, what->hashes);
}

enum status kv_put_removed(struct buf *to, enum cache_tier tier, uint32_t group, const uint64_t *hashes,
                           uint32_t count)
{
    struct kv_record r = {.kind = KV_REMOVED, .tier = tier, .group = group, .count = count};
    return put(to, &r, NULL, hashes);
}

enum status kv_put_cleared(struct buf *to)
{
    struct kv_record r = {.kind = KV_CLEARED};
    return put(to, &r, NULL, NULL);
}

/* ---- msgpack ---- */

static void text(msgpack_packer *p, const char *s)
{
    msgpack_pack_str_with_body(p, s, strlen(s));
}

static void hex_text(msgpack_packer *p, const uint8_t key[32])
{
    char hex[65];
    for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", key[i]);
    text(p, hex);
}

/* A block's extra keys: its images, each with the position of its first token relative to the block's (below
 * 0: it began in an earlier one); and the salt, in the first block of a prompt. A list with one entry per
 * block, or nil. */
static void extra_keys(msgpack_packer *p, const struct kv_record *r, const struct cache_image *images,
                       const uint8_t *salt)
{
    if (!r->image_count && !(r->salted && !r->first)) {
        msgpack_pack_nil(p);
        return;
    }
    msgpack_pack_array(p, r->count);
    for (uint32_t i = 0; i < r->count; i++) {
        uint32_t a = r->first + i * r->block_tokens, b = a + r->block_tokens, n = 0, m = 0;
        bool salted = r->salted && !a;
        while (m < r->image_count && images[m].end <= a) m++;
        while (m + n < r->image_count && images[m + n].begin < b) n++;
        if (!n && !salted) {
            msgpack_pack_nil(p);
            continue;
        }
        msgpack_pack_array(p, n + salted);
        for (uint32_t k = m; k < m + n; k++) {
            msgpack_pack_array(p, 2);
            hex_text(p, images[k].key);
            msgpack_pack_int64(p, (int64_t)images[k].begin - a);
        }
        if (salted) hex_text(p, salt);
    }
}

static void pack_hashes(msgpack_packer *p, const uint64_t *hashes, uint32_t count)
{
    msgpack_pack_array(p, count);
    for (uint32_t i = 0; i < count; i++) msgpack_pack_uint64(p, hashes[i]);
}

/* The names that routers know; "GPU" is what steps read from, on any backend. */
static const char *const mediums[] = {
    [CACHE_TIER_ARENA] = "GPU", [CACHE_TIER_HOST] = "CPU", [CACHE_TIER_DISK] = "DISK"};

/* Starts an event of so many fields; then each field by its name. */
static void begin(msgpack_packer *p, struct kv_layout layout, const char *name, size_t fields)
{
    if (layout.map) {
        msgpack_pack_map(p, fields + 1);
        text(p, "type");
    } else {
        msgpack_pack_array(p, fields + 1);
    }
    text(p, name);
}
static void field(msgpack_packer *p, struct kv_layout layout, const char *name)
{
    if (layout.map) text(p, name);
}

static void pack_stored(msgpack_packer *p, const struct kv_record *r, struct kv_layout layout)
{
    const uint64_t *hashes = (const uint64_t *)(const void *)(r + 1);
    const struct cache_image *images = (const struct cache_image *)(const void *)(hashes + r->count);
    const uint32_t *tokens = (const uint32_t *)(const void *)(images + r->image_count);
    uint32_t token_count = r->count * r->block_tokens, id = 0;
    const uint8_t *salt = (const uint8_t *)(tokens + token_count);
    char name[128];
    bool lora = r->salted && layout.lora && layout.lora(layout.lora_arg, salt, name, &id);
    begin(p, layout, "BlockStored", layout.one_group ? 8 : 11);
    field(p, layout, "block_hashes");
    pack_hashes(p, hashes, r->count);
    field(p, layout, "parent_block_hash");
    if (r->first) msgpack_pack_uint64(p, r->parent);
    else msgpack_pack_nil(p);
    field(p, layout, "token_ids");
    msgpack_pack_array(p, token_count);
    for (uint32_t i = 0; i < token_count; i++) msgpack_pack_uint32(p, tokens[i]);
    field(p, layout, "block_size");
    msgpack_pack_uint32(p, r->block_tokens);
    field(p, layout, "lora_id");
    if (lora) msgpack_pack_uint32(p, id);
    else msgpack_pack_nil(p);
    field(p, layout, "medium");
    text(p, mediums[r->tier]);
    field(p, layout, "lora_name");
    if (lora) text(p, name);
    else msgpack_pack_nil(p);
    field(p, layout, "extra_keys");
    extra_keys(p, r, images, salt);
    if (layout.one_group) return;
    field(p, layout, "group_idx");
    msgpack_pack_uint32(p, r->group);
    field(p, layout, "kv_cache_spec_kind");
    text(p, r->recurrent ? "mamba" : r->window ? "sliding_window" : "full_attention");
    field(p, layout, "kv_cache_spec_sliding_window");
    if (r->window) msgpack_pack_uint32(p, r->window);
    else msgpack_pack_nil(p);
}

static void pack_removed(msgpack_packer *p, const struct kv_record *r, struct kv_layout layout)
{
    begin(p, layout, "BlockRemoved", layout.one_group ? 2 : 3);
    field(p, layout, "block_hashes");
    pack_hashes(p, (const uint64_t *)(const void *)(r + 1), r->count);
    field(p, layout, "medium");
    text(p, mediums[r->tier]);
    if (layout.one_group) return;
    field(p, layout, "group_idx");
    msgpack_pack_uint32(p, r->group);
}

size_t kv_pack_batch(msgpack_sbuffer *out, const char *data, size_t len, size_t most, double time,
                     struct kv_layout layout)
{
    size_t taken = 0, count = 0;
    while (taken < len && (!count || taken < most)) {
        taken += ((const struct kv_record *)(const void *)(data + taken))->bytes;
        count++;
    }
    msgpack_packer p;
    msgpack_packer_init(&p, out, msgpack_sbuffer_write);
    msgpack_pack_array(&p, 3);
    msgpack_pack_double(&p, time);
    msgpack_pack_array(&p, count);
    for (size_t at = 0; at < taken;) {
        const struct kv_record *r = (const struct kv_record *)(const void *)(data + at);
        if (r->kind == KV_STORED) {
            pack_stored(&p, r, layout);
        } else if (r->kind == KV_REMOVED) {
            pack_removed(&p, r, layout);
        } else {
            begin(&p, layout, "AllBlocksCleared", 0);
        }
        at += r->bytes;
    }
    msgpack_pack_int32(&p, 0); /* data_parallel_rank */
    return taken;
}
