"""Malformed and ambiguous requests, straight and through HAProxy and nginx:
python3 test_proxies.py [--binary B] [--model DIR] [--report 1] [WORD...]

Each entry of framing_corpus.py is sent to Kvasir itself, through HAProxy and twice through nginx (which reads
bodies first, and which passes them on as they come), all with connections to Kvasir that are kept and shared.
In the same write follows a well-formed request, the marker. The test judges from outside whether all take the
bytes apart in the same way: by the responses, their order and their ids, by the requests that
Kvasir logs, and by a well-formed probe after each, which must get its own response. WORD: only entries whose
name contains it; --report 1 prints what came back for each."""

import collections
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from framing_corpus import MARKER, REFUSED, corpus, render  # noqa: E402
from harness import Checks, Server, arguments, end_process, wait_until  # noqa: E402

check = Checks()
SILENCE = {"waits": 0.3}  # seconds without a byte after which one that waits for more is left;
SILENCE_MOST = 5.0  # the others end by themselves
FAR = 60_000  # bytes; of what is longer the answer may be lost, as the server closes while they come
# What may come back from Kvasir itself, one letter for each answer: o, i, m = of the outer, the inner, the
# marker; k = an id that the server drew; e = no id; x = an id of another entry.
DIRECT = {"one": "[ok]m", "two": "[ok]im", "last": "[ok]", "ends": "[oke]", "refuse": "[oke]",
          "either": "[ok]m|[oke]", "broken": "[oke]?", "waits": "[oke]?"}
STATUS = {"one": {200}, "two": {200}, "last": {200}, "ends": None, "refuse": REFUSED, "either": None,
          "broken": REFUSED, "waits": REFUSED}

HAPROXY = """
global
    nbthread 1
    maxconn 200
    tune.bufsize 131072
    tune.http.maxhdr 1000
defaults
    mode http
    option http-keep-alive
    http-reuse always
    retries 0
    timeout connect 5s
    timeout client 10s
    timeout server 10s
    timeout http-request 10s
frontend front
    bind 127.0.0.1:{port}
    default_backend back
backend back
    server kvasir 127.0.0.1:{kvasir}
"""

NGINX = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log warn;
events {{ worker_connections 200; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    client_max_body_size 64m;
    client_header_timeout 10s;
    client_body_timeout 10s;
    large_client_header_buffers 8 128k;
    upstream kvasir {{ server 127.0.0.1:{kvasir}; keepalive 16; }}
    server {{
        listen 127.0.0.1:{port};
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_buffering off;
        proxy_request_buffering {buffering};
        proxy_next_upstream off;
        location / {{ proxy_pass http://kvasir; }}
    }}
}}
"""


class Proxy:
    """One HAProxy or nginx in front of the server, on a port of its own; it ends with this process."""

    def __init__(self, name, letter, program, text, folder, kvasir, **values):
        self.name, self.letter, self.process = name, letter, None
        folder = os.path.join(folder, name)
        os.mkdir(folder)
        config = os.path.join(folder, "config")
        for _ in range(5):  # another process may take the port before it does
            with socket.socket() as s:
                s.bind(("127.0.0.1", 0))
                self.port = s.getsockname()[1]
            with open(config, "w") as f:
                f.write(text.format(port=self.port, kvasir=kvasir, folder=folder, **values))
            command = (
                [program, "-db", "-f", config]
                if "haproxy" in program
                else [program, "-e", f"{folder}/nginx-error.log", "-c", config]
            )
            with open(os.path.join(folder, "output"), "wb") as output:
                self.process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command],
                                                stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            if (
                wait_until(lambda: self.process.poll() is not None or self.listens(), 20)
                and self.process.poll() is None
            ):
                return
            self.stop()
        with open(os.path.join(folder, "output")) as f:
            raise SystemExit(f"{name} did not start: {f.read()[-1500:]}")

    def listens(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
            return True
        except OSError:
            return False

    def stop(self):
        end_process(self.process)


class Log:
    """Kvasir's log, read as it grows."""

    LINE = re.compile(rb"^\S+Z \w+ +req=(\S*) path=(.*) status=(\d+) client=\S+ method=", re.M)

    def __init__(self, path):
        self.file, self.rest = open(path, "rb"), b""

    def requests(self):
        """-> [(id, status)] of the requests that ended since the last call"""
        data = self.rest + self.file.read()
        end = data.rfind(b"\n") + 1
        self.rest = data[end:]
        return [(m[1].decode("latin-1"), int(m[3])) for m in self.LINE.finditer(data[:end])]

    def until(self, id, seconds=10.0):
        """The same, up to and without the request of this id; None if it doesn't come."""
        seen, limit = [], time.monotonic() + seconds
        while time.monotonic() < limit:
            seen += self.requests()
            if any(i == id for i, _ in seen):
                return [(i, s) for i, s in seen if i != id]
            time.sleep(0.001)
        return None


class Answer:
    def __init__(self, status, head, body):
        self.status, self.head, self.body = status, head, body

    def letter(self, tag):
        id = self.head.get("x-request-id")
        known = {f"o-{tag}": "o", f"smuggled-{tag}": "i", f"marker-{tag}": "m"}
        return (
            "e"
            if id is None
            else known[id] if id in known else "k" if re.fullmatch("[0-9a-f]{32}", id) else "x"
        )


def answers(data, headless):
    """All answers in what came back. headless: the first is to a HEAD. What is no HTTP/1 (nginx answers 0.9
    in its own way, HAProxy knows HTTP/2's preface) counts as one answer of status 0."""
    out = []
    while data:
        head, found, rest = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        match = re.fullmatch(r"HTTP/1\.[01] (\d{3})( .*)?", lines[0])
        if not found or not match:
            return out + [Answer(0, {}, data)]
        status = int(match[1])
        if status == 100:
            data = rest
            continue
        fields = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
        body = b""
        if (headless and not out) or status in (204, 304):
            pass
        elif fields.get("transfer-encoding", "").lower() == "chunked":
            while True:
                size, found, rest = rest.partition(b"\r\n")
                count = int(size, 16) if found else 0
                body += rest[:count]
                rest = rest[count + 2 :]
                if not count:
                    break
        elif "content-length" in fields:
            count = int(fields["content-length"])
            body, rest = rest[:count], rest[count:]
        else:
            body, rest = rest, b""
        out.append(Answer(status, fields, body))
        data = rest
    return out


def talk(port, data, silence):
    """-> what came back, and how it ended: "closed", "reset" or "open" (nothing for a while)"""
    got, end = b"", "closed"
    with socket.create_connection(("127.0.0.1", port), timeout=10) as s:
        s.settimeout(silence)
        try:
            s.sendall(data)
        except OSError:
            pass  # refused while it was still being sent
        try:
            while piece := s.recv(1 << 16):
                got += piece
        except TimeoutError:
            end = "open"
        except OSError:
            end = "reset"
    return got, end


class Way:
    """One way to the server: a letter for the ids, a port."""

    def __init__(self, name, letter, port):
        self.name, self.letter, self.port = name, letter, port
        self.results = collections.Counter()


class Stand:
    """The server with its log; started again where an entry hangs or ends it."""

    def __init__(self, args, folder):
        self.args, self.log_path, self.port, self.starts = args, os.path.join(folder, "kvasir.log"), 0, 0
        self.start()

    def start(self):
        """Again, on the same port: that of the proxies."""
        self.starts += 1
        with open(self.log_path, "wb") as log:
            self.server = Server(
                self.args.binary, self.args.model, "--port", str(self.port), "--log-level", "debug", log=log
            )
        self.port = self.server.port
        self.log = Log(self.log_path)

    def again(self):
        self.server.process.kill()
        self.server.process.wait()
        self.server.process.stdout.close()
        self.start()


def judge_direct(name, entry, got, end, letters, answered):
    """What the server itself has to answer."""
    far = len(entry.data) > FAR
    what = f"{name}, {entry.reading}"
    pattern = DIRECT[entry.reading]
    ok = re.fullmatch(pattern, letters) or (far and not letters and entry.reading in ("refuse", "either"))
    if not check.true(f"{what}: answers like {pattern}", ok,
                      f"{letters!r} {[a.status for a in answered]} {end} {got[-200:]!r}"):
        return
    check.true(f"{what}: the connection ends", end != "open" or entry.reading == "waits",
               f"{letters!r} {[a.status for a in answered]}")
    if not answered:
        return
    first = answered[0]
    statuses = {400} if entry.named else entry.expect or STATUS[entry.reading]
    if statuses is not None and not check.true(
        f"{what}: status", first.status in statuses, f"{first.status}, not of {sorted(statuses)}"
    ):
        return
    # One answer and the end, where more could have been said: refused for its framing.
    refused = entry.reading in ("refuse", "broken", "waits") or (
        entry.reading in ("either", "ends") and len(answered) == 1 and first.status >= 400
    )
    if refused and not entry.head_only():
        try:
            message = json.loads(first.body)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            message = None
        check.true(f"{what}: an error as JSON", message, f"{first.status} {first.body[:200]!r}")
    if refused:
        check.true(f"{what}: says that it closes", first.head.get("connection", "").lower() == "close",
                   f"{first.status} {first.head}")


def judge_framing(name, entry, tag, letters, logged, direct):
    """Whether the one in front and the server took the same bytes for the same requests. logged: what the
    server ended, in its order."""
    mine = {f"smuggled-{tag}": "i", f"marker-{tag}": "m"}
    served = "".join(mine[i] for i, status in logged if i in mine and status != 499)
    shown = "".join(x for x in letters if x in "im")
    check.equal(f"{name}: the inner and the marker as served and as answered", shown, served)
    check.true(f"{name}: no answer but its own", "x" not in letters, letters)
    allowed = entry.reading == "two" or (entry.inner == "agreed" and not direct)
    check.true(
        f"{name}: nothing smuggled",
        "i" not in letters and not any(i.startswith("smuggled") for i, _ in logged) if not allowed else True,
        f"{letters!r} {logged}",
    )
    check.true(f"{name}: the outer's answer comes first", not re.match("[im]", letters), letters)
    check.true(
        f"{name}: not more answers than requests", re.fullmatch("([oke](i?)([me]?))?", letters), letters
    )
    others = [i for i, _ in logged if i not in mine]
    check.true(f"{name}: no request that nobody sent", len(others) <= 1, f"{others} {letters!r}")
    check.true(f"{name}: none of another entry",
               all(i in mine or i == f"o-{tag}" or re.fullmatch("[0-9a-f]{32}", i) for i, _ in logged),
               logged)
    if entry.reading in ("refuse", "last", "ends", "waits") and direct:
        check.true(f"{name}: the marker is not served", "m" not in letters + served, f"{letters!r} {logged}")


def probe(port, id):
    """A well-formed request; -> what is wrong with its answer"""
    data, end = talk(
        port,
        f"GET /v1/models HTTP/1.1\r\nHost: t\r\nX-Request-Id: {id}\r\nConnection: close\r\n\r\n".encode(),
        15,
    )
    got = answers(data, False)
    if (
        len(got) == 1
        and got[0].status == 200
        and got[0].head.get("x-request-id") == id
        and b'"data"' in got[0].body
    ):
        return None
    return f"{end} {data[:300]!r}"


def entry_run(stand, way, number, entry, report):
    tag = f"{number:04d}-{way.letter}"
    name = f"{entry.name} [{way.name}]"
    direct = way.letter == "d"
    got, end = talk(way.port, render(entry.data + MARKER, tag), SILENCE.get(entry.reading, SILENCE_MOST))
    answered = answers(got, entry.head_only())
    letters = "".join(a.letter(tag) for a in answered)
    statuses = "/".join(str(a.status) for a in answered)
    report.append(f"{way.name} {letters or '-'} {statuses} {end.replace('closed', '')}".strip())
    wrong = probe(way.port, f"probe-{tag}")
    logged = stand.log.until(f"probe-{tag}") if not wrong else None
    if logged is None or stand.server.process.poll() is not None:
        check.true(f"{name}: the server goes on, the probe gets its own answer", False,
                   f"{wrong} exit {stand.server.process.poll()}")
        stand.again()
        return
    way.results[letters] += 1
    judge_framing(name, entry, tag, letters, logged, direct)
    if direct:
        judge_direct(name, entry, got, end, letters, answered)


def links(port):
    """Local ports of the connections that stand to the server."""
    out = set()
    with open("/proc/net/tcp") as f:
        for line in f.readlines()[1:]:
            fields = line.split()
            if fields[3] == "01" and fields[2] == f"0100007F:{port:04X}":
                out.add(fields[1])
    return out


def reuse(stand, way):
    """What makes the rest worth anything: requests of different clients share a connection to the server."""
    check.equal(f"{way.name}: a probe", probe(way.port, f"reuse-{way.letter}"), None)
    before = links(stand.port)
    for i in range(8):
        check.equal(f"{way.name}: a probe", probe(way.port, f"reuse-{way.letter}-{i}"), None)
    stand.log.until(f"reuse-{way.letter}-7")
    check.true(f"{way.name} keeps its connections to the server", before and links(stand.port) == before,
               (before, links(stand.port)))


def main():
    args = arguments(__doc__, report=0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    programs = [shutil.which(p, path=path) for p in ("haproxy", "nginx")]
    if not check.true("haproxy and nginx are installed (scripts/deps.sh --test)", all(programs), programs):
        check.end()
    entries = [(n, e) for n, e in enumerate(corpus()) if not args.only or any(w in e.name for w in args.only)]
    check.true("at least 200 entries", len(entries) >= 200 or args.only, len(entries))
    begin, folder, proxies, stand = time.monotonic(), tempfile.mkdtemp(), [], None
    try:
        stand = Stand(args, folder)
        proxies.append(Proxy("haproxy", "h", programs[0], HAPROXY, folder, stand.port))
        proxies.append(Proxy("nginx", "n", programs[1], NGINX, folder, stand.port, buffering="on"))
        proxies.append(
            Proxy("nginx-unbuffered", "u", programs[1], NGINX, folder, stand.port, buffering="off")
        )
        ways = [Way("direct", "d", stand.port)] + [Way(p.name, p.letter, p.port) for p in proxies]
        for way in ways[1:]:
            reuse(stand, way)
        for number, entry in entries:
            report, start = [], time.monotonic()
            for way in ways:
                check.run(entry_run, stand, way, number, entry, report)
                if stand.starts > 40:
                    break
            if args.report:
                took = time.monotonic() - start
                print(f"{entry.reading:6} {entry.name:60} | {' | '.join(report)} {took:.2f} s", flush=True)
            if not check.true("the server needn't be started again and again", stand.starts <= 40):
                break
        check.equal("a last probe", probe(stand.port, "last"), None)
        late = [i for i, _ in stand.log.until("last") or () if i.startswith("smuggled")]
        check.equal("nothing smuggled comes late", late, [])
        for proxy in proxies:
            check.true(f"{proxy.name} lives", proxy.process.poll() is None)
        for way in ways:
            print(f"{way.name}: answers {dict(way.results.most_common())}")
        print(f"{len(entries)} entries, {time.monotonic() - begin:.1f} s")
        check.run(stand.server.stop, 0, 60)
    finally:
        for proxy in proxies:
            proxy.stop()
        if stand and stand.server.process.poll() is None:
            stand.server.process.kill()
        shutil.rmtree(folder, True)
    check.end()


if __name__ == "__main__":
    main()
