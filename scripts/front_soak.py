"""The long runs of several models behind one port, with what they take:
python scripts/front_soak.py [--seconds 600] [--streams 1000] [--binary B]

Three models in turn where two fit, each answer compared with that of a server of its own; idle streams, which
take no more memory with time; the time that the front adds to a first token."""

import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/api"))
import test_front  # noqa: E402
from harness import Checks, Server, arguments, endless, wait_until  # noqa: E402

check = Checks()


def memory(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))


def test_in_turn(seconds):
    wanted, turns, end = {}, 0, time.monotonic() + seconds
    for name, path in test_front.MODELS.items():
        own = Server(test_front.BINARY, path, "--served-model-name", name, *test_front.SMALL)
        wanted[name] = [[test_front.ask(own, *a) for a in test_front.asks(name, turn)] for turn in range(4)]
        own.stop()
    with test_front.front(test_front.MODELS, "--models-memory", "110M") as s:
        before = None
        while time.monotonic() < end:
            for name in test_front.MODELS:
                got = [test_front.ask(s, *a) for a in test_front.asks(name, turns % 4)]
                if got != wanted[name][turns % 4]:
                    check.equal(f"{name}, turn {turns}", got, wanted[name][turns % 4])
            turns += 1
            if turns == 20:
                before = memory(s.process.pid)
        after, loads = memory(s.process.pid), s.metric("kvasir:model_loads_total")
        check.true("turns", turns > 2)
        check.true("memory", before is None or after < before + 4000, (before, after))
        print(f"{turns} turns of three models, {loads:.0f} loads, memory {before} -> {after} KiB")


def test_idle_streams(count):
    """Streams that have begun and get nothing more, because their clients read nothing."""
    models = {"long": endless(test_front.MODELS["text"]), "text": test_front.MODELS["text"]}
    flags = ("--max-sequences", "16", "--max-queue", str(2 * count))
    with test_front.front(models, *flags, lines=[("long", "kv-memory = 64M")]) as s:
        s.ok(test_front.COMPLETIONS, {"model": "long", "prompt": "x", "max_tokens": 1})
        empty = memory(s.process.pid)
        held = [test_front.stream_open(s, "long") for _ in range(8)]
        body = json.dumps({"model": "long", "prompt": "x", "max_tokens": 5, "stream": True})
        for _ in range(count):
            c = s.connect()
            c.request("POST", test_front.COMPLETIONS, body, {"Content-Type": "application/json"})
            held.append((c, None))
        check.true("are passed on", wait_until(lambda: s.of("kvasir:model_requests_active", "long") > 8))
        time.sleep(5)
        seen = []
        for _ in range(6):
            seen.append(memory(s.process.pid))
            time.sleep(5)
        check.true("flat", max(seen) - min(seen[1:]) < 4000, seen)
        print(f"{count} idle streams: memory of the front {empty} -> {seen} KiB")
        for c, _ in held:
            c.close()
        check.true("all are gone", wait_until(lambda: s.of("kvasir:model_requests_active", "long") == 0))


def test_first_token():
    """The front's part of a first token, over one connection each, alternating."""
    demo = test_front.MODELS["demo"]
    own = Server(test_front.BINARY, demo, "--served-model-name", "demo", *test_front.SMALL)
    body = {"messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 2, "temperature": 0}
    text = json.dumps({"model": "demo", "stream": True, **body})
    with test_front.front({"demo": demo}) as s:
        times = {}
        for i in range(620):
            for server in (own, s):
                c = times.setdefault(server, (server.connect(), []))
                begin = time.perf_counter()
                c[0].request("POST", test_front.CHAT, text, {"Content-Type": "application/json"})
                answer = c[0].getresponse()
                answer.readline()
                c[1].append(time.perf_counter() - begin)
                answer.read()
        a, b = (1e3 * statistics.median(times[x][1][20:]) for x in (own, s))
        print(f"first token: {a:.3f} ms, through the front {b:.3f} ms, {b - a:.3f} ms more")
        check.true("adds little", b - a < 5, (a, b))
    own.stop()


if __name__ == "__main__":
    options = arguments(__doc__.splitlines()[0], seconds=600, streams=1000)
    golden = os.path.join(os.path.dirname(options.model), "..")
    test_front.BINARY = options.binary
    text = os.path.join(golden, "llama/smollm2_bf16")
    test_front.MODELS.update({"demo": options.demo, "image": options.model, "text": text})
    check.run(test_first_token)
    check.run(test_idle_streams, options.streams)
    check.run(test_in_turn, options.seconds)
    check.end()
