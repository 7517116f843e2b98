/* A loaded checkpoint that runs ragged steps: block ids in, tokens out. The scheduler's only view of the
 * model: no tensor, dtype, layer or family appears here. One thread (the engine thread) calls everything but
 * engine_open's result getters, which are immutable after open. The engine owns KV bytes, image features and
 * weights; the caller owns block ids and decides what runs. */
#ifndef KVASIR_ENGINE_H
#define KVASIR_ENGINE_H

#include "config/base/status.h"
#include "config/options.h"
#include "engine/model/model_info.h"
#include "engine/prompt/image.h"
#include "engine/prompt/prompt.h"
#include "engine/sample/sampling.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ENGINE_GROUPS_MAX 4u
#define ENGINE_NO_BLOCK   UINT32_MAX

struct engine;
struct model_info; /* what the server needs to build prompts: engine/model/model_info.h */

struct engine_options {
    const char *model_dir;      /* or a GGUF file */
    const char *mmproj;         /* GGUF file of the vision tower; NULL: none */
    const char *draft_dir;      /* checkpoint of the draft model; NULL: none */
    bool own_drafter;           /* else the draft model in model_dir itself, if there is one */
    enum opt_backend backend;   /* auto: the GPU if usable, else the CPU */
    const char *kernels;        /* NULL or "auto", or a kernel set of the CPU backend */
    uint32_t threads;           /* 0 = all usable cores */
    enum opt_dtype dtype;       /* auto: the checkpoint's; f32 stays f32, bf16 and f16 run as bf16 */
    enum opt_gemm gemm;         /* whose matrix products on a GPU (be_params.own_gemm); auto: KVASIR_GEMM */
    enum opt_quantize quantize; /* float matrices */
    bool float_vision;          /* no quants in the image tower */
    enum opt_kv_dtype kv_dtype; /* auto: the compute type */
    uint64_t kv_bytes;          /* size of the KV arena; 0 = from free memory */
    uint64_t adapter_bytes;     /* set aside for adapters */
    uint32_t context_max;       /* 0 = the checkpoint's max_position_embeddings */
    uint32_t batch_tokens_max;  /* rows of one step; 0 = 2048 */
    uint32_t sequences_max;     /* sequences of one step; 0 = 64 */
    uint64_t weight_bytes;      /* with random_weights: what the real ones take; 0 = as bf16 */
    bool random_weights; /* for benchmarks: model_dir holds only config.json; weights are random (seeded),
                            bf16 unless dtype is f32 */
    bool profile;        /* engine_profile_*; on a GPU steps are slower and use no graphs */
    void (*progress)(void *arg, uint64_t done_bytes,
                     uint64_t total_bytes); /* may be NULL; called while loading */
    void *progress_arg;
};

struct engine_options engine_options_from(const struct options *o, const char *model_dir);

/* Recurrent layers (gated delta nets, short convolutions) form a group of their own, at most one. Its block
 * is the state of one sequence after some position, of all its layers and of fixed size, whatever the
 * position. */
struct engine_kv_group {
    bool recurrent;
    uint32_t window; /* 0 = full attention; else a query at p sees keys > p - window */
    uint32_t layers;
    uint64_t bytes_per_token; /* recurrent: 0 */
    uint64_t block_bytes;     /* of all its layers */
    uint32_t block_grains;    /* arena grains that a block takes */
};
struct engine_caps {
    uint32_t group_count;
    struct engine_kv_group groups[ENGINE_GROUPS_MAX];
    uint32_t block_tokens; /* tokens per block, all groups */
    uint64_t
        arena_grains; /* size of the arena; block-table entries are offsets in grains, 0..arena_grains-1 */
    uint32_t grain_bytes;
    bool device_memory; /* the arena is not in host memory */
    uint32_t vocab_size, hidden_size;
    uint32_t context_max;      /* prompt + generated tokens of one sequence */
    uint32_t batch_tokens_max; /* at least span_tokens_max */
    uint32_t sequences_max;
    bool images;               /* takes images */
    uint32_t span_tokens_max;  /* longest span that must be in one step; 0 = every span can be split.
                                  batch_tokens_max >= span_tokens_max + sequences_max */
    uint32_t image_tokens_max; /* largest image that the tower's scratch has memory for; 0 = limited by the
                                  context only */
    bool drafts;               /* there is a draft model: engine_draft */
    uint32_t draft_rows_max;   /* most draft tokens of one step; 0 = any number */
    uint32_t eos_ids[16];      /* ids that end a generation */
    uint32_t eos_count;
};

enum status engine_open(const struct engine_options *opt, struct engine **out, struct err *err) KV_MUST_CHECK;
void engine_close(struct engine *e); /* NULL is fine */
void engine_caps(const struct engine *e, struct engine_caps *out);
/* A counter that changes while a step or an encode makes progress: tells a watchdog a slow engine from a hung
 * one. Any thread. */
uint64_t engine_progress(const struct engine *e);
const struct model_info *engine_model(const struct engine *e); /* immutable, any thread, lives as long as e */

/* ---- adapters (LoRA) ---- */
struct adapter; /* weights that are added to some of the model's products, in backend memory; immutable */
struct adapter_info {
    uint8_t digest[32]; /* of what is computed: matrices and scales, whatever the files or their names */
    uint64_t bytes;     /* backend memory */
    uint32_t matrices;  /* of the model that it adds to */
    uint32_t rank_max;
    double scale_max;    /* alpha by rank */
    char targets[128];   /* "q_proj v_proj": the last parts of their names, as many as fit */
    bool touches_images; /* adds to the tower or the projector: an image's features are the adapter's own */
    char base[256];      /* the base model's name in the files; "": none */
};
/* Reads a directory as PEFT saves it (adapter_config.json, adapter_model.safetensors) or a GGUF file of
 * llama.cpp's converter, and checks it against the model. Any thread: all work is the caller's, no step
 * waits; two at a time take turns. ST_UNSUPPORTED names what is not served (DoRA, modules_to_save, biases,
 * ...); ST_FORMAT: what does not fit the model. */
enum status adapter_open(struct engine *e, const char *path, struct adapter **out,
                         struct err *err) KV_MUST_CHECK;
const struct adapter_info *adapter_info(const struct adapter *a);
/* For `kvasir inspect`: the same checks without the model's weights, which may be absent; bytes is an
 * estimate. */
enum status adapter_inspect(const struct engine_options *opt, const char *path, struct adapter_info *out,
                            struct err *err) KV_MUST_CHECK;
/* Any thread, before engine_close, once no step in flight and no image's encode has it. NULL is fine. */
void adapter_free(struct engine *e, struct adapter *a);

/* ---- image features ---- */
struct engine_features; /* encoded rows of one image, in backend memory */
/* Starts an encode; copies the pixels (their size decides the rows; ST_INVALID: a size that the model does
 * not take). adapter: NULL, or it stays until the encode is done. The tower
 * runs in slices so that decoding is not starved: each engine_features_step runs
 * `layers` more layers (0 = all that are left), of a large image a part of one, and sets *done at the end.
 * The slicing does not change the result, bit for bit. Not while a step is in flight. ST_TOO_LARGE: no memory
 * planned for an image of that size. */
enum status engine_features_create(struct engine *e, const struct image_u8 *pixels,
                                   const struct adapter *adapter, struct engine_features **out,
                                   struct err *err) KV_MUST_CHECK;
enum status engine_features_step(struct engine *e, struct engine_features *f, uint32_t layers, bool *done,
                                 struct err *err) KV_MUST_CHECK;
size_t engine_features_bytes(const struct engine_features *f);
/* Copies the rows of encoded features to `host`, engine_features_bytes of them, and makes features from such
 * a copy. ST_FORMAT: the number of bytes is not that of an image. */
void engine_features_read(struct engine *e, const struct engine_features *f, void *host);
enum status engine_features_write(struct engine *e, const void *host, size_t bytes,
                                  struct engine_features **out, struct err *err) KV_MUST_CHECK;
void engine_features_free(struct engine *e, struct engine_features *f);

/* ---- one step ---- */
/* A span of the prompt (struct prompt_span) that a chunk touches. */
struct engine_span {
    const struct engine_features *features; /* of its image, fully encoded; NULL = the span has no image */
    uint32_t begin, end;                    /* absolute */
    enum span_rule rule;
    uint32_t atomic_begin, atomic_end; /* a chunk with some of these tokens has all up to atomic_end */
    struct prompt_grid grid;           /* its 3-D positions, or its breaks; all 0 = plain positions */
    int32_t mrope_delta_before,
        mrope_delta; /* RoPE position minus position, of the text before it and after it */
};
/* One sequence's part of a step: `count` tokens at absolute positions [position, position + count); all
 * earlier positions are in the cache (sliding groups: those that the window can still reach). */
struct engine_chunk {
    uint32_t position, count;
    const struct adapter *adapter; /* NULL: the model itself */
    /* Of a step that is submitted behind the one in flight: 1 + the index of the chunk there that samples
     * this chunk's only token, which is not yet in `tokens`. 0: none; the same for all chunks of a step. */
    uint32_t after;
    /* the sequence's history from position 0 on: prompt, then generated; at least position + count entries
     * (one more when prompt tokens are scored: the token after the chunk's last) */
    const uint32_t *tokens;
    uint32_t token_count;                      /* entries of tokens */
    uint32_t prompt_count;                     /* of which prompt */
    const uint32_t *tables[ENGINE_GROUPS_MAX]; /* block tables by absolute block index, one per group; entries
                                                  in arena grains; recurrent: NULL */
    /* With a recurrent group: where the state after `position` tokens is read (ENGINE_NO_BLOCK: position is
     * 0), and where the one after the chunk, without its rejected draft tokens, is written. The same block is
     * fine; a different one leaves the first as it is, a snapshot that others may read in the same step. Two
     * chunks of a step never write the same block, and none reads what another writes. */
    uint32_t state_from, state_to;
    const struct engine_span *spans; /* those that touch [position, position + count), in order */
    uint32_t span_count;
    /* Speculative decoding: the last `proposed` tokens of the chunk, from tokens[position + count - proposed]
     * on, are draft tokens (token_count includes them). A token is sampled at the position of each draft
     * token and after the last one, as if the tokens came one at a time, up to the first that differs from
     * its draft: drawn[0..drawn_count). Keys and values after position + count - proposed + drawn_count - 1
     * are then invalid. proposed > 0 needs `sample` and ids below the vocabulary's size. */
    uint32_t proposed;
    struct token_out
        *drawn; /* [proposed + 1] or [given], the caller's; may be NULL without draft tokens: the result is
                                then in `out` */
    /* Given tokens: those after the chunk's last `given` rows are known, tokens[position + count] too
     * (token_count includes it). One is drawn at each of these rows all the same, after the given tokens up
     * to it: drawn[0..drawn_count), up to the first that differs from the given one, whose log-prob is then
     * in `missed`. forced: nothing is drawn, drawn[] has the given tokens' log-probs. Nothing is rolled back.
     * given > 0 needs `sample`, and excludes `proposed`. */
    uint32_t given;
    bool forced;
    uint32_t draft_slot; /* with a draft model and `sample`: below sequences_max, exclusive to this sequence;
                            keeps the state for drafting after the sampled token */
    int32_t mrope_delta; /* RoPE position minus position, of the text in this chunk before its first image; 0
                            with 1-D positions */
    const struct sampling_params *sampling;
    bool sample;            /* sample the token after the chunk's last one -> out */
    const uint32_t *banned; /* ids that may not be sampled (min_tokens) at positions below banned_until */
    uint32_t banned_count, banned_until;
    uint32_t score_first; /* score history tokens at positions [score_first, position + count] that lie in
                           * (position, position+count] and below prompt_count: log-prob of each given its
                           * prefix. UINT32_MAX = none */
    float *hidden; /* caller's array: the head's input, the final norm's output, of the chunk's tokens from
                    * position hidden_first on; [position + count - hidden_first, hidden_size]. NULL = none */
    uint32_t hidden_first;
    /* results, valid after engine_wait */
    struct token_out out;    /* if sample and nothing was proposed or given */
    uint32_t drawn_count;    /* if sample: 1 to proposed + 1, or to given */
    struct token_out missed; /* the given token where drawn[drawn_count - 1] is another */
    bool refused_broken;     /* internal: a rejected draft token left NaN or infinity in the KV */
    bool broken; /* NaN or infinity in the requested logits, or, if the last token's were not requested, in
                    its input to the last layer (damaged weights, for example): out, scores and the KV are
                    invalid */
    struct token_out *scores; /* if score_first: caller's array; scores[p - (position + 1)] for token at
                                 position p in (position, min(position+count, prompt_count-1)] */
};
struct engine_batch {
    struct engine_chunk *chunks; /* [chunk_count], caller's */
    uint32_t chunk_count;        /* <= sequences_max; sum of counts <= batch_tokens_max */
};
/* Launches a step; engine_wait blocks until its results are ready. One step in flight, or a second one behind
 * it (engine_chunk.after): then all chunks of the first are engine_draws, and the first is waited for first.
 * Of a chunk that is engine_draws engine_wait reads `sampling` alone. Errors: ST_DEVICE, ST_NOMEM: every
 * chunk of the step is lost. ST_AGAIN: no memory for its draft tokens; nothing was launched, and the step
 * without them has room. */
enum status engine_submit(struct engine *e, struct engine_batch *b, struct err *err) KV_MUST_CHECK;
enum status engine_wait(struct engine *e, struct engine_batch *b, struct err *err) KV_MUST_CHECK;

/* Whether the chunk's token is drawn where a step behind this one can read it. Never on the CPU. */
bool engine_draws(const struct engine *e, const struct engine_chunk *r);

/* fn(ctx, i) for each i < count, on the engine's threads if it has any: host work between steps. */
void engine_each(struct engine *e, uint32_t count, void (*fn)(void *ctx, uint32_t i), void *ctx);

/* Draft tokens to follow a sequence's last token, which the sequence's last step sampled and which is not yet
 * in the cache. */
struct engine_draft {
    uint32_t slot;     /* engine_chunk.draft_slot of that step */
    uint32_t position; /* of the token, above 0: keys and values of all earlier ones are in the cache (sliding
                          groups: `window` of them; missing table entries are not read) */
    uint32_t token;
    const uint32_t *tables[ENGINE_GROUPS_MAX]; /* as engine_chunk.tables */
    uint32_t count;                            /* of draft tokens, above 0 */
    uint32_t *out;                             /* [count] */
};
/* Fills d[0..n).out, n <= sequences_max. Draft tokens of one do not depend on the others. Not while a step is
 * in flight. Not called without --draft-model. */
enum status engine_draft(struct engine *e, const struct engine_draft *d, uint32_t n,
                         struct err *err) KV_MUST_CHECK;

/* Copies the first `tokens` of one block of a group inside the arena (copy on write of a shared, partly
 * filled block; not of the recurrent group). The rest of the original belongs to
 * another request and may be NaN: the copy has zeros there. */
void engine_kv_copy(struct engine *e, uint32_t group, uint32_t from_offset, uint32_t to_offset,
                    uint32_t tokens);
/* Copies a block, or a state of the recurrent group, to host memory and back: block_bytes of its group. Of a
 * block of keys and values only the first `tokens` count: after them a written block has zeros. Steps in
 * flight that write neither block end first; with memory of engine_host_alloc nobody waits for them. */
void engine_kv_read(struct engine *e, uint32_t group, uint32_t block_offset, void *host);
void engine_kv_write(struct engine *e, uint32_t group, uint32_t block_offset, const void *host,
                     uint32_t tokens);
/* One piece of host memory, pinned for a device: copies of blocks and features from and to it are queued. It
 * may be read after engine_copies_wait with what engine_copies returned then, and written. NULL: no memory.
 */
void *engine_host_alloc(struct engine *e, size_t bytes);
void engine_host_free(struct engine *e);
uint64_t engine_copies(const struct engine *e);
/* At once, if a step that was submitted later has ended. */
void engine_copies_wait(struct engine *e, uint64_t copies);

/* Arithmetic and traffic of the loaded model, and the measured ceilings of the machine: for `kvasir bench`.
 * Takes a second. */
struct engine_costs {
    double linear_flops_per_token; /* all decoder linears, multiply and add counted as 2 */
    double out_flops_per_token;    /* of these the part that only output rows go through */
    double head_flops_per_row;     /* logits of one row */
    double weight_bytes;           /* read by every decode step: decoder linears and head, without experts */
    double expert_bytes;           /* of all experts: a token reads experts_used / experts of them */
    uint32_t experts, experts_used;
    double state_flops_per_token; /* of recurrent layers, outside of linears */
    double state_bytes;           /* read and written of a sequence's state by a decode step */
    uint32_t group_count;         /* with keys and values */
    struct {
        uint32_t window;
        double flops_per_pair; /* all layers and heads of the group: q.k and p.v of one visible (query, key)
                                  pair */
        double out_flops_per_pair; /* of these those of output rows */
        double bytes_per_key;      /* K and V bytes of one key, all layers of the group */
    } groups[ENGINE_GROUPS_MAX];
    double vision_flops; /* one image of vision_side x vision_side pixels: tower, mergers or projector; 0 =
                            no tower */
    uint32_t vision_side;
    double matrix_flops, read_bytes_per_s;
    uint32_t threads;
};
enum status engine_costs(struct engine *e, struct engine_costs *out, struct err *err) KV_MUST_CHECK;

/* For `kvasir bench --profile`: time of the backend's operations by part of the model. Parts that were not
 * called have 0 calls. */
#define ENGINE_PROFILE_PARTS 18u
struct engine_profile_part {
    const char *name; /* static */
    uint64_t calls;
    double seconds;
    double flops, bytes; /* arithmetic, and weights or keys and values read; 0 where not counted */
};
/* Resets to 0. ST_UNSUPPORTED without engine_options.profile. */
enum status engine_profile_start(struct engine *e, struct err *err) KV_MUST_CHECK;
void engine_profile_read(const struct engine *e, struct engine_profile_part out[ENGINE_PROFILE_PARTS]);

/* For `kvasir inspect --devices`: writes the CPU and the GPUs, or why there is no GPU, as text. */
enum status engine_devices(char *text, size_t cap, struct err *err) KV_MUST_CHECK;

/* For `kvasir inspect`: describes the checkpoint in DIR as text, without loading the weights, which may be
 * absent. ST_NOMEM: it does not fit into memory, and `text` describes it all the same; after other errors
 * `text` is empty. */
struct engine_inspected {
    struct model_retrieval retrieval;
    uint32_t hidden_size;
    bool vision;
    uint64_t fixed_bytes, kv_needed; /* the plan: weights and working memory; KV for all sequences */
    uint64_t available;              /* bytes, now */
    struct err lacking; /* the weights that aren't there: config.json alone is described; "": none */
};
enum status engine_inspect(const struct engine_options *opt, char *text, size_t cap,
                           struct engine_inspected *out, struct err *err) KV_MUST_CHECK;

#endif
