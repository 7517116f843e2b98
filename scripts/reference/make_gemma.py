#!/usr/bin/env python3
"""Makes tests/golden/gemma/: tiny random Gemma 1 and 2 text checkpoints through transformers' classes, and
what transformers answers on them.

    make_gemma.py [--out DIR] [VARIANT ...]        all variants when none is named

Format: README.md here, as of tests/golden/paligemma. Every case is of kind `raw`: `prompt` behind a bos.
Positions begin with 0 here, and the prompt is causal, unlike where the same decoders take pictures."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np  # noqa: E402
import torch  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from transformers import AutoTokenizer, Gemma2Config, Gemma2ForCausalLM  # noqa: E402
from transformers import GemmaConfig, GemmaForCausalLM  # noqa: E402

import golden_parts as parts  # noqa: E402

from make_paligemma import GENTLE, HEAD, LONG, VOCAB, F, S, fill, gemma1, gemma2  # noqa: E402
from make_qwen_checks import changed  # noqa: E402

PROMPTS = [LONG, "Why?"]

VARIANTS = {
    "gemma_f32": dict(seed=1100, text=gemma1(num_hidden_layers=3)),
    "gemma_released_f32": dict(
        seed=1200, text=gemma1(hidden_size=20, num_attention_heads=2, num_key_value_heads=2, head_dim=18),
        rename={"hidden_act": "gelu", "hidden_activation": None, "rope_theta": 10000.0, "rope_scaling": None},
        drop=["rope_parameters", "tie_word_embeddings", "use_bidirectional_attention"]),
    "gemma2_f32": dict(seed=1300, text=gemma2(), gains=dict(head_gain=3.6)),
    "gemma2_odd_f32": dict(
        seed=1400,
        text=gemma2(hidden_size=33, num_attention_heads=3, num_key_value_heads=1, head_dim=22,
                    query_pre_attn_scalar=11, sliding_window=5, layer_types=[F, S, S],
                    tie_word_embeddings=False, attention_bias=True, attn_logit_softcapping=None,
                    final_logit_softcapping=None)),
    "gemma2_bf16": dict(
        seed=1500, dtype="bfloat16", distinct=5, gains=GENTLE,
        text=gemma2(
            hidden_size=40, attn_logit_softcapping=4.0, final_logit_softcapping=12.0, layer_types=[S, F]))}


def build_checkpoint(v, seed, folder):
    data = parts.tokenizer_json(HEAD, [], {}, VOCAB, chars=48)
    settings = {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "add_eos_token": False,
                "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>",
                "clean_up_tokenization_spaces": False, "model_max_length": 4096}
    second = "sliding_window" in v["text"]
    config = (Gemma2Config if second else GemmaConfig)(**v["text"])
    model = (Gemma2ForCausalLM if second else GemmaForCausalLM)(config).eval()
    fill(model, seed, None, **v.get("gains", {}))
    model.generation_config.update(bos_token_id=2, eos_token_id=1, pad_token_id=0)
    model.to(getattr(torch, v.get("dtype", "float32"))).save_pretrained(folder)
    parts.write_tokenizer(folder, data, settings)

    def released(c):
        for key in v["drop"]:
            c.pop(key, None)
        return c | v["rename"]

    if "rename" in v:
        parts.edit_json(folder / "config.json", released)
    return model, parts.state_of(model)


def check(moved, v):
    c, model, rule = moved.model.config, moved.model, 0.0 if v.get("dtype") else 0.01
    window, n = getattr(c, "sliding_window", None), len(moved.ids)
    seen = parts.masks_seen(model, moved.p, moved.ids, "Gemma2Attention" if window else "GemmaAttention")
    i = np.arange(n)
    causal = i[None, :] <= i[:, None]
    near = causal & (i[:, None] - i[None, :] < (window or n))
    for k, kind in enumerate(getattr(c, "layer_types", None) or [F] * c.num_hidden_layers):
        assert np.array_equal(seen[k], near if kind == S else causal), f"layer {k}: another mask"
    at = len(moved.p.ids) - 1
    other = [40 if t != 40 else 41 for t in moved.ids[1:2]]
    moved("first word", rule, slice(at, None), tokens=moved.ids[:1] + other + moved.ids[2:])
    if window and c.final_logit_softcapping:
        with changed(c, final_logit_softcapping=None):
            moved("no final cap", rule)
    if window and c.attn_logit_softcapping:
        attention = [m for m in model.modules() if type(m).__name__ == "Gemma2Attention"]
        for m in attention:
            m.attn_logit_softcapping = None
        moved("no attention cap", rule)
        for m in attention:
            m.attn_logit_softcapping = c.attn_logit_softcapping


def attempt(name, v, seed, folder):
    made, filled = build_checkpoint(v, seed, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = parts.load(type(made), folder, torch.float32)
    parts.same_model(model, filled)
    twin = None
    if v.get("dtype"):
        twin = parts.load(type(made), folder, torch.bfloat16)
        scale = model.model.embed_tokens.embed_scale
        scale.copy_(scale.to(torch.bfloat16))
    tensors, cases = {}, []
    for n, text in enumerate(PROMPTS):
        ids = [2] + plain.encode(text, add_special_tokens=False).ids
        assert tokenizer(text)["input_ids"] == ids
        avoid = set(range(VOCAB, v["text"]["vocab_size"]))
        p = parts.Prompt(ids)
        new, measured = parts.run_case(
            f"case{n}.", p, v, model, twin, tensors, lambda moved: check(moved, v), avoid)
        cases.append(
            {"id": n, "kind": "raw", "images": 0, "prompt_tokens": len(ids), "image_spans": [],
             "prompt": text, "rendered": text, "greedy_text": plain.decode(new, skip_special_tokens=False),
             "measured": measured})
    about = {"variant": name, "family": "gemma", "weights": v.get("dtype", "float32"), "seed": seed,
             "vocab": v["text"]["vocab_size"], "sliding_window": v["text"].get("sliding_window"),
             "layer_types": getattr(model.config, "layer_types", None)}
    parts.write_golden(folder, about, cases, tensors)
    return cases


if __name__ == "__main__":
    parts.main(__doc__, "gemma", VARIANTS, attempt)
