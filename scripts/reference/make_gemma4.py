#!/usr/bin/env python3
"""Makes tests/golden/gemma4/: tiny random Gemma 4 checkpoints (E2B-like, 12B-like, 26B-A4B-like, 31B-like)
through transformers' own classes, and what transformers answers on them.

    make_gemma4.py [--out DIR] [VARIANT ...]        all variants when none is named

Each variant is a checkpoint folder in the layout of a release, plus golden.safetensors and golden.json
(format: README.md here). The chat templates have the release's semantics in our own words: see
make_gemma4_parts.py.

What transformers 5.23 does, where other descriptions of the family say otherwise or nothing (checked by this
script):
* `to_dict` writes per_layer_config (layer -> head_dim, num_key_value_heads) and neither global_head_dim nor
  num_global_key_value_heads; without per_layer_config the latter count, num_global_key_value_heads only with
  attention_k_eq_v. Both spellings are here;
* layers of pictures: full layers are causal, sliding ones (causal or same picture) and i - j < W, only if
  use_bidirectional_attention is "vision"; an audio token is in no block;
* gemma4_unified has another rule for the same "vision": a picture is a block in full layers as well, and the
  window does not cut it in sliding ones, (causal and i - j < W) or same picture. That is what its forward
  does, called by itself and by generate() with a growing cache, and what the golden files have. The class
  also has create_masks_for_generate with the rule of the other releases, which only a compiled cache uses;
* the rows of a picture in the per-layer table are those of the pad id (0), scaled as all others;
* positions of a picture's patches are (x, y), the first half of a head turns with x;
* the pooled patches of a picture are averaged in float32, scaled by sqrt(hidden) and standardized there;
* sqrt(hidden_size) and sqrt(hidden_size_per_layer_input) are rounded to the weights' type;
* max_soft_tokens is one of 70, 140, 280, 560, 1120: anything else is refused, so the tiny pictures have 48
  to 140 tokens, with patches of a few pixels;
* a video's frames are normalised with mean 0 and std 1; each is its own block, behind `mm:ss ` and one space
  apart."""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
)  # noqa: E402
from transformers.models import gemma4, gemma4_unified  # noqa: E402

import golden_parts as parts  # noqa: E402
import make_gemma4_parts as own  # noqa: E402
from common import picture  # noqa: E402
from make_gemma4_variants import VARIANTS  # noqa: E402
from make_qwen_checks import changed, hooked, need  # noqa: E402
from make_qwen_parts import film  # noqa: E402

S, F = "sliding_attention", "full_attention"
WIDE = 20000  # bytes of a resized picture that are stored at most

# ----------------------------------------------------------------------------------------------- checkpoints


def family(v):
    return gemma4_unified if v["family"] == "gemma4_unified" else gemma4


def make_processor(v, tokenizer):
    f, kind = family(v), "Gemma4Unified" if v["family"] == "gemma4_unified" else "Gemma4"
    size = dict(patch_size=v["vision"]["patch_size"], pooling_kernel_size=v["vision"]["pooling_kernel_size"])
    images = getattr(f, kind + "ImageProcessor")(max_soft_tokens=v["budget"], **size)
    videos = getattr(f, kind + "VideoProcessor")(max_soft_tokens=70, **size)
    sound = getattr(f, kind + "AudioFeatureExtractor")()
    return getattr(f, kind + "Processor")(sound, images, tokenizer, videos,
                                          chat_template=own.TEMPLATES[v["template"]],
                                          image_seq_length=v["budget"])


def build_checkpoint(v, seed, folder):
    """Writes a checkpoint through save_pretrained, then rewrites what a release spells differently."""
    with tempfile.TemporaryDirectory() as tmp:
        own.write_tokenizer(Path(tmp))
        tokenizer = AutoTokenizer.from_pretrained(tmp)
    ids = own.token_ids()
    stop = [1, ids["<turn|>"], ids["<|tool_response>"]]
    tied = v["text"].get("tie_word_embeddings", True)
    if "vision" in v:
        config = AutoConfig.for_model(
            v["family"], text_config=dict(v["text"]), vision_config=dict(v["vision"]), audio_config=None,
            image_token_id=ids["<|image|>"], video_token_id=ids["<|video|>"], audio_token_id=ids["<|audio|>"],
            boi_token_id=ids["<|image>"], eoi_token_id=ids["<image|>"], boa_token_id=ids["<|audio>"],
            eoa_token_index=ids["<audio|>"], tie_word_embeddings=tied, eos_token_id=stop)
        if v["family"] == "gemma4":
            config.audio_config = None
        model = AutoModelForImageTextToText.from_config(config)
    else:
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model("gemma4_text", **v["text"], eos_token_id=stop))
    model.eval()
    own.fill(model, seed, **v.get("gains", {}))
    model.generation_config.update(
        do_sample=True, top_k=64, top_p=0.95, bos_token_id=2, pad_token_id=0, eos_token_id=stop)
    if "vision" in v:
        model.generation_config.update(suppress_tokens=[ids["<audio|>"], ids["<image|>"]])
    model.to(getattr(torch, v.get("dtype", "float32"))).save_pretrained(folder)
    if "vision" in v:
        make_processor(v, tokenizer).save_pretrained(folder)
    else:
        tokenizer.chat_template = own.TEMPLATES[v["template"]]
        tokenizer.save_pretrained(folder)
    own.write_tokenizer(folder)
    if v.get("spelling") == "released":
        parts.edit_json(folder / "config.json", lambda c: spell_as_released(c, v))
        if v["family"] == "gemma4_unified":
            parts.rewrite(
                folder / "model.safetensors", lambda all: {released_name(k): t for k, t in all.items()})
    for key in v.get("drop", []):
        parts.edit_json(folder / "config.json", lambda c: parts.drop_key(c, key))
    return parts.state_of(model)


def spell_as_released(c, v):
    """global_head_dim and num_global_key_value_heads in place of per_layer_config; "default" in place of
    "axial"."""
    t = c.get("text_config", c)
    t.pop("per_layer_config", None)
    for key, absent in (("global_head_dim", 512), ("num_global_key_value_heads", None)):
        t[key] = v["text"].get(key, absent)
    if "vision_config" in c and "rope_parameters" in c["vision_config"]:
        c["vision_config"]["rope_parameters"] = {"rope_type": "default", "rope_theta": 100.0}
        c["vision_config"]["global_head_dim"] = c["vision_config"]["head_dim"]
        c["vision_config"]["default_output_length"] = v["budget"]
    c["vision_soft_tokens_per_image"] = v.get("budget", 280)


def released_name(name):
    """The 12B's: model.vision_embedder.*, and the last projection apart."""
    name = name.replace("embed_vision.multimodal_embedder.", "embed_vision.")
    for part in ("patch_ln1", "patch_dense", "patch_ln2", "pos_embedding", "pos_norm"):
        name = name.replace("embed_vision." + part, "vision_embedder." + part)
    return name


# ----------------------------------------------------------------------------------------------------- cases


class Seen(parts.Prompt):
    """Pictures and videos as the processor gives them: `tensors`; blocks of placeholders as
    mm_token_type_ids."""

    def inputs(self, ids, dtype):
        out = self.prompt_inputs(dtype) | super().inputs(ids, dtype)
        if self.tensors:
            out["mm_token_type_ids"] = torch.tensor([self.types + [0] * (len(ids) - len(self.types))])
        return out

    def prompt_inputs(self, dtype):
        out = super().inputs(self.ids, dtype)
        if self.tensors:
            out["mm_token_type_ids"] = torch.tensor([self.types])
        return out | {k: t.to(dtype) if t.is_floating_point() else t for k, t in self.tensors.items()}


def frames_of(clip):
    seed, width, height, count, _fps = clip
    return film(seed, width, height, count)


def prepare(case, v, processor, plain):
    """Rendered text, prompt ids and model inputs of a case, the way a user of transformers gets them."""
    rgb = [picture(*p) for p in case["pictures"]]
    films = [frames_of(f) for f in case["films"]]
    if case["kind"] == "raw":
        rendered = case["prompt"]
    else:
        rendered = processor.apply_chat_template(
            case["messages"], tokenize=False, add_generation_prompt=True, **case["template"])
    tokenizer = processor.tokenizer if "vision" in v else processor
    if not rgb and not films:
        ids = tokenizer(rendered, add_special_tokens=case["kind"] == "raw")["input_ids"]
        assert ids == plain.encode(rendered, add_special_tokens=case["kind"] == "raw").ids
        return rendered, rgb, films, Seen(ids, tensors={})
    more = {}
    if films:
        more = dict(
            videos=[torch.from_numpy(f).permute(0, 3, 1, 2) for f in films], do_sample_frames=False,
            video_metadata=[
                {"fps": f[4], "total_num_frames": f[3], "frames_indices": list(range(f[3]))}
                for f in case["films"]])
    out = processor(text=[rendered], images=[Image.fromarray(a) for a in rgb] or None, return_tensors="pt",
                    add_special_tokens=False, **more)
    ids = out["input_ids"][0].tolist()
    keep = ("pixel_values", "image_position_ids", "pixel_values_videos", "video_position_ids",
            "num_frames_per_video")
    tensors = {k: torch.as_tensor(out[k]) for k in keep if k in out}
    p = Seen(ids, out["mm_token_type_ids"][0].tolist(), tensors=tensors)
    kinds = {plain.token_to_id("<|image|>"): 1, plain.token_to_id("<|video|>"): 2}
    assert [kinds.get(i, 0) for i in ids] == p.types
    return rendered, rgb, films, p


def expanded(rendered, v, p, case):
    """The rule of the placeholders, written down once more: ids of text with every picture's own count of
    tokens."""
    counts = {1: [], 2: []}
    for begin, end, kind in p.spans():
        counts[kind].append(end - begin)
    text = ""
    for k, piece in enumerate(rendered.split("<|image|>")):
        text += ("" if k == 0 else "<|image>" + "<|image|>" * counts[1][k - 1] + "<image|>") + piece
    for clip in case["films"]:
        stamps = [int(n / clip[4]) for n in range(clip[3])]
        one = [
            f"{s // 60:02}:{s % 60:02} <|image>" + "<|video|>" * counts[2].pop(0) + "<image|>" for s in stamps
        ]
        at = text.index("<|video|>")
        text = text[:at] + " ".join(one) + text[at + len("<|video|>") :]
    return text


def grid_of(positions, v):
    """(tokens down, tokens across) of a picture from its patches' positions."""
    real = positions[(positions >= 0).all(-1)]
    k = 1 if v["family"] == "gemma4_unified" else v["vision"]["pooling_kernel_size"]
    return [int(real[:, 1].max() + 1) // k, int(real[:, 0].max() + 1) // k]


def described(p, v):
    """What stands in each span, as golden.json has it, and each picture's patches."""
    out, at, tensors = [], {1: 0, 2: 0}, p.tensors
    frames = tensors["num_frames_per_video"].tolist() if "num_frames_per_video" in tensors else []
    for begin, end, kind in p.spans():
        positions = tensors["image_position_ids" if kind == 1 else "video_position_ids"][at[kind]]
        h, w = grid_of(positions, v)
        assert h * w == end - begin
        index, first = at[kind], 0
        if kind == 2:
            index = next(k for k in range(len(frames)) if at[2] < sum(frames[: k + 1]))
            first = at[2] - sum(frames[:index])
        out.append(
            {"begin": begin, "end": end, "kind": "image" if kind == 1 else "video", "index": index,
             "first": first, "grid": [1, h, w], "seconds": 0.0, "base": begin})
        at[kind] += 1
    return out


def store_pictures(key, v, p, rgb, films, spans, tensors):
    """The pictures before any processing, and their resized bytes, recovered from the patches and checked."""
    unit = v["vision"]["patch_size"] * v["vision"]["pooling_kernel_size"]
    patch = unit if v["family"] == "gemma4_unified" else v["vision"]["patch_size"]

    def back(values, grid):
        down, across = grid[1] * unit // patch, grid[2] * unit // patch
        rows = values[: down * across].reshape(down, across, patch, patch, 3).permute(0, 2, 1, 3, 4)
        pixels = rows.reshape(down * patch, across * patch, 3).numpy().astype(np.float64) * 255
        assert np.abs(pixels - np.rint(pixels)).max() < 1e-3
        return np.rint(pixels).astype(np.uint8)

    images = [s for s in spans if s["kind"] == "image"]
    for k, a in enumerate(rgb):
        resized = back(p.tensors["pixel_values"][k], images[k]["grid"])
        tensors[f"{key}image{k}.rgb"] = a
        if resized.size < WIDE:
            tensors[f"{key}image{k}.resized"] = resized
    row = 0
    for k, a in enumerate(films):
        grid = next(s["grid"] for s in spans if s["kind"] == "video" and s["index"] == k)
        all_frames = [back(p.tensors["pixel_values_videos"][row + n], grid) for n in range(len(a))]
        row += len(a)
        tensors[f"{key}video{k}.frames"] = a
        if sum(f.size for f in all_frames) < WIDE:
            tensors[f"{key}video{k}.resized"] = np.stack(all_frames)


def tables(p, total, c):
    """Which keys a query sees in full layers and in sliding ones; then causal, inside the window, in one
    picture."""
    i = np.arange(total)
    block = np.full(total, -1)
    for k, (begin, end, _kind) in enumerate(p.spans()):
        block[begin:end] = k
    causal = i[None, :] <= i[:, None]
    near = i[:, None] - i[None, :] < c.sliding_window
    same = (block[:, None] == block[None, :]) & (block[:, None] >= 0)
    if c.use_bidirectional_attention != "vision":
        return causal, causal & near, causal, near, same
    if c.model_type.startswith("gemma4_unified"):
        return causal | same, (causal & near) | same, causal, near, same
    return causal, (causal | same) & near, causal, near, same


def with_masks(model, change):
    """change(layer's kind) -> table or None, in every text attention; the hooks are returned."""
    low = torch.finfo(next(model.parameters()).dtype).min

    def swap(m, args, kwargs):
        table = change(m.layer_type)
        if table is not None:
            kwargs["attention_mask"] = torch.where(torch.from_numpy(table), 0.0, low)[None, None]
        return args, kwargs

    return [
        m.register_forward_pre_hook(swap, with_kwargs=True) for m in model.modules()
        if type(m).__name__.endswith("TextAttention")]


def buffers_as(model, last, value):
    """Sets all buffers and parameters of that name to a value; returns how to undo it."""
    old = {}
    for m in model.modules():
        t = m._buffers.get(last) if last in m._buffers else m._parameters.get(last)
        if t is not None:
            old[t] = t.detach().clone()
            t.data.fill_(value)

    def undo():
        for t, was in old.items():
            t.data.copy_(was)

    return undo if old else None


def check(moved, v):
    model, p, ids = moved.model, moved.p, moved.ids
    c = model.config.get_text_config()
    rule, margin, total = ((0.0 if v.get("dtype") else 0.01),
                           v.get("margin", 0.01 if "vision" in v else 0.04), len(ids))
    full, sliding, causal, near, same = tables(p, total, c)
    kind = "Gemma4UnifiedTextAttention" if v["family"] == "gemma4_unified" else "Gemma4TextAttention"
    seen = parts.masks_seen(model, p, ids, kind)
    assert sorted(seen) == list(range(c.num_hidden_layers))
    for k, layer in enumerate(c.layer_types):
        assert np.array_equal(
            seen[k], sliding if layer == S else full), f"layer {k}: another mask than expected"
    spans = p.spans()
    at = next(i for i in range(2, len(p.ids)) if not p.types[i])
    moved("early token", margin, slice(len(p.ids) - 1, len(p.ids)), None,
          ids[:at] + [60 if ids[at] != 60 else 61] + ids[at + 1 :])

    def by_mask(what, limit, change, rows=slice(None)):
        hooks = with_masks(model, change)
        moved(what, limit, rows)
        for h in hooks:
            h.remove()

    if S in c.layer_types and total > c.sliding_window + 2:
        by_mask("no window", rule, lambda t: full if t == S else None, slice(c.sliding_window + 2, None))
    if not np.array_equal(causal & near, sliding):
        begin = slice(spans[0][0], None)
        by_mask("pictures causal in sliding layers", rule, lambda t: causal & near if t == S else None, begin)
        other = causal if not np.array_equal(causal, full) else causal | same
        by_mask("the other rule in full layers", rule, lambda t: other if t == F else None, begin)
        for other in ((causal | same) & near, causal & near | same):
            if not np.array_equal(other, sliding):
                by_mask("other order of window and picture", rule, lambda t: other if t == S else None, begin)
    for name, value in (("layer_scalar", 1.0), ("per_expert_scale", 1.0), ("scale", 1.0)):
        undo = buffers_as(model, name, value)
        if undo:
            moved(f"{name} {value}", rule)
            undo()
    if c.final_logit_softcapping:
        with changed(c, final_logit_softcapping=None):
            moved("no final cap", rule)
    text = model.model.language_model if "vision" in v else model.model
    rotary = text.rotary_emb
    if F in c.layer_types and c.rope_parameters[F]["rope_type"] == "proportional":
        theta, width = c.rope_parameters[F]["rope_theta"], c.per_layer_config[F].head_dim
        whole = 1.0 / theta ** (torch.arange(0, width, 2).float() / width)
        rotating = int((rotary.full_attention_inv_freq != 0).sum())
        need(0 < rotating < width // 2, "no partial rotary")
        with changed(rotary, full_attention_inv_freq=whole):
            moved("rotary of the whole head", rule)
        packed = torch.zeros_like(whole)
        packed[:rotating] = 1.0 / theta ** (torch.arange(0, 2 * rotating, 2).float() / (2 * rotating))
        with changed(rotary, full_attention_inv_freq=packed):
            moved("exponents of the rotating part", rule / 4)
    for name in ("v_norm",):
        values = [m.self_attn.v_norm for m in text.layers if hasattr(m.self_attn, "v_norm")]
        with hooked(values, lambda _m, args, _out: args[0]):
            moved(f"no {name}", rule)
    if getattr(c, "hidden_size_per_layer_input", 0):
        with hooked([m.post_per_layer_input_norm for m in text.layers], lambda _m, _a, out: out * 0):
            moved("no per-layer embeddings", rule)
        with hooked([text.embed_tokens_per_layer], lambda _m, _a, out: out * 0):
            moved("no per-layer table", rule)
    if p.tensors:
        check_pictures(model, v, p, moved, rule, margin, c)


def check_pictures(model, v, p, moved, rule, margin, c):
    last = slice(len(p.ids) - 1, len(p.ids))
    for name in ("pixel_values", "pixel_values_videos"):
        values = p.tensors.get(name)
        for k in range(0 if values is None else len(values)):
            other = values.clone()
            other[k] = 1 - other[k].flip(0)
            place = p.tensors["image_position_ids" if name == "pixel_values" else "video_position_ids"][k]
            other[k][(place < 0).all(-1)] = 0
            moved(f"{name} {k}", margin, last, p.but(tensors=p.tensors | {name: other}))
    first = "image_position_ids" if "image_position_ids" in p.tensors else "video_position_ids"
    turned = p.tensors[first].flip(-1)
    embedder = model.model.embed_vision
    if v["family"] == "gemma4":
        tower = model.model.vision_tower
        table = tower.patch_embedder.position_embedding_table
        if int(turned.max()) < table.shape[1]:

            def swapped(m, args, kwargs):
                kwargs["pixel_position_ids"] = kwargs["pixel_position_ids"].flip(-1)
                return args, kwargs

            hooks = [m.register_forward_pre_hook(swapped, with_kwargs=True) for m in [tower.encoder]]
            moved("x and y exchanged in the tower", rule)
            for h in hooks:
                h.remove()
        for name in ("input_max", "output_max"):
            undo = buffers_as(tower, name, 1e9)
            if undo:
                moved(f"no {name}", rule / 4)
                undo()
        if tower.config.standardize:
            undo = buffers_as(tower, "std_scale", 1.0)
            moved("no std_scale", rule)
            undo()
            undo = buffers_as(tower, "std_bias", 0.0)
            moved("no std_bias", rule / 4)
            undo()
        with changed(table, data=table.data.flip(0)):
            moved("tables of x and y exchanged", rule)
    else:
        with changed(embedder.pos_embedding, data=embedder.pos_embedding.data.flip(1)):
            moved("tables of x and y exchanged", rule)
    scale = c.hidden_size**0.5
    target = embedder if v["family"] == "gemma4" else embedder.multimodal_embedder
    with hooked([target], lambda _m, _a, out: out * scale):
        moved("picture rows scaled", rule)


def routing_gap(model, p, ids):
    """Least distance of the last chosen expert's probability to the first one not chosen; None without
    experts."""
    gaps, c = [], model.config.get_text_config()

    def look(_m, _args, out):
        best = out[0].float().sort(-1, descending=True).values
        gaps.append(float((best[:, c.top_k_experts - 1] - best[:, c.top_k_experts]).min()))

    with hooked([m for m in model.modules() if type(m).__name__ == "Gemma4TextRouter"], look):
        parts.logprobs(model, p, ids)
    return min(gaps) if gaps else None


def attempt(name, v, seed, folder):
    filled = build_checkpoint(v, seed, folder)
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    processor = make_processor(v, tokenizer) if "vision" in v else tokenizer
    cls = AutoModelForImageTextToText if "vision" in v else AutoModelForCausalLM
    model = parts.load(cls, folder, torch.float32)
    parts.same_model(model, filled)
    twin = None
    if v.get("dtype"):
        twin = parts.load(cls, folder, torch.bfloat16)
        # The released code rounds the factors of its tables to the weights' type; so does the float32 run.
        for m in model.modules():
            if hasattr(m, "embed_scale"):
                m.embed_scale.copy_(m.embed_scale.to(torch.bfloat16))
    tensors, cases = {}, []
    for n, case in enumerate(v["cases"]):
        rendered, rgb, films, p = prepare(case, v, processor, plain)
        if p.tensors:
            assert p.ids == plain.encode(expanded(rendered, v, p, case), add_special_tokens=False).ids
        avoid = {own.token_ids()[t] for t in ("<|image|>", "<|audio|>", "<|video|>")}
        avoid |= {own.token_ids()[t] for t in ("<audio|>", "<image|>")}
        new, measured = parts.run_case(
            f"case{n}.", p, v, model, twin, tensors, lambda moved: check(moved, v), avoid)
        gap = routing_gap(model, p, p.ids + new)
        if gap is not None:
            measured["routing_gap"] = round(gap, 6)
            need(gap > 6e-5, f"routing near a tie: {gap:.6f}")
        spans = described(p, v)
        if p.tensors:
            store_pictures(f"case{n}.", v, p, rgb, films, spans, tensors)
        head = {"id": n, "kind": case["kind"], "note": case["note"], "images": len(rgb), "videos": len(films),
                "prompt_tokens": len(p.ids), "image_spans": [s[:2] for s in p.spans()], "spans": spans,
                "template": case["template"]}
        if films:
            head["fps"] = [f[4] for f in case["films"]]
        body = {"prompt": case["prompt"]} if case["kind"] == "raw" else {"messages": case["messages"]}
        cases.append(
            head | body
            | {"rendered": rendered, "measured": measured,
               "greedy_text": plain.decode(new, skip_special_tokens=False)})
    c = model.config.get_text_config()
    about = {"variant": name, "family": v["family"], "weights": v.get("dtype", "float32"), "seed": seed,
             "soft_tokens": v.get("budget", 0), "vocab": c.vocab_size, "sliding_window": c.sliding_window,
             "layer_types": c.layer_types}
    parts.write_golden(folder, about, cases, tensors)
    return cases


if __name__ == "__main__":
    parts.main(__doc__, "gemma4", VARIANTS, attempt)
