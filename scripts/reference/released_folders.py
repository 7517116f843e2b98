#!/usr/bin/env python3
"""Released model folders, all but the weights, as public repositories carry them: a server of ours against
transformers.

    released_folders.py MIRROR [--vocabs DIR] [--gemma DIR] [--binary build/release/kvasir] [NAME...]
    released_folders.py --list

MIRROR holds a clone of each repository, or its git directory, as OWNER+NAME (or OWNER+NAME/repo). config.json
keeps its spelling, but has fewer layers and a narrower decoder; the weights are random, by transformers'
class. Compared in float32: prompt ids of chats (system, turns, tools, images), ids of plain texts, log-probs
of prompts and of greedy tokens. An id or 1e-4 of difference fails. Of the folders this repository holds only
the list, released_folders.json: name, repository, revision, path, SHA-256 of config.json.

kind whole: with its tokenizer; where tokenizer.json (4 MB and more) isn't there, transformers makes it of
vocab.json and merges.txt. kind vocab: the tokenizer's vocabulary is from elsewhere, `vocab`: a file of
llama.cpp's models/ in --vocabs, Gemma 3's tokenizer.json in --gemma, or the merges alone with ids in their
order. kind config: only config.json is there; log-probs of given ids are compared."""

import argparse
import base64
import copy
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from served import Server

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
FOLDERS = json.loads((HERE / "released_folders.json").read_text())
COPIED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "model.safetensors.index.json",
    "tokenizer.model",
)
TOLERANCE = 1e-4


# ---------------------------------------------------------------------- folders


def read(mirror, repo, revision, path):
    """The file at the revision, from git or a plain folder; None if it is absent, or a pointer to a large
    one."""
    base = mirror / repo.replace("/", "+")
    git = next((d for d in (base / "repo", base / ".git", base) if (d / "HEAD").exists()), None)
    if git is None:
        return (base / path).read_bytes() if (base / path).exists() else None
    got = subprocess.run(["git", "--git-dir", str(git), "show", f"{revision}:{path}"], capture_output=True)
    return (
        got.stdout if got.returncode == 0 and not got.stdout.startswith(b"version https://git-lfs") else None
    )


def gather(entry, mirror, out):
    for name in COPIED:
        path = entry.get("files", {}).get(name) or (entry["path"] + "/" if entry["path"] else "") + name
        data = read(mirror, entry["repo"], entry["revision"], path)
        if data is not None:
            (out / name).write_bytes(data)
    if not (out / "config.json").exists():
        sys.exit(f"{entry['name']}: {entry['repo']} isn't in the mirror, or not at {entry['revision']}")
    found = hashlib.sha256((out / "config.json").read_bytes()).hexdigest()
    if found != entry["sha256"]:
        sys.exit(f"{entry['name']}: config.json has the SHA-256 {found}")


def merges_only(out):
    """Qwen3.5's tokenizer.json with ids of the bytes, then of the merges; the added tokens have their own."""
    import transformers
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    lines = (out / "merges.txt").read_text(encoding="utf-8").split("\n")
    merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    tokens = sorted(bytes_to_unicode().values(), key=ord) + list(dict.fromkeys(a + b for a, b in merges))
    added = json.loads((out / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    added = dict(sorted((int(i), transformers.AddedToken(**t)) for i, t in added.items()))
    tokens += [f"<unknown {i}>" for i in range(len(tokens), min(added))]
    made = transformers.Qwen3_5Tokenizer(vocab={t: i for i, t in enumerate(tokens)}, merges=merges)
    made.backend_tokenizer.add_tokens(list(added.values()))
    made.backend_tokenizer.save(str(out / "tokenizer.json"))


def gemma_of_gguf(path, gemma, out):
    """Gemma 4's tokens and merges in Gemma 3's tokenizer.json, whose rules are the same."""
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    text = {k: fields["tokenizer.ggml." + k].contents() for k in ("tokens", "merges", "token_type")}
    data = json.loads((gemma / "tokenizer.json").read_text(encoding="utf-8"))
    data["model"]["vocab"] = {t: i for i, t in enumerate(text["tokens"])}
    data["model"]["merges"] = [m.split(" ") for m in text["merges"]]
    data["added_tokens"] = [
        {
            "id": i,
            "content": t,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == 3,
        }
        for i, (t, kind) in enumerate(zip(text["tokens"], text["token_type"]))
        if kind in (3, 4)
    ]
    data["post_processor"]["special_tokens"]["<bos>"]["ids"] = [data["model"]["vocab"]["<bos>"]]
    (out / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")


def make_tokenizer(entry, out, args):
    vocab = entry.get("vocab", "")
    if entry["kind"] == "config" or ((out / "tokenizer.json").exists() and not vocab):
        return
    from transformers import AutoTokenizer

    if vocab == "merges":
        merges_only(out)
        return
    if vocab == "gemma3":
        shutil.copy(Path(args.gemma) / "tokenizer.json", out)  # tokenizer_config.json adds the release's own
    if vocab.endswith(".gguf"):
        gemma_of_gguf(Path(args.vocabs) / vocab, Path(args.gemma), out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    tokenizer.backend_tokenizer.save(str(out / "tokenizer.json"))


def shrink_text(c, layers):
    """Fewer layers, one or two KV heads, a narrow decoder; head sizes, vocabulary, all else as released."""
    heads = c.get("num_attention_heads")
    if heads:
        kv = c.get("num_key_value_heads", heads)
        size = c.get("head_dim") or c["hidden_size"] // heads
        wide = c["hidden_size"] == heads * size
        c["num_key_value_heads"], c["num_attention_heads"] = (
            (2, 2) if kv == heads else (1, max(2, min(heads // kv, 256 // size)))
        )
        c["hidden_size"] = c["num_attention_heads"] * size // (1 if wide else 2)
    else:
        c["hidden_size"] = 256  # absent heads: the class's own, with their own size
    if "intermediate_size" in c:
        c["intermediate_size"] = 352
    if c.get("block_ff_dim"):
        c["block_dim"] = c["conv_dim"] = c["conv_dim_out"] = c["hidden_size"]
        c["block_ff_dim"] = 384
    c["num_hidden_layers"] = layers
    for key in ("layer_types", "no_rope_layers"):
        if key in c:
            c[key] = c[key][:layers]
    if c.get("num_kv_shared_layers"):
        c["num_kv_shared_layers"] = layers // 2
    return c["hidden_size"]


def shrink(config, part):
    """The released configuration, smaller; the image tower keeps its widths."""
    c = copy.deepcopy(config)
    c.pop("quantization_config", None)
    c = c[part] if part else c  # of one whose processor isn't there: the decoder alone, as its own type
    text = c.get("text_config") or c.get("llm_config") or c
    types = text.get("layer_types") or []
    layers = next((n for n in range(2, len(types) + 1) if set(types[:n]) == set(types)), 2)
    if text.get("num_kv_shared_layers"):
        layers *= 2
    if "gemma3" in c["model_type"]:
        layers = 6
    if "no_rope_layers" in text or c["model_type"] == "smollm3":
        layers = 4
    if "qwen3_vl" in c["model_type"]:
        layers = 4
    hidden = shrink_text(text, layers)
    vision = c.get("vision_config")
    if vision is None:
        return c
    depth = 8 if "insert_layer_id" in vision else 4 if "deepstack_visual_indexes" in vision else 2
    vision["depth" if c["model_type"].startswith(("qwen", "glm")) else "num_hidden_layers"] = depth
    if vision.get("deepstack_visual_indexes"):
        vision["deepstack_visual_indexes"] = [0, 1, 3]
    if "fullatt_block_indexes" in vision or c["model_type"] == "qwen2_5_vl":
        vision["fullatt_block_indexes"] = [1]
    if c["model_type"] == "qwen2_vl":
        vision["hidden_size"] = hidden
    elif c["model_type"] == "qwen2_5_vl" or "out_hidden_size" in vision:
        vision["out_hidden_size"] = hidden
    if "projector_hidden_size" in c:
        c["projector_hidden_size"] = hidden
    return c


def model_class(config):
    import transformers

    named = getattr(transformers, (config.architectures or [""])[0], None)
    return named or transformers.AutoModelForCausalLM._model_mapping[type(config)]


def make_weights(out, entry):
    """Random ones, by the architecture's class; tensor names are those of the index, where there is one."""
    import torch
    import transformers
    from common import normal

    config = transformers.AutoConfig.from_pretrained(out)
    cls = model_class(config)
    torch.manual_seed(1)
    model = cls._from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() >= 2:
                gain = 2.0 if "embed_tokens" in name or "lm_head" in name else 1.2
                fan = p.shape[-1] if p.dim() == 2 else p[0].numel()
                p.copy_(normal(7, name, p.shape, gain * fan**-0.5))
            elif (p == 1).all() or (p == 0).all():  # norms and biases, from what they begin with
                p.add_(normal(7, name, p.shape, 0.2))
            if cls.__name__.startswith("Gemma4") and name.endswith(("q_norm.weight", "k_norm.weight")):
                p.mul_(1.5 * p.shape[0] ** -0.25)  # its scores aren't scaled: the norms are small as released
    model.tie_weights()
    made = out / "made"
    model.save_pretrained(made)
    for f in made.glob("*.safetensors"):
        f.rename(out / f.name)
    shutil.rmtree(made)
    index = out / "model.safetensors.index.json"
    if index.exists():
        compare_names(out, set(json.loads(index.read_text())["weight_map"]))
        index.unlink()
    (out / "made.txt").write_text(entry["sha256"] + hashlib.sha256(Path(__file__).read_bytes()).hexdigest())


def compare_names(out, released):
    """Renames what transformers writes otherwise than the release's index."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    path = out / "model.safetensors"
    with safe_open(path, "pt") as f:
        names = set(f.keys())
    if names <= released:
        return
    data = load_file(path)
    tails = {}
    for name in released:
        tails.setdefault(tuple(name.split(".")[-5:]), []).append(name)
    for name in sorted(names - released):
        parts = name.split(".")
        found = next((tails[tuple(parts[-k:])] for k in range(5, 1, -1) if tuple(parts[-k:]) in tails), [])
        if len(found) == 1:
            data[found[0]] = data.pop(name)
        else:
            print(f"  note: the release's index has no {name}")
    save_file(data, path, metadata={"format": "pt"})


# ---------------------------------------------------------------------- cases

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'Weather of a "place" & time.',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "a city, e.g. Århus"},
                    "days": {"type": "integer", "enum": [1, 2, 3]},
                },
                "required": ["city"],
            },
        },
    }
]
SIZES = [(200, 130), (61, 240), (330, 250)]


def pictures():
    from PIL import Image
    from common import picture

    return [Image.fromarray(picture(k + 1, *size)) for k, size in enumerate(SIZES)]


def conversations(vision):
    """name, messages (an int in a content is a picture), tools"""
    plain = [{"role": "user", "content": ["What is 12 × 7?\n\n  Answer in naïve words 漢字 🙂."]}]
    system = [{"role": "system", "content": ['You are terse.\nNever say  "sorry".']}]
    more = [
        {"role": "assistant", "content": ["Eighty-four."]},
        {"role": "user", "content": ["And\tminus 3? <b>now</b>"]},
    ]
    out = [
        ("user", plain, None),
        ("system", system + plain, None),
        ("turns", plain + more, None),
        ("tools", system + plain, TOOLS),
    ]
    if vision:
        out += [
            ("image", [{"role": "user", "content": [0, "What is this?"]}], None),
            (
                "images",
                [
                    {"role": "user", "content": [1, 2, "Compare them."]},
                    more[0],
                    {"role": "user", "content": [0, "and this?"]},
                ],
                None,
            ),
        ]
    return out


def for_transformers(messages, vision, images, entry):
    out = []
    for m in messages:
        parts = [
            {"type": "image", "image": images[p]} if isinstance(p, int) else {"type": "text", "text": p}
            for p in m["content"]
        ]
        listed = vision and not (m["role"] == "system" and entry.get("system") == "text")
        out.append({"role": m["role"], "content": parts if listed else m["content"][0]})
    return out


def for_server(messages, images):
    def url(image):
        data = io.BytesIO()
        image.save(data, "PNG")
        return {
            "type": "image_url",
            "image_url": {"url": "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()},
        }

    return [
        {
            "role": m["role"],
            "content": [
                url(images[p]) if isinstance(p, int) else {"type": "text", "text": p} for p in m["content"]
            ],
        }
        for m in messages
    ]


def forward(model, inputs, follow):
    """log-softmax of the prompt and the tokens behind it; image inputs as the processor gives them"""
    import torch

    ids = torch.cat([inputs["input_ids"], torch.tensor([follow], dtype=torch.long)], 1)
    rest = {k: v for k, v in inputs.items() if k not in ("input_ids", "attention_mask")}
    for key in ("token_type_ids", "mm_token_type_ids"):
        if key in rest:
            rest[key] = torch.cat([rest[key], torch.zeros(1, len(follow), dtype=rest[key].dtype)], 1)
    with torch.no_grad():
        return torch.log_softmax(
            model(input_ids=ids, attention_mask=torch.ones_like(ids), **rest, use_cache=False)
            .logits[0]
            .double(),
            -1,
        )


def compare_logprobs(model, inputs, answer, choice, skip):
    """The largest difference over prompt (without image tokens) and output; whether that is greedy."""
    ids, follow = inputs["input_ids"][0].tolist(), choice["token_ids"]
    want = forward(model, inputs, follow)
    given = answer.get("prompt_logprobs") or choice.get("prompt_logprobs")
    worst, greedy = 0.0, True
    for t in range(1, len(ids)):
        if ids[t] in skip:
            continue
        worst = max(worst, abs(given[t][str(ids[t])]["logprob"] - float(want[t - 1, ids[t]])))
    for k, token in enumerate(follow):
        row = want[len(ids) - 1 + k]
        greedy &= float(row.max() - row[token]) < TOLERANCE
        worst = max(worst, abs(choice["logprobs"]["content"][k]["logprob"] - float(row[token])))
    return worst, greedy


def texts():
    from compare_tokenizer import EDGE

    lines = (HERE / "mixed.txt").read_text(encoding="utf-8").split("\n")
    return ["\n".join(lines[k : k + 3]) for k in range(0, len(lines), 3)] + [
        "a" + e + "b " + e for e in EDGE if "<" not in e and "\ufffd" not in e and "\U0010ffff" not in e
    ]


def check_chats(folder, entry, model, server, faults):
    import torch
    import transformers
    from tokenizers import Tokenizer

    vision = any((folder / f).exists() for f in ("preprocessor_config.json", "processor_config.json"))
    loader = transformers.AutoProcessor if vision else transformers.AutoTokenizer
    processor = loader.from_pretrained(folder)
    tokenizer = processor.tokenizer if vision else processor
    file = Tokenizer.from_file(str(folder / "tokenizer.json"))
    got = {t: server.post("/tokenize", {"prompt": t, "add_special_tokens": False})["tokens"] for t in texts()}
    bad = [t for t in got if got[t] != file.encode(t, add_special_tokens=False).ids]
    if bad:
        faults.append(f"ids of {len(bad)} of {len(got)} texts, first {bad[0][:60]!r}")
    other = [t for t in got if got[t] != tokenizer(t, add_special_tokens=False)["input_ids"]]
    if other and not bad:
        print(
            f"  note: transformers' {type(tokenizer).__name__} has other ids than tokenizer.json for "
            f"{len(other)} of {len(got)} texts, "
            f"first {other[0][:40]!r}"
        )
    images, worst, count = pictures(), 0.0, 0
    if not processor.chat_template:
        return check_ids(model, server, faults)
    skip = {tokenizer.convert_tokens_to_ids(t) for t in entry.get("image_tokens", [])}
    for name, messages, tools in conversations(vision):
        if tools and "tools" not in str(processor.chat_template):
            continue  # a request with tools is refused there
        try:
            inputs = dict(
                processor.apply_chat_template(
                    for_transformers(messages, vision, images, entry),
                    tools=tools,
                    tokenize=True,
                    add_generation_prompt=True,
                    return_dict=True,
                    return_tensors="pt",
                )
            )
        except Exception as e:  # pylint: disable=broad-except; a template may refuse a role
            inputs = e
        try:
            answer = server.post(
                "/v1/chat/completions",
                {
                    "messages": for_server(messages, images),
                    **({"tools": tools} if tools else {}),
                    "max_tokens": 6,
                    "temperature": 0,
                    "return_token_ids": True,
                    "logprobs": True,
                    "prompt_logprobs": 0,
                    "ignore_eos": True,
                },
            )
        except RuntimeError as e:
            if not isinstance(inputs, Exception):
                faults.append(f"{name}: {e}")
            continue
        if isinstance(inputs, Exception):
            print(f"  note: {name}: the template alone refuses this: {str(inputs)[:100]}")
            continue
        ids = inputs["input_ids"][0].tolist()
        got = answer.get("prompt_token_ids") or answer["choices"][0].get("prompt_token_ids")
        count += 1
        if got != ids and not vision:  # transformers' class may differ from the file
            chat = for_transformers(messages, vision, images, entry)
            more = {"tools": tools, "tokenize": False, "add_generation_prompt": True}
            text = tokenizer.apply_chat_template(chat, **more)
            if got == file.encode(text, add_special_tokens=False).ids:
                print(f"  note: {name}: ids are those of tokenizer.json, not of {type(tokenizer).__name__}")
                ids, inputs = got, {"input_ids": torch.tensor([got])}
        if got != ids:
            at = next((k for k, (a, b) in enumerate(zip(got, ids)) if a != b), min(len(got), len(ids)))
            faults.append(
                f"{name}: {len(got)} ids for {len(ids)}, first difference at {at}: "
                f"{tokenizer.decode(got[at - 3:at + 8])!r}"
                f" for {tokenizer.decode(ids[at - 3:at + 8])!r}"
            )
            continue
        d, greedy = compare_logprobs(model, inputs, answer, answer["choices"][0], skip)
        worst = max(worst, d)
        if d > TOLERANCE or not greedy:
            faults.append(f"{name}: log-probs differ by {d:.2g}" + ("" if greedy else ", not greedy"))
    return worst, count


def check_ids(model, server, faults):
    """Of a folder that is only a configuration: log-probs of given ids."""
    import torch

    worst = 0.0
    for k in range(3):
        ids = torch.randint(1000, 30000, (1, 40 + 300 * k), generator=torch.Generator().manual_seed(k))
        answer = server.post(
            "/v1/completions",
            {
                "prompt": ids[0].tolist(),
                "max_tokens": 6,
                "temperature": 0,
                "logprobs": 0,
                "echo": True,
                "return_token_ids": True,
                "ignore_eos": True,
            },
        )
        choice = answer["choices"][0]
        follow, given = choice["token_ids"][-6:], choice["logprobs"]["token_logprobs"]
        want = forward(model, {"input_ids": ids}, follow)
        both = ids[0].tolist() + follow
        d = max(abs(given[t] - float(want[t - 1, both[t]])) for t in range(1, len(both)))
        worst = max(worst, d)
        if d > TOLERANCE:
            faults.append(f"{ids.shape[1]} ids: log-probs differ by {d:.2g}")
    return worst, 3


def run(entry, args):
    import torch
    import transformers

    folder = Path(args.work) / entry["name"]
    stamp = folder / "made.txt"
    if not stamp.exists() or not stamp.read_text().startswith(entry["sha256"]) or args.again:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        gather(entry, args.mirror, folder)
        make_tokenizer(entry, folder, args)
        if entry["kind"] == "config":
            for f in args.stand_in.glob("tokenizer*"):
                shutil.copy(f, folder)
        config = shrink(json.loads((folder / "config.json").read_text()), entry.get("part"))
        (folder / "config.json").write_text(json.dumps(config, indent=2))
        make_weights(folder, entry)
    config = transformers.AutoConfig.from_pretrained(folder)
    cls = model_class(config)
    model = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    faults = []
    with Server(
        args.binary,
        folder,
        "--dtype",
        "f32",
        "--max-context",
        "8192",
        "--kv-memory",
        "512M",
        "--generation-config",
        "ignore",
    ) as server:
        worst, count = (
            check_ids(model, server, faults)
            if entry["kind"] == "config"
            else check_chats(folder, entry, model, server, faults)
        )
    return worst, count, faults


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("mirror", nargs="?", type=Path)
    p.add_argument("names", nargs="*")
    p.add_argument("--list", action="store_true")
    p.add_argument("--binary", default=str(ROOT / "build/release/kvasir"))
    p.add_argument("--vocabs", help="models/ of llama.cpp's source")
    p.add_argument("--gemma", help="a folder with Gemma 3's tokenizer.json")
    p.add_argument(
        "--stand-in",
        type=Path,
        default=ROOT / "tests/golden/qwen/qwen3_f32",
        help="tokenizer of folders without one",
    )
    p.add_argument("--work", default=str(Path.home() / ".cache/kvasir-reference/released"))
    p.add_argument("--again", action="store_true", help="make the folders anew")
    args = p.parse_args()
    if args.list or not args.mirror:
        for e in FOLDERS:
            print(f"{e['name']:24} {e['kind']:8} {e['repo']}@{e['revision'][:12]} {e['path']}")
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    failed = 0
    for entry in FOLDERS:
        if args.names and entry["name"] not in args.names:
            continue
        try:
            worst, count, faults = run(entry, args)
        except Exception as e:  # pylint: disable=broad-except; the others still run
            worst, count, faults = 0.0, 0, [f"{type(e).__name__}: {str(e)[:400]}"]
            if args.names:
                import traceback

                traceback.print_exc()
        print(
            f"{entry['name']:24} {entry['kind']:8} {count} prompts, log-probs within {worst:.1e}"
            + ("" if not faults else ""),
            flush=True,
        )
        for f in faults:
            print(f"    {f}", flush=True)
        failed += bool(faults)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
