#!/usr/bin/env python3
"""How a long prompt and other requests affect each other:

    scripts/long_prompt.py --url http://127.0.0.1:8000 [--long 20000] [--short 30] [--count 20]

Sends token-id prompts (no text is alike, so nothing is cached) to /v1/completions of a running server and
prints, in seconds:
  alone    time to the first token of a short request, its whole time, and the time of the long prompt (one
           token of output), each alone
  beside   the same while the long prompt is prefilled and one stream runs: the short ones' times to the first
           token against 2x alone + two steps, the stream's longest pauses against 2.5 steps, and the long
           prompt's time against 1.1x (its own + what the others took alone)
A step is what --step-ms (default 100, as the server's) says."""
import argparse
import http.client
import json
import random
import statistics
import threading
import time
from urllib.parse import urlparse


def complete(url, prompt, tokens, times=None):
    """Streams an answer; the time of the request's start and of each token's arrival."""
    c = http.client.HTTPConnection(url.hostname, url.port, timeout=600)
    start = time.monotonic()
    times = [] if times is None else times
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, "ignore_eos": True,
            "return_token_ids": True}
    c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse()
    assert r.status == 200, r.read()
    for line in r:
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"]:
            times.append(time.monotonic())
    c.close()
    return start, times


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--url", default="http://127.0.0.1:8000", type=urlparse)
    p.add_argument("--long", type=int, default=20000)
    p.add_argument("--short", type=int, default=30)
    p.add_argument("--count", type=int, default=20)
    p.add_argument("--short-tokens", type=int, default=4)
    p.add_argument("--step-ms", type=float, default=100)
    p.add_argument("--vocabulary", type=int, default=20000)
    p.add_argument("--seed", type=int, default=1)
    o = p.parse_args()
    rng = random.Random(o.seed)
    step = o.step_ms / 1000

    def prompt(n):
        return [rng.randrange(100, o.vocabulary) for _ in range(n)]

    complete(o.url, prompt(200), 4)  # the server learns what a step takes
    firsts, wholes = [], []
    for _ in range(o.count):
        start, times = complete(o.url, prompt(o.short), o.short_tokens)
        firsts.append(times[0] - start)
        wholes.append(times[-1] - start)
    first, whole = statistics.median(firsts), statistics.median(wholes)
    start, times = complete(o.url, prompt(10), 50)
    token = (times[-1] - times[0]) / (len(times) - 1)
    start, times = complete(o.url, prompt(o.long), 1)
    long_alone = times[0] - start
    print(f"alone:  short first token {first:.3f}, whole {whole:.3f}; a token of a stream {token:.3f}; "
          f"long prompt {long_alone:.1f}")

    stream, done, long_took = [], threading.Event(), []

    def long_one():
        s, t = complete(o.url, prompt(o.long), 1)
        long_took.append((s, t[0]))
        done.set()

    tokens = int(long_alone / token * 2)
    threads = [threading.Thread(target=complete, args=(o.url, prompt(10), tokens, stream), daemon=True),
               threading.Thread(target=long_one, daemon=True)]
    threads[0].start()
    time.sleep(1)
    threads[1].start()
    time.sleep(1)
    beside = []
    while not done.is_set() and len(beside) < o.count:
        s, t = complete(o.url, prompt(o.short), o.short_tokens)
        if not done.is_set():
            beside.append(t[0] - s)
        time.sleep(rng.uniform(0.5, 1.5) * long_alone / o.count / 4)
    done.wait()
    begun, ended = long_took[0]
    ticks = [t for t in stream if begun <= t <= ended]
    pauses = sorted(b - a for a, b in zip(ticks, ticks[1:]))
    others = len(beside) * whole + len(ticks) * token
    limit = 2 * first + 2 * step
    print(f"beside: short first token median {statistics.median(beside):.3f}, max {max(beside):.3f} "
          f"of {len(beside)} "
          f"(2x alone + two steps = {limit:.3f})")
    print(f"        stream's pauses median {statistics.median(pauses):.3f}, "
          f"99 % {pauses[int(len(pauses) * 0.99)]:.3f}, "
          f"max {pauses[-1]:.3f} of {len(pauses)} (2.5 steps = {2.5 * step:.3f})")
    print(f"        long prompt {ended - begun:.1f} = {(ended - begun) / (long_alone + others):.2f}x of its "
          f"own {long_alone:.1f} + the others' {others:.1f}")


if __name__ == "__main__":
    main()
