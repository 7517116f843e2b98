#!/usr/bin/env python3
"""Writes tests/golden/llama/: tiny random checkpoints of Llama, Mistral, SmolLM3, Granite, LFM2, OLMo 2 and
3, EXAONE 4 and ERNIE 4.5, with make_qwen.py.

usage: make_llama.py [--out DIR] [VARIANT ...]

Each variant has one of the tokenizers that such models are released with: see TOKENIZERS."""
import functools
import json

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

import make_qwen
import make_qwen_checks
import make_qwen_parts as parts
from common import HERE
from make_tokenizer import LLAMA3, TEKKEN
from transformers.models.granitemoehybrid import modeling_granitemoehybrid
from make_qwen_variants import HELLO, LONG, VOCAB, chat, raw, text_cfg

MIXED = "  Straße NASA's iPhone ΑΒγ Ǆ ʰX 42nd 2024-11 (a/b//\r\n/c) don't I'LL\n\n\t日本ABC e\u0301E\u0301 x"


def byte_level(split, **model):
    bpe = Tokenizer(models.BPE(fuse_unk=False, byte_fallback=False, **model))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(split)
    bpe.decoder = decoders.ByteLevel()
    return bpe, dict(initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def regex(pattern):
    return byte_level([pre_tokenizers.Split(Regex(pattern), "isolated", False),
                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)], ignore_merges=True)


def sentencepiece(metaspace):
    bpe = Tokenizer(models.BPE(fuse_unk=True, byte_fallback=True, unk_token="<unk>"))
    if metaspace:
        bpe.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        bpe.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    bpe.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                     decoders.Strip(" ", 1, 0)])
    return bpe, dict(initial_alphabet=[])


TOKENIZERS = {
    "digits3": lambda: regex(LLAMA3),  # Llama 3, SmolLM3
    "cased": lambda: regex(TEKKEN),  # Mistral since Nemo
    "numbers": lambda: byte_level([pre_tokenizers.Digits(True),  # SmolLM2, Granite
                                   pre_tokenizers.ByteLevel(add_prefix_space=False)]),
    "prepend": lambda: sentencepiece(False),  # Llama 2, TinyLlama, Mistral 0.1
    "metaspace": lambda: sentencepiece(True),  # Mistral 0.3
}


def train_spaced(bpe):
    """The trainer wants words, so the vocabulary is learnt with spaces in front of them."""
    own = bpe.pre_tokenizer, bpe.normalizer
    bpe.normalizer = None
    bpe.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    first = ["<unk>"] + [f"<0x{i:02X}>" for i in range(256)]
    free = VOCAB - len(parts.SPECIAL) - len(parts.MARKS)
    text = "".join(c for c in (HERE / "mixed.txt").read_text(encoding="utf-8") if c.isascii())
    trainer = trainers.BpeTrainer(vocab_size=free, show_progress=False, special_tokens=first,
                                  limit_alphabet=free - len(first) - 20)
    bpe.train_from_iterator([text], trainer)
    data = json.loads(bpe.to_str())
    data["added_tokens"] = []
    bpe = Tokenizer.from_str(json.dumps(data))
    bpe.pre_tokenizer, bpe.normalizer = own
    return bpe


def tokenizer_text(kind):
    bpe, options = TOKENIZERS[kind]()
    size = VOCAB - len(parts.SPECIAL) - len(parts.MARKS)
    if kind in ("prepend", "metaspace"):
        bpe = train_spaced(bpe)
    else:
        bpe.train_from_iterator([(HERE / "mixed.txt").read_text(encoding="utf-8")],
                                trainers.BpeTrainer(vocab_size=size, show_progress=False, **options))
    bpe.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in parts.SPECIAL])
    bpe.add_tokens([AddedToken(t, special=False, normalized=False) for t in parts.MARKS])
    begin = parts.SPECIAL[0]
    bpe.post_processor = processors.TemplateProcessing(single=begin + " $A", pair=f"{begin} $A {begin} $B",
                                                       special_tokens=[(begin, bpe.token_to_id(begin))])
    assert bpe.get_vocab_size() == VOCAB, bpe.get_vocab_size()
    return json.dumps(json.loads(bpe.to_str()), ensure_ascii=False, separators=(",", ":"))


TEMPLATE = """{{- bos_token }}
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n\\n' + message['content'] | trim + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n\\n' }}{%- endif %}"""


def rope(theta, kind="default", **more):
    return {"rope_theta": theta, "rope_type": kind} | more


def llama3(theta, factor, original):
    return rope(theta, "llama3", factor=factor, original_max_position_embeddings=original,
                low_freq_factor=1.0, high_freq_factor=4.0)


def cfg(**over):
    return text_cfg(rms_norm_eps=1e-5) | over


def kinds(letters):
    return [{"c": "conv", "f": "full_attention"}[k] for k in letters]


def granite4(c):
    """As released before transformers 5."""
    c |= {"layer_types": ["attention"] * len(c["layer_types"]), "rope_scaling": None,
          "rope_theta": c.pop("rope_parameters")["rope_theta"]}


CASES = [raw(LONG[:110], note="text"), raw(MIXED, note="what the split patterns differ in"), chat(HELLO)]
SHORT = [raw(MIXED, note="text")]
VARIANTS = {
    "llama3_f32": dict(
        family="llama", tokenizer="digits3", seed=3100, spelling="flat",
        text=cfg(num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                 rope_parameters=llama3(1e4, 8.0, 48)),
        note="llama3 scaling; heads of 16 beside a width of 32; tied"),
    "llama_odd_f32": dict(
        family="llama", tokenizer="prepend", seed=3200, drop=["num_key_value_heads", "head_dim"],
        text=cfg(hidden_size=48, num_key_value_heads=None, num_attention_heads=3, attention_bias=True,
                 vocab_size=VOCAB + 5, tie_word_embeddings=False, num_hidden_layers=2,
                 rope_parameters=rope(1e4, "linear", factor=2.0)),
        note="biases, as many KV heads as heads by absence, linear scaling, a head of its own"),
    "llama_gguf_f32": dict(
        family="llama", tokenizer="digits3", seed=3300,
        text=cfg(hidden_size=64, intermediate_size=96, num_attention_heads=2, num_key_value_heads=1,
                 num_hidden_layers=2, rope_parameters=llama3(5e5, 32.0, 8192)),
        note="rows of whole blocks; the released scaling"),
    "smollm2_bf16": dict(
        family="llama", tokenizer="numbers", seed=3400, spelling="flat", dtype="bfloat16", distinct=6,
        margin=0.03, gains=dict(head=1.6, qk=0.7, mix=0.3),
        text=cfg(num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
                 rope_parameters=rope(1e5))),
    "mistral_window_f32": dict(
        family="mistral", tokenizer="metaspace", seed=3500, spelling="flat", reach=24,
        text=cfg(num_attention_heads=4, num_key_value_heads=2, sliding_window=14, tie_word_embeddings=False,
                 rope_parameters=rope(1e4)),
        note="a window of 14 in every layer"),
    "mistral_f32": dict(
        family="mistral", tokenizer="cased", seed=3600,
        text=cfg(num_attention_heads=3, num_key_value_heads=1, head_dim=24, sliding_window=None,
                 num_hidden_layers=2, tie_word_embeddings=False, rope_parameters=rope(1e6)),
        note="heads of 24, no window"),
    "ministral3_f32": dict(
        family="ministral3", tokenizer="cased", seed=3650,
        text=cfg(num_attention_heads=3, num_key_value_heads=1, head_dim=16, num_hidden_layers=2,
                 pad_token_id=None, tie_word_embeddings=False,
                 rope_parameters=rope(1e4, "yarn", factor=4.0, original_max_position_embeddings=24,
                                      mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3)),
        note="queries grow at positions 24, 48, 72"),
    "ministral3_odd_f32": dict(
        family="ministral3", tokenizer="cased", seed=3680, reach=8, margin=0.04,
        text=cfg(num_key_value_heads=1, head_dim=24, num_hidden_layers=2, sliding_window=11,
                 pad_token_id=None,
                 rope_parameters=rope(1e4, "yarn", factor=2.0, original_max_position_embeddings=12,
                                      llama_4_scaling_beta=0.5)),
        note="with a window, and an attention factor by absence; tied"),
    "smollm3_f32": dict(
        family="smollm3", tokenizer="digits3", seed=3700, drop=["no_rope_layers", "layer_types"],
        text=cfg(num_hidden_layers=5, num_key_value_heads=1, pad_token_id=None,
                 rope_parameters=rope(5e3)),
        note="layer 3 of 5 has no RoPE, by absence"),
    "smollm3_odd_f32": dict(
        family="smollm3", tokenizer="digits3", seed=3800,
        text=cfg(num_attention_heads=4, num_key_value_heads=2, no_rope_layers=[0, 1, 0],
                 use_sliding_window=True, sliding_window=12, attention_bias=True,
                 tie_word_embeddings=False, pad_token_id=None,
                 rope_parameters=rope(1e4, "yarn", factor=4.0, original_max_position_embeddings=64)),
        note="layers 0 and 2 without RoPE and with a window; YaRN; biases"),
    "granite_f32": dict(
        family="granite", tokenizer="numbers", seed=3900,
        text=cfg(num_attention_heads=4, num_key_value_heads=2, embedding_multiplier=6.0,
                 attention_multiplier=0.2, residual_multiplier=0.22, logits_scaling=1.5,
                 rope_parameters=rope(1e4)),
        gains=dict(head=4.0, mix=8.0), note="four multipliers; tied"),
    "granite_odd_f32": dict(
        family="granite", tokenizer="numbers", seed=4000, drop=["attention_multiplier"],
        text=cfg(hidden_size=48, num_attention_heads=3, num_key_value_heads=1, attention_bias=True,
                 num_hidden_layers=2, embedding_multiplier=12.0, residual_multiplier=1.7, logits_scaling=0.5,
                 attention_multiplier=1.0, tie_word_embeddings=False, rms_norm_eps=1e-3,
                 rope_parameters=rope(1e4)),
        gains=dict(head=1.3, qk=0.6, mix=4.0), note="biases, eps 1e-3, attention multiplier 1 by absence"),
    "granite4_f32": dict(
        family="granitemoehybrid", tokenizer="digits3", seed=4509, files={"config.json": granite4},
        text=cfg(num_attention_heads=4, num_key_value_heads=2, embedding_multiplier=6.0,
                 attention_multiplier=0.2, residual_multiplier=0.22, logits_scaling=1.5, num_local_experts=0,
                 num_experts_per_tok=0, shared_intermediate_size=36, position_embedding_type="rope",
                 layer_types=["full_attention"] * 3, mamba_n_heads=4, rope_parameters=rope(1e4)),
        gains=dict(head=4.0, mix=8.0), note="the keys of granite-4.0-micro; tied"),
    "granite4_odd_f32": dict(
        family="granitemoehybrid", tokenizer="digits3", seed=4600,
        drop=["position_embedding_type", "attention_multiplier"],
        text=cfg(hidden_size=48, num_attention_heads=3, num_key_value_heads=1, attention_bias=True,
                 num_hidden_layers=2, embedding_multiplier=12.0, residual_multiplier=1.7, logits_scaling=0.5,
                 attention_multiplier=1.0, tie_word_embeddings=False, rms_norm_eps=1e-3, num_local_experts=0,
                 shared_intermediate_size=40, layer_types=["full_attention"] * 2, mamba_n_heads=4),
        gains=dict(head=1.3, qk=0.6, mix=4.0), note="no RoPE by absence; biases; an MLP of another width"),
    "lfm2_f32": dict(
        family="lfm2", tokenizer="digits3", seed=4100,
        text=cfg(num_hidden_layers=4, num_key_value_heads=1, layer_types=kinds("ccfc"),
                 block_auto_adjust_ff_dim=False, rope_parameters=rope(1e4)),
        note="three convolutions and a layer of attention"),
    "lfm2_odd_f32": dict(
        family="lfm2", tokenizer="digits3", seed=4200,
        text=cfg(hidden_size=48, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1,
                 conv_L_cache=5, layer_types=kinds("fcc"), block_ff_dim=60, block_multiple_of=12,
                 block_ffn_dim_multiplier=1.2, tie_embedding=False, norm_eps=1e-3, rope_parameters=rope(1e4)),
        note="a convolution of 5, an MLP of 48, a head of its own; a convolution last"),
    "lfm2_bf16": dict(
        family="lfm2", tokenizer="digits3", seed=4300, reach=4, dtype="bfloat16", distinct=6, margin=0.01,
        gains=dict(head=1.6, qk=0.7, mix=0.3), drop=["conv_L_cache", "norm_eps", "layer_types"],
        text=cfg(num_hidden_layers=2, num_key_value_heads=1, full_attn_idxs=[1],
                 block_auto_adjust_ff_dim=False, rope_parameters=rope(1e4))),
    "olmo2_f32": dict(
        family="olmo2", tokenizer="digits3", seed=4400, gains=dict(behind=0.12),
        text=cfg(num_attention_heads=4, num_key_value_heads=2, rope_parameters=rope(1e4)),
        note="norms over all heads of q and of k; norms behind attention and MLP alone; tied"),
    "olmo2_odd_f32": dict(
        family="olmo2", tokenizer="digits3", seed=4500, gains=dict(behind=0.12),
        drop=["num_key_value_heads", "rms_norm_eps"],
        text=cfg(hidden_size=48, num_attention_heads=3, num_key_value_heads=None, num_hidden_layers=2,
                 vocab_size=VOCAB + 5, tie_word_embeddings=False,
                 rope_parameters=rope(5e5)),
        note="three KV heads and eps by absence, a head of its own"),
    "olmo3_f32": dict(
        family="olmo3", tokenizer="digits3", seed=4600, gains=dict(behind=0.12), reach=24,
        text=cfg(num_attention_heads=4, num_key_value_heads=1, num_hidden_layers=3, sliding_window=14,
                 layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                 rope_parameters={"full_attention": rope(1e4, "yarn", factor=4.0,
                                                         original_max_position_embeddings=24),
                                  "sliding_attention": rope(3e3)}),
        note="a window of 14; YaRN in the full layer alone; bases of their own"),
    "olmo3_odd_f32": dict(
        family="olmo3", tokenizer="digits3", seed=4700, gains=dict(behind=0.12),
        reach=24, drop=["layer_types"],
        text=cfg(hidden_size=48, num_attention_heads=3, num_key_value_heads=3, num_hidden_layers=4,
                 sliding_window=9, tie_word_embeddings=False, rms_norm_eps=1e-3,
                 rope_parameters={"full_attention": rope(1e4), "sliding_attention": rope(1e4)}),
        note="a window of 9, the fourth layer full by absence; eps 1e-3; a head of its own"),
    "exaone4_f32": dict(
        family="exaone4", tokenizer="digits3", seed=4800, gains=dict(behind=0.12), reach=24,
        text=cfg(num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=3, sliding_window=14,
                 layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                 rope_parameters=llama3(1e4, 8.0, 48)),
        note="a norm per head; the layer without a window has no RoPE"),
    "exaone4_odd_f32": dict(
        family="exaone4", tokenizer="digits3", seed=4900, gains=dict(behind=0.12),
        text=cfg(hidden_size=48, num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=2,
                 sliding_window=None, tie_word_embeddings=False,
                 layer_types=["full_attention", "full_attention"], rope_parameters=rope(1e4)),
        note="no window: RoPE everywhere; a head of its own"),
    "ernie4_5_f32": dict(
        family="ernie4_5", tokenizer="prepend", seed=5000,
        text=cfg(num_attention_heads=4, num_key_value_heads=2, head_dim=16, rope_parameters=rope(1e4)),
        note="rotary in pairs; heads of 16 beside a width of 32; tied"),
    "ernie4_5_odd_f32": dict(
        family="ernie4_5", tokenizer="digits3", seed=5100, drop=["use_bias"],
        text=cfg(hidden_size=48, num_attention_heads=3, num_key_value_heads=1, head_dim=24,
                 num_hidden_layers=2, tie_word_embeddings=False, rope_parameters=rope(5e5)),
        note="heads of 24, a head of its own"),
    "llama_bias_f32": dict(
        family="llama", tokenizer="digits3", seed=5200, cases=SHORT,
        text=cfg(num_key_value_heads=1, num_hidden_layers=2, attention_bias=True, mlp_bias=True,
                 hidden_act="gelu_pytorch_tanh", rope_parameters=rope(1e4)),
        note="biases everywhere; GELU"),
    "ernie4_5_bias_f32": dict(
        family="ernie4_5", tokenizer="digits3", seed=5300, cases=SHORT,
        text=cfg(num_key_value_heads=1, head_dim=16, num_hidden_layers=2, use_bias=True,
                 rope_parameters=rope(1e4)), note="biases everywhere, also of rotated pairs"),
    "lfm2_bias_f32": dict(
        family="lfm2", tokenizer="digits3", seed=5403, cases=SHORT,
        text=cfg(num_hidden_layers=3, num_key_value_heads=1, layer_types=kinds("cfc"), conv_bias=True,
                 block_auto_adjust_ff_dim=False, rope_parameters=rope(1e4)),
        note="biases of a convolution and its products"),
}


def reacts(model, v, p, lp, logprobs, positions, inner=make_qwen.check_reacts):
    least, c, rotary = inner(model, v, p, lp, logprobs, positions), model.config, model.model.rotary_emb
    bounds = 0.0 if v.get("dtype") else 0.01

    def moved(what):
        delta = float((logprobs(model, p, p.ids)[-20:] - lp[:len(p.ids)][-20:]).abs().mean())
        make_qwen.need(delta > bounds, f"{what}: mean |change| is only {delta:.4f}")
        least[what] = round(delta, 3)

    if getattr(rotary, "rope_type", "") in ("llama3", "linear"):
        with make_qwen_checks.changed(rotary, inv_freq=rotary.compute_default_rope_parameters(c)[0]):
            moved("no scaling of frequencies")
    if c.model_type.startswith(("mistral", "ministral")) and c.sliding_window:
        for window in (None, c.sliding_window + 1):
            with make_qwen_checks.changed(c, sliding_window=window):
                moved(f"window {window}")
    for layer in model.model.layers:
        if not getattr(getattr(layer, "self_attn", None), "use_rope", True):
            with make_qwen_checks.changed(layer.self_attn, use_rope=True):
                moved(f"RoPE in layer {layer.self_attn.layer_idx}")
    if c.model_type == "ministral3":
        with make_qwen_checks.changed(c, rope_parameters=c.rope_parameters | {"llama_4_scaling_beta": 0.0}):
            moved("growing queries")
    if c.model_type == "lfm2":
        for layer in (m for m in model.model.layers if hasattr(m, "conv")):
            weight = layer.conv.conv.weight.detach().clone()
            last = torch.arange(weight.shape[-1]) == weight.shape[-1] - 1
            for what, other in (("convolution", weight * last), ("convolution's order", weight.flip(-1))):
                layer.conv.conv.weight.data.copy_(other)
                moved(what)
            layer.conv.conv.weight.data.copy_(weight)
    for name, w in model.named_parameters():
        if ("mlp" in name or "conv" in name) and name.endswith("bias"):
            kept = w.detach().clone()
            w.data.zero_()
            moved(name)
            w.data.copy_(kept)
    if c.model_type == "granitemoehybrid":
        other = None if rotary else modeling_granitemoehybrid.GraniteMoeHybridRotaryEmbedding(c)
        with make_qwen_checks.changed(model.model, rotary_emb=other):
            moved("the other kind of positions")
    if c.model_type.startswith("granite"):
        for layer in model.model.layers:
            with make_qwen_checks.changed(layer, residual_multiplier=1.0):
                moved("residual multiplier")
            with make_qwen_checks.changed(layer.self_attn, scaling=0.5):
                moved("attention multiplier")
        with make_qwen_checks.changed(model.model, embedding_multiplier=1.0):
            moved("embedding multiplier")
        with make_qwen_checks.changed(c, logits_scaling=1.0):
            moved("logits scaling")
    return least


if __name__ == "__main__":
    make_qwen.check_reacts = reacts
    make_qwen.golden_parts.main(__doc__, "llama", {
        name: v | {"template": TEMPLATE, "cases": v.get("cases", CASES),
                   "tokenizer": functools.partial(tokenizer_text, v["tokenizer"])}
        for name, v in VARIANTS.items()}, make_qwen.attempt)
