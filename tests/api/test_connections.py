"""Connections that would hang, deafen or mislead the server: python3 test_connections.py [--binary B] [--model DIR]
Malformed requests get a JSON error and the connection closes; no connection blocks others; what was half
sent is answered when its time is up. The framing of hundreds of requests, also behind proxies, is test_proxies.py's."""
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import ENDLESS, Checks, Server, arguments, endless, read_all, wait_until  # noqa: E402

check = Checks()
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def connect(s, timeout=30):
    return socket.create_connection((s.host, s.port), timeout=timeout)


def answers(data):
    """-> list of (status, head, body) of what came back on one connection."""
    out = []
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        fields = {k.lower(): v.strip() for k, _, v in (line.partition(b":") for line in head.split(b"\r\n")[1:])}
        n = int(fields.get(b"content-length", b"0"))
        out.append((int(head.split(b" ")[1]), fields, rest[:n]))
        data = rest[n:]
    return out


def refused(s, what, data, status=400):
    """The bytes are answered once, in OpenAI's shape, and the connection is closed."""
    got = answers(s.raw(data + b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n", timeout=20))
    check.equal(f"{what}: one answer", [a[0] for a in got], [status])
    if len(got) == 1:
        check.equal(f"{what}: close", got[0][1].get(b"connection"), b"close")
        check.true(f"{what}: JSON", json.loads(got[0][2])["error"]["message"], got[0][2])


def test_endless_chunk_lines(s):
    """A chunk's line that is longer than a connection's memory: once the loop's thread spun for ever, with /health fine."""
    sockets = []
    for line in (b"1;" + b"a" * 300_000, b"1" * 300_000, b"1;" + b"a" * 170_000, b"1" + b" " * 200_000):
        c = connect(s)
        c.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            c.sendall(line)
        except OSError:
            pass  # it was cut while it was sent
        sockets.append(c)
    for i in range(5):
        check.equal("a chat beside chunk lines without end", s.post("/v1/chat/completions", CHAT, timeout=20)[0], 200)
    for c in sockets:
        c.close()


def test_framing(s):
    post = b"POST /version HTTP/1.1\r\nHost: x\r\n"
    inner = b"GET /v1/models HTTP/1.1\r\nHost:x\r\n\r\n"
    refused(s, "folded Content-Length", post + b"Content-Length:\r\n %d\r\n\r\n" % len(inner) + inner)
    refused(s, "folded Transfer-Encoding", post + b"Content-Length: 5\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n")
    refused(s, "chunked, then identity", post + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n")
    refused(s, "NUL in a value", b"GET /version HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n")
    refused(s, "NUL in the target", b"GET /version\0/../x HTTP/1.1\r\nHost: x\r\n\r\n")
    refused(s, "bare line feeds", b"GET /version HTTP/1.1\nHost: x\n\n")
    refused(s, "a tab in the request line", b"GET\t/version HTTP/1.1\r\nHost: x\r\n\r\n")
    for value in (b"-1", b"+5", b"5, 6", b"5,5", b"0x5", b"1e1", b""):
        refused(s, f"Content-Length {value}", post + b"Content-Length: " + value + b"\r\n\r\n")
    refused(s, "lengths that differ", post + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcde")
    refused(s, "a chunk that is longer than it says", HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n")
    refused(s, "a coding that is not offered", post + b"Transfer-Encoding: gzip\r\n\r\n", 501)
    refused(s, "a version that is not offered", b"GET /version HTTP/2.0\r\nHost: x\r\n\r\n", 505)
    refused(s, "TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")


def test_many_words(s):
    """Arguments and cookies that would take all of a connection's memory, were they looked at."""
    refused(s, "arguments", b"GET /version?" + b"&" * 8000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414)
    cookies = b"Cookie: " + b"a=b;" * 13000 + b"\r\nConnection: close\r\n\r\n"
    got = answers(s.raw(b"GET /version HTTP/1.1\r\nHost: x\r\n" + cookies))
    check.equal("cookies", [a[0] for a in got], [200])



def test_pipelining(s):
    """Requests in one write are answered in order, bodies and chunks between them; a malformed one behind them ends it."""
    body = json.dumps(CHAT).encode()
    one = HEAD + b"X-Request-Id: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    chunks = b"".join(b"%x\r\n" % len(body[i:i + 7]) + body[i:i + 7] + b"\r\n" for i in range(0, len(body), 7))
    two = HEAD + b"X-Request-Id: b\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nX: y\r\n\r\n"
    three = b"GET /version HTTP/1.1\r\nHost: x\r\nX-Request-Id: c\r\n\r\n"
    got = answers(s.raw(one + two + three + b"GET /version HTTP/1.1\r\nX-Request-Id: d\r\n\r\n" + three))
    check.equal("pipelined: status", [a[0] for a in got], [200, 200, 200, 400])
    check.equal("pipelined: ids", [a[1][b"x-request-id"] for a in got], [b"a", b"b", b"c", b"d"])
    with connect(s) as c:  # more than is kept of them at a time, and the client's end behind it
        c.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 3000)
        c.shutdown(socket.SHUT_WR)
        check.equal("many pipelined", len(answers(read_all(c))), 3000)
    with connect(s) as c:  # byte by byte
        for i in range(len(one)):
            c.sendall(one[i:i + 1])
        c.shutdown(socket.SHUT_WR)
        read_all(c)
    check.equal("after a slow one", s.post("/v1/chat/completions", CHAT)[0], 200)


def test_expect(s):
    body = json.dumps(CHAT).encode()
    with connect(s) as c:
        c.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
        check.equal("100 Continue comes before the body", c.recv(100), b"HTTP/1.1 100 Continue\r\n\r\n")
        c.sendall(body)
        check.true("then the answer", c.recv(100).startswith(b"HTTP/1.1 200 "))
    with connect(s) as c:
        c.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n")
        check.equal("without a body nothing is expected", [a[0] for a in answers(read_all(c))], [200])
    refused(s, "another expectation", HEAD + b"Expect: a miracle\r\nContent-Length: 1\r\n\r\n", 417)


def test_large_chunked(binary, model):
    """The 413 comes when the limit is passed, not when the body ends, or never."""
    s = Server(binary, model, "--max-body-bytes", "100K")
    with connect(s) as c:
        c.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        try:
            for _ in range(4):
                c.sendall(b"10000\r\n" + b"a" * 65536 + b"\r\n")
        except OSError:
            pass
        got = answers(read_all(c))
    check.equal("413 in the middle of a chunked body", [a[0] for a in got], [413])
    check.equal("with its code", json.loads(got[0][2])["error"]["code"] if got else "", "request_too_large")
    s.stop()


def test_deadlines(binary, model):
    """What is half sent is answered when its time is up."""
    s = Server(binary, model, "--keep-alive-timeout", "2")
    with connect(s) as idle, connect(s) as head, connect(s) as body:
        begin = time.monotonic()
        idle.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        head.sendall(b"GET /version HTTP/1.1\r\nHost:")
        body.sendall(HEAD + b"Content-Length: 10\r\n\r\n{")
        check.equal("half a body", [a[0] for a in answers(read_all(body))], [408])
        check.equal("an idle connection is closed", [a[0] for a in answers(read_all(idle))], [200])
        check.true("soon", time.monotonic() - begin < 9)
        check.equal("half a head", [a[0] for a in answers(read_all(head))], [408])
    s.stop()


def test_drain_half_a_body(binary, model):
    s = Server(binary, model, "--drain-timeout", "1")
    with connect(s) as c:
        c.sendall(HEAD + b"Content-Length: 10\r\n\r\n{")
        check.equal("another", s.request("GET", "/health")[0], 200)
        s.process.terminate()
        got = answers(read_all(c))
    check.equal("half a body at the drain limit", [a[0] for a in got], [503])
    s.stop(send=False)


def crowd(s, count, request=b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"):
    sockets = []
    for _ in range(count):
        sockets.append(connect(s))
    for c in sockets:
        c.sendall(request)
    return sockets


def test_full(binary, model):
    """All connections taken, and all closed in one tick: libmicrohttpd once never took up its listening socket again."""
    s = Server(binary, model, "--max-connections", "200")
    for round in range(3):
        sockets = crowd(s, 200)
        for c in sockets:
            check.true("each is answered", c.recv(100).startswith(b"HTTP/1.1 200"))
        late = connect(s)
        late.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        s.pause()
        for c in sockets:
            c.close()
        s.resume()
        check.equal("one that waited for room", [a[0] for a in answers(read_all(late))], [200])
        check.equal("behind a full house", s.request("GET", "/version", timeout=20)[0], 200)
    s.stop()


def limited(binary, model, files):
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    return subprocess.Popen([binary, "serve", "--model", model, "--port", "0", "--shutdown-delay", "0"], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, preexec_fn=limit)


def test_few_files(binary, model):
    p = limited(binary, model, 12)
    out, err = p.communicate(timeout=60)
    check.equal("12 files: exit code", p.returncode, 2)
    check.true("12 files: one clear line", out == "" and len(err.splitlines()) == 1 and "ulimit -n" in err, err)
    p = limited(binary, model, 64)
    port = int(p.stdout.readline().rsplit(":", 1)[1])
    sockets = []
    for _ in range(100):
        sockets.append(socket.create_connection(("127.0.0.1", port), timeout=20))
        sockets[-1].sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
    check.true("64 files: the first is answered", sockets[0].recv(100).startswith(b"HTTP/1.1 200"))
    for c in sockets:
        c.close()
    with socket.create_connection(("127.0.0.1", port), timeout=20) as c:
        c.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
        check.true("64 files: behind a hundred connections", c.recv(100).startswith(b"HTTP/1.1 200"))
    p.terminate()
    p.communicate(timeout=60)
    check.equal("64 files: end", p.returncode, 0)


def test_leaving(s):
    """A client that goes away, or says that it sends no more, while it waits: its request is given up."""
    for how in ("close", "half", "reset"):
        c = connect(s)
        body = json.dumps({**CHAT, "max_tokens": ENDLESS, "ignore_eos": True}).encode()
        c.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        check.true(f"{how}: it runs", wait_until(lambda: s.held()[1] == 1))
        if how == "half":
            c.shutdown(socket.SHUT_WR)
        elif how == "reset":
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            c.close()
        else:
            c.close()
        check.true(f"{how}: it is given up", wait_until(lambda: s.held()[1] == 0))
        c.close()
    # What is answered at once is answered, though the client sends no more.
    check.equal("half-closed and quick", [a[0] for a in answers(s.raw(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n", half_close=True))], [200])


def test_stalled_loop(s):
    """A process that was stopped: /health and the gauges are there, and fine again at once."""
    s.pause()
    time.sleep(1)
    s.resume()
    check.true("healthy again", s.soon(lambda: s.request("GET", "/health")[0] == 200))
    check.true("the lag was seen", wait_until(lambda: s.metric("kvasir:loop_lag_seconds") > 0.5, 5))


def main():
    a = arguments(__doc__)
    wanted = lambda f: not a.only or f.__name__ in a.only  # noqa: E731
    alone = [f for f in (test_large_chunked, test_deadlines, test_drain_half_a_body, test_full, test_few_files) if wanted(f)]
    threads = [threading.Thread(target=check.run, args=(f, a.binary, a.model)) for f in alone]
    for t in threads:
        t.start()
    s = Server(a.binary, endless(a.model))
    for f in (test_framing, test_endless_chunk_lines, test_many_words, test_pipelining, test_expect, test_leaving, test_stalled_loop):
        if wanted(f):
            check.run(f, s)
    s.stop()
    for t in threads:
        t.join()
    check.end()


main()
