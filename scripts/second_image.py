"""The scenario that started this project, on a running server: a conversation about image A is cached, then image B comes and
the question is whether the two are the same or what differs. Elsewhere the cached prefix made B look like A.

python3 scripts/second_image.py --url http://127.0.0.1:8000 [--cold-url http://127.0.0.1:8001] [--pairs 200] [--seed 1] [--json]
python3 scripts/second_image.py --model models/demo-qwen3-vl        # starts its own two servers: one with, one without the cache

For every held-out pair: the first request shows A and asks about it; the second is the same conversation with the model's own
response, B, and the question about both. Measured are
    right     the response is the expected sentence (the demo model knows these images; at least 90 %),
    covered   usage.prompt_tokens_details.cached_tokens of the second request is exactly the number of leading tokens that its
              prompt shares with what the first one computed: the first prompt, and its output without the last token, whose
              keys and values nobody needed. That is never less than the whole first prompt, image A included,
    equal     text, token ids and log-probs (5 alternatives each) are those of the same request on a server that was started with
              --prefix-cache off, and again on the first server after POST /reset_prefix_cache.
Exit status 1 if a share is too small; `covered` and `equal` must be all. Standard library and Pillow only. --cold-url left out:
the cold answers come from the same server, with a cache_salt of their own for each request. --model: a demo model of this
repository (models/demo, models/demo-qwen3-vl); --binary says which server to start.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "demo"))

try:
    import eval_http
    import shapes
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing.name} is missing: the images are drawn with Pillow (pip install pillow)") from None

NEEDED = 0.90
BINARY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "build/release/kvasir")


@contextlib.contextmanager
def started(binary, model, *flags):
    """Starts a server on a free port and gives its address; ends it after the `with`."""
    command = [binary, "serve", "--model", model, "--port", "0", "--log-level", "warn", "--shutdown-delay", "0", *flags]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    except OSError as error:
        raise SystemExit(f"{binary}: {error.strerror}; build it with `make`, or name another one with --binary") from None
    try:
        line = process.stdout.readline()
        match = re.fullmatch(r"kvasir: listening on (http://.+:\d+)\n", line)
        if not match:
            raise SystemExit(f"the server did not start: {' '.join(command)}")
        yield match[1]
    finally:
        process.terminate()
        process.stdout.close()
        process.wait(60)


class Server:
    def __init__(self, url, timeout):
        self.base = url.rstrip("/")
        self.base = self.base[:-3] if self.base.endswith("/v1") else self.base
        self.timeout = timeout
        self.model = self.call("/v1/models")["data"][0]["id"]

    def call(self, path, body=None, empty=False):
        data = b"" if empty else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            raise SystemExit(f"{path}: HTTP {error.code}: {error.read(600).decode(errors='replace')}") from None

    def chat(self, messages, **extra):
        return self.call("/v1/chat/completions", {"model": self.model, "messages": messages, "temperature": 0, "max_tokens": 80,
                                                  "logprobs": True, "top_logprobs": 5, "return_token_ids": True, **extra})


def pictured(image, text, text_first=False):
    parts = [{"type": "image_url", "image_url": {"url": eval_http.data_uri(image)}}, {"type": "text", "text": text}]
    return {"role": "user", "content": parts[::-1] if text_first else parts}


def pairs_of(seed, count):
    """A list of (kind, first messages, last message, expected answer)."""
    out = []
    for kind, images, question, expected, (first_question, _) in shapes.heldout_pairs(seed, count, later=True):
        first = [pictured(images[0], first_question)]
        if len(out) % 5 == 4:
            first.insert(0, {"role": "system", "content": shapes.SYSTEMS[len(out) // 5 % len(shapes.SYSTEMS)]})
        out.append((kind, first, pictured(images[1], question, len(out) % 4 == 3), expected))
    return out


def outcome(answer):
    """What must not depend on the cache."""
    choice = answer["choices"][0]
    return {k: choice[k] for k in ("message", "logprobs", "finish_reason", "token_ids")}


def common(a, b):
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def converse(server, pair):
    """Both turns on the server with the cache."""
    kind, first, last, expected = pair
    one = server.chat(first)
    messages = first + [{"role": "assistant", "content": one["choices"][0]["message"]["content"]}, last]
    two = server.chat(messages)
    computed = one["prompt_token_ids"] + one["choices"][0]["token_ids"][:-1]
    shared = common(two["prompt_token_ids"], computed)
    text = two["choices"][0]["message"]["content"] or ""
    return {"kind": kind, "messages": messages, "expected": expected, "text": " ".join(text.split()), "outcome": outcome(two),
            "first_prompt": len(one["prompt_token_ids"]), "shared": shared, "cached": cached(two),
            "images": two["usage"]["prompt_tokens_details"]["image_tokens"], "prompt": len(two["prompt_token_ids"])}


def measure(args):
    """With the servers of --url and --cold-url, or with two of our own."""
    if not args.model:
        return measure_at(args)
    with started(args.binary, args.model, "--enable-admin") as args.url, started(args.binary, args.model, "--prefix-cache", "off") as args.cold_url:
        return measure_at(args)


def measure_at(args):
    warm = Server(args.url, args.timeout)
    cold = Server(args.cold_url, args.timeout) if args.cold_url else warm
    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(args.parallel) as pool:
        done = list(pool.map(lambda pair: converse(warm, pair), pairs_of(args.seed, args.pairs)))
        warm_seconds = time.monotonic() - started

        def alone(number):
            return cold.chat(done[number]["messages"], **({} if args.cold_url else {"cache_salt": f"cold {args.seed} {number} {started}"}))

        colds = list(pool.map(alone, range(len(done))))
        warm.call("/reset_prefix_cache", empty=True)
        again = list(pool.map(lambda d: outcome(warm.chat(d["messages"])), done))
    for d, c, a in zip(done, colds, again):
        d["right"] = d["text"] == d["expected"]
        d["cold_cached"] = cached(c)
        d["equal"] = outcome(c) == d["outcome"] and a == d["outcome"]
        d["covered"] = d["cached"] == d["shared"] >= d["first_prompt"]
    result = {"pairs": len(done), "seconds": round(warm_seconds, 2)}
    for key in ("right", "covered", "equal"):
        result[key] = sum(d[key] for d in done)
    for kind in ("same", "differs"):
        result["right_" + kind] = sum(d["right"] for d in done if d["kind"] == kind)
        result["pairs_" + kind] = sum(d["kind"] == kind for d in done)
    for key in ("cached", "prompt", "first_prompt", "cold_cached"):
        result[key + "_tokens"] = sum(d[key] for d in done)
    if args.show:
        for d in done:
            if not (d["right"] and d["covered"] and d["equal"]):
                print({k: v for k, v in d.items() if k not in ("messages", "outcome")}, file=sys.stderr)
    return result


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--url", default="http://127.0.0.1:8000")
    p.add_argument("--cold-url", help="a server with --prefix-cache off")
    p.add_argument("--model", help="a folder: start two servers on it instead")
    p.add_argument("--binary", default=BINARY, help="the server to start for --model")
    p.add_argument("--pairs", type=int, default=200)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--parallel", type=int, default=8, help="conversations at a time")
    p.add_argument("--timeout", type=float, default=120)
    p.add_argument("--need", type=float, default=NEEDED, help="share of right answers below which the exit status is 1")
    p.add_argument("--show", action="store_true", help="print pairs that are wrong, not covered or not equal (stderr)")
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    r = measure(args)
    if args.json:
        print(json.dumps(r))
    else:
        n = r["pairs"]
        print(f"{n} held-out pairs, A cached, then B: {r['right']} right = {100 * r['right'] / n:.1f} % "
              f"(same {r['right_same']}/{r['pairs_same']}, differs {r['right_differs']}/{r['pairs_differs']}), {r['seconds']} s\n"
              f"cached_tokens as they should be, prefix with A covered: {r['covered']}/{n}; "
              f"{r['cached_tokens']} of {r['prompt_tokens']} prompt tokens reused (cold runs: {r['cold_cached_tokens']})\n"
              f"equal to the cold answers, text, ids and log-probs: {r['equal']}/{n}")
    whole = r["covered"] == r["equal"] == r["pairs"] and r["cold_cached_tokens"] == 0
    sys.exit(0 if whole and r["right"] >= args.need * r["pairs"] else 1)


if __name__ == "__main__":
    main()
