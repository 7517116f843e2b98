"""What make_paligemma.py, make_gemma4.py and make_gemma4_mtp.py share: a small SentencePiece-style tokenizer
whose special tokens are arguments, running a model without a cache, the limits that a tiny model must meet
before its answers are stored, and the files of a variant (format: README.md here, the one of
tests/golden/qwen).

Nothing here knows a family."""

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import save_file as save_torch

from common import HERE, REPO, train_merges
from make_qwen_checks import NotTelling, float_inputs_rounded, need

GENERATED = 16
BYTES = [f"<0x{b:02X}>" for b in range(256)]

# ------------------------------------------------------------------------------------------------- tokenizer


def tokenizer_json(head, tail, plain, size, newlines=3, spaces=4, chars=64):
    """A tokenizer.json in the shape of Gemma's with `size` ids: `head` first, then runs of newlines and
    spaces, bytes, pieces learnt from mixed.txt, single characters, and `tail` last. All of head and tail are
    special added tokens but those in `plain`, which maps a token to True (added, not special) or False (in
    the vocabulary only)."""
    text = (HERE / "mixed.txt").read_text(encoding="utf-8")
    vocab = (
        list(head) + ["\n" * n for n in range(1, newlines + 1)] + ["▁" * n for n in range(2, spaces + 1)]
        + BYTES)
    merges = [
        (c * k, c * (n - k)) for c, most in (("\n", newlines), ("▁", spaces)) for n in range(2, most + 1)
        for k in range(1, n)]
    counts = Counter(text.replace(" ", "▁").replace("\n", ""))
    alphabet = [c for c, _ in sorted(counts.items(), key=lambda p: (-p[1], p[0]))[:chars]]
    learned = train_merges(text, alphabet, size - len(vocab) - len(alphabet) - len(tail))
    vocab += [a + b for a, b in learned] + alphabet + list(tail)
    assert len(vocab) == len(set(vocab)) == size, (len(vocab), size)
    ids = {t: i for i, t in enumerate(vocab)}
    added = [
        {"id": ids[t], "content": t, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": t not in plain}
        for t in list(head) + list(tail)
        if plain.get(t, True)]
    bos = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
    single = [bos, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = single + [{"SpecialToken": {"id": "<bos>", "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                          "invert": False},
        "post_processor": {
            "type": "TemplateProcessing", "single": single, "pair": pair,
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [ids["<bos>"]], "tokens": ["<bos>"]}}},
        "decoder": {
            "type": "Sequence",
            "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                         {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": ids, "merges": [list(m) for m in merges + learned]}}


def write_tokenizer(folder, data, config):
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


# ----------------------------------------------------------------------------------------------- checkpoints


def edit_json(path, change):
    data = json.loads(path.read_text())
    data = change(data) or data
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def drop_key(config, key):
    *way, last = key.split(".")
    for step in way:
        config = config.get(step, {})
    config.pop(last, None)


def old_rope(c):
    """rope_parameters as files before transformers 5 spell them."""
    p = c.pop("rope_parameters", None)
    if not p:
        return
    kind = p.pop("rope_type", "default")
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in p:
            c[key] = p.pop(key)
    if p or kind not in ("default", "axial"):
        c["rope_scaling"] = {"rope_type": kind, "type": kind} | p


def spell_as_released(folder, top=None, text=None, vision=None, drop=(), flat=False, images=None):
    """The files of a release before transformers 5: `top`, `text` and `vision` are further keys of
    config.json, `flat` has the text's keys at the top; the settings for images are in
    preprocessor_config.json, with `images` too; the template is in chat_template.json."""

    def config(c):
        for part in (c, c.get("text_config", {}), c.get("vision_config", {})):
            old_rope(part)
            if "dtype" in part:
                part["torch_dtype"] = part.pop("dtype")
        c["transformers_version"] = "4.55.0"
        if "text_config" in c:
            c["text_config"] |= text or {}
        if "vision_config" in c:
            c["vision_config"] |= vision or {}
        c |= top or {}
        for key in drop:
            drop_key(c, key)
        return c.pop("text_config") | c if flat else c

    edit_json(folder / "config.json", config)
    path = folder / "processor_config.json"
    if path.exists():
        data = json.loads(path.read_text())
        data.pop("video_processor", None)
        settings = data.pop("image_processor") | {"processor_class": data["processor_class"]} | (images or {})
        settings = {k: x for k, x in settings.items() if x is not ...}
        (folder / "preprocessor_config.json").write_text(json.dumps(settings, indent=2) + "\n")
        path.write_text(json.dumps(data, indent=2) + "\n")
    template = folder / "chat_template.jinja"
    if template.exists():
        body = json.dumps({"chat_template": template.read_text()}, indent=2, ensure_ascii=False)
        (folder / "chat_template.json").write_text(body + "\n")
        template.unlink()


def rewrite(path, change):
    """change: all tensors by name -> all tensors by name."""
    with safe_open(path, "pt") as f:
        tensors = change({name: f.get_tensor(name).clone() for name in f.keys()})
    save_torch({k: t.contiguous() for k, t in tensors.items()}, path, metadata={"format": "pt"})


def load(cls, folder, dtype):
    model, info = cls.from_pretrained(folder, dtype=dtype, attn_implementation="eager",
                                      experts_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    assert model.config.get_text_config()._attn_implementation == "eager"
    return model.eval()


def state_of(model):
    return {k: t.detach().clone() for k, t in model.state_dict().items()}


def same_model(model, filled):
    """What was spelled as a release is read back to the model that was filled."""
    for name, t in model.state_dict().items():
        assert torch.equal(t, filled[name].to(t.dtype)), f"{name} is read back otherwise"


# --------------------------------------------------------------------------------------------------- running


class Prompt:
    """Model inputs of a prompt; types: 0 text, 1 picture, 2 video. A family's class adds its tensors."""

    def __init__(self, ids, types=None, **more):
        self.ids, self.types = list(ids), list(types) if types is not None else [0] * len(ids)
        self.__dict__.update(more)

    def but(self, **change):
        other = type(self)(self.ids, self.types)
        other.__dict__.update(self.__dict__ | change)
        return other

    def inputs(self, ids, dtype):
        return {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}

    def prompt_inputs(self, dtype):
        """What generate() is given."""
        return self.inputs(self.ids, dtype)

    def spans(self):
        """[first, end, kind] of each run of picture tokens."""
        out = []
        for i, t in enumerate(self.types):
            if t and (i == 0 or self.types[i - 1] != t or i in getattr(self, "cuts", ())):
                out.append([i, i, t])
            if t:
                out[-1][1] = i + 1
        return out


@torch.no_grad()
def logprobs(model, p, ids, **change):
    """One forward pass over the whole sequence without a cache: log-softmax [len(ids), V]; row t is about
    token t+1."""
    dtype = next(model.parameters()).dtype
    out = model(**p.inputs(ids, dtype) | change, use_cache=False).logits[0]
    return torch.log_softmax(out.to(torch.float64 if dtype == torch.float64 else torch.float32), -1)


def greedy(model, p, count, avoid=()):
    """Greedy continuation, the whole sequence run again for every token: the slow and unarguable way."""
    ids, gaps = list(p.ids), []
    for _ in range(count):
        two = torch.topk(logprobs(model, p, ids)[-1], 2)
        need(int(two.indices[0]) not in avoid, "generates a picture token, or one that no text stands for")
        ids.append(int(two.indices[0]))
        gaps.append(float(two.values[0] - two.values[1]))
    return ids[len(p.ids) :], gaps


@torch.no_grad()
def greedy_cached(model, p, count):
    """The same through transformers' generate() with its KV cache."""
    out = model.generate(**p.prompt_inputs(next(model.parameters()).dtype), max_new_tokens=count,
                         min_new_tokens=count, do_sample=False, eos_token_id=[], pad_token_id=0, top_k=None,
                         top_p=None, temperature=None, suppress_tokens=None)
    return out[0, len(p.ids) :].tolist()


@torch.no_grad()
def masks_seen(model, p, ids, attention):
    """layer index -> [len(ids), len(ids)] of bool: which keys each query is given. attention: the class's
    name."""
    seen, hooks = {}, []

    def look(m, _args, kwargs):
        seen[m.layer_idx] = (kwargs["attention_mask"][0, 0] == 0).numpy()

    for m in model.modules():
        if type(m).__name__ == attention:
            hooks.append(m.register_forward_pre_hook(look, with_kwargs=True))
    logprobs(model, p, ids)
    for h in hooks:
        h.remove()
    return seen


def kept_rows(p, total):
    """Rows whose log-probs are stored whole: each picture's first and last token and the one behind it, every
    sixteenth of the prompt, every fourth from the prompt's last on."""
    prompt = len(p.ids)
    rows = set(range(0, prompt, 16)) | set(range(prompt - 1, total, 4)) | {total - 1}
    for begin, end, _kind in p.spans():
        rows |= {begin, end - 1, end}
    return sorted(r for r in rows if r < total)


class Moved:
    """moved(what, limit, rows, q, tokens, **change): the mean |change| of the log-probs of `rows` must be
    above limit."""

    def __init__(self, model, p, ids, lp):
        self.model, self.p, self.ids, self.lp, self.found = model, p, ids, lp, {}

    def __call__(self, what, limit, rows=slice(None), q=None, tokens=None, **change):
        got = logprobs(self.model, q or self.p, tokens or self.ids, **change)[rows]
        delta = float((got - self.lp[rows]).abs().mean())
        need(delta > limit, f"{what}: mean |change| is only {delta:.5f}")
        self.found[what] = round(delta, 4)


def run_case(key, p, v, model, twin, tensors, check, avoid, first_position=0):
    """Runs a prompt and stores what the model says about it; returns what was measured. check(moved) must
    call moved() for all that the model has to react to."""
    low = twin is not None
    new, gaps = greedy(model, p, GENERATED, avoid)
    need(min(gaps) > (4e-3 if low else 2e-3), f"near-tie: {min(gaps):.5f}")
    need(len(set(new)) >= v.get("distinct", 6),
         f"greedy text repeats itself: {len(set(new))} of {GENERATED} ids")
    ids = p.ids + new
    lp = logprobs(model, p, ids)
    top = float(lp.exp().max(-1).values.mean())
    need(top > (0.06 if low else 0.1), f"flat: mean top probability {top:.3f}")
    assert lp.argmax(-1)[len(p.ids) - 1 : -1].tolist() == new
    moved = Moved(model, p, ids, lp)
    check(moved)
    entry = {"top_probability": round(top, 3), "smallest_gap": round(min(gaps), 5), "reacts": moved.found,
             "cached_decode_equal": greedy_cached(model, p, GENERATED) == new}
    # A picture token without a row has no log-prob: then all rows are stored, and none of follow, rows and
    # positions.
    rows = kept_rows(p, len(ids)) if max(ids) < lp.shape[1] else list(range(len(ids)))
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
            off = (other - lp).abs()
            entry[name] = {"max": round(float(off.max()), 4), "mean": round(float(off.mean()), 5)}
        off = (products - lp).abs()
        follows, best = torch.tensor(ids[1:]), lp.argmax(-1, keepdim=True)
        said = max(float(off[torch.arange(len(ids) - 1), follows].max()), float(off.gather(1, best).max()))
        entry["bf16_products_said"] = round(said, 4)
        need(said < 0.02, f"rounding alone gives {said:.4f}")
        need(float(off.max()) < 0.8 * entry["transformers_bf16_delta"]["max"],
             "rounding of products alone is too much")
        delta = (theirs - lp).abs()
        tensors[key + "logprobs_bf16"] = theirs[rows].to(torch.float16).numpy()
        tensors[key + "bf16_delta"] = np.array([float(delta.max()), float(delta.mean())], np.float32)
        tensors[key + "greedy_ids_bf16"] = np.array(greedy(twin, p, GENERATED)[0], np.int32)
    tensors[key + "prompt_ids"] = np.array(p.ids, np.int32)
    tensors[key + "greedy_ids"] = np.array(new, np.int32)
    tensors[key + "gaps"] = np.array(gaps, np.float32)
    tensors[key + "logprobs"] = lp[rows].numpy()
    if max(ids) < lp.shape[1]:
        tensors[key + "rows"] = np.array(rows, np.int32)
        tensors[key + "follow"] = lp[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].numpy()
        tensors[key + "positions"] = np.tile(np.arange(len(ids), dtype=np.int32) + first_position, (3, 1))
    return new, entry


def write_golden(folder, about, cases, tensors):
    save_numpy({k: np.ascontiguousarray(a) for k, a in tensors.items()}, folder / "golden.safetensors")
    about = about | {"generated": GENERATED, "transformers": transformers.__version__,
                     "torch": torch.__version__.split("+")[0], "cases": cases}
    text = json.dumps(about, indent=1, ensure_ascii=False) + "\n"
    (folder / "golden.json").write_text(text, encoding="utf-8")


def make(name, v, attempt, out):
    """attempt(name, v, seed, folder) -> cases, into tests/golden; the next seed while it raises
    NotTelling."""
    for seed in range(v["seed"], v["seed"] + v.get("tries", 100)):
        with tempfile.TemporaryDirectory() as tmp:
            folder = Path(tmp) / name
            folder.mkdir()
            try:
                cases = attempt(name, v, seed, folder)
            except NotTelling as e:
                print(f"{name}: seed {seed}: {e}", flush=True)
                continue
            target = out / name
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(folder, target)
            for f in target.rglob("*"):
                f.chmod(0o755 if f.is_dir() else 0o644)
        size = sum(f.stat().st_size for f in target.rglob("*"))
        print(f"{name}: seed {seed}, {size / 1024:.0f} KiB")
        for c in cases:
            print("   ", c["prompt_tokens"], json.dumps(c["measured"]), flush=True)
        return
    sys.exit(f"{name}: no seed gives a telling model")


def main(doc, folder, variants, attempt):
    """The command line of a script: into tests/golden/FOLDER, all variants or those named."""
    args = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("variants", nargs="*", metavar="VARIANT", help=", ".join(variants))
    args.add_argument("--out", type=Path, default=REPO / "tests/golden" / folder)
    args = args.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.variants or variants:
        make(name, variants[name], attempt, args.out)
