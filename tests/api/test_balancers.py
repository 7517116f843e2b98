"""Two Kvasirs behind HAProxy and behind nginx, with the files of scripts/deploy:
python3 test_balancers.py [--binary B] [--requests 400] [--conversations 10] [--seconds 6] [--delay 1]
    [--only_balancer haproxy|nginx]

Conversations go on, turn after turn, while one server after the other is ended by SIGTERM and started again.
No request may be lost, and of the later turns at least 90 % have to find all of the turn before in the cache.
Both servers run the command and the environment of compose.yaml, on ports of their own; --delay is
KVASIR_SHUTDOWN_DELAY, 0: as in compose.yaml. The full bounds:
    --requests 2000 --conversations 20 --seconds 60 --delay 0

Before that: how a single server drains; what is sent again, which is what was refused or not connected, and
not what broke after it was sent; and that a stream comes as it is generated."""

import collections
import http.client
import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from deploy_files import DEPLOY, compose, haproxy_env, nginx_text  # noqa: E402
from harness import ENDLESS, Checks, Server, arguments, data_url, end_process, endless  # noqa: E402
from harness import drawing, wait_until  # noqa: E402

check = Checks()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Balancer:
    """HAProxy or nginx with the file of scripts/deploy; it ends with this process."""

    def __init__(self, name, program, folder, ports):
        self.name = name
        folder = os.path.join(folder, f"{name}-{ports[0]}")
        os.mkdir(folder)
        for _ in range(5):  # another process may take the port before it does
            self.port = free_port()
            addresses = [f"127.0.0.1:{p}" for p in (self.port, *ports)]
            env = dict(os.environ)
            if name == "haproxy":
                env.update(haproxy_env(*addresses))
                command = [program, *compose()["services"]["balancer"]["command"][1:]]
                command = [os.path.join(DEPLOY, "haproxy.cfg") if c.endswith(".cfg") else c for c in command]
            else:
                config = os.path.join(folder, "nginx.conf")
                with open(config, "w") as f:
                    f.write(nginx_text(*addresses, folder))
                command = [program, "-g", "daemon off;", "-e", "stderr", "-c", config]
            self.log = os.path.join(folder, "log")
            with open(self.log, "wb") as log:
                self.process = subprocess.Popen(
                    ["setpriv", "--pdeathsig", "TERM", *command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=env,
                )
            if wait_until(lambda: self.process.poll() is not None or self.listens(), 20):
                if self.process.poll() is None:
                    return
        with open(self.log) as f:
            raise SystemExit(f"{name} did not start: {f.read()[-1500:]}")

    def listens(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
            return True
        except OSError:
            return False

    def post(self, body, headers=None, timeout=120):
        """-> (status, bytes)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        head = {"Content-Type": "application/json", **(headers or {})}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), head)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, data

    def stop(self):
        end_process(self.process)


class Kvasir:
    """One server of compose.yaml, on a port that it keeps when it is started again."""

    def __init__(self, args, name):
        self.args, self.name, self.port, self.served = args, name, free_port(), 0
        self.start()

    def start(self):
        service = compose()["services"][self.name]
        env = {**service["environment"], "KVASIR_HOST": "127.0.0.1", "KVASIR_PORT": str(self.port)}
        if self.args.delay:
            env["KVASIR_SHUTDOWN_DELAY"] = str(self.args.delay)
        self.process = subprocess.Popen(
            [self.args.binary, *service["command"], "--log-level", "warn"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )
        line = self.process.stdout.readline()
        if "listening on" not in line:
            raise SystemExit(f"{self.name} did not start: {line!r}")

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, data.decode()

    def count(self):
        """Requests with an answer, those of the processes before included."""
        lines = self.get("/metrics")[1].splitlines()
        return sum(float(x.rsplit(" ", 1)[1]) for x in lines if x.startswith("vllm:request_success_total{"))

    def restart(self):
        self.served += self.count()
        self.process.send_signal(signal.SIGTERM)
        check.true(f"{self.name} says that it leaves", wait_until(lambda: self.get("/ready")[0] == 503, 30))
        check.equal(f"{self.name} ends", self.process.wait(120), 0)
        self.process.stdout.close()
        self.start()

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.wait(60)
        self.process.stdout.close()


class Load:
    """The conversations, each a thread; what came of all of them."""

    def __init__(self, balancer, args):
        self.balancer, self.args, self.lock = balancer, args, threading.Lock()
        self.done = self.later = self.hits = self.whole = 0
        self.lost = []
        self.gap = args.seconds * args.conversations / args.requests  # from one turn of one to its next
        self.threads = [threading.Thread(target=self.talk, args=(n,)) for n in range(args.conversations)]

    def talk(self, number):
        turns = self.args.requests // self.args.conversations
        messages, before, count, next_at = [], 0, 0, time.monotonic()
        for turn in range(turns):
            if not messages:
                count += 1
                messages, before = self.opening(number, count), 0
            body = {"model": "demo", "max_tokens": 8, "temperature": 0}
            if turn % 2:  # other fields before and behind the messages: the same conversation all the same
                body = {"stream": True, "stream_options": {"include_usage": True}, **body}
            body["messages"] = messages
            head = {"x-session-id": f"session {number} {count}"} if number % 4 == 3 else {}
            if turn % 3 == 1:
                body["user"], head["X-Filler"] = "someone", "y" * 300
            try:
                text, usage = self.ask(body, head)
            except Exception as fault:  # whatever it is, this request is lost
                with self.lock:
                    self.lost.append(f"conversation {number}, turn {turn}: {fault!r}"[:300])
                messages = []
                continue
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            with self.lock:
                self.done += 1
                if before:
                    self.later += 1
                    self.hits += cached > 0
                    self.whole += cached >= before
            before = usage["prompt_tokens"]
            messages = messages + [
                {"role": "assistant", "content": text},
                {"role": "user", "content": f"And {turn}?"},
            ]
            if usage["total_tokens"] > 3500:  # of 4,096
                messages = []
            next_at += self.gap
            time.sleep(max(0, next_at - time.monotonic()))

    def opening(self, number, count):
        """Half of them with a system message that all have, half with an image, of which some are large."""
        text = f"This is conversation {number}, the {count}th. What is in it?"
        parts = [{"type": "text", "text": text}]
        if number % 2:
            png = drawing(seed=number * 100 + count, size=40 if number % 4 == 1 else 400)
            parts.insert(0, {"type": "image_url", "image_url": {"url": data_url(png)}})
        system = [{"role": "system", "content": "Answer in few words."}] if number % 3 == 0 else []
        return system + [{"role": "user", "content": parts if number % 2 else text}]

    def ask(self, body, head):
        status, data = self.balancer.post(body, head)
        if status != 200:
            raise AssertionError(f"{status} {data[:200]!r}")
        if not body.get("stream"):
            answer = json.loads(data)
            return answer["choices"][0]["message"]["content"], answer["usage"]
        events = [e[6:] for e in data.decode().split("\n\n") if e]
        if not events or events[-1] != "[DONE]" or "error" in json.loads(events[-2]):
            raise AssertionError(f"the stream ends with {data[-200:]!r}")
        chunks = [json.loads(e) for e in events[:-1]]
        text = "".join(c["delta"].get("content") or "" for e in chunks for c in e["choices"])
        return text, next(e["usage"] for e in chunks if e.get("usage"))

    def reaches(self, share):
        return wait_until(lambda: self.done + len(self.lost) >= share * self.args.requests, 600)


def rolling_restart(balancer, servers, args):
    load = Load(balancer, args)
    begin, served = time.monotonic(), [s.count() + s.served for s in servers]
    for t in load.threads:
        t.start()
    for n, server in enumerate(servers):
        load.reaches(0.2 + 0.4 * n)
        server.restart()
        check.true(f"{balancer.name}: the load goes on behind restart {n + 1}", load.done < args.requests)
    for t in load.threads:
        t.join()
    served = [s.count() + s.served - before for s, before in zip(servers, served)]
    wanted = args.requests // args.conversations * args.conversations
    check.equal(f"{balancer.name}: lost requests", load.lost, [])
    check.equal(f"{balancer.name}: answers", load.done, wanted)
    check.true(f"{balancer.name}: hits", load.hits >= 0.9 * load.later, f"{load.hits} of {load.later}")
    check.true(f"{balancer.name}: whole", load.whole >= 0.9 * load.later, f"{load.whole} of {load.later}")
    print(
        f"{balancer.name}: {load.done} answers of {wanted} in {args.conversations} conversations,"
        f" {time.monotonic() - begin:.1f} s, {len(load.lost)} lost; of {load.later} later turns {load.hits}"
        f" hit ({100 * load.hits / load.later:.1f} %), {load.whole} found all of the turn before"
        f" ({100 * load.whole / load.later:.1f} %); the servers answered {[int(s) for s in served]}",
        flush=True,
    )


class Stub(http.server.ThreadingHTTPServer):
    """Stands where a Kvasir stands: ready, and answers what it is told to."""

    daemon_threads = True

    def __init__(self):
        self.mode, self.posts, self.seen = "ok", 0, threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self.answer(200, b"{}")

            def do_POST(self):
                stub = self.server
                self.rfile.read(int(self.headers["Content-Length"]))
                stub.posts += 1
                if stub.mode == "breaks":
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                elif stub.mode == "streams":
                    kind = b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                    self.wfile.write(b"HTTP/1.1 200 OK\r\n" + kind + b"d\r\ndata: first\n\n\r\n")
                    stub.seen.wait(60)
                    self.wfile.write(b"c\r\ndata: last\n\n\r\n0\r\n\r\n")
                else:
                    self.answer(*((503, b"draining") if stub.mode == "refuses" else (200, b"answer")))

            def answer(self, status, data):
                self.wfile.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(data)) + data)

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def end(self):
        self.shutdown()
        self.server_close()


def sent_again(name, program, folder):
    """One stub misbehaves, the other answers; a session that belongs to the first."""
    stubs = [Stub(), Stub()]
    balancer = Balancer(name, program, folder, [s.server_port for s in stubs])
    bad, good = stubs
    body = {"messages": [{"role": "user", "content": "x" * 20000}]}
    try:

        def session():
            """A session id that the balancer sends to the first."""
            for n in range(200):
                before = bad.posts
                balancer.post(body, {"x-session-id": f"s{n}"})
                if bad.posts > before:
                    return {"x-session-id": f"s{n}"}
            raise AssertionError("no session for this server")

        check.true(f"{name}: a server is up", wait_until(lambda: balancer.post(body)[0] == 200, 20))
        mine = session()
        seen = bad.posts
        check.equal(f"{name}: a session stays", [balancer.post(body, mine)[0] for _ in range(20)], [200] * 20)
        check.equal(f"{name}: with its server", bad.posts, seen + 20)
        begun = [s.posts for s in stubs]
        for n in range(40):  # each stays where it is, in another turn and behind other fields too
            start = {"role": "user", "content": f"{n} " + "y" * (10 if n % 4 else 300_000)}
            turns = [start, {"role": "assistant", "content": "z"}, {"role": "user", "content": "y" * 200_000}]
            before = bad.posts
            balancer.post({"messages": [start]})
            balancer.post({"model": "x", "stream": True, "messages": turns}, {"X-Filler": "y" * 500})
            check.true(f"{name}: conversation {n} stays", bad.posts - before in (0, 2), bad.posts - before)
        begun = [s.posts - b for s, b in zip(stubs, begun)]
        check.true(f"{name}: conversations are spread", min(begun) > 0, begun)
        bad.mode = "streams"
        with socket.create_connection(("127.0.0.1", balancer.port), timeout=30) as s:
            head = f"POST / HTTP/1.1\r\nHost: localhost\r\nx-session-id: {mine['x-session-id']}\r\n"
            s.sendall(head.encode() + b"Content-Length: 2\r\n\r\n{}")
            got = b""
            while b"first" not in got and (piece := s.recv(1 << 16)):
                got += piece
            bad.seen.set()
            while b"last" not in got and (piece := s.recv(1 << 16)):
                got += piece
            check.true(f"{name}: the first event comes before the last is sent", b"data: last" in got, got)
        bad.mode, seen, others = "refuses", bad.posts, good.posts
        got = [balancer.post(body, mine) for _ in range(10)]
        check.equal(f"{name}: refused, answered by the other", got, [(200, b"answer")] * 10)
        check.true(f"{name}: it was asked", bad.posts > seen and good.posts == others + 10, (bad.posts, seen))
        bad.mode, seen, others = "breaks", bad.posts, good.posts
        status, _ = balancer.post(body, mine)
        check.true(f"{name}: what breaks is an error", status in (500, 502, 504), status)
        check.equal(f"{name}: and is not sent again", (bad.posts, good.posts), (seen + 1, others))
        bad.end()
        got = [balancer.post(body, mine) for _ in range(10)]
        check.equal(f"{name}: not connected, answered by the other", got, [(200, b"answer")] * 10)
    finally:
        balancer.stop()
        good.end()


def drains(args):
    """What a balancer that asks nobody relies on: a request that was sent to a server that listened has an
    answer, and what runs has all of --drain-timeout, also if --shutdown-delay is longer."""
    server = Server(args.binary, endless(args.model), "--shutdown-delay", "2", "--drain-timeout", "1")
    body = {"messages": [{"role": "user", "content": "Go on"}], "max_tokens": ENDLESS, "ignore_eos": True}
    data = json.dumps({**body, "stream": True}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    data = head.encode() + f"Content-Length: {len(data)}\r\n\r\n".encode() + data
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as s:
        s.sendall(data)
        check.true("it has begun", s.recv(1 << 16).startswith(b"HTTP/1.1 200"))
        begin = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        last = b""
        while piece := s.recv(1 << 16):
            last = (last + piece)[-1000:]
        took = time.monotonic() - begin
        check.true("what runs has the delay and the drain timeout", took >= 2.9, took)
        check.true("and is told", b"server_draining" in last and b"[DONE]" in last, last)
    server.stop(send=False)

    server = Server(args.binary, args.model, "--shutdown-delay", "1", "--log-level", "error")
    server.process.send_signal(signal.SIGTERM)
    check.true("it leaves", wait_until(lambda: server.request("GET", "/ready")[0] == 503))
    server.pause()  # until the delay is over: what comes now waits in the kernel's queue
    late = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(100)]
    for s in late:
        s.sendall(data)
    time.sleep(1.2)
    server.resume()
    answers = collections.Counter()
    for s in late:
        try:
            answers[s.recv(1 << 16)[9:12]] += 1
        except OSError as fault:
            answers[repr(fault)] += 1
        s.close()
    check.true("who waits at the end is answered", set(answers) <= {b"503", b"200"}, answers)
    server.stop(send=False)


def main():
    args = arguments(__doc__, requests=400, conversations=10, seconds=6.0, delay=1, only_balancer="")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    programs = {p: shutil.which(p, path=path) for p in ("haproxy", "nginx")}
    if not check.true("both are installed (scripts/deps.sh --test)", all(programs.values()), programs):
        check.end()
    folder, servers, balancers = tempfile.mkdtemp(), [], []
    if not args.only_balancer:
        check.run(drains, args)
    try:
        servers += [Kvasir(args, name) for name in ("kvasir-a", "kvasir-b")]
        for name, program in programs.items():
            if args.only_balancer in ("", name):
                check.run(sent_again, name, program, folder)
                balancers.append(Balancer(name, program, folder, [s.port for s in servers]))
                check.run(rolling_restart, balancers[-1], servers, args)
    finally:
        for b in balancers:
            b.stop()
        for s in servers:
            s.stop()
        shutil.rmtree(folder, True)
    check.end()


if __name__ == "__main__":
    main()
