"""scripts/load_test.py: its statistics against numbers computed by hand, data sets, lengths, arrivals, the
report and the comparison; against the stub, a bare server without usage and /metrics, and the demo model."""
import base64
import html.parser
import http.server
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import types
import xml.etree.ElementTree

import harness

args = harness.arguments(__doc__)
root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(root, "scripts"))
from loadtest import compare, dataset, metrics, report, slo, wire  # noqa: E402
from loadtest.lengths import Lengths  # noqa: E402
from loadtest.run import Record  # noqa: E402

check = harness.Checks()
temporary = tempfile.TemporaryDirectory()
SAMPLE = os.path.join(root, "models/demo/sample.png")


def path(name, content=None):
    """A file of this test, written if there is content."""
    full = os.path.join(temporary.name, name)
    if content is not None:
        with open(full, "w", encoding="utf-8") as f:
            f.write(content)
    return full


def tool(*flags):
    """-> (exit status, stdout + stderr)"""
    command = [sys.executable, os.path.join(root, "scripts/load_test.py"), *map(str, flags)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    return done.returncode, done.stdout


def load(url, *flags):
    """-> (exit status, output, the JSON that it wrote or None)"""
    out = path("out.json")
    if os.path.exists(out):
        os.remove(out)
    status, text = tool("--url", url, "--json", out, *flags)
    if not os.path.exists(out):
        return status, text, None
    with open(out, encoding="utf-8") as f:
        return status, text, json.load(f)


def near(what, got, want, tolerance=1e-9):
    check.true(what, got is not None and abs(got - want) <= tolerance, f"got {got!r}, want {want!r}")


def fault(what, function, *values, kind=wire.Fault):
    try:
        check.true(what, False, f"no fault: {function(*values)!r}")
    except kind as found:
        return str(found)


class Stub:
    def __init__(self, *flags):
        command = [sys.executable, os.path.join(root, "scripts/loadtest/stub.py"), *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().split()[-1]

    def __enter__(self):
        return self

    def __exit__(self, *what):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()


class Bare:
    """As little of an OpenAI-compatible server as there can be: no usage, no /metrics, no /tokenize; it
    refuses fields that it does not know. Three chunks an answer."""

    def __init__(self):
        outer, self.bodies = self, []

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *what):
                pass

            def answer(self, status, kind, data):
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                if self.path != "/v1/models":
                    return self.answer(404, "text/plain", b"no such page")
                return self.answer(200, "application/json", b'{"data": [{"id": "bare"}]}')

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path != "/v1/chat/completions":
                    return self.answer(404, "text/plain", b"no such page")
                more = sorted({*body} - {"model", "messages", "stream", "max_tokens", "temperature"})
                if more:
                    error = json.dumps({"error": {"message": f"unknown fields: {', '.join(more)}"}})
                    return self.answer(400, "application/json", error.encode())
                outer.bodies.append(body)
                chunks = [{"choices": [{"index": 0, "delta": {"content": f"word {i} "}}]} for i in range(3)]
                chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
                text = "".join(f"data: {json.dumps(c)}\n\n" for c in chunks) + "data: [DONE]\n\n"
                return self.answer(200, "text/event-stream", text.encode())

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def test_lengths():
    rng = random.Random(1)
    check.equal("N", {Lengths("7").draw(rng) for _ in range(9)}, {7})
    check.equal("fixed", Lengths("fixed:9").draw(rng), 9)
    drawn = [Lengths("24", spread=True).draw(rng) for _ in range(2000)]
    check.equal("N around", (min(drawn), max(drawn)), (12, 36))
    drawn = [Lengths("uniform:3:5").draw(rng) for _ in range(200)]
    check.equal("uniform", {*drawn}, {3, 4, 5})
    tail = Lengths("lognormal:200:0.5")
    logs = [math.log(tail.draw(rng)) for _ in range(20000)]
    near("lognormal: its median", statistics.median(logs), math.log(200), 0.02)
    near("lognormal: its sigma", statistics.pstdev(logs), 0.5, 0.02)
    near("lognormal without spread", Lengths("lognormal:30:0").draw(rng), 30)
    file = Lengths("file:" + path("lengths", "# seen on Monday\n5\n\n9 # long\n5\n"))
    drawn = [file.draw(rng) for _ in range(3000)]
    check.equal("file", {*drawn}, {5, 9})
    near("file: as often as it is there", drawn.count(5) / 3000, 2 / 3, 0.05)
    for text in ("", "0", "-3", "x", "fixed", "fixed:0", "uniform:5:3", "uniform:5", "lognormal:5",
                 "lognormal:0:1", "lognormal:5:-1", "normal:5:2", "1.5", "file:" + path("none", "\n")):
        fault(f"{text!r} is no length", Lengths, text, kind=ValueError)
    status, text = tool("--user-tokens", "file:" + path("missing"))
    check.true("no such file", status == 2 and "No such file" in text and "Traceback" not in text, text)


def record(start, ttft=0.1, gap=0.1, tokens=2, **more):
    """A request of `tokens` tokens that began at `start`."""
    if "error" in more:
        return Record(0, 1, 0, start, stamps=[], **more)
    stamps = [start + ttft + gap * i for i in range(tokens)]
    values = {"ttft": ttft, "e2e": ttft + gap * (tokens - 1), "output_tokens": tokens, "counted_by": "usage"}
    return Record(0, 1, 0, start, stamps=stamps, **{**values, **more})


def fake_run(records, wall, warm=0.0, limits=None):
    quiet = {"busy_share": 0, "longest_busy_ms": 0, "connections": 1, "latest_arrival_ms": 0}
    watch = metrics.Watch(None, 1)
    opts = types.SimpleNamespace(slo=limits, shared_prefix=None)
    return types.SimpleNamespace(records=records, wall=wall, warm=warm, load=1, sessions=len(records),
                                 begin=0.0, own=quiet, watch=watch, opts=opts)


def test_goodput():
    limits = slo.bounds("ttft=500ms,tpot=50ms,e2e=10s")
    check.equal("bounds in seconds", limits, {"ttft": 0.5, "tpot": 0.05, "e2e": 10.0})
    for text in ("ttft=500", "ttft=ms", "x=1s", "ttft=0ms", "ttft=1s,ttft=2s", "", "tpot=nans", "e2e=-1s"):
        fault(f"{text!r} is no bound", slo.bounds, text, kind=Exception)
    records = [record(0, 0.5, 0.05, 3), record(1, 0.6, 0.04, 3), record(2, 0.1, 0.06, 3),
               record(3, 0.4, tokens=1),
               record(4, error="HTTP 500"), record(5, error="aborted")]
    found = report.summarize(fake_run(records, 10.0, limits=limits))
    s = found["slo"]
    check.equal("good of judged: the first and the one-token answer; an abort is not judged",
                (s["good"], s["judged"], s["share"]), (2, 5, 0.4))
    near("goodput", s["goodput_per_s"], 0.2)
    check.equal("each bound", s["kept"], {"ttft": 0.6, "tpot": 0.6, "e2e": 0.8})
    check.equal("answered, failed, aborted", (found["ok"], found["failed"], found["aborted"]), (4, 1, 1))
    check.true("printed", "0.20 requests/s: 2 of 5 (40.0 %) kept all bounds" in report.table("", found))


def test_warm_up():
    """A request that the end of the warm-up cuts counts in the throughput with its later part, in no time."""
    records = [record(2, 1, 1, 4, phase="warm-up"), record(5, 9.0, 0.1, 11, phase="warm-up"),
               record(10, 1, 0.5, 3), record(14, 2, 0.5, 3)]
    s = report.summarize(fake_run(records, 20.0, 10.0))
    near("requests a second: (0 + 1/2 + 1 + 1) / 10", s["requests_per_s"], 0.25)
    near("tokens a second: (5.5 + 3 + 3) / 10", s["output_tokens_per_s"], 1.15)
    check.equal("counted", (s["ok"], s["warm_up_requests"], s["output_tokens"], s["wall_s"]), (2, 2, 6, 10.0))
    near("their times alone", s["ttft_ms"]["p50"], 1500)
    check.equal("server without /metrics", s["server"], None)
    over = report.series(fake_run(records, 20.0, 10.0))
    check.equal("tokens in each second", over["output_tokens"][:8], [0, 0, 0, 1, 1, 1, 1, 0])
    check.equal("all tokens", round(sum(over["output_tokens"]), 6), 4 + 11 + 3 + 3)
    check.equal("answered in each second", [i for i, n in enumerate(over["answered"]) if n], [6, 12, 15, 17])
    near("gap", over["inter_token_p50_ms"][11], 500)


def saved(records, wall, load=1):
    run = fake_run(records, wall)
    return {**report.whole(run, report.summarize(run)), "load": load}


def test_compare():
    even = saved([record(0.5 * i) for i in range(40)], 20.0)
    slower = saved([record(0.5 * i, 0.2, 0.2) for i in range(40)], 20.0)
    rows = {name: rest for name, *rest in compare.pair(even, slower, {})}
    for name in ("time to first token, p50", "per token, a request, p99", "end to end, p90"):
        got = [round(v, 9) for v in rows[name]]
        check.equal(f"{name}: all alike, so the interval is a point", got[2:], [2.0, 2.0, 2.0])
    check.equal("requests/s", [round(v, 9) for v in rows["requests/s"]], [2.0, 2.0, 1.0, 1.0, 1.0])
    for name, low, high, want in (("end to end, p50", 1.9, 2.1, "worse"), ("requests/s", 1.1, 1.2, "better"),
                                  ("requests/s", 0.9, 1.2, ""), ("goodput/s", 0.7, 0.8, "worse")):
        check.equal(f"verdict on {name}", compare.verdict(name, low, high), want)
    # 20 windows of a second with 1 and 3 requests in turn: the mean of 20 drawn has the error 1 / sqrt(20),
    # the logarithm of a ratio of two such means about sqrt(2) / sqrt(20) / 2 = 0.158.
    bursts = [record(i + 0.01 * k) for i in range(20) for k in range(1 if i % 2 else 3)]
    rows = {name: rest for name, *rest in compare.pair(saved(bursts, 20.0), saved(bursts, 20.0), {})}
    a, b, ratio, low, high = rows["requests/s"]
    check.equal("the same twice", (a, b, ratio), (2.0, 2.0, 1.0))
    near("lower end", math.log(low), -1.96 * 0.158, 0.05)
    near("upper end", math.log(high), 1.96 * 0.158, 0.05)
    rows = {name: rest for name, *rest in compare.pair(even, slower, {"ttft": 0.15})}
    near("goodput", rows["goodput/s"][2], 0.0)
    long = saved([record(i, 5) for i in range(15)], 20.0)
    check.equal("windows are as long as a request", len(compare.cut(long, {})), compare.FEWEST)
    left, right = ({"settings": {"seed": i, "rate": None}, "model": "m", "server": "s", "runs":
                    [{**even, "load": n} for n in loads]} for i, loads in ((1, (1, 2, 4)), (2, (2, 4, 8))))
    loads = [(x["load"], y["load"]) for x, y in compare.pairs(left, right)]
    check.equal("pairs by load", loads, [(2, 2), (4, 4)])
    check.equal("what differs", compare.differences(left, right), [("seed", "1", "2")])
    right["runs"] = right["runs"][2:]
    fault("no load in both", compare.pairs, left, right)
    status, text = tool("--compare", path("missing.json"), path("broken.json", "{"))
    said = "missing.json: No such file" in text and "Traceback" not in text
    check.true("no such file", status == 1 and said, text)


class Counted:
    """A tokenizer of two tokens a word."""
    def count(self, text):
        return 2 * len(text.split())


def test_datasets():
    opts = types.SimpleNamespace(completions=None, turns_most=None)

    def read(content, form="jsonl", **more):
        name = path("set", content if isinstance(content, str) else "\n".join(map(json.dumps, content)))
        return dataset.read(name, form, types.SimpleNamespace(**{**vars(opts), **more}), Counted())

    with open(SAMPLE, "rb") as f:
        image = f.read()
    with open(path("a.png"), "wb") as f:
        f.write(image)
    shown = [{"type": "image_url", "image_url": {"url": "a.png", "detail": "low"}},
             {"type": "text", "text": "What?"}]
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello"}, {"role": "user", "content": shown},
            {"role": "assistant", "content": "A circle."}]
    lines = [{"messages": talk, "max_tokens": 5}, {"prompt": "Once upon"}, {"body": {"messages": talk[:2]}}]
    (_, (first,)), (_, (second,)), (_, (third,)) = read(lines)
    check.equal("messages without the last answer", [m["role"] for m in first.messages],
                ["system", "user", "assistant", "user"])
    part = first.messages[3]["content"][0]["image_url"]
    check.equal("the image beside the file", (part["url"], part["detail"]),
                ("data:image/png;base64," + base64.b64encode(image).decode(), "low"))
    check.equal("max_tokens", (first.max_tokens, second.max_tokens), (5, None))
    check.equal("images", (len(first.images), len(second.images)), (1, 0))
    check.equal("a prompt is a question", second.messages, [{"role": "user", "content": "Once upon"}])
    check.equal("a line of a batch", third.messages, talk[:2])
    text = read(lines[2:], completions="text")[0][1][0].text
    check.equal("one text for completions", text, "Be brief.\n\nHi")
    check.equal("a list", len(read(json.dumps(lines))), 3)
    lost = [{"type": "image_url", "image_url": {"url": "b.png"}}]
    wrong = {"line 2": '{"prompt": "a"}\n{"pro', "nothing to ask": "\n", "entry 1: not an object": "[3]",
             "neither messages": "{}", "no question": [{"messages": talk[2:3]}],
             "max_tokens is 0": [{"prompt": "a", "max_tokens": 0}],
             "No such file": [{"messages": [{"role": "user", "content": lost}]}]}
    for said, content in wrong.items():
        text = fault(said, read, content)
        check.true(f"{said}: said", said in str(text), text)
    fault("images need chat", lambda: read(lines, completions="text"))
    pieces = (("system", "S"), ("gpt", "dropped"), ("human", "a b c"), ("gpt", "d e f g"), ("human", "h"))
    said = [{"from": who, "value": text} for who, text in pieces]
    entry = {"id": "x", "conversations": said}
    for content in (json.dumps([entry]), json.dumps(entry) + "\n"):
        ((system, turns),) = read(content, "sharegpt")
        check.equal("system prompt, questions, lengths of answers",
                    (system, [(t.text, t.max_tokens) for t in turns]), ("S", [("a b c", 8), ("h", None)]))
    check.equal("--turns cuts", len(read([{"conversations": said}], "sharegpt", turns_most=1)[0][1]), 1)
    fault("no questions", read, [{"conversations": said[:2]}], "sharegpt")


def test_metrics():
    ours = ('# HELP x y\nvllm:num_requests_running{engine="0",model_name="a} b"} 3.0\n'
            'vllm:num_requests_running{engine="1"} 1\nvllm:num_requests_waiting 2 1700000000\n'
            'vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm:kv_cache_usage_perc{engine="1"} 0.1\n'
            'vllm:prefix_cache_hits_total{engine="0"} %d\n'
            'vllm:prefix_cache_queries_total{engine="0"} %d\nbroken\nvllm:kv_cache_usage_perc NaN\n')
    counts = ((10, 100), (40, 150), (40, 150))
    first, second, third = (metrics.pick(metrics.parse(ours % pair)) for pair in counts)
    check.equal("gauges", [first[k] for k in ("running", "waiting", "kv_use")], [4.0, 2.0, 0.3])
    check.equal("what is not there", "acceptance" in first, False)
    watch = metrics.Watch(None, 1)
    watch.readings = [(0.0, first), (1.0, second), (2.0, third)]
    check.equal("shares of each second", watch.series()["hit_rate"], [None, 0.6, None])
    figures = watch.figures(0.0)
    check.equal("over the run", (figures["hit_rate"], figures["running"]), (0.6, {"mean": 4.0, "max": 4.0}))
    check.equal("after the warm-up", watch.figures(0.5)["hit_rate"], None)
    other = metrics.pick(metrics.parse("llamacpp:requests_processing 5\nllamacpp:requests_deferred 1\n"))
    check.equal("another server", other, {"running": 5.0, "waiting": 1.0})
    check.equal("one that is not known", metrics.pick(metrics.parse("go_threads 5\n")), {})


class Page(html.parser.HTMLParser):
    """What a browser would fetch or run."""

    def __init__(self, text):
        super().__init__()
        self.open, self.found, self.titles = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "br"):
            self.open.append(tag)
        fetches = ("script", "link", "img", "iframe", "image", "use", "object")
        if tag in fetches or {"src", "href"} & {*dict(attributes)}:
            self.found.append(tag)

    def handle_startendtag(self, tag, attributes):
        if {"src", "href"} & {*dict(attributes)}:
            self.found.append(tag)

    def handle_endtag(self, tag):
        check.equal("tags close in order", self.open.pop(), tag)


def look(name):
    """Checks a page; -> its text and the titles of its charts"""
    with open(name, encoding="utf-8") as f:
        text = f.read()
    page = Page(text)
    check.equal("nothing is loaded, no script", page.found, [])
    check.true("nor by its style", "url(" not in text and "@import" not in text)
    check.true("and nothing may be", "default-src 'none'" in text)
    check.true("light and dark", "prefers-color-scheme:dark" in text)
    check.equal("all tags are closed", page.open, [])
    charts = re.findall(r"<svg.*?</svg>", text, re.S)
    for svg in charts:
        xml.etree.ElementTree.fromstring(svg)
        check.true("numbers", "nan" not in svg and "inf" not in svg)
    return text, [html.unescape(re.search(r'aria-label="(.*?)"', s)[1]) for s in charts]


def test_arrivals():
    """Bursts as the seed says; never more at once than allowed, and the wait counts."""
    with Stub("--first", "0.02") as stub:
        status, text, out = load(stub.url, "--rate", 40, "--burstiness", 0.25, "--duration", 3, "--turns", 1,
                                 "--max-tokens", 2)
        rng, want = random.Random("1/0/arrivals"), []
        while (at := rng.gammavariate(0.25, 0.1) + (want[-1] if want else 0)) <= 3:
            want.append(at)
        starts = [r["start"] for r in out["runs"][0]["records"]]
        check.equal("arrivals", (status, len(starts)), (0, len(want)))
        late = [s - w for w, s in zip(want, starts)]
        check.true("not before they were due", all(x >= -1e-6 for x in late), late)
        rng = random.Random(5)
        pauses = [rng.gammavariate(0.25, 1 / (0.25 * 40)) for _ in range(20000)]
        near("mean pause", statistics.mean(pauses), 1 / 40, 0.002)
        near("its variation: 1 / sqrt(B)", statistics.pstdev(pauses) / statistics.mean(pauses), 2, 0.15)
    with Stub("--first", "0.05") as stub:
        status, text, out = load(stub.url, "--sweep", "60", "--mode", "open", "--max-concurrency", 2,
                                 "--sessions", 30, "--turns", 1, "--max-tokens", 3, "--metrics-interval", 0)
        run = out["runs"][0]
        check.equal("exit status, answered", (status, run["ok"], run["load"]), (0, 30, 60.0))
        spans = [(r["start"] + r["held"], r["start"] + r["e2e"]) for r in run["records"]]
        most = max(sum(1 for a, b in spans if a <= t < b) for t, _ in spans)
        check.true("two at once at most", 1 <= most <= 2, most)
        held = run["held_back_ms"]["max"]
        check.true("others were held back", held > 100 and "held back here" in text, text)
        check.true("which counts", all(r["ttft"] >= r["held"] + 0.05 for r in run["records"]))
    for flags in (("--max-concurrency", 2), ("--burstiness", 2), ("--sweep", "1.5"),
                  ("--sweep", 1, "--users", 2), ("--warm-up", 5, "--duration", 4), ("--slo", "ttft=5"),
                  ("--dataset", "x", "--completions", "ids"), ("--max-tokens", "long")):
        check.equal(f"wrong flags {flags}", tool("--url", "http://127.0.0.1:9", *flags)[0], 2)


def test_bare_server():
    """Usage, /metrics and stream_options are no conditions."""
    bare = Bare()
    try:
        status, text, out = load(bare.url, "--users", 2, "--sessions", 6, "--turns", "2",
                                 "--slo", "ttft=60s,e2e=60s", "--html", path("bare.html"))
        run = out["runs"][0]
        check.equal("exit status, answered", (status, run["ok"], run["failed"]), (0, 12, 0))
        counted = run["output_tokens"], run["output_tokens_counted_by"]
        check.equal("a chunk counts as a token", counted, (36, {"chunks": 12}))
        check.true("and that is said", "12 answers came without usage" in text, text)
        for key in ("prompt_tokens_per_s", "cached_share", "metrics", "server"):
            check.equal(f"{key} is not known", run[key], None)
        near("goodput", run["slo"]["share"], 1.0)
        text, charts = look(path("bare.html"))
        drawn = any("Server" in c for c in charts)
        check.true("the page says so", "were not read" in text and not drawn, charts)
        content = [{"type": "image_url", "image_url": {"url": SAMPLE}}, {"type": "text", "text": "Well?"}]
        lines = [{"messages": [{"role": "user", "content": content}], "max_tokens": n} for n in (3, 4, 5)]
        bare.bodies.clear()
        status, text, out = load(bare.url, "--dataset", path("set.jsonl", "\n".join(map(json.dumps, lines))),
                                 "--users", 1, "--sessions", 6)
        asked = bare.bodies[1:]
        check.equal("exit status, images", (status, out["runs"][0]["images"]), (0, 6))
        check.equal("all of it, twice, in another order", [sorted(b["max_tokens"] for b in asked[i:i + 3])
                                                           for i in (0, 3)], [[3, 4, 5]] * 2)
        url = asked[0]["messages"][0]["content"][0]["image_url"]["url"]
        check.true("as a data: URL", url.startswith("data:image/png;base64,"), url[:40])
    finally:
        bare.close()


def test_demo():
    server = harness.Server(args.binary, args.demo)
    try:
        url = f"http://{server.host}:{server.port}"
        status, text, out = load(url, "--sweep", "1,2", "--duration", 1, "--warm-up", 0.2, "--max-tokens",
                                 "uniform:4:12", "--user-tokens", "lognormal:20:0.4", "--system-tokens", 30,
                                 "--ignore-eos", "--slo", "ttft=60s,tpot=60s", "--html", path("demo.html"),
                                 "--plot", path("demo.svg"), "--metrics-interval", 0.1)
        print(text)
        check.equal("exit status", status, 0)
        for run in out["runs"]:
            check.equal("failed", (run["failed"], run["errors"]), (0, {}))
            check.true("answers of 4 to 12 tokens, by usage", all(
                4 <= r["output_tokens"] <= 12 and r["counted_by"] == "usage" for r in run["records"]))
            check.true("lengths vary", len({r["output_tokens"] for r in run["records"]}) > 3)
            early = run["warm_up_requests"]
            check.true("the warm-up is left out", 0 < early == len(run["records"]) - run["ok"], early)
            check.true("its metrics", {"running", "waiting", "kv_use", "hit_rate"} <= {*run["metrics"]})
            check.true("several readings", len(run["metrics"]["t"]) >= 5, run["metrics"])
            check.true("what ran", run["server"]["running"]["max"] <= run["load"], run["server"])
            near("goodput is throughput", run["slo"]["goodput_per_s"], run["requests_per_s"])
        check.true("the sweep's table", "most goodput" in text and "sweep over users" in text)
        page, charts = look(path("demo.html"))
        want = {"Throughput", "Server: requests", "Server: shares", "Requests and goodput",
                "Time to first token over users", "Distribution: end to end"}
        check.true("its charts", want <= {*charts}, charts)
        check.true("the server's figures are drawn twice", charts.count("Server: requests") == 2)
        os.rename(path("out.json"), path("a.json"))
        chats = [{"conversations": [{"from": "human", "value": f"Hello number {i}"},
                                    {"from": "gpt", "value": "one two three"}] * 2} for i in range(5)]
        flags = ("--dataset", path("chats.json", json.dumps(chats)), "--dataset-format", "sharegpt",
                 "--sweep", "2,4", "--sessions", 8, "--ignore-eos")
        status, text, out = load(url, *flags)
        run = out["runs"][0]
        check.equal("ShareGPT: exit status, answered", (status, run["ok"], run["sessions"]), (0, 16, 8))
        sizes = [r["output_tokens"] for r in run["records"]]
        check.true("answers about as long as those of the file", 2 <= min(sizes) <= max(sizes) <= 12, sizes)
        content = [{"type": "image_url", "image_url": {"url": SAMPLE}}, {"type": "text", "text": "Well?"}]
        line = json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 9})
        status, text, seen = load(url, "--dataset", path("one.jsonl", line), "--sessions", 4)
        run = seen["runs"][0]
        check.equal("jsonl with an image", (status, run["ok"], run["images"]), (0, 4, 4))
        b = path("b.json", json.dumps(out))
        status, text = tool("--compare", path("a.json"), b, "--html", path("ab.html"),
                            "--plot", path("ab.svg"))
        print(text)
        check.equal("compared: what both have", (status, re.findall(r"^load (\d+):", text, re.M)), (0, ["2"]))
        check.true("goodput by the bounds of A", "goodput/s" in text, text)
        check.true("what differs is named", "dataset" in text)
        check.equal("and as SVG", xml.etree.ElementTree.parse(path("ab.svg")).getroot().tag[-3:], "svg")
        check.true("drawn", "Distribution: time to first token" in look(path("ab.html"))[1])
    finally:
        server.stop()


def main():
    for name, test in list(globals().items()):
        if name.startswith("test_") and (not args.only or name in args.only):
            check.run(test)
    temporary.cleanup()
    check.end()


main()
