#!/usr/bin/env python3
"""Pauses of a stream while all that is computed is evicted: with --cache-dir, and without.

scripts/bench_eviction.py --model DIR [--kv-memory 12M] [--seconds 10] [--rounds 5] [-- FLAGS OF kvasir serve]

Two servers with an arena that holds little more than what runs, one of them with a cache directory. In turns
each serves a stream, beside it prompts without a common prefix, one after another, so that the arena is full
and every prompt evicts another. Printed are the longest pause between two events of the stream in each round,
and over all rounds the 99th percentile. Standard library only."""
import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time

from bench_restart import ROOT, Server


class Load:
    def __init__(self, args, *flags):
        args.flags = args.own + ["--kv-memory", args.kv_memory, "--max-context", "1024"]
        self.server, self.args, self.rng = Server(args, *flags), args, random.Random(0)
        self.pauses, self.longest, self.prompts = [], [], 0

    def metric(self, name):
        with self.server.get("/metrics") as reply:
            lines = reply.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    def prompts_until(self, end):
        while time.monotonic() < end:
            ids = [self.rng.randrange(1000, 20000) for _ in range(self.args.tokens)]
            body = {"prompt": ids, "max_tokens": 1, "temperature": 0}
            self.server.post("/v1/completions", body).read()
            self.prompts += 1

    def round(self):
        end, pauses = time.monotonic() + self.args.seconds, []
        other = threading.Thread(target=self.prompts_until, args=(end,))
        other.start()
        body = {"max_tokens": 400, "ignore_eos": True, "stream": True}
        while time.monotonic() < end:
            body["prompt"], last = [1000 + self.rng.randrange(1000)], None
            with self.server.post("/v1/completions", body) as reply:
                for line in reply:
                    now = time.monotonic()
                    if line.startswith(b"data: {") and json.loads(line[6:]).get("choices"):
                        if last and now < end:
                            pauses.append((now - last) * 1e3)
                        last = now
        other.join()
        self.pauses += pauses
        self.longest.append(max(pauses))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--binary", default=os.path.join(ROOT, "build/release/kvasir"))
    parser.add_argument("--kv-memory", default="12M")
    parser.add_argument("--tokens", type=int, default=300, help="of a prompt")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("own", nargs="*", help="flags of kvasir serve, after --")
    args = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="kvasir-eviction-")
    loads = {}
    try:
        loads["without"] = Load(args)
        loads["with"] = Load(args, "--cache-dir", folder)
        for _ in range(args.rounds):
            for load in loads.values():
                load.round()
        for name, load in loads.items():
            load.pauses.sort()
            longest = ", ".join(f"{ms:.0f}" for ms in load.longest)
            most, middle = load.pauses[len(load.pauses) * 99 // 100], statistics.median(load.longest)
            print(f"{name:8} longest of each round {longest} ms, median {middle:.0f}; "
                  f"99 % of all {len(load.pauses)} at most {most:.1f} ms; {load.prompts} prompts")
        written, dropped = (loads["with"].metric(f"kvasir:cache_tier_{what}_blocks_total")
                            for what in ("written", "dropped"))
        print(f"{written:.0f} blocks written, {dropped:.0f} dropped")
    finally:
        for load in loads.values():
            load.server.__exit__()
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
