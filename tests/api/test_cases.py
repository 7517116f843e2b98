"""Cases of the interface's specification that no other script here has: python test_cases.py [--binary B]"""
import json
import os
import socket
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Checks, Server, arguments, data_url, drawing, stream_text  # noqa: E402

check = Checks()
CHAT = "/v1/chat/completions"


def chat(content="Hello", **fields):
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 40, "temperature": 0, **fields}


def test_emoji(s):
    """A character whose bytes are several tokens: whole in every chunk, its bytes in the log-probs."""
    body = chat(structured_outputs={"regex": "\U0001f600\U0001f9ea{2}\u20ac"}, logprobs=True)
    want = "\U0001f600\U0001f9ea\U0001f9ea\u20ac"
    choice = s.ok(CHAT, body)["choices"][0]
    check.equal("the text", choice["message"]["content"], want)
    entries = [bytes(e["bytes"] or []) for e in choice["logprobs"]["content"]]
    check.equal("the bytes", b"".join(entries).decode(), want)
    check.true("more tokens than characters", len(entries) > len(want) + 1, entries)
    chunks = s.stream(CHAT, body)
    check.equal("streamed", stream_text(chunks), want)
    deltas = json.dumps([c["choices"][0]["delta"] for c in chunks], ensure_ascii=False)
    check.true("no broken character", "\ufffd" not in deltas)


def test_line_separators(s):
    """Some clients take them for the end of a line."""
    for stream in (False, True):
        body = chat(structured_outputs={"choice": ["a\u2028b\u2029c\u0085d"]}, stream=stream)
        raw = s.request("POST", CHAT, body)[2]
        escaped, bare = (b"\\u2028", b"\\u2029", b"\\u0085"), (b"\xe2\x80\xa8", b"\xe2\x80\xa9", b"\xc2\x85")
        check.true(f"escaped, stream {stream}", all(e in raw for e in escaped), raw)
        check.true(f"never bare, stream {stream}", not any(b in raw for b in bare), raw)


def test_unknown_fields(s):
    """Clients of other servers send fields of theirs, also in messages and their parts."""
    text = {"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}
    image = {"type": "image_url", "image_url": {"url": data_url(drawing()), "x": 1}, "uuid": None}
    body = chat([text, image])
    body["messages"][0]["annotations"] = None
    check.equal("in parts", s.request("POST", CHAT, body)[0], 200)


def test_head(s):
    for path in ("/v1/models", "/health"):
        status, head, body = s.request("HEAD", path)
        whole = s.request("GET", path)[2]
        check.equal("HEAD " + path, (status, body, head["content-length"]), (200, b"", str(len(whole))))


def test_large_body(s):
    """2 MiB that are announced: the go-ahead comes at once."""
    body = json.dumps(chat(pad="x" * (2 << 20))).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
    with socket.create_connection((s.host, s.port), timeout=120) as c:
        began = time.monotonic()
        c.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
        check.true("100 Continue", c.recv(100).startswith(b"HTTP/1.1 100 "), time.monotonic() - began)
        c.sendall(body)
        check.true("200", c.recv(100).startswith(b"HTTP/1.1 200 "))


def test_request_id(s):
    for value in (b"bad\tid", b"\"quoted\"", b"a" * 500, b"\xc3\xa4"):
        head = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Request-Id: "
        raw = s.raw(head + value + b"\r\n\r\n")
        check.true(f"{value[:20]} is replaced", b"200" in raw[:20] and value + b"\r\n" not in raw, raw)


def test_coding(s):
    raw = s.raw(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Transfer-Encoding: xchunked\r\n\r\n{}")
    check.true("an unknown coding", raw.split(b" ")[1] == b"501" and b"Connection: close" in raw, raw)


if __name__ == "__main__":
    args = arguments(__doc__)
    server = Server(args.binary, args.model)
    for test in (test_emoji, test_line_separators, test_unknown_fields, test_head, test_large_body,
                 test_request_id, test_coding):
        if not args.only or test.__name__ in args.only:
            check.run(test, server)
    check.run(server.stop)
    check.end()
