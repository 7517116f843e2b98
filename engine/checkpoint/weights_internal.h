/* Internals of weights_*.c. One walk over the description serves both passes: the inventory (names, shapes
 * and sizes from the headers; records the reading order) and the load (packs, in that order, reading ahead
 * and releasing pages after use).
 *
 *   weights.c          both passes, release, counting
 *   weights_text.c     the walk: decoder, drafter, experts;  weights_vision.c: the tower
 *   weights_linear.c   one weight of it
 *   weights_quant.c    quants and floats that it is packed from
 *   weights_tensors.c  the tensors that those come from, and vectors
 *   adapter_weights.c  what an adapter adds to the products of the walk */
#ifndef KVASIR_WEIGHTS_INTERNAL_H
#define KVASIR_WEIGHTS_INTERNAL_H

#include "engine/checkpoint/packed.h"
#include "engine/checkpoint/weights.h"

struct named {
    char name[DESC_NAME_MAX]; /* canonical */
    const struct stf_tensor *t;
    bool used;
};
struct linear_spec;
struct loader {
    const struct stf_files *files;
    const struct model_desc *desc;
    struct named *map; /* sorted by name */
    size_t map_count;
    struct weights_inventory *inventory; /* inventory pass only; NULL while loading */
    struct weight_format format;
    bool floats; /* what is read now stays float */
    bool fine;   /* or is not kept in 4 bits */
    bool tower;  /* or is of the image tower: rows are padded to MADE_SPAN */
    bool alike;  /* must become quants like the other matrices of its group */
    /* Then an inventory without files, which only shows each product; base: its packed weight. */
    void (*each)(struct loader *ld, const struct linear_spec *s, const struct be_weight *base);
    struct adapter_walk *adapter; /* each's */
    enum status st;               /* first error; after it everything is a no-op */
    struct err *err;
    /* load pass */
    const struct be_ops *ops;
    struct backend *be;
    const struct weights_inventory *plan;
    struct weights_progress progress;
    size_t ahead, at; /* next tensor of the plan to prefetch; next to read */
    uint64_t ahead_bytes, done_bytes, digest;
    uint16_t *random_values;     /* bf16, for all tensors if there are no files */
    struct stf_tensor random[6]; /* the tensors of one weight */
    uint32_t random_count;
    float *host;        /* [slab_floats] image of the slab */
    float *slab;        /* backend address */
    uint64_t slab_used; /* floats, both passes */
};

/* A different order of rows or columns than in the file; see reorder(). */
enum order { ORDER_KEPT = 0, ORDER_HALVES, ORDER_PAIRS, ORDER_PLANES };
struct part {
    const char *stem;
    uint32_t n;
    enum order order;
    uint32_t first, of; /* of > 0: rows [first, first + n) of a tensor that has so many */
};
struct linear_spec {
    uint32_t layer, expert, k, part_count;
    struct part part[3];
    bool glu, bias;
    const char *scale;           /* a whole name: rows and bias are multiplied by its numbers; or NULL */
    float times;                 /* and all by this; 0 counts as 1 */
    bool whole_name, transposed; /* stem is the whole name; stored as [k, n] */
    uint32_t head_dim, rotary;   /* ORDER_HALVES, ORDER_PAIRS: the head's columns that rotate; ORDER_PLANES:
                                    head_dim planes */
    uint32_t rank;               /* of the stored shape when it isn't [n, k]: shape[0..rank) */
    uint64_t shape[STF_RANK_MAX];
};

/* Rows of a tensor [n, k]: of a file that has quants, or made of its floats. */
struct quant_rows {
    const struct stf_tensor *t;
    const struct packed *packed;  /* or NULL */
    const struct ggml_type *type; /* NULL, and packed without quants or NULL: made */
    bool int4;
    uint32_t k, width; /* width: 0, or the tensor is stored as [k, width], and a row here is a column there */
    const char *data;  /* the tensor's first row */
    uint32_t first;    /* the tensor's row that is the matrix's first */
    const float *scale; /* of each row, or NULL */
    uint32_t groups;    /* of a row, that have a scale of their own */
    enum order order;   /* of its rows, with: */
    uint32_t head_dim, rotary;
};

#define MADE_SPAN 32u /* numbers that share a scale */

/* Whose tensors load_find_packed looks for. */
struct packed_at {
    struct loader *ld;
    const char *stem;
    uint32_t layer, expert;
};

static inline enum be_dtype load_be_type(enum stf_dtype d)
{
    return d == STF_F32 ? BE_F32 : d == STF_BF16 ? BE_BF16 : BE_F16;
}

/* weights_tensors.c. After an error (ld->st) functions that take a tensor return NULL or false. */
void load_note_ignored(struct weights_inventory *s, const char *name);
enum status load_map(struct loader *ld);
void load_expand(const char *stem, uint32_t layer, uint32_t expert, const char *suffix,
                 char out[DESC_NAME_MAX]);
uint64_t load_elements(const struct stf_tensor *t);
struct named *load_find(const struct loader *ld, const char *stem, uint32_t layer, uint32_t expert,
                        const char *suffix, struct named *key);
const struct stf_tensor *load_take(struct loader *ld, const char *stem, uint32_t layer, uint32_t expert,
                                   const char *suffix, uint32_t rank, const uint64_t *shape);
const struct stf_tensor *load_take_fp8(struct loader *ld, const char *stem, uint32_t layer,
                                       const uint64_t shape[3], const struct stf_tensor **scales);
const struct stf_tensor *load_find_packed(void *arg, const char *suffix);
bool load_take_packed(struct loader *ld, const char *stem, uint32_t layer, uint32_t expert, uint32_t n,
                      uint32_t k, struct packed *p);
void load_before_read(struct loader *ld);
void load_digest(struct loader *ld, const struct stf_tensor *t);
void load_after_read(struct loader *ld, const struct stf_tensor *t);
const float *load_scaled_vector(struct loader *ld, const char *stem, uint32_t layer, const char *suffix,
                                uint32_t rank, const uint64_t *shape, float plus, float times);
const float *load_vector(struct loader *ld, const char *stem, uint32_t layer, const char *suffix,
                         uint32_t rank, const uint64_t *shape, float plus);
const float *load_vector1(struct loader *ld, const char *stem, uint32_t layer, const char *suffix, uint32_t n,
                          float plus);

/* weights.c: keys and values of a layer that reads another's: released files contain them unused. */
bool load_shared_away(const struct model_desc *d, const char *name);

/* weights_quant.c */
bool load_quant_of(const struct loader *ld, const struct stf_tensor *t, const struct packed *packed,
                   uint32_t k, struct quant_rows *rows, struct be_quant *out);
/* Widens *all to hold both, as the CPU keeps parts of one matrix (cpu_quant_shape). */
void load_note_quants(struct loader *ld, const struct quant_rows *rows);
void load_fuse_quants(struct be_quant *all, const struct be_quant *part);
uint64_t load_kept_bytes(const struct loader *ld, const struct be_quant *quants, uint64_t n, uint32_t k);
void *load_floats(struct loader *ld, const struct stf_tensor *t, const struct packed *packed);

/* weights_linear.c */
/* The stored place of a head's row i if RoPE rotates pairs (2j, 2j + 1) of its first `rotary` rows; loaded
 * rows have the pairs (j, j + rotary/2). */
static inline uint32_t load_pair_row(uint32_t i, uint32_t head_dim, uint32_t rotary)
{
    uint32_t at = i % head_dim, half = rotary / 2;
    return at < rotary ? i - at + at % half * 2 + at / half : i;
}
uint32_t load_stored_at(enum order order, uint32_t i, uint32_t n, uint32_t head_dim, uint32_t rotary);
void load_reorder_vector(struct loader *ld, const float *v, enum order order, uint32_t n);
void load_pack(struct loader *ld, const struct be_weight_desc *d, const struct stf_tensor *const *t,
               uint32_t count, struct be_weight **out);
void load_linear(struct loader *ld, const struct linear_spec *s, struct be_weight **out);
/* The same of one part. */
void load_matrix(struct loader *ld, const char *stem, uint32_t layer, uint32_t k, uint32_t n, bool bias,
                 struct be_weight **out);

/* weights_text.c */
void load_walk(struct loader *ld, struct weights *w);

/* weights_vision.c */
void load_vision(struct loader *ld, struct vision_weights *w);

#endif
