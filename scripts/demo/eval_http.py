"""Held-out accuracy of the demo model through the HTTP API of a running server. Python's standard library and Pillow only.

python3 scripts/demo/eval_http.py --url http://127.0.0.1:8000 [--single 500] [--pairs 200] [--turns 0] [--seed 1]
python3 scripts/demo/eval_http.py --mode turns       # only conversations: picture A in the first turn, B in the second
Pictures are sent as data:image/png URIs, an answer counts if its text is the expected sentence. Exit status 1 if less than
95 % of the single-picture questions or 90 % of the two-picture questions (in one turn or in two) are right.
"""

import argparse
import base64
import collections
import concurrent.futures
import io
import json
import os
import sys
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import shapes

NEEDED = {"single": 0.95, "pairs": 0.90, "turns": 0.90}


def data_uri(picture):
    data = io.BytesIO()
    picture.save(data, "PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


def user(pictures, question, text_first):
    parts = [{"type": "picture", "picture": p} for p in pictures]
    text = {"type": "text", "text": question}
    return {"role": "user", "content": [text] + parts if text_first else parts + [text]}


def questions(part, seed, count):
    """A list of (kind, messages with {"type": "picture"} parts, expected answer)."""
    out = []
    if part == "single":
        for kind, pictures, question, answer in shapes.heldout_single(seed, count):
            out.append((kind, [user(pictures, question, len(out) % 4 == 3)], answer))
    else:
        later = part == "turns"
        for kind, pictures, question, answer, (q, a) in shapes.heldout_pairs(seed, count, later):
            if later:
                messages = [user(pictures[:1], q, False), {"role": "assistant", "content": a},
                            user(pictures[1:], question, len(out) % 4 == 3)]
            else:
                messages = [user(pictures, question, len(out) % 4 == 3)]
            if len(out) % 5 == 4:
                system = shapes.SYSTEMS[len(out) // 5 % len(shapes.SYSTEMS)]
                messages.insert(0, {"role": "system", "content": system})
            out.append((kind, messages, answer))
    return out


def evaluate(args, ask):
    """ask: takes an iterable of message lists and yields the answers in order. Returns the exit status."""
    failed = False
    for part in ("single", "pairs", "turns"):
        count = getattr(args, part)
        if not count:
            continue
        items = questions(part, args.seed, count)
        total, right = collections.Counter(), collections.Counter()
        for (kind, messages, expected), answer in zip(items, ask([m for _, m, _ in items])):
            good = " ".join(answer.split()) == expected
            total[kind] += 1
            right[kind] += good
            if not good and args.show:
                asked = [p["text"] for p in messages[-1]["content"] if p["type"] == "text"][0]
                print(f"  {asked!r}: expected {expected!r}, answered {answer!r}")
        share = sum(right.values()) / sum(total.values())
        kinds = ", ".join(f"{k} {right[k]}/{total[k]}" for k in sorted(total))
        print(f"{part}: {sum(right.values())}/{sum(total.values())} right = {100 * share:.1f} % ({kinds})", flush=True)
        failed |= share < NEEDED[part]
    return 1 if failed else 0


def arguments(description):
    p = argparse.ArgumentParser(description=description)
    p.add_argument("--single", type=int, default=500, help="questions about one picture")
    p.add_argument("--pairs", type=int, default=200, help="questions about two pictures in one message")
    p.add_argument("--turns", type=int, default=0, help="questions about two pictures that came in two turns")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--show", action="store_true", help="print wrong answers")
    return p


def main():
    p = arguments(__doc__.splitlines()[0])
    p.add_argument("--url", default="http://127.0.0.1:8000")
    p.add_argument("--mode", choices=("all", "single", "pairs", "turns"), default="all", help="only this part")
    p.add_argument("--parallel", type=int, default=8, help="requests at a time")
    p.add_argument("--timeout", type=float, default=120)
    args = p.parse_args()
    if args.mode == "turns" and not args.turns:
        args.turns = 200
    for part in ("single", "pairs", "turns"):
        if args.mode not in ("all", part):
            setattr(args, part, 0)
    base = args.url.rstrip("/")
    base = base[:-3] if base.endswith("/v1") else base
    with urllib.request.urlopen(base + "/v1/models", timeout=args.timeout) as reply:
        model = json.load(reply)["data"][0]["id"]

    def answer(messages):
        turns = []
        for m in messages:
            content = m["content"]
            if isinstance(content, list):
                content = [{"type": "image_url", "image_url": {"url": data_uri(c["picture"])}} if c["type"] == "picture" else c
                           for c in content]
            turns.append({"role": m["role"], "content": content})
        body = {"model": model, "messages": turns, "temperature": 0, "max_tokens": 80}
        request = urllib.request.Request(base + "/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=args.timeout) as reply:
                return json.load(reply)["choices"][0]["message"]["content"] or ""
        except urllib.error.HTTPError as error:
            return f"(HTTP {error.code}: {error.read(300).decode(errors='replace')})"

    with concurrent.futures.ThreadPoolExecutor(args.parallel) as pool:
        sys.exit(evaluate(args, lambda all_messages: pool.map(answer, all_messages)))


if __name__ == "__main__":
    main()
