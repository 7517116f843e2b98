"""Limits that docs/http.md lists, at and above each: python test_limits.py [--binary B] [--demo DIR]"""
import base64
import json
import os
import struct
import sys
import threading
import time
import zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Checks, Server, arguments  # noqa: E402

check = Checks()
CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"


def user(content):
    return [{"role": "user", "content": content}]


def test_counts(s):
    words = [chr(97 + i) * 9 for i in range(17)]
    rows = (("n", 3, 129), ("stop", words[:16], words), ("stop", "x" * 1024, "x" * 1025), ("stop", "x", ""),
            ("stop_token_ids", list(range(300, 348)), list(range(300, 349))),
            ("logit_bias", {str(i): 0 for i in range(800)}, {str(i): 0 for i in range(1025)}),
            ("top_logprobs", 20, 21), ("cache_salt", "x" * 1024, "x" * 1025), ("cache_salt", "x", ""),
            ("guided_regex", "a?" + "b" * 16382, "a?" + "b" * 16383),
            ("guided_grammar", 'root ::= "a" #'.ljust(256 << 10, "x"),
             'root ::= "a" #'.ljust((256 << 10) + 1, "x")))
    for field, most, over in rows:
        body = {"messages": user("Hello"), "max_tokens": 2, "logprobs": field == "top_logprobs"}
        got = s.post(CHAT, {**body, field: most})
        check.true(f"{field} within its limit", got[0] == 200, got)
        got = s.post(CHAT, {**body, field: over})
        check.equal(f"{field} above it", (got[0], got[1]["error"].get("param")), (400, field))
    for count, n, want in ((2048, 2, 200), (2049, 1, 400), (2048, 3, 400)):
        got = s.post(TEXT, {"prompt": ["a"] * count, "n": n, "max_tokens": 1})
        check.equal(f"{count} prompts, n {n}", got[0], want)
    for depth, want in ((127, 200), (128, 400)):  # and the body's own object
        body = json.dumps({"messages": user("Hello"), "max_tokens": 1, "unknown": 0})
        got = s.request("POST", CHAT, body.replace(": 0", ": " + "[" * depth + "]" * depth).encode())
        check.equal(f"depth {depth + 1}", got[0], want)


def test_names(s):
    for path in ("/model_info", "/server_info"):
        a, b = (json.loads(s.request("GET", p)[2]) for p in (path, path.replace("/", "/get_")))
        check.equal("also with get_", sorted(a), sorted(b))
    body = {"messages": user("Hello"), "max_tokens": 4, "temperature": 0}
    kinds = ({"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}, {"type": "between_tools"})
    counts = [s.ok(MESSAGES + "/count_tokens", {**body, "thinking": kind}) for kind in kinds]
    check.equal("kinds of thinking", counts, counts[:1] * 3)
    schema = {"type": "object", "properties": {"a": {"enum": [1]}, "b": {"type": "array", "minItems": 2,
              "maxItems": 2, "items": {"const": 5}}}, "required": ["a", "b"], "additionalProperties": False}
    got = s.ok(CHAT, {**body, "max_tokens": 60, "structured_outputs": {
        "json": schema, "disable_any_whitespace": True}})
    text = got["choices"][0]["message"]["content"]
    check.equal("no choice of white space", text, '{"a": 1, "b": [5, 5]}')


def test_tokens(s):
    """Of all prompts of a request, and of vectors: refused before anything is computed."""
    doc = "a " * 2049
    got = s.post("/v1/embeddings", {"input": [doc] * 2048})
    check.equal("tokens of a request", (got[0], got[1]["error"].get("param")), (400, "input"))
    check.true("its limit", "4194304 tokens" in got[1]["error"]["message"], got[1])
    got = s.post("/pooling", {"input": [doc] * 256, "task": "token_embed"})
    check.equal("vectors of a request", (got[0], got[1]["error"].get("param")), (400, "input"))
    check.true("their limit", "512 MiB" in got[1]["error"]["message"], got[1])


def plain(side, shade):
    """A PNG of one grey."""
    def part(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = zlib.compress((b"\0" + bytes([shade]) * side) * side, 1)
    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    whole = b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", rows) + part(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(whole).decode()


def test_turns(binary, demo):
    """The only worker takes turns: a request of many images makes no other wait for all of them."""
    images = [{"image": plain(3000, shade)} for shade in range(60)]
    s = Server(binary, demo, env={"UV_THREADPOOL_SIZE": "1"})
    ended = []

    def many():
        got = s.post("/v1/embeddings", {"input": images + [{"image": "data:image/png;base64,AAAA"}]})
        ended.append((got[0], got[1]["error"]["param"]))
    thread = threading.Thread(target=many)
    thread.start()
    while not json.loads(s.request("GET", "/load")[2])["server_load"]:  # its job is the first
        time.sleep(0.001)
    early = 0
    while not ended:
        s.ok("/tokenize", {"prompt": "a"})
        early += not ended
    thread.join()
    s.stop()
    check.equal("the last image is none", ended, [(400, "input[60].image[0].image")])
    check.true(f"{early} others are served before that is noticed", early > 4)


if __name__ == "__main__":
    args = arguments(__doc__)
    server = Server(args.binary, args.demo, "--max-queue", "20", "--max-sequences", "64")
    for test in (test_counts, test_names, test_tokens):
        if not args.only or test.__name__ in args.only:
            check.run(test, server)
    server.stop()
    if not args.only or "test_turns" in args.only:
        check.run(test_turns, args.binary, args.demo)
    check.end()
