"""T16 over HTTP on the bundled demo models: a prefix with image A is cached, then image B comes: right, equal to the cold
output, and cached_tokens covers the whole prefix with A. The work is done by scripts/second_image.py, in a process of its own, as a
person runs it; here two servers are started for it, one without the cache. And scripts/seed_scenario.py, which shows what happens
to the output under the naive rule of positions: it must find our warm output equal to the cold one, and the naive one not."""
import json
import os
import subprocess
import sys

import harness

root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
args = harness.arguments(__doc__, pairs=800, seed=1, need=0.9, qwen=os.path.join(root, "models/demo-qwen3-vl"), qwen_pairs=200, qwen_need=0.9)
check = harness.Checks()


def script(name, *flags):
    """-> (exit status, the JSON that it prints or None)"""
    done = subprocess.run([sys.executable, os.path.join(root, "scripts", name), "--json", "--seed", str(args.seed), *flags], stdout=subprocess.PIPE, text=True, timeout=500)
    if not check.true(f"{name} answers", done.stdout.startswith("{"), done.stdout[-1200:]):
        return done.returncode, None
    return done.returncode, json.loads(done.stdout)


def test_pairs(model, pairs, need):
    warm = harness.Server(args.binary, model)
    cold = harness.Server(args.binary, model, "--prefix-cache", "off")
    url = [f"http://{s.host}:{s.port}" for s in (warm, cold)]
    status, r = script("second_image.py", "--url", url[0], "--cold-url", url[1], "--show", "--pairs", str(pairs), "--need", str(need))
    warm.stop()
    cold.stop()
    if not r:
        return
    print(model, r)
    check.equal("pairs", r["pairs"], pairs)
    check.true(f"right answers in {need:.0%} of the pairs", r["right"] >= need * r["pairs"], r)
    check.equal("pairs whose prefix with A was reused whole", r["covered"], r["pairs"])
    check.equal("pairs equal to the cold answers", r["equal"], r["pairs"])
    check.true("the cache took part", r["cached_tokens"] > r["first_prompt_tokens"] > 0, r)
    check.equal("tokens that the server without a cache reused", r["cold_cached_tokens"], 0)
    check.equal("exit status", status, 0)


def test_scenario():
    status, r = script("seed_scenario.py", "--model", args.qwen, "--binary", args.binary, "--pairs", "40", "--examples", "2")
    if not r:
        return
    print({k: v for k, v in r.items() if k != "examples"})
    check.equal("warm answers equal to the cold ones", r["equal_warm"], 40)
    for rule in ("naive", "delta", "restart"):
        check.true(f"positions by the rule {rule} give other answers", r["equal_" + rule] < 40, r)
    check.equal("prefixes reused", r["covered"], 40)
    check.equal("examples", len(r["examples"]), 2)
    check.true("right answers", r["right_warm"] == r["right_cold"] >= args.qwen_need * 40, r)
    if args.qwen_need:
        check.true("naive positions make answers wrong", r["spoilt"] > 0 and r["right_restart"] < r["right_warm"], r)
    check.equal("exit status", status, 0)


def main():
    check.run(test_pairs, args.demo, args.pairs, args.need)
    check.run(test_pairs, args.qwen, args.qwen_pairs, args.qwen_need)
    check.run(test_scenario)
    check.end()


main()
