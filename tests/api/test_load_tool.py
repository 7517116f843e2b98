"""scripts/load_test.py: its metrics against a stub server whose times and cache are known, and a run against the demo model."""
import asyncio
import collections
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import urllib.request
import xml.etree.ElementTree

import harness

args = harness.arguments(__doc__)
root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
tool = os.path.join(root, "scripts/load_test.py")
sys.path.insert(0, os.path.join(root, "scripts"))
from loadtest import plot, report, wire, work  # noqa: E402

check = harness.Checks()
folder = tempfile.TemporaryDirectory()


class Stub:
    def __init__(self, *flags):
        self.process = subprocess.Popen([sys.executable, os.path.join(root, "scripts/loadtest/stub.py"), *flags], stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().split()[-1]

    def seen(self):
        with urllib.request.urlopen(self.url + "/seen", b"{}") as answer:
            return json.load(answer)

    def __enter__(self):
        return self

    def __exit__(self, *fault):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()


def load(url, *flags):
    """-> (exit status, stdout + stderr, the JSON that it wrote or None)"""
    path = os.path.join(folder.name, "out.json")
    if os.path.exists(path):
        os.remove(path)
    done = subprocess.run([sys.executable, tool, "--url", url, "--json", path, *map(str, flags)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    out = None
    if os.path.exists(path):
        with open(path) as f:
            out = json.load(f)
    return done.returncode, done.stdout, out


def test_framing():
    """One answer in every framing, cut into pieces of every size, gives the same events."""
    events = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n' + b": a comment\n\n" + \
        'data: {"choices":[{"index":0,"delta":{"content":"grün"}}]}\r\n\r\ndata:{"choices":[{"index":0,"delta":{"content":""}}]}\n\n'.encode() + \
        b'data: {"choices":[{"index":0,\ndata: "delta":{},"finish_reason":"stop"}]}\n\n' + b'data: {"choices":[],"usage":{"prompt_tokens":7}}\n\ndata: [DONE]\n\n'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    parts = [events[i:i + 37] for i in range(0, len(events), 37)]
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"%X\r\n%s\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n"
    framings = {"chunked": (chunked, True), "chunk extension, trailer": (chunked.replace(b"25\r\n", b"25;a=b\r\n", 1)[:-2] + b"X: y\r\n\r\n", True),
                "length": (head + b"Content-Length: %d\r\n\r\n" % len(events) + events, True), "until close": (head + b"\r\n" + events, False),
                "100 first": (b"HTTP/1.1 100 Continue\r\n\r\n" + chunked, True), "cut off": (chunked[:-20], False), "no HTTP": (b"220 mail ready\r\n\r\n", False)}

    blank = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\ndata: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    bare = events.replace(b"data: [DONE]\n\n", b"")
    framings["no text"] = (head + b"Content-Length: %d\r\n\r\n" % len(blank) + blank, True)
    framings["no [DONE]"] = (head + b"Content-Length: %d\r\n\r\n" % len(bare) + bare, True)
    framings["nothing"] = (head + b"Content-Length: 14\r\n\r\ndata: [DONE]\n\n", True)
    full = b'{"error":{"message":"full","code":"queue_f"}}'
    framings["429"] = (b"HTTP/1.1 429 Slow\r\nContent-Length: %d\r\n\r\n" % len(full) + full, True)
    unusual = {"cut off": ("stream cut off", "grün", "stop", {"prompt_tokens": 7}, 2, False), "no HTTP": ("malformed HTTP", "", None, None, 0, False),
               "no text": (None, "", "stop", None, 1, True), "no [DONE]": ("stream without [DONE]", "grün", "stop", {"prompt_tokens": 7}, 2, True),
               "nothing": ("stream without a token", "", None, None, 0, True), "429": ("HTTP 429 queue_f", "", None, None, 0, True)}

    class Transport:
        def write(self, data):
            pass

        def abort(self):
            pass

    async def one(data, size, closes):
        clock = wire.StampedSelector()
        link, answer = wire.Link(clock), wire.Answer()
        link.connection_made(Transport())
        link.send(b"", answer)
        for at in range(0, len(data), size):
            piece = data[at:at + size]
            clock.now = float(at + size)
            link.get_buffer(-1)[:len(piece)] = piece
            link.buffer_updated(len(piece))
        if closes:
            link.connection_lost(None)
        await asyncio.wait_for(answer.future, 1)
        clock.close()
        return answer, link

    for name, (data, stays) in framings.items():
        for size in (1, 2, 3, 5, 16, 100, 1 << 15):
            answer, link = asyncio.run(one(data, size, not stays))
            got = (answer.error, "".join(answer.text), answer.finish, answer.usage, len(answer.stamps), link.open)
            check.equal(f"{name} in pieces of {size}", got, unusual.get(name, (None, "grün", "stop", {"prompt_tokens": 7}, 2, stays)))
            if name == "chunked" and size == 1:  # the role chunk and the comment are no tokens; the stamp is that of the byte that ended the event
                check.equal("stamps rise", sorted(answer.stamps), list(answer.stamps))
                check.true("first token is not the role chunk", answer.stamps[0] > data.index("ü".encode()))


def test_figures():
    rng = random.Random(4)
    values = [rng.expovariate(3) for _ in range(501)]
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    got = report.spread(values)
    for q in (50, 90, 99):
        check.true(f"p{q}", abs(got[f"p{q}"] - cuts[q - 1] * 1000) < 1e-6, (got[f"p{q}"], cuts[q - 1]))
    check.equal("nothing measured", report.spread([]), None)
    for high in (0, 1e-7, 0.3, 1, 7, 10, 99.9, 100, 12345):
        t = plot.ticks(high)
        check.true(f"axis to {high}", t[0] == 0 and t[-1] >= high and 2 <= len(t) <= 7 and t[-1] > 0, t)
    a, b = (work.draw_image(random.Random(s), 40, 30) for s in (1, 1))
    check.equal("an image follows from its seed", a, b)
    check.true("another seed, another image", a != work.draw_image(random.Random(2), 40, 30))


def test_known_server():
    """Cached tokens, times and throughput of a server where they are known."""
    with Stub("--first", "0.01", "--prefill", "0.001", "--interval", "0.01", "--keep-bodies") as stub:
        status, text, out = load(stub.url, "--shared-prefix", 300, "--users", 6, "--max-tokens", 5, "--min-ratio", 0.001)
        check.equal("exit status", status, 0)
        run, phases = out["runs"][0], out["runs"][0]["phases"]
        check.equal("requests of each phase", {k: p["requests"] for k, p in phases.items()}, {"cold": 1, "warm": 5, "at once": 5})
        check.true("the cold prompt is cold", phases["cold"]["cached_tokens"] <= 1, phases)
        check.true("the system prompt has 300 tokens, and the warm requests found them", 300 <= phases["warm"]["cached_tokens"] <= 304, phases)
        for r in run["records"]:
            least = 0.01 + 0.001 * (r["prompt_tokens"] - r["cached_tokens"])
            check.true("time to first token", least <= r["ttft"] <= r["e2e"] and r["e2e"] >= least + 4 * 0.01 and r["output_tokens"] == 5, r)
            check.true("per token", r["ttft"] + 4 * r["per_token"] <= r["e2e"], r)
        # how late things are at most depends on the machine; the fastest of all must be near
        check.true("in seconds", min(r["ttft"] - 0.001 * (r["prompt_tokens"] - r["cached_tokens"]) for r in run["records"]) < 2, run["records"])
        itl, per_token = run["inter_token_ms"], run["per_token_ms"]
        check.true("between tokens", itl["count"] == 11 * 4 and abs(itl["mean"] - per_token["mean"]) < 1e-6 and 0 < itl["mean"] < 2000, (itl, per_token))
        want = phases["cold"]["ttft_ms"]["p50"] / statistics.median(r["ttft"] * 1000 for r in run["records"] if r["phase"] == "warm")
        check.true("the printed ratio", f"cold / warm = {want:.1f} times" in text and abs(run["cold_over_warm"] - want) < 1e-9, (want, text))
        share = sum(r["cached_tokens"] for r in run["records"]) / sum(r["prompt_tokens"] for r in run["records"])
        check.true("cached share", abs(run["cached_share"] - share) < 1e-9 and f"{share * 100:.1f} %" in text, (share, text))
        check.equal("a ratio that is not reached", load(stub.url, "--shared-prefix", 30, "--users", 3, "--max-tokens", 2, "--min-ratio", 1e6)[0], 1)
        again = load(stub.url, "--shared-prefix", 300, "--users", 2, "--max-tokens", 2)
        check.true("the same seed again is warm, and that is said", "cached already" in again[1] and again[2]["runs"][0]["phases"]["cold"]["cached_tokens"] >= 300, again[1])
        again = load(stub.url, "--shared-prefix", 300, "--users", 2, "--max-tokens", 2, "--salt", "auto")
        check.equal("with a salt it is cold", again[2]["runs"][0]["phases"]["cold"]["cached_tokens"], 0)


def test_conversations():
    """They grow by the answers and new questions, share system prompts, and follow from the seed."""
    flags = ("--users", 1, "--sessions", 8, "--turns", "2:3", "--system-prompts", 2, "--system-tokens", 40, "--images-per-session", "1:2", "--image-size", "32x24", "--max-tokens", 3,
             "--extra", '{"top_p": 0.5}')
    bodies = []
    for _ in range(2):
        with Stub("--keep-bodies") as stub:
            status, text, out = load(stub.url, *flags)
            check.equal("exit status", status, 0)
            bodies.append(stub.seen()[1:])  # without the warm-up
    check.equal("two runs with one seed ask the same", bodies[0], bodies[1])
    with Stub("--keep-bodies") as stub:
        load(stub.url, *flags, "--seed", 2)
        check.true("another seed asks other things", stub.seen()[1:] != bodies[0])
    systems, last, images = collections.Counter(), [], []
    for body in bodies[0]:
        messages = body["messages"]
        check.true("fields", body["stream"] and body["stream_options"] == {"include_usage": True} and body["max_tokens"] == 3 and body["top_p"] == 0.5 and body["model"] == "stub", body)
        check.equal("roles", [m["role"] for m in messages], (["system"] + ["user", "assistant"] * 9)[:len(messages)])
        check.true("a system prompt of 40 tokens", abs(len(messages[0]["content"].split()) - 40) <= 1, messages[0])
        if len(messages) == 2:
            systems[messages[0]["content"]] += 1
            check.true("an image opens the conversation", isinstance(messages[1]["content"], list))
        else:
            check.equal("the conversation goes on", messages[:-2], last)
            check.equal("with the answer as it came", len(messages[-2]["content"].split()), 3)
        last = messages
        images += [p["image_url"]["url"] for p in messages[-1]["content"] if p["type"] == "image_url"] if isinstance(messages[-1]["content"], list) else []
    check.equal("sessions, system prompts", (sum(systems.values()), len(systems)), (8, 2))
    check.true("images", 8 <= len(images) <= 16 and len(set(images)) == len(images), len(images))
    check.equal("counted", out["runs"][0]["images"], len(images))
    with Stub("--keep-bodies") as stub:
        load(stub.url, "--users", 1, "--sessions", 12, "--images-per-session", 1, "--image-pool", 3, "--turns", 1, "--image-size", 16, "--max-tokens", 2, "--image-kind", "noise")
        check.equal("a pool of images", len({b["messages"][-1]["content"][0]["image_url"]["url"] for b in stub.seen()[1:]}), 3)


def test_completions():
    for kind in ("text", "ids"):
        with Stub("--keep-bodies", "--key", "sesame") as stub:
            check.equal(f"{kind}: no key", load(stub.url, "--completions", kind, "--sessions", 1)[0], 1)
            status, text, out = load(stub.url + "/v1/", "--completions", kind, "--users", 2, "--sessions", 4, "--turns", "3", "--max-tokens", 4, "--api-key", "sesame")
            check.equal(f"{kind}: exit status, answers", (status, out["runs"][0]["ok"]), (0, 12))
            check.true(f"{kind}: the key stays out of the file", "sesame" not in json.dumps(out))
            last = [r for r in out["runs"][0]["records"] if r["turn"] == 3]
            check.true(f"{kind}: a later turn finds the whole earlier prompt", all(r["cached_tokens"] > 200 for r in last) and len(last) == 4, last)
            prompts = [b["prompt"] for b in stub.seen()[1:]]
            check.true(f"{kind}: type", all(isinstance(p, str if kind == "text" else list) for p in prompts))
            if kind == "ids":
                check.true("the answer's own ids go on", any(any(500 <= t < 700 for t in p) and len(p) > 200 for p in prompts))


def test_errors():
    kinds = {"429": "HTTP 429 rate_limit_exceeded", "cut": "stream cut off", "error": "in the stream: engine_error", "garbage": "malformed event", "hang": "timeout"}
    for flag, kind in kinds.items():
        with Stub("--fail", flag, "--every", "5", "--no-tokenize") as stub:
            status, text, out = load(stub.url, "--users", 3, "--sessions", 11, "--turns", 1, "--max-tokens", 3, "--timeout", 8 if flag == "hang" else 120)
            run = out["runs"][0]
            check.equal(f"{flag}: exit status, answered, failed", (status, run["ok"], run["failed"]), (1, 9, 2))  # the warm-up is the first request of 12
            check.equal(f"{flag}: kinds", {k: e["count"] for k, e in run["errors"].items()}, {kind: 2})
            check.true(f"{flag}: printed", f"2  {kind}" in text, text)
    with Stub("--drop") as stub:
        status, text, out = load(stub.url, "--users", 3, "--sessions", 20, "--turns", 2, "--max-tokens", 2)
        check.equal("a server that drops kept connections is no error", (status, out["runs"][0]["ok"]), (0, 40))
    status, text, out = load("http://127.0.0.1:9", "--sessions", 1)
    check.true("nobody there", status == 1 and out is None and "127.0.0.1:9" in text and "Traceback" not in text, text)
    for flags in (("--mode", "open"), ("--rate", "0"), ("--turns", "3:1"), ("--users", "0"), ("--completions", "--images-per-session", "1"), ("--shared-prefix", "9", "--users", "1"), ("--url", "ftp://x")):
        check.true(f"wrong flags {flags}", load("http://127.0.0.1:9", *flags)[0] in (1, 2))


def test_open_loop():
    """Arrivals follow from the seed, whatever the server does; a sweep is drawn over the rate."""
    with Stub("--first", "0.02") as stub:
        svg = os.path.join(folder.name, "a.svg")
        status, text, out = load(stub.url, "--rate", "20,60", "--duration", 2, "--turns", 1, "--max-tokens", 3, "--plot", svg)
        check.equal("exit status", status, 0)
        for step, (rate, run) in enumerate(zip((20, 60), out["runs"])):
            rng, want = random.Random(f"1/{step}/arrivals"), []
            while (at := rng.expovariate(rate) + (want[-1] if want else 0)) <= 2:
                want.append(at)
            starts = [r["start"] for r in run["records"]]
            check.equal(f"rate {rate}: arrivals", len(starts), len(want))
            check.true(f"rate {rate}: on time", all(s >= w - 1e-6 for w, s in zip(want, starts)) and min(s - w for w, s in zip(want, starts)) < 0.5, (starts[:5], want[:5]))
        tree = xml.etree.ElementTree.parse(svg)
        titles = [t.text for t in tree.iter("{http://www.w3.org/2000/svg}text") if t.get("class") == "t"]
        check.equal("panels", len(titles), 1 + 6)
        check.true("lines", len(list(tree.iter("{http://www.w3.org/2000/svg}polyline"))) == 3 + 7, titles)
        dots = [c for c in tree.iter("{http://www.w3.org/2000/svg}circle") if c.get("r") == "2"]
        check.equal("a dot for each request", len(dots), sum(r["ok"] for r in out["runs"]))


def test_interrupt():
    with Stub("--keep-bodies", "--hang-from", "5") as stub:
        path = os.path.join(folder.name, "interrupted.json")
        process = subprocess.Popen([sys.executable, tool, "--url", stub.url, "--users", "3", "--max-tokens", "10", "--duration", "600", "--json", path], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        process.stdout.readline()
        check.true("it runs", harness.wait_until(lambda: len(stub.seen()) >= 7))  # a warm-up, three, and three after these
        process.send_signal(signal.SIGINT)
        text = process.communicate(timeout=120)[0]
        with open(path) as f:
            out = json.load(f)
        run = out["runs"][0]
        check.true("Ctrl-C prints what there is", process.returncode == 130 and "time to first token" in text and "Traceback" not in text, (process.returncode, text))
        check.true("three requests were under way", out["interrupted"] and run["aborted"] == 3 and run["failed"] == 0 and run["ok"] == 3, run)


def test_demo():
    """The real server: images are decoded, answers go back into the conversation, token counts add up with its own."""
    server = harness.Server(args.binary, args.demo)
    try:
        url = f"http://{server.host}:{server.port}"
        status, text, out = load(url, "--users", 4, "--sessions", 10, "--turns", "2:3", "--images-per-session", "1:2", "--image-size", 96, "--max-tokens", 12, "--ignore-eos", "--system-tokens", 60)
        print(text)
        run = out["runs"][0]
        check.equal("exit status, failed", (status, run["failed"], run["errors"]), (0, 0, {}))
        check.true("counts", run["ok"] >= 20 and run["sessions"] == 10 and run["output_tokens"] == 12 * run["ok"], run["output_tokens"])
        check.true("a conversation grows", run["by_turn"]["2"]["prompt_tokens"] > run["by_turn"]["1"]["prompt_tokens"] + 12, run["by_turn"])
        check.true("cached tokens are reported", run["cached_share"] is not None and 0 <= run["cached_share"] < 1)
        status, text, out = load(url, "--completions", "--shared-prefix", 400, "--users", 8, "--max-tokens", 4)
        print(text)
        cold = out["runs"][0]["phases"]["cold"]
        check.true("a system prompt of 400 tokens by the server's own count", status == 0 and 400 <= cold["prompt_tokens"] <= 400 + 80, cold)
        check.equal("all answered", out["runs"][0]["ok"], 15)
        status, text, out = load(url, "--completions", "ids", "--rate", 30, "--sessions", 10, "--max-tokens", 6, "--ignore-eos", "--system-tokens", 50)
        check.true("token ids, open loop", status == 0 and out["runs"][0]["sessions"] == 10 and out["runs"][0]["failed"] == 0, text)
        check.true("nothing stays behind", harness.wait_until(lambda: server.metric("vllm:num_requests_running") == 0), "requests still run")
    finally:
        server.stop()


def main():
    tests = [value for name, value in globals().items() if name.startswith("test_")]
    for test in tests:
        if not args.only or test.__name__ in args.only:
            check.run(test)
    folder.cleanup()
    check.end()


main()
