/* Internals of the engine, shared by engine*.c, decoder.c and vision.c only. Engine thread. */
#ifndef KVASIR_ENGINE_INTERNAL_H
#define KVASIR_ENGINE_INTERNAL_H

#include "config/base/assert.h"
#include "engine/engine.h"
#include "engine/model/model_desc.h"
#include "engine/sample/sampler.h"
#include "engine/checkpoint/adapter_weights.h"
#include "kernels/backend.h"

#include <pthread.h>
#include <stdatomic.h>

/* Rows of logits at a time: 64 x 262,208 x 4 bytes = 67 MB; a device with its own memory takes more. */
#define LOGIT_ROWS_MAX    64u
#define LOGIT_ROWS_DEVICE 256u

#define HOST_TOKEN_ROWS 32u /* rows of the per-layer embedding table uploaded at a time */

/* ---- KV layout: a block of a group holds BE_BLOCK_TOKENS tokens of all its layers ----
 *
 * Layers that read another's (kv_owner) take no memory: their group and offset are the owner's.
 *
 *   arena  | grain 0 | grain 1 | ...           grain = BE_KV_GRAIN bytes; a block begins at a grain
 *   block  | layer a | layer b | ... | padding |        up to a whole grain
 *
 * layer_offset[n] = where the part of layer n begins in a block. */
struct kv_layout {
    enum be_kv_type type;
    uint32_t group_count;
    uint32_t table_groups; /* those with block tables: all but the recurrent one, which is the last */
    struct engine_kv_group groups[ENGINE_GROUPS_MAX];
    uint32_t *layer_group; /* [layer_count], owned */
    size_t *layer_offset;  /* [layer_count] bytes, owned */
};

/* ---- memory plan ---- */
struct engine_plan {
    enum be_dtype act;
    enum opt_quantize quantize;
    bool float_vision;
    enum be_kv_type kv_type;
    uint32_t context_max, batch_tokens_max, sequences_max,
        blocks_max;           /* blocks_max: of one sequence, per group */
    uint32_t span_tokens_max; /* most tokens of an atomic span */
    uint64_t draft_bytes;     /* everything of the draft model, and replay_bytes */
    uint64_t replay_bytes; /* with recurrent layers: kept inputs of draft_rows_max draft tokens, allocated on
                              use */
    uint32_t draft_rows_max; /* draft tokens of one step; 0 = any number */
    uint64_t weight_bytes, scratch_bytes, vision_bytes, kv_bytes; /* backend memory */
    uint64_t adapter_bytes;                                       /* set aside */
    uint64_t kv_needed;  /* what all sequences at full context need */
    uint64_t available;  /* memory that the plan started from */
    uint32_t logit_rows; /* per pass: each pass reads the head's weights */
    uint64_t spare;      /* unused: scratch of larger images comes from it */
};

/* Scratch of one decoder step, worst case T = batch_tokens_max. Backend addresses into one block. */
struct decoder_scratch {
    void *block;
    float *resid;     /* [T, C] */
    float *out_resid; /* [T, C] the output rows, packed */
    float *proj;      /* [T, C] */
    float *mix;       /* [T, C], with a shared MLP */
    float *token;     /* [T, layers P], with ple; `out_ple`: its output rows. Before the first layer out_ple
                         holds the stream's product */
    float *out_ple;
    float *qkv;            /* [T, (H+2G)D], or a layer's other inputs of its mixer (desc_in_columns); once
                              pruned: the output rows' queries of that layer, act [., H D] */
    float *out_qkv;        /* with gated attention: of the output rows, once pruned */
    float *gates;          /* [T, 2 HV] of recurrent layers */
    void *h;               /* act [T, ld(C)] */
    void *q;               /* act [T, H D]; once a recurrent layer is pruned, its output rows' `attn` */
    void *attn;            /* act [T, ld(H D)] */
    void *mlp;             /* act [T, ld(ff)] */
    float *router;         /* [T, E] */
    uint32_t *expert_ids;  /* [T, k] */
    float *expert_weights; /* [T, k] */
    void *experts;         /* the backend's */
    float *cos[DESC_ROPES_MAX], *sin[DESC_ROPES_MAX];         /* [T, dim/2] */
    float *out_cos[DESC_ROPES_MAX], *out_sin[DESC_ROPES_MAX]; /* of the output rows, if layers follow */
    void *head_in;                                            /* act [plan.logit_rows, ld(C)] */
    float *logits;                                            /* [plan.logit_rows, V] */
    struct be_logit_stats *stats; /* [plan.logit_rows], and after them, so that one download takes all: */
    uint32_t *top;                /* of R rows: ids [R, k], then values [R, k]; k <= BE_TOPK_MAX */
    uint32_t *step;               /* [step_words] the step's index arrays */
};

/* A loaded network: description, weights and scratch of a step. Its layers name the layer whose keys and
 * values they read (desc_layer.kv_owner); the engine decides their location (struct kv_layout). */
struct net {
    struct model_desc desc;
    struct weights w;
    struct weights_inventory inventory;
    float embed_scale, token_scale;
    uint32_t prune_layer; /* from this layer's queries on only the output rows continue: it is the last one
                             that writes keys */
    float *inv_freq[DESC_ROPES_MAX];    /* backend, [dim/2] */
    uint8_t *rope_axis[DESC_ROPES_MAX]; /* backend, [dim/2]; NULL: plain positions */
    uint32_t rope_axes;                 /* 1, or 3 with mRoPE */
    struct decoder_scratch s;
};

/* The draft model; at most S = plan.sequences_max rows at a time. `own`: it is in the target's checkpoint
 * and has keys and values of its own, which every step writes for its T rows; rows' sizes are T then. */
struct drafter {
    bool on, own;
    char *dir;
    struct net net;
    struct weight_format format; /* own */
    struct stf_files *files;     /* open while the head's rows are read from them, else NULL */
    void *block;                 /* backend memory of the following */
    void *drawn; /* act [S, ld(B)] by engine_chunk.draft_slot: input of the target's head at the last sampled
                    token */
    float *wide; /* f32 [S, B] */
    void *token; /* act [S, ld(B)] the tokens' embeddings */
    void *state; /* act [S, ld(B)] */
    void *both;  /* act [S, ld(2 B)] embedding and state of each row */
    void *read;  /* act [S, ld(C)] input of its head */
    /* own: */
    float *hidden; /* [T + S + 1, C] what the target's head reads of the step's rows; by draft_slot of each
                      sequence's last row; zeros */
    float *before; /* [T, C] of each row that of the row before; while drafting, of its last token */
    float *everything;        /* [2] bounds */
    uint32_t *slot_at;        /* [S] the position after the slot's row */
    int32_t *slot_delta;      /* [S] its mrope_delta */
    uint32_t spare_block;     /* block offset after the scheduler's arena: two blocks for each row, of this
                                 layer alone */
    void *host_read;          /* act [S, ld(C)], as `read` */
    float *host_rows;         /* [S, C] the same as f32 */
    uint32_t *host_tops;      /* [S, max(1, centroids_used)] */
    uint32_t *order;          /* [S] */
    struct draft_pick *picks; /* [S] */
};

/* Scratch of the vision tower for R = `rows` rows of patches at a time: a layer processes an image in row
 * chunks of that many rows. Rows depend on each other only through the attention's keys and values. No state
 * stays here between slices of an encode. */
struct vision_scratch {
    void *block;
    uint32_t rows;
    float *qkv;       /* [R, 3 Cv] */
    void *h, *attn;   /* act [R, ld(Cv)]; while merging: act [R / merge^2, ld(merge^2 Cv)] */
    void *mlp;        /* act [R, ld(ff)] */
    float *dense;     /* [R, Cv] */
    float *gate, *up; /* [R, ff], with clip */
    /* for all images, outside of the block */
    float *lut;         /* [3*256] */
    float *rope_freq;   /* [D/2] */
    uint8_t *rope_axis; /* [D/2] 0: row, 1: column */
};

/* One chunk's row that needs logits, or only the head's input. */
struct output_row {
    uint32_t chunk;
    uint32_t row;  /* of the step */
    uint32_t next; /* position of the token that it predicts */
    bool sample, score, hidden;
};

/* ---- adapters: engine/adapter.c reads them, engine/adapter_rows.c multiplies ---- */
struct adapter {
    struct adapter_info info;
    struct adapter_weights w;
};
/* Rows [first, first + count) of a product, of one adapter. */
struct adapter_run {
    const struct adapter *adapter;
    uint32_t first, count;
};
struct adapter_rows {
    const struct adapter_run *runs; /* [run_count] ascending */
    uint32_t run_count;
    uint32_t first; /* the product's first row is this one in `runs` */
};
#define ADAPTER_ROWS 256u /* of a product, at most, that go through an adapter at once */
/* Shared by all adapters; made with the first. `be` packs on the thread that reads one: it has no other. */
struct adapter_room {
    pthread_mutex_t lock; /* of everything but what the engine thread reads: down and add */
    struct backend *be;
    struct adapter_sizes sizes;
    void *down;      /* act [ADAPTER_ROWS, be_ld(sizes.k)], A x; its rows are as wide as each adapter needs */
    float *add;      /* [ADAPTER_ROWS, sizes.n] */
    float *nothing;  /* [sizes.n] what leaves a row as it is */
    uint32_t *zeros; /* [ADAPTER_ROWS] */
};

/* Index arrays of the step that was submitted last; addresses are the backend's. The offset of an array
 * depends only on the numbers of rows and sequences; the block tables, whose length varies, come last. */
struct step {
    uint32_t t, seq_count; /* with padding rows */
    uint32_t output_count; /* without them */
    bool all_output;       /* the output rows are all rows of the step, in order */
    bool logits_done;      /* of the output rows, with their statistics: the step's graph included them */
    const uint32_t *ids;
    const int32_t *rope_pos;
    struct be_rows rows[ENGINE_GROUPS_MAX];
    const uint32_t *output_row_ids; /* [output_count] */
    const uint32_t *targets;        /* [output rows] the token whose log-prob is requested, or UINT32_MAX */
    const struct be_draw *draws;    /* the same */
    struct be_rows out_rows[ENGINE_GROUPS_MAX]; /* the output rows as a batch */
    struct be_states states;                    /* with a recurrent group: of the sequences */
    const uint32_t *before;     /* [T] with drafter.own: row of `hidden` of each row's predecessor */
    const uint32_t *draft_rows; /* [draft_count] rows of draft tokens */
    uint32_t draft_count;
    struct adapter_rows adapted[2]; /* of all rows, and of the output rows; run_count 0: none */
};

/* Inputs of the step's draft tokens in every recurrent layer. The states leave draft tokens out; once it is
 * known which are accepted, those are replayed. */
struct replay {
    void *block; /* [layers] of [rows_max, columns] and [rows_max, 2 HV], f32 */
    uint32_t rows_max;
};

/* A recorded step of so many sequences with one row each (engine/graph.c). */
#define ENGINE_GRAPHS_MAX   16u
#define ENGINE_SAMPLERS_MAX 16u /* sampling threads: each needs 16 bytes per id of the vocabulary */
struct engine_graph {
    uint32_t rows;
    struct be_graph *graph;
};

struct engine {
    atomic_uint_fast64_t
        progress; /* engine_progress; grows with every product of the decoder and the tower */
    const struct be_ops *ops;
    struct backend *be;
    struct be_caps becaps;
    struct profile *profile; /* NULL: none; else it owns `ops` */
    char *dir, *model_type;
    struct stf_files *files; /* open while a table is read from them, else NULL */
    char device[256], backend_name[64], kernels[72];
    struct net net; /* the served model */
    struct drafter draft;
    struct kv_layout kv;
    void *arena;
    uint64_t arena_grains;
    struct engine_plan plan;
    struct vision_scratch v;
    struct model_info info;
    struct sampler *samplers[ENGINE_SAMPLERS_MAX]; /* [sampler_count]: one for each sampling thread */
    uint32_t sampler_count;
    uint32_t *host_step; /* [step_words] */
    size_t step_words;
    struct output_row *output_rows; /* [batch_tokens_max] */
    float *host_token;              /* [HOST_TOKEN_ROWS, layers P], with ple */
    float *host_row;                /* [V], or [C] if larger, if the host can't read the backend's memory */
    void *host_results;             /* statistics and largest logits, laid out as in decoder_scratch */
    struct step step;
    struct engine_graph graphs[ENGINE_GRAPHS_MAX]; /* by rows, ascending */
    uint32_t graph_count;
    uint64_t graph_steps; /* steps replayed from a graph */
    void *host_memory;    /* engine_host_alloc */
    size_t host_bytes;
    uint64_t steps_ended;
    uint64_t ahead_steps; /* submitted while another was in flight */
    struct {
        struct engine_batch *batch;
        uint32_t top; /* largest logits per row that are on their way to the host */
    } flights[2];     /* steps in flight, the older one first */
    uint32_t flight_count;
    struct replay replay;
    struct be_params params; /* of `be` */
    struct adapter_room adapters;
    const struct adapter_rows *adapted;     /* of the rows that are worked on; NULL: no adapter */
    struct adapter_run *runs;               /* [2, sequences_max] step.adapted's */
    struct be_linear_args *adapter_linears; /* [2, sequences_max] */
};

/* One image during its encode, then its rows. */
struct engine_features {
    const struct adapter *adapter;   /* or NULL */
    struct image_u8 pixels;          /* host copy; freed once the patches are embedded */
    uint32_t frames, grid_h, grid_w; /* patches in time, down, across */
    uint32_t patches, tokens;
    uint32_t layers_done, deepstack_done;
    uint32_t row_chunk; /* rows of the tower per pass; depends on the image's size only */
    uint32_t row;       /* next row of the current layer */
    bool attending;     /* its keys and values are all there */
    bool embedded, done;
    float *rows;  /* [1 + DeepStack features][tokens, C] backend */
    size_t bytes; /* backend memory that it holds now */
    /* during the encode: one block */
    void *work;
    float *resid; /* [S, Cv] */
    void *q, *kv; /* act [S, Cv]; one layer's keys and values */
    /* The same memory, while no layer runs: */
    uint8_t *rgb;     /* one row of patches in time: [depth, height, width, 3] */
    void *patch_rows; /* act [S, ld(3 depth p p)] */
    float *raw;       /* VISION_EMBED: [S, 3 p p] */
    float *dense,
        *pooled;      /* VISION_POOL: [S, Cv], [tokens, Cv]; VISION_MERGE with windows: pooled [tokens, C] */
    float *cos, *sin; /* [S, D/2]; NULL: no rotary */
    struct be_rows halved;     /* of four rows in one, with halve */
    const uint32_t *mean_rows; /* [patches] 0, 1, 2, ...; weights of a quarter */
    const float *mean_weights;
    struct be_rows whole, windowed; /* every patch attends to its whole frame, or to its window */
    const uint32_t *order;          /* [grid_h * grid_w] raster index of the patch in each row of a frame */
    const uint32_t *token_row;      /* [tokens] row in tower order of each token; NULL: identity */
    uint32_t taps;
    const uint32_t *table_rows; /* [grid_h * grid_w, taps] lookup of the position table, with weights */
    const float *table_weights;
};

void adapters_close(struct engine *e); /* what all share */
/* Without weights: whether adapter_open takes it. */
enum status adapter_check(struct engine *e, const char *path, struct adapter_info *out,
                          struct err *err) KV_MUST_CHECK;
/* engine/adapter_rows.c: out = epilogue of x W, and of what adapters add to it (e->adapted). */
void engine__linear(struct engine *e, const struct be_weight *w, const void *x, uint32_t t,
                    enum be_epilogue epi, void *out);

/* engine/draft.c */
/* Reads the draft model's configuration and headers, and checks that it fits the target. */
enum status drafter_prepare(struct engine *e, const char *dir, bool random_weights,
                            struct err *err) KV_MUST_CHECK;
enum status drafter_load(struct engine *e, struct weights_progress progress, struct err *err) KV_MUST_CHECK;
void drafter_close(struct engine *e);
/* The draft model in the target's files, if there is one. */
enum status drafter_prepare_own(struct engine *e, struct stf_files *files, struct weight_format format,
                                struct err *err) KV_MUST_CHECK;
/* Blocks after the scheduler's arena, in grains. */
uint64_t drafter_spare_grains(const struct engine *e);
/* Bytes of scratch, without weights. */
uint64_t drafter_scratch_bytes(const struct engine *e);

/* engine/recurrent.c */
/* Memory for the batch's draft tokens. ST_AGAIN: there is none. */
void recurrent_plan(struct engine *e); /* sets plan.draft_rows_max and replay_bytes */
enum status recurrent_reserve(struct engine *e, const struct engine_batch *b, struct err *err) KV_MUST_CHECK;
/* Index arrays of states and draft tokens; `pad` sequences without a state follow the batch's. */
void recurrent_pack(struct engine *e, const struct engine_batch *b, uint32_t pad, size_t *used);
/* The mixer of layer n: q|k|v|z in s.qkv, beta|a in s.gates -> its output in place of v. */
void recurrent_mix(struct engine *e, struct net *net, uint32_t n);
/* Brings the states of sequences with accepted draft tokens up to date. */
void recurrent_replay(struct engine *e, const struct engine_batch *b);

/* engine/plan.c */
enum status kv_layout_make(const struct model_desc *d, const struct be_ops *ops, struct backend *be,
                           enum be_kv_type type, struct kv_layout *out, struct err *err) KV_MUST_CHECK;
void kv_layout_free(struct kv_layout *k);
enum status engine__plan(const struct engine_options *opt, struct engine *e, struct err *err) KV_MUST_CHECK;
/* Scratch of a net for steps of t rows, whose logits (of `vocab` tokens) are computed `rows` at a time. base
 * NULL: only counts. Returns the bytes. */
uint64_t engine__carve_net(const struct engine *e, const struct net *net, uint64_t t, uint64_t rows,
                           uint64_t vocab, void *base, struct decoder_scratch *s);
/* Backend memory, or ST_NOMEM or ST_DEVICE. */
enum status engine__dev_alloc(struct engine *e, uint64_t bytes, void **out, const char *what,
                              struct err *err) KV_MUST_CHECK;
/* Rotary frequencies of a net. */
enum status engine__alloc_ropes(struct engine *e, struct net *net, struct err *err) KV_MUST_CHECK;
/* Frees what a net holds in backend memory. */
void engine__free_net(struct engine *e, struct net *net);
enum status engine__alloc(struct engine *e, struct err *err) KV_MUST_CHECK;
void engine__release(struct engine *e);
/* Tokens of the largest image that the plan has memory for; 0 = any that fits into the context. */
uint32_t engine__vision_tokens_max(const struct engine *e);
/* Whether the plan has memory for an image of that many patches. Checked here because host memory can be
 * overcommitted. */
bool engine__vision_room(const struct engine *e, uint32_t patches);
/* How the weights of the model are kept. */
struct weight_format engine__weight_format(const struct engine *e);
/* engine.c: configuration, description, inventory, backend, plan; nothing large is allocated or read. */
enum status engine__prepare(const struct engine_options *opt, struct engine *e, struct stf_files **files,
                            struct err *err) KV_MUST_CHECK;

/* The next index array of a step, at the same offset in host and backend memory. */
static inline uint32_t *engine__array(struct engine *e, size_t *used, size_t words, const uint32_t **dev)
{
    size_t at = *used;
    *used += (words + 15) / 16 * 16;
    ASSERT(*used <= e->step_words);
    *dev = e->net.s.step + at;
    return e->host_step + at;
}
/* engine/step.c: fills e->step and uploads its arrays. rows: the step's size with padding rows after the
 * batch's (each a sequence of its own); then every chunk has one row. 0: no padding. */
void engine__pack(struct engine *e, const struct engine_batch *b, uint32_t rows);

/* engine/graph.c: records decode steps of the usual sizes, if the backend can. A backend that cannot record
 * runs every step without a graph (and logs it); ST_DEVICE when the device has failed. */
/* The table of operations from then on; the backend must be open. */
enum status profile_open(struct engine *e, struct err *err) KV_MUST_CHECK;
void profile_close(struct engine *e); /* restores the backend's own table */
enum status engine__graphs_open(struct engine *e, struct err *err) KV_MUST_CHECK;
void engine__graphs_close(struct engine *e);
/* The graph for this batch's step; NULL: none. */
const struct engine_graph *engine__graph_for(const struct engine *e, const struct engine_batch *b);
/* Whether it includes decoder_logits of all its rows. */
bool engine__graph_has_logits(const struct engine *e, const struct engine_graph *g);

/* decoder.c: embeds the rows of the step and runs all layers; leaves the output rows' residuals for
 * decoder_logits. */
void decoder_run(struct engine *e, struct net *net, const struct engine_batch *b);
/* The head's input for output rows [first, first + count), count <= plan.logit_rows. */
void decoder_head_in(struct engine *e, struct net *net, uint32_t first, uint32_t count);
/* The same, then their logits and statistics of these. */
void decoder_logits(struct engine *e, struct net *net, uint32_t first, uint32_t count);
/* own: the drafter's keys and values of the step's rows, after decoder_run. */
void decoder_own_keys(struct engine *e);
/* One more draft token for each of t sequences, whose last ids are e->step.ids: leaves the draft head's input
 * and the next state. first: these sequences' first one. */
void decoder_draft(struct engine *e, uint32_t t, bool first);
/* The k largest of the draft model's head, or of its centroids, for rows [first, first + count). */
void decoder_draft_top(struct engine *e, uint32_t first, uint32_t count, uint32_t k);
/* The k largest logits of `count` rows left by decoder_logits, k > 0. */
void decoder_top(struct engine *e, struct net *net, uint32_t count, uint32_t k);

/* Zeroes a block of a group from token `first` on. */
void decoder_kv_clear(struct engine *e, uint32_t group, uint32_t block_offset, uint32_t first);

/* vision_geometry.c: sizes, neighbourhoods and lookups of one image. */
/* Patches and tokens of a prepared image; ST_INVALID if the tower does not take its size. */
enum status vision_measure(const struct engine *e, const struct image_u8 *pixels, struct engine_features *f,
                           struct err *err) KV_MUST_CHECK;
/* Allocates f->work and fills what lies in it. */
enum status vision_prepare(struct engine *e, struct engine_features *f, struct err *err) KV_MUST_CHECK;
/* Patches of the largest image that can ever be requested. */
uint32_t vision_patches_max(const struct engine *e);
/* Memory of an image of so many patches during its encode, its rows included. */
uint64_t vision_image_bytes(const struct engine *e, uint32_t patches);
/* Most rows of the tower that run at once. */
#define VISION_ROWS_MAX 2048u
/* Work limit of one slice with `layers` = 1, in rows times keys: one layer of an image of 4,096 patches. The
 * matrix products of a row count as VISION_ROW_KEYS keys (in a tower 1152 wide). */
#define VISION_ROW_KEYS 6600u
#define VISION_SLICE    (4096ull * (VISION_ROW_KEYS + 4096))

/* vision.c: `layers` more layers of the tower (0 = all that are left), with the embedding before the first
 * and the pooling after the last. */
void vision_run(struct engine *e, struct engine_features *f, uint32_t layers);
/* costs.c: the products of a token in a merger (part 0: the tower's end; then DeepStack's). How many. */
#define MERGER_PRODUCTS 4u
struct merger_product {
    const struct be_weight *w;
    double numbers; /* rows times columns */
};
uint32_t merger_products(const struct net *net, uint32_t part, struct merger_product out[MERGER_PRODUCTS]);

#endif
