"""The bug that this project started from, to look at: a cached image, then a new one, on a Qwen3-VL demo model.

python3 scripts/seed_scenario.py [--model models/demo-qwen3-vl] [--pairs 100] [--seed 1] [--examples 4] [--json]

A conversation shows image A and asks about it; that much is cached. Then image B comes, with the question whether the two are
the same or what differs. The tokens of an image have positions in rows and columns, and text after an image continues from the
larger side of its grid, not from the number of its tokens: so what comes after a cached prefix needs the place where the positions
of the prefix ended, and a new image its rows and columns. Every pair is asked five times:

    cold     nothing cached
    warm     the prefix with A cached, positions as this server computes them; must be equal to cold: text, token ids, log-probs
    naive    the prefix with A cached, positions continued from the token count, the new image's too
    delta    the same, less what A saved: one number per conversation is kept, rows and columns of B are lost
    again     the positions are computed for what is not cached alone: they begin at 0 again, on top of those of A

The last three are what caches do that only know how many tokens the prefix has. They are this server as well, built with the known
bugs rope, rope-delta and rope-restart of tests/mutants. The servers are started one after the other. The images are held-out ones that the demo model was not trained on. Exit status 1 if a warm answer is not equal to the cold
one, or no prefix was reused. Python's standard library and Pillow only.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import subprocess
import sys

import second_image

RULES = {"cold": "nothing cached", "warm": "A cached, this server's rule", "naive": "A cached, positions from the token count",
         "delta": "A cached, positions counted on, one number kept", "restart": "A cached, positions begin at 0 again"}
MUTANTS = {"naive": "rope", "delta": "rope-delta", "restart": "rope-restart"}
SAME = "they are the same."
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def text_of(answer):
    return " ".join((answer["choices"][0]["message"]["content"] or "").split())


def question_of(message):
    return next(part["text"] for part in message["content"] if part["type"] == "text")


def both_turns(server, pair, name, cold=False):
    """The conversation under a cache name of its own: what the second turn finds cached is the first one, nothing else."""
    kind, first, last, expected = pair
    one = server.chat(first, cache_salt=name)
    messages = first + [{"role": "assistant", "content": one["choices"][0]["message"]["content"]}, last]
    two = server.chat(messages, cache_salt=name)
    done = {"kind": kind, "expected": expected, "question": question_of(last), "first_question": question_of(first[-1]),
            "first": second_image.outcome(one), "second": second_image.outcome(two), "text": text_of(two), "first_text": text_of(one),
            "cached": second_image.cached(two), "first_prompt": len(one["prompt_token_ids"]), "prompt": len(two["prompt_token_ids"])}
    if cold:
        alone = server.chat(messages, cache_salt=name + " cold")
        done["cold"], done["cold_text"], done["cold_cached"] = second_image.outcome(alone), text_of(alone), second_image.cached(alone)
    return done


def wrong(name):
    """kvasir with a known bug: its path"""
    command = [sys.executable, os.path.join(ROOT, "tests/mutants/run.py"), "--binary", name]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def run(args, binary, cold):
    with second_image.started(binary, args.model) as url, concurrent.futures.ThreadPoolExecutor(args.parallel) as pool:
        server = second_image.Server(url, args.timeout)
        pairs = second_image.pairs_of(args.seed, args.pairs)
        return list(pool.map(lambda i: both_turns(server, pairs[i], f"pair {i}", cold), range(len(pairs))))


def measure(args):
    right = run(args, args.binary, True)
    others_of = {rule: run(args, wrong(name), False) for rule, name in MUTANTS.items()}
    result = collections.Counter(pairs=len(right))
    shown = []
    for i, r in enumerate(right):
        others = {rule: runs[i] for rule, runs in others_of.items()}
        texts = {"cold": r["cold_text"], "warm": r["text"], **{rule: n["text"] for rule, n in others.items()}}
        differ = not r["expected"].endswith(SAME)
        result["pairs_" + r["kind"]] += 1
        result["different_pairs"] += differ
        for rule, text in texts.items():
            result["right_" + rule] += text == r["expected"]
            result[f"right_{rule}_{r['kind']}"] += text == r["expected"]
            result["called_same_" + rule] += differ and text.endswith(SAME)
        for rule, done in {"warm": r, **others}.items():
            result["equal_" + rule] += done["second"] == r["cold"]
        result["spoilt"] += texts["warm"] == r["expected"] != texts["naive"]
        result["same_first_turn"] += all(n["first"] == r["first"] for n in others.values())
        result["covered"] += all(done["cached"] >= done["first_prompt"] for done in (r, *others.values()))
        result["cold_cached_tokens"] += r["cold_cached"]
        result["cached_tokens"] += r["cached"]
        result["prompt_tokens"] += r["prompt"]
        telling = (texts["warm"] == r["expected"], texts["naive"] != r["expected"], differ and texts["naive"].endswith(SAME),
                   texts["delta"] != r["expected"], texts["restart"] != r["expected"], -i)
        shown.append((telling, {**{k: r[k] for k in ("first_question", "first_text", "question", "expected", "cached", "prompt")}, **texts}))
    return dict(result), [e for _, e in sorted(shown, key=lambda s: s[0], reverse=True)[:args.examples]]


def share(n, of):
    return f"{n} of {of} ({100 * n / max(of, 1):.0f} %)"


def brief(text, most=150):
    return text if len(text) <= most else text[:most] + " ..."


def report(r, examples):
    for e in examples:
        print(f"A shown, asked:  {e['first_question']}\n      answered:  {brief(e['first_text'])}\n"
              f"B shown, asked:  {e['question']}   ({e['cached']} of {e['prompt']} prompt tokens were cached)\n"
              f"      expected:  {e['expected']}")
        for rule in RULES:
            print(f"      {rule:8s}   {brief(e[rule])}   [{'right' if e[rule] == e['expected'] else 'WRONG'}]")
        print()
    n = r["pairs"]
    print(f"{n} pairs of held-out images; right answers about both:")
    for rule, what in RULES.items():
        print(f"  {rule:6s} {share(r['right_' + rule], n):18s} same? {share(r[f'right_{rule}_same'], r['pairs_same']):16s} "
              f"what differs? {share(r[f'right_{rule}_differs'], r['pairs_differs']):16s} {what}")
    print(f"right by this server's rule and wrong with positions from the token count: {share(r['spoilt'], n)}")
    print("different images that were called the same: "
          + ", ".join(f"{rule} {r['called_same_' + rule]}" for rule in RULES) + f" of {r['different_pairs']}")
    print("equal to the cold answer, text, token ids and log-probs: "
          + ", ".join(f"{rule} {r['equal_' + rule]}" for rule in list(RULES)[1:]) + f" of {n}")
    print(f"prefix with A reused: {r['covered']} of {n}; {r['cached_tokens']} of {r['prompt_tokens']} prompt tokens came from the cache")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default=os.path.join(ROOT, "models/demo-qwen3-vl"))
    p.add_argument("--binary", default=second_image.BINARY)
    p.add_argument("--pairs", type=int, default=100)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--examples", type=int, default=4, help="pairs to print; the most telling ones")
    p.add_argument("--parallel", type=int, default=8, help="conversations at a time")
    p.add_argument("--timeout", type=float, default=120)
    p.add_argument("--json", action="store_true", help="one line of JSON instead of the text")
    args = p.parse_args()
    if args.pairs < 1:
        p.error("--pairs: at least one")
    result, examples = measure(args)
    if args.json:
        print(json.dumps({**result, "examples": examples}))
    else:
        report(result, examples)
    n = result["pairs"]
    sys.exit(0 if result["equal_warm"] == result["covered"] == result["same_first_turn"] == n and result["cold_cached_tokens"] == 0 else 1)


if __name__ == "__main__":
    main()
