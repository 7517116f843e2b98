"""The families and variants of make_native.py. A family: its tokens and the split of its tokenizer, its
processor, its images as [3, h, w] (`planes`), pixel_values with one image negated (`negated`), the tower's
patch, merge and depth (`sizes`), which tensor makes the rows (`last`), and what else the model must react to
(`odd`)."""
import contextlib

import numpy as np
import torch
from transformers.models.lighton_ocr import LightOnOcrProcessor
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
                                   patch_size={"height": patch * merge, "width": patch * merge} if lighton
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
    merger = (getattr(model.model, "vision_projection", None) or model.model.multi_modal_projector).patch_merger
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
    odd=TOWER | {"order of a token's patches": patches_first},
)
LIGHTON = MISTRAL | dict(
    split="qwen", image="<|image_pad|>", end="<|im_end|>", breaks=False,
    tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_pad|>", "<|vision_end|>", "<|image_pad|>",
            "[INST]", "[/INST]"],
    named={"bos_token": "<|endoftext|>", "image_token": "<|image_pad|>", "image_break_token": "<|vision_pad|>",
           "image_end_token": "<|vision_end|>",
           "extra_special_tokens": {"image_token": "<|image_pad|>", "image_break_token": "<|vision_pad|>",
                                    "image_end_token": "<|vision_end|>"}},
)
FAMILIES = {
    "mistral3": MISTRAL,
    "ministral3": MISTRAL | {"odd": MISTRAL["odd"] | {"growing queries": flat_queries}},
    "pixtral": MISTRAL | {"odd": TOWER},
    "lighton": LIGHTON,
}


def pixtral(**over):
    return dict(model_type="pixtral", hidden_size=16, intermediate_size=28, num_hidden_layers=2,
                num_attention_heads=2, patch_size=4, image_size=64, hidden_act="silu",
                rope_parameters={"rope_type": "axial", "rope_theta": 1e4}) | over


def released(folder_names):
    """Tensor names of the first releases."""
    return folder_names


ASK = ("u", [text("Is it?")])
FIVE = [chat(("u", [text("One"), image(0), text("two"), image(1)]), ("a", "Yes."), ("u", [image(2), text("and?")]),
             ("a", "No."), ("u", [image(3), image(4)]),
             pictures=[(2, 20, 20), (3, 4, 60), (4, 3, 31), (5, 2, 2), (6, 50, 30)],
             note="five images over three turns: one of 3 x 31, one of 2 x 2")]
VARIANTS = {
    "mistral3_f32": dict(
        kind="mistral3", family="mistral3", seed=6100, longest=40, top=dict(spatial_merge_size=2),
        text=text_cfg(model_type="mistral", vocab_size=330, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                      sliding_window=None, rms_norm_eps=1e-3, rope_parameters=rope(1e4)),
        vision=pixtral(), drop=["tie_word_embeddings", "text_config.tie_word_embeddings"],
        cases=[chat(("u", [image(0), text("What is it?")]), pictures=[(1, 33, 27)], note="tied by absence"),
               *FIVE, chat(ASK, note="text alone")]),
    "ministral3_vision_f32": dict(
        kind="ministral3", family="mistral3", seed=6200, longest=50,
        top=dict(spatial_merge_size=3, multimodal_projector_bias=True, tie_word_embeddings=False),
        text=text_cfg(model_type="ministral3", vocab_size=335, hidden_size=48, num_attention_heads=3,
                      num_key_value_heads=1, head_dim=24, num_hidden_layers=2, pad_token_id=None,
                      tie_word_embeddings=False,
                      rope_parameters=rope(1e4, "yarn", factor=4.0, original_max_position_embeddings=24, mscale=1.0,
                                           mscale_all_dim=1.0, llama_4_scaling_beta=0.3)),
        vision=pixtral(hidden_size=24, patch_size=5, num_hidden_layers=3,
                       rope_parameters={"rope_type": "axial", "rope_theta": 300.0}),
        cases=[chat(("u", [text("See"), image(0), text("now?"), image(1)]), pictures=[(7, 61, 40), (8, 14, 45)],
                    note="3 x 3 patches of 5 pixels a token; queries that grow; projections with biases")]),
    "pixtral_f32": dict(
        kind="pixtral", family="llava", seed=6300, longest=30, drop=["spatial_merge_size"],
        top=dict(vision_feature_layer=-1, vision_feature_select_strategy="full", image_seq_length=1),
        text=text_cfg(model_type="mistral", vocab_size=330, num_attention_heads=2, num_key_value_heads=1, head_dim=20,
                      sliding_window=None, tie_word_embeddings=False, rope_parameters=rope(1e5)),
        vision=pixtral(hidden_size=40, num_attention_heads=5, intermediate_size=20, patch_size=6),
        cases=[chat(("u", [image(0), text("Well?"), image(1)]), pictures=[(9, 32, 19), (10, 32, 19)],
                    note="a token is a patch")]),
    "mistral3_gguf_f32": dict(
        kind="ministral3", family="mistral3", seed=6400, longest=48, top=dict(spatial_merge_size=2),
        text=text_cfg(model_type="ministral3", vocab_size=330, hidden_size=64, intermediate_size=96,
                      num_attention_heads=2, num_key_value_heads=1, head_dim=32, num_hidden_layers=2,
                      pad_token_id=None, rms_norm_eps=1e-5,
                      rope_parameters=rope(1e4, "yarn", factor=4.0, original_max_position_embeddings=24, mscale=1.0,
                                           mscale_all_dim=1.0, llama_4_scaling_beta=0.3)),
        vision=pixtral(hidden_size=32, intermediate_size=64, image_size=48),
        cases=[chat(("u", [image(0), text("What?")]), pictures=[(11, 44, 30)], note="rows of whole blocks")]),
    "lighton_ocr_f32": dict(
        kind="lighton", family="lighton_ocr", seed=6500, longest=48, top=dict(spatial_merge_size=2),
        text=text_cfg(model_type="qwen3", vocab_size=330, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
                      rope_parameters=rope(1e4)),
        vision=pixtral(), cases=[chat(("u", [image(0)]), pictures=[(12, 40, 55)], note="a page alone"), *FIVE]),
    "lighton_ocr_odd_f32": dict(
        kind="lighton", family="lighton_ocr", seed=6600, longest=33,
        top=dict(spatial_merge_size=3, tie_word_embeddings=False),
        text=text_cfg(model_type="qwen3", vocab_size=337, hidden_size=48, num_attention_heads=3, num_key_value_heads=3,
                      head_dim=24, num_hidden_layers=2, tie_word_embeddings=False, rope_parameters=rope(1e4)),
        vision=pixtral(hidden_size=12, num_attention_heads=1, patch_size=3), mean_std=([0.4] * 3, [0.3, 0.25, 0.5]),
        cases=[raw("first<|image_pad|>last", pictures=[(13, 31, 18)], note="3 x 3 patches of 3 pixels a token")]),
}
