#!/usr/bin/env python3
"""A long batch beside live chat: scripts/bench_jobs.py [--binary B] [--lines N] [--kills K]
The server is killed K times; then every line is answered once, and a sample of them as the same lines alone.
Prints the time between tokens of live chats without and beside the batch."""
import collections
import http.client
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time

import openai

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests/api"))
import harness  # noqa: E402
from harness import Server  # noqa: E402

args = harness.arguments(__doc__, lines=10000, kills=5, chats=2, tokens=400, rounds=10)
check = harness.Checks()
CHAT = "/v1/chat/completions"
IMAGES = [harness.data_url(harness.drawing(i)) for i in range(50)]


def line(i):
    image = {"type": "image_url", "image_url": {"url": IMAGES[i % len(IMAGES)]}}
    content = [image, {"type": "text", "text": f"What is there? {i}"}]
    return {"custom_id": f"line-{i}", "method": "POST", "url": CHAT,
            "body": {"max_tokens": 12, "temperature": 0, "messages": [{"role": "user", "content": content}]}}


def gaps(server, seed, out):
    """Milliseconds between the events of one live chat."""
    words = " ".join(random.Random(seed).choices("a red blue small house tree on under".split(), k=40))
    body = {"messages": [{"role": "user", "content": words}], "max_tokens": args.tokens, "ignore_eos": True,
            "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    connection.request("POST", CHAT, json.dumps(body), {"Content-Type": "application/json"})
    answer, last = connection.getresponse(), None
    while event := answer.readline():
        if not event.startswith(b"data: {"):
            continue
        now = time.monotonic()
        if last:
            out.append((now - last) * 1e3)
        last = now
    connection.close()


def live(server, seed):
    out = []
    threads = [threading.Thread(target=gaps, args=(server, seed * 100 + i, out)) for i in range(args.chats)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return out


def p99(values):
    return statistics.quantiles(values, n=100)[98]


def soak(folder):
    plain = ("--draft-tokens", "0")  # an event is a step
    flags = (*plain, "--data-dir", folder)
    alone = Server(args.binary, args.demo, *plain)
    server = Server(args.binary, args.demo, *flags)
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", timeout=600)
    data = "\n".join(json.dumps(line(i)) for i in range(args.lines)).encode()
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    harness.wait_until(lambda: client.batches.retrieve(batch.id).request_counts.completed > 10)
    without, beside, seconds, lines = [], [], 0, 0
    for i in range(args.rounds):  # in turns, because machines are busy with other things too
        server.process.send_signal(signal.SIGSTOP)
        without += live(alone, i)
        server.process.send_signal(signal.SIGCONT)
        before, began = client.batches.retrieve(batch.id).request_counts.completed, time.monotonic()
        beside += live(server, i)
        seconds += time.monotonic() - began
        lines += client.batches.retrieve(batch.id).request_counts.completed - before
    alone.stop()
    check.equal("it runs all the time", client.batches.retrieve(batch.id).status, "in_progress")
    print(f"between tokens: p50 {statistics.median(without):.2f} -> {statistics.median(beside):.2f} ms, "
          f"p99 {p99(without):.2f} -> {p99(beside):.2f} ms; {lines / seconds:.1f} lines a second meanwhile")
    for _ in range(args.kills):
        time.sleep(random.uniform(0.5, 2))
        server.process.kill()
        server.process.wait()
        server = Server(args.binary, args.demo, *flags)
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", timeout=600)
    began, had = time.monotonic(), client.batches.retrieve(batch.id).request_counts.completed
    harness.wait_until(lambda: client.batches.retrieve(batch.id).completed_at, 3600, 0.5)
    done = client.batches.retrieve(batch.id)
    rate = (args.lines - had) / (time.monotonic() - began)
    print(f"{rate:.1f} lines a second alone")
    check.equal("all are answered", done.request_counts.completed, args.lines)
    got = [json.loads(x) for x in client.files.content(done.output_file_id).text.splitlines()]
    times = collections.Counter(r["custom_id"] for r in got)
    check.true("each line once", len(times) == args.lines and set(times.values()) == {1})
    for r in random.Random(0).sample(got, min(300, len(got))):
        alone = server.ok(CHAT, line(int(r["custom_id"][5:]))["body"])
        check.equal(r["custom_id"], r["response"]["body"]["choices"], alone["choices"])
    server.stop()


with tempfile.TemporaryDirectory() as folder:
    check.run(soak, folder)
check.end()
