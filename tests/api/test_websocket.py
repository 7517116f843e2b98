"""WebSocket mode of /v1/responses, and compaction:
python test_websocket.py [--binary B] [--demo DIR]"""

import base64
import hashlib
import json
import os
import socket
import struct
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import ENDLESS, Checks, Server, arguments, endless, wait_until  # noqa: E402

check = Checks()
RESPONSES = "/v1/responses"
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")
KEY = base64.b64encode(b"0123456789abcdef").decode()
OPENING = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
           "Sec-WebSocket-Key": KEY}


def frame_of(opcode, data=b"", fin=True, masked=True):
    n, mask = len(data), b"\x11\x22\x33\x44"
    size = bytes([n]) if n < 126 else struct.pack(">BH", 126, n) if n < 65536 else struct.pack(">BQ", 127, n)
    size = bytes([size[0] | 128 * masked]) + size[1:]
    if masked:
        whole = int.from_bytes(data, "big") ^ int.from_bytes((mask * (n // 4 + 1))[:n], "big")
        data = mask + whole.to_bytes(n, "big")
    return bytes([opcode | 128 * fin]) + size + data


class Socket:
    """A client that can also send what no library would."""

    def __init__(self, s, headers=None, path=RESPONSES, more=b""):
        self.socket = socket.create_connection((s.host, s.port), timeout=20)
        lines = {"Host": f"{s.host}:{s.port}", **OPENING, **(headers or {})}
        head = f"GET {path} HTTP/1.1\r\n" + "".join(
            f"{k}: {v}\r\n" for k, v in lines.items() if v is not None
        )
        self.socket.sendall(head.encode() + b"\r\n" + more)
        self.file = self.socket.makefile("rb")
        self.status = int(self.file.readline().split()[1])
        self.headers = {}
        while (line := self.file.readline().strip().decode()) != "":
            name, _, value = line.partition(": ")
            self.headers[name.lower()] = value

    def frame(self, opcode, data=b"", fin=True, masked=True):
        self.socket.sendall(frame_of(opcode, data, fin, masked))

    def read(self):
        """-> (opcode, data) of a message or a control frame; (None, b"") at the end."""
        message, kind = b"", None
        while True:
            head = self.file.read(2)
            if len(head) < 2:
                return None, b""
            n = head[1] & 127
            assert not head[1] & 128, "the server masks"
            n = struct.unpack(">H", self.file.read(2))[0] if n == 126 else n
            n = struct.unpack(">Q", self.file.read(8))[0] if n == 127 else n
            data, opcode = self.file.read(n), head[0] & 15
            if opcode >= 8:
                return opcode, data
            message, kind = message + data, kind or opcode
            if head[0] & 128:
                return kind, message

    def send(self, event):
        self.frame(TEXT, (event if isinstance(event, str) else json.dumps(event)).encode())

    def events(self):
        """Those of one response."""
        out = []
        while not out or out[-1]["type"] not in ENDS:
            opcode, data = self.read()
            assert opcode == TEXT, (opcode, data)
            out.append(json.loads(data))
        return out

    def turn(self, asked="Hello", **fields):
        self.send(
            {"type": "response.create", "input": asked, "max_output_tokens": 40, "temperature": 0, **fields}
        )
        return self.events()

    def closed(self):
        """The code of the close frame that comes next."""
        opcode, data = self.read()
        return struct.unpack(">H", data[:2])[0] if opcode == CLOSE and len(data) >= 2 else opcode

    def close(self):
        self.file.close()
        self.socket.close()


def last(events):
    return events[-1].get("response") or events[-1]


def error_of(events):
    e = events[-1]
    return (e["type"], e.get("status"), e["error"]["code"], e["error"]["param"]) if "error" in e else e


def plain(events):
    """Without what differs between two equal requests."""

    def strip(v):
        if isinstance(v, dict):
            return {
                k: strip(x)
                for k, x in v.items()
                if k not in ("id", "item_id", "created_at", "completed_at", "usage")
            }
        return [strip(x) for x in v] if isinstance(v, list) else v

    return strip(events)


def test_opening(s):
    w = Socket(s)
    accept = base64.b64encode(
        hashlib.sha1((KEY + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
    ).decode()
    check.equal("switched", (w.status, w.headers["upgrade"].lower(), w.headers["sec-websocket-accept"]),
                (101, "websocket", accept))
    w.close()
    w = Socket(s, more=frame_of(TEXT, b'{"type":"response.create","input":"Hello","max_output_tokens":5}'))
    check.equal("a message with the request", (w.status, last(w.events())["object"]), (101, "response"))
    w.close()
    for what, headers, status in (("no upgrade", {"Upgrade": None, "Connection": None}, 426),
                                  ("another protocol", {"Upgrade": "h2c"}, 426),
                                  ("another version", {"Sec-WebSocket-Version": "8"}, 426),
                                  ("a short key", {"Sec-WebSocket-Key": "YWJj"}, 426),
                                  ("a foreign page", {"Origin": "https://evil.example"}, 403),
                                  ("its own page", {"Origin": f"http://{s.host}:{s.port}"}, 101)):
        w = Socket(s, headers)
        check.equal(what, w.status, status)
        w.close()
    w = Socket(s, {"Upgrade": None, "Connection": None})
    check.equal("the header of a 426", w.headers["upgrade"], "websocket")
    check.equal("its connection goes on", s.request("GET", "/health")[0], 200)
    w = Socket(s, path="/responses")
    check.equal("without /v1", (w.status, last(w.turn())["status"]), (101, "completed"))
    w.close()


def test_turns(s):
    w = Socket(s)
    body = {"input": "Hello", "max_output_tokens": 40, "temperature": 0}
    status, _, data = s.request("POST", RESPONSES, {**body, "stream": True})
    same = [json.loads(e.partition("\ndata: ")[2]) for e in data.decode().split("\n\n")[:-1]]
    check.equal("the events are those of a stream", plain(w.turn()), plain(same))
    first = w.turn(store=False)
    check.equal("store", last(first)["store"], False)
    name = last(first)["id"]
    second = last(w.turn("And then?", previous_response_id=name, store=False))
    whole = [{"role": "user", "content": "Hello"}, *last(first)["output"],
             {"role": "user", "content": "And then?"}]
    check.equal("continued", plain(second["output"]), plain(last(w.turn(whole))["output"]))
    check.true(
        "from the cache", second["usage"]["input_tokens_details"]["cached_tokens"] > 10, second["usage"]
    )
    check.equal("not for others", s.request("GET", f"{RESPONSES}/{name}")[0], 404)
    check.equal("nor for requests", s.post(RESPONSES, {**body, "previous_response_id": name})[0], 400)
    kept = last(w.turn())["id"]
    check.equal("stored", s.request("GET", f"{RESPONSES}/{kept}")[0], 200)
    other = Socket(s)
    lost = ("error", 400, "previous_response_not_found", "previous_response_id")
    check.equal("not on another connection", error_of(other.turn(previous_response_id=name)), lost)
    check.equal(
        "but a stored one is", last(other.turn("Go on", previous_response_id=kept))["status"], "completed"
    )
    check.equal("only the latest is kept", error_of(w.turn("x", previous_response_id=name)), lost)
    orphan = [{"type": "function_call_output", "call_id": "call_none", "output": "1"}]
    name = last(w.turn(store=False))["id"]
    failed = error_of(w.turn(orphan, previous_response_id=name, store=False))
    check.equal("a result of no call", failed, ("error", 400, "invalid_value", "input[0].call_id"))
    check.equal("a failed turn is forgotten", error_of(w.turn("x", previous_response_id=name)), lost)
    failed = error_of(other.turn(5, previous_response_id=kept))
    check.equal("a stored one is not", (failed[2], s.request("GET", f"{RESPONSES}/{kept}")[0]),
                ("invalid_type", 200))
    w.close()
    other.close()


def test_warm_up(s):
    w = Socket(s)
    says = [{"role": "user", "content": "One two three four five six."},
            {"role": "assistant", "content": "Yes."}]
    events = w.turn(says, generate=False, store=False)
    check.equal("its events", [e["type"] for e in events],
                ["response.created", "response.in_progress", "response.completed"])
    check.equal("no output", (last(events)["output"], last(events)["status"]), ([], "completed"))
    after = last(w.turn("Go on", previous_response_id=last(events)["id"], store=False))
    check.true("prepared", after["usage"]["input_tokens_details"]["cached_tokens"] > 12, after["usage"])
    check.equal("the same answer", plain(after["output"]),
                plain(last(w.turn([*says, {"role": "user", "content": "Go on"}]))["output"]))
    got = s.ok(RESPONSES, {"input": "Hello", "generate": False})
    check.equal("as a request", (got["output"], got["status"]), ([], "completed"))
    w.close()


def test_faults(s):
    w = Socket(s)
    for event, want in (
        ({"type": "response.cancel"}, ("error", 400, "invalid_value", "type")),
        ({"input": "Hello"}, ("error", 400, "invalid_value", "type")),
        ({"type": "response.create", "stream_id": "a", "input": "Hello"},
         ("error", 400, "unsupported_parameter", "stream_id")),
        ({"type": "response.create", "input": 5}, ("error", 400, "invalid_type", "input")),
        ({"type": "response.create", "input": "x", "model": "other"},
         ("error", 404, "model_not_found", "model")),
        ("nonsense", ("error", 400, "invalid_json", None)),
        ("", ("error", 400, "invalid_json", None)),
        ("[]", ("error", 400, "invalid_json", None)),
    ):
        w.send(event)
        check.equal(f"{event}", error_of(w.events()), want)
    check.equal("after all of these", last(w.turn())["status"], "completed")
    w.close()
    for what, send, code in (
        ("binary", lambda x: x.frame(BINARY, b"{}"), 1003),
        ("no UTF-8", lambda x: x.frame(TEXT, b"\xff\xfe"), 1007),
        ("unmasked", lambda x: x.frame(TEXT, b"{}", masked=False), 1002),
        ("an unknown opcode", lambda x: x.frame(3, b""), 1002),
        ("too long", lambda x: x.socket.sendall(b"\x81\xff" + struct.pack(">Q", 1 << 40) + b"abcd" + b"x"),
         1009),
        ("the client's own close", lambda x: x.frame(CLOSE, struct.pack(">H", 1000)), 1000),
    ):
        w = Socket(s)
        send(w)
        check.equal(what, w.closed(), code)
        check.equal(f"{what}: the end", w.file.read(), b"")
        w.close()
    check.true(
        "no request is left", wait_until(lambda: json.loads(s.request("GET", "/load")[2])["server_load"] == 0)
    )


def test_frames(s):
    w = Socket(s)
    text = json.dumps(
        {"type": "response.create", "input": "Hello", "max_output_tokens": 40, "temperature": 0}
    ).encode()
    w.frame(TEXT, text[:10], fin=False)
    w.frame(PING, b"in between")
    check.equal("a ping within a message", w.read(), (PONG, b"in between"))
    w.frame(0, text[10:30], fin=False)
    w.frame(0, text[30:])
    got = w.events()
    check.equal("a message in parts", plain(got), plain(w.turn()))
    for n in range(3):
        w.send(
            {"type": "response.create", "input": f"Hello {n}", "max_output_tokens": 4 + n,
             "metadata": {"n": str(n)}}
        )
    check.equal("one after the other", [last(w.events())["metadata"]["n"] for _ in range(3)], ["0", "1", "2"])
    long = last(w.turn("word " * 900, max_output_tokens=16))
    check.true("a long message", long["usage"]["input_tokens"] > 900, long)
    big = last(w.turn(metadata={f"k{i}": "v" * 500 for i in range(16)}))
    check.equal("a long event", len(big["metadata"]), 16)
    w.close()


def test_parts(binary, demo):
    """Each part costs memory besides its bytes: a message of very many is refused."""
    s = Server(binary, demo, "--max-body-bytes", "64K")
    try:
        w = Socket(s)
        part = frame_of(0, b" ", fin=False)
        w.socket.sendall(frame_of(TEXT, b"{", fin=False) + part * 1000 + frame_of(0, b"}"))
        check.equal("1,000 parts", error_of(w.events())[3], "type")
        w.socket.sendall(frame_of(TEXT, b"{", fin=False) + part * 1100)
        check.equal("1,100 parts", w.read(), (CLOSE, struct.pack(">H", 1009)))
    finally:
        s.stop()


def test_running(binary, demo):
    """Of a response without end."""
    s = Server(binary, endless(demo))
    w = Socket(s)
    w.send({"type": "response.create", "input": "Hello", "max_output_tokens": ENDLESS, "ignore_eos": True})
    w.frame(PING, b"alive?")
    opcode = TEXT
    while opcode == TEXT:
        opcode, data = w.read()
    check.equal("a ping is answered", (opcode, data), (PONG, b"alive?"))
    check.true("it runs", wait_until(lambda: s.held()[1] == 1))
    w.frame(CLOSE, struct.pack(">H", 1001))
    check.true("a close ends it", wait_until(lambda: s.held()[1] == 0))
    w.close()
    w = Socket(s)
    w.send({"type": "response.create", "input": "Hello", "max_output_tokens": ENDLESS, "ignore_eos": True})
    check.true("another runs", wait_until(lambda: s.held()[1] == 1))
    w.close()
    check.true("so does the end of the connection", wait_until(lambda: s.held()[1] == 0))
    idle = Socket(s)
    s.stop()
    check.equal("the server's end", idle.closed(), 1001)
    idle.close()


def test_keys(binary, demo):
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "keys"), "w") as f:
            f.write("one\n")
        s = Server(binary, demo, "--api-key-file", f.name)
        for headers, status in (({}, 401), ({"Authorization": "Bearer two"}, 401),
                                ({"Authorization": "Bearer one"}, 101), ({"x-api-key": "one"}, 101)):
            w = Socket(s, headers)
            check.equal(f"{headers}", w.status, status)
            if status == 101:
                check.equal(f"{headers}: a turn", last(w.turn())["status"], "completed")
            w.close()
        s.stop()


def test_compact(s):
    def user(text):
        return {"type": "message", "role": "user", "content": text}

    model = json.loads(s.request("GET", "/v1/models")[2])["data"][0]["id"]
    path = RESPONSES + "/compact"
    said = [user("Hello"), {"type": "message", "role": "assistant", "content": "A red circle."}]
    status, answer = s.post(path, {"input": said})
    check.equal("no model", (status, answer["error"]["param"]), (400, "model"))
    rules = {"type": "message", "role": "developer", "content": "Be brief."}
    body = {"model": model, "input": [rules, *said], "prompt_cache_key": "k", "text": {"verbosity": "low"}}
    got = s.ok(path, body)
    check.equal("object", (got["object"], got["id"][:5]), ("response.compaction", "resp_"))
    check.equal("items", [i["type"] for i in got["output"]], ["message", "compaction"])
    check.equal(
        "instructions stay", got["output"][0]["content"], [{"type": "input_text", "text": "Be brief."}]
    )
    check.true("usage", got["usage"]["output_tokens"] > 0 and got["usage"]["total_tokens"] > 20, got["usage"])
    sealed = got["output"][1]["encrypted_content"]
    check.equal("the same again", s.ok(path, body)["output"][1]["encrypted_content"], sealed)
    asked = {"model": model, "max_output_tokens": 40, "temperature": 0}
    after = s.ok(RESPONSES, {**asked, "input": [*got["output"], user("Go on")]})
    count = s.ok(RESPONSES + "/input_tokens", {"input": [rules, user("Go on")]})["input_tokens"]
    check.true("the summary is in the prompt", after["usage"]["input_tokens"] > count + len(sealed) // 8,
               after["usage"])
    w = Socket(s)
    over = last(w.turn([*got["output"], user("Go on")], store=False))
    check.equal("over a WebSocket", plain(over["output"]), plain(after["output"]))
    w.close()
    first = s.ok(RESPONSES, {**asked, "input": [rules, *said, user("And?")]})
    chain = s.ok(path, {"model": model, "previous_response_id": first["id"]})
    check.equal("of a chain", [i.get("role") for i in chain["output"]], ["developer", None])
    ends = s.ok(path, {"model": model, "input": [*said, user("And?")]})
    check.equal("the user has the last word", ends["output"][0]["type"], "compaction")
    foreign = {"type": "compaction", "encrypted_content": "gAAAAABpM0Yj"}
    status, answer = s.post(RESPONSES, {"input": [foreign, user("Go on")]})
    check.equal("of another server", (status, answer["error"]["param"]), (400, "input[0].encrypted_content"))


def run(args):
    s = Server(args.binary, args.demo)
    tests = ((test_opening, s), (test_turns, s), (test_warm_up, s), (test_faults, s), (test_frames, s),
             (test_compact, s), (test_parts, args.binary, args.demo), (test_running, args.binary, args.demo),
             (test_keys, args.binary, args.demo))
    for function, *given in tests:
        if not args.only or function.__name__[5:] in args.only:
            check.run(function, *given)
    check.run(s.stop)


if __name__ == "__main__":
    run(arguments(__doc__))
    check.end()
