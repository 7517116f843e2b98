"""--request-log and `kvasir replay`: python3 test_replay.py [--binary B] [test ...]
What every API answered is run again, shuffled and several at a time, with the same bits; what was changed in
a log is found and named. Rotation, full disks, killed servers, keys, images by hash."""

import base64
import collections
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import xml.etree.ElementTree

import harness
import lora_adapter
from harness import Server

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GOLDEN = os.path.join(ROOT, "tests/golden")
args = harness.arguments(__doc__)
check = harness.Checks()
folder = tempfile.mkdtemp(prefix="kvasir-test-")
KEY = "sk-a-key-that-nobody-writes-down"
# Base64 in lines, as MIME has it: stays in the body.
MIME = "data:image/png;base64," + base64.encodebytes(harness.drawing(4)).decode()


def image(n):
    return harness.data_url(harness.drawing(n))


def words(n):
    return {"role": "user", "content": " ".join(["the red house on a hill"] * n)}


def with_images(*urls, **more):
    parts = [
        {"type": "text", "text": "what is this?"},
        *({"type": "image_url", "image_url": {"url": u}} for u in urls),
    ]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": 6, "ignore_eos": True, **more}


def requests(file_url):
    """(path, body), of all APIs; most without a seed"""
    chat, text, messages, responses = (
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/responses",
    )
    source = {"type": "base64", "media_type": "image/png", "data": image(1).split(",")[1]}
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    return [
        (chat, with_images(image(1), image(2))),
        (chat, with_images(image(2), image(1), stream=True, n=2)),
        (chat, with_images(MIME, seed=5)),
        (chat, with_images(file_url)),
        (
            chat,
            {
                "messages": [words(3)],
                "max_tokens": 9,
                "logprobs": True,
                "top_logprobs": 2,
                "temperature": 0.7,
            },
        ),
        (
            chat,
            {
                "messages": [words(1)],
                "max_tokens": 30,
                "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
            },
        ),
        (
            chat,
            {
                "messages": [words(1)],
                "max_tokens": 4,
                "seed": 2**63 - 1,
                "logit_bias": {"5": 1e2},
                "user": "kvasir-image:sha256:" + "0" * 64,
            },
        ),
        (text, {"prompt": [[5, 6, 7], [8, 9]], "max_tokens": 5, "echo": True, "logprobs": 1}),
        (text, {"prompt": ["A" * 400, "kvasir-image:sha256:" + "0" * 64], "max_tokens": 5, "stop": ["e"]}),
        (text, {"prompt": "kvasir-text:", "max_tokens": -1}),
        (
            messages,
            {
                "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}],
                "max_tokens": 5,
            },
        ),
        (messages, {"messages": [words(2)], "max_tokens": 5, "stream": True}),
        (responses, {"input": "hello", "max_output_tokens": 5}),
        ("/chat/completions", {"messages": [words(2)], "max_tokens": 8, "temperature": 0}),
        (
            "/api/chat",
            {"messages": [{**words(1), "images": [image(3).split(",")[1]]}], "options": {"num_predict": 5}},
        ),
        (
            "/api/generate",
            {"prompt": "x", "stream": False, "options": {"num_predict": 5, "temperature": 2}},
        ),
        ("/api/generate", {"prompt": "y", "max_tokens": 3}),
    ]


def serve(path, *flags, model=None, **more):
    return Server(args.binary, model or args.model, "--request-log", path, *flags, **more)


def lines(log):
    with open(log, "rb") as f:
        data = f.read()
    check.true("whole lines", not data or data.endswith(b"\n"), data[-80:])
    return [json.loads(line) for line in data.splitlines()]


def replay(log, *flags, model=None):
    """-> exit code, results by line, counts"""
    command = [args.binary, "replay", log, model or args.model, "--json", *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=300)
    *results, counts = [json.loads(line) for line in done.stdout.splitlines()] or [None]
    return done.returncode, results, counts


def ask(server, log, count):
    for _ in range(count):
        server.ok("/v1/completions", {"prompt": "hello there", "max_tokens": 8})
    check.true("lines come", harness.wait_until(lambda: sum(map(len, map(lines, existing(log)))) >= 1))


def existing(log):
    return [p for p in (log + ".1", log) if os.path.exists(p)]


def test_dialects():
    log, junit = os.path.join(folder, "all"), os.path.join(folder, "junit.xml")
    with open(os.path.join(folder, "an image.png"), "wb") as f:
        f.write(harness.drawing(6))
    server = serve(
        log, "--allowed-media-dir", folder, "--served-model-name", "its-name", env={"KVASIR_API_KEY": KEY}
    )
    keys = {"Authorization": f"Bearer {KEY}"}
    sent = requests(f"file://{folder}/an%20image.png")
    for path, body in sent:
        server.request("POST", path, body, keys)
    last = None
    for text in ("red", "blue", "green"):
        body = {"input": text, "max_output_tokens": 5, "previous_response_id": last, "model": "its-name"}
        sent.append(("/v1/responses", body))
        last = server.post("/v1/responses", body, keys)[1]["id"]
    server.request("POST", "/v1/completions", b"{no JSON", keys)
    server.stop()
    got = lines(log)
    check.equal("a line per request", [line["path"] for line in got], [path for path, _ in sent])
    check.equal(
        "status",
        [line["status"] for line in got],
        [400 if b.get("max_tokens") == -1 else 200 for _, b in sent],
    )
    check.equal("seeds that were drawn", sum("seed" in line for line in got), len(sent) - 3)
    check.equal("plain bodies are as they were sent", got[11]["body"], sent[11][1])
    check.equal("tokens of both choices", [len(c["token_ids"]) for c in got[1]["choices"]], [6, 6])
    with open(log) as f:
        text = f.read()
    check.true("no key", KEY not in text and hashlib.sha256(KEY.encode()).hexdigest() not in text)
    files = set(os.listdir(log + ".images"))
    want = {hashlib.sha256(harness.drawing(n)).hexdigest() for n in (1, 2, 3, 6)}
    want |= {
        hashlib.sha256(t).hexdigest()
        for t in (b"kvasir-image:sha256:" + b"0" * 64, b"kvasir-text:", base64.b64decode("A" * 400))
    }
    check.equal("images by hash, once", files, want)
    check.true("no image in the lines", image(1).split(",")[1] not in text)
    check.equal(
        "private", (os.stat(log).st_mode & 0o777, os.stat(log + ".images").st_mode & 0o777), (0o600, 0o700)
    )
    for flags in (
        ("--concurrency", "8", "--shuffle", "--junit", junit),
        ("--concurrency", "1", "--threads", "1", "--prefix-cache", "off", "--prefill-chunk", "3"),
    ):
        code, results, counts = replay(log, *flags)
        check.equal(
            "equal",
            (code, counts),
            (0, {"requests": len(sent), "equal": len(sent), "different": 0, "skipped": 0}),
        )
        check.equal(
            "named by line and id",
            [(r["line"], r["id"]) for r in results],
            [(i + 1, line["id"]) for i, line in enumerate(got)],
        )
    suite = xml.etree.ElementTree.parse(junit).getroot()
    check.equal("JUnit", (suite.tag, len(suite), suite.get("failures")), ("testsuite", len(sent), "0"))
    test_changed(log, got)


def test_changed(log, got):
    """Each change of a line is found, and named."""

    def edit(line, *path, value):
        for key in path[:-1]:
            line = line[key]
        line[path[-1]] = value(line[path[-1]])

    first = got[0]["choices"][0]["token_ids"][0]
    changes = [
        (0, ("seed",), lambda v: v + 1, 1, "token_ids["),
        (1, ("choices", 1, "token_ids", 4), lambda v: v ^ 1, 1, "choices[1].token_ids[4]"),
        (0, ("choices", 0, "token_ids"), lambda v: v[:5], 1, "choices[0].token_ids[5]"),
        (3, ("choices", 0, "finish"), lambda v: "none", 1, 'was "none"'),
        (
            4,
            ("choices", 0, "logprobs_sha256"),
            lambda v: v[:-1] + ("0" if v[-1] != "0" else "1"),
            1,
            "choices[0].logprobs_sha256",
        ),
        (4, ("body", "temperature"), lambda v: 1.9, 1, "ids["),
        (9, ("status",), lambda v: 200, 1, "status is 400, was 200"),
        (9, ("error",), lambda v: "another", 1, 'error is "invalid_value", was "another"'),
        (13, ("path",), lambda v: "/nowhere", 1, "refused"),
        (
            0,
            ("body", "messages", 0, "content", 1, "image_url", "url"),
            lambda v: v[:-64] + "f" * 64,
            2,
            "image is missing",
        ),
        (0, ("fingerprint",), lambda v: "fp_0", 0, ""),
        (8, ("status",), lambda v: 503, 0, "503"),
    ]
    changed = os.path.join(folder, "changed")
    shutil.copytree(log + ".images", changed + ".images")
    cases = [json.loads(json.dumps(got[at])) for at, *_ in changes]
    for case, (_, path, value, _, _) in zip(cases, changes):
        edit(case, *path, value=value)
    other = json.loads(json.dumps(got[0]))
    other["fingerprint"], other["choices"][0]["token_ids"][0] = "fp_0", first ^ 1
    kernels = {**json.loads(json.dumps(other)), "backend": "cpu-none"}
    texts = [json.dumps(c) for c in cases] + [
        json.dumps(other),
        json.dumps(kernels),
        "[]",
        "{no JSON",
        json.dumps(got[0]),
    ]
    with open(changed, "w") as f:
        f.write("\n".join(texts) + "\n" + texts[0][:-9])
    code, results, counts = replay(changed)
    check.equal("found", (code, counts["requests"]), (1, len(texts)))
    names = {0: "equal", 1: "different", 2: "skipped"}
    for result, (at, path, _, want, reason) in zip(results, changes):
        want = "skipped" if path == ("status",) and at == 8 else names[want]
        check.true(f"{path}", result["result"] == want and reason in result["reason"], result)
    rest = [r["result"] + ": " + r["reason"] for r in results[len(changes) :]]
    for got_text, want in zip(
        rest,
        (
            "skipped: bits may differ: made with other weights",
            "skipped: bits may differ: made with another kernel set (cpu-none",
            "skipped: this is no line",
            "skipped: this is no line",
            "equal: ",
        ),
    ):
        check.true(want, got_text.startswith(want), got_text)
    with open(changed, "w") as f:
        f.write(json.dumps(other) + "\n" + json.dumps(got[0]) + "\n")
    check.equal("what can't be compared is no success", replay(changed)[0], 2)


def test_vectors():
    """Embeddings and scores."""
    for model, path, body in (
        ("embeddings/mean_f32", "/v1/embeddings", {"input": ["red", "blue house"]}),
        ("classify/saved", "/classify", {"input": ["blue", "a house"]}),
    ):
        model, log = os.path.join(GOLDEN, model), os.path.join(folder, "vectors")
        server = serve(log, model=model)
        server.ok(path, body)
        server.stop()
        check.equal(
            f"{path}: equal",
            replay(log, model=model)[::2],
            (0, {"requests": 1, "equal": 1, "different": 0, "skipped": 0}),
        )
        line = lines(log)[0]
        line["choices"][0]["vectors_sha256"] = "0" * 64
        with open(log, "w") as f:
            f.write(json.dumps(line) + "\n")
        code, results, _ = replay(log, model=model)
        check.true(
            f"{path}: other bits",
            code == 1 and "choices[0].vectors_sha256" in results[0]["reason"],
            results,
        )
        os.unlink(log)


def test_adapter():
    """A line names its adapter's fingerprint: without the adapter, nothing is said to be different."""
    model, log = os.path.join(ROOT, "models/demo"), os.path.join(folder, "adapter.jsonl")
    lora = ["--lora", "sql=" + lora_adapter.make(os.path.join(folder, "sql-adapter"))]
    server = serve(log, *lora, model=model)
    answer = server.ok("/v1/completions", {"model": "sql", "prompt": "Hello", "max_tokens": 8})
    server.stop()
    check.equal("fingerprint", lines(log)[0]["fingerprint"], answer["system_fingerprint"])
    check.equal("with it", [r["result"] for r in replay(log, *lora, model=model)[1]], ["equal"])
    code, results, _ = replay(log, model=model)
    check.equal("without it", (code, [r["result"] for r in results]), (2, ["skipped"]))


def test_log_probs():
    """Their bits are there whether or not a client asks for them."""
    log = os.path.join(folder, "log-probs")
    server = serve(log)
    for more in ({}, {"logprobs": 1}):
        server.ok("/v1/completions", {"prompt": "x", "max_tokens": 4, "seed": 1, **more})
    server.stop()
    one, two = (line["choices"] for line in lines(log))
    check.equal("the same digest", one, two)


def test_rotation():
    log = os.path.join(folder, "rotated")
    server = serve(log, "--request-log-size", "8K")
    for _ in range(16):
        server.ok("/v1/chat/completions", with_images(image(1)))
    check.equal("none is lost", server.metric("kvasir:request_log_lost_total"), 0)
    server.stop()
    both = existing(log)
    check.equal("an older one", both, [log + ".1", log])
    for path in both:
        images = os.listdir(path + ".images")
        check.equal(f"{path} has its image", images, [hashlib.sha256(harness.drawing(1)).hexdigest()])
        size = os.path.getsize(path) + os.path.getsize(os.path.join(path + ".images", images[0]))
        check.true("not too large", size <= 8192, size)
        check.equal("equal", replay(path)[0], 0)
    check.true("the newest are kept", len(lines(log)) + len(lines(log + ".1")) >= 6)
    server = serve(log)
    inode = os.stat(os.path.join(log + ".images", images[0])).st_ino
    os.rename(log, log + ".moved")  # as logrotate does
    server.ok("/v1/chat/completions", with_images(image(1)))
    server.stop()
    check.equal(
        "made again",
        (len(lines(log)), os.stat(os.path.join(log + ".images", images[0])).st_ino),
        (1, inode),
    )


def test_full_disk():
    log, errors = os.path.join(folder, "full"), os.path.join(folder, "errors")
    with open(errors, "w+") as f:
        server = serve("/dev/full", log=f)
        for _ in range(3):
            server.ok("/v1/completions", {"prompt": "x", "max_tokens": 2})
        check.true("counted", server.soon(lambda: server.metric("kvasir:request_log_lost_total") == 3))
        server.stop()
        f.seek(0)
        check.equal("a warning, once", f.read().count("request-log /dev/full: No space left on device"), 1)
    server = serve(log)
    ask(server, log, 1)
    size = os.path.getsize(log)
    for limit in (size + 100, 1):  # in the middle of a line; of an image
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        lost = server.metric("kvasir:request_log_lost_total")
        server.ok("/v1/chat/completions", with_images(image(2)) if limit == 1 else with_images())
        check.true("lost", server.soon(lambda: server.metric("kvasir:request_log_lost_total") == lost + 1))
        check.equal(
            "nothing is half there", (os.path.getsize(log), os.listdir(log + ".images")), (size, [])
        )
    resource.prlimit(
        server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    )
    server.ok("/v1/chat/completions", with_images(image(2)))
    server.stop()
    check.equal("goes on", (len(lines(log)), replay(log)[0]), (2, 0))


def test_open():
    log, errors = os.path.join(folder, "open"), os.path.join(folder, "errors")
    server = serve(log)
    for path, why in (
        (os.path.join(folder, "none", "log"), "No such file"),
        (folder, "Is a directory"),
        (log, "another server"),
    ):
        with open(errors, "w+") as f:
            process = subprocess.run(
                [args.binary, "serve", "--model", args.model, "--port", "0", "--request-log", path],
                stderr=f,
            )
            f.seek(0)
            text = f.read()
        check.true(f"{path} is named", process.returncode == 1 and path in text and why in text, text)
    server.stop()
    for flags, code in (
        (("--help",), 0),
        ((), 2),
        ((log, "--concurrency", "0"), 2),
        ((log, "--model", folder), 2),
        ((folder + "/none",), 2),
    ):
        done = subprocess.run(
            [args.binary, "replay", *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        check.equal(f"replay {flags}", done.returncode, code)


def test_killed():
    """Whole lines after kill -9; what a line lacks is cut off."""
    log = os.path.join(folder, "killed")
    server = serve(log)

    def load():
        try:
            while True:
                server.ok("/v1/completions", {"prompt": "x" * 1000, "max_tokens": 3})
        except (OSError, harness.http.client.HTTPException):
            pass

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    check.true("under load", harness.wait_until(lambda: os.path.getsize(log) > 100_000))
    server.process.send_signal(signal.SIGKILL)
    for thread in threads:
        thread.join()
    server.stop(expect=-signal.SIGKILL, send=False)
    before = lines(log)
    with open(log, "a") as f:
        f.write(json.dumps(before[0])[:-5])
    server = serve(log)
    server.ok("/v1/completions", {"prompt": "x", "max_tokens": 3})
    server.stop()
    check.equal("one more", len(lines(log)), len(before) + 1)
    check.equal("ids", max(collections.Counter(line["id"] for line in lines(log)).values()), 1)


try:
    for function in (
        test_dialects,
        test_vectors,
        test_adapter,
        test_log_probs,
        test_rotation,
        test_full_disk,
        test_open,
        test_killed,
    ):
        if not args.only or function.__name__ in args.only:
            check.run(function)
finally:
    os.environ.get("KEEP") or shutil.rmtree(folder)
check.end()
