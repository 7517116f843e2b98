"""Watching a server: the log as text and JSON, access lines, SIGHUP, TLS, and the files of scripts/deploy for
Prometheus and Grafana: python test_watch.py [--binary B] [--demo DIR] [test ...]"""

import contextlib
import fcntl
import http.client
import json
import os
import pty
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import termios
import threading
import time
import warnings

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Checks, Server, arguments, end_process, read_all, wait_until  # noqa: E402

check = Checks()
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CHAT = {"messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 4, "ignore_eos": True}
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def lines(path):
    with open(path, encoding="utf-8") as f:
        return f.read().splitlines()


def found(path, *words):
    """The first line with all of the words, as soon as there is one."""

    def look():
        return next((x for x in lines(path) if all(w in x for w in words)), None)

    wait_until(look, 20)
    return look()


def test_log():
    with tempfile.TemporaryDirectory() as top:
        log = os.path.join(top, "kvasir.log")
        flags = ["--log-file", log, "--log-level", "info", "--served-model-name", 'a "b"']
        s = Server(BINARY, DEMO, *flags, "--log-format", "json")
        usage = s.post("/v1/chat/completions", CHAT, {"X-Request-Id": "one", "traceparent": TRACE})[1][
            "usage"
        ]
        list(s.stream("/v1/chat/completions", CHAT))
        s.request("GET", "/v1/no%22such", headers={"X-Request-Id": "two", "traceparent": "00-x"})
        s.raw(b"GET / HTTP/1.1\r\nX-Request-Id: three\r\nContent-Length: x\r\n\r\n")
        found(log, "three")
        s.stop()
        every = [json.loads(x) for x in lines(log)]
        check.true(
            "each has time, level and msg", all({"time", "level", "msg"} <= set(x) for x in every), every
        )
        done = [x for x in every if x["msg"] == "request"]
        one = next(x for x in done if x["req"] == "one")
        want = {"path": "/v1/chat/completions", "method": "POST", "status": 200, "client": "127.0.0.1",
                "model": 'a "b"', "prompt_tokens": usage["prompt_tokens"], "cached_tokens": 0,
                "completion_tokens": 4, "traceparent": TRACE}
        check.equal("a chat", {k: one.get(k) for k in want}, want)
        check.true("times", 0 < one["ttft_ms"] <= one["ms"], one)
        check.equal("a stream", done[1]["completion_tokens"], 4)
        check.true("its prompt was cached", 0 < done[1]["cached_tokens"] < done[1]["prompt_tokens"], done[1])
        two = next(x for x in done if x["req"] == "two")
        check.equal("404", (two["status"], two["path"], "traceparent" in two, "model" in two),
                    (404, "/v1/no%22such", False, False))
        three = next(x for x in done if x["req"] == "three")
        check.true("refused by the parser", three["status"] == 400 and three["error"], three)
        os.unlink(log)
        s = Server(BINARY, DEMO, *flags)
        s.post("/v1/chat/completions", CHAT, {"X-Request-Id": "four"})
        line = found(log, "req=four ")
        check.true(
            "as text",
            re.fullmatch(
                r"\S+Z info req=four path=/v1/chat/completions status=200 client=127.0.0.1 method=POST "
                r'ms=\S+ model=a "b" '
                r"prompt_tokens=\d+ cached_tokens=0 completion_tokens=4 ttft_ms=\S+",
                line,
            ),
            line,
        )
        s.stop()
        run = subprocess.run(
            [BINARY, "serve", "--log-file", top], capture_output=True, text=True, check=False
        )
        check.equal(
            "no file", (run.returncode, run.stderr), (1, f"kvasir: --log-file {top}: Is a directory\n")
        )


def test_hangup():
    with tempfile.TemporaryDirectory() as top:
        log, keys = os.path.join(top, "log"), os.path.join(top, "keys")

        def key(name):
            return s.request("GET", "/v1/models", headers={"Authorization": "Bearer " + name})[0]

        def write(text):
            with open(keys, "w", encoding="utf-8") as f:
                f.write(text)

        write("old\n")
        s = Server(BINARY, DEMO, "--api-key-file", keys, "--log-file", log, env={"KVASIR_API_KEY": "fixed"})
        check.equal("before", [key(k) for k in ("old", "new", "fixed", "")], [200, 401, 200, 401])
        write("new\n")
        os.rename(log, log + ".1")
        s.process.send_signal(signal.SIGHUP)
        check.true("a new log", wait_until(lambda: os.path.exists(log), 20))
        check.true("new keys", wait_until(lambda: key("new") == 200, 20))
        check.equal("after", [key(k) for k in ("old", "fixed")], [401, 200])
        write("# none\n")
        s.process.send_signal(signal.SIGHUP)
        check.true("a bad file is named", found(log, "error", "keys stay as they were", "holds no key"))
        check.equal("and the keys stay", [key(k) for k in ("new", "")], [200, 401])
        s.stop()
        run = subprocess.run(
            [BINARY, "serve", "--api-key-file", keys], capture_output=True, text=True, check=False
        )
        check.true("at the start it is an error", run.returncode == 2 and "holds no key" in run.stderr, run)


def test_terminal_closed():
    """Then SIGHUP ends it, as without a handler."""
    master, slave = pty.openpty()

    def own():
        os.setsid()
        fcntl.ioctl(2, termios.TIOCSCTTY, 0)

    p = subprocess.Popen([BINARY, "serve", "--model", DEMO, "--port", "0", "--shutdown-delay", "0"],
                         stdin=slave, stdout=subprocess.PIPE, stderr=slave, text=True, preexec_fn=own)
    os.close(slave)
    try:
        check.true("it serves", p.stdout.readline().startswith("kvasir: listening"))
        p.send_signal(signal.SIGHUP)
        check.true("a SIGHUP while it is there", not wait_until(lambda: p.poll() is not None, 0.5))
        os.close(master)
        check.true("it ends", wait_until(lambda: p.poll() is not None, 20))
    finally:
        end_process(p)
        p.stdout.close()


def certificate(top, name):
    """A new self-signed one in the two files."""
    cert, key = os.path.join(top, "cert.pem"), os.path.join(top, "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
    )
    return cert, key


def tls_requests(p, port, top, context):
    def connect(trust=context):
        return http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=trust)

    c = connect()
    for i in range(3):  # one connection
        c.request("POST", "/v1/chat/completions", json.dumps(CHAT), {"Content-Type": "application/json"})
        answer = c.getresponse()
        body = json.loads(answer.read())
        check.equal(f"chat {i}", (answer.status, body["usage"]["completion_tokens"]), (200, 4))
    c.request("POST", "/v1/chat/completions", json.dumps({**CHAT, "stream": True}),
              {"Content-Type": "application/json"})
    check.true("a stream", c.getresponse().read().endswith(b"data: [DONE]\n\n"))
    c.request(
        "POST", "/tokenize", json.dumps({"prompt": "red " * 3_000_000}), {"Content-Type": "application/json"}
    )
    answer = c.getresponse()
    data = answer.read()
    check.true("megabytes in", answer.status in (200, 400), (answer.status, data[:200]))
    c.request("GET", "/openapi.json")
    check.true("and out", len(json.loads(c.getresponse().read())["paths"]) > 10)
    c.close()
    with socket.socket(socket.AF_UNIX) as plain:
        plain.connect(os.path.join(top, "socket"))
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        check.true("a UNIX socket has none", read_all(plain).startswith(b"HTTP/1.1 200"))
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\n\r\n")
        said = read_all(plain)
        told = said.startswith(b"HTTP/1.1 400 ") and b"write https://" in said
        check.true("plain HTTP is told", told, said)
    hello, unread = ssl.MemoryBIO(), ssl.MemoryBIO()
    t = ssl._create_unverified_context().wrap_bio(unread, hello, server_hostname="KVASIR.invalid")
    with contextlib.suppress(ssl.SSLWantReadError):
        t.do_handshake()
    begin, name, rest = hello.read().partition(b"KVASIR")
    with socket.create_connection(("127.0.0.1", port), timeout=20) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        s.sendall(begin)
        time.sleep(0.3)
        s.sendall(name + rest)  # in a second packet, which begins like "GET"
        check.equal("a handshake in two packets", (name, s.recv(1)), (b"KVASIR", b"\x16"))
    with socket.create_connection(("127.0.0.1", port)):  # silent: holds up nobody
        with context.wrap_socket(
            socket.create_connection(("127.0.0.1", port)), server_hostname="127.0.0.1"
        ) as t:
            head = b"GET /health HTTP/1.1\r\nHost: x\r\n"
            for byte in head + b"\r\n":  # a record each
                t.sendall(bytes([byte]))
            check.true("byte by byte", t.recv(1000).startswith(b"HTTP/1.1 "))
            check.true("at least TLS 1.2", t.version() in ("TLSv1.2", "TLSv1.3"), t.version())
    certificate(top, "two")
    p.send_signal(signal.SIGHUP)
    renewed = ssl.create_default_context(cafile=os.path.join(top, "cert.pem"))

    def works():
        try:
            c = connect(renewed)
            c.request("GET", "/health")
            return c.getresponse().status == 200
        except ssl.SSLError:
            return False

    check.true("the new certificate", wait_until(works, 20))


OFFERS = (  # least and highest version, cipher suites, taken
    (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1, "ALL", False),
    (ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_1, "ALL", False),
    (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1, "ALL", False),
    *(
        (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2, suite, taken)
        for suite, taken in (("kRSA", False), ("AES256-GCM-SHA384", False), ("AES128-CCM", False),
                             ("AES128-SHA256", False), ("ECDHE-RSA-AES256-SHA384", False),
                             ("ECDHE-RSA-AES128-SHA", False), ("ECDHE-RSA-AES128-GCM-SHA256", True),
                             ("ECDHE-RSA-CHACHA20-POLY1305", True))
    ),
    (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_2, "ALL", True),
    (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3, "ALL", True),
)


def handshake(port, offer):
    """-> the error, or None"""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version, context.maximum_version = offer[:2]
    context.set_ciphers(offer[2] + ":@SECLEVEL=0")
    try:
        with context.wrap_socket(socket.create_connection(("127.0.0.1", port), 60)):
            return None
    except OSError as e:
        return e


def tls_offers(port, cert, key):
    """What is refused is what a server that takes everything takes: the client does offer it."""
    with socket.create_server(("127.0.0.1", 0)) as any_server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = ssl.TLSVersion.TLSv1
        context.set_ciphers("ALL:@SECLEVEL=0")

        def serve():
            for _ in OFFERS:
                with any_server.accept()[0] as s, contextlib.suppress(OSError):
                    context.wrap_socket(s, server_side=True).close()

        threading.Thread(target=serve, daemon=True).start()
        for offer in OFFERS:
            check.equal(f"{offer[:3]} is offered", handshake(any_server.getsockname()[1], offer), None)
            got = handshake(port, offer)
            check.true(f"{offer}", (got is None) == offer[3], got)
            if not offer[3]:
                alert = isinstance(got, ssl.SSLError) and "ALERT" in str(got)
                check.true(f"{offer} by an alert", alert, got)


def test_tls():
    if not shutil.which("openssl"):
        check.skip("TLS", "there is no openssl")
        return
    with tempfile.TemporaryDirectory() as top:
        cert, key = certificate(top, "one")
        context = ssl.create_default_context(cafile=cert)
        command = [BINARY, "serve", "--model", DEMO, "--port", "0", "--shutdown-delay", "0", "--log-level",
                   "warn", "--tls-cert", cert, "--tls-key", key, "--max-body-bytes", "32M", "--host",
                   f"127.0.0.1,unix:{top}/socket"]
        p = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        port = int(re.fullmatch(r"kvasir: listening on https://127.0.0.1:(\d+)\n", p.stdout.readline())[1])

        try:
            ready = [BINARY, "ready", str(port)]
            check.equal("kvasir ready", subprocess.run(ready, check=False).returncode, 0)
            tls_offers(port, cert, key)
            tls_requests(p, port, top, context)
        finally:
            end_process(p)
            p.stdout.close()
        check.equal("it ends", p.returncode, 0)
        for flags, line in ((("--tls-cert", cert), "--tls-cert and --tls-key go together"),
                            (("--tls-cert", cert, "--tls-key", cert), "--tls-key"),
                            (("--tls-cert", "/no", "--tls-key", key), "--tls-cert: /no: No such file")):
            run = subprocess.run(
                [BINARY, "serve", "--port", "0", *flags], capture_output=True, text=True, check=False
            )
            check.true(str(flags), run.returncode == 2 and line in run.stderr, run)


def test_template():
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as f:
        f.write("{% for m in messages %}<{{ m.content }}>{% endfor %}")
        f.flush()
        s = Server(BINARY, DEMO, "--chat-template", f.name)
        ids = s.ok("/tokenize", {"messages": CHAT["messages"], "add_special_tokens": False})["tokens"]
        text = s.ok("/detokenize", {"tokens": ids})["prompt"]
        check.true("--chat-template", "<Hello there>" in text, text)
        s.stop()
        f.write("{% if %}")
        f.flush()
        for path, line in ((f.name, f"--chat-template: {f.name}"),
                           ("/no", "--chat-template: /no: No such file")):
            run = subprocess.run([BINARY, "serve", "--port", "0", "--chat-template", path],
                                 capture_output=True, text=True, check=False)
            check.true(path, run.returncode == 1 and line in run.stderr, run)


def test_metric_names():
    """Dashboard and alerts ask for metrics that there are, with labels that these have."""
    s = Server(BINARY, DEMO)
    s.ok("/v1/chat/completions", CHAT)
    series = {}
    for line in s.request("GET", "/metrics")[2].decode().splitlines():
        m = re.match(r"# TYPE (\S+)", line)
        if m:
            series.setdefault(m[1], set())
        m = re.match(r"([a-z0-9_:]+)(?:\{(.*)\})? ", line)
        if m:
            series.setdefault(m[1], set()).update(re.findall(r'(\w+)="', m[2] or ""))
    s.stop()
    deploy = os.path.join(ROOT, "scripts/deploy")
    with open(os.path.join(deploy, "grafana.json"), encoding="utf-8") as f:
        board = json.load(f)
    exprs = [t["expr"] for p in board["panels"] for t in p.get("targets", ())]
    check.true(
        "panels", len(exprs) >= 10 and len({p["id"] for p in board["panels"]}) == len(board["panels"]), exprs
    )
    alerts = "\n".join(lines(os.path.join(deploy, "alerts.yaml")))
    rules = re.findall(r"expr: >-\n((?: {12,}.*\n)+)", alerts + "\n")
    check.equal("each alert has an expression", len(rules), alerts.count("- alert:"))
    check.true("alerts", len(rules) >= 5, rules)
    for expr in exprs + rules:
        names = re.findall(r"\b(?:vllm|kvasir):[a-z0-9_:]+", expr)
        check.true(f"a metric in: {expr}", names)
        for name in names:
            check.true(f"{name} exists", name in series, expr)
        for name, labels in re.findall(r"((?:vllm|kvasir):[a-z0-9_:]+)\{([^}]*)\}", expr):
            for label in re.findall(r"(\w+) *=", labels):
                check.true(f"{name} has {label}", label in series.get(name, ()) | {"job", "instance"}, expr)


def test_generated():
    """Man page and completions come from --help, and have every flag."""
    text = subprocess.run([BINARY, "--help"], capture_output=True, text=True, check=True).stdout
    flags = set(re.findall(r"^  (--[a-z0-9-]+)", text, re.M))
    with tempfile.TemporaryDirectory() as top:
        run = subprocess.run([sys.executable, os.path.join(ROOT, "scripts/man_pages.py"), BINARY, top],
                             capture_output=True, text=True, check=False)
        check.equal("it runs", (run.returncode, run.stderr), (0, ""))
        check.equal("files", sorted(os.listdir(top)), ["_kvasir", "kvasir.1", "kvasir.bash", "kvasir.fish"])
        for name in os.listdir(top):
            with open(os.path.join(top, name), encoding="utf-8") as f:
                have = f.read().replace("\\-", "-")
            for flag in flags:
                word = "-l " + flag[2:] if name.endswith("fish") else flag
                check.true(f"{name} has {flag}", re.search(re.escape(word) + r"(?![a-z-])", have), have[:200])
        script = (
            'source %s/kvasir.bash; COMP_WORDS=(kvasir %s); COMP_CWORD=%d; _kvasir; echo "${COMPREPLY[@]}"'
        )
        for words, want in (("s", "serve"), ("serve --max-c", "--max-context --max-connections"),
                            ("serve --quantize int", "int8 int4"), ("serve --log-format=j", "json")):
            got = subprocess.run(
                ["bash", "-c",
                 script % (top, words.replace("=", " = "), len(words.replace("=", " = ").split()))],
                capture_output=True,
                text=True,
                check=False,
            )
            check.equal(f"bash: {words}", sorted(got.stdout.split()), sorted(want.split()))
        for shell, command in (("zsh", ["zsh", "-n"]), ("fish", ["fish", "-n"]),
                               ("man", ["man", "-l", "--warnings"])):
            file = {"zsh": "_kvasir", "fish": "kvasir.fish", "man": "kvasir.1"}[shell]
            if shutil.which(shell):
                run = subprocess.run(
                    [*command, os.path.join(top, file)], capture_output=True, text=True, check=False
                )
                check.equal(f"{shell} reads it", (run.returncode, run.stderr), (0, ""))


if __name__ == "__main__":
    args = arguments(__doc__)
    BINARY, DEMO = args.binary, args.demo
    for test in (test_log, test_hangup, test_terminal_closed, test_tls, test_template, test_metric_names,
                 test_generated):
        if not args.only or test.__name__ in args.only:
            check.run(test)
    check.end()
