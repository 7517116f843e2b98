#!/usr/bin/env python3
"""Writes tests/golden/native/: tiny random checkpoints of the families whose tower takes images at their own
size and merges patches into tokens (Mistral 3, Pixtral, LightOnOCR, PaddleOCR-VL, GLM-V, ...), and what
transformers makes of prompts, images and answers.

usage: make_native.py [--out DIR] [VARIANT ...]

The variants are in make_native_variants.py, the checkpoints are made by make_tiles.py. Format: README.md
here, the one of tests/golden/qwen."""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from transformers import AutoModelForImageTextToText, AutoTokenizer  # noqa: E402

import golden_parts as parts  # noqa: E402
from common import picture  # noqa: E402
from make_native_variants import FAMILIES, VARIANTS  # noqa: E402
import make_tiles  # noqa: E402


@torch.no_grad()
def fill(model, seed, family, inner=make_tiles.fill, **gains):
    """`small`: norms after a branch, whose rows are then as large as an embedding's."""
    inner(model, seed, family, **gains)
    for name, p in model.named_parameters():
        if any(name.endswith(f".{x}.weight") for x in family.get("small", ())):
            p.mul_(model.config.get_text_config().hidden_size ** -0.5)


class Native(parts.Prompt):
    """more: the processor's tensors; grids: rows and columns of tokens of each image."""

    def inputs(self, ids, dtype):
        more = {k: a.to(dtype) if a.is_floating_point() else a for k, a in self.more.items()}
        if self.typed:
            more["mm_token_type_ids"] = torch.tensor([self.types + [0] * (len(ids) - len(self.types))])
        return super().inputs(ids, dtype) | more

    def spans(self):
        """[first, end, kind] of each image, with the tokens between its rows."""
        out, at = [], 0
        for h, w in self.grids:
            begin = self.types.index(1, at)
            at = begin + h * w + (self.breaks and h - 1)
            assert sum(self.types[begin:at]) == h * w
            out.append([begin, at, 1])
        return out


def positions(p, count):
    """Of text (N, N, N); of an image's token (B, B + y, B + x); the text after it has B + max(h, w)."""
    out, nxt = [], 0
    for (begin, end, _kind), (h, w) in zip(p.spans(), p.grids):
        while len(out) < begin:
            out.append((nxt, nxt, nxt))
            nxt += 1
        out += [(nxt, nxt + y, nxt + x) for y in range(h) for x in range(w)]
        nxt += max(h, w)
    while len(out) < count:
        out.append((nxt, nxt, nxt))
        nxt += 1
    return np.array(out, np.int32).T


def prepare(case, family, processor, plain):
    rgb = [picture(*p) for p in case["pictures"]]
    rendered = case["prompt"] if case["kind"] == "raw" else \
        processor.apply_chat_template(case["messages"], tokenize=False, add_generation_prompt=True)
    out = processor(text=[rendered], images=[Image.fromarray(a) for a in rgb] or None, return_tensors="pt",
                    add_special_tokens=False)
    ids = out["input_ids"][0].tolist()
    image = plain.token_to_id(family["image"])
    more = {k: a for k, a in out.items() if k not in ("input_ids", "attention_mask", "token_type_ids",
                                                      "mm_token_type_ids")}
    return rendered, rgb, Native(ids, [int(i == image) for i in ids], more=more, breaks=family.get(
        "breaks", False), typed="mrope" in family, grids=[])


def store_image(name, planes, v, family, tensors):
    """The resized bytes, and the first patches: runs of merge x merge, each channel, frame, row, column."""
    patch, merge, depth = family["sizes"](v)
    mean, std = (np.array(a, np.float64)[:, None, None] for a in v.get("mean_std", family["mean_std"]))
    back = planes * (std * 255) + mean * 255
    assert np.abs(back - np.rint(back)).max() < 1e-3
    tensors[name + ".resized"] = np.ascontiguousarray(np.rint(back).astype(np.uint8).transpose(1, 2, 0))
    _, h, w = planes.shape
    h, w = (x // (patch * merge) * patch * merge for x in (h, w))
    down, across = h // patch // merge, w // patch // merge
    blocks = planes[:, :h, :w].reshape(3, down, merge, patch, across, merge, patch)
    rows = blocks.transpose(1, 4, 2, 5, 0, 3, 6).reshape(-1, 3, 1, patch, patch)[:8].repeat(depth, 2)
    if len(rows) == 8:
        tensors[name + ".patches"] = rows.reshape(len(rows), -1).astype(np.float32)


def check(moved, v, family):
    model, p = moved.model, moved.p
    last, margin = slice(len(p.ids) - 1, None), v.get("margin", 0.02)
    if not p.grids:
        return
    for k, other in enumerate(family["negated"](p.more, v)):
        moved(f"image {k}", margin, last, p.but(more=p.more | {"pixel_values": other}))
    if "mrope" in family:
        moved("plain positions", margin / 20, last,
              position_ids=torch.arange(len(moved.ids)).expand(3, 1, -1))
    for what, change in family.get("odd", {}).items():
        with change(model):
            moved(what, v.get("least", {}).get(what, margin / 20), last)


def attempt(name, v, seed, folder):
    family = FAMILIES[v["kind"]]
    filled = make_tiles.build_checkpoint(v, family, seed, folder)
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
    processor = family["processor"](v, AutoTokenizer.from_pretrained(folder))
    model = parts.load(AutoModelForImageTextToText, folder, torch.float32)
    parts.same_model(model, filled)
    twin = parts.load(AutoModelForImageTextToText, folder, torch.bfloat16) if v.get("dtype") else None
    tensors, cases = {}, []
    for n, case in enumerate(v["cases"]):
        rendered, rgb, p = prepare(case, family, processor, plain)
        planes = family["planes"](p.more, v) if rgb else []
        patch, merge, _ = family["sizes"](v)
        p.grids = [(a.shape[1] // patch // merge, a.shape[2] // patch // merge) for a in planes]
        key = f"case{n}."
        avoid = {plain.token_to_id(family["image"])} | set(range(family["vocab"], v["text"]["vocab_size"]))
        new, measured = parts.run_case(key, p, v, model, twin, tensors, lambda m: check(m, v, family), avoid)
        if "mrope" in family:
            at = positions(p, len(p.ids) + len(new))
            tensors[key + "positions"] = at
            if rgb:
                inputs = p.inputs(p.ids + new, torch.float32)
                theirs = model.model.get_rope_index(**{k: inputs[k] for k in (
                    "input_ids", "mm_token_type_ids", "image_grid_thw", "attention_mask")})[0][:, 0]
                assert np.array_equal(theirs.numpy(), at), "another position rule than ours"
        for k, a in enumerate(rgb):
            tensors[f"{key}image{k}.rgb"] = a
            store_image(f"{key}image{k}", planes[k], v, family, tensors)
        spans = [{"begin": s[0], "end": s[1], "kind": "image", "index": k, "first": 0,
            "grid": [1, *p.grids[k]], "seconds": 0.0} for k, s in enumerate(p.spans())]
        head = {"id": n, "kind": case["kind"], "note": case["note"], "images": len(rgb), "prompt_tokens": len(
            p.ids), "image_spans": [s[:2] for s in p.spans()], "spans": spans, "template": {}}
        body = {"prompt": case["prompt"]} if case["kind"] == "raw" else {"messages": case["messages"]}
        cases.append(head | body | {"rendered": rendered, "measured": measured,
                                    "greedy_text": plain.decode(new, skip_special_tokens=False)})
    about = {"variant": name, "family": v["family"], "weights": v.get("dtype", "float32"), "seed": seed,
             "vocab": v["text"]["vocab_size"]}
    parts.write_golden(folder, about, cases, tensors)
    return cases


if __name__ == "__main__":
    make_tiles.fill = fill
    parts.main(__doc__, "native", VARIANTS, attempt)
