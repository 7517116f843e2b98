#!/usr/bin/env python3
"""How close is a server to the float32 run of a real text checkpoint (Gemma 3, Qwen2.5, Qwen3), measured against how close transformers' own bf16 run is?

    compare_real.py MODEL_DIR [--url http://127.0.0.1:8000] [--tokens 2000] [--model NAME] [--cache FILE.npz]

The first --tokens tokens of mixed.txt are scored in one sequence: the log-prob of every actual next token, from transformers in float32,
from transformers in bf16, and (with --url) from the server's /v1/completions with echo, whose prompt is the token ids. Prints mean
|difference| to float32 of both, and their ratio. The two transformers runs take minutes and are kept in --cache, outside the repository
(default ~/.cache/kvasir-reference/), keyed by the checkpoint's files and the tokens.
    compare_real.py MODEL_DIR --url URL --against URL     two servers, without transformers
"""
import argparse
import hashlib
import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent


def token_ids(folder, count):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    first = [] if config["model_type"].startswith("qwen") else [config.get("bos_token_id") or config.get("text_config", {}).get("bos_token_id") or 2]
    ids = tokenizer.encode((HERE / "mixed.txt").read_text(encoding="utf-8"), add_special_tokens=False).ids
    if len(first + ids) < count:
        sys.exit(f"mixed.txt has only {len(first + ids)} tokens in this vocabulary")
    return (first + ids)[:count]


def run_transformers(folder, ids, dtype, **more):
    """Log-prob of ids[t+1] after ids[:t+1], for t in 0..len-2; the softmax in float64 over the logits as the model gives them."""
    import torch
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager", **more)
    model.eval()
    out = np.empty(len(ids) - 1, np.float64)
    with torch.no_grad():
        base = model.get_decoder() if hasattr(model, "get_decoder") else model.model
        hidden = base(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0]
        for a in range(0, len(ids) - 1, 128):  # the head in slices: 2,000 x 262,144 logits would not fit
            b = min(a + 128, len(ids) - 1)
            logits = model.lm_head(hidden[a:b])
            cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
            if cap:
                logits = torch.tanh(logits / cap) * cap
            logits = logits.double()
            want = torch.tensor(ids[a + 1:b + 1])
            out[a:b] = (logits.gather(1, want[:, None])[:, 0] - torch.logsumexp(logits, 1)).numpy()
    return out


def reference(folder, ids, cache):
    """Both transformers runs, from the cache where it holds them."""
    import torch
    import transformers
    key = hashlib.sha256(json.dumps([ids, transformers.__version__] + sorted(
        (f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in folder.glob("*.safetensors"))).encode()).hexdigest()
    if cache.exists():
        with np.load(cache) as kept:
            if str(kept["key"]) == key:
                return kept["f32"], kept["bf16"]
    print("running transformers in float32 and bf16 ...", file=sys.stderr)
    f32 = run_transformers(folder, ids, torch.float32)
    bf16 = run_transformers(folder, ids, torch.bfloat16)
    cache.parent.mkdir(parents=True, exist_ok=True)
    np.savez(cache, key=key, f32=f32, bf16=bf16)
    return f32, bf16


def run_server(url, name, ids):
    if not name:
        with urllib.request.urlopen(url + "/v1/models", timeout=30) as r:
            name = json.load(r)["data"][0]["id"]
    body = {"model": name, "prompt": ids, "max_tokens": 1, "echo": True, "logprobs": 0, "temperature": 0}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    key = os.environ.get("KVASIR_API_KEY")
    if key:
        request.add_header("Authorization", "Bearer " + key)
    try:
        with urllib.request.urlopen(request, timeout=1800) as r:
            values = json.load(r)["choices"][0]["logprobs"]["token_logprobs"]
    except urllib.error.HTTPError as e:
        sys.exit(f"the server answered {e.code}: {e.read().decode(errors='replace')}")
    if len(values) < len(ids) or any(x is None for x in values[1:len(ids)]):
        sys.exit(f"the server gave {len(values)} log-probs for {len(ids)} prompt tokens, or null where a number belongs")
    return np.array(values[1:len(ids)], np.float64)


def line(label, got, want):
    d = np.abs(got - want)
    print(f"{label:<28} mean |d| {d.mean():.5f}   median {np.median(d):.5f}   99 % {np.quantile(d, 0.99):.4f}   max {d.max():.4f}"
          f"   mean log-prob {got.mean():.4f}")
    return d.mean()


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("folder", type=Path, metavar="MODEL_DIR")
    args.add_argument("--url", help="a running server (else only transformers' two runs are compared)")
    args.add_argument("--against", metavar="URL", help="a second server, to compare the first with")
    args.add_argument("--model", help="model name to send (default: the first of /v1/models)")
    args.add_argument("--tokens", type=int, default=2000)
    args.add_argument("--limit", type=float, default=1.25, help="exit 1 when server / bf16 is above this")
    args.add_argument("--cache", type=Path)
    args = args.parse_args()
    folder = args.folder.resolve()
    cache = args.cache or Path.home() / ".cache/kvasir-reference" / f"{folder.name}-{args.tokens}.npz"
    ids = token_ids(folder, args.tokens)
    if args.url and args.against:
        base = run_server(args.against.rstrip("/"), args.model, ids)
        print(f"{folder.name}, {len(ids)} tokens; mean log-prob of the second server {base.mean():.4f}")
        line("server - second server", run_server(args.url.rstrip("/"), args.model, ids), base)
        return
    f32, bf16 = reference(folder, ids, cache)
    print(f"{folder.name}, {len(ids)} tokens; float32 mean log-prob {f32.mean():.4f} "
          f"(perplexity {np.exp(-f32.mean()):.2f})")
    own = line("transformers bf16 - float32", bf16, f32)
    if args.url:
        server = line("server - float32", run_server(args.url.rstrip("/"), args.model, ids), f32)
        print(f"ratio server / transformers bf16: {server / own:.3f} (limit {args.limit})")
        sys.exit(0 if server <= args.limit * own else 1)


if __name__ == "__main__":
    main()
