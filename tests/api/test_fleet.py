#!/usr/bin/env python3
"""Cache events over HTTP and ZeroMQ: an index fed by two servers' events alone predicts, for random
conversations with images, what each will reuse, and the server reuses exactly that, rounded to blocks.
With ai-dynamo-runtime installed (--dynamo 1: it must be) Dynamo's radix tree and hashes say the same.
Without pyzmq and msgpack, or in a build without --kv-events, there is nothing to test."""

import functools
import json
import os
import random
import socket
import subprocess
import sys
import time

from harness import Checks, Server, arguments, data_url, drawing

try:
    import msgpack
    import zmq
except ImportError:
    zmq = None

BLOCK = 16
IMAGES = [data_url(drawing(seed, 40 + 8 * (seed % 5))) for seed in range(14)]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Index:
    """What one server has told. A block's key is made of its tokens, its images and its parent's key."""

    def __init__(self):
        self.keys, self.held, self.order = {}, {}, None  # keys: (group, hash); held: (group, key): hash

    def apply(self, event):
        if isinstance(event, dict):
            names = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
                     "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind",
                     "kv_cache_spec_sliding_window")
            removed = ("block_hashes", "medium", "group_idx")
            names = names if event["type"] == "BlockStored" else removed
            event = [event["type"]] + [event[n] for n in names if n in event]
        kind, *f = event
        if kind == "AllBlocksCleared":
            self.keys, self.held = {}, {}
        elif kind == "BlockRemoved":
            assert f[1] == "GPU"
            group = f[2] if len(f) > 2 else 0
            for h in f[0]:
                del self.held[group, self.keys.pop((group, h))]
        else:
            hashes, parent, tokens, size, lora, medium, lora_name, extra = f[:8]
            group = f[8] if len(f) > 8 else 0
            assert (lora, medium, lora_name) == (None, "GPU", None) and len(tokens) == size * len(hashes)
            key = None
            if parent is not None:
                key = self.keys.get((group, parent)) or self.keys[0, parent]
            for i, h in enumerate(hashes):
                more = tuple(map(tuple, extra[i])) if extra and extra[i] else ()
                key = hash((key, tuple(tokens[i * size : (i + 1) * size]), more))
                assert (group, h) not in self.keys, "stored twice"
                self.keys[group, h] = key
                self.held[group, key] = h

    def overlap(self, prompt, group=0):
        for i, key in enumerate(keys_of(prompt)):
            if (group, key) not in self.held:
                return i
        return len(prompt["tokens"]) // BLOCK


def keys_of(prompt):
    key, tokens = None, prompt["tokens"]
    for a in range(0, len(tokens) // BLOCK * BLOCK, BLOCK):
        more = tuple(
            (p["hash"], p["offset"] - a)
            for p in prompt["images"]
            if p["offset"] < a + BLOCK and p["offset"] + p["length"] > a
        )
        key = hash((key, tuple(tokens[a : a + BLOCK]), more))
        yield key


class Worker:
    """A server, and what it tells."""

    def __init__(self, args, model, *flags):
        self.events, self.replay = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
        self.server = Server(args.binary, model, "--kv-events", self.events, "--kv-events-replay",
                             self.replay, "--kv-events-block", str(BLOCK), "--threads", "1", *flags)
        self.index, self.next, self.batches, self.listener = Index(), 0, {}, None
        self.ask = zmq.Context.instance().socket(zmq.DEALER)
        self.ask.connect(self.replay)
        self.sub = self.subscribe()

    def subscribe(self):
        s = zmq.Context.instance().socket(zmq.SUB)
        s.connect(self.events)
        s.subscribe(b"")
        return s

    def repeat(self, start):
        """-> [(number, batch)]: also all that the server's cache has done by now"""
        self.ask.send_multipart([b"", start.to_bytes(8, "big")])
        out = []
        while True:
            assert self.ask.poll(20000), "no answer on the replay socket"
            empty, number, payload = self.ask.recv_multipart()
            if not payload:
                assert number == b"\xff" * 8
                return out
            out.append((int.from_bytes(number, "big"), payload))

    def catch_up(self):
        for number, payload in self.repeat(self.next):
            assert number == self.next, (number, self.next)
            self.next += 1
            self.batches[number] = payload
            when, events, rank = msgpack.unpackb(payload)
            assert rank == 0 and abs(when - time.time()) < 600
            for event in events:
                self.index.apply(event)
                if self.listener:
                    self.listener(event)

    def end(self):
        self.ask.close(0)
        self.sub.close(0)
        self.server.stop()


class Dynamo:
    """Dynamo's radix tree over Dynamo's own hashes of tokens and images."""

    def __init__(self):
        from dynamo.llm import RadixTree, compute_block_hash_for_seq

        self.hashes, self.tree, self.count = compute_block_hash_for_seq, RadixTree(), 0

    def infos(self, keys_of_blocks):
        """An image's hash there: the first 16 digits of the identifier."""
        return [
            {"mm_objects": [{"mm_hash": int(k[:16], 16), "offsets": []} for k in keys]} if keys else None
            for keys in keys_of_blocks
        ]

    def apply(self, worker, event):
        kind, *f = event
        if kind == "AllBlocksCleared":
            data = "cleared"
        elif kind == "BlockRemoved":
            data = {"removed": {"block_hashes": f[0]}}
        else:
            extra = f[7] or [None] * len(f[0])
            local = self.hashes(f[2], f[3], self.infos([[k[0] for k in x or ()] for x in extra]))
            blocks = [{"block_hash": h, "tokens_hash": t} for h, t in zip(f[0], local)]
            data = {"stored": {"parent_hash": f[1], "blocks": blocks}}
        self.count += 1
        self.tree.apply_event(
            worker, json.dumps({"event_id": self.count, "data": data, "dp_rank": 0}).encode()
        )

    def overlaps(self, prompt, count):
        tokens = prompt["tokens"][: len(prompt["tokens"]) // BLOCK * BLOCK]
        if not tokens:
            return [0] * count
        keys = [
            [
                p["hash"]
                for p in prompt["images"]
                if p["offset"] < a + BLOCK and p["offset"] + p["length"] > a
            ]
            for a in range(0, len(tokens), BLOCK)
        ]
        scores = self.tree.find_matches(self.hashes(tokens, BLOCK, self.infos(keys))).scores
        return [scores.get((i, 0), 0) for i in range(count)]


def grow(rng, histories):
    """A conversation's next turn: of a new one, of an old one, or of an old one from an earlier place."""
    kind = rng.random()
    if not histories or kind < 0.25:
        messages = [{"role": "system", "content": "You look at shapes. " * rng.randrange(1, 4)}]
    else:
        messages = list(rng.choice(histories[-60:]))
        if kind > 0.8 and len(messages) > 3:
            messages = messages[: 1 + 2 * rng.randrange(1, len(messages) // 2)]
    if len(messages) > 12:
        messages = messages[:1]
    content = [
        {"type": "image_url", "image_url": {"url": rng.choice(IMAGES)}}
        for _ in range(rng.choice((0, 0, 1, 1, 2)))
    ]
    words = "red blue green circle square left right above below and the of".split()
    content.append({"type": "text", "text": " ".join(rng.choice(words) for _ in range(rng.randrange(2, 25)))})
    return messages + [{"role": "user", "content": content}]


def converse(checks, args, model, requests, exact, dynamo=None, layout="array"):
    """-> Checks each answer's cached tokens against what the index says of its server."""
    rng, histories = random.Random(args.seed), []
    workers = [
        Worker(args, model, "--kv-memory", "1500K", "--max-context", "1024", "--kv-events-layout", layout)
        for _ in range(2)
    ]
    for i, w in enumerate(workers):
        if dynamo:
            w.listener = functools.partial(dynamo.apply, i)
    wrong, over, blocks = 0, 0, 0
    for w in workers:
        w.catch_up()
    for n in range(requests):
        messages = grow(rng, histories)
        prompt = workers[0].server.ok("/tokenize", {"messages": messages})
        prompt["tokens"].pop()  # an answer needs the last token's computation
        overlaps = [w.index.overlap(prompt) for w in workers]
        if dynamo:
            checks.equal("Dynamo's tree says the same", dynamo.overlaps(prompt, 2), overlaps)
        best = max(range(2), key=lambda i: (overlaps[i], rng.random()))
        if rng.random() < 0.15:
            best = rng.randrange(2)
        w = workers[best]
        answer = w.server.ok(
            "/v1/chat/completions", {"messages": messages, "max_tokens": rng.randrange(1, 40), "seed": n}
        )
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"] // BLOCK
        blocks += cached
        wrong += cached != overlaps[best]
        over += cached > overlaps[best]
        histories.append(
            messages + [{"role": "assistant", "content": answer["choices"][0]["message"]["content"]}]
        )
        if n % 300 == 299:
            w.server.request("POST", "/reset_prefix_cache")
            w.server.ok("/v1/completions", {"prompt": "x", "max_tokens": 1})
        w.catch_up()
        if n % 300 == 299:
            checks.true("a reset forgets", len(w.index.keys) <= 2, len(w.index.keys))
    evicted = sum(w.server.metric("kvasir:kv_blocks_evicted_total") for w in workers)
    print(
        f"{os.path.basename(model)}: {requests} requests, {blocks} blocks reused, {wrong} other than the "
        f"index said, {over} more; {evicted:.0f} evictions",
        flush=True,
    )
    checks.equal("reused what the index said, or less where windows are gone", wrong if exact else over, 0)
    checks.true("something was reused", blocks > requests)
    checks.true("something was evicted", evicted > 10)
    check_streams(checks, workers)
    for w in workers:
        w.end()


def check_streams(checks, workers):
    for w in workers:
        w.catch_up()
        seen = {}
        while w.sub.poll(500):
            topic, number, payload = w.sub.recv_multipart()
            checks.equal("topic", topic, b"")
            seen[int.from_bytes(number, "big")] = payload
        w.catch_up()
        checks.true("published what is repeated",
                    seen and all(w.batches.get(k) == v for k, v in seen.items()),
                    sorted(k for k, v in seen.items() if w.batches.get(k) != v))
        checks.equal("without a hole", len(seen), max(seen) - min(seen) + 1)
        late, index = w.subscribe(), Index()
        checks.true("a late subscriber is told", late.poll(20000))
        while late.poll(1500):
            for event in msgpack.unpackb(late.recv_multipart()[2])[1]:
                index.apply(event)
        late.close(0)
        checks.equal("of all that is there", sorted(index.keys), sorted(w.index.keys))


def test_full(checks, args):
    converse(checks, args, args.qwen, args.requests, True, layout="map")


def test_sliding(checks, args):
    """The full layers' blocks are a bound: reuse also needs a window's blocks, which events tell apart."""
    converse(checks, args, args.demo, args.requests // 4, False)


def test_dynamo(checks, args):
    try:
        import dynamo.llm  # noqa: F401
    except ImportError:
        checks.true("ai-dynamo-runtime is installed", not args.dynamo)
        return
    converse(checks, args, args.qwen, args.requests, True, dynamo=Dynamo())


def test_flags(checks, args):
    for flags, code, word in (
        (["--kv-events-replay", "tcp://127.0.0.1:1"], 2, "needs --kv-events"),
        (["--kv-events", "nonsense"], 1, "--kv-events nonsense"),
        (["--kv-events", "tcp://127.0.0.1:*", "--prefix-cache", "off"], 2, "prefix cache"),
    ):
        p = subprocess.run([args.binary, "serve", "--model", args.qwen, "--port", "0", *flags],
                           capture_output=True, text=True, timeout=60)
        checks.true("refused: " + " ".join(flags), p.returncode == code and word in p.stderr, p.stderr)


def main():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    args = arguments(
        __doc__, qwen=os.path.join(root, "models/demo-qwen3-vl"), requests=1000, seed=1, dynamo=0
    )
    checks = Checks()
    has = (
        "--kv-events"
        in subprocess.run([args.binary, "serve", "--help"], capture_output=True, text=True).stdout
    )
    if zmq and has:
        for test in (test_flags, test_full, test_sliding, test_dynamo):
            if not args.only or test.__name__ in args.only:
                checks.run(test, checks, args)
    else:
        checks.true("nothing to test without pyzmq, msgpack and --kv-events", not args.dynamo)
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
