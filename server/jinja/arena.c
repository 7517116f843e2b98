/* Memory and errors of the template interpreter: a chunked bump arena with a byte ceiling, and the error
 * exit. */
#include "config/base/assert.h"
#include "server/jinja/internal.h"

#include "config/base/checked.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define CHUNK_BYTES (32u << 10) /* small templates and short chats fit in one or two */

void jn_fail(struct jn_base *b, enum jinja_error_kind code, const char *fmt, ...)
{
    ASSERT(b->on_error && code != JINJA_OK);
    b->error.code = code;
    b->error.line = b->line;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(b->error.message, sizeof b->error.message, fmt, ap);
    va_end(ap);
    /* Names and strings of the template may be truncated inside a character, and the message goes into JSON.
     */
    char *m = b->error.message, *end = m + strlen(m);
    while (m < end) {
        const char *next;
        if (jn_decode(m, end, &next) == 0xfffd && next == m + 1) *m = '?';
        m = b->error.message + (next - b->error.message);
    }
    longjmp(*b->on_error, 1);
}

static struct jn_chunk *new_chunk(struct jn_base *b, size_t bytes)
{
    size_t cap = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES, total;
    ASSERT_CMP(b->arena.bytes, <=, b->arena.bytes_max);
    /* Big renders get big chunks, so that their number stays logarithmic. */
    if (b->arena.bytes / 4 > cap) cap = b->arena.bytes / 4;
    if (cap > b->arena.bytes_max - b->arena.bytes) cap = bytes;
    if (bytes > b->arena.bytes_max - b->arena.bytes || add_overflows(sizeof(struct jn_chunk), cap, &total))
        jn_fail(b, JINJA_LIMIT, "the template needs more than %zu bytes of memory", b->arena.bytes_max);
    struct jn_chunk *ch = malloc(total);
    if (!ch) jn_fail(b, JINJA_NOMEM, "out of memory");
    ch->next = b->arena.head;
    ch->used = 0;
    ch->cap = cap;
    b->arena.head = ch;
    b->arena.bytes += cap;
    return ch;
}

void *jn_alloc(struct jn_base *b, size_t bytes)
{
    if (bytes > SIZE_MAX / 2) jn_fail(b, JINJA_LIMIT, "the template needs too much memory");
    bytes = (bytes + 15) & ~(size_t)15;
    struct jn_chunk *ch = b->arena.head;
    if (!ch || ch->cap - ch->used < bytes) ch = new_chunk(b, bytes);
    void *p = ch->data + ch->used;
    ch->used += bytes;
    return p;
}

void *jn_alloc_array(struct jn_base *b, size_t count, size_t size)
{
    size_t bytes;
    if (mul_overflows(count, size, &bytes)) jn_fail(b, JINJA_LIMIT, "the template needs too much memory");
    return jn_alloc(b, bytes);
}

void *jn_grow(struct jn_base *b, void *old, size_t old_bytes, size_t new_bytes)
{
    ASSERT_CMP(old_bytes, <=, new_bytes);
    struct jn_chunk *ch = b->arena.head;
    size_t old_rounded = (old_bytes + 15) & ~(size_t)15;
    if (old && ch && old_bytes && (char *)old + old_rounded == ch->data + ch->used &&
        new_bytes < SIZE_MAX / 2) {
        size_t extra = ((new_bytes + 15) & ~(size_t)15) - old_rounded;
        if (extra <= ch->cap - ch->used) {
            ch->used += extra;
            return old;
        }
    }
    void *p = jn_alloc(b, new_bytes);
    if (old_bytes) memcpy(p, old, old_bytes);
    return p;
}

void *jn_room(struct jn_base *b, void *old, size_t size, uint32_t *cap)
{
    uint32_t had = *cap;
    if (had > UINT32_MAX / 4) jn_fail(b, JINJA_LIMIT, "a list is too long");
    *cap = had ? 2 * had : 4;
    return jn_grow(b, old, had * size, *cap * size);
}

void jn_index_add(struct jn_base *b, struct id_table *t, uint32_t hash, uint32_t id)
{
    if (id_table_grows(t)) {
        uint32_t cap = t->cap ? 2 * t->cap : 32;
        struct id_slot *slots = jn_alloc_array(b, cap, sizeof *slots);
        memset(slots, 0, cap * sizeof *slots);
        id_table_move(t, slots, cap);
    }
    id_table_put(t, hash, id);
}

void jn_arena_free(struct jn_arena *a)
{
    struct jn_chunk *ch = a->head;
    while (ch) {
        struct jn_chunk *next = ch->next;
        free(ch);
        ch = next;
    }
    a->head = NULL;
    a->bytes = 0;
}
