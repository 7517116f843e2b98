#!/usr/bin/env python3
"""Makes tests/golden/qwen/: tiny random Qwen checkpoints (Qwen2-VL, Qwen2.5-VL, Qwen3-VL, their text models and mixtures of experts)
through transformers' own classes, and what transformers answers on them.

    make_qwen.py [--out DIR] [VARIANT ...]        all variants when none is named

Each variant is a checkpoint folder in the layout of a release, plus golden.safetensors and golden.json (format: README.md here).
Everything follows from seeds. A variant whose model does not react to its pictures, their positions, its history and each of the
oddities that it is there for, or whose greedy path or routing has a near-tie, gets the next seed; when a hundred seeds fail the script
stops. So a golden file that exists also proves something.
"""
import contextlib
import json
import os
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from PIL import Image  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.numpy import save_file as save_numpy  # noqa: E402
from safetensors.torch import save_file as save_torch  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer  # noqa: E402
from transformers.models.qwen2_vl import (Qwen2VLImageProcessor, Qwen2VLProcessor, Qwen2VLVideoProcessor)  # noqa: E402
from transformers.models.qwen2_5_vl import Qwen2_5_VLProcessor  # noqa: E402
from transformers.models.qwen3_vl import Qwen3VLProcessor, Qwen3VLVideoProcessor  # noqa: E402

import golden_parts  # noqa: E402
from golden_parts import greedy, logprobs  # noqa: E402
import make_qwen_parts as parts  # noqa: E402
from common import picture  # noqa: E402
from make_qwen_checks import Pictures, check_reacts, float_inputs_rounded, need  # noqa: E402
from make_qwen_checks import positions_by_formula, routing_gap  # noqa: E402
from make_qwen_checks import token_by_token  # noqa: E402
from make_qwen3_5_variants import VARIANTS as VARIANTS_3_5  # noqa: E402
from make_qwen_variants import VARIANTS as VARIANTS_2_3  # noqa: E402

VARIANTS = VARIANTS_2_3 | VARIANTS_3_5

GENERATED = 32
PROCESSORS = {"qwen2_vl": (Qwen2VLProcessor, Qwen2VLVideoProcessor), "qwen2_5_vl": (Qwen2_5_VLProcessor, Qwen2VLVideoProcessor),
              "qwen3_vl": (Qwen3VLProcessor, Qwen3VLVideoProcessor), "qwen3_vl_moe": (Qwen3VLProcessor, Qwen3VLVideoProcessor)}
PROCESSORS |= {"qwen3_5": PROCESSORS["qwen3_vl"], "qwen3_5_moe": PROCESSORS["qwen3_vl"]}

# -------------------------------------------------------------------------------------------------------------- checkpoints


def build_checkpoint(v, seed, folder):
    """Writes a checkpoint through save_pretrained, then rewrites what a release spells differently. Returns its weights."""
    with tempfile.TemporaryDirectory() as tmp:
        own = v["tokenizer"]() if "tokenizer" in v else None
        parts.write_tokenizer(Path(tmp), own)
        tokenizer = AutoTokenizer.from_pretrained(tmp)
    ids = {t: tokenizer.convert_tokens_to_ids(t) for t in parts.SPECIAL}
    end = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    dtype = getattr(torch, v.get("dtype", "float32"))
    if "vision" in v:
        vision = dict(v["vision"])
        if v["family"] == "qwen2_vl":
            vision["hidden_size"] = v["text"]["hidden_size"]
        config = AutoConfig.for_model(v["family"], text_config=v["text"], vision_config=vision, image_token_id=ids[parts.IMAGE],
                                      video_token_id=ids[parts.VIDEO], vision_start_token_id=ids["<|vision_start|>"],
                                      vision_end_token_id=ids["<|vision_end|>"], tie_word_embeddings=v["text"]["tie_word_embeddings"])
        model = AutoModelForImageTextToText.from_config(config)
    else:
        config = AutoConfig.for_model(v["family"], **v["text"] | {"eos_token_id": end[0], "bos_token_id": end[1]})
        model = AutoModelForCausalLM.from_config(config)
    model.eval()
    parts.fill(model, seed, **v.get("gains", {}))
    model.generation_config.update(do_sample=True, top_k=20, top_p=0.8, temperature=0.7, repetition_penalty=1.05, bos_token_id=end[1],
                                   pad_token_id=end[1], eos_token_id=end)
    model.to(dtype).save_pretrained(folder)
    filled = {k: p.detach().clone() for k, p in model.named_parameters()}
    if "vision" in v:
        make_processor(v, tokenizer).save_pretrained(folder)
    else:
        tokenizer.chat_template = v["template"]
        tokenizer.save_pretrained(folder)
    # One spelling of tokenizer.json in all variants, compact.
    (folder / "tokenizer.json").write_text(own or parts.tokenizer_text(), encoding="utf-8")
    if v.get("spelling") == "flat":
        spell_as_released(folder, v)
    for key in v.get("drop", []):
        edit_json(folder / "config.json", lambda c: drop_key(c, key))
    for file, change in v.get("files", {}).items():
        edit_json(folder / file, change)
    if v.get("mtp"):
        rewrite(folder / "model.safetensors", lambda all: all | parts.drafter(all, seed))
        edit_json(folder / "config.json", lambda c: c["text_config"].update(mtp_num_hidden_layers=1))
    if v.get("experts") == "fused":
        fuse_experts(folder / "model.safetensors")
    elif v.get("experts") == "released":
        rewrite(folder / "model.safetensors", lambda all: {k: t.transpose(1, 2) if ".experts." in k else t for k, t in all.items()})
        edit_json(folder / "config.json", lambda c: c["text_config"].update(num_experts=c["text_config"].pop("num_local_experts")))
    return filled


def make_processor(v, tokenizer):
    processor, films = PROCESSORS[v["family"]]
    vision, (mean, std) = v["vision"], v["mean_std"]
    defaults = {"qwen2_vl": 14, "qwen2_5_vl": 14}
    common = dict(image_mean=mean, image_std=std, patch_size=vision.get("patch_size", defaults.get(v["family"], 16)), temporal_patch_size=2,
                  merge_size=vision.get("spatial_merge_size", 2))
    images = Qwen2VLImageProcessor(size={"shortest_edge": v["size"][0], "longest_edge": v["size"][1]}, **common)
    videos = films(size={"shortest_edge": v["size"][0], "longest_edge": 3 * v["size"][1]}, **common)
    return processor(images, tokenizer, videos, chat_template=v["template"])


def edit_json(path, change):
    data = json.loads(path.read_text())
    data = change(data) or data
    path.write_text(json.dumps(data, indent=2) + "\n")


def drop_key(config, key):
    *way, last = key.split(".")
    for step in way:
        config = config[step]
    config.pop(last, None)


def spell_as_released(folder, v):
    """config.json, tensor names and image settings as the first releases have them. transformers must read it back to the same model."""
    def config(c):
        t = c.get("text_config", c)
        rope = t["rope_parameters"]
        scaling = {"type": rope["rope_type"]}
        if "mrope_section" in rope:
            scaling = {"type": "mrope" if rope["rope_type"] == "default" else rope["rope_type"], "mrope_section": rope["mrope_section"]}
        scaling |= {k: x for k, x in rope.items()
                    if k.endswith("factor") or k == "original_max_position_embeddings"}
        keep = ["attention_dropout", "bos_token_id", "eos_token_id", "hidden_act", "hidden_size", "initializer_range", "intermediate_size",
                "max_position_embeddings", "max_window_layers", "num_attention_heads", "num_hidden_layers", "num_key_value_heads",
                "rms_norm_eps", "sliding_window", "use_cache", "use_sliding_window", "vocab_size", "head_dim", "attention_bias",
                "decoder_sparse_step", "mlp_only_layers", "shared_expert_intermediate_size",
                "moe_intermediate_size", "norm_topk_prob", "num_experts_per_tok",
                "output_router_logits", "router_aux_loss_coef"]
        out = {"architectures": c["architectures"], "model_type": c["model_type"], "torch_dtype": c["dtype"],
               "transformers_version": "4.41.2", "tie_word_embeddings": c["tie_word_embeddings"], "rope_theta": rope["rope_theta"]}
        out |= {k: t[k] for k in keep if k in t and t[k] is not None}
        if "num_local_experts" in t or "num_experts" in t:
            out["num_experts"] = t.get("num_experts", t.get("num_local_experts"))
        if scaling != {"type": "default"}:
            out["rope_scaling"] = scaling
        if "vision_config" in c:
            out |= {k: c[k] for k in ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")}
            names = [k for k in c["vision_config"] if k in v["vision"]] + ["hidden_size", "in_channels", "spatial_merge_size", "temporal_patch_size",
                                                                           "patch_size", "hidden_act", "mlp_ratio", "window_size", "tokens_per_second"]
            out["vision_config"] = {k: c["vision_config"][k] for k in dict.fromkeys(names) if k in c["vision_config"]}
            out["vision_config"] |= {"model_type": c["model_type"], "in_chans": 3, "spatial_patch_size": c["vision_config"]["patch_size"]}
        return out

    edit_json(folder / "config.json", config)
    rename_tensors(folder / "model.safetensors")
    if "vision" not in v:
        return
    for f in ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"):
        (folder / f).unlink(missing_ok=True)
    mean, std = v["mean_std"]
    settings = {"min_pixels": v["size"][0], "max_pixels": v["size"][1], "patch_size": v["vision"].get("patch_size", 14), "temporal_patch_size": 2,
                "merge_size": 2, "image_mean": mean, "image_std": std, "image_processor_type": "Qwen2VLImageProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings | {"processor_class": PROCESSORS[v["family"]][0].__name__}, indent=2) + "\n")
    template = folder / "chat_template.jinja"
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template.read_text()}, indent=2) + "\n")
    template.unlink()


def rename_tensors(path):
    """The first releases' names: visual.*, model.*, lm_head.weight."""
    def first(name):
        return name.removeprefix("model.") if name.startswith("model.visual.") else name.replace("model.language_model.", "model.", 1)
    rewrite(path, lambda tensors: {first(k): t for k, t in tensors.items()})


def fuse_experts(path):
    """Experts as transformers 5 holds them: gate_up_proj [E, 2I, H] (gate rows first), down_proj [E, H, I]."""
    def fuse(tensors):
        out = {k: t for k, t in tensors.items() if ".experts." not in k}
        for name in sorted({k.split(".experts.")[0] for k in tensors if ".experts." in k}):
            def stack(what):
                rows = sorted((k for k in tensors if k.startswith(name + ".experts.") and what in k), key=lambda k: int(k.split(".")[-3]))
                return torch.stack([tensors[k] for k in rows])
            out[name + ".experts.gate_up_proj"] = torch.cat([stack(".gate_proj."), stack(".up_proj.")], 1)
            out[name + ".experts.down_proj"] = stack(".down_proj.")
        return out
    rewrite(path, fuse)


def rewrite(path, change):
    with safe_open(path, "pt") as f:
        tensors = change({name: f.get_tensor(name).clone() for name in f.keys()})
    save_torch({k: t.contiguous() for k, t in tensors.items()}, path, metadata={"format": "pt"})


# -------------------------------------------------------------------------------------------------------------------- cases


def load(folder, v, dtype):
    cls = AutoModelForImageTextToText if "vision" in v else AutoModelForCausalLM
    model, info = cls.from_pretrained(folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    assert model.config.get_text_config()._attn_implementation == "eager"
    return model.eval()


def same_model(model, filled):
    """What was spelled as a release is read back to the model that was filled."""
    for name, p in model.named_parameters():
        assert torch.equal(p, filled[name].to(p.dtype)), f"{name} is read back otherwise"


def frames_of(film):
    seed, width, height, count, _fps = film
    return parts.film(seed, width, height, count)


def prepare(case, v, processor, plain):
    """Rendered text, prompt ids and model inputs of a case, the way a user of transformers gets them."""
    rgb = [picture(*p) for p in case["pictures"]]
    films = [frames_of(f) for f in case["films"]]
    if case["kind"] == "raw":
        rendered = case["prompt"]
    else:
        rendered = processor.apply_chat_template(case["messages"], tokenize=False, add_generation_prompt=True, **case["template"])
    if "vision" not in v:
        ids = processor(rendered, add_special_tokens=False)["input_ids"]
        assert ids == plain.encode(rendered, add_special_tokens=False).ids
        return rendered, rgb, films, Pictures(ids)
    more = {}
    if films:
        more = dict(videos=[torch.from_numpy(f).permute(0, 3, 1, 2) for f in films], do_sample_frames=False,
                    video_metadata=[{"fps": f[4], "total_num_frames": f[3], "frames_indices": list(range(f[3]))} for f in case["films"]])
    out = processor(text=[rendered], images=[Image.fromarray(a) for a in rgb] or None, return_tensors="pt", **more)
    ids = out["input_ids"][0].tolist()
    p = Pictures(ids, out["mm_token_type_ids"][0].tolist(), out.get("pixel_values"), out.get("image_grid_thw"), out.get("pixel_values_videos"),
                 out.get("video_grid_thw"), out.get("second_per_grid_ts"))
    assert [{plain.token_to_id(parts.IMAGE): 1, plain.token_to_id(parts.VIDEO): 2}.get(i, 0) for i in ids] == p.types
    return rendered, rgb, films, p


@torch.no_grad()
def greedy_cached(model, p, count):
    """The same through transformers' generate() with its KV cache."""
    out = model.generate(**p.inputs(p.ids, next(model.parameters()).dtype), max_new_tokens=count, min_new_tokens=count, do_sample=False,
                         eos_token_id=[], pad_token_id=0, top_k=None, top_p=None, temperature=None, repetition_penalty=None)
    return out[0, len(p.ids):].tolist()


def kept_rows(p, total):
    """Rows whose log-probs are stored whole: each picture's first and last token and the one behind it, every eighth of the prompt,
    every fourth from the prompt's last on."""
    prompt = len(p.ids)
    rows = set(range(0, prompt, 8)) | set(range(prompt - 1, total, 4)) | {total - 1}
    for begin, end, _kind in p.spans():
        rows |= {begin, end - 1, end}
    return sorted(r for r in rows if r < total)


def store_pictures(key, v, p, rgb, films, tensors):
    """The pictures before any processing, their resized bytes (recovered from the patches, checked) and some of their patches."""
    mean, std = (np.array(a, np.float64) for a in v["mean_std"])
    patch = v["vision"].get("patch_size", 14 if v["family"] in ("qwen2_vl", "qwen2_5_vl") else 16)
    for kind, sources, values, grid in (("image", rgb, p.pixels, p.grid), ("video", films, p.video_pixels, p.video_grid)):
        start = 0
        for k, a in enumerate(sources):
            t, h, w = grid[k].tolist()
            rows = values[start:start + t * h * w].numpy()
            start += t * h * w
            frames = rows.reshape(t, h // 2, w // 2, 2, 2, 3, 2, patch, patch).transpose(0, 6, 1, 3, 7, 2, 4, 8, 5).reshape(2 * t, h * patch, w * patch, 3)
            back = frames * (std * 255) + mean * 255
            assert np.abs(back - np.rint(back)).max() < 1e-3
            back = np.rint(back).astype(np.uint8)
            if kind == "image":
                assert np.array_equal(back[0], back[1])
                back = back[0]
            name = f"{key}{kind}{k}"
            tensors[name + (".rgb" if kind == "image" else ".frames")] = a
            if back.size < 20000:
                tensors[name + ".resized"] = np.ascontiguousarray(back)
            if k == 0:
                tensors[name + ".patches"] = np.ascontiguousarray(rows[:8])


def run_case(n, case, v, tools, tensors):
    model, plain, processor, twin = tools
    rendered, rgb, films, p = prepare(case, v, processor, plain)
    avoid = {plain.token_to_id(t) for t in (parts.IMAGE, parts.VIDEO)} if "vision" in v else set()
    avoid |= set(range(parts.VOCAB, v["text"]["vocab_size"]))
    new, gaps = greedy(model, p, GENERATED, avoid)
    low = twin is not None
    need(min(gaps) > (4e-3 if low else 2e-3), f"near-tie: {min(gaps):.5f}")
    need(len(set(new)) >= v.get("distinct", 9), f"greedy text repeats itself: {len(set(new))} different ids of {GENERATED}")
    ids, recurrent = p.ids + new, "qwen3_5" in v["family"]
    with token_by_token(model) if recurrent else contextlib.nullcontext():
        lp = logprobs(model, p, ids)
    top = float(lp.exp().max(-1).values.mean())
    need(top > (0.06 if low else 0.1), f"flat: mean top probability {top:.3f}")
    positions = p.positions(model, ids)
    assert np.array_equal(positions, positions_by_formula(model, p, len(ids))), "another position rule than ours"
    plain_lp = logprobs(model, p, ids)
    assert np.array_equal(plain_lp.numpy(), logprobs(model, p, ids, position_ids=torch.from_numpy(positions)[:, None] if "vision" in v
                                               else torch.from_numpy(positions[:1])).numpy())
    entry = {"top_probability": round(top, 3), "smallest_gap": round(min(gaps), 5),
             "reacts": check_reacts(model, v, p, plain_lp, logprobs, positions)}
    if recurrent:  # transformers' own two rules
        entry["rules_max_delta"] = float(f"{float((plain_lp - lp).abs().max()):.2e}")
        need(entry["rules_max_delta"] < 5e-5,
             f"ill-conditioned: the chunked rule differs by {entry['rules_max_delta']}")
    routing = routing_gap(model, lambda: logprobs(model, p, ids))
    if routing is not None:
        entry["routing_gap"] = round(routing, 6)
        need(routing > (2e-4 if not low else 6e-3), f"routing near a tie: {routing:.6f}")
    assert lp.argmax(-1)[len(p.ids) - 1:-1].tolist() == new
    entry["cached_decode_equal"] = greedy_cached(model, p, GENERATED) == new
    key, rows = f"case{n}.", kept_rows(p, len(ids))
    if not low:
        double = logprobs(model.double(), p, ids)
        model.float()
        entry["f64_max_delta"] = float(f"{float((double - lp).abs().max()):.2e}")
        need(entry["f64_max_delta"] < 2.5e-5, f"ill-conditioned: float64 differs by {entry['f64_max_delta']}")
    else:
        theirs = logprobs(twin, p, ids)
        with float_inputs_rounded():
            products = logprobs(model, p, ids)
        for name, other in (("transformers_bf16_delta", theirs), ("bf16_products_delta", products)):
            entry[name] = {"max": round(float((other - lp).abs().max()), 4), "mean": round(float((other - lp).abs().mean()), 5)}
        # A right implementation must be able to stay within 3e-2 of the float32 run where it matters (the token that stands there, the
        # most likely one) and no further from it than transformers' own bf16 run; it sees at least these roundings.
        off = (products - lp).abs()
        said = max(float(off[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].max()), float(off.gather(1, lp.argmax(-1, keepdim=True)).max()))
        entry["bf16_products_said"] = round(said, 4)
        need(said < 0.02, f"rounding alone gives {said:.4f}")
        need(float(off.max()) < 0.8 * entry["transformers_bf16_delta"]["max"], "rounding of products alone is as much as transformers' bf16")
        tensors[key + "logprobs_bf16"] = theirs[rows].to(torch.float16).numpy()
        tensors[key + "bf16_delta"] = np.array([float((theirs - lp).abs().max()), float((theirs - lp).abs().mean())], np.float32)
        tensors[key + "greedy_ids_bf16"] = np.array(greedy(twin, p, GENERATED, avoid)[0], np.int32)
    tensors[key + "prompt_ids"] = np.array(p.ids, np.int32)
    tensors[key + "greedy_ids"] = np.array(new, np.int32)
    tensors[key + "gaps"] = np.array(gaps, np.float32)
    tensors[key + "positions"] = positions.astype(np.int32)
    tensors[key + "rows"] = np.array(rows, np.int32)
    tensors[key + "logprobs"] = lp[rows].numpy()
    tensors[key + "follow"] = lp[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].numpy()
    if "vision" in v:
        store_pictures(key, v, p, rgb, films, tensors)
    head = {"id": n, "kind": case["kind"], "note": case["note"], "images": len(rgb), "videos": len(films), "prompt_tokens": len(p.ids),
            "image_spans": [s[:2] for s in p.spans()], "spans": [s for s, _end in p.parts(model.config)], "template": case["template"]}
    if films:
        head["fps"] = [f[4] for f in case["films"]]
    body = {"prompt": case["prompt"]} if case["kind"] == "raw" else {"messages": case["messages"]}
    return head | body | {"rendered": rendered, "greedy_text": plain.decode(new, skip_special_tokens=False)} | {"measured": entry}


def attempt(name, v, seed, folder):
    filled = build_checkpoint(v, seed, folder)
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if "vision" in v:
        processor = make_processor(v, AutoTokenizer.from_pretrained(folder))
    else:
        processor = AutoTokenizer.from_pretrained(folder)
    model = load(folder, v, torch.float32)
    same_model(model, filled)
    twin = load(folder, v, torch.bfloat16) if v.get("dtype") == "bfloat16" else None
    tensors, cases = {}, []
    for n, case in enumerate(v["cases"]):
        cases.append(run_case(n, case, v, (model, plain, processor, twin), tensors))
    save_numpy(tensors, folder / "golden.safetensors")
    about = {"variant": name, "family": v["family"], "weights": v.get("dtype", "float32"), "seed": seed, "generated": GENERATED,
             "vocab": v["text"]["vocab_size"], "transformers": transformers.__version__, "torch": torch.__version__.split("+")[0], "cases": cases}
    (folder / "golden.json").write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return cases


if __name__ == "__main__":
    golden_parts.main(__doc__, "qwen", VARIANTS, attempt)
