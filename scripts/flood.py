#!/usr/bin/env python3
"""Floods of one key or address beside another key's short chats: does the other one wait?
Python 3.11, standard library only.

  flood.py                              120 floods of 20 kinds, about a quarter of an hour
  flood.py --only sockets,tokenize      some kinds; --list names them
  flood.py --floods 2 --seconds 1       two floods of each kind, a second each

Starts a server with two keys on the demo model. For each flood: a second of quiet, then the flood of the
first key (connections without a key: of the address 127.0.0.9) in a process of its own, and beside it, each
over a new connection, the second key's chats of 12 tokens and /health. Prints per kind the worst of both,
quiet and flooded, and what the floods got. Per flood these count, in the closing line "N passed, N failed":

  the chat     is answered within --chat-limit seconds (1)
  /health      is answered within --health-limit seconds (0.3)
  the answer   has the text and the log-probs that it had in the quiet

Times are those of this machine: the floods run here too, with less right to the processor (nice 10), and with
few cores the quiet times beside them say more; "cores: x3" is a server whose threads had to wait for a core
for twice as long as they ran. Everything goes to 127.0.0.0/8."""

import argparse
import base64
import collections
import http.client
import json
import multiprocessing
import os
import random
import resource
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HOST, ELSEWHERE = "127.0.0.1", "127.0.0.9"
KEY, OTHER = "flooding-key", "other-key"
PATIENCE = 60  # seconds after which a victim gives up
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
VICTIM = {
    "messages": [{"role": "user", "content": "Count three red circles."}],
    "max_tokens": 12,
    "ignore_eos": True,
    "temperature": 0,
    "logprobs": True,
    "top_logprobs": 3,
}


# ---- floods: each is a method of Flood; i of 0 to 5 is its variation ----


def png(side, seed):
    rows = random.Random(seed).randbytes(side)
    data = zlib.compress(b"".join(b"\0" + rows * 3 for _ in range(side)), 1)

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    whole = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(whole).decode()


def image_chat(urls):
    parts = [{"type": "image_url", "image_url": {"url": u}} for u in urls]
    content = [*parts, {"type": "text", "text": "What?"}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 1}


def schema(seed, size):
    rng = random.Random(seed)
    fields = {}
    for k in range(size):
        pattern = f"^[a-z]{{1,{60 + k % 40}}}[0-9]{{1,9}}$"
        fields[f"f{k}_{rng.randrange(10**6)}"] = {"type": "string", "pattern": pattern}
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def schema_chat(seed, size):
    named = {"name": "x", "strict": True, "schema": schema(seed, size)}
    form = {"type": "json_schema", "json_schema": named}
    return {"messages": [{"role": "user", "content": "Go"}], "max_tokens": 4, "response_format": form}


def encoded(body):
    return body if isinstance(body, bytes) else json.dumps(body).encode()


class Flood:
    def __init__(self, port, stop, seconds):
        self.port, self.stop, self.seconds = port, stop, seconds
        self.got, self.held, self.lock = collections.Counter(), [], threading.Lock()

    def count(self, what):
        with self.lock:
            self.got[str(what)] += 1

    # -- connections that are held --

    def head(self, path, key, more=""):
        method = "POST" if "Content-Length" in more else "GET"
        auth = f"Authorization: Bearer {key}\r\n" if key else ""
        return f"{method} {path} HTTP/1.1\r\nHost: x\r\n{auth}{more}\r\n"

    def opened(self, data=b"", source=HOST, answer=False):
        try:
            s = socket.create_connection((HOST, self.port), timeout=2, source_address=(source, 0))
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # no TIME_WAIT
            s.sendall(data)
            if answer:
                self.count(s.recv(4096)[9:12].decode() or "closed")
            self.held.append(s)
            self.count("open")
        except OSError as e:
            self.count(type(e).__name__)
            return None
        return s

    def hold(self, number, threads=4, again=0.5, **how):
        """Opens so many from several threads and, when they are all there, what was closed again."""

        def run(n):
            for _ in range(n):
                if self.stop.is_set():
                    return
                self.opened(**how)
            while again and not self.stop.wait(again):
                self.opened(**how)

        self.run([(run, number // threads)] * threads)

    def run(self, tasks):
        threads = [threading.Thread(target=f, args=(x,), daemon=True) for f, x in tasks]
        for t in threads:
            t.start()
        self.stop.wait()
        until = time.monotonic() + 3
        for t in threads:
            t.join(max(0, until - time.monotonic()))

    def idle(self, i):
        self.hold((500, 1500, 2500, 4095, 4200, 6000)[i], source=ELSEWHERE)

    def heads(self, i):
        begin = (b"G", b"GET / HTTP/1.1\r\n", self.head(CHAT, KEY, "X: y\r\n").encode()[:-2])[i % 3]

        def drip(_):
            while not self.stop.wait(1):
                for s in list(self.held):
                    try:
                        s.send(b"X-More: x\r\n" if len(begin) > 1 else b"E")
                    except OSError:
                        self.held.remove(s)
                        self.count("ended")

        source = ELSEWHERE if i % 3 < 2 else HOST
        number = (1000, 4096)[i // 3]

        def fill(n):
            for _ in range(n):
                if not self.stop.is_set():
                    self.opened(begin, source)

        self.run([(fill, number // 4)] * 4 + [(drip, 0)])

    def kept(self, i):
        request = self.head("/v1/models", KEY).encode()
        self.hold((300, 1000, 2000, 3000, 4095, 5000)[i], data=request, answer=True)

    def sockets(self, i):
        more = (
            "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
        )
        request = self.head("/v1/responses", KEY, more).encode()
        self.hold((300, 1000, 2000, 3000, 4095, 5000)[i], data=request, answer=True)

    def bodies(self, i):
        size = (64 << 20) - 1000
        part = (0, 1000, size // 2, size - 1, size - 1, 1 << 20)[i]
        number = (600, 600, 24, 16, 40, 400)[i]
        more = f"Content-Type: application/json\r\nContent-Length: {size}\r\n"
        data = self.head(CHAT, KEY, more).encode() + b" " * part
        self.hold(number, data=data, again=2)

    # -- requests --

    def requests(self, threads, path, bodies, read=True, pause=0.005):
        """Each thread sends one after the other, whatever it gets. bodies: a list, or made from a number"""
        made = None if callable(bodies) else [encoded(b) for b in bodies]
        auth = {"Authorization": "Bearer " + KEY, "Content-Type": "application/json"}

        def one(k):
            c = None
            while not self.stop.is_set():
                try:
                    c = c or http.client.HTTPConnection(HOST, self.port, timeout=PATIENCE)
                    c.request("POST", path, made[k % len(made)] if made else encoded(bodies(k)), auth)
                    k += threads
                    self.count("sent")
                    if read:
                        answer = c.getresponse()
                        answer.read()
                        self.count(answer.status)
                    else:
                        self.held.append(c)
                        self.count("unread")
                        c = None
                except (OSError, http.client.HTTPException) as e:
                    self.count(type(e).__name__)
                    c = None
                time.sleep(pause)

        self.run([(one, k) for k in range(threads)])

    def tokenize(self, i):
        text = ("red " * 600_000, "x" * 2_500_000, "\u00e9\u4e16" * 500_000)[i % 3]
        text = text if i < 3 else ("a b" * 800_000, " " * 2_500_000, "12345 " * 400_000)[i % 3]
        self.requests((16, 64, 300, 64, 300, 64)[i], "/tokenize", [{"prompt": text}])

    def overlong(self, i):
        text = ("red " * 600_000, "x" * 2_500_000, "\u4e16\u754c" * 400_000)[i % 3]
        body = {"messages": [{"role": "user", "content": text}]}
        path = (CHAT, TEXT, "/v1/responses", "/v1/messages", "/api/chat", "/v1/messages/count_tokens")[i]
        body = {TEXT: {"prompt": text}, "/v1/responses": {"input": text}}.get(path, body)
        self.requests((32, 64, 300, 64, 64, 64)[i], path, [{"model": "demo", "max_tokens": 1, **body}])

    def urls(self, i):
        at = drip_server(self.stop, (0.3, 1, 0.1)[i % 3])
        each = (16, 1, 4)[i % 3]
        bodies = [image_chat([f"http://{HOST}:{at}/{n}-{k}" for k in range(each)]) for n in range(600)]
        self.requests((60, 200, 100)[i // 2], CHAT, bodies)

    def images(self, i):
        side, each = ((4000, 1), (1000, 8), (2000, 4), (300, 16), (5000, 1), (6000, 1))[i]
        images = [png(side, n) for n in range(4 if side > 1000 else 16)]
        bodies = [image_chat([images[(n + k) % len(images)] for k in range(each)]) for n in range(8)]
        self.requests((16, 16, 8, 32, 32, 8)[i], CHAT, bodies)

    def embeddings(self, i):
        words, number = (1, 20, 100, 300, 5, 50)[i], (2048, 1000)[i % 2]
        bodies = [{"input": [f"{n} {k} " + "word " * words for k in range(number)]} for n in range(4)]
        self.requests((4, 4, 2, 2, 32, 16)[i], "/v1/embeddings", bodies)

    def rerank(self, i):
        words, number = (1, 20, 100, 5, 50, 70)[i], (500, 2048)[i % 2]
        bodies = []
        for n in range(4):
            texts = [f"{n} {k} " + "word " * words for k in range(number)]
            rerank, score = {"query": "q", "documents": texts}, {"text_1": "q", "text_2": texts}
            bodies.append(rerank if i % 4 < 2 else score)
        self.requests((4, 4, 2, 16, 8, 2)[i], ("/v1/rerank", "/v1/score")[i % 4 // 2], bodies)

    def grammars(self, i):
        size, regex = (5, 30, 100, 300, 30, 5)[i], "(a|b){%d,400}[0-9a-f]{8,90}"
        if i == 4:
            body = {"prompt": "x", "max_tokens": 4}
            self.requests(64, TEXT, lambda k: {**body, "guided_regex": regex % (k % 400)})
        else:
            self.requests((16, 64, 16, 8, 0, 200)[i], CHAT, lambda k: schema_chat(k, size))

    def detokenize(self, i):
        number = (1000, 100_000, 500_000, 10, 100_000, 1_000_000)[i]
        body = {"tokens": [20 + k % 500 for k in range(number)]}
        self.requests((64, 16, 16, 200, 100, 8)[i], "/detokenize", [body])

    def stored(self, i):
        text, limit = "red " * (100, 500, 700, 10, 700, 500)[i], (1, 4, 1, 1, 64, 1)[i]

        def body(k):
            return {"input": f"{k % 50} {text}", "max_output_tokens": limit, "store": True}

        self.requests((16, 16, 64, 100, 32, 200)[i], "/v1/responses", body)

    def long(self, i):
        n, prompts = ((1, 1), (16, 1), (1, 64), (64, 8), (1, 1), (128, 1))[i]

        def body(k):
            more = {"n": n, "max_tokens": 3000, "ignore_eos": True, "temperature": 1}
            return {"prompt": [f"{k} {b}" for b in range(prompts)], **more}

        self.requests((64, 8, 8, 4, 400, 8)[i], TEXT, body)

    def prefills(self, i):
        words, rng = (3900, 2000, 1000, 3900, 500, 3000)[i], random.Random(i)
        more = {"max_tokens": 1, **({"prompt_logprobs": 20, "echo": True} if i % 2 else {})}
        bodies = [{"prompt": [20 + rng.randrange(400) for _ in range(words)], **more} for _ in range(50)]
        self.requests((16, 16, 64, 64, 300, 100)[i], TEXT, bodies)

    def unread(self, i):
        body = {"prompt": "x", "max_tokens": 3000, "ignore_eos": True, "stream": True, "logprobs": i % 2 * 5}
        body = {**body, "n": (1, 16, 1, 16, 1, 4)[i]}
        self.requests((8, 8, 16, 4, 32, 16)[i], TEXT, [body], read=False, pause=0.05)

    def small(self, i):
        path = (CHAT, "/tokenize", "/v1/models/x", "/detokenize", "/none", CHAT)[i]
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        body = {"/tokenize": {"prompt": "Hi"}, "/detokenize": {"tokens": [5]}}.get(path, body)
        self.requests((64, 200, 64, 64, 200, 500)[i], path, [b"{" if i == 5 else body], pause=0.002)

    def jobs(self, i):
        """Bodies that are wide or deep, or of many messages, tools and stops."""
        one = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
        roles = ("user", "assistant") * 30_000
        wide = {"messages": [{"role": r, "content": "x"} for r in roles[:-1]], "max_tokens": 1}
        deep = b'{"messages":' + b"[" * 500_000 + b"]" * 500_000 + b"}"
        functions = [{"name": f"f{k}", "parameters": schema(k, 40)} for k in range(100)]
        tools = {**one, "tools": [{"type": "function", "function": f} for f in functions]}
        bias = {"prompt": "x", "max_tokens": 500, "logit_bias": {str(k): 1 for k in range(20, 800)}, "n": 64}
        parts = {**one, "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 60_000}]}
        stops = {"prompt": "x" * 3000, "max_tokens": 500, "stop": ["y" * 1000 + str(k) for k in range(16)]}
        bodies = (wide, deep, {**tools, "tool_choice": "required"}, bias, parts, stops)
        path = TEXT if i in (3, 5) else CHAT
        self.requests((32, 64, 16, 16, 32, 64)[i], path, [bodies[i]])

    def mixture(self, i):
        """Four kinds at once."""
        kinds = random.Random(i).sample([k for k in KINDS if k not in ("mixture", "rerank")], 4)
        parts = [Flood(self.port, self.stop, self.seconds) for _ in kinds]
        self.run([(getattr(f, k), (i + n) % 6) for n, (f, k) in enumerate(zip(parts, kinds))])
        for f in parts:
            self.got += f.got
            self.held += f.held


KINDS = (
    *("idle", "heads", "kept", "sockets", "bodies", "tokenize", "overlong", "urls", "images", "embeddings"),
    *("rerank", "grammars", "detokenize", "stored", "long", "prefills", "unread", "small", "jobs", "mixture"),
)
RERANKER = "qwen/qwen3_vl_f32", "retrieval/qwen3_vl_f32"  # of tests/golden, laid over each other


def drip_server(stop, seconds):
    """An image's server that sends a byte at a time. -> its port"""
    listener = socket.create_server((HOST, 0), backlog=1000)

    def serve(s):
        try:
            s.recv(4096)
            s.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 5000\r\n\r\n\x89PNG")
            while not stop.wait(seconds):
                s.sendall(b"x")
        except OSError:
            pass
        s.close()

    def accept():
        while True:
            threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener.getsockname()[1]


def flood_main(kind, i, port, stop, seconds, out):
    os.nice(10)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    f = Flood(port, stop, seconds)
    try:
        getattr(f, kind)(i)
    except Exception as e:  # said, and counted as a flood that did nothing
        f.got = collections.Counter({repr(e)[:200]: 0})
    out.put(dict(f.got))
    out.close()
    out.join_thread()
    os._exit(0)


# ---- the other key ----


class Victim:
    def __init__(self, port):
        self.port, self.reference = port, None

    def get(self, method, path, body=None, headers=None):
        """-> seconds, status or the error, body: over a new connection"""
        begin = time.monotonic()
        try:
            c = http.client.HTTPConnection(HOST, self.port, timeout=PATIENCE)
            c.request(method, path, body, headers or {})
            answer = c.getresponse()
            data, status = answer.read(), answer.status
            c.close()
        except (OSError, http.client.HTTPException) as e:
            data, status = b"", repr(e)
        return time.monotonic() - begin, status, data

    def chat(self):
        auth = {"Authorization": "Bearer " + OTHER, "Content-Type": "application/json"}
        took, status, data = self.get("POST", CHAT, json.dumps(VICTIM), auth)
        choice = json.loads(data)["choices"][0] if status == 200 else None
        said = (choice["message"]["content"], choice["logprobs"]) if choice else status
        self.reference = self.reference or said
        return took, "" if said == self.reference else f"another answer: {str(said)[:200]}"

    def health(self):
        took, status, _ = self.get("GET", "/health")
        return took, "" if status == 200 else f"/health: {status}"

    def watch(self, seconds, chats_min):
        """-> times of chats, times of /health, faults"""
        until, times, faults = time.monotonic() + seconds, ([], []), []

        def loop(what, into, least, pause):
            while time.monotonic() < until or len(into) < least:
                took, fault = what()
                into.append(took)
                faults.extend([fault] * bool(fault))
                if took > 20:
                    return
                time.sleep(pause)

        threads = [threading.Thread(target=loop, args=(self.chat, times[0], chats_min, 0.02)),
                   threading.Thread(target=loop, args=(self.health, times[1], chats_min, 0.05))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return *times, faults


def one_flood(kind, i, port, victim, seconds):
    context = multiprocessing.get_context("fork")
    stop, out = context.Event(), context.Queue()
    quiet = victim.watch(min(1, seconds), 3)
    p = context.Process(target=flood_main, args=(kind, i, port, stop, seconds, out), daemon=True)
    p.start()
    time.sleep(0.3)
    flooded = victim.watch(seconds, 3)
    stop.set()
    try:
        got = out.get(timeout=30)
    except Exception:
        got = {}
    p.join(10)
    if p.is_alive():
        p.kill()
    return quiet, flooded, got


def start(args, model):
    """-> the server, its port"""
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write(f"{KEY}\n{OTHER}\n")
        keys.flush()
        flags = ["--api-key-file", keys.name, "--log-level", "error", "--shutdown-delay", "0"]
        flags += ["--allow-remote-media", HOST + ":*", "--allow-private-media", "127.0.0.0/8"]
        flags += ["--served-model-name", "demo", "--port", "0", *args.flags.split()]
        command = [args.binary, "serve", "--model", model, *flags]
        p = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = p.stdout.readline()
    if not line.startswith("kvasir: listening on "):
        sys.exit(f"flood.py: the server did not start: {line!r}")
    return p, int(line.rsplit(":", 1)[1])


def scheduled(pid):
    """-> nanoseconds that a process's threads have run, and that they have waited for a core"""
    ran = waited = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as f:
                run, wait, _ = map(int, f.read().split())
        except OSError:  # it has ended
            continue
        ran, waited = ran + run, waited + wait
    return ran, waited


def milliseconds(times):
    return f"{max(times) * 1000:6.0f} ({statistics.median(times) * 1000:4.0f})" if times else "-"


def main():
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--binary", default=os.path.join(ROOT, "build/release/kvasir"))
    parser.add_argument("--model", default=os.path.join(ROOT, "models/demo"))
    parser.add_argument("--only", default=",".join(KINDS), help="kinds, or kind:variation (of 0 to 5)")
    parser.add_argument("--floods", type=int, default=6, help="of each kind")
    parser.add_argument("--seconds", type=float, default=5, help="of each flood")
    parser.add_argument("--chat-limit", type=float, default=1)
    parser.add_argument("--health-limit", type=float, default=0.3)
    parser.add_argument("--flags", default="", help="more of kvasir serve")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for each flood")
    args = parser.parse_args()
    if args.list:
        print("\n".join(KINDS))
        return 0
    plan = {}
    for word in args.only.split(","):
        kind, _, one = word.partition(":")
        if kind not in KINDS:
            parser.error(f"--only: there is no kind {kind!r}")
        plan.setdefault(kind, []).extend([int(one)] if one else range(min(args.floods, 6)))
    print("worst (median), ms   chat: quiet      flooded  health: quiet    flooded   what the floods got")
    passed = failed = 0
    with tempfile.TemporaryDirectory() as reranker:  # the demo model has no token "yes"
        files = {}
        for part in RERANKER:
            folder = os.path.join(ROOT, "tests/golden", part)
            files.update({name: os.path.join(folder, name) for name in os.listdir(folder)})
        for name, path in files.items():
            os.symlink(path, os.path.join(reranker, name))
        for model in (args.model, reranker):
            kinds = [k for k in plan if (k == "rerank") == (model == reranker)]
            if kinds:
                good, bad = floods_of(args, model, {k: plan[k] for k in kinds})
                passed, failed = passed + good, failed + bad
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def floods_of(args, model, plan):
    p, port = start(args, model)
    victim, passed, failed = Victim(port), 0, 0
    victim.watch(0.5, 3)
    try:
        for kind, floods in plan.items():
            all_times, got, faults = [[], [], [], []], collections.Counter(), []
            ran, waited = scheduled(p.pid)
            for i in floods:
                quiet, flooded, own = one_flood(kind, i, port, victim, args.seconds)
                times = [quiet[0], flooded[0], quiet[1], flooded[1]]
                for into, t in zip(all_times, times):
                    into.extend(t)
                got += collections.Counter(own)
                checks = (
                    ("the flood did nothing", not sum(own.values())),
                    (f"a chat took {max(flooded[0]):.2f} s", max(flooded[0]) > args.chat_limit),
                    (f"/health took {max(flooded[1]):.2f} s", max(flooded[1]) > args.health_limit),
                    (", ".join(sorted(set(flooded[2])))[:500], bool(flooded[2])),
                )
                broken = [text for text, bad in checks if bad]
                failed += len(broken)
                passed += len(checks) - len(broken)
                faults += [f"  FAIL {kind}:{i}: {text}" for text in broken]
                if args.verbose:
                    show(f"  {kind}:{i}", times, own)
                if p.poll() is not None:
                    sys.exit(f"flood.py: the server ended in {kind}:{i}, exit {p.returncode}")
            busy = [b - a for a, b in zip((ran, waited), scheduled(p.pid))]
            show(f"{kind}, {len(floods)}", all_times, got, f"; cores: x{1 + busy[1] / max(busy[0], 1):.1f}")
            if faults:
                print("\n".join(faults), flush=True)
    finally:
        p.terminate()
        try:
            ended = p.wait(60) == 0
        except subprocess.TimeoutExpired:
            ended = False
            p.kill()
        p.stdout.close()
    return passed + ended, failed + (not ended)


def show(what, times, got, more=""):
    most = ", ".join(f"{k} {v}" for k, v in collections.Counter(got).most_common(5))
    print(f"{what:<20} {'  '.join(milliseconds(t) for t in times)}   {most}{more}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
