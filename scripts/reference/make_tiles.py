#!/usr/bin/env python3
"""Writes tests/golden/tiles/: tiny random checkpoints of the families that cut images into tiles (Idefics3,
SmolVLM, InternVL, LFM2-VL, Granite-Docling, ...), and what transformers makes of prompts, images and answers.

usage: make_tiles.py [--out DIR] [VARIANT ...]

The variants are in make_tiles_variants.py. Format: README.md here, the one of tests/golden/qwen, without
`spans`; `tiles` says of each span which image it belongs to and which of its tiles it is. image#.rgb counts
images, image#.pixel_values spans."""

import contextlib
import json
import os
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch  # noqa: E402
from PIL import Image  # noqa: E402
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers  # noqa: E402
from tokenizers import pre_tokenizers, trainers  # noqa: E402
from transformers import AutoConfig, AutoModelForImageTextToText, AutoTokenizer  # noqa: E402

import golden_parts as parts  # noqa: E402
import make_qwen_parts  # noqa: E402
from common import HERE, normal, picture  # noqa: E402
from make_qwen_checks import token_by_token  # noqa: E402
from make_tiles_variants import FAMILIES, VARIANTS  # noqa: E402
from make_tokenizer import LLAMA3  # noqa: E402

SPLITS = {"numbers": None, "plain": None, "digits3": LLAMA3, "qwen": make_qwen_parts.SPLIT}
VISUAL = ("vision", "connector", "projector", "visual", "merger")


def tokenizer_text(family):
    """Byte-level BPE: 256 bytes, merges learnt from mixed.txt, the family's tokens."""
    bpe = Tokenizer(
        models.BPE(fuse_unk=False, byte_fallback=False, ignore_merges=family["split"] == "digits3"))
    pattern = SPLITS[family["split"]]
    if pattern:
        first = pre_tokenizers.Split(Regex(pattern), "isolated", False)
        bpe.pre_tokenizer = pre_tokenizers.Sequence(
            [first, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        bpe.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(True)] * (family["split"] == "numbers")
            + [pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if family["split"] == "qwen":
        bpe.normalizer = normalizers.NFC()
    bpe.decoder = decoders.ByteLevel()
    size = family["vocab"] - len(family["tokens"])
    bpe.train_from_iterator(
        [(HERE / "mixed.txt").read_text(encoding="utf-8") + family.get("corpus", "")],
        trainers.BpeTrainer(
            vocab_size=size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    bpe.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in family["tokens"]])
    assert bpe.get_vocab_size() == family["vocab"], bpe.get_vocab_size()
    return json.dumps(json.loads(bpe.to_str()), ensure_ascii=False, separators=(",", ":"))


class Text:
    """The decoder of a model, for make_qwen_parts.fill."""

    def __init__(self, model):
        self.model, self.config = model, model.config.get_text_config()

    def named_parameters(self):
        return ((n, p) for n, p in self.model.named_parameters() if not any(v in n for v in VISUAL))

    def tie_weights(self):
        self.model.tie_weights()


@torch.no_grad()
def fill(model, seed, family, seen=1.6, pos=1.0, **gains):
    """The decoder as make_qwen.py fills it; rows of images as large as those of words."""
    make_qwen_parts.fill(Text(model), seed, **gains)
    unit = model.config.get_text_config().hidden_size ** -0.5
    for name, p in model.named_parameters():
        if not any(v in name for v in VISUAL):
            continue
        last = name.split(".")[-2] if name.endswith((".weight", ".bias")) else name.split(".")[-1]
        fan = p.shape[-1] ** -0.5
        if "norm" in last or last.startswith("ln_") or last.startswith("lambda"):
            w = normal(seed, name, p.shape, 0.2, 0.0 if name.endswith("bias") else 1.0)
            w = w * unit if any(name.endswith(f".{x}") for x in family.get("rows", ())) else w
        elif name.endswith("bias"):
            w = normal(seed, name, p.shape, 0.2 if not family["last"](name) else 0.2 * unit)
        elif "position" in last or last == "cls_token":
            w = normal(seed, name, p.shape, pos)
        elif family["last"](name):
            w = normal(seed, name, p.shape, 2.0 * seen * unit * fan)
        elif p.dim() >= 4:
            w = normal(seed, name, p.shape, 2.0 * p[0].numel() ** -0.5)
        elif p.dim() == 2:
            w = normal(seed, name, p.shape, 1.6 * fan)
        else:
            raise ValueError(f"no rule for {name} {tuple(p.shape)}")
        p.copy_(w)


def build_checkpoint(v, family, seed, folder):
    own = tokenizer_text(family)
    with tempfile.TemporaryDirectory() as tmp:
        tmp = Path(tmp)
        (tmp / "tokenizer.json").write_text(own, encoding="utf-8")
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False,
                  "model_max_length": 4096, "eos_token": family["end"], "pad_token": family["tokens"][0]}
        (tmp / "tokenizer_config.json").write_text(
            json.dumps(config | family.get("named", {}), indent=1) + "\n")
        tokenizer = AutoTokenizer.from_pretrained(tmp)
    config = AutoConfig.for_model(v["family"], text_config=v["text"], vision_config=v["vision"],
                                  image_token_id=tokenizer.convert_tokens_to_ids(family["image"]),
                                  **v.get("top", {}))
    model = AutoModelForImageTextToText.from_config(config).eval()
    fill(model, seed, family, **v.get("gains", {}))
    end = tokenizer.convert_tokens_to_ids(family["end"])
    model.generation_config.update(bos_token_id=None, eos_token_id=end, pad_token_id=0)
    model.to(getattr(torch, v.get("dtype", "float32"))).save_pretrained(folder)
    filled = parts.state_of(model)
    family["processor"](v, tokenizer).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(own, encoding="utf-8")
    if "released" in v:
        parts.spell_as_released(folder, **v["released"])
    for key in v.get("drop", []):
        parts.edit_json(folder / "config.json", lambda c, key=key: parts.drop_key(c, key))
    for file, changes in v.get("files", {}).items():
        parts.edit_json(folder / file, changes)
    return filled


class Tiled(parts.Prompt):
    def inputs(self, ids, dtype):
        more = {k: a.to(dtype) if a.is_floating_point() else a for k, a in self.more.items()}
        return super().inputs(ids, dtype) | more


def prepare(case, v, family, processor, plain):
    rgb = [picture(*p) for p in case["pictures"]]
    rendered = (
        case["prompt"] if case["kind"] == "raw"
        else processor.apply_chat_template(case["messages"], tokenize=False, add_generation_prompt=True))
    out = processor(text=[rendered], images=[Image.fromarray(a) for a in rgb] or None, return_tensors="pt",
                    add_special_tokens=False)
    ids = out["input_ids"][0].tolist()
    image = plain.token_to_id(family["image"])
    more = {
        k: a for k, a in out.items()
        if k not in ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")}
    p = Tiled(ids, [int(i == image) for i in ids], more=more, cuts=[])
    tiles = []
    if rgb:
        p.images = family["tiles"](more, v)
        sizes = [family["count"](a, v) for a in p.images]
        runs = p.spans()
        for begin, end, _kind in runs:
            while begin < end:
                begin += sizes[len(tiles)]
                p.cuts.append(begin)
                tiles.append(None)
        assert len(tiles) == len(p.images), (len(tiles), len(p.images))
        tiles = []
        for k, a in enumerate(rgb):
            one = processor(text=[family["image_text"]], images=[Image.fromarray(a)], return_tensors="pt")
            tiles += [[k, i] for i in range(len(family["tiles"](one, v)))]
        assert len(tiles) == len(p.images)
    return rendered, rgb, p, tiles


def check(moved, v, family):
    model, p = moved.model, moved.p
    last, margin = slice(len(p.ids) - 1, None), v.get("margin", 0.02)
    if not p.more:
        return
    key = "pixel_values"
    values = p.more[key]
    dim = 0 if values.dim() == 3 else values.dim() - 4  # [tiles, patches, values], [.., tiles, 3, h, w]
    for k in range(values.shape[dim]):
        other = values.clone()
        other.select(dim, k).neg_()
        moved(f"tile {k}", margin, last, p.but(more=p.more | {key: other}))
    with torch.no_grad():
        for name, w in model.named_parameters():
            if "position_embedding" in name:
                kept = w.detach().clone()
                w.copy_(kept.flip(-2))
                moved("positions", margin / 2, last)
                w.copy_(kept)
    for what, change in family.get("odd", {}).items():
        with change(model):
            moved(what, v.get("least", {}).get(what, margin / 20), last)


def attempt(name, v, seed, folder):
    family = FAMILIES[v["kind"]]
    filled = build_checkpoint(v, family, seed, folder)
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
    processor = family["processor"](v, AutoTokenizer.from_pretrained(folder))
    model = parts.load(AutoModelForImageTextToText, folder, torch.float32)
    parts.same_model(model, filled)
    twin = parts.load(AutoModelForImageTextToText, folder, torch.bfloat16) if v.get("dtype") else None
    tensors, cases = {}, []
    for n, case in enumerate(v["cases"]):
        rendered, rgb, p, tiles = prepare(case, v, family, processor, plain)
        key = f"case{n}."
        avoid = {plain.token_to_id(family["image"])} | set(range(family["vocab"], v["text"]["vocab_size"]))
        with token_by_token(model) if family.get("recurrent") else contextlib.nullcontext():
            new, measured = parts.run_case(
                key, p, v, model, twin, tensors, lambda m: check(m, v, family), avoid)
        for k, a in enumerate(rgb):
            tensors[f"{key}image{k}.rgb"] = a
        for k, a in enumerate(p.images if rgb and v.get("pixels", True) else []):
            tensors[f"{key}image{k}.pixel_values"] = a.numpy()
        head = {"id": n, "kind": case["kind"], "note": case["note"], "images": len(rgb),
                "prompt_tokens": len(p.ids), "image_spans": [s[:2] for s in p.spans()], "tiles": tiles,
                "template": {}}
        body = {"prompt": case["prompt"]} if case["kind"] == "raw" else {"messages": case["messages"]}
        cases.append(
            head | body
            | {"rendered": rendered, "measured": measured,
               "greedy_text": plain.decode(new, skip_special_tokens=False)})
    about = {"variant": name, "family": v["family"], "weights": v.get("dtype", "float32"), "seed": seed,
             "vocab": v["text"]["vocab_size"]}
    parts.write_golden(folder, about, cases, tensors)
    return cases


if __name__ == "__main__":
    parts.main(__doc__, "tiles", VARIANTS, attempt)
