"""The families and variants of make_native.py. A family: its tokens and the split of its tokenizer, its
processor, its images as [3, h, w] (`planes`), pixel_values with one image negated (`negated`), the tower's
patch, merge and depth (`sizes`), which tensor makes the rows (`last`), norms after a branch (`small`),
and what
else the model must react to (`odd`)."""
import contextlib

import torch
from transformers.models.glm46v import Glm46VImageProcessor, Glm46VProcessor, Glm46VVideoProcessor
from transformers.models.glm4v import Glm4vImageProcessor, Glm4vProcessor, Glm4vVideoProcessor
from transformers.models.lighton_ocr import LightOnOcrProcessor
from transformers.models.paddleocr_vl import PaddleOCRVLImageProcessor, PaddleOCRVLProcessor
from transformers.models.pixtral import PixtralImageProcessor, PixtralProcessor

from make_qwen_variants import CLIP, chat, image, raw, text, text_cfg
from make_tiles_variants import swapped


def rope(theta, kind="default", **more):
    return {"rope_theta": theta, "rope_type": kind} | more


@contextlib.contextmanager
def attribute(thing, name, value):
    kept = getattr(thing, name)
    setattr(thing, name, value)
    yield
    setattr(thing, name, kept)


# -------------------------------------------------------------------- Mistral 3, Pixtral 12B and LightOnOCR

INST = """{{- bos_token }}
{%- for turn in messages -%}
    {%- if turn['role'] == 'user' -%}{{ '[INST]' }}{%- endif -%}
    {%- if turn['content'] is string -%}
        {{ turn['content'] }}
    {%- else -%}
        {%- for part in turn['content'] -%}
            {{ part['text'] if part['type'] == 'text' else '@IMAGE@' }}
        {%- endfor -%}
    {%- endif -%}
    {{ '[/INST]' if turn['role'] == 'user' else eos_token }}
{%- endfor -%}
"""


def pixtral_sizes(v):
    return v["vision"]["patch_size"], v["top"].get("spatial_merge_size", 1), 1


def pixtral_processor(v, tokenizer):
    patch, merge, _ = pixtral_sizes(v)
    lighton = v["family"] == "lighton_ocr"
    mean, std = v.get("mean_std", CLIP)
    images = PixtralImageProcessor(size={"longest_edge": v["longest"]}, image_mean=mean, image_std=std,
                                   patch_size=v["plain"] if "plain" in v else
                                   {"height": patch * merge, "width": patch * merge} if lighton
                                   else {"height": 7, "width": 7})
    cls = LightOnOcrProcessor if lighton else PixtralProcessor
    return cls(images, tokenizer, patch_size=patch, spatial_merge_size=merge,
               chat_template=INST.replace("@IMAGE@", "<|image_pad|>" if lighton else "[IMG]"))


def pixtral_planes(out, v):
    return [a[:, :h, :w].numpy() for a, (h, w) in zip(out["pixel_values"], out["image_sizes"].tolist())]


def pixtral_negated(out, v):
    for k in range(len(out["pixel_values"])):
        other = out["pixel_values"].clone()
        other[k].neg_()
        yield other


def tower(model):
    inner = model.model
    return inner.vision_encoder if hasattr(inner, "vision_encoder") else inner.vision_tower


def no_rotary(model):
    flat = tower(model).patch_positional_embedding
    return attribute(flat, "inv_freq", flat.inv_freq * 0)


def same_frequencies(model):
    flat = tower(model).patch_positional_embedding
    rows = flat.inv_freq[:len(flat.inv_freq) // 2]
    return attribute(flat, "inv_freq", torch.cat([rows, rows]))


def patches_first(model):
    """The merger's columns by patch, then channel."""
    merger = (getattr(model.model, "vision_projection", None)
              or model.model.multi_modal_projector).patch_merger
    name = next(n for n, p in model.named_parameters() if p is merger.merging_layer.weight)
    m = merger.spatial_merge_size ** 2
    return swapped(model, name, lambda w: w.view(len(w), -1, m).transpose(1, 2).reshape(w.shape))


def flat_queries(model):
    c = model.config.get_text_config()
    return attribute(c, "rope_parameters", c.rope_parameters | {"llama_4_scaling_beta": 0.0})


TOWER = {"tower without rotary": no_rotary, "the row's frequencies for columns": same_frequencies}
MISTRAL = dict(
    split="digits3", vocab=330, image="[IMG]", end="</s>", breaks=True, mean_std=CLIP,
    tokens=["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]"],
    named={"bos_token": "<s>", "unk_token": "<unk>"}, processor=pixtral_processor, planes=pixtral_planes,
    negated=pixtral_negated, sizes=pixtral_sizes, last=lambda name: "linear_2" in name,
    odd=TOWER | {"order of a token's patches": patches_first})
LIGHTON = MISTRAL | dict(
    split="qwen",
    image="<|image_pad|>",
    end="<|im_end|>",
    breaks=False,
    tokens=[
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|vision_pad|>",
        "<|vision_end|>",
        "<|image_pad|>",
        "[INST]",
        "[/INST]"],
        named={
            "bos_token": "<|endoftext|>",
            "image_token": "<|image_pad|>",
            "image_break_token": "<|vision_pad|>",
            "image_end_token": "<|vision_end|>",
            "extra_special_tokens": {
                "image_token": "<|image_pad|>",
                "image_break_token": "<|vision_pad|>",
                "image_end_token": "<|vision_end|>"}},
                 )
FAMILIES = {"mistral3": MISTRAL,
            "ministral3": MISTRAL | {"odd": MISTRAL["odd"] | {"growing queries": flat_queries}},
            "pixtral": MISTRAL | {"odd": TOWER}, "lighton": LIGHTON}


def pixtral(**over):
    return dict(model_type="pixtral", hidden_size=16, intermediate_size=28, num_hidden_layers=2,
                num_attention_heads=2, patch_size=4, image_size=64, hidden_act="silu",
                rope_parameters={"rope_type": "axial", "rope_theta": 1e4}) | over


ASK = ("u", [text("Is it?")])
FIVE = [chat(("u", [text("One"), image(0), text("two"), image(1)]), ("a", "Yes."), ("u", [image(2),
                                                                                          text("and?")]),
             ("a", "No."), ("u", [image(3), image(4)]),
             pictures=[(2, 20, 20), (3, 4, 60), (4, 3, 31), (5, 2, 2), (6, 50, 30)],
             note="five images over three turns: one of 3 x 31, one of 2 x 2")]
VARIANTS = {
    "mistral3_f32": dict(
        kind="mistral3", family="mistral3", seed=6106, longest=40, top=dict(spatial_merge_size=2),
        text=text_cfg(model_type="mistral", vocab_size=330, num_attention_heads=4, num_key_value_heads=2,
                      head_dim=16,
                      sliding_window=None, rms_norm_eps=1e-3, rope_parameters=rope(1e4)),
        vision=pixtral(), released={}, drop=["tie_word_embeddings", "text_config.tie_word_embeddings"],
        cases=[chat(("u", [image(0), text("What is it?")]), pictures=[(1, 33, 27)], note="tied by absence"),
               *FIVE, chat(ASK, note="text alone")]),
    "mistral3_gelu_f32": dict(
        kind="mistral3", family="mistral3", seed=6300, longest=40, top=dict(spatial_merge_size=2),
        text=text_cfg(model_type="mistral", vocab_size=330, num_key_value_heads=1, head_dim=16,
                      num_hidden_layers=1, sliding_window=None, rms_norm_eps=1e-3, rope_parameters=rope(1e4)),
        vision=pixtral(hidden_act="gelu"), drop=["vision_config.hidden_act"],
        cases=[chat(("u", [image(0), text("What is it?")]), pictures=[(1, 33, 27)],
                    note="the tower's activation by absence")]),
    "ministral3_vision_f32": dict(
        kind="ministral3", family="mistral3", seed=6200, longest=50, released={},
        top=dict(spatial_merge_size=3, multimodal_projector_bias=True, tie_word_embeddings=False),
        text=text_cfg(model_type="ministral3", vocab_size=335, hidden_size=48, num_attention_heads=3,
                      num_key_value_heads=1, head_dim=24, num_hidden_layers=2, pad_token_id=None,
                      tie_word_embeddings=False,
                      rope_parameters=rope(1e4, "yarn", factor=4.0, original_max_position_embeddings=24,
                                           mscale=1.0,
                                           mscale_all_dim=1.0, llama_4_scaling_beta=0.3)),
        vision=pixtral(hidden_size=24, patch_size=5, num_hidden_layers=3,
                       rope_parameters={"rope_type": "axial", "rope_theta": 300.0}),
        cases=[chat(("u", [text("See"), image(0), text("now?"), image(1)]), pictures=[(7, 61, 40), (8, 14,
                                                                                                    45)],
                    note="3 x 3 patches of 5 pixels a token; queries that grow; projections with biases")]),
    "pixtral_f32": dict(
        kind="pixtral", family="llava", seed=6303, longest=30, drop=["spatial_merge_size"],
        released=dict(text=dict(is_composition=True),
                      vision=dict(is_composition=True, tie_word_embeddings=False)),
        top=dict(vision_feature_layer=-1, vision_feature_select_strategy="full", image_seq_length=1),
        text=text_cfg(model_type="mistral", vocab_size=330, num_attention_heads=2, num_key_value_heads=1,
                      head_dim=20,
                      sliding_window=None, tie_word_embeddings=False, rope_parameters=rope(1e5)),
        vision=pixtral(hidden_size=40, num_attention_heads=5, intermediate_size=20, patch_size=6),
        cases=[chat(("u", [image(0), text("Well?"), image(1)]), pictures=[(9, 32, 19), (10, 32, 19)],
                    note="a token is a patch")]),
    "mistral3_gguf_f32": dict(
        kind="ministral3", family="mistral3", seed=6401, longest=48, top=dict(spatial_merge_size=2),
        text=text_cfg(model_type="ministral3", vocab_size=330, hidden_size=64, intermediate_size=96,
                      num_attention_heads=2, num_key_value_heads=1, head_dim=32, num_hidden_layers=2,
                      pad_token_id=None, rms_norm_eps=1e-5,
                      rope_parameters=rope(1e4, "yarn", factor=4.0, original_max_position_embeddings=24,
                                           mscale=1.0,
                                           mscale_all_dim=1.0, llama_4_scaling_beta=0.3)),
        vision=pixtral(hidden_size=32, intermediate_size=64, image_size=48),
        cases=[chat(("u", [image(0), text("What?")]), pictures=[(11, 44, 30)], note="rows of whole blocks")]),
    "lighton_ocr_f32": dict(
        kind="lighton", family="lighton_ocr", seed=6502, longest=48, top=dict(spatial_merge_size=2),
        text=text_cfg(model_type="qwen3", vocab_size=330, num_attention_heads=2, num_key_value_heads=1,
                      head_dim=16,
                      rope_parameters=rope(1e4)),
        vision=pixtral(image_size=48), cases=[chat(("u", [image(0)]), pictures=[(12, 40, 55)],
                                                   note="a page alone"),
                                 *FIVE]),
    "lighton_ocr_released_f32": dict(
        kind="lighton", family="lighton_ocr", seed=6551, longest=48, top=dict(spatial_merge_size=2), plain=4,
        text=text_cfg(model_type="qwen3", vocab_size=330, num_attention_heads=2, num_key_value_heads=1,
                      head_dim=16, num_hidden_layers=2, rope_parameters=rope(1e4)),
        vision=pixtral(image_size=48), released=dict(images=dict(crop_size=None, do_pad=None)),
        cases=[chat(("u", [image(0)]), pictures=[(14, 25, 55)],
                    note="7 x 12 patches, of which the last row forms no token"),
               chat(("u", [image(0), image(1), text("?")]), pictures=[(15, 44, 43), (16, 17, 9)],
                    note="no token of the last row and the last column")]),
    "lighton_ocr_odd_f32": dict(
        kind="lighton", family="lighton_ocr", seed=6600, longest=33,
        top=dict(spatial_merge_size=3, tie_word_embeddings=False),
        text=text_cfg(model_type="qwen3", vocab_size=337, hidden_size=48, num_attention_heads=3,
                      num_key_value_heads=3,
                      head_dim=24, num_hidden_layers=2, tie_word_embeddings=False, rope_parameters=rope(1e4)),
        vision=pixtral(hidden_size=12, num_attention_heads=1, patch_size=3), mean_std=([0.4] * 3, [0.3, 0.25,
                                                                                                   0.5]),
        cases=[raw("first<|image_pad|>last", pictures=[(13, 31, 18)],
                   note="3 x 3 patches of 3 pixels a token")]),
}


# ------------------------------------------------------------------------------ PaddleOCR-VL and GLM-V, -OCR

TURNS = """{%- for turn in messages -%}
    {{ '<|user|>' if turn['role'] == 'user' else '<|assistant|>' }}
    {%- if turn['content'] is string -%}
        {{ turn['content'] }}
    {%- else -%}
        {%- for part in turn['content'] -%}
            {{ part['text'] if part['type'] == 'text' else '@IMAGE@' }}
        {%- endfor -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}
"""


def merged_sizes(v):
    return v["vision"]["patch_size"], v["vision"].get("spatial_merge_size", 2), v["depth"]


def settings(v):
    patch, merge, depth = merged_sizes(v)
    mean, std = v.get("mean_std", CLIP)
    return dict(
    size={
        "shortest_edge": v["size"][0],
        "longest_edge": v["size"][1]},
        image_mean=mean,
        image_std=std,
        patch_size=patch,
        merge_size=merge,
         temporal_patch_size=depth)


def paddle_processor(v, tokenizer):
    return PaddleOCRVLProcessor(
    PaddleOCRVLImageProcessor(
        **settings(v)),
        tokenizer,
        chat_template=TURNS.replace(
            "@IMAGE@",
             "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>"))


def glm_processor(v, tokenizer):
    pair = {"glm46v": (Glm46VImageProcessor, Glm46VProcessor, Glm46VVideoProcessor)}.get(
        v["family"], (Glm4vImageProcessor, Glm4vProcessor, Glm4vVideoProcessor))
    return pair[1](pair[0](**settings(v)), tokenizer, pair[2](), chat_template=TURNS.replace(
        "@IMAGE@", "<|begin_of_image|><|image|><|end_of_image|>"))


def patches_of(out):
    """First row and end of each image's patches."""
    end = 0
    for _, h, w in out["image_grid_thw"].tolist():
        begin, end = end, end + h * w
        yield begin, end, h, w


def paddle_planes(out, v):
    """Patches in raster order."""
    patch = v["vision"]["patch_size"]
    return [out["pixel_values"][a:b].reshape(h, w, 3, patch, patch).permute(2, 0, 3, 1, 4).reshape(
        3, h * patch, w * patch).numpy() for a, b, h, w in patches_of(out)]


def glm_planes(out, v):
    """Patches in runs of merge x merge, each two frames deep."""
    patch, m, depth = merged_sizes(v)
    every = []
    for a, b, h, w in patches_of(out):
        blocks = out["pixel_values"][a:b].reshape(h // m, w // m, m, m, 3, depth, patch, patch)
        assert torch.equal(blocks[:, :, :, :, :, 0], blocks[:, :, :, :, :, -1])
        every.append(blocks[:, :, :, :, :, 0].permute(
            4, 0, 2, 5, 1, 3, 6).reshape(3, h * patch, w * patch).numpy())
    return every


def rows_negated(out, v):
    for a, b, _h, _w in patches_of(out):
        other = out["pixel_values"].clone()
        other[a:b] = -other[a:b].flip(0)
        yield other


def still_tower(model):
    inner = model.model.visual
    flat = inner.vision_model.encoder.rotary_pos_emb if hasattr(
        inner, "vision_model") else inner.rotary_pos_emb
    return attribute(flat, "inv_freq", flat.inv_freq * 0)


def sections_turned(model):
    rotary = model.model.language_model.rotary_emb
    return attribute(rotary, "mrope_section", rotary.mrope_section[1:] + rotary.mrope_section[:1])


def corners(model):
    return attribute(model.model.visual.vision_model.embeddings, "interpolation_align_corners", True)


def bilinear(model):
    return attribute(model.model.visual.embeddings, "interpolated_method", "bilinear")


def columns_of_patches(model):
    """The patches of a token in columns instead of rows, as the convolution sees them."""
    name = next(n for n, _ in model.named_parameters() if n.endswith("downsample.weight"))
    return swapped(model, name, lambda w: w.transpose(2, 3))


def norm_left_out(which):
    @contextlib.contextmanager
    def change(model):
        layers = [getattr(x, which) for x in model.model.language_model.layers]
        kept = [x.forward for x in layers]
        for x in layers:
            x.forward = lambda y: y
        yield
        for x, f in zip(layers, kept):
            x.forward = f
    return change


PADDLE = dict(
    split="digits3", vocab=330, image="<|IMAGE_PLACEHOLDER|>", end="</s>", mean_std=CLIP, mrope=True,
    tokens=["<unk>", "<s>", "</s>", "<|IMAGE_PLACEHOLDER|>", "<|IMAGE_START|>", "<|IMAGE_END|>", "<|user|>",
            "<|assistant|>"],
    named={"bos_token": "<s>", "unk_token": "<unk>", "image_token": "<|IMAGE_PLACEHOLDER|>",
           "extra_special_tokens": {"image_token": "<|IMAGE_PLACEHOLDER|>"}},
    processor=paddle_processor, planes=paddle_planes, negated=rows_negated, sizes=merged_sizes,
    last=lambda name: "linear_2" in name,
    odd={"tower without rotary": still_tower, "sections in another order": sections_turned,
         "positions at corners": corners},
)
GLM = PADDLE | dict(
    image="<|image|>",
    end="<|endoftext|>",
    tokens=[
        "<|endoftext|>",
        "<|image|>",
        "<|video|>",
        "<|begin_of_image|>",
        "<|end_of_image|>",
        "<|begin_of_video|>",
        "<|end_of_video|>",
        "<|user|>",
        "<|assistant|>"],
        small=[
            "post_self_attn_layernorm",
            "post_mlp_layernorm"],
            named={},
            processor=glm_processor,
            planes=glm_planes,
            last=lambda name: "merger.down_proj" in name,
            odd={
                "tower without rotary": still_tower,
                "sections in another order": sections_turned,
                "order of a token's patches": columns_of_patches,
                "no norm after attention": norm_left_out("post_self_attn_layernorm"),
                "no norm after the MLP": norm_left_out("post_mlp_layernorm")},
                 )
FAMILIES |= {"paddle": PADDLE, "glm_ocr": GLM, "glm4v": GLM |
    {"odd": GLM["odd"] | {"bilinear positions": bilinear}}}


def siglip(**over):
    return dict(
    hidden_size=16,
    intermediate_size=28,
    num_hidden_layers=2,
    num_attention_heads=2,
    image_size=28,
     patch_size=4) | over


def mrope(theta, *sections, **more):
    return rope(theta, mrope_section=list(sections), **more)


def glm_tower(**over):
    return dict(depth=2, hidden_size=16, num_heads=2, intermediate_size=28, out_hidden_size=32, image_size=28,
                patch_size=4) | over


VARIANTS |= {
    "paddleocr_vl_f32": dict(
        kind="paddle", family="paddleocr_vl", seed=7101, size=(256, 2560), depth=1, top={},
        text=text_cfg(vocab_size=330, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                      rms_norm_eps=1e-5,
                      pad_token_id=0, bos_token_id=1, eos_token_id=2, rope_parameters=mrope(500.0, 4, 2, 2)),
        vision=siglip(),
        released=dict(flat=True, vision=dict(model_type="paddleocr_vl"),
                      top=dict(tie_word_embeddings=False, use_flash_attention=False, sliding_window=None),
                      drop=["text_config.model_type"],
                      images=dict(size=..., min_pixels=256, max_pixels=2560)),
        cases=[chat(("u", [image(0), text("OCR:")]), pictures=[(21, 40, 55)]), *FIVE,
                                chat(ASK, note="text alone")]),
    "paddleocr_vl_odd_f32": dict(
        kind="paddle", family="paddleocr_vl", seed=7200, size=(900, 5000), depth=1,
        top=dict(tie_word_embeddings=False),
        text=text_cfg(vocab_size=334, hidden_size=48, num_attention_heads=3, num_key_value_heads=1,
                      head_dim=24,
                      num_hidden_layers=2, tie_word_embeddings=False, rms_norm_eps=1e-5, pad_token_id=0,
                      bos_token_id=1,
                      eos_token_id=2, rope_parameters=mrope(500.0, 3, 5, 4)),
        vision=siglip(hidden_size=24, num_attention_heads=3, patch_size=5, image_size=31,
                      spatial_merge_size=3,
                      layer_norm_eps=1e-4),
        cases=[chat(("u", [text("See"), image(0), image(1)]), pictures=[(22, 61, 40), (23, 14, 45)],
                    note="3 x 3 patches of 5 pixels a token; 6 x 6 positions; a head of its own")]),
    "paddleocr_vl_bias_f32": dict(
        kind="paddle", family="paddleocr_vl", seed=7250, size=(256, 2560), depth=1, top={},
        text=text_cfg(vocab_size=330, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                      num_hidden_layers=1, use_bias=True, rms_norm_eps=1e-5, pad_token_id=0, bos_token_id=1,
                      eos_token_id=2, rope_parameters=mrope(500.0, 4, 2, 2)),
        vision=siglip(),
        cases=[chat(("u", [image(0), text("OCR:")]), pictures=[(21, 40, 55)], note="biases everywhere")]),
    "glm_ocr_f32": dict(
        kind="glm_ocr", family="glm_ocr", seed=7300, size=(512, 5120), depth=2, top={},
        text=text_cfg(vocab_size=330, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                      rms_norm_eps=1e-5,
                      tie_word_embeddings=False, pad_token_id=0, rope_parameters=mrope(500.0, 4, 2, 2)),
        vision=glm_tower(), cases=[chat(("u", [image(0), text("Text Recognition:")]), pictures=[(24, 40,
                                                                                                 55)]), *FIVE,
                                   chat(ASK, note="text alone")]),
    "glm_ocr_odd_f32": dict(
        kind="glm_ocr", family="glm_ocr", seed=7402, size=(900, 9000), depth=2, top={},
        text=text_cfg(vocab_size=332, hidden_size=48, num_attention_heads=3, num_key_value_heads=1,
                      head_dim=24,
                      num_hidden_layers=2, tie_word_embeddings=False, rms_norm_eps=1e-3, pad_token_id=0,
                      rope_parameters=mrope(500.0, 2, 3, 1, partial_rotary_factor=0.5)),
        vision=glm_tower(hidden_size=24, num_heads=1, patch_size=3, spatial_merge_size=3, out_hidden_size=48,
                         attention_bias=False, rms_norm_eps=1e-3),
        cases=[chat(("u", [text("See"), image(0), image(1)]), pictures=[(25, 61, 40), (26, 14, 45)],
                    note="half of a head rotates; no biases in the tower; 3 x 3 patches of 3 pixels")]),
    "glm4v_f32": dict(
        kind="glm4v", family="glm4v", seed=7545, size=(512, 5120), depth=2, top={}, released={},
        gains=dict(qk=1.0,
                                                                                               mix=0.7),
        text=text_cfg(vocab_size=330, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                      rms_norm_eps=1e-5,
                      tie_word_embeddings=False, pad_token_id=0,
                      rope_parameters=mrope(500.0, 2, 1, 1, partial_rotary_factor=0.5)),
        vision=glm_tower(), cases=[chat(("u", [image(0), text("What is it?")]), pictures=[(27, 40, 55)]),
                                   *FIVE]),
    "glm46v_f32": dict(
        kind="glm4v", family="glm46v", seed=7626, size=(900, 9000), depth=2,
        top=dict(tie_word_embeddings=True),
        text=text_cfg(model_type="glm4v_text", vocab_size=331, hidden_size=48, num_attention_heads=3,
                      num_key_value_heads=3, num_hidden_layers=2, rms_norm_eps=1e-5, pad_token_id=0,
                      rope_parameters=mrope(500.0, 3, 3, 2)),
        vision=glm_tower(model_type="glm4v_vision", hidden_size=24, num_heads=3, patch_size=5, image_size=35,
                         out_hidden_size=48),
        cases=[chat(("u", [image(0), text("and?"), image(1)]), pictures=[(28, 61, 40), (29, 14, 45)],
                    note="tied; all of a head rotates; patches of 5")]),
}
