/* ColPali (PaliGemma) and ColQwen2 (Qwen2-VL, Qwen2.5-VL): a vector for each token of a page or a query,
 * which is scored by late interaction (server/embed). transformers models/colpali, colqwen2. */
#include "engine/families/gemma.h"
#include "engine/families/qwen.h"

static bool paligemma_name(const char *name, char out[DESC_NAME_MAX])
{
    const char *inner = family_after(name, "vlm.");
    return inner && gemma_canonical(inner, out);
}

static bool qwen_name(const char *name, char out[DESC_NAME_MAX])
{
    const char *inner = family_after(name, "vlm.");
    return inner && family_canonical(inner, out);
}

static void describe(struct hf_reader *r, const struct hf_config *c, struct model_desc *d)
{
    if (!d->has_vision) hf_error(r, ST_FORMAT, "vlm_config.vision_config", "is missing");
    d->canonical = d->image.rule == SPAN_PREFIX_LM ? paligemma_name : qwen_name;
    d->retrieval = (struct model_retrieval){.vectors = "embedding_proj_layer"};
    d->tied = true;        /* there is no head */
    d->image.grid = false; /* the class passes no grids: positions count tokens */
    d->image.video_marker = NULL;
    (void)c;
}

/* The processor's texts count as the class has them. */
static void check_text(struct hf_reader *r, const char *key, const char *want)
{
    uint32_t v = json_get_live(r->d, 0, key);
    if (v != JSON_NONE && !json_str_eq(r->d, v, want))
        hf_error(r, ST_UNSUPPORTED, key, "only the text of its class is served");
}

#define CHECK                                                                                                \
    "{%- if messages|length != 1 or messages[0].role != 'user' -%}"                                          \
    "{{- raise_exception('This model takes one image or one text.') -}}"                                     \
    "{%- endif -%}"                                                                                          \
    "{%- set content = messages[0].content -%}"                                                              \
    "{%- set images = [] if content is string else content|selectattr('type', 'equalto', 'image')|list -%}"  \
    "{%- if images and (images|length > 1 or content|length > 1) -%}"                                        \
    "{{- raise_exception('This model takes one image without a text, or one text.') -}}"                     \
    "{%- endif -%}"
#define TEXT                                                                                                 \
    "{%- if content is string -%}{{- content -}}"                                                            \
    "{%- else -%}{%- for part in content -%}{{- part.text -}}{%- endfor -%}{%- endif -%}"                    \
    "{%- for i in range(10) -%}{{- pad_token -}}{%- endfor -%}{{- '\n' -}}"

/* ---- ColPali ---- */

#define PAGE  "Describe the image."
#define QUERY "Question: "
static void colpali_texts(struct hf_reader *r, struct image_config *out)
{
    (void)out;
    check_text(r, "visual_prompt_prefix", PAGE);
    check_text(r, "query_prefix", QUERY);
}

/* bos and the line end around a page's text are in the rule for images. */
static const struct family_images colpali_images = {.image = {SIGLIP_IMAGES(IMAGE_BICUBIC)},
                                                    .processor = colpali_texts};
static const struct family_prompt colpali_prompt = {
    PALIGEMMA_TOKENS,
    .always = true,
    .chat_template = CHECK "{%- if images -%}{{- '<image>" PAGE "' -}}"
                           "{%- else -%}{{- bos_token ~ '" QUERY "' -}}" TEXT "{%- endif -%}",
};

static const char *const paligemma[] = {"paligemma", NULL};
const struct family family_colpali = {
    .around = "vlm_config",
    .inner = paligemma,
    .types = {{.name = "colpali"}},
    .describe = describe,
    .images = &colpali_images,
    .prompt = &colpali_prompt,
};

/* ---- ColQwen2 ---- */

#define PAGE2                                                                                                \
    "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the "                             \
    "image.<|im_end|><|endoftext|>"
#define QUERY2 "Query: "
static void colqwen2_texts(struct hf_reader *r, struct image_config *out)
{
    (void)out;
    check_text(r, "visual_prompt_prefix", PAGE2);
    check_text(r, "query_prefix", QUERY2);
}

static const struct family_images colqwen2_images = {.image = {QWEN_IMAGES}, .processor = colqwen2_texts};
static const struct family_prompt colqwen2_prompt = {
    .always = true,
    .chat_template = CHECK "{%- if images -%}{{- '" PAGE2 "' -}}"
                           "{%- else -%}{{- '" QUERY2 "' -}}" TEXT "{%- endif -%}",
};

static const char *const qwen2[] = {"qwen2_vl", "qwen2_5_vl", NULL};
const struct family family_colqwen2 = {
    .around = "vlm_config",
    .inner = qwen2,
    .types = {{.name = "colqwen2"}},
    .describe = describe,
    .images = &colqwen2_images,
    .prompt = &colqwen2_prompt,
};
