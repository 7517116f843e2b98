"""Which web pages may use the server, and by which names it is reached (--cors-origins, --allowed-hosts):
python3 test_origins.py [--binary B] [--demo DIR] [test ...]
A foreign page has no more of a server on this machine than /health, whatever it tries; the server's own page,
pages of loopback addresses, programs and probes have all of it."""

import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Checks, Server, arguments  # noqa: E402

check = Checks()
CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 2}
EVIL = "https://evil.example"


def opened(*flags):
    return Server(BINARY, DEMO, "--allowed-hosts", "auto", *flags)


def ask(s, path="/v1/models", method="GET", body=None, **headers):
    """-> (status, error code, Access-Control-Allow-Origin); headers: Sec_Fetch_Site for Sec-Fetch-Site."""
    named = {k.replace("_", "-"): v for k, v in headers.items()}
    status, head, data = s.request(method, path, body, named)
    check.true(f"{path} {named}: Vary", "Origin" in head.get("vary", ""), head)
    code = json.loads(data)["error"]["code"] if status >= 400 and data[:1] == b"{" else None
    return status, code, head.get("access-control-allow-origin")


def preflight(s, origin, **headers):
    return ask(s, CHAT, "OPTIONS", Origin=origin, Access_Control_Request_Method="POST", **headers)


REFUSED = (403, "origin_not_allowed", None)
MISDIRECTED = (421, "host_not_allowed", None)


def test_foreign_pages():
    s = opened()
    try:
        for origin in (EVIL, "http://evil.example:8000", "null", "http://localhost.evil.example",
                       "http://evil.example/localhost", "http://127.0.0.1.evil.example", "http://10.0.0.1",
                       "file://", "localhost", "http://localhost:80@evil.example", "http://[::2]",
                       "http://" + "a" * 400 + ".localhost", "chrome-extension://abc", "http://"):
            check.equal(f"{origin}: a question", ask(s, CHAT, "POST", BODY, Origin=origin), REFUSED)
            check.equal(f"{origin}: preflight", preflight(s, origin), REFUSED)
        for path, method in (("/v1/models", "GET"), ("/metrics", "GET"), ("/", "GET"), ("/nope", "GET"),
                             ("/ready", "GET"), ("/flush_cache", "POST"), ("/tokenize", "POST"),
                             ("/v1/models", "DELETE"), ("*", "OPTIONS"), ("/cache_tree", "GET"),
                             ("/health/", "PUT"), ("/openapi.json", "GET")):
            want = (403, None, None) if method == "HEAD" else REFUSED
            if path == "/health/":  # the same path: it is answered, and tells the page nothing
                want = (405, "method_not_supported", None)
            check.equal(f"{method} {path}", ask(s, path, method, Origin=EVIL), want)
        check.equal("HEAD", ask(s, "/v1/models", "HEAD", Origin=EVIL), (403, None, None))
        check.equal("/health", ask(s, "/health", Origin=EVIL), (200, None, None))
        text = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: " + EVIL.encode()
        answer = s.raw(text + b"\r\nContent-Type: text/plain\r\nContent-Length: 9000000\r\n\r\n", timeout=2)
        check.true("an early answer", answer.startswith(b"HTTP/1.1 403 ") and b"Allow-Origin" not in answer)
        check.true("names the flag", b"--cors-origins" in answer, answer)
        for site, mode, want in (("cross-site", "no-cors", 403), ("cross-site", None, 403),
                                 ("cross-site", "navigate", 200), ("same-site", "no-cors", 200),
                                 ("same-origin", "cors", 200), ("none", "navigate", 200)):
            check.equal(
                f"without Origin, {site} {mode}", ask(s, Sec_Fetch_Site=site, Sec_Fetch_Mode=mode)[0], want
            )
        anthropic = json.loads(s.request("POST", "/v1/messages", {}, {"Origin": EVIL})[2])
        check.equal("in Anthropic's shape", (anthropic["type"], anthropic["error"]["type"]),
                    ("error", "permission_error"))
    finally:
        s.stop()


def test_own_pages():
    s = opened()
    try:
        for origin in ("http://localhost", "http://localhost:3000", "https://localhost:3000",
                       "http://127.0.0.1:5", "http://127.9.9.9", "http://[::1]:9", "http://app.localhost:1",
                       "HTTP://LocalHost:8"):
            check.equal(origin, ask(s, CHAT, "POST", BODY, Origin=origin), (200, None, origin))
            status, head, _ = s.request(
                "OPTIONS",
                CHAT,
                None,
                {"Origin": origin, "Access-Control-Request-Method": "POST",
                 "Access-Control-Request-Headers": "authorization"},
            )
            check.equal(f"{origin}: preflight",
                        (status, head["access-control-allow-origin"], head["access-control-allow-headers"]),
                        (204, origin, "authorization"))
        own = f"http://192.0.2.7:{s.port}"
        check.equal("its own page, by an address", ask(s, CHAT, "POST", BODY, Origin=own, Host=own[7:]),
                    (200, None, None))
        check.equal("by another port", ask(s, Origin="http://192.0.2.7:1", Host=own[7:]), REFUSED)
        check.equal("behind a proxy that rewrites Host",
                    ask(s, Origin="https://chat.example", Sec_Fetch_Site="same-origin")[0], 200)
        check.equal("a stream", ask(s, CHAT, "POST", {**BODY, "stream": True}, Origin="http://localhost:3"),
                    (200, None, "http://localhost:3"))
        status, head, data = s.request("GET", "/", None, {"Accept": "text/html"})
        check.true("the page", status == 200 and b"<html" in data and "content-security-policy" in head)
    finally:
        s.stop()


def test_hosts():
    """A page whose name was made to resolve to 127.0.0.1 is of the same origin: Host gives it away."""
    s = opened()
    try:
        port = s.port
        for host in ("evil.example", f"evil.example:{port}", "localhost.evil.example",
                     "127.0.0.1.evil.example", "cafe", "evil.example.", "localhost:1x", "x", "[::1",
                     "[evil.example]", "", "0x7f.1", "*", "auto", "host.docker.internal"):
            check.equal(f"Host {host!r}", ask(s, Host=host), MISDIRECTED)
            check.equal(
                f"Host {host!r}, Origin equal",
                ask(s, CHAT, "POST", BODY, Host=host, Origin="http://" + host, Sec_Fetch_Site="same-origin")[
                    :2
                ],
                MISDIRECTED[:2],
            )
            check.equal(f"Host {host!r}: /health", ask(s, "/health", Host=host)[0], 200)
        for host in ("localhost", f"LOCALHOST:{port}", "localhost.", "a.localhost", "127.0.0.1",
                     "127.1.2.3:80", "[::1]", f"[::1]:{port}", "192.0.2.1", "[2001:db8::1]:8000",
                     f"10.1.2.3:{port}"):
            check.equal(f"Host {host}", ask(s, Host=host)[0], 200)
        check.true("HTTP/1.0 needs none", s.raw(b"GET /ready HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 "))
        answer = s.raw(b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
        check.true(
            "names the flag", b" 421 Misdirected Request" in answer and b"--allowed-hosts" in answer, answer
        )
    finally:
        s.stop()
    s = Server(BINARY, DEMO, "--allowed-hosts", "chat.example.org, *.svc.example")
    try:
        for host, want in (("chat.example.org", 200), ("CHAT.example.org:443", 200), ("a.svc.example", 200),
                           ("a.b.svc.example", 200), ("svc.example", 421), ("asvc.example", 421),
                           ("localhost", 200), ("10.0.0.1", 200), ("other.example.org", 421)):
            check.equal(f"a list: {host}", ask(s, Host=host)[0], want)
    finally:
        s.stop()


def test_lists():
    s = opened("--cors-origins", f"{EVIL}, null,app://some.program")
    try:
        check.equal("a configured one", ask(s, CHAT, "POST", BODY, Origin=EVIL), (200, None, EVIL))
        check.equal("null if it is named", ask(s, Origin="null"), (200, None, "null"))
        check.equal("its preflight", preflight(s, EVIL)[::2], (204, EVIL))
        program = "app://some.program"
        check.equal("a program's", ask(s, Origin=program), (200, None, program))
        check.equal("with another port", ask(s, Origin=EVIL + ":8443"), REFUSED)
        check.equal("by http", ask(s, Origin=EVIL.replace("https", "http")), REFUSED)
        check.equal("loopback is no longer named", ask(s, Origin="http://localhost:3000"), REFUSED)
    finally:
        s.stop()
    s = opened("--cors-origins", "*")
    try:
        check.equal("all", (ask(s, Origin=EVIL), ask(s, Origin="null")), ((200, None, "*"),) * 2)
        check.equal("all, without Origin", ask(s, Sec_Fetch_Site="cross-site")[0], 200)
        check.equal("not by any name", ask(s, Origin=EVIL, Host="evil.example")[:2], MISDIRECTED[:2])
    finally:
        s.stop()
    for flag, value in (("--cors-origins", "evil.example"), ("--cors-origins", "https://a.example/"),
                        ("--cors-origins", "https://*.example"), ("--cors-origins", "://a"),
                        ("--cors-origins", "loopback,,"), ("--allowed-hosts", "a:80"),
                        ("--allowed-hosts", "http://a"), ("--allowed-hosts", "a.*")):
        p = subprocess.run([BINARY, "serve", "--port", "0", flag, value], capture_output=True, text=True)
        check.true(
            f"{flag} {value}", p.returncode == 2 and flag in p.stderr and len(p.stderr.splitlines()) == 1, p
        )


def test_elsewhere():
    """With keys balancers may use any name; without, none but the server's, whatever the address: a
    container's port may be published on loopback."""
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as f:
        f.write("one\n")
        f.flush()
        s = opened("--api-key-file", f.name)
        key = {"Authorization": "Bearer one"}
        try:
            check.equal("any Host", ask(s, Host="chat.example.org", **key)[0], 200)
            check.equal("a foreign page with a key", ask(s, Origin=EVIL, **key), (200, None, None))
            check.equal("but no preflight for it", preflight(s, EVIL), (204, None, None))
            check.equal(
                "one of loopback", preflight(s, "http://localhost:3")[::2], (204, "http://localhost:3")
            )
            check.equal(
                "the key still counts", ask(s, Origin="http://localhost:3")[:2], (401, "invalid_api_key")
            )
        finally:
            s.stop()
        for flags, said in (((), True), (("--api-key-file", f.name), False)):
            with tempfile.TemporaryFile("w+") as log:
                s = Server(BINARY, DEMO, "--allowed-hosts", "auto", "--host", "0.0.0.0", *flags, log=log)
                status = ask(s, Host="kvasir-0.kvasir.default.svc:8000", **key)[0]
                check.equal("any Host", status, 421 if said else 200)
                check.equal("its address", ask(s, Host=f"10.1.2.3:{s.port}", **key)[0], 200)
                check.equal("/health under any name", ask(s, "/health", Host="evil.example")[0], 200)
                check.equal("foreign pages", ask(s, Origin=EVIL, **key)[0], 403 if said else 200)
                s.stop()
                log.seek(0)
                check.equal(f"a warning without keys {flags}", "--api-key-file" in log.read(), said)


if __name__ == "__main__":
    args = arguments(__doc__)
    BINARY, DEMO = args.binary, args.demo
    for test in (test_foreign_pages, test_own_pages, test_hosts, test_lists, test_elsewhere):
        if not args.only or test.__name__ in args.only:
            check.run(test)
    check.end()
