#!/usr/bin/env python3
"""Hostile clients alongside ordinary ones: does a server stay quick, small and correct?
Python 3.11, standard library only.

  attack.py                           10 minutes, 50 hostile connections, 20 ordinary clients, the demo model
  attack.py --minutes 0.5 --attackers 10 --clients 4
  attack.py --only loris-head,unread  some kinds of attack alone (--list names them)
  attack.py --seed 7                  another order; each attacker does the same things with the same seed

Starts the server twice. First with its default limit on connections: hostile clients do what they do,
ordinary ones chat (kept and new connections, streams, whole responses), and /health is polled every 0.25 s.
Then with 200 connections: all are taken at once and let go at once, again and again; new ones must be served
within 2 s.

Prints, and counts as a limit (exit status 1 when one is broken, 2 for wrong flags):
  ordinary requests     every one is answered 200, and whole
  /health               every one is answered 200, the slowest within --health-ms (100); median, p99 beside it
  memory, descriptors   of the server, idle again after at most 40 s: 1.5 times and 3 more than before
  the end               exit status 0 after SIGTERM
A server that doesn't answer /health for --hang seconds (20) counts as hung: it is killed, and the run ends.

Times are those of this machine: hostile clients run here too, with less right to the processor (nice 10), but
with few cores the slowest /health says more about the cores than about it. Everything goes to 127.0.0.1.
"""

import argparse
import http.client
import json
import multiprocessing
import os
import queue
import random
import signal
import socket
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests/api"))
from framing_corpus import MARKER, corpus, render  # noqa: E402
from harness import Server  # noqa: E402

FLAGS = ("--max-body-bytes", "1M", "--kv-memory", "16M", "--response-memory", "64M", "--enable-admin", "off")
LIMIT = 200  # --max-connections of the second server
WORDS = "red blue green circle square triangle two three many small large left right above below".split()


# ---- hostile ----


class Attacker:
    """One hostile client. Each method is a kind of attack, a few seconds long; answers are not judged."""

    def __init__(self, port, seed, until, stop):
        self.port, self.rng, self.until, self.stop = port, random.Random(seed), until, stop
        self.entries = corpus()
        self.counts = {}

    def run(self, kinds):
        while time.monotonic() < self.until and not self.stop.is_set():
            kind = self.rng.choice(kinds)
            try:
                getattr(self, KINDS[kind])()
            except OSError:
                pass  # refused, cut off, timed out: that is the server's right
            self.counts[kind] = self.counts.get(kind, 0) + 1
            self.pause(self.rng.uniform(0.01, 0.1))

    def pause(self, seconds):
        self.stop.wait(max(0.0, min(seconds, self.until - time.monotonic())))

    def open(self, timeout=3.0):
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def read(self, s, most=1 << 20, seconds=2.0):
        limit = time.monotonic() + seconds
        s.settimeout(seconds)
        while most > 0 and time.monotonic() < limit and (piece := s.recv(65536)):
            most -= len(piece)

    def chat(self, tokens, stream=True):
        body = {"messages": [{"role": "user", "content": self.rng.choice(WORDS)}], "max_tokens": tokens}
        data = json.dumps({**body, "stream": stream, "ignore_eos": True, "temperature": 1}).encode()
        return (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(data) + data
        )

    def chunked(self, s, line, pieces):
        """A chunked request whose first chunk has this size line, sent in so many pieces."""
        s.sendall(b"POST /ping HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n")
        step = len(line) // pieces + 1
        for at in range(0, len(line), step):
            s.sendall(line[at : at + step])
            self.pause(0.02)
        s.sendall(b"\r\nhello\r\n0\r\n\r\n")
        self.read(s)

    def chunk_extension(self):
        with self.open() as s:
            line = b"5;" + b"a" * self.rng.randrange(100_000, 400_000)
            self.chunked(s, line, self.rng.choice([1, 4, 30]))

    def chunk_size(self):
        with self.open() as s:
            line = self.rng.choice([b"0", b"f", b" ", b"5;"]) * self.rng.randrange(100_000, 200_000) + b"5"
            self.chunked(s, line, self.rng.choice([1, 4, 30]))

    def framing(self):
        entry = self.rng.choice(self.entries)
        with self.open() as s:
            s.sendall(render(entry.data + MARKER, f"{self.rng.randrange(1_000_000):06d}"))
            self.read(s, seconds=0.5)

    def loris_head(self):
        with self.open() as s:
            for byte in b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nX-A: " + b"a" * 10:
                s.sendall(bytes([byte]))
                self.pause(self.rng.uniform(0.01, 0.1))

    def loris_body(self):
        with self.open() as s:
            s.sendall(self.chat(5)[:-60])
            for _ in range(30):
                s.sendall(b" ")
                self.pause(0.1)

    def burst(self):
        """Many connections, closed at once, some with a few bytes sent."""
        held = []
        try:
            for _ in range(30):
                held.append(self.open())
                if self.rng.random() < 0.3:
                    held[-1].sendall(b"GET /health HTTP/1.1\r\n")
        finally:
            for s in held:
                s.close()

    def half_close(self):
        whole = self.chat(20, self.rng.random() < 0.5)
        with self.open() as s:
            s.sendall(whole if self.rng.random() < 0.5 else whole[: self.rng.randrange(len(whole))])
            s.shutdown(socket.SHUT_WR)
            self.read(s)

    def reset(self):
        """The connection is broken off in the middle of an answer."""
        s = self.open()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        try:
            s.sendall(self.chat(200))
            s.recv(self.rng.randrange(1, 3000))
        finally:
            s.close()

    def unread(self):
        with self.open() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            s.sendall(self.chat(300))
            self.pause(self.rng.uniform(1, 3))

    def too_large(self):
        """A chunked body that goes beyond --max-body-bytes."""
        with self.open() as s:
            s.sendall(b"POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n")
            s.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
            for _ in range(self.rng.randrange(10, 45)):
                s.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
            s.sendall(b"0\r\n\r\n")
            self.read(s)


KINDS = {
    "chunk-extension": "chunk_extension",
    "chunk-size": "chunk_size",
    "framing": "framing",
    "loris-head": "loris_head",
    "loris-body": "loris_body",
    "burst": "burst",
    "half-close": "half_close",
    "reset": "reset",
    "unread": "unread",
    "too-large": "too_large",
}


def attackers_main(port, count, seed, until, kinds, stop, results):
    """A process: `count` attackers, each on a thread."""
    os.nice(10)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    all = [Attacker(port, seed * 1000 + i, until, stop) for i in range(count)]
    threads = [threading.Thread(target=a.run, args=(kinds,), daemon=True) for a in all]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    total = {}
    for a in all:
        for kind, n in a.counts.items():
            total[kind] = total.get(kind, 0) + n
    results.put(("attackers", total))


# ---- ordinary ----


class Chatter:
    """One ordinary client: asks, waits for the whole answer, thinks for a moment, asks again."""

    def __init__(self, port, seed, until, stop, tokens):
        self.port, self.rng, self.until, self.stop = port, random.Random(seed), until, stop
        self.tokens, self.kept, self.seconds, self.faults = tokens, None, [], []

    def run(self):
        while time.monotonic() < self.until and not self.stop.is_set():
            begin = time.monotonic()
            try:
                fault = self.ask()
            except (OSError, http.client.HTTPException, ValueError) as error:
                fault = repr(error)
                self.kept = None
            self.seconds.append(time.monotonic() - begin)
            if fault:
                self.faults.append(fault[:300])
            self.stop.wait(self.rng.uniform(0.05, 0.3))
        if self.kept:
            self.kept.close()

    def ask(self):
        """-> what is wrong with the answer"""
        stream, keep = self.rng.random() < 0.5, self.rng.random() < 0.7
        connection = self.kept or http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        text = " ".join(self.rng.choices(WORDS, k=8))
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": self.tokens, "stream": stream}
        body["ignore_eos"] = self.tokens > 100
        head = {"Content-Type": "application/json"}
        if not keep:
            head["Connection"] = "close"
        connection.request("POST", "/v1/chat/completions", json.dumps(body), head)
        answer = connection.getresponse()
        data = answer.read()
        self.kept = connection if keep and not answer.will_close else None
        if not self.kept:
            connection.close()
        if answer.status != 200:
            return f"{answer.status} {data!r}"
        if stream:
            return (
                None
                if data.endswith(b"data: [DONE]\n\n") and b'"error"' not in data
                else f"stream {data[-200:]!r}"
            )
        return None if json.loads(data)["choices"][0]["finish_reason"] else f"answer {data!r}"


def chatters_main(port, count, seed, until, tokens, stop, results):
    """A process: `count` ordinary clients, each on a thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    all = [Chatter(port, seed * 1000 + 500 + i, until, stop, tokens) for i in range(count)]
    threads = [threading.Thread(target=c.run, daemon=True) for c in all]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    results.put(("chatters", [(c.seconds, c.faults) for c in all]))


def prober_main(port, until, hang, stop, hung, results):
    """A process: /health every 0.25 s on a connection of its own. Sets hung where no answer comes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    seconds, faults, good = [], [], time.monotonic()
    while time.monotonic() < until and not stop.is_set():
        begin = time.monotonic()
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=hang)
            connection.request("GET", "/health")
            status = connection.getresponse().status
            connection.close()
            if status != 200:
                faults.append(str(status))
            good = time.monotonic()
        except (OSError, http.client.HTTPException) as error:
            faults.append(repr(error))
        seconds.append(time.monotonic() - begin)
        if time.monotonic() - good >= hang:
            hung.set()
            stop.set()
            break
        stop.wait(max(0.0, 0.25 - (time.monotonic() - begin)))
    results.put(("prober", (seconds, faults)))


# ---- the run ----


def rss(pid):
    """Resident bytes."""
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def share(values, part):
    """The value below which this part of them lies; 0 where there is none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


def milliseconds(values):
    return (
        f"median {share(values, 0.5) * 1e3:.1f}, p99 {share(values, 0.99) * 1e3:.1f}, "
        f"max {max(values, default=0.0) * 1e3:.1f} ms"
    )


class Outcome:
    """The limits: (what, kept?, in words), printed as they come."""

    def __init__(self):
        self.limits = []

    def limit(self, what, kept, words=""):
        self.limits.append((what, bool(kept), words))
        print(f"{'ok    ' if kept else 'BROKEN'} {what}: {words}", flush=True)
        return kept


class Phase:
    """One server: started, warmed, measured when idle; at the end measured again and stopped, or killed."""

    def __init__(self, opts, outcome, *flags):
        self.outcome, self.log = outcome, tempfile.TemporaryFile()
        self.server = Server(opts.binary, opts.model, *FLAGS, *flags, log=self.log)
        self.pid, self.port = self.server.process.pid, self.server.port

    def measure(self):
        self.rss, self.descriptors = rss(self.pid), descriptors(self.pid)
        print(f"idle: {self.rss >> 20} MiB, {self.descriptors} descriptors", flush=True)

    def settled(self, name, most=40.0):
        """Waits for the memory and the descriptors of before."""
        limit = time.monotonic() + most
        while True:
            now, open_now = rss(self.pid), descriptors(self.pid)
            good = now <= 1.5 * self.rss and open_now <= self.descriptors + 3
            if good or time.monotonic() > limit:
                break
            time.sleep(0.2)
        waited = f"after {time.monotonic() - limit + most:.1f} s"
        words = f"{self.rss / 2**20:.1f} -> {now / 2**20:.1f} MiB {waited}"
        self.outcome.limit(f"{name}: memory", now <= 1.5 * self.rss, words)
        words = f"{self.descriptors} -> {open_now} {waited}"
        self.outcome.limit(f"{name}: descriptors", open_now <= self.descriptors + 3, words)

    def end(self, name):
        process = self.server.process
        try:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            begin, code = time.monotonic(), process.wait(60)
            words = f"exit status {code}, {time.monotonic() - begin:.1f} s after SIGTERM"
        except Exception:
            code, words = None, "none within 60 s of SIGTERM: killed"
        self.outcome.limit(f"{name}: the server's end", code == 0, words)
        self.kill()
        if code:
            self.log.seek(max(0, self.log.seek(0, 2) - 3000))
            print(self.log.read().decode("utf-8", "replace"))

    def kill(self):
        if self.server.process.poll() is None:
            self.server.process.kill()
            self.server.process.wait()
        self.server.process.stdout.close()


def collect(results, processes, want, seconds):
    """What the processes put, by name; what is missing after that long isn't there, its process is ended."""
    got, limit = {}, time.monotonic() + seconds
    while len(got) < want and time.monotonic() < limit:
        try:
            name, value = results.get(timeout=0.5)
            got[name] = value
        except queue.Empty:
            pass
    for p in processes:
        p.join(2)
        if p.is_alive():
            p.kill()
            p.join()
    return got


def attack(opts, outcome):
    """The long phase: hostile, ordinary, /health."""
    phase = Phase(opts, outcome)
    try:
        fork = multiprocessing.get_context("fork")
        stop, results = fork.Event(), fork.Queue()
        # As many as will come, and as long: then the cache's memory has been touched before it is measured.
        count, end = opts.clients + opts.attackers, time.monotonic() + opts.warm
        warm = Process(fork, chatters_main, phase.port, count, opts.seed + 77, end, 300, stop, results)
        collect(results, [warm], 1, opts.warm + 60)
        time.sleep(1)
        phase.measure()
        hung, until = fork.Event(), time.monotonic() + 60 * opts.minutes
        processes = [
            Process(fork, prober_main, phase.port, until, opts.hang, stop, hung, results),
            Process(fork, chatters_main, phase.port, opts.clients, opts.seed, until, 6, stop, results),
            Process(
                fork, attackers_main, phase.port, opts.attackers, opts.seed, until, opts.only, stop, results
            ),
        ]
        while time.monotonic() < until and not hung.is_set() and phase.server.process.poll() is None:
            time.sleep(0.1)
        if hung.is_set() or phase.server.process.poll() is not None:
            stop.set()
            code = phase.server.process.poll()
            words = f"no answer for {opts.hang:g} s: killed" if code is None else f"exit status {code}"
            outcome.limit("attack: the server goes on", False, words)
            phase.kill()
        got = collect(results, processes, 3, 70)
        report(opts, outcome, got)
        if phase.server.process.poll() is None:
            phase.settled("attack")
            phase.end("attack")
    finally:
        phase.kill()


def Process(fork, main, *args):
    p = fork.Process(target=main, args=args, daemon=True)
    p.start()
    return p


def report(opts, outcome, got):
    print("hostile: " + ", ".join(f"{k} {n}" for k, n in sorted(got.get("attackers", {}).items())))
    clients = got.get("chatters", [])
    seconds = [x for s, _ in clients for x in s]
    faults = [x for _, f in clients for x in f]
    print("ordinary, requests of each client: " + " ".join(str(len(s)) for s, _ in clients))
    each = min((len(s) for s, _ in clients), default=0)
    words = f"{len(seconds)} requests, {len(faults)} faults, {milliseconds(seconds)}"
    outcome.limit(
        "ordinary requests are answered",
        each and not faults,
        words + "".join(f"\n    {f}" for f in faults[:5]),
    )
    seconds, faults = got.get("prober", ([], []))
    words = f"{len(seconds)} requests, {len(faults)} faults, {milliseconds(seconds)}"
    outcome.limit(
        "/health is answered", seconds and not faults, words + "".join(f"\n    {f}" for f in faults[:5])
    )
    slowest = max(seconds, default=1e9) * 1e3
    outcome.limit(
        "/health is quick", slowest <= opts.health_ms, f"{milliseconds(seconds)}, limit {opts.health_ms:g}"
    )


def fresh(port):
    """Seconds until a new connection has an answer; None: not within 2 s, or a wrong one."""
    begin = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/health")
        good = connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    took = time.monotonic() - begin
    return took if good and took <= 2 else None


def crowd(opts, outcome):
    """The short phase: all connections that the server takes, held and let go at once."""
    phase = Phase(opts, outcome, "--max-connections", str(LIMIT))
    rng = random.Random(opts.seed)
    try:
        fresh(phase.port)
        phase.measure()
        waits = []
        for turn in range(opts.rounds):
            held = []
            try:
                for _ in range(LIMIT):
                    held.append(socket.create_connection(("127.0.0.1", phase.port), timeout=2))
                    if turn % 2:
                        held[-1].sendall(b"GET /health HTTP/1.1\r\nHost: t\r\n"[: rng.randrange(1, 33)])
                time.sleep(0.1)
            except OSError as error:
                print(f"turn {turn}: {len(held)} connections, then {error!r}")
            reset = turn % 3 == 2
            for s in held:
                if reset:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                s.close()
            waits += [fresh(phase.port) for _ in range(5)]
            if waits[-5:] == [None] * 5:
                break
        good = [w for w in waits if w is not None]
        words = f"{len(good)} of {len(waits)} new connections within 2 s, {milliseconds(good)}"
        outcome.limit(f"behind {LIMIT} closed at once", waits and len(good) == len(waits), words)
        phase.settled("crowd")
        phase.end("crowd")
    finally:
        phase.kill()


def options(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--binary", default=os.path.join(ROOT, "build/release/kvasir"), help="[%(default)s]")
    add("--model", default=os.path.join(ROOT, "models/demo"), metavar="DIR", help="[%(default)s]")
    add("--minutes", type=float, default=10.0, metavar="N", help="of the long phase [%(default)g]")
    add("--attackers", type=int, default=50, metavar="N", help="hostile connections at a time [%(default)s]")
    add("--clients", type=int, default=20, metavar="N", help="ordinary clients [%(default)s]")
    add("--seed", type=int, default=1, metavar="N", help="[%(default)s]")
    add(
        "--only",
        metavar="KIND,...",
        help="only these kinds of attack; 'crowd' is the second phase, 'none' no kind",
    )
    add("--list", action="store_true", help="name the kinds and end")
    add(
        "--health-ms",
        type=float,
        default=100.0,
        metavar="MS",
        help="limit on the slowest /health [%(default)g]",
    )
    add(
        "--hang",
        type=float,
        default=20.0,
        metavar="S",
        help="silence of /health that counts as hung [%(default)g]",
    )
    add(
        "--warm",
        type=float,
        default=8.0,
        metavar="S",
        help="ordinary clients alone, before measuring [%(default)g]",
    )
    add("--rounds", type=int, default=12, metavar="N", help="of the second phase [%(default)s]")
    opts = parser.parse_args(arguments)
    if opts.list:
        print("\n".join([*KINDS, "crowd"]))
        sys.exit(0)
    named = opts.only.split(",") if opts.only else [*KINDS, "crowd"]
    unknown = [k for k in named if k not in KINDS and k not in ("crowd", "none")]
    if unknown:
        parser.error(f"unknown kinds: {', '.join(unknown)}")
    if not (0 < opts.minutes <= 120 and 0 <= opts.attackers <= 1000 and 0 < opts.clients <= 500):
        parser.error("--minutes up to 120, --attackers up to 1000, --clients 1 to 500")
    opts.crowd = "crowd" in named
    opts.only = [k for k in named if k in KINDS]
    if not opts.only:
        opts.attackers = 0
    return opts


def run(opts):
    """-> the limits, as (what, kept?, in words)"""
    outcome = Outcome()
    if opts.only or not opts.crowd:
        attack(opts, outcome)
    if opts.crowd:
        crowd(opts, outcome)
    return outcome.limits


def main():
    opts = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    broken = [what for what, kept, _ in run(opts) if not kept]
    print(f"broken: {', '.join(broken)}" if broken else "all limits kept")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
