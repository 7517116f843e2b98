/* See grammars.h. */
#include "server/generate/grammars.h"

#include "server/chat/reasoning_parse.h"
#include "server/chat/tool_parse.h"

#include "engine/model/model_info.h"
#include "engine/tokenizer/tokenizer.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#define KEPT       128u
#define KEPT_BYTES ((size_t)256 << 20) /* of all, but for the newest */

struct kept {
    uint8_t key[crypto_hash_sha256_BYTES];
    struct grammar *grammar; /* NULL: free */
    uint64_t used;
};

struct grammars {
    uv_mutex_t lock;
    struct grammar_vocab *vocab;
    uint64_t clock;
    struct kept kept[KEPT];
};

enum status grammars_create(struct grammars **out)
{
    struct grammars *g = calloc(1, sizeof *g);
    if (!g || uv_mutex_init(&g->lock)) {
        free(g);
        return ST_NOMEM;
    }
    *out = g;
    return ST_OK;
}

void grammars_free(struct grammars *g)
{
    if (!g) return;
    for (uint32_t i = 0; i < KEPT; i++) grammar_unref(g->kept[i].grammar);
    grammar_vocab_free(g->vocab);
    uv_mutex_destroy(&g->lock);
    free(g);
}

static enum status vocab_make(const struct model *m, struct grammar_vocab **out, struct err *err)
{
    static const char *const names[] = {TOOL_OPEN,       TOOL_CLOSE, TOOL_CALL_OPEN,
                                        TOOL_CALL_CLOSE, TOOL_QUOTE, CHANNEL_OPEN,
                                        CHANNEL_CLOSE,   "<think>",  "</think>"};
    uint32_t count = tok_vocab_size(m->tok), tags[sizeof names / sizeof *names], tag_count = 0;
    struct grammar_token *tokens = calloc(count, sizeof *tokens);
    if (!tokens) return err_set(err, ST_NOMEM, "out of memory for the tokens of grammars");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
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
    uv_mutex_lock(&g->lock);
    if (!g->vocab) st = vocab_make(m, &g->vocab, err);
    *out = g->vocab;
    uv_mutex_unlock(&g->lock);
    return st;
}

static void key_of(const char *text, uint8_t key[crypto_hash_sha256_BYTES])
{
    crypto_hash_sha256(key, (const unsigned char *)text, strlen(text));
}

struct grammar *grammars_find(struct grammars *g, const char *text)
{
    uint8_t key[crypto_hash_sha256_BYTES];
    struct grammar *found = NULL, *gone = NULL;
    key_of(text, key);
    uv_mutex_lock(&g->lock);
    for (uint32_t i = 0; i < KEPT && !found; i++) {
        struct kept *k = &g->kept[i];
        if (!k->grammar || memcmp(k->key, key, sizeof key) != 0) continue;
        k->used = ++g->clock;
        found = grammar_ref(k->grammar);
        if (grammar_bytes(found) < SIZE_MAX) continue;
        gone = found;
        grammar_unref(k->grammar);
        *k = (struct kept){.grammar = NULL};
    }
    uv_mutex_unlock(&g->lock);
    grammar_unref(gone);
    return gone ? NULL : found;
}

static struct kept *oldest_of(struct grammars *g)
{
    struct kept *oldest = NULL;
    for (uint32_t i = 0; i < KEPT; i++)
        if (g->kept[i].grammar && (!oldest || g->kept[i].used < oldest->used)) oldest = &g->kept[i];
    return oldest;
}

/* Until there is a place, and the rest is small enough: the one that was not asked for the longest goes. */
static struct kept *make_room(struct grammars *g)
{
    for (;;) {
        struct kept *place = NULL, *oldest = oldest_of(g);
        size_t bytes = 0;
        for (uint32_t i = 0; i < KEPT; i++) {
            size_t own = g->kept[i].grammar ? grammar_bytes(g->kept[i].grammar) : 0;
            if (!g->kept[i].grammar) place = &g->kept[i];
            bytes = own > KEPT_BYTES ? KEPT_BYTES + 1 : bytes + own;
        }
        if (place && bytes <= KEPT_BYTES) return place;
        grammar_unref(oldest->grammar);
        oldest->grammar = NULL;
    }
}

void grammars_keep(struct grammars *g, const char *text, struct grammar *grammar)
{
    uint8_t key[crypto_hash_sha256_BYTES];
    key_of(text, key);
    uv_mutex_lock(&g->lock);
    struct kept *place = make_room(g);
    *place = (struct kept){.grammar = grammar_ref(grammar), .used = ++g->clock};
    memcpy(place->key, key, sizeof key);
    uv_mutex_unlock(&g->lock);
}
