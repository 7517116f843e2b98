"""T16 over HTTP on the bundled demo model: a prefix with picture A is cached, then picture B comes: right, equal to the cold
answers, and cached_tokens covers the whole prefix with A. The work is done by scripts/seed_t16.py, in a process of its own, as a
person runs it; here two servers are started for it, one without the cache."""
import json
import os
import subprocess
import sys

import harness

args = harness.arguments(__doc__, pairs=800, seed=1, need=0.9)
root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
check = harness.Checks()


def test_pairs(warm, cold):
    def url(server):
        return f"http://{server.host}:{server.port}"

    done = subprocess.run([sys.executable, os.path.join(root, "scripts/seed_t16.py"), "--url", url(warm), "--cold-url", url(cold), "--json", "--show",
                           "--pairs", str(args.pairs), "--seed", str(args.seed), "--need", str(args.need)], stdout=subprocess.PIPE, text=True, timeout=500)
    if not check.true("the script answers", done.stdout.startswith("{"), done.stdout[-1200:]):
        return
    r = json.loads(done.stdout)
    print(r)
    check.equal("pairs", r["pairs"], args.pairs)
    check.true(f"right answers in {args.need:.0%} of the pairs", r["right"] >= args.need * r["pairs"], r)
    check.equal("pairs whose prefix with A was reused whole", r["covered"], r["pairs"])
    check.equal("pairs equal to the cold answers", r["equal"], r["pairs"])
    check.true("the cache took part", r["cached_tokens"] > r["first_prompt_tokens"] > 0, r)
    check.equal("tokens that the server without a cache reused", r["cold_cached_tokens"], 0)
    check.equal("exit status", done.returncode, 0)


def main():
    warm = harness.Server(args.binary, args.demo)
    cold = harness.Server(args.binary, args.demo, "--prefix-cache", "off")
    check.run(test_pairs, warm, cold)
    warm.stop()
    cold.stop()
    check.end()


main()
