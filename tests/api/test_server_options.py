"""Flags of the HTTP side: several addresses, a UNIX socket, a path prefix, a default for max_tokens, usage in
every stream: python test_server_options.py [--binary B] [--demo DIR]"""
import http.client
import json
import os
import socket
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Checks, Server, arguments  # noqa: E402

check = Checks()
CHAT = "/v1/chat/completions"


def chat(**fields):
    return {"messages": [{"role": "user", "content": "Hello there"}], "temperature": 0, **fields}


def over_unix(path, method, target, body=None):
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(path)
    headers = {"Content-Type": "application/json"} if body else {}
    connection.request(method, target, json.dumps(body) if body else None, headers)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, data


def test_addresses(binary, demo):
    with tempfile.TemporaryDirectory() as top:
        path = os.path.join(top, "kvasir.sock")
        left = socket.socket(socket.AF_UNIX)
        left.bind(path)
        left.close()  # what a killed server leaves
        s = Server(binary, demo, "--host", f"127.0.0.1,127.0.0.2,unix:{path}", "--allowed-hosts", "auto")
        want = s.ok(CHAT, chat(max_tokens=5))["choices"]
        s.host = "127.0.0.2"
        check.equal("the second address", s.ok(CHAT, chat(max_tokens=5))["choices"], want)
        s.host = "127.0.0.1"
        status, data = over_unix(path, "POST", CHAT, chat(max_tokens=5))
        check.equal("the socket", (status, json.loads(data)["choices"]), (200, want))
        status, data = over_unix(path, "POST", CHAT, chat(max_tokens=5, stream=True))
        check.true("a stream over it", status == 200 and data.endswith(b"data: [DONE]\n\n"), data[-200:])
        s.stop()
        check.true("the socket's file is removed", not os.path.exists(path))
        s = Server(binary, demo, "--host", f"unix:{path}", wait=False)
        check.equal("a socket alone", s.process.stdout.readline(), f"kvasir: listening on unix:{path}\n")
        check.equal("it answers", over_unix(path, "GET", "/v1/models")[0], 200)
        s.stop()
        with open(path, "w", encoding="utf-8") as f:
            f.write("a user's file")
        s = Server(binary, demo, "--host", f"unix:{path}", wait=False)
        s.stop(expect=1, send=False)
        with open(path, encoding="utf-8") as f:
            check.equal("a file that is no socket stays", f.read(), "a user's file")
        if os.path.exists("/proc/net/if_inet6"):
            for hosts in ("0.0.0.0,::", "::,127.0.0.1"):
                s = Server(binary, demo, "--host", hosts)
                check.equal(f"{hosts}: IPv4", s.request("GET", "/health")[0], 200)
                s.host = "::1"
                check.equal(f"{hosts}: IPv6", s.request("GET", "/health")[0], 200)
                s.stop()
        many = ",".join(f"127.0.0.{i}" for i in range(1, 10))
        for hosts in ("unix:", f"unix:{top}/no/such.sock", "unix:" + "x" * 200, many):
            s = Server(binary, demo, "--host", hosts, wait=False)
            s.stop(expect=2 if hosts == many else 1, send=False)


def test_root_path(binary, demo):
    s = Server(binary, demo, "--root-path", "/llm/a")
    for path in ("/v1/models", "/llm/a/v1/models", "/llm/a/health", "/llm/a/", "/llm/a"):
        check.equal(path, s.request("GET", path)[0], 200)
    for path in ("/llm/v1/models", "/llm/ab/v1/models", "/llm/a/llm/a/v1/models"):
        check.equal(path, s.request("GET", path)[0], 404)
    check.equal("a chat", len(s.ok("/llm/a" + CHAT, chat(max_tokens=3))["choices"]), 1)
    status, answer = s.post("/llm/a/v1/messages", {})
    check.equal("Anthropic's errors", (status, answer["type"]), (400, "error"))
    s.stop()
    s = Server(binary, demo, "--root-path", "llm/")
    for path in ("/v1/models", "/llm/v1/models", "/llm", "//llm//v1/models/"):
        check.equal(f"llm/: {path}", s.request("GET", path)[0], 200)
    s.stop()


def test_defaults(binary, demo):
    s = Server(binary, demo, "--default-max-tokens", "3", "--always-include-usage", "on")
    check.equal("a chat", s.ok(CHAT, chat(ignore_eos=True))["usage"]["completion_tokens"], 3)
    check.equal("its own", s.ok(CHAT, chat(max_tokens=5, ignore_eos=True))["usage"]["completion_tokens"], 5)
    whole = s.ok("/v1/responses", {"input": "Hello there", "ignore_eos": True})
    check.equal("a response", (whole["status"], whole["usage"]["output_tokens"]), ("incomplete", 3))
    last = s.stream(CHAT, chat())[-1]
    check.true("usage", last["choices"] == [] and last["usage"]["completion_tokens"] > 0, last)
    asked = chat(stream_options={"include_usage": False})
    check.true("also against the request", s.stream(CHAT, asked)[-1]["usage"], asked)
    s.stop()
    s = Server(binary, demo.rstrip("/") + "/", "--default-max-tokens", "1000000", "--max-context", "64")
    name = json.loads(s.request("GET", "/v1/models")[2])["data"][0]["id"]
    check.equal("named without the slash at the path's end", name, os.path.basename(demo.rstrip("/")))
    check.equal("capped to the context", s.ok(CHAT, chat(ignore_eos=True))["usage"]["total_tokens"], 64)
    s.stop()


if __name__ == "__main__":
    args = arguments(__doc__)
    for test in (test_addresses, test_root_path, test_defaults):
        if not args.only or test.__name__ in args.only:
            check.run(test, args.binary, args.demo)
    check.end()
