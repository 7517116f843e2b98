/* See model_load.h. The engine's thread. */
#include "server/model_load.h"

#include "config/base/env.h"
#include "config/base/file.h"
#include "config/base/log.h"
#include "config/base/progress.h"
#include "engine/families/families.h"
#include "engine/model/model_info.h"
#include "engine/tokenizer/tokenizer.h"
#include "scheduler/cache/cache_store.h"
#include "scheduler/scheduler.h"
#include "server/chat/template.h"
#include "server/context/adapters.h"
#include "server/receipts/checkpoint_id.h"
#include "server/embed/embed.h"
#include "server/embed/pooling.h"
#include "server/kv_events/kv_events.h"
#include "server/http/http.h"
#include "server/jobs/jobs.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <uv.h>

static void load_progress(void *arg, uint64_t done, uint64_t total)
{
    progress_show(arg, done, total, 0);
}

/* On a GPU a verify step does not use the recorded CUDA graphs; prompt lookup has no measured gain there. */
static uint32_t draft_tokens(const struct options *o, const struct model *m)
{
    if (o->draft_tokens == OPTION_AUTO)
        return m->caps.drafts || strncmp(m->info->backend, "cpu", 3) == 0 ? 8 : 0;
    return (uint32_t)o->draft_tokens;
}

static void announce(void *arg)
{
    sched_announce_cache(arg);
}

static enum status events_open(const struct options *o, struct adapters *adapters, struct model *m,
                               struct sched_options *so, struct err *err)
{
    if (!o->kv_events) return ST_OK;
    enum status st = kv_events_open(
        &(struct kv_events_options){.publish = o->kv_events,
                                    .replay = o->kv_events_replay,
                                    .block_tokens = o->kv_events_block ? (uint32_t)o->kv_events_block
                                                                       : m->caps.block_tokens,
                                    .map = o->kv_events_layout == KV_EVENTS_LAYOUT_MAP,
                                    .lora = lora_named,
                                    .lora_arg = adapters,
                                    .one_group = m->caps.group_count == 1},
        &m->events, err);
    if (!st) so->event_sink = kv_events_sink(m->events);
    return st;
}

/* Tokenizer and chat template, loaded in parallel with the weights. */
struct text_load {
    const char *dir, *mmproj, *chat_template, *kwargs;
    struct model *m;
    enum status st;
    struct err err;
};

static struct text_load text_of(const struct options *o, const char *dir, struct model *m)
{
    return (struct text_load){.dir = dir,
                              .mmproj = o->mmproj,
                              .chat_template = o->chat_template,
                              .kwargs = o->chat_template_kwargs,
                              .m = m};
}

static void text_load(void *arg)
{
    struct text_load *t = arg;
    struct model *m = t->m;
    const struct family_prompt *rule;
    enum status st = family_load_prompt(t->dir, &rule, &t->err);
    if (!st) st = family_load_tokenizer(t->dir, t->mmproj, rule, &m->tok, &t->err);
    if (!st) {
        st = t->chat_template       ? template_load_file(t->chat_template, &m->tmpl, &t->err)
             : rule && rule->always ? ST_NOT_FOUND
                                    : template_load(t->dir, &m->tmpl, &t->err);
        if (st == ST_NOT_FOUND && rule) {
            st = template_create(rule->chat_template, strlen(rule->chat_template), NULL, 0, NULL, &m->tmpl,
                                 &t->err);
            m->own_prompts = !st && !rule->turns;
        }
        if (!st && t->kwargs) st = template_set_kwargs(m->tmpl, t->kwargs, &t->err);
        if (!st) template_guard(m->tmpl, m->tok);
        if (st == ST_NOT_FOUND) st = ST_OK; /* then chats are refused, completions work */
    }
    t->st = st;
}

enum status model_load_check(const struct options *o, const char *dir, const struct engine_inspected *engine,
                             struct err *err)
{
    struct model m = {0};
    struct text_load text = text_of(o, dir, &m);
    text_load(&text);
    *err = text.err;
    enum status st = text.st == ST_NOT_FOUND && *engine->lacking.msg ? ST_OK : text.st;
    if (!st && !*engine->lacking.msg)
        st = pooling_load(dir, &engine->retrieval, engine->hidden_size, &m.pooling, err);
    model_free(&m);
    return st;
}

/* The content of the checkpoint, hashed in parallel with the weights' loading, for the cache on disk. */
struct content_hash {
    const struct options *o;
    const char *dir;
    uv_thread_t thread;
    bool started;
    uint8_t id[32];
    enum status st;
    struct err err;
};

static void content_hash(void *arg)
{
    struct content_hash *c = arg;
    const char *paths[] = {c->dir, c->o->mmproj, c->o->draft_model};
    char *memo = file_join(c->o->cache_dir, "checkpoints");
    (void)mkdir(c->o->cache_dir, 0700); /* if it can't be made, opening the store says why */
    c->st = memo ? checkpoint_id(paths, sizeof paths / sizeof *paths, memo, c->id, &c->err)
                 : err_nomem(&c->err, "the checkpoint's hash");
    free(memo);
}

static void content_hash_start(struct content_hash *c)
{
    if (!c->o->cache_dir || !c->o->prefix_cache) return;
    c->started = uv_thread_create(&c->thread, content_hash, c) == 0;
}

/* A hash of everything that KV and encoded images depend on. False: without a disk. */
static bool cache_binding(struct content_hash *c, const struct model *m, uint8_t out[32])
{
    const struct engine_caps *caps = &m->caps;
    crypto_generichash_state h;
    char text[256];
    if (!c->started) return false;
    uv_thread_join(&c->thread);
    if (c->st) log_warn("the prefix cache stays in memory: %s", c->err.msg);
    crypto_generichash_init(&h, NULL, 0, 32);
    crypto_generichash_update(&h, c->id, sizeof c->id);
    int n = snprintf(text, sizeof text, "kv 1 %s %s %s %s %s %s %u %u", m->info->fingerprint, m->info->dtype,
                     m->info->kv_dtype, m->info->backend, m->info->weights,
                     m->info->gemm ? m->info->gemm : "", caps->block_tokens, caps->group_count);
    crypto_generichash_update(&h, (const unsigned char *)text, (unsigned)n);
    for (uint32_t g = 0; g < caps->group_count; g++) {
        const struct engine_kv_group *k = &caps->groups[g];
        n = snprintf(text, sizeof text, " %d %u %u %llu %llu", k->recurrent, k->window, k->layers,
                     (unsigned long long)k->bytes_per_token, (unsigned long long)k->block_bytes);
        crypto_generichash_update(&h, (const unsigned char *)text, (unsigned)n);
    }
    crypto_generichash_final(&h, out, 32);
    return !c->st;
}

static enum status engine_and_text_load(const struct options *o, const char *dir, struct model *m,
                                        struct err *err)
{
    struct progress progress = {.what = "loading"};
    struct engine_options eo = engine_options_from(o, dir);
    struct text_load text = text_of(o, dir, m);
    uv_thread_t thread;
    eo.adapter_bytes = adapters_bytes(o);
    if (o->lora_dir && !o->lora)
        log_info("no memory is set aside for adapters: --kv-memory must leave what they need");
    eo.progress = load_progress;
    eo.progress_arg = &progress;
    bool beside = uv_thread_create(&thread, text_load, &text) == 0;
    if (!beside) text_load(&text);
    enum status st = !beside && text.st ? text.st : engine_open(&eo, &m->engine, err);
    if (beside) uv_thread_join(&thread);
    (void)log_status(NULL);
    if (!text.st) return st;
    *err = text.err;
    return text.st;
}

enum status model_load(const struct options *o, const char *dir, struct adapters *adapters,
                       void (*wake)(void *arg), void *arg, struct model *m, struct err *err)
{
    struct content_hash content = {.o = o, .dir = dir};
    struct cache_store_options disk = {.dir = o->cache_dir, .bytes_max = o->cache_disk};
    char about[192];
    content_hash_start(&content);
    enum status st = engine_and_text_load(o, dir, m, err);
    if (st) {
        if (content.started) uv_thread_join(&content.thread);
        return st;
    }
    m->info = engine_model(m->engine);
    engine_caps(m->engine, &m->caps);
    st = pooling_load(dir, &m->info->retrieval, m->caps.hidden_size, &m->pooling, err);
    if (!st) st = embed_pairs_load(m, o->chat_template != NULL, err);
    if (st) return st;
    m->embedding_width = m->pooling->width;
    struct sched_options so = {.queue_max = 2 * (uint32_t)o->max_queue +
                                            (o->data_dir ? JOBS_OPEN : 0), /* server_queue_admits */
                               .prefill_chunk = (uint32_t)o->prefill_chunk,
                               .step_us = (uint32_t)o->step_ms * 1000u,
                               .no_prefix_cache = !o->prefix_cache,
                               .features_bytes = o->encoder_cache_memory,
                               .draft_max = draft_tokens(o, m),
                               .draft_always = m->caps.drafts && o->draft_tokens != OPTION_AUTO,
                               .project = m->pooling->dense_count ? pooling_project : NULL,
                               .project_arg = m->pooling,
                               .pooled_width = m->pooling->width,
                               .pooled_room = m->pooling->width_max,
                               .wake = wake,
                               .wake_arg = arg};
    randombytes_buf(&so.hash_seed, sizeof so.hash_seed); /* clients can't target a hash bucket */
    snprintf(about, sizeof about, "%s %s %s", m->info->family, m->info->weights, m->info->backend);
    disk.about = about;
    if (cache_binding(&content, m, disk.binding)) so.disk = &disk;
    so.host_bytes = o->cache_host;
    so.load_always = o->cache_load == CACHE_LOAD_ALWAYS;
    st = events_open(o, adapters, m, &so, err);
    if (!st) st = sched_create(m->engine, &so, &m->sched, err);
    if (!st && m->events) st = kv_events_start(m->events, announce, m->sched, err);
    /* The context is limited to what the KV arena holds: a request without max_tokens may use all of it.
     */
    if (!st) {
        uint32_t context = sched_context_max(m->sched);
        if (context < m->caps.context_max)
            log_warn("the KV cache has room for a context of %u tokens, not %u: raise --kv-memory", context,
                     m->caps.context_max);
        m->caps.context_max = context;
    }
    return st;
}

void model_free(struct model *m)
{
    kv_events_stop(m->events);
    if (m->sched) sched_destroy(m->sched);
    kv_events_close(m->events);
    engine_close(m->engine);
    template_free(m->tmpl);
    template_free(m->pairs);
    tok_free(m->tok);
    pooling_free(m->pooling);
    *m = (struct model){0};
}
