/* See grammars.h. */
#include "config/base/clock.h"
#include "server/input/grammars.h"

#include "config/base/list.h"

#include "config/base/work_lock.h"
#include "server/chat/reasoning_parse.h"
#include "server/chat/tool_calls/tool_calls.h"

#include "engine/model/model_info.h"
#include "engine/tokenizer/tokenizer.h"

#include <malloc.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

/* Measured: maximum ratio of a grammar's size to its description. */
#define DESCRIPTION_PART 32u
#define RESERVE_LEAST    ((size_t)64 << 10)
/* Grammars unused for so long are evicted, oldest first, until the rest is within this fraction of the
 * memory. */
#define IDLE_US   10000000u
#define IDLE_PART 8u
/* Freed bytes that are worth trimming the heap: of grammars, or estimated for compiles. */
#define TRIM_LEAST ((size_t)16 << 20)

struct kept {
    uint8_t key[crypto_hash_sha256_BYTES];
    struct grammar *grammar;
    uint64_t used_us, tenant;
    char *warnings; /* NULL: none */
};

struct grammars {
    uv_mutex_t lock; /* protects the fields up to `compiled`; not held during work */
    struct kept *kept;
    size_t count, cap, reserved, compiled; /* compiled: estimates since the heap was trimmed */
    struct grammar_memory memory;
    pthread_mutex_t vocab_lock;
    struct grammar_vocab *vocab;
    struct mask_threads *threads;
};

static void idle(void *arg);

static uint32_t thread_count(void)
{
    unsigned cores = uv_available_parallelism();
    return cores < 8 ? 1 : cores < 32 ? cores / 4 : 8;
}

enum status grammars_create(size_t memory, void (*wake)(void *arg), void *arg, struct grammars **out)
{
    struct grammars *g = calloc(1, sizeof *g);
    if (!g || uv_mutex_init(&g->lock)) {
        free(g);
        return ST_NOMEM;
    }
    pthread_mutex_init(&g->vocab_lock, NULL);
    g->memory.most = memory;
    if (mask_threads_create(thread_count(), wake, arg, idle, g, &g->threads)) {
        grammars_free(g);
        return ST_NOMEM;
    }
    *out = g;
    return ST_OK;
}

void grammars_stop(struct grammars *g)
{
    mask_threads_destroy(g->threads);
    g->threads = NULL;
}

void grammars_free(struct grammars *g)
{
    if (!g) return;
    grammars_stop(g);
    for (size_t i = 0; i < g->count; i++) {
        grammar_unref(g->kept[i].grammar);
        free(g->kept[i].warnings);
    }
    free(g->kept);
    grammar_vocab_free(g->vocab);
    pthread_mutex_destroy(&g->vocab_lock);
    uv_mutex_destroy(&g->lock);
    free(g);
}

struct mask_threads *grammars_threads(struct grammars *g)
{
    return g->threads;
}

static enum status vocab_make(const struct model *m, struct grammar_vocab **out, struct err *err)
{
    const char *names[TOOL_SYNTAXES * TOOL_TAGS_MAX + 6] = {CHANNEL_OPEN, CHANNEL_CLOSE, "<think>",
                                                            "</think>",   "[THINK]",     "[/THINK]"};
    size_t n = 6;
    for (int s = 1; s < TOOL_SYNTAXES; s++) n += tool_syntax_tags((enum tool_call_syntax)s, names + n);
    uint32_t count = tok_vocab_size(m->tok), tags[sizeof names / sizeof *names], tag_count = 0;
    struct grammar_token *tokens = calloc(count, sizeof *tokens);
    if (!tokens) return err_nomem(err, "the tokens of grammars");
    for (size_t i = 0; i < n; i++) {
        uint32_t id;
        if (tok_id_of(m->tok, names[i], strlen(names[i]), &id) && tok_is_special(m->tok, id))
            tags[tag_count++] = id;
    }
    for (uint32_t id = 0; id < count; id++) {
        bool tag = false;
        for (uint32_t i = 0; i < tag_count; i++) tag = tag || tags[i] == id;
        if (!tok_exists(m->tok, id) || (tok_is_special(m->tok, id) && !tag)) continue;
        tokens[id].bytes = tok_bytes(m->tok, id, &tokens[id].len);
    }
    enum status st =
        grammar_vocab_create(tokens, count, m->info->eos_ids, m->info->eos_count, tags, tag_count, out, err);
    free(tokens);
    return st;
}

enum status grammars_vocab(struct grammars *g, const struct model *m, const struct grammar_vocab **out,
                           struct err *err)
{
    enum status st = ST_OK;
    work_lock(&g->vocab_lock);
    if (!g->vocab) st = vocab_make(m, &g->vocab, err);
    *out = g->vocab;
    work_unlock(&g->vocab_lock);
    return st;
}

/* ---- cached grammars ---- */

static void key_of(const char *text, uint8_t key[crypto_hash_sha256_BYTES])
{
    crypto_hash_sha256(key, (const unsigned char *)text, strlen(text));
}

static struct kept *kept_at(struct grammars *g, const uint8_t *key)
{
    for (size_t i = 0; i < g->count; i++)
        if (memcmp(g->kept[i].key, key, sizeof g->kept[i].key) == 0) return &g->kept[i];
    return NULL;
}

/* Under the lock; the caller drops the reference without the lock. */
static struct grammar *take(struct grammars *g, struct kept *k)
{
    struct grammar *gone = k->grammar;
    free(k->warnings);
    *k = g->kept[--g->count];
    return gone;
}

struct grammar *grammars_find(struct grammars *g, const char *text, char **warnings)
{
    uint8_t key[crypto_hash_sha256_BYTES];
    struct grammar *found = NULL, *gone = NULL;
    key_of(text, key);
    uv_mutex_lock(&g->lock);
    struct kept *k = kept_at(g, key);
    if (k && grammar_bytes(k->grammar) == SIZE_MAX) {
        gone = take(g, k);
    } else if (k) {
        k->used_us = now_us();
        found = grammar_ref(k->grammar);
        *warnings = k->warnings ? strdup(k->warnings) : NULL;
    }
    uv_mutex_unlock(&g->lock);
    grammar_unref(gone);
    return found;
}

/* Bytes of the tenant's grammars (0: of all), of those in use only if `shared`. Under the lock. */
static size_t bytes_of(const struct grammars *g, uint64_t tenant, bool shared)
{
    size_t sum = 0;
    for (size_t i = 0; i < g->count; i++) {
        const struct kept *k = &g->kept[i];
        if ((!tenant || k->tenant == tenant) && (!shared || grammar_shared(k->grammar)))
            sum += grammar_bytes(k->grammar);
    }
    return sum;
}

/* Evicts grammars unused since `before`, oldest first, while the total exceeds `most`; the tenant's first
 * while it has more than half. Returns the bytes freed. */
static size_t evict(struct grammars *g, size_t most, uint64_t before, uint64_t tenant)
{
    size_t was = atomic_load(&g->memory.used);
    for (;;) {
        struct kept *oldest = NULL, *own = NULL;
        struct grammar *gone = NULL;
        uv_mutex_lock(&g->lock);
        for (size_t i = 0; i < g->count && atomic_load(&g->memory.used) > most; i++) {
            struct kept *k = &g->kept[i];
            if (grammar_shared(k->grammar) || k->used_us >= before) continue;
            if (!oldest || k->used_us < oldest->used_us) oldest = k;
            if (k->tenant == tenant && (!own || k->used_us < own->used_us)) own = k;
        }
        if (tenant && own && bytes_of(g, tenant, false) > g->memory.most / 2) oldest = own;
        if (oldest) gone = take(g, oldest);
        uv_mutex_unlock(&g->lock);
        if (!gone) break;
        grammar_unref(gone);
    }
    size_t is = atomic_load(&g->memory.used);
    return was > is ? was - is : 0;
}

/* On a mask thread. */
static void idle(void *arg)
{
    struct grammars *g = arg;
    uint64_t now = now_us();
    size_t freed = now < IDLE_US ? 0 : evict(g, g->memory.most / IDLE_PART, now - IDLE_US, 0);
    uv_mutex_lock(&g->lock);
    bool trim = !g->reserved && freed + g->compiled >= TRIM_LEAST;
    if (trim) g->compiled = 0;
    uv_mutex_unlock(&g->lock);
    if (trim) (void)malloc_trim(0);
}

static size_t estimate(size_t description)
{
    return RESERVE_LEAST + DESCRIPTION_PART * description;
}

bool grammars_reserve(struct grammars *g, size_t description, uint64_t tenant)
{
    size_t more = estimate(description), own;
    uv_mutex_lock(&g->lock);
    size_t held = g->reserved + bytes_of(g, 0, true);
    bool fits = !held || held + more <= g->memory.most;
    /* At most as much as remains free: with n such tenants each holds 1 / (n + 1). */
    if (fits && tenant && (own = bytes_of(g, tenant, true)))
        fits = own + more <= g->memory.most - held - more;
    if (fits) g->reserved += more;
    uv_mutex_unlock(&g->lock);
    return fits;
}

void grammars_dismiss(struct grammars *g, size_t description)
{
    uv_mutex_lock(&g->lock);
    g->reserved -= estimate(description);
    g->compiled += estimate(description);
    uv_mutex_unlock(&g->lock);
}

enum status grammars_keep(struct grammars *g, const char *text, uint64_t tenant, struct grammar *grammar,
                          const char *warnings)
{
    struct kept new = {.grammar = grammar, .used_us = now_us(), .tenant = tenant};
    enum status st = ST_OK;
    key_of(text, new.key);
    grammars_dismiss(g, strlen(text));
    grammar_count_in(grammar, &g->memory);
    (void)evict(g, g->memory.most, UINT64_MAX, tenant);
    if (grammar_bytes(grammar) > g->memory.most) return ST_TOO_LARGE;
    if (atomic_load(&g->memory.used) > g->memory.most) return ST_AGAIN;
    uv_mutex_lock(&g->lock);
    if (!LIST_RESERVE(g->kept, g->cap, g->count + 1)) st = ST_NOMEM;
    struct kept *same = kept_at(g, new.key); /* compiled twice concurrently */
    if (!st && !same) {
        grammar_ref(grammar);
        new.warnings = warnings ? strdup(warnings) : NULL;
        g->kept[g->count++] = new;
    }
    uv_mutex_unlock(&g->lock);
    return st;
}

const struct grammar_memory *grammars_memory(const struct grammars *g)
{
    return &g->memory;
}
