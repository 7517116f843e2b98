#!/usr/bin/env python3
"""Makes tests/golden/paligemma/: tiny random PaliGemma 1 (Gemma 1) and 2 (Gemma 2) checkpoints through
transformers' own classes, and what transformers answers on them.

    make_paligemma.py [--out DIR] [VARIANT ...]        all variants when none is named

Each variant is a checkpoint folder in the layout of a release, plus golden.safetensors and golden.json
(format: README.md here). There is no chat template: `rendered` is the string that the processor builds,
before its picture tokens are expanded (one <image> a picture, <bos>, the text, a newline).

What transformers 5.23 does, where other descriptions of the family say otherwise (checked by this script):
* sliding layers: (j <= i and i - j < W) or (i and j in the prefix); the window does not cut the prefix;
* the whole prompt is the prefix only if token_type_ids (0 there, 1 behind it) are given, as the processor
  does; without them all is causal. So a text-only prompt, which the processor refuses, is run with token
  types as well;
* the final cap of PaliGemma 2 is applied;
* projected picture rows are put in as they are, text rows are scaled by sqrt(hidden_size);
* rope positions begin with 1;
* the processor adds no token type for a second sentence, no bos of the tokenizer, no strip: text that ends
  in a newline ends in two of them. A server may refuse or trim that; no case has it;
* `layer_types` is derived when it is absent: even layers slide;
* `use_bidirectional_attention` is written as true into text_config; a release does not have the key;
* the ids of 1024 <loc> and 128 <seg> tokens that the tokenizer lacks are appended behind its vocabulary,
  beyond the embedding's rows. The tiny vocabularies have the first few; no prompt has others."""

import json
import os
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from transformers import (
    AutoTokenizer,
    Gemma2Config,
    GemmaConfig,
    PaliGemmaConfig,  # noqa: E402
    PaliGemmaForConditionalGeneration,
    PaliGemmaProcessor,
    SiglipImageProcessor,
    SiglipVisionConfig,
)

import common  # noqa: E402
import golden_parts as parts  # noqa: E402
from common import picture  # noqa: E402
from make_qwen_checks import changed, hooked  # noqa: E402

S, F = "sliding_attention", "full_attention"
HEAD = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<unused0>", "<start_of_turn>", "<end_of_turn>"]
LOCS, SEGS = [f"<loc{i:04}>" for i in range(12)], [f"<seg{i:03}>" for i in range(6)]
VOCAB = 372  # the tokenizer's; <image> is the last id
IMAGE = "<image>"

# -------------------------------------------------------------------------------------------------- variants

LONG = "The ferry left the harbour a little after six, when the fog was still lying on the water."


def ask(text, *pictures, note=""):
    return {"text": text, "pictures": list(pictures), "note": note}


def gemma1(**over):
    return (
        dict(vocab_size=VOCAB, hidden_size=36, intermediate_size=44, num_hidden_layers=2,
             num_attention_heads=2, num_key_value_heads=1, head_dim=16, max_position_embeddings=2048)
        | over)


def gemma2(**over):
    cfg = (
        dict(vocab_size=VOCAB, hidden_size=36, intermediate_size=40, num_attention_heads=4,
             num_key_value_heads=2, head_dim=12, query_pre_attn_scalar=9, sliding_window=11,
             layer_types=[S, F, S], attn_logit_softcapping=1.5, final_logit_softcapping=9.0,
             max_position_embeddings=2048)
        | over)
    if cfg["layer_types"]:
        cfg["num_hidden_layers"] = len(cfg["layer_types"])
    return cfg


def vision(**over):
    return (
        dict(hidden_size=32, intermediate_size=36, num_hidden_layers=1, num_attention_heads=2, image_size=24,
             patch_size=6, vision_use_head=False)
        | over)


GENTLE = dict(head_gain=1.7, qk_gain=0.8, post_gain=0.4)

VARIANTS = {
    "pg1_f32": dict(
        seed=100, text=gemma1(), vision=vision(num_hidden_layers=2), locs="vocabulary",
        cases=[
            ask("detect <loc0003><loc0011> gull ; <seg005>cat", (1, 37, 53),
                note="<loc> and <seg> tokens that no added_tokens entry has; 16 soft tokens"),
            ask("", (2, 61, 24), note="no text: bos and a newline"),
            ask(
                "Which one is larger?", (3, 17, 41), (4, 24, 24), note="two pictures, one of the tower's size"
            ),
            ask(LONG, note="text only, all of it prefix")]),
    "pg1_odd_f32": dict(
        seed=200, rewrite="layout_a",
        text=gemma1(hidden_size=33, num_attention_heads=3, head_dim=22, vocab_size=VOCAB - 1,
                    num_hidden_layers=3, rms_norm_eps=1e-5),
        vision=vision(hidden_size=40, num_attention_heads=2, image_size=21, patch_size=7),
        cases=[
            ask(
                "caption en\nwhat <loc0000> is", (5, 43, 29),
                note="3 heads of 22, one KV head, hidden 33; 9 soft tokens; vision head size 20; "
                "embedding has "
                "no row for <image>; a newline inside the text"),
            ask("<seg000>ocr  ü", (6, 20, 90), (7, 75, 31), note="two pictures, byte fallback")]),
    "pg1_untied_f32": dict(
        seed=300,
        text=gemma1(hidden_size=24, tie_word_embeddings=False, attention_bias=True,
                    rope_parameters={"rope_type": "default", "rope_theta": 500.0}),
        vision=vision(), rewrite="layout_b",
        cases=[ask("answer en who wrote it down?", (9, 44, 44), note="lm_head of its own, biases, theta 500"),
               ask(LONG[:30], (10, 90, 19), (10, 90, 19), note="the same picture twice")]),
    "pg1_released_keys_f32": dict(
        seed=400, rewrite="released",
        text=dict(vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
                  num_attention_heads=2, num_key_value_heads=1),
        vision=dict(hidden_size=32, intermediate_size=36, num_hidden_layers=1, num_attention_heads=2,
                    image_size=28, patch_size=14, vision_use_head=False),
        cases=[
            ask("describe en", (11, 81, 47),
                note="head size 256, theta, eps, activation by absence; 4 soft tokens"),
            ask("detect <loc0001>", (12, 30, 30), (13, 31, 64))]),
    "pg2_f32": dict(
        seed=500, text=gemma2(), vision=vision(num_hidden_layers=2), locs="added", gains=dict(head_gain=3.6),
        cases=[
            ask("What colour is the coat?", (14, 52, 39),
                note="prefix longer than the window of 11; caps 1.5 and 9; layers S F S"),
            ask("", (15, 24, 24)),
            ask("<loc0002><loc0004> same <seg001>", (16, 28, 57), (17, 61, 24), note="two pictures"),
            ask(LONG, note="text only, longer than the window, all of it prefix")]),
    "pg2_odd_f32": dict(
        seed=600, rewrite="layout_b",
        text=gemma2(hidden_size=42, num_attention_heads=6, num_key_value_heads=1, head_dim=10,
                    query_pre_attn_scalar=7, sliding_window=5, layer_types=[F, S, S], vocab_size=VOCAB - 1,
                    rms_norm_eps=1e-5, attn_logit_softcapping=None),
        gains=dict(head_gain=3.6),
        vision=vision(hidden_size=40, num_attention_heads=2, image_size=21, patch_size=7),
        cases=[
            ask(
                "segment <seg003> fog", (18, 33, 71),
                note="6 heads of 10, one KV head, window 5 smaller than the 9 soft tokens, layer 0 full, "
                "no score "
                "cap; the embedding has no row for <image>"),
            ask("One\ntwo <loc0009>", (19, 19, 25), (20, 25, 19))]),
    "pg2_untied_f32": dict(
        seed=700,
        text=gemma2(hidden_size=32, head_dim=24, num_attention_heads=2, num_key_value_heads=2,
                    query_pre_attn_scalar=24, tie_word_embeddings=False, final_logit_softcapping=None,
                    sliding_window=40, layer_types=[S, F]),
        vision=vision(),
        cases=[ask("caption es", (21, 12, 48), note="lm_head of its own, no final cap, window 40"),
               ask(LONG, (22, 70, 30), note="prompt longer than the window")]),
    "pg2_missing_keys_f32": dict(
        seed=800, rewrite="released",
        text=gemma2(hidden_size=8, intermediate_size=24, num_attention_heads=4, num_key_value_heads=4,
                    head_dim=256, query_pre_attn_scalar=256, sliding_window=6, layer_types=None,
                    num_hidden_layers=2, attn_logit_softcapping=50.0, final_logit_softcapping=30.0),
        drop=["head_dim", "num_key_value_heads", "query_pre_attn_scalar", "layer_types",
              "attn_logit_softcapping", "final_logit_softcapping", "hidden_activation", "rms_norm_eps",
              "max_position_embeddings", "attention_bias", "rope_parameters", "bos_token_id", "eos_token_id",
              "pad_token_id"],
        gains=dict(qk=1.3, head_gain=2.0), caps=1e-4,
        vision=dict(hidden_size=32, intermediate_size=36, num_hidden_layers=1, num_attention_heads=2,
                    image_size=28, patch_size=14, vision_use_head=False),
        cases=[
            ask(
                "ocr", (23, 50, 40),
                note="4 KV heads, head size 256, scale, caps 50 and 30, S F: all by absence; "
                "hidden_size 2048 at the top level is to be ignored"),
            ask("question en <loc0005>", (24, 16, 28), (25, 64, 20))]),
    "pg1_bf16": dict(
        seed=900, dtype="bfloat16", distinct=5, margin=0.02, gains=GENTLE, text=gemma1(hidden_size=40),
        vision=vision(),
        cases=[ask("What is this?", (26, 52, 39), note="sqrt(40) is not exact in bf16"),
               ask("Same?", (27, 28, 57), (28, 44, 44))]),
    "pg2_bf16": dict(
        seed=1000, dtype="bfloat16", distinct=5, margin=0.02, gains=GENTLE, vision=vision(),
        text=gemma2(
            hidden_size=40, attn_logit_softcapping=4.0, final_logit_softcapping=12.0, layer_types=[S, F]),
        cases=[ask("What is this?", (29, 52, 39)), ask("Same?", (30, 28, 57), (31, 44, 44))])}

# ----------------------------------------------------------------------------------------------- checkpoints


class Prefix(parts.Prompt):
    """Token types are 0 in the prefix and 1 behind it."""

    causal = False

    def inputs(self, ids, dtype):
        out = super().inputs(ids, dtype)
        if not self.causal:
            out["token_type_ids"] = torch.tensor([[int(i >= len(self.ids)) for i in range(len(ids))]])
        if self.pixels is not None:
            out["pixel_values"] = self.pixels.to(dtype)
        return out


@torch.no_grad()
def fill(model, seed, soft_id, qk=1.0, **gains):
    common.fill_gemma3(model, seed, soft_id=soft_id, **gains)
    for name, p in model.named_parameters():
        if "language_model" in name and ("q_proj" in name or "k_proj" in name):
            p.mul_(qk)


def tokenizer_data(v):
    plain = {t: v.get("locs") == "added" for t in LOCS + SEGS}
    return parts.tokenizer_json(HEAD, LOCS + SEGS + [IMAGE], plain, VOCAB, chars=48)


def build_checkpoint(v, seed, folder):
    """Writes a checkpoint through save_pretrained, then rewrites what a release spells differently."""
    data = tokenizer_data(v)
    ids = data["model"]["vocab"]
    settings = {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "add_eos_token": False,
                "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>",
                "mask_token": "<mask>", "clean_up_tokenization_spaces": False,
                "spaces_between_special_tokens": False, "model_max_length": 4096,
                "processor_class": "PaliGemmaProcessor"}
    with tempfile.TemporaryDirectory() as tmp:
        parts.write_tokenizer(Path(tmp), data, settings)
        tokenizer = AutoTokenizer.from_pretrained(tmp)
    tied = v["text"].get("tie_word_embeddings", True)
    make_text = Gemma2Config if "sliding_window" in v["text"] else GemmaConfig
    config = PaliGemmaConfig(text_config=make_text(**v["text"]),
                             vision_config=SiglipVisionConfig(**v["vision"]), image_token_index=ids[IMAGE],
                             projection_dim=v["text"]["hidden_size"], tie_word_embeddings=tied,
                             bos_token_id=2, eos_token_id=1, pad_token_id=0)
    model = PaliGemmaForConditionalGeneration(config).eval()
    fill(model, seed, ids[IMAGE], **v.get("gains", {}))
    model.generation_config.update(bos_token_id=2, eos_token_id=1, pad_token_id=0)
    model.to(getattr(torch, v.get("dtype", "float32"))).save_pretrained(folder)
    size, seq = v["vision"]["image_size"], (v["vision"]["image_size"] // v["vision"]["patch_size"]) ** 2
    images = SiglipImageProcessor(size={"height": size, "width": size})
    images.image_seq_length = seq
    PaliGemmaProcessor(images, tokenizer).save_pretrained(folder)
    for f in folder.glob("*token*.json"):
        f.unlink()
    parts.write_tokenizer(folder, data, settings)
    weights = folder / "model.safetensors"
    if v.get("rewrite") == "released":
        spell_as_released(folder, v)
    if v.get("rewrite") in ("released", "layout_a"):
        parts.rewrite(weights, lambda all: {released_name(k): t for k, t in all.items()})
    if v.get("rewrite") == "layout_b":
        parts.rewrite(weights, lambda all: {nested_name(k): t for k, t in all.items()})
    return parts.state_of(model)


def plain_name(name):
    """model.language_model.X, model.vision_tower.X, ... of this version's classes, whatever it saves."""
    name = name.removeprefix("model.")
    if name.startswith("language_model.model."):
        name = "language_model." + name.removeprefix("language_model.model.")
    return name.removeprefix("language_model.") if name == "language_model.lm_head.weight" else name


def nested_name(name):
    name = plain_name(name)
    name = (
        name.replace("vision_tower.", "vision_tower.vision_model.") if ".vision_model." not in name else name)
    return name if name.startswith("lm_head") else "model." + name


def released_name(name):
    name = nested_name(name).removeprefix("model.").replace("language_model.", "language_model.model.")
    return "language_model." + name if name.startswith("lm_head") else name


def spell_as_released(folder, v):
    """config.json as the releases have it: old keys, and no key where the class default applies."""
    size, seq = v["vision"]["image_size"], (v["vision"]["image_size"] // v["vision"]["patch_size"]) ** 2

    def config(c):
        text = dict(
            v["text"], model_type=c["text_config"]["model_type"], num_image_tokens=seq, torch_dtype="float32")
        for key in v.get("drop", []):
            text.pop(key, None)
        text = {k: a for k, a in text.items() if a is not None}
        return {
            "_vocab_size": 257152, "architectures": c["architectures"], "bos_token_id": 2, "eos_token_id": 1,
            "hidden_size": 2048, "image_token_index": c["image_token_index"], "model_type": "paligemma",
            "pad_token_id": 0, "projection_dim": v["text"]["hidden_size"], "text_config": text,
            "torch_dtype": "float32", "transformers_version": "4.41.0.dev0",
            "vision_config": dict(v["vision"], model_type="siglip_vision_model", num_image_tokens=seq,
                                  projection_dim=v["text"]["hidden_size"], projector_hidden_act="gelu_fast")}

    parts.edit_json(folder / "config.json", config)
    (folder / "processor_config.json").unlink()
    (folder / "preprocessor_config.json").write_text(
        json.dumps(
            {"do_convert_rgb": None, "do_normalize": True, "do_rescale": True, "do_resize": True,
             "image_mean": [0.5] * 3, "image_processor_type": "SiglipImageProcessor", "image_seq_length": seq,
             "image_std": [0.5] * 3, "processor_class": "PaliGemmaProcessor", "resample": 3,
             "rescale_factor": 0.00392156862745098, "size": {"height": size, "width": size}},
            indent=2)
        + "\n")


# ----------------------------------------------------------------------------------------------------- cases


def prepare(case, processor, plain, seq):
    """The processor's string, the ids and the pixels, and the rule of the prompt written down once more."""
    rgb = [picture(*p) for p in case["pictures"]]
    rendered = IMAGE * len(rgb) + "<bos>" + case["text"] + "\n"
    if rgb:
        out = processor(images=[Image.fromarray(a) for a in rgb], text=IMAGE * len(rgb) + case["text"],
                        return_tensors="pt")
        ids, pixels = out["input_ids"][0].tolist(), out["pixel_values"]
        assert out["token_type_ids"].eq(0).all() and out["attention_mask"].eq(1).all()
    else:
        ids, pixels = processor.tokenizer(rendered, add_special_tokens=False)["input_ids"], None
    image, end = plain.token_to_id(IMAGE), plain.token_to_id("\n")
    registered = Tokenizer.from_str(plain.to_str())
    registered.add_tokens(LOCS + SEGS)
    text = registered.encode(case["text"] + "\n", add_special_tokens=False).ids
    assert ids == [image] * (seq * len(rgb)) + [2] + text and text[-1] == end
    p = Prefix(ids, [int(i == image) for i in ids], pixels=pixels, cuts=[k * seq for k in range(len(rgb))])
    return rgb, rendered, p


def table(p, total, window):
    """Which keys a query sees: (causal and inside the window) or both in the prefix."""
    i, prefix = np.arange(total), len(p.ids)
    both = (i[:, None] < prefix) & (i[None, :] < prefix)
    causal = i[None, :] <= i[:, None]
    return causal | both, (causal & (i[:, None] - i[None, :] < (window or total))) | both


def check(moved, v):
    model, p, ids = moved.model, moved.p, moved.ids
    c = model.config.text_config
    margin, rule = v.get("margin", 0.06), v.get("rule", 0.0 if v.get("dtype") else 0.01)
    prefix, window = len(p.ids), getattr(c, "sliding_window", None)
    full, sliding = table(p, len(ids), window)
    kinds = getattr(c, "layer_types", None) or [F] * c.num_hidden_layers
    seen = parts.masks_seen(model, p, ids, "Gemma2Attention" if window else "GemmaAttention")
    assert len(seen) == len(kinds)
    for k, kind in enumerate(kinds):
        assert np.array_equal(
            seen[k], sliding if kind == S else full), f"layer {k}: another mask than expected"
    last = slice(prefix - 1, prefix)
    at = p.ids.index(2) + 1
    swap = [40 if i != 40 else 41 for i in ids[at : at + 1]]
    if at < prefix - 1:
        moved("first word", margin / 2, last, p.but(ids=p.ids[:at] + swap + p.ids[at + 1 :]),
              ids[:at] + swap + ids[at + 1 :])
    for k in range(len(p.pixels) if p.pixels is not None else 0):
        other = p.pixels.clone()
        other[k] = -other[k].flip(1, 2)
        moved(f"picture {k}", margin, last, p.but(pixels=other))
    if p.pixels is not None and len(p.pixels) > 1 and not torch.equal(p.pixels[0], p.pixels[1]):
        moved("order of pictures", margin, last, p.but(pixels=p.pixels.flip(0)))
    moved("causal prefix", rule, slice(None), p.but(causal=True))
    if S in kinds:
        cut = torch.from_numpy(full & (np.arange(len(ids))[:, None] - np.arange(len(ids))[None, :] < window))
        low = torch.finfo(next(model.parameters()).dtype).min

        def window_in_prefix(m, args, kwargs):
            if m.layer_type == S:
                kwargs["attention_mask"] = torch.where(cut, 0.0, low)[None, None]
            return args, kwargs

        hooks = [
            m.register_forward_pre_hook(window_in_prefix, with_kwargs=True) for m in model.modules()
            if type(m).__name__ == "Gemma2Attention"]
        if not np.array_equal(cut.numpy(), sliding):
            moved("window inside the prefix", rule)
        for h in hooks:
            h.remove()
        if len(ids) > window:

            def no_window(m, args, kwargs):
                kwargs["attention_mask"] = torch.where(torch.from_numpy(full), 0.0, low)[None, None]
                return args, kwargs

            hooks = [
                m.register_forward_pre_hook(no_window, with_kwargs=True) for m in model.modules()
                if type(m).__name__ == "Gemma2Attention"]
            moved("no window", rule / 2, slice(prefix, None))
            for h in hooks:
                h.remove()
    if window:
        caps = v.get("caps", rule)
        if c.attn_logit_softcapping:
            attention = [m for m in model.modules() if type(m).__name__ == "Gemma2Attention"]
            cap = c.attn_logit_softcapping
            for m in attention:
                m.attn_logit_softcapping = None
            moved("no attention cap", caps)
            for m in attention:
                m.attn_logit_softcapping = cap
        if c.final_logit_softcapping:
            with changed(c, final_logit_softcapping=None):
                moved("no final cap", caps)
    if p.pixels is not None:
        scale = model.config.text_config.hidden_size**0.5
        with hooked([model.model.multi_modal_projector], lambda _m, _a, out: out * scale):
            moved("picture rows scaled", rule)


def attempt(name, v, seed, folder):
    filled = build_checkpoint(v, seed, folder)
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
    processor = PaliGemmaProcessor.from_pretrained(folder)
    model = parts.load(PaliGemmaForConditionalGeneration, folder, torch.float32)
    parts.same_model(model, filled)
    twin = None
    if v.get("dtype"):
        twin = parts.load(PaliGemmaForConditionalGeneration, folder, torch.bfloat16)
        # The released code rounds sqrt(hidden_size) to the weights' type; so does the float32 run of bf16
        # weights.
        model.model.language_model.embed_tokens.embed_scale.copy_(
            model.model.language_model.embed_tokens.embed_scale.to(torch.bfloat16))
    seq = (v["vision"]["image_size"] // v["vision"]["patch_size"]) ** 2
    tensors, cases = {}, []
    for n, case in enumerate(v["cases"]):
        rgb, rendered, p = prepare(case, processor, plain, seq)
        avoid = {plain.token_to_id(IMAGE)} | set(range(VOCAB, v["text"]["vocab_size"]))
        new, measured = parts.run_case(
            f"case{n}.", p, v, model, twin, tensors, lambda moved: check(moved, v), avoid, 1)
        for k, a in enumerate(rgb):
            tensors[f"case{n}.image{k}.rgb"] = a
            tensors[f"case{n}.image{k}.pixel_values"] = p.pixels[k].numpy()
        head = {"id": n, "kind": "chat" if rgb else "raw", "note": case["note"], "images": len(rgb),
                "prompt_tokens": len(p.ids), "image_spans": [s[:2] for s in p.spans()]}
        content = [{"type": "image", "index": k} for k in range(len(rgb))]
        content += [{"type": "text", "text": case["text"]}] if case["text"] else []
        body = (
            {"messages": [{"role": "user", "content": content}]} if rgb else {"prompt": case["text"] + "\n"})
        cases.append(
            head | body
            | {"rendered": rendered if rgb else case["text"] + "\n",
               "greedy_text": plain.decode(new, skip_special_tokens=False), "measured": measured})
    about = {"variant": name, "family": "paligemma", "weights": v.get("dtype", "float32"), "seed": seed,
             "soft_tokens": seq, "vocab": v["text"]["vocab_size"],
             "sliding_window": v["text"].get("sliding_window"),
             "layer_types": getattr(model.config.text_config, "layer_types", None)}
    parts.write_golden(folder, about, cases, tensors)
    return cases


if __name__ == "__main__":
    parts.main(__doc__, "paligemma", VARIANTS, attempt)
