"""How users and keys share a server: python3 test_shares.py [--binary B] [--demo DIR] [test ...]"""
import base64
import http.client
import http.server
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import ENDLESS, Checks, Server, arguments, endless, wait_until  # noqa: E402

check = Checks()
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def headers(key=None):
    auth = {"Authorization": "Bearer " + key} if key else {}
    return {"Content-Type": "application/json", **auth}


def hold(s, text, key=None, **fields):
    """A request that runs until it is closed. A stream that nobody reads is ended at last, others not."""
    c = s.connect()
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": ENDLESS, "ignore_eos": True}
    c.request("POST", CHAT, json.dumps({"stream": True, **body, **fields}), headers(key))
    return c


def begins(c, seconds=120):
    return bool(select.select([c.sock], [], [], seconds)[0])


def holds(s, running, waiting):
    return wait_until(lambda: s.held()[1:] == (running, waiting))


def key_file(text):
    f = tempfile.NamedTemporaryFile("w", suffix=".keys")
    f.write(text)
    f.flush()
    return f


def test_users():
    """One sequence at a time: what one user has sent waits for each other, by priority; a second user's
    request begins at once."""
    s = Server(BINARY, endless(DEMO), "--max-sequences", "1")
    try:
        for priority, overtakes in ((0, False), (-1, True)):
            running = hold(s, "count first", user="a", stream=False)
            check.true("the first one runs", holds(s, 1, 0), s.held())
            waiting = {}
            for name in [str(i) for i in range(9)] + ["late"]:
                own = {"priority": priority} if name == "late" else {}
                waiting[name] = hold(s, "count " + name, user="a", **own)
                check.true(f"{name} waits", holds(s, 1, len(waiting)), s.held())
            order = []
            while waiting:
                running.close()
                sockets = {c.sock: name for name, c in waiting.items()}
                begun = [sockets[x] for x in select.select(list(sockets), [], [], 120)[0]]
                if not check.equal(f"{priority}: one begins", len(begun), 1):
                    break
                order += begun
                running = waiting.pop(begun[0])
            running.close()
            behind = len(order) - 1 - order.index("late")
            check.true(f"{priority} overtakes or waits", behind >= 8 if overtakes else behind == 0, order)
            check.true("all are gone", wait_until(lambda: s.held() == (0, 0, 0)), s.held())
        queue = [hold(s, f"count {i}", user="a", stream=False) for i in range(5)]
        check.true("four wait", holds(s, 1, 4), s.held())
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "user": "b"}
        check.equal("another user's is answered", s.post(CHAT, body)[0], 200)
        check.true("the others are there", holds(s, 1, 4), s.held()) # the one that gave way is back
        for c in queue:
            c.close()
    finally:
        s.stop()


def test_addresses():
    """Without keys and users: many inputs of one address don't hold up a chat of another one."""
    s = Server(BINARY, endless(DEMO), "--max-sequences", "1")
    try:
        many = http.client.HTTPConnection(s.host, s.port, timeout=120, source_address=("127.0.0.2", 0))
        body = {"input": [f"text {i} " + "word " * 200 for i in range(2048)]}
        many.request("POST", "/v1/embeddings", json.dumps(body), headers())
        check.true("a part of them waits in the queue", wait_until(lambda: 100 < s.held()[2] < 200), s.held())
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
        check.equal("the chat is answered", s.post(CHAT, body)[0], 200)
        check.true("before they are", not begins(many, 0) and s.held()[2] > 100, s.held())
        many.close()
    finally:
        s.stop()


def test_queue():
    """A queue that one key has filled takes another key's requests, also one of more than it holds."""
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    with key_file("one\ntwo\n") as f:
        small = ("--max-sequences", "1", "--max-queue", "8")
        s = Server(BINARY, endless(DEMO), "--api-key-file", f.name, *small)
        try:
            crowd = [hold(s, f"count {i}", "one", stream=False) for i in range(14)]
            full = wait_until(lambda: sum(begins(c, 0) for c in crowd) == 5)
            check.true("it is full", full, s.held())
            check.equal("for one", s.post(CHAT, body, headers("one"))[0], 429)
            check.true("that is counted", lost(s, "queue") >= 6)
            check.equal("not for two", s.post(CHAT, body, headers("two"))[0], 200)
            got = s.post("/v1/embeddings", {"input": ["a"] * 30}, headers("two"))
            check.equal("nor for many of two's", (got[0], len(got[1].get("data", []))), (200, 30))
            check.equal("one's still wait", sum(s.held()[1:]), 9)
            for c in crowd:
                c.close()
        finally:
            s.stop()


def beside_crowd(s, sequences):
    """Key one's crowd of long prompts; what key two's 5 tokens take beside it."""
    ids = [[20 + (i * 7 + j * j) % 200 for j in range(3900)] for i in range(40)]
    crowd = [s.connect() for _ in ids]
    for c, prompt in zip(crowd, ids):
        body = {"prompt": prompt, "max_tokens": ENDLESS, "ignore_eos": True}
        c.request("POST", TEXT, json.dumps(body), headers("one"))
    waiting = len(crowd) - sequences
    check.true("the crowd is there", holds(s, sequences, waiting), s.held())
    for i in range(3):
        steps, begin = s.metric("kvasir:engine_steps_total"), time.monotonic()
        body = {"prompt": f"hello {i}", "max_tokens": 5, "ignore_eos": True}
        status, _ = s.post(TEXT, body, headers("two"))
        spent, steps = time.monotonic() - begin, s.metric("kvasir:engine_steps_total") - steps
        print(f"{sequences} sequences: another key's 5 tokens take {spent:.3f} s, {steps:.0f} steps")
        check.equal("answered", status, 200)
        # Its own take 5. On a busy machine the engine makes some between the readings.
        check.true("in few steps", steps <= 60, steps)
    check.equal("the crowd is still there", s.held()[1:], (sequences, waiting))
    for c in crowd:
        c.close()


def test_keys():
    """A key with as many sequences of long prompts as may run, and more that wait, doesn't hold up another
    one's few tokens."""
    with key_file("one\ntwo\n") as f:
        for sequences in (1, 32):
            s = Server(BINARY, endless(DEMO), "--api-key-file", f.name, "--max-sequences", str(sequences))
            try:
                beside_crowd(s, sequences)
            finally:
                s.stop()


def test_priority_right():
    """One sequence at a time: the priority of a key without the right orders its own requests only, that of
    one with it comes before all."""
    with key_file("# keys\none\ntwo priority\n") as f:
        s = Server(BINARY, endless(DEMO), "--api-key-file", f.name, "--max-sequences", "1")
        try:
            runs = hold(s, "count", "one", stream=False)
            check.true("one's first runs", holds(s, 1, 0), s.held())
            later, sooner = (hold(s, "count", "one", priority=p) for p in (1, -5))
            check.true("one's wait", holds(s, 1, 2), s.held())
            two = hold(s, "hello", "two", max_tokens=3)
            check.true("two is answered, whatever priorities one gives", begins(two))
            two.close()
            check.true("one's still wait", holds(s, 1, 2), s.held())
            first = hold(s, "count up", "two", priority=-1)
            check.true("two's begins", begins(first))
            check.true("one's own are in order of its priorities", begins(sooner) and not begins(later, 0))
            steps, gave = s.sums("kvasir:engine_steps_total", "vllm:num_preemptions_total")
            goes_on = wait_until(lambda: s.metric("kvasir:engine_steps_total") > steps + 200)
            check.true("two's goes on", goes_on)
            check.equal("and gives its place to none", s.metric("vllm:num_preemptions_total"), gave)
            for c in (first, runs, later, sooner):
                c.close()
        finally:
            s.stop()


def test_compiling():
    """New grammars of a key, wrong ones or large ones, hold up no other key's."""
    with key_file("one\ntwo\n") as f:
        s = Server(BINARY, DEMO, "--api-key-file", f.name)

        def crowd(count, constraint):
            sent = [s.connect() for _ in range(count)]
            for i, c in enumerate(sent):
                body = {"prompt": "a", "max_tokens": 1, **constraint(i)}
                c.request("POST", TEXT, json.dumps(body), headers("one"))
            return sent

        def answered(sent, seconds=0):
            return len(select.select([c.sock for c in sent], [], [], seconds)[0])

        try:
            wrong = crowd(60, lambda i: {"guided_regex": f"({i}"})
            begin = time.monotonic()
            check.true("wrong ones are refused", wait_until(lambda: answered(wrong) == 60))
            spent = time.monotonic() - begin
            check.true("one after the other, at once", spent <= 2, spent)
            words = ["-%d-" % j + "x" * 400 for j in range(1000)]
            large = crowd(16, lambda i: {"guided_json": {"enum": [str(i) + word for word in words]}})
            check.true("the first large one is compiled", answered(large, 60))
            body = {"prompt": "a", "guided_regex": "[ab]{3}"}
            check.equal("another key's is", s.post(TEXT, body, headers("two"))[0], 200)
            check.true("before most of them", answered(large) <= 8, answered(large))
            for c in wrong + large:
                c.close()
        finally:
            s.stop()


def lost(s, what):
    return sum(v for k, v in s.metrics().items() if "shares_refused" in k and f'of="{what}"' in k)


def idle(s, count, head):
    sockets = []
    for _ in range(count):
        sockets.append(socket.create_connection((s.host, s.port), timeout=30))
        sockets[-1].sendall(head)
    return sockets


def test_connections():
    """More idle connections than there are places, before a key is known and after: another key and probes
    get in at once, what runs goes on, who holds few keeps them."""
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    auth = "Authorization: Bearer one\r\n"
    heads = {"silent": "", "half a head": "GET /v1/models HTTP/1.1\r\n" + auth,
             "half a body": f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n{auth}Content-Type: application/json\r\n"
                            "Content-Length: 99\r\n\r\n{",
             "kept alive": f"GET /v1/models HTTP/1.1\r\nHost: x\r\n{auth}\r\n",
             "a WebSocket": f"GET /v1/responses HTTP/1.1\r\nHost: x\r\n{auth}Connection: Upgrade\r\n"
                            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"}
    with key_file("one\ntwo\n") as f:
        s = Server(BINARY, endless(DEMO), "--api-key-file", f.name, "--max-connections", "60")
        try:
            kept = s.connect()
            kept.request("GET", "/v1/models", headers=headers("two"))
            check.equal("one that stays", kept.getresponse().read() != b"", True)
            for name, head in heads.items():
                runs, gone = hold(s, "count", "one"), lost(s, "connections")
                check.true(f"{name}: one runs", begins(runs) and s.held()[1] == 1)
                sockets = idle(s, 150, head.encode())
                for _ in range(3):
                    begin = time.monotonic()
                    check.equal(f"{name}: a probe", s.request("GET", "/health")[0], 200)
                    check.equal(f"{name}: a chat", s.post(CHAT, body, headers("two"))[0], 200)
                    spent = time.monotonic() - begin
                    # A body counts as stalled after 2 s.
                    check.true(f"{name}: at once", spent < (6 if "body" in name else 2), spent)
                check.equal(f"{name}: what runs goes on", s.held()[1], 1)
                check.true(f"{name}: counted", lost(s, "connections") > gone)
                for c in sockets:
                    c.close()
                runs.close()
                check.true(f"{name}: over", wait_until(lambda: s.held() == (0, 0, 0)))
            kept.request("GET", "/v1/models", headers=headers("two"))
            check.equal("it stayed", kept.getresponse().status, 200)
        finally:
            s.stop()


def test_full_of_running():
    """All places taken by what runs: probes and another key are let in, the key that has most is not."""
    with key_file("one\ntwo\n") as f:
        s = Server(BINARY, endless(DEMO), "--api-key-file", f.name, "--max-connections", "20")
        try:
            crowd = [hold(s, f"count {i}", "one", stream=False) for i in range(26)]

            def refused():
                return [c for c in crowd if begins(c, 0)]
            check.true("all run or are refused",
                       wait_until(lambda: sum(s.held()[1:]) + len(refused()) == 26), s.held())
            runs = 26 - len(refused())
            check.true(f"as many as there are places run: {runs}", 15 <= runs <= 20)
            got = refused()[0].getresponse()
            check.equal("the others are refused", (got.status, json.loads(got.read())["error"]["code"]),
                        (429, "rate_limit_exceeded"))
            check.equal("a probe", s.request("GET", "/health")[0], 200)
            body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
            check.equal("another key", s.post(CHAT, body, headers("two"))[0], 200)
            check.equal("all of them go on", sum(s.held()[1:]), runs)
            for c in crowd:
                c.close()
        finally:
            s.stop()


def test_bodies():
    """Half-sent bodies fill the memory for bodies: those of who has most are dropped, oldest first."""
    size, part = 60 << 20, b"a" * (60 << 20)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n" \
           f"Content-Type: application/json\r\nContent-Length: {size + 9}\r\n\r\n"
    with key_file("one\ntwo\n") as f:
        s = Server(BINARY, DEMO, "--api-key-file", f.name)
        try:
            theirs = idle(s, 1, (head % "two").encode() + part[:9 << 20])
            crowd = idle(s, 18, (head % "one").encode() + part)
            check.true("some are dropped", wait_until(lambda: lost(s, "bodies") >= 2))
            got = crowd[0].recv(4096)
            named = got.startswith(b"HTTP/1.1 503 ") and b"this key" in got
            check.true("the oldest, with an error", named, got)
            body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
            check.equal("another key's chat", s.post(CHAT, body, headers("two"))[0], 200)
            theirs[0].sendall(part[9 << 20:] + b"a" * 9)
            got = theirs[0].recv(4096)
            check.true("who has one is served", got.startswith(b"HTTP/1.1 400 "), got)
            for c in crowd + theirs:
                c.close()
        finally:
            s.stop()


def test_workers():
    """Long texts of one key keep no worker from another key."""
    with key_file("one\ntwo\n") as f:
        s = Server(BINARY, DEMO, "--api-key-file", f.name, env={"UV_THREADPOOL_SIZE": "2"})
        try:
            crowd = [s.connect() for _ in range(24)]
            for c in crowd:
                c.request("POST", "/tokenize", json.dumps({"prompt": "a" * 500_000}), headers("one"))
            body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
            check.true("they run", begins(crowd[0]))
            for _ in range(3):
                check.equal("a chat", s.post(CHAT, body, headers("two"))[0], 200)
            done = len(select.select([c.sock for c in crowd], [], [], 0)[0])
            check.true("before most of them", done <= 12, done)
            check.equal("they are answered", [c.getresponse().status for c in crowd], [200] * len(crowd))
        finally:
            s.stop()


class Dripping(http.server.BaseHTTPRequestHandler):
    """A byte at a time, for ever; /quick: a whole image."""
    image = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAA"
                             "AABJRU5ErkJggg==")

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.image) if "quick" in self.path else 9999))
        self.end_headers()
        try:
            self.wfile.write(self.image if "quick" in self.path else b"a")
            while "quick" not in self.path:
                time.sleep(0.3)
                self.wfile.write(b"a")
        except OSError:
            pass

    def log_message(self, *args):
        pass


def test_urls():
    """URLs of one key that drip don't hold up another key's, nor fill the queue for it."""
    drip = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Dripping)
    threading.Thread(target=drip.serve_forever, daemon=True).start()

    def chat(*names):
        urls = [f"http://127.0.0.1:{drip.server_port}/{name}" for name in names]
        parts = [{"type": "image_url", "image_url": {"url": u}} for u in urls]
        return {"messages": [{"role": "user", "content": parts}], "max_tokens": 3}

    with key_file("one\ntwo\n") as f:
        s = Server(BINARY, DEMO, "--api-key-file", f.name, "--allow-remote-media", "127.0.0.1:*",
                   "--allow-private-media", "127.0.0.1/32", "--media-timeout", "60")
        try:
            crowd = [s.connect() for _ in range(70)]
            for i, c in enumerate(crowd):
                body = chat(*(f"{i}-{k}" for k in range(16)))
                c.request("POST", CHAT, json.dumps(body), headers("one"))
            check.true("the queue is full for one", wait_until(lambda: lost(s, "urls") >= 1))
            check.equal("but not more than full", s.metric("kvasir:urls_waiting"), 1024)
            for i in range(3):
                begin = time.monotonic()
                check.equal("another's", s.post(CHAT, chat(f"quick{i}"), headers("two"))[0], 200)
                print(f"another key's URL beside 1,024 that drip: {time.monotonic() - begin:.3f} s")
            check.equal("one's still drip", s.metric("kvasir:urls_waiting"), 1024)
            for c in crowd:
                c.close()
        finally:
            s.stop()
            drip.shutdown()


def test_key_marks():
    for text in ("one prioritised\n", " priority\n"):
        with key_file("# keys\n" + text) as f:
            command = [BINARY, "serve", "--model", DEMO, "--port", "0", "--api-key-file", f.name]
            p = subprocess.run(command, capture_output=True, text=True, timeout=120)
            named = f"{f.name}, line 2" in p.stderr
            check.true("refused, with the line", p.returncode == 2 and named, p.stderr)


if __name__ == "__main__":
    args = arguments(__doc__)
    BINARY, DEMO = args.binary, args.demo
    for test in (test_users, test_addresses, test_queue, test_keys, test_priority_right, test_compiling,
                 test_connections, test_full_of_running, test_bodies, test_workers, test_urls,
                 test_key_marks):
        if not args.only or test.__name__ in args.only:
            check.run(test)
    check.end()
