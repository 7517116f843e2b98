/* PaliGemma 1 (Gemma 1 2B) and 2 (Gemma 2): a SigLIP tower, one linear layer, and a decoder with
 * bidirectional attention over the prompt (prefix-LM), images and text. Formulas: transformers
 * models/paligemma (5.23); pitfalls are noted at the lines concerned. */
#include "engine/families/gemma.h"

/* The text's model_type distinguishes the two generations; absent: the first. */
static const struct hf_text *generation(struct hf_reader *r)
{
    uint32_t type = json_get_live(r->d, r->text, "model_type");
    if (type == JSON_NONE || json_str_eq(r->d, type, "gemma")) return &gemma_text;
    if (!json_str_eq(r->d, type, "gemma2"))
        hf_error(r, ST_UNSUPPORTED, "text_config.model_type", "only gemma and gemma2 are served");
    return &gemma2_text;
}

static void read(struct hf_reader *r, const struct family_type *type, struct hf_config *c)
{
    (void)type;
    if (r->vision == JSON_NONE) hf_error(r, ST_FORMAT, "vision_config", "is missing");
    if (r->st) return;
    /* hidden_size, vocab_size and projection_dim at the top level are ignored: released files of the second
     * generation have a wrong hidden_size there. */
    gemma_read_text(r, r->text, generation(r), &c->text);
    hf_bool(r, 0, "tie_word_embeddings", &c->text.tie_word_embeddings);
    siglip_read(r, r->vision, &c->vision);
    hf_u32(r, r->text, "bos_token_id", 0, SIZE_MAX_VOCAB - 1, &c->bos_id);
    hf_u32(r, 0, "bos_token_id", 0, SIZE_MAX_VOCAB - 1, &c->bos_id);
    hf_u32(r, 0, "image_token_id", 0, SIZE_MAX_VOCAB - 1, &c->image_id);
    hf_u32(r, 0, "image_token_index", 0, SIZE_MAX_VOCAB - 1, &c->image_id); /* wins */
}

static void describe(struct hf_reader *r, const struct hf_config *c, struct model_desc *d)
{
    if (!gemma_describe_text(r, c, d)) return;
    uint32_t side = c->vision.image_size / c->vision.patch_size;
    d->rope_first = 1; /* positions begin with 1 */
    d->has_vision = true;
    d->vision = siglip_tower(c);
    d->vision.end = VISION_LINEAR;
    d->vision.tokens = side * side;
    d->vision.names.project = "projector.linear";
    d->image = (struct model_image_rule){
        .present = true,
        .marker = "<image>",
        .placeholder = "<image>",
        .behind_last = "<bos>", /* bos follows the images */
        .end = "\n",
        .placeholder_id = c->image_id,
        .tokens = side * side,
        .rule = SPAN_PREFIX_LM,
        .parts = {.order = PARTS_IMAGES_FIRST},
    };
}

static const struct family_images IMAGES = {.image = {SIGLIP_IMAGES(IMAGE_BICUBIC)}};

/* PaliGemmaProcessor takes one question about images: a token for each image, then the text; the position of
 * images in the message makes no difference. */
static const char CHAT[] =
    "{%- if messages|length != 1 or messages[0].role != 'user' -%}"
    "{{- raise_exception('This model takes one user message: no system message, no earlier turns.') -}}"
    "{%- endif -%}"
    "{%- set content = messages[0].content -%}"
    "{%- if content is string or not content|selectattr('type', 'equalto', 'image')|list -%}"
    "{{- raise_exception('This model needs an image in the message.') -}}"
    "{%- endif -%}"
    "{%- for part in content if part.type == 'image' -%}{{- '<image>' -}}{%- endfor -%}"
    "{%- for part in content if part.type == 'text' -%}"
    "{{- ' ' if not loop.first -}}{{- part.text -}}"
    "{%- endfor -%}";
const struct tok_extra paligemma_tokens[3] = {
    {.prefix = "<image>", .suffix = "", .count = 1, .special = true},
    {.prefix = "<loc", .suffix = ">", .digits = 4, .count = 1024},
    {.prefix = "<seg", .suffix = ">", .digits = 3, .count = 128},
};
static const struct family_prompt PROMPT = {PALIGEMMA_TOKENS, .chat_template = CHAT};

const struct family family_paligemma = {
    .types = {{"paligemma", HF_NESTED, &gemma_text, &siglip_defaults}},
    .read = read,
    .describe = describe,
    .bos_id = 2,
    .image_id = 256000,
    .images = &IMAGES,
    .prompt = &PROMPT,
};
