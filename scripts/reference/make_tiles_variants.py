"""The families and variants of make_tiles.py. A family: its tokens and the split of its tokenizer, its
processor, how its pixel_values are cut into images ([3, h, w] each, in the order of the prompt), how many
tokens each takes, which tensor makes the rows (`last`), and what else the model must react to (`odd`)."""

import contextlib

import torch
from transformers.models.got_ocr2 import GotOcr2ImageProcessor
from transformers.models.granite_docling import GraniteDoclingImageProcessor, GraniteDoclingProcessor
from transformers.models.idefics3 import Idefics3ImageProcessor, Idefics3Processor
from transformers.models.internvl import InternVLProcessor, InternVLVideoProcessor
from transformers.models.lfm2_vl import Lfm2VlImageProcessor, Lfm2VlProcessor
from transformers.models.minicpmv4_6 import (
    MiniCPMV4_6ImageProcessor, MiniCPMV4_6Processor, MiniCPMV4_6VideoProcessor)
from transformers.models.qianfan_ocr import QianfanOCRProcessor
from transformers.models.smolvlm import SmolVLMImageProcessor, SmolVLMProcessor, SmolVLMVideoProcessor
from transformers.models.smolvlm import processing_smolvlm

from make_llama import kinds
from make_qwen_variants import chat, image, raw, text, text_cfg  # noqa: F401

processing_smolvlm.num2words = str  # only videos need it


def rope(theta):
    return {"rope_theta": theta, "rope_type": "default"}


# ------------------------------------------------------------------------------------ Idefics3 and SmolVLM

FAKE, GLOBAL, END = "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"
ROWS = [f"<row_{r + 1}_col_{c + 1}>" for r in range(2) for c in range(3)]  # others are written as text
UTTERANCES = """<|im_start|>
{%- for turn in messages -%}
    {{ turn['role'] | capitalize }}
    {{- ':' if turn['content'][0]['type'] == 'image' else ': ' }}
    {%- for part in turn['content'] -%}
        {{ part['text'] if part['type'] == 'text' else '<image>' }}
    {%- endfor -%}
    {{ '<end_of_utterance>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'Assistant:' }}{%- endif -%}
"""


def idefics3_processor(v, tokenizer):
    side, merge = v["vision"]["image_size"], v["top"].get("scale_factor", 2)
    smol = v["family"] == "smolvlm"
    images = (SmolVLMImageProcessor if smol else Idefics3ImageProcessor)(
        size={"longest_edge": v["longest"]}, max_image_size={"longest_edge": side}, **v.get("images", {}))
    template = FAMILIES[v["kind"]].get("template", UTTERANCES)
    more = dict(image_seq_len=(side // v["vision"]["patch_size"] // merge) ** 2, chat_template=template)
    if smol:
        return SmolVLMProcessor(images, tokenizer, SmolVLMVideoProcessor(), **more)
    return Idefics3Processor(images, tokenizer, **more)


def square_tokens(a, v):
    return (a.shape[-1] // v["vision"]["patch_size"] // v["top"].get("scale_factor", 2)) ** 2


@contextlib.contextmanager
def swapped(model, name, change):
    w = dict(model.named_parameters())[name]
    kept = w.detach().clone()
    with torch.no_grad():
        w.copy_(change(kept))
    yield
    with torch.no_grad():
        w.copy_(kept)


@contextlib.contextmanager
def plain_buckets(_model):
    """Position i for patch i."""
    kept = torch.bucketize
    torch.bucketize = lambda x, bounds, right: torch.arange(x.shape[-1]).expand(x.shape)
    yield
    torch.bucketize = kept


def columns_swapped(model):
    """The patches of a token in columns instead of rows."""
    name, c, s = ("model.connector.modality_projection.proj.weight", model.config.vision_config.hidden_size,
                  model.config.scale_factor)
    return swapped(model, name, lambda w: w.view(-1, s, s, c).transpose(1, 2).reshape(w.shape))


IDEFICS3 = dict(
    split="numbers", vocab=330, image="<image>", end=END, image_text="<image>",
    tokens=["<|endoftext|>", "<|im_start|>", FAKE, "<image>", END, GLOBAL] + ROWS,
    processor=idefics3_processor, count=square_tokens, tiles=lambda out, v: list(out["pixel_values"][0]),
    last=lambda name: "modality_projection" in name, odd={"order of a token's patches": columns_swapped})

# granite-docling-258M, which is an Idefics3 with a Llama
ROLES = """{%- for turn in messages -%}
    {{ '<|start_of_role|>' + turn['role'] + '<|end_of_role|>' }}
    {%- for part in turn['content'] -%}
        {{ part['text'] if part['type'] == 'text' else '<image>' }}
    {%- endfor -%}
    {{ '<|end_of_text|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{%- endif -%}
"""
DOCLING_258M = IDEFICS3 | dict(
    split="plain", corpus="On page 1024 of 2024, 10.\n" * 40, template=ROLES, end="<|end_of_text|>",
    tokens=["<|pad|>", "<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>", "<|unk|>", "<loc_"]
    + [FAKE, "<image>", GLOBAL]
    + ROWS)

# ------------------------------------------------------------------------------- InternVL and Qianfan-OCR

CONTEXT = "<IMG_CONTEXT>"
NAMED = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": CONTEXT,
         "video_token": "<video>"}
CHATML = """{%- for turn in messages -%}
    {{ '<|im_start|>' + turn['role'] + '\n' }}
    {%- if turn['content'] is string -%}
        {{ turn['content'] }}
    {%- else -%}
        {%- for part in turn['content'] -%}
            {{ '@IMAGE@' if part['type'] == 'image' else part['text'] }}
        {%- endfor -%}
    {%- endif -%}
    {{ '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
"""


def internvl_processor(v, tokenizer):
    side, patch = v["vision"]["image_size"][0], v["vision"]["patch_size"][0]
    images = GotOcr2ImageProcessor(size={"height": side, "width": side}, **v.get("images", {}))
    more = dict(image_seq_length=(side // patch // round(1 / v["top"].get("downsample_ratio", 0.5))) ** 2)
    if v["family"] == "internvl":
        return InternVLProcessor(images, tokenizer, InternVLVideoProcessor(),
                                 chat_template=CHATML.replace("@IMAGE@", CONTEXT + "\\n"), **more)
    return QianfanOCRProcessor(
        images, tokenizer, chat_template=CHATML.replace("@IMAGE@", "<image>\\n"), **more)


def layer_scale(model):
    return swapped(
        model, next(n for n, _ in model.named_parameters() if n.endswith("0.lambda_1")), lambda w: w * 0 + 1)


def class_row(model):
    return swapped(model, "model.vision_tower.embeddings.cls_token", lambda w: -w)


def norms_of_q(model):
    """Each head by itself, as other towers have it."""
    name = next(n for n, _ in model.named_parameters() if n.endswith("attention.q_norm.weight"))
    return swapped(model, name, lambda w: w.flip(0))


INTERNVL = dict(
    split="qwen", vocab=320, image=CONTEXT, end="<|im_end|>", image_text=CONTEXT,
    tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", CONTEXT, "<video>"],
    named=NAMED | {"extra_special_tokens": NAMED}, processor=internvl_processor,
    count=lambda a, v: (
        a.shape[-1] // v["vision"]["patch_size"][0] // round(1 / v["top"].get("downsample_ratio", 0.5)))
    ** 2,
    tiles=lambda out, v: list(out["pixel_values"]), last=lambda name: "linear_2" in name,
    odd={"layer scale": layer_scale, "class row": class_row})

# ------------------------------------------------------------------------------------------------ LFM2-VL

LFM2_ROWS = [f"<|img_row_{r + 1}_col_{c + 1}|>" for r in range(3) for c in range(3)]


def lfm2_processor(v, tokenizer):
    images = Lfm2VlImageProcessor(encoder_patch_size=v["vision"]["patch_size"],
                                  downsample_factor=v["top"].get("downsample_factor", 2), **v["images"])
    return Lfm2VlProcessor(images, tokenizer, chat_template=CHATML.replace("@IMAGE@", "<image>"))


def unpatched(out, v):
    p, images = v["vision"]["patch_size"], []
    for rows, (h, w) in zip(out["pixel_values"], out["spatial_shapes"].tolist()):
        a = rows[: h * w].reshape(h, w, p, p, 3).permute(4, 0, 2, 1, 3)
        images.append(a.reshape(3, h * p, w * p).contiguous())
    return images


def merged_tokens(a, v):
    side = v["vision"]["patch_size"] * v["top"].get("downsample_factor", 2)
    return (a.shape[-1] // side) * (a.shape[-2] // side)


LFM2 = dict(
    split="digits3", vocab=330, image="<image>", end="<|im_end|>", image_text="<image>",
    tokens=["<|pad|>", "<|im_start|>", "<|im_end|>", "<image>", "<|image_start|>", "<|image_end|>",
            "<|img_thumbnail|>"]
    + LFM2_ROWS,
    processor=lfm2_processor, count=merged_tokens, tiles=unpatched, last=lambda name: "linear_2" in name)

# ---------------------------------------------------------------------------------------- Granite-Docling


def docling_processor(v, tokenizer):
    side = v["vision"]["image_size"]
    images = GraniteDoclingImageProcessor(size={"height": side, "width": side}, **v.get("images", {}))
    return GraniteDoclingProcessor(
        images, tokenizer, chat_template=CHATML.replace("@IMAGE@", "<image>"),
        image_seq_len=(side // v["vision"]["patch_size"] // v["vision"]["scale_factor"]) ** 2)


@contextlib.contextmanager
def no_places(model):
    embed = model.model.vision_model.connector.coarse.pos_embed
    kept = embed.pos_embed.clone()
    embed.pos_embed.copy_(kept.roll(kept.shape[-1] // 2, -1))
    yield
    embed.pos_embed.copy_(kept)


def no_deepstack(model):
    name = next(
        n for n, _ in model.named_parameters() if n.endswith("coarse.deepstack_mergers.1.linear_2.weight"))
    return swapped(model, name, lambda w: w * 0)


DOCLING = dict(
    split="numbers", vocab=330, image="<image>", end="<|end_of_text|>", image_text="<image>",
    tokens=["<|pad|>", "<|im_start|>", "<|im_end|>", "<|end_of_text|>", FAKE, "<image>", GLOBAL] + ROWS,
    processor=docling_processor, rows=("ln_out.weight", "ln_out.bias"),
    count=lambda a, v: (a.shape[-1] // v["vision"]["patch_size"] // v["vision"]["scale_factor"]) ** 2,
    tiles=lambda out, v: list(out["pixel_values"][0][out["pixel_attention_mask"][0]]),
    last=lambda name: "linear_2" in name, odd={"places rows first": no_places, "DeepStack": no_deepstack})
# ------------------------------------------------------------------------------------------ MiniCPM-V 4.6

SLICES = ["<image>", "</image>", "<slice>", "</slice>", "<image_id>", "</image_id>"]
SLICED = dict(
    zip(
        ("image_start_token", "image_end_token", "slice_start_token", "slice_end_token",
         "image_id_start_token", "image_id_end_token"),
        SLICES)) | {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}


def minicpm_processor(v, tokenizer):
    images = MiniCPMV4_6ImageProcessor(patch_size=v["vision"]["patch_size"], **v["images"])
    return MiniCPMV4_6Processor(images, MiniCPMV4_6VideoProcessor(patch_size=v["vision"]["patch_size"]),
                                tokenizer, chat_template=CHATML.replace("@IMAGE@", "<|image_pad|>"))


def navit(out, v):
    p, at, images = v["vision"]["patch_size"], 0, []
    for h, w in out["target_sizes"].tolist():
        a = out["pixel_values"][0, :, :, at : at + h * w * p].reshape(3, p, h, w, p)
        images.append(a.permute(0, 2, 1, 3, 4).reshape(3, h * p, w * p).contiguous())
        at += h * w * p
    return images


def halving(model):
    return swapped(model, "model.vision_tower.vit_merger.self_attn.v_proj.weight", lambda w: -w)


MINICPM = dict(
    split="qwen", vocab=320, image="<|image_pad|>", end="<|im_end|>", image_text="<|image_pad|>",
    tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|image_pad|>", "<|video_pad|>"] + SLICES,
    named=SLICED | {"extra_special_tokens": SLICED}, processor=minicpm_processor, tiles=navit,
    count=lambda a, v: a.shape[-1] * a.shape[-2] // (4 * v["vision"]["patch_size"]) ** 2,
    last=lambda name: "mlp.0.linear_2" in name, odd={"attention of four": halving}, recurrent=True)
FAMILIES = {"minicpm": MINICPM, "idefics3": IDEFICS3, "docling_258m": DOCLING_258M, "docling": DOCLING,
            "lfm2": LFM2, "internvl": INTERNVL,
            "internvl_6b": INTERNVL | {"odd": INTERNVL["odd"] | {"norm of q": norms_of_q}},
            "qianfan": INTERNVL | {"image_text": "<image>"},
            "docling_fine": DOCLING | {"odd": {}, "count": lambda a, v: 4 * DOCLING["count"](a, v)},
            "minicpm_4x": MINICPM | {
                "odd": {},
                "count": lambda a, v: a.shape[-1] * a.shape[-2] // (2 * v["vision"]["patch_size"]) ** 2},
            "buckets": IDEFICS3 | {"odd": IDEFICS3["odd"] | {"plain positions": plain_buckets}}}


def siglip(**over):
    all = (
        dict(hidden_size=16, intermediate_size=28, num_hidden_layers=2, num_attention_heads=2, image_size=24,
             patch_size=4)
        | over)
    return {k: x for k, x in all.items() if x is not None}


ASK = ("u", [text("Is it?")])
VARIANTS = {
    "smolvlm_f32": dict(
        kind="idefics3", family="smolvlm", seed=5100, longest=48,
        released=dict(
            text=dict(is_llama_config=True, neftune_noise_alpha=0.0, pixel_shuffle_factor=4,
                      qk_layer_norms=False, rope_interleaved=False, use_resampler=False),
            vision=dict(tie_word_embeddings=False, use_base_siglip=False, size={"longest_edge": 48}),
            top=dict(use_reentrant_checkpointing=False, vocab_size=330),
            drop=["vision_config.layer_norm_eps", "vision_config.hidden_act"],
            images=dict(do_pad=True, video_sampling={"fps": 1, "max_frames": 64})),
        top=dict(scale_factor=3),
        text=text_cfg(model_type="llama", vocab_size=330, num_attention_heads=4, num_key_value_heads=2,
                      rms_norm_eps=1e-5, tie_word_embeddings=False, rope_parameters=rope(1e4)),
        vision=siglip(),
        cases=[
            chat(
                ("u", [image(0), text("What is it?")]), pictures=[(1, 33, 47)], note="two rows of two tiles"),
            chat(("u", [text("One"), image(0), text("two"), image(1)]), ("a", [text("Yes.")]),
                 ("u", [image(2), text("and?")]), ("a", [text("No.")]), ("u", [image(3), image(4)]),
                 pictures=[(2, 20, 20), (3, 4, 60), (4, 1, 200), (5, 2, 2), (6, 70, 30)],
                 note="five images over three turns: one of 1 x 200, one of 2 x 2"),
            chat(ASK, note="text alone")]),
    "smolvlm_rest_f32": dict(
        kind="idefics3", family="smolvlm", seed=5150, longest=44, top=dict(scale_factor=5), released={},
        text=text_cfg(model_type="llama", vocab_size=330, num_attention_heads=2, num_key_value_heads=2,
                      num_hidden_layers=2, rms_norm_eps=1e-5, tie_word_embeddings=False,
                      rope_parameters=rope(1e4)),
        vision=siglip(image_size=22, num_hidden_layers=1),
        cases=[
            chat(("u", [image(0), text("What is it?")]), pictures=[(15, 40, 30)],
                 note="tiles of 5 x 5 patches and two pixels more, as SmolVLM2-2.2B's of 384 by 14")]),
    "smolvlm_whole_f32": dict(
        kind="buckets", family="smolvlm", seed=5200, longest=70,
        top=dict(scale_factor=5, tie_word_embeddings=True), images=dict(do_image_splitting=False, resample=3),
        text=text_cfg(model_type="llama", vocab_size=335, hidden_size=48, num_attention_heads=3,
                      num_key_value_heads=1, num_hidden_layers=2, tie_word_embeddings=True, rms_norm_eps=1e-5,
                      rope_parameters=rope(1e4)),
        vision=siglip(
            hidden_size=24, num_attention_heads=3, image_size=50, patch_size=2, num_hidden_layers=1),
        cases=[
            chat(("u", [image(0), text("What is it?")]), pictures=[(7, 90, 41)],
                 note="not cut; bicubic, twice; positions that floats put into the bucket before"),
            chat(ASK, ("a", [text("No.")]), ("u", [image(0), image(1)]), pictures=[(8, 50, 50), (9, 7, 3)])]),
    "idefics3_f32": dict(
        kind="idefics3", family="idefics3", seed=5300, longest=64, top=dict(scale_factor=2),
        drop=["scale_factor"],
        text=text_cfg(model_type="llama", vocab_size=330, num_attention_heads=2, num_key_value_heads=1,
                      head_dim=24, rms_norm_eps=1e-5, tie_word_embeddings=False, rope_parameters=rope(5e3)),
        vision=siglip(image_size=16, num_hidden_layers=3, layer_norm_eps=1e-3),
        cases=[
            chat(("u", [image(0), text("What is it?")]), pictures=[(11, 61, 40)],
                 note="12 tiles and the whole; rows that have no token"),
            chat(("u", [text("See"), image(0)]), pictures=[(12, 100, 9)])]),
    "idefics3_odd_f32": dict(
        kind="buckets", family="idefics3", seed=5400, longest=50, top=dict(scale_factor=5),
        text=text_cfg(model_type="llama", vocab_size=330, hidden_size=40, num_attention_heads=2,
                      num_key_value_heads=2, num_hidden_layers=2, attention_bias=True, rms_norm_eps=1e-5,
                      tie_word_embeddings=False, rope_parameters=rope(1e4)),
        vision=siglip(image_size=25, patch_size=1, num_hidden_layers=2),
        images=dict(image_mean=[0.4, 0.5, 0.6], image_std=[0.3, 0.25, 0.5], do_resize=True),
        cases=[
            chat(("u", [image(0), text("Well?")]), pictures=[(13, 40, 20)],
                 note="2 tiles of 25 x 25 patches of one pixel; other means")]),
    "docling_258m_f32": dict(
        kind="docling_258m", family="idefics3", seed=5601, longest=48,
        top=dict(scale_factor=2, bos_token_id=None, tie_word_embeddings=True),
        released=dict(text=dict(architectures=["LlamaForCausalLM"], pretraining_tp=1, use_cache=False),
                      vision=dict(max_image_size={"longest_edge": 24}, size={"longest_edge": 24}),
                      top=dict(vocab_size=330, use_cache=True), images=dict(do_pad=True)),
        files={
            "tokenizer_config.json": lambda c: {
                "add_bos_token": False, "additional_special_tokens": [FAKE, "<image>"],
                "bos_token": "<|start_of_role|>", "eos_token": "<|end_of_text|>",
                "pad_token": "<|end_of_text|>", "tokenizer_class": "GPT2Tokenizer", "unk_token": "<|unk|>"}},
        text=text_cfg(model_type="llama", vocab_size=330, hidden_size=48, num_attention_heads=3,
                      num_key_value_heads=1, head_dim=16, rms_norm_eps=1e-5, rope_parameters=rope(1e5)),
        vision=siglip(layer_norm_eps=1e-6),
        cases=[
            chat(("u", [image(0), text("Convert page 2024 to docling.")]), pictures=[(15, 33, 47)],
                 note="two rows of two tiles; digits that merge")]),
    "smolvlm_bf16": dict(
        kind="idefics3", family="smolvlm", seed=5500, longest=48, top=dict(scale_factor=3), dtype="bfloat16",
        gains=dict(head=1.6, qk=0.7, mix=0.3), distinct=5, margin=0.004,
        text=text_cfg(model_type="llama", vocab_size=330, num_attention_heads=4, num_key_value_heads=2,
                      num_hidden_layers=2, rms_norm_eps=1e-5, tie_word_embeddings=False,
                      rope_parameters=rope(1e4)),
        vision=siglip(num_hidden_layers=1),
        cases=[chat(("u", [image(0), text("What?")]), pictures=[(14, 33, 20)])]),
    "internvl_f32": dict(
        kind="internvl", family="internvl", seed=6100, top={}, images=dict(max_patches=6),
        text=text_cfg(model_type="qwen2", rope_parameters=rope(1e4), num_key_value_heads=1),
        vision=siglip(image_size=[16, 16], patch_size=[4, 4], attention_bias=True),
        cases=[
            chat(("u", [image(0), text("What is it?")]), pictures=[(21, 61, 40)],
                 note="6 tiles and the whole"),
            chat(("u", [text("One"), image(0), text("two"), image(1)]), ("a", "Yes."),
                 ("u", [image(2), text("and?")]), ("a", "No."), ("u", [image(3), image(4)]),
                 pictures=[(22, 20, 20), (23, 4, 60), (24, 1, 200), (25, 2, 2), (26, 70, 30)],
                 note="five images over three turns: one of 1 x 200, one of 2 x 2"),
            chat(("u", "Is it?"), note="text alone")]),
    "internvl_6b_f32": dict(
        kind="internvl_6b", family="internvl", seed=6150, top={}, images=dict(max_patches=3),
        text=text_cfg(model_type="qwen2", rope_parameters=rope(1e4), num_hidden_layers=2,
                      num_key_value_heads=1, tie_word_embeddings=False),
        vision=siglip(image_size=[16, 16], patch_size=[4, 4], hidden_size=24, num_attention_heads=3,
                      attention_bias=False, norm_type="rms_norm", use_qk_norm=True, layer_norm_eps=1e-5),
        released=dict(text=dict(rope_scaling={"factor": 2.0, "rope_type": "dynamic", "type": "dynamic"}),
                      images=dict(crop_to_patches=False, data_format="channels_first", crop_size=None)),
        cases=[
            chat(("u", [image(0), text("What is it?")]), pictures=[(35, 33, 47)],
                 note="RMS norms, of all heads' q and k too; the keys of InternVL3-38B")]),
    "internvl_rms_norm_f32": dict(
        kind="internvl_6b", family="internvl", seed=6170, top={}, images=dict(max_patches=3),
        text=text_cfg(model_type="qwen2", rope_parameters=rope(1e4), num_hidden_layers=1,
                      num_key_value_heads=1, tie_word_embeddings=True),
        vision=siglip(image_size=[16, 16], patch_size=[4, 4], hidden_size=24, num_attention_heads=3,
                      norm_type="rms_norm", use_qk_norm=True, use_mean_pooling=False, layer_norm_eps=1e-5),
        cases=[chat(("u", [image(0), text("What is it?")]), pictures=[(35, 33, 47)],
                    note="a LayerNorm after RMS norms")]),
    "internvl_odd_f32": dict(
        kind="internvl", family="internvl", seed=6200,
        top=dict(downsample_ratio=0.25, tie_word_embeddings=False),
        images=dict(max_patches=12, min_patches=2, resample=2, image_mean=[0.4, 0.5, 0.6]),
        text=text_cfg(model_type="qwen3", vocab_size=325, rope_parameters=rope(1e4), num_attention_heads=3,
                      num_key_value_heads=1, hidden_size=48, head_dim=24, num_hidden_layers=2,
                      tie_word_embeddings=False),
        vision=siglip(image_size=[16, 16], patch_size=[2, 2], use_mean_pooling=False, layer_norm_eps=1e-3,
                      num_hidden_layers=3),
        cases=[
            chat(("u", [image(0), text("What is it?")]), pictures=[(27, 90, 20)],
                 note="no biases of q, k, v; tokens of 4 x 4 patches; a norm at the end; at least 2 tiles"),
            chat(("u", [image(0), image(1)]), pictures=[(28, 16, 16), (29, 48, 64)], note="12 tiles")]),
    "qianfan_f32": dict(
        kind="qianfan", family="qianfan_ocr", seed=6300, top={}, images=dict(max_patches=4),
        text=text_cfg(model_type="qwen3", rope_parameters=rope(1e4), num_key_value_heads=1, head_dim=16,
                      tie_word_embeddings=False),
        vision=siglip(image_size=[16, 16], patch_size=[4, 4]),
        cases=[chat(("u", [image(0), text("What is it?")]), pictures=[(31, 33, 47)], note="another marker")]),
    "qianfan_odd_f32": dict(
        kind="qianfan", family="qianfan_ocr", seed=6400,
        top=dict(downsample_ratio=0.25, tie_word_embeddings=True),
        images=dict(max_patches=12, min_patches=2, image_std=[0.3, 0.4, 0.5]),
        text=text_cfg(model_type="qwen2", vocab_size=327, rope_parameters=rope(1e4), num_hidden_layers=2,
                      num_attention_heads=3, num_key_value_heads=3, hidden_size=48),
        vision=siglip(image_size=[16, 16], patch_size=[2, 2], attention_bias=False, use_qk_norm=True,
                      use_mean_pooling=False, layer_norm_eps=1e-3, num_hidden_layers=1),
        cases=[
            chat(("u", [image(0), text("Parse"), image(1)]), pictures=[(36, 48, 64), (37, 1, 100)],
                 note="12 tiles; norms of q and k; tokens of 4 x 4 patches; tied"),
            chat(ASK, note="text alone")]),
    "lfm2_vl_f32": dict(
        kind="lfm2", family="lfm2_vl", seed=7168, top=dict(projector_hidden_size=40),
        images=dict(min_image_tokens=4, max_image_tokens=12, tile_size=32, min_tiles=2, max_tiles=6),
        released=dict(
            top=dict(image_token_index=317, encoder_patch_size=4, tile_size=32, vision_feature_layer=-1),
            text=dict(num_heads=2, theta=1e4, use_pos_enc=True, block_dim=32, block_use_swiglu=True),
            images=dict(size={"height": 512, "width": 512}, max_num_patches=1024, do_resize=False)),
        text=text_cfg(model_type="lfm2", vocab_size=330, num_hidden_layers=4, num_key_value_heads=1,
                      layer_types=kinds("ccfc"), block_auto_adjust_ff_dim=False, rope_parameters=rope(1e4)),
        vision=siglip(image_size=None, num_patches=25, vision_use_head=False),
        cases=[
            chat(("u", [image(0), text("What is it?")]), pictures=[(41, 61, 40)], note="tiles and the whole"),
            chat(("u", [text("One"), image(0), text("two"), image(1)]), ("a", "Yes."),
                 ("u", [image(2), text("and?")]), ("a", "No."), ("u", [image(3), image(4)]),
                 pictures=[(42, 20, 20), (43, 4, 60), (44, 1, 90), (45, 2, 2), (46, 70, 30)],
                 note="five images over three turns: one of 1 x 90, one of 2 x 2"),
            chat(("u", "Is it?"), note="text alone")]),
    "lfm2_vl_odd_f32": dict(
        kind="lfm2", family="lfm2_vl", seed=7200,
        top=dict(projector_hidden_size=200, downsample_factor=3, projector_use_layernorm=False,
                 projector_bias=False, tie_word_embeddings=False),
        images=dict(min_image_tokens=2, max_image_tokens=9, tile_size=18, min_tiles=2, max_tiles=12,
                    use_thumbnail=False, max_pixels_tolerance=1.0, resample=3, image_std=[0.3, 0.4, 0.5]),
        text=text_cfg(model_type="lfm2", vocab_size=335, hidden_size=48, num_hidden_layers=3,
                      num_attention_heads=3, num_key_value_heads=1, conv_L_cache=5, layer_types=kinds("fcc"),
                      block_ff_dim=60, block_multiple_of=12, block_ffn_dim_multiplier=1.2,
                      tie_word_embeddings=False, norm_eps=1e-3, rope_parameters=rope(1e4)),
        vision=siglip(image_size=None, patch_size=2, num_patches=81, vision_use_head=False,
                      layer_norm_eps=1e-3, num_hidden_layers=1),
        cases=[
            chat(("u", [image(0), text("What is it?")]), pictures=[(47, 70, 50)], note="12 tiles, no whole"),
            chat(("u", [image(0), image(1), text("?")]), pictures=[(48, 17, 3), (49, 2, 33)],
                 note="a projector wider than its patches, without norm and biases; few patches of a side")]),
    "lfm2_vl_gguf_f32": dict(
        kind="lfm2", family="lfm2_vl", seed=7300, top=dict(projector_hidden_size=64), images={}, pixels=False,
        text=text_cfg(model_type="lfm2", vocab_size=330, num_hidden_layers=3, num_key_value_heads=1,
                      layer_types=kinds("cfc"), block_auto_adjust_ff_dim=False, rope_parameters=rope(1e4)),
        vision=siglip(
            image_size=None, patch_size=16, num_patches=64, vision_use_head=False, num_hidden_layers=1),
        cases=[
            chat(("u", [image(0), text("What is it?")]), pictures=[(51, 40, 30)],
                 note="the class's sizes of images, which GGUF files don't say")]),
    "granite_docling_f32": dict(
        kind="docling", family="granite_docling", seed=8100, top=dict(pad_token_id=0),
        images=dict(max_patches=6),
        text=text_cfg(model_type="granite_docling_text", vocab_size=330, num_attention_heads=4,
                      num_key_value_heads=2, pad_token_id=0, bos_token_id=None, eos_token_id=None,
                      embedding_multiplier=6.0, attention_multiplier=0.2, residual_multiplier=0.22,
                      logits_scaling=1.5, rope_parameters=rope(1e4)),
        gains=dict(head=4.0, mix=8.0),
        vision=siglip(image_size=16, patch_size=2, scale_factor=4, num_hidden_layers=3, out_hidden_size=32,
                      deepstack_visual_indexes=[0, 2], use_fine_route=True),
        cases=[
            chat(("u", [image(0), text("What is it?")]), pictures=[(61, 61, 40)],
                 note="6 tiles and the whole"),
            chat(("u", [text("One"), image(0), text("two"), image(1)]), ("a", "Yes."),
                 ("u", [image(2), text("and?")]), pictures=[(62, 20, 20), (63, 4, 60), (64, 1, 200)],
                 note="one tile has no closing marker; one image of 1 x 200")]),
    "granite_docling_odd_f32": dict(
        kind="docling", family="granite_docling", seed=8200,
        top=dict(pad_token_id=0, tie_word_embeddings=False),
        images=dict(min_patches=2, max_patches=4, resample=2),
        text=text_cfg(model_type="granite_docling_text", vocab_size=333, hidden_size=48,
                      num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=4, pad_token_id=0,
                      embedding_multiplier=2.0, attention_multiplier=0.3, residual_multiplier=0.7,
                      logits_scaling=0.5, tie_word_embeddings=False, rope_parameters=rope(1e4)),
        gains=dict(head=1.3, qk=0.8, mix=4.0),
        vision=siglip(image_size=24, patch_size=4, scale_factor=2, num_hidden_layers=4, out_hidden_size=48,
                      deepstack_visual_indexes=[0, 1, 3], use_fine_route=False, layer_norm_eps=1e-3),
        cases=[
            chat(("u", [image(0), text("What is it?")]), pictures=[(65, 30, 60)],
                 note="three features, no fine path")]),
    "granite_docling_fine_f32": dict(
        kind="docling_fine", family="granite_docling", seed=8402, top=dict(pad_token_id=0),
        images=dict(max_patches=2, fine_route=True),
        text=text_cfg(model_type="granite_docling_text", vocab_size=333, num_key_value_heads=1,
                      num_hidden_layers=3, pad_token_id=0, embedding_multiplier=2.0, attention_multiplier=0.3,
                      residual_multiplier=0.7, logits_scaling=0.5, rope_parameters=rope(1e4)),
        gains=dict(head=1.3, qk=0.8, mix=4.0),
        vision=siglip(image_size=16, patch_size=4, scale_factor=2, out_hidden_size=32,
                      deepstack_visual_indexes=[0, 1], use_fine_route=True),
        cases=[
            chat(("u", [image(0), text("What is it?")]), pictures=[(65, 30, 60)], note="a token a patch")]),
    "granite_docling_dense_f32": dict(
        kind="docling", family="granite_docling", seed=8302, top=dict(pad_token_id=0),
        images=dict(max_patches=2, dense_max_patches=6, dense_max_scale=0.8, dense_min_aspect=1.2,
                    dense_max_aspect=2.5),
        text=text_cfg(model_type="granite_docling_text", vocab_size=333, num_key_value_heads=1,
                      num_hidden_layers=3, pad_token_id=0, embedding_multiplier=2.0, attention_multiplier=0.3,
                      residual_multiplier=0.7, logits_scaling=0.5, rope_parameters=rope(1e4)),
        gains=dict(head=1.3, qk=0.8, mix=4.0),
        vision=siglip(image_size=16, patch_size=4, scale_factor=2, out_hidden_size=32,
                      deepstack_visual_indexes=[0, 1], use_fine_route=False),
        cases=[
            chat(("u", [image(0), text("a"), image(1), image(2), image(3)]),
                 pictures=[(61, 90, 60), (62, 60, 90), (63, 38, 22), (64, 90, 30)],
                 note="six tiles; upright; large enough; too wide")]),
    "minicpmv4_6_f32": dict(
        kind="minicpm", family="minicpmv4_6", seed=9100, top=dict(insert_layer_id=0),
        images=dict(scale_resolution=32, max_slice_nums=6),
        text=text_cfg(model_type="qwen3_5_text", num_key_value_heads=1, head_dim=16, hidden_size=32,
                      layer_types=["linear_attention", "full_attention", "linear_attention"],
                      linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=16,
                      linear_value_head_dim=16, tie_word_embeddings=False,
                      rope_parameters=rope(1e4) | dict(partial_rotary_factor=0.5, mrope_section=[2, 1, 1])),
        vision=siglip(image_size=20, patch_size=4, num_hidden_layers=3),
        cases=[
            chat(("u", [image(0), text("What is it?")]), pictures=[(71, 61, 40)], note="slices"),
            chat(("u", [text("One"), image(0), text("two"), image(1)]), ("a", "Yes."),
                 ("u", [image(2), text("and?")]), pictures=[(72, 20, 20), (73, 4, 60), (74, 2, 2)],
                 note="three images in two turns, numbered")]),
    "minicpmv4_6_odd_f32": dict(
        kind="minicpm", family="minicpmv4_6", seed=9200, top=dict(insert_layer_id=1),
        images=dict(scale_resolution=20, max_slice_nums=9, resample=2, image_std=[0.3, 0.4, 0.5]),
        text=text_cfg(model_type="qwen3_5_text", vocab_size=323, num_attention_heads=3, num_key_value_heads=1,
                      head_dim=16, hidden_size=48, num_hidden_layers=2,
                      layer_types=["linear_attention", "full_attention"], linear_num_key_heads=1,
                      linear_num_value_heads=1, linear_key_head_dim=16, linear_value_head_dim=16,
                      rope_parameters=rope(1e4) | dict(partial_rotary_factor=0.5, mrope_section=[2, 1, 1])),
        vision=siglip(
            image_size=14, patch_size=2, num_hidden_layers=2, layer_norm_eps=1e-3, intermediate_size=20),
        cases=[
            chat(("u", [image(0), text("Well?")]), pictures=[(75, 33, 70)],
                 note="merged after the last layer")]),
    "minicpmv4_6_4x_f32": dict(
        kind="minicpm_4x", family="minicpmv4_6", seed=9300, top=dict(insert_layer_id=0, downsample_mode="4x"),
        images=dict(scale_resolution=24, max_slice_nums=4, downsample_mode="4x"),
        text=text_cfg(model_type="qwen3_5_text", num_key_value_heads=1, head_dim=16, num_hidden_layers=2,
                      layer_types=["linear_attention", "full_attention"], linear_num_key_heads=1,
                      linear_num_value_heads=1, linear_key_head_dim=16, linear_value_head_dim=16,
                      rope_parameters=rope(1e4) | dict(partial_rotary_factor=0.5, mrope_section=[2, 1, 1])),
        vision=siglip(image_size=20, patch_size=4),
        cases=[
            chat(("u", [image(0), text("Well?")]), pictures=[(76, 33, 50)],
                 note="the tower makes no rows of four")])}
