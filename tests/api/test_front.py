"""Several models behind one port: python test_front.py [--binary B] [--demo DIR]

Two golden checkpoints and the demo model in a budget that holds two of three; each answer is compared with
that of a server of its own."""

import contextlib
import hashlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import (
    ENDLESS,
    Checks,
    Server,
    arguments,
    data_url,
    drawing,
    endless,
    parse_stream,
    png,
    wait_until,
)  # noqa: E402
from test_websocket import Socket, last  # noqa: E402

check = Checks()
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
SMALL = ("--kv-memory", "8M", "--encoder-cache-memory", "1M", "--threads", "1")
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
KEYS = "first-key\nsecond-key\n"
MODELS = {}  # name: path


class Front(Server):
    """kvasir serve with a [section] for each model."""

    def __init__(self, models, *flags, lines=(), **more):
        self.top = tempfile.TemporaryDirectory()
        config = os.path.join(self.top.name, "config")
        with open(config, "w") as f:
            for name, path in models.items():
                f.write(
                    f"[{name}]\nmodel = {os.path.abspath(path)}\n"
                    + "".join(f"{x}\n" for n, x in lines if n == name)
                )
        super().__init__(BINARY, "/nothing", "--config", config, *SMALL, *flags, **more)

    def status(self):
        return {
            m["id"]: m["status"]["value"] for m in json.loads(self.request("GET", "/v1/models")[2])["data"]
        }

    def of(self, name, model):
        return self.metrics().get(f'{name}{{model_name="{model}"}}', 0)

    def child(self, model):
        """The process of the model's own server."""
        for pid in subprocess.run(
            ["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True
        ).stdout.split():
            with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/cmdline", "rb") as f: # it may end
                if f"--served-model-name={model}".encode() in f.read().split(b"\0"):
                    return int(pid)
        return None


@contextlib.contextmanager
def front(models, *flags, **more):
    s = Front(models, *flags, **more)
    try:
        yield s
        s.stop()
    finally:
        if s.process.poll() is None:
            s.process.kill()


def plain(answer):
    if isinstance(answer, dict):
        return {
            k: plain(v)
            for k, v in answer.items()
            if k not in ("id", "created", "created_at", "completed_at", "usage")
        }
    return [plain(x) for x in answer] if isinstance(answer, list) else answer


def asks(model, turn):
    """-> (path, body) of some requests to the model"""
    image = {"type": "image_url", "image_url": {"url": data_url(drawing(turn, 48))}}
    text = {"model": model, "max_tokens": 12, "temperature": 0, "seed": turn}
    yield COMPLETIONS, {**text, "prompt": f"Turn {turn}: one two", "logprobs": 2}
    yield COMPLETIONS, {"prompt": f"three {turn}", "stream": True, **text, "temperature": 1}
    if model != "text":
        yield CHAT, {
            "messages": [{"role": "user", "content": [image, {"type": "text", "text": f"What {turn}?"}]}],
            **text,
        }


def ask(s, path, body):
    status, head, data = s.request("POST", path, body)
    if status != 200:
        raise AssertionError(f"{path} {body['model']}: {status} {data[:300]}")
    return plain(parse_stream(data) if body.get("stream") else json.loads(data))


def test_equal():
    """Three models in turn where two fit: no error, and what a server of its own answers."""
    wanted = {}
    for name, path in MODELS.items():
        own = Server(BINARY, path, "--served-model-name", name, *SMALL)
        wanted[name] = [ask(own, *a) for turn in range(2) for a in asks(name, turn)]
        own.stop()
    with front(MODELS, "--models-memory", "110M") as s:
        check.equal("nothing is loaded", set(s.status().values()), {"unloaded"})
        for turn in range(2):
            for name in MODELS:
                got = [ask(s, *a) for a in asks(name, turn)]
                n = len(got)
                check.equal(f"{name}, turn {turn}", got, wanted[name][turn * n : (turn + 1) * n])
        check.true("at most two are loaded", list(s.status().values()).count("loaded") <= 2, s.status())
        loads = {name: s.of("kvasir:model_loads_total", name) for name in MODELS}
        check.true(
            "each has left and come back", min(loads.values()) >= 1 and sum(loads.values()) >= 4, loads
        )


def test_routes(s):
    names = list(MODELS)
    status, answer = s.post(COMPLETIONS, {"model": "nothing", "prompt": "x"})
    check.equal("unknown", (status, answer["error"]["code"]), (404, "model_not_found"))
    check.true("names them", all(n in answer["error"]["message"] for n in names), answer)
    check.equal(
        "without a model the first", s.ok(COMPLETIONS, {"prompt": "x", "max_tokens": 1})["model"], names[0]
    )
    check.equal(
        "escaped",
        s.post(COMPLETIONS, b'{"prompt":"x","max_tokens":1,"model":"t\\u0065xt"}')[1].get("model"),
        "text",
    )
    check.equal("the last key", s.post(COMPLETIONS, b'{"prompt":{"model":"x"},"model":"text"}')[0], 400)
    check.equal("no JSON", s.post(COMPLETIONS, b'{"model"')[0], 400)
    props = json.loads(s.request("GET", "/props?model=text")[2])
    check.equal("by argument", props["model_alias"], "text")
    check.equal(
        "a model's card", json.loads(s.request("GET", "/v1/models/text")[2])["status"]["value"], "loaded"
    )
    check.equal("no such card", s.request("GET", "/v1/models/nothing")[0], 404)
    for path, code in (("/health", 200), ("/ready", 200), ("/api/version", 200), ("/nothing", 404)):
        check.equal(path, s.request("GET", path)[0], code)
    large = png(600, 600, lambda x, y: (x * y % 256, x * x % 251, y * y % 241))  # a worker reads its body
    body = {
        "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": data_url(large)}}]}
        ],
        "max_tokens": 2,
        "model": names[0],
    }
    check.true("large", len(json.dumps(body)) > 300_000, len(json.dumps(body)))
    check.equal("a large body", s.ok(CHAT, body)["model"], names[0])
    c = s.connect()
    c.request(
        "POST",
        COMPLETIONS,
        iter([b'{"prompt":"x","max_tok', b'ens":1,"model"', b':"text"}']),
        {"Content-Type": "application/json"},
        encode_chunked=True,
    )
    check.equal("chunked", json.loads(c.getresponse().read()).get("model"), "text")
    stored = s.ok(RESPONSES, {"model": "text", "input": "x", "max_output_tokens": 16})
    path = f"{RESPONSES}/{stored['id']}"
    check.equal("a stored response", json.loads(s.request("GET", path)[2]).get("id"), stored["id"])
    check.equal("deleted", (s.request("DELETE", path)[0], s.request("GET", path)[0]), (200, 404))
    status, head, data = s.request("HEAD", "/props?model=text")
    check.equal("HEAD", (status, data), (200, b""))
    check.equal(
        "an id is kept",
        s.request("POST", COMPLETIONS, {"prompt": "x", "max_tokens": 1}, {"X-Request-Id": "mine"})[1][
            "x-request-id"
        ],
        "mine",
    )


def test_framing(s):
    """What must not reach a child, and two requests to two models in one packet."""

    def post(model, more=""):
        body = json.dumps({"model": model, "prompt": "x", "max_tokens": 1})
        return HEAD + f"{more}Content-Length: {len(body)}\r\n\r\n{body}".encode()

    for more in ("Transfer-Encoding: chunked\r\n", "Content-Length: 3\r\n"):
        check.true(repr(more), s.raw(post("text", more)).startswith(b"HTTP/1.1 400"))
    both = s.raw(post("text") + post("demo", "Connection: close\r\n"))
    check.equal("two", both.count(b"HTTP/1.1 200"), 2)
    check.true("in order", 0 < both.find(b'"model":"text"') < both.find(b'"model":"demo"'), both)
    own = s.request(
        "POST", COMPLETIONS, {"prompt": "x", "max_tokens": 1}, {"X-Kvasir-Front": "1.2.3.4 5 - 2 9"}
    )
    check.equal("a forged identity", own[0], 200)


def test_websocket(s):
    w = Socket(s)
    check.equal("opened", w.status, 101)
    first = last(w.turn("Hello", model="text", store=False))
    other = last(w.turn("Hello", model="demo", store=False))
    again = last(w.turn("More", model="demo", store=False, previous_response_id=other["id"]))
    check.equal("each by its model", [r["model"] for r in (first, other, again)], ["text", "demo", "demo"])
    check.equal("what it continues", again.get("previous_response_id"), other["id"])
    check.equal("an unknown model", w.turn(model="nothing")[-1]["error"]["code"], "model_not_found")
    w.close()


def running(s, model):
    text = s.request("GET", f"/metrics?model={model}")[2].decode()
    return sum(float(x.split()[-1]) for x in text.splitlines() if x.startswith("vllm:num_requests_running"))


def stream_open(s, model):
    c = s.connect()
    c.request(
        "POST",
        COMPLETIONS,
        json.dumps(
            {
                "model": model,
                "prompt": "x",
                "max_tokens": 1500 if model == "text" else ENDLESS,
                "ignore_eos": True,
                "stream": True,
            }
        ),
        {"Content-Type": "application/json"},
    )
    answer = c.getresponse()
    answer.readline()
    return c, answer


def test_leaving(s):
    """A client that leaves, and a child that ends."""
    c, answer = stream_open(s, "long")
    check.true("runs", wait_until(lambda: running(s, "long") == 1))
    answer.close()
    c.close()
    check.true("is cancelled in the child", wait_until(lambda: running(s, "long") == 0))
    c, answer = stream_open(s, "long")
    other, events = stream_open(s, "text")
    os.kill(s.child("long"), signal.SIGKILL)
    try:
        answer.read()
        cut = False
    except (http.client.IncompleteRead, ConnectionError):
        cut = True
    check.true("its stream is cut", cut)
    check.true("another's goes on", events.readline() and events.readline())
    check.true(
        "and it is back",
        wait_until(lambda: s.post(COMPLETIONS, {"model": "long", "prompt": "x", "max_tokens": 1})[0] == 200),
    )
    check.equal("one crash", s.of("kvasir:model_crashes_total", "long"), 1)
    events.close()
    other.close()
    c.close()


def test_keep_alive(s):
    body = {"model": "text:latest", "prompt": "x", "stream": False, "options": {"num_predict": 1}}
    check.true("a model", s.ok("/api/generate", {**body, "keep_alive": "10m"})["done"])
    ps = json.loads(s.request("GET", "/api/ps")[2])["models"]
    check.true("is in /api/ps", [m["name"] for m in ps if m["name"] == "text"] == ["text"], ps)
    check.equal("unloads", s.ok("/api/generate", {"model": "text", "keep_alive": 0})["done_reason"], "unload")
    check.true("has left", wait_until(lambda: s.status()["text"] == "unloaded"))
    check.true(
        "not in /api/ps",
        "text" not in [m["name"] for m in json.loads(s.request("GET", "/api/ps")[2])["models"]],
    )
    check.true(
        "in /api/tags", "text" in [m["name"] for m in json.loads(s.request("GET", "/api/tags")[2])["models"]]
    )
    check.true("answers once more", s.ok("/api/generate", {**body, "keep_alive": 0})["done"])
    check.true("and leaves", wait_until(lambda: s.status()["text"] == "unloaded"))
    s.ok("/api/generate", {**body, "keep_alive": "1s"})
    check.true(
        "after a second",
        s.status()["text"] == "loaded" and wait_until(lambda: s.status()["text"] == "unloaded"),
    )
    check.equal("load", s.post("/models/load", {"model": "text"}), (200, {"success": True}))
    check.true("is loaded", wait_until(lambda: s.status()["text"] == "loaded"))
    check.equal("unload", s.post("/models/unload", {"model": "text"}), (200, {"success": True}))
    check.true("is unloaded", wait_until(lambda: s.status()["text"] == "unloaded"))
    check.equal("load what isn't there", s.post("/models/load", {"model": "nothing"})[0], 404)
    check.equal("reset", s.request("POST", "/reset_prefix_cache")[0], 200)


def test_one_server():
    models = {**MODELS, "long": endless(MODELS["text"])}
    with front(models, lines=[("long", "kv-memory = 512M")]) as s:
        for test in (test_routes, test_framing, test_websocket, test_keep_alive, test_leaving):
            check.run(test, s)


def test_keys():
    """Keys are checked in front, and what is cached stays a key's own; TLS as well."""
    with tempfile.TemporaryDirectory() as top:
        path = os.path.join(top, "keys")
        with open(path, "w") as f:
            f.write(KEYS)
        cert, key = os.path.join(top, "cert.pem"), os.path.join(top, "key.pem")
        subprocess.run(
            [
                *"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=x -keyout".split(),
                key,
                "-out",
                cert,
            ],
            check=True,
            capture_output=True,
        )
        s = Front(
            {"demo": MODELS["demo"], "text": MODELS["text"]},
            "--api-key-file",
            path,
            "--tls-cert",
            cert,
            "--tls-key",
            key,
            "--idle-unload",
            "2",
            wait=False,
        )
        try:
            s.port = int(s.process.stdout.readline().rsplit(":", 1)[1])
            trust = ssl.create_default_context(cafile=cert)
            trust.check_hostname = False

            def post(bearer, prompt="a long prompt of several words " * 8, **more):
                c = http.client.HTTPSConnection(s.host, s.port, timeout=60, context=trust)
                c.request(
                    "POST",
                    COMPLETIONS,
                    json.dumps({"model": "text", "prompt": prompt, "max_tokens": 1}),
                    {"Content-Type": "application/json", "Authorization": f"Bearer {bearer}", **more},
                )
                answer = c.getresponse()
                data = json.loads(answer.read())
                c.close()
                return answer.status, data.get("usage", {}).get("prompt_tokens_details", {}).get(
                    "cached_tokens"
                )

            check.equal("a wrong key", post("no-key")[0], 401)
            check.equal("the first time", post("first-key"), (200, 0))
            check.true("its own", post("first-key")[1] > 0)
            check.equal("not another's", post("second-key"), (200, 0))
            other = "another prompt of several words " * 8
            identity = "- 0 " + hashlib.sha256(b"first-key").hexdigest() + " 2 0"
            forged = {"X-Kvasir-Front": identity}
            check.true("another prompt", post("first-key", other)[1] < 8)
            check.true("nor with a forged identity", post("second-key", other, **forged)[1] < 8)
            c = http.client.HTTPSConnection(s.host, s.port, timeout=60, context=trust)
            headers = {"Content-Type": "application/json", "Authorization": "Bearer first-key"}
            c.request("POST", "/api/generate", json.dumps({"model": "text", "keep_alive": 0}), headers)
            reason = json.load(c.getresponse())["done_reason"]
            check.equal("one of several keys unloads nothing", reason, "load")
            c.close()
            child = s.child("text")
            check.true("runs", child)
            check.true("leaves when idle", wait_until(lambda: s.child("text") is None))
            s.stop()
        finally:
            if s.process.poll() is None:
                s.process.kill()


def test_alternating():
    """One of two models fits, and both are asked at once: no error, and few loads."""
    errors, answers = [], []

    def client(s, name, until):
        while time.monotonic() < until:
            status, answer = s.post(
                COMPLETIONS, {"model": name, "prompt": "x", "max_tokens": 4, "temperature": 0}
            )
            (answers if status == 200 else errors).append((name, answer))

    with front({"demo": MODELS["demo"], "text": MODELS["text"]}, "--models-memory", "60M") as s:
        until = time.monotonic() + 5
        threads = [threading.Thread(target=client, args=(s, name, until)) for name in ("demo", "text")]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        check.equal("no error", errors[:1], [])
        check.equal("both", {name for name, _ in answers}, {"demo", "text"})
        loads = sum(s.of("kvasir:model_loads_total", name) for name in ("demo", "text"))
        check.true("few loads", 2 <= loads <= 5 and len(answers) > 4 * loads, (loads, len(answers)))


def test_failing():
    """A model that can't be loaded is a 503 that says why; others are served."""
    with tempfile.TemporaryDirectory() as top:
        broken = os.path.join(top, "broken")
        os.mkdir(broken)
        for name in os.listdir(MODELS["text"]):
            if name != "tokenizer.json":
                os.symlink(os.path.abspath(os.path.join(MODELS["text"], name)), os.path.join(broken, name))
        with open(os.path.join(broken, "tokenizer.json"), "w") as f:
            f.write("{}")
        with front({"text": MODELS["text"], "broken": broken}, log=subprocess.DEVNULL) as s:
            status, head, data = s.request("POST", COMPLETIONS, {"model": "broken", "prompt": "x"})
            check.equal(
                "failed",
                (status, json.loads(data)["error"]["code"], head.get("retry-after")),
                (503, "model_failed", "1"),
            )
            check.true("says how", "exit code 1" in data.decode(), data)
            check.equal(
                "the other", s.post(COMPLETIONS, {"model": "text", "prompt": "x", "max_tokens": 1})[0], 200
            )
            # The front sees the end of the child and of its request at once.
            child, got = s.child("text"), []
            os.kill(child, signal.SIGSTOP)
            load = {"model": "text", "lora_name": "x", "lora_path": "x"}
            t = threading.Thread(target=lambda: got.append(s.post("/v1/load_lora_adapter", load)[0]))
            t.start()
            check.true("passed on", wait_until(lambda: s.of("kvasir:model_requests_active", "text") == 1))
            s.pause()
            os.kill(child, signal.SIGKILL)
            time.sleep(0.5)  # so that its timer comes before its sockets
            s.resume()
            t.join()
            check.equal("ended while it read an adapter", got, [503])
            check.equal("the front lives", s.request("GET", "/health")[0], 200)
    for flags, text in (
        (["--models-memory", "20M"], "--models-memory is 20 MiB"),
        (["--served-model-name", "x"], "NAME=MODEL"),
    ):
        p = subprocess.run(
            [BINARY, "serve", f"a={MODELS['text']}", f"b={MODELS['demo']}", "--port", "0", *flags],
            capture_output=True,
            text=True,
            timeout=60,
        )
        check.true(" ".join(flags), p.returncode and text in p.stderr, p.stderr)


def test_backpressure():
    """A client that reads nothing stops its child, not the others, and takes no memory of the front's."""

    def memory():
        with open(f"/proc/{s.process.pid}/status") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))

    long = endless(MODELS["text"])
    with front({"long": long, "text": MODELS["text"]}, lines=[("long", "kv-memory = 64M")]) as s:
        for name in ("long", "text"):
            s.ok(COMPLETIONS, {"model": name, "prompt": "x", "max_tokens": 1})
        before = memory()
        c = socket.create_connection((s.host, s.port), timeout=60)
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        fields = {"max_tokens": 16000, "ignore_eos": True, "stream": True, "logprobs": 20}
        body = json.dumps({"model": "long", "prompt": "x", **fields}).encode()
        c.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        check.true("runs", wait_until(lambda: running(s, "long") > 0))
        check.equal("another", s.post(COMPLETIONS, {"model": "text", "prompt": "x", "max_tokens": 1})[0], 200)
        check.true("is made", wait_until(lambda: running(s, "long") == 0))  # and waits in the child
        if "asan" not in BINARY:  # which keeps what is freed
            check.true("memory of the front", memory() < before + 3500, (before, memory()))
        got = []
        while not got or (got[-1] and not (got[-2:][0] + got[-1]).endswith(b"\r\n0\r\n\r\n")):
            got.append(c.recv(1 << 20))
        whole = b"".join(got)
        check.true("all of it comes", whole.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), whole[-60:])
        check.true("and is large", len(whole) > 10_000_000, len(whole))
        c.close()


if __name__ == "__main__":
    options = arguments(__doc__.splitlines()[0])
    BINARY = options.binary
    golden = os.path.join(os.path.dirname(options.model), "..")
    MODELS = {
        "demo": options.demo,
        "image": options.model,
        "text": os.path.join(golden, "llama/smollm2_bf16"),
    }
    for test in (test_equal, test_one_server, test_keys, test_alternating, test_failing, test_backpressure):
        if not options.only or test.__name__ in options.only:
            check.run(test)
    check.end()
