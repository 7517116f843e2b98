/* What the server needs of a loaded checkpoint: names, special ids, the image rule of prompts, defaults.
 * Immutable after load. */
#ifndef KVASIR_MODEL_INFO_H
#define KVASIR_MODEL_INFO_H

#include "config/hf/config.h"
#include "engine/model/image_config.h"

#include <stdbool.h>
#include <stdint.h>

#define MODEL_EOS_MAX    16u
#define MODEL_TEXT_BYTES 128u /* of a text that a family writes around an image */

/* Image n of the `count` that the prompt's image `index` is encoded as, in the order of image_prepared. */
struct image_place {
    uint32_t n, count, rows, columns, index;
};

/* How the family's own template writes the parts of a message, for a template that takes one string. */
enum parts_order {
    PARTS_AS_SENT,
    PARTS_IMAGES_FIRST,   /* images and videos, then texts */
    PARTS_OF_PAIRS_FIRST, /* that, if there are two parts */
};
struct model_parts {
    const char *image, *video; /* the marker and what stands around it; NULL: the marker alone */
    enum parts_order order;
    bool trim; /* white space around each text is dropped */
};

/* How a family writes images into text: the template emits `marker` once per image; it is replaced
 * (before tokenising) by prefix + soft x tokens + suffix. */
struct model_image_rule {
    bool present;            /* the model takes images */
    const char *marker;      /* "<start_of_image>" */
    const char *prefix;      /* "\n\n<start_of_image>" */
    const char *suffix;      /* "<end_of_image>\n\n" */
    const char *placeholder; /* text of the placeholder token */
    uint32_t placeholder_id; /* its id: never accepted from a client */
    uint32_t tokens;         /* placeholder tokens per image; 0: by its grid (config.dynamic) */
    enum span_rule rule;     /* of an image's tokens */
    bool grid;               /* images have 3-D positions (struct prompt_grid) */
    const char *row_break;   /* text of a token between the rows of an image's tokens, or NULL */
    /* The processor's text around the tiles or crops of an image, instead of prefix and suffix: what stands
     * before image n, or, with n = count, behind the last; returns as snprintf. NULL: there is one. */
    int (*layout)(char out[MODEL_TEXT_BYTES], const struct image_place *at);
    /* For a prompt with images: after the last one, and at the end. NULL: nothing. */
    const char *behind_last, *end;
    /* Videos; NULL marker: none. With video_stamp the marker becomes, per group of frames, its text + prefix
     * + soft x tokens + suffix, each an image of its own; else one run of placeholder tokens for all frames,
     * whose positions advance by `tokens_per_second` (0: by 1 a pair of frames). */
    const char *video_marker, *video_prefix, *video_suffix, *video_placeholder;
    const char *video_between; /* text between groups of frames, or NULL */
    uint32_t video_placeholder_id;
    /* Writes the time of a group in the family's format; returns as snprintf. */
    int (*video_stamp)(char out[MODEL_TEXT_BYTES], double seconds);
    double tokens_per_second;
    struct model_parts parts;
    struct image_config config; /* preprocessing */
};

/* How a family's models for retrieval take their inputs. */
struct model_retrieval {
    /* The linear layer on each token's vector, of multi-vector embeddings: the tensor's name in the file
     * without
     * ".weight"; NULL: one vector for all. */
    const char *vectors;
    /* Texts and images to embed are chats with this system message, unless the request has another; NULL:
     * texts are embedded as they are. */
    const char *system;
    const char *instruction; /* of a reranker that takes images, by default; NULL: it takes texts */
    char classifier[64];     /* the class in config.json, if its head is `score`; "" = it generates */
    uint32_t pad_id;         /* of a classifier: tokens at a prompt's end that it ignores; HF_NO_ID = none */
};

struct model_info {
    const char *family;   /* model_type */
    const char *dir;      /* checkpoint directory as given */
    const char *dtype;    /* "bf16", "f32": the compute type */
    char weights[64];     /* of the text model's matrices: dtype, "int8", "int4" (--quantize), or the types of
                             a quantized checkpoint ("Q4_K,Q6_K") */
    const char *kv_dtype; /* type of the KV cache: dtype or "int8" */
    const char *backend;  /* kernel set, e.g. "cpu-amx" */
    const char *kernels;  /* whose bits they are: backend, but "cpu-avx2" of "cpu-neon" */
    const char *gemm;     /* GPU: whose matrix products (be_caps.gemm); NULL on the CPU */
    char fingerprint[16]; /* "fp_" + 10 hex: weights identity, revision, types, `kernels` */
    uint32_t revision;    /* of the arithmetic, for one kernel set */
    bool float_vision;    /* --quantize-vision off, and there is a tower */
    uint64_t parameters;  /* weights count */
    uint64_t weight_bytes;
    uint32_t vocab_size;
    uint32_t context_max;
    uint32_t eos_ids[MODEL_EOS_MAX];
    uint32_t eos_count;
    uint32_t bos_id;                 /* UINT32_MAX = none */
    struct hf_generation generation; /* sampling defaults */
    struct model_retrieval retrieval;
    bool encoder; /* attention in both directions over the prompt: embeddings, no text */
    struct model_image_rule image;
};

#endif
