"""Cost limits of a request's body, and the errors: python3 test_bodies.py [--binary B] [--every K] [test ...]
A failed allocation is the server's fault (503) and never gives another prompt; memory and time of any body
are bounded."""

import base64
import json
import mmap
import os
import resource
import struct
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Checks, Server, arguments, data_url, drawing  # noqa: E402
from test_websocket import PING, PONG, Socket, frame_of  # noqa: E402

check = Checks()
CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
RESPONSES = "/v1/responses"
HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(os.path.dirname(HERE), "golden")


def file(name):
    with open(os.path.join(GOLDEN, "images", name), "rb") as f:
        return f.read()


def chat(*parts, **fields):
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "red?"}, *parts]}],
            "max_tokens": 1, "temperature": 0, **fields}


def image(data):
    return {"type": "image_url", "image_url": {"url": data_url(data)}}


class Starved:
    """A server whose workers can be denied memory: nomem.c."""

    def __init__(self, model, *flags):
        self.folder = tempfile.TemporaryDirectory()
        library, control = os.path.join(self.folder.name, "nomem.so"), os.path.join(
            self.folder.name, "control"
        )
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O1", "-o", library, os.path.join(HERE, "nomem.c"), "-ldl"],
            check=True,
        )
        with open(control, "wb") as f:
            f.write(struct.pack("llll", 0, -1, 0, 0))
        with open(control, "r+b") as f:
            self.control = mmap.mmap(f.fileno(), 0)
        self.server = Server(args.binary, model, *flags,
                             env={"LD_PRELOAD": library, "NOMEM": control, "UV_THREADPOOL_SIZE": "1"})

    def failed(self):
        return struct.unpack("llll", self.control)[3]

    def post(self, path, body, left=-1, forever=0):
        self.control[:] = struct.pack("llll", 1, left, forever, 0)
        status, answer = self.server.post(path, body)
        failed, self.control[:] = self.failed(), struct.pack("llll", 1, -1, 0, 0)
        return status, answer, failed


def sense(answer):
    """Of an answer what must not depend on luck."""
    luck = ("id", "created", "created_at", "completed_at", "model", "cache_info", "timings", "store")
    return {k: [sense(i) for i in v] if k == "output" else v for k, v in answer.items() if k not in luck}


def sweep(s, name, path, body):
    s.post(path, body)
    status, whole, _ = s.post(path, body)
    want, bad, n, counts = sense(whole), [], 0, {200: 0, 503: 0}
    if not check.equal(f"{name}: with memory", (status, whole.get("error")), (200, None)):
        return
    for forever in (0, 1):
        n, failed = 0, 1
        while failed and len(bad) < 5:
            status, answer, failed = s.post(path, body, n, forever)
            fine = (
                status == 200
                and sense(answer) == want
                or status == 503
                and answer["error"].get("code", "out_of_memory") == "out_of_memory"
                and answer["error"]["type"] in ("server_error", "overloaded_error")
            )
            counts[status] = counts.get(status, 0) + 1
            if not fine:
                bad.append((n, forever, status, answer.get("error", "another answer")))
            n += args.every if forever else 1
    check.true(f"{name}: {n} allocations fail, one by one and all behind", not bad and n > 20, bad)
    print(f"{name}: {n} allocations, {counts}")


TOOL = {
    "type": "function",
    "function": {"name": "f",
                 "parameters": {"type": "object", "properties": {"a": {"type": ["integer", "string"]}}}},
}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "1", "type": "function",
         "function": {"name": "f", "arguments": '{"a": 123456789012345678901234567890}'}}
    ],
}
REQUESTS = {
    "text": (
        TEXT,
        {"prompt": ["red", [5, 6]], "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1,
         "stop": ["zz"], "stop_token_ids": [3], "logit_bias": {"5": 1}, "return_token_ids": True,
         "x": 123456789012345678901234567890, "user": "\ud800"},
    ),
    "tokenize": ("/tokenize", {"prompt": "red \ud800 green " * 50, "return_token_strs": True}),
    "tokenize chat": ("/tokenize", {"messages": [{"role": "user", "content": "red"}]}),
    "detokenize": ("/detokenize", {"tokens": [5, 6, 7] * 100}),
    "chat": (
        CHAT,
        chat(return_token_ids=True, return_cache_info=True, seed=1, n=2,
             metadata={"a": [1, {}, None, 1.5, "x"]}),
    ),
    "reasoning": (
        CHAT,
        {
            "messages": [
                {"role": "system", "content": "S"},
                {"role": "user", "content": "red"},
                {"role": "assistant",
                 "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "yes"}]},
            ],
            "max_tokens": 1,
            "temperature": 0,
            "return_token_ids": True,
            "continue_final_message": True,
            "echo": True,
            "reasoning_effort": "low",
            "chat_template_kwargs": {"x": 1},
        },
    ),
}
BLOCKS = {"max_tokens": 1, "temperature": 0, "stop_sequences": ["zz"], "metadata": {"user_id": "u"},
          "output_config": {"effort": "low"}, "thinking": {"type": "enabled", "budget_tokens": 5},
          "system": [{"type": "text", "text": "S"}, {"type": "text", "text": "T"}]}
REQUESTS["messages"] = (
    MESSAGES,
    {
        **BLOCKS,
        "messages": [
            {"role": "user", "content": "red"},
            {
                "role": "user",
                "content": [
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png",
                                   "data": base64.b64encode(drawing()).decode()},
                    }
                ],
            },
        ],
    },
)
REQUESTS["count_tokens"] = (MESSAGES + "/count_tokens", REQUESTS["messages"][1])
CALLED = [
    {"role": "user", "content": "red"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "h", "signature": ""},
            {"type": "thinking", "thinking": "m", "signature": ""},
            {"type": "text", "text": "yes"},
            {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 123456789012345678901234567890}},
        ],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "[1]"}]},
                    {"type": "tool_result", "tool_use_id": "1", "is_error": True}],
    },
]
ITEMS = [
    {"role": "user", "content": "red"},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"role": "assistant",
     "content": [{"type": "output_text", "text": "y"}, {"type": "refusal", "refusal": "n"}]},
    {"type": "function_call", "call_id": "1", "name": "f",
     "arguments": '{"a": 123456789012345678901234567890}'},
    {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "[1]"}]},
    {"role": "user", "content": [{"type": "input_text", "text": "and?"}]},
]
ASKED = {"max_output_tokens": 1, "temperature": 0, "instructions": "S", "metadata": {"a": "b"},
         "reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}, "verbosity": "low"},
         "top_logprobs": 1, "stop": ["zz"]}
SEEN = [{"type": "input_image", "image_url": data_url(drawing())}, {"type": "input_text", "text": "red"}]
REQUESTS["responses"] = (RESPONSES, {**ASKED, "input": [{"role": "user", "content": SEEN}]})
REQUESTS["input_tokens"] = (RESPONSES + "/input_tokens", REQUESTS["responses"][1])
IMAGES = {
    "png": file("files/png_pal4_adam7.png"),
    "png with a packed text": file("files/png_raw_profile5.png"),
    "jpeg progressive": file("files/jpeg_420_33x21_prog.jpg"),
    "jpeg": file("files/jpeg_420_33x21.jpg"),
    "gif": file("videos/delta.gif"),
    "bmp": file("files/bmp_8.bmp"),
    "webp": file("videos/lossy.webp"),
}  # no lossless WebP: libwebp 1.2.4 crashes where a small table of such a file fails


def test_no_memory():
    """Whichever allocation of a worker fails: the answer is the same as ever, or 503."""
    s = Starved(args.demo, "--prefix-cache", "off")
    for name, (path, body) in REQUESTS.items():
        sweep(s, name, path, body)
    for name, data in IMAGES.items():
        sweep(s, name, CHAT, chat(image(data), return_token_ids=True))
    s.server.stop()
    s = Starved(os.path.join(GOLDEN, "qwen/qwen3_vl_video_f32"), "--prefix-cache", "off")
    tools = {
        "messages": [{"role": "user", "content": "red"}, CALL,
                     {"role": "tool", "tool_call_id": "1", "content": "[1]"}],
        "tools": [TOOL],
        "max_tokens": 1,
        "temperature": 0,
    }
    sweep(s, "tools", CHAT, {**tools, "return_token_ids": True})
    blocks = {**BLOCKS, "messages": CALLED,
              "tools": [{"name": "f", "description": "d", "input_schema": TOOL["function"]["parameters"]}],
              "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    sweep(s, "messages with tools", MESSAGES, blocks)
    function = {"type": "function", **TOOL["function"]}
    items = {**ASKED, "input": ITEMS, "tools": [function], "tool_choice": "auto"}
    sweep(s, "responses with tools", RESPONSES, items)
    first = s.post(RESPONSES, items)[1]["id"]
    sweep(s, "responses that follow", RESPONSES, {**ASKED, "input": "so?", "previous_response_id": first})
    for name in ("delta.gif", "lossy.webp"):
        sweep(
            s,
            "video " + name,
            CHAT,
            chat(
                {"type": "video_url",
                 "video_url": {"url": data_url(file("videos/" + name), "image/" + name[-4:].strip("."))}},
                return_token_ids=True,
            ),
        )
    sweep(s, "video of images", CHAT,
          chat({"type": "video", "video": [data_url(drawing())] * 2, "fps": 1}, return_token_ids=True))
    s.server.stop()


def test_no_room():
    """A body that the process has no memory for."""
    server = Server(args.binary, args.demo, *CPU, env={"UV_THREADPOOL_SIZE": "1"})
    server.ok(TEXT, {"prompt": "red", "max_tokens": 1})
    most = (megabytes(server, "VmSize") << 20) + (16 << 20)
    resource.prlimit(server.process.pid, resource.RLIMIT_AS, (most, most))
    for size in (1, 40, 1):
        status, _, answer = server.request("POST", TEXT, HEAD + b'"' + b"a" * (size << 20) + b'"}')
        want = (200, None) if size == 1 else (503, "out_of_memory")
        got = json.loads(answer)
        check.equal(f"{size} MB", (status, got["error"]["code"] if "error" in got else None), want)
    server.stop()


def megabytes(server, name):
    with open(f"/proc/{server.process.pid}/status") as f:
        return int(f.read().split(name + ":")[1].split()[0]) >> 10


def seconds(server):
    """Of all processors: what a slow or busy machine does not change much."""
    with open(f"/proc/{server.process.pid}/stat") as f:
        return sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def many(count, open, one, close):
    return open + b",".join([one] * count) + close


def scans(side, count):
    """A progressive JPEG of side x side pixels, by its header, whose last scan comes again and again."""
    data = file("files/jpeg_420_33x21_prog.jpg")
    frame, last = data.index(b"\xff\xc2"), data.rindex(b"\xff\xda")
    size = struct.pack(">HH", side, side) if side else data[frame + 5 : frame + 9]
    return data[: frame + 5] + size + data[frame + 9 : -2] + data[last:-2] * count + data[-2:]


HEAD = b'{"prompt":"red","max_tokens":1,"x":'
TURN = b'{"max_tokens":1,"messages":[{"role":"user","content":'
ASSISTANT = TURN + b'"x"},{"role":"assistant","content":'
REASONING = b'{"type":"reasoning","content":[{"type":"reasoning_text","text":"' + b"a" * 400 + b'"}]}'
THOUGHT = b'{"type":"thinking","signature":"","thinking":"' + b"a" * 400 + b'"}'
BIG = many(1_900_000, HEAD + b"[", b"{}", b"]}")
SCANS = json.dumps(chat(image(scans(5000, 400)))).encode()
CPU = ("--backend", "cpu")  # looking for a GPU loads libraries of 150 MB
COSTLY = {  # name: (path, body, status, most MB at the peak, most seconds)
    "ill-formed bytes": (TEXT, HEAD + b'"' + b"\xff" * (60 << 20) + b'"}', 400, 250, 2),
    "some ill-formed bytes": (TEXT, HEAD + b'"' + b"\xff" * 60_000 + b'"}', 200, 100, 2),
    "one long string": (TEXT, HEAD + b'"' + b"a" * (60 << 20) + b'"}', 200, 250, 3),
    "many values": (TEXT, BIG, 200, 600, 6),
    "many members": (TEXT, HEAD + b"{" + b",".join(b'"k%d":1' % i for i in range(1_300_000)) + b"}}", 400,
                     150, 2),
    "members": (TEXT, HEAD + b"{" + b",".join(b'"k%d":1' % i for i in range(65_000)) + b"}}", 200, 100, 2),
    "many blocks": (MESSAGES, many(990_000, TURN + b"[", b'{"type":"text","text":"x"}', b"]}]}"), 400, 600,
                    6),
    "many thoughts": (MESSAGES, many(60_000, ASSISTANT + b"[", THOUGHT, b"]}]}"), 400, 250, 2),
    "many items": (
        RESPONSES,
        many(990_000, b'{"max_output_tokens":1,"input":[', b'{"role":"user","content":"x"}', b"]}"),
        400,
        600,
        6,
    ),
    "much reasoning": (RESPONSES, many(30_000, b'{"max_output_tokens":1,"input":[', REASONING, b"]}"), 400,
                       250, 2),
    "many parts": (CHAT, many(990_000, TURN + b"[", b'{"text":"x"}', b"]}]}"), 400, 600, 6),
    "many calls": (
        CHAT,
        many(
            300_000, TURN + b'"x"},{"role":"assistant","tool_calls":[', b'{"function":{"name":"f"}}', b"]}]}"
        ),
        400,
        500,
        4,
    ),
    "many scans": (CHAT, SCANS, 400, 50, 1),
    "scans": (CHAT, json.dumps(chat(image(scans(0, 40)))).encode(), 200, 100, 2),
}


def test_cost():
    """Of one body, in memory and in time."""
    for name, (path, body, want, memory, time) in COSTLY.items():
        server = Server(args.binary, args.demo, *CPU)
        status, _, answer = server.request("POST", path, body)
        check.true(f"{name}: answer", status == want, (status, answer[:300]))
        peak, spent = megabytes(server, "VmHWM"), seconds(server)
        check.true(
            f"{name}: at most {memory} MB and {time} s", peak <= memory and spent <= time, (peak, spent)
        )
        print(f"{name}: {len(body) >> 20} MB, {peak} MB at the peak, {spent:.2f} s")
        server.stop()


def test_together():
    """Large bodies are read in turn, and small ones beside them; who leaves loses his turn."""
    server = Server(args.binary, args.demo, *CPU, env={"UV_THREADPOOL_SIZE": "4"})
    sent, done, counts = threading.Barrier(6), [], []

    def client(number):
        connection = server.connect()
        connection.request("POST", TEXT, BIG, {"Content-Type": "application/json"})
        sent.wait()
        if number % 4 == 3:
            return connection.close()
        check.equal("a large one", connection.getresponse().status, 200)
        done.append(number)

    threads = [threading.Thread(target=check.run, args=(client, i)) for i in range(5)]
    for t in threads:
        t.start()
    sent.wait()
    while len(done) < 2:
        counts.append(len(done))
        server.ok(TEXT, {"prompt": "red", "max_tokens": 1})
    check.true("small ones don't wait", len(counts) >= 3, counts)
    for t in threads:
        t.join()
    peak = megabytes(server, "VmHWM")
    check.true("one at a time", peak <= 700, peak)
    check.equal("all were answered", len(done), 4)
    print(f"five large bodies at once: {peak} MB at the peak, {len(counts)} small requests meanwhile")
    server.stop()


def test_idle_sockets():
    """More than the gigabyte of all connections together, of which idle ones hold nothing."""
    s = Server(args.binary, args.demo, *CPU)
    message = frame_of(1, b"x" * 60_000_000)  # a text
    sockets = [Socket(s) for _ in range(18)]
    for i, w in enumerate(sockets):
        w.socket.sendall(message)
        check.equal(f"message {i} is read", json.loads(w.read()[1])["status"], 400)
    sockets[0].frame(PING, b"open?")
    check.equal("the first is open", sockets[0].read(), (PONG, b"open?"))
    for w in sockets:
        w.close()
    s.stop()


def test_names():
    """Models' names, settings' names, and what is said about images."""
    s = Server(args.binary, args.demo, "--served-model-name", "first, other")
    for name, status in (("first", 200), ("other", 200), ("", 200), ("first, other", 404), ("\0", 404),
                         ("first\0", 404), ("first\0other", 404), ("firs", 404)):
        got, answer = s.post(TEXT, {"prompt": "red", "max_tokens": 1, "model": name})
        check.equal(f"model {name!r}", (got, answer.get("model") or answer["error"]["code"]),
                    (status, (name or "first") if status == 200 else "model_not_found"))
    check.equal("no model", s.ok(TEXT, {"prompt": "red", "max_tokens": 1})["model"], "first")
    check.equal(
        "listed", [m["id"] for m in json.loads(s.request("GET", "/v1/models")[2])["data"]], ["first", "other"]
    )
    check.equal(
        "each",
        [s.request("GET", "/v1/models/" + name)[0] for name in ("first", "other", "firs", "first%00other")],
        [200, 200, 404, 404],
    )
    s.stop()
    for env, command, want in (
        ({"KVASIR_PROT": "1"}, "serve", "unknown name 'KVASIR_PROT'"),
        ({}, "serv", "unknown command 'serv'"),
        (
            {"KVASIR_PORT": "tcp://10.0.0.1:80", "KVASIR_QWEN_PORT": "tcp://10.0.0.1:80",
             "KVASIR_QWEN_PORT_80_TCP": "x", "KVASIR_SERVICE_HOST": "x", "KVASIR_MAX_N": "x"},
            "serve",
            "max-n: 'x'",
        ),
    ):
        end = subprocess.run(
            [args.binary, command], env={**os.environ, **env}, stderr=subprocess.PIPE, text=True, timeout=60
        )
        check.true(f"{command} {env}", end.returncode and want in end.stderr, end.stderr)
    s = Server(args.binary, os.path.join(GOLDEN, "gemma3/text_f32"))
    status, answer = s.post(CHAT, chat(image(drawing())))
    check.equal("a text-only model",
                (status, answer["error"]["code"], "--mmproj" in answer["error"]["message"]),
                (400, "images_unsupported", True))
    s.stop()
    s = Server(args.binary, os.path.join(GOLDEN, "qwen/qwen3_vl_video_f32"))
    for url in ("http://x/y.mp4", "https://x/y.mp4", "file:///y.mp4", "x"):
        status, answer = s.post(CHAT, chat({"type": "video_url", "video_url": {"url": url}}))
        check.true(f"{url} is no image", status == 400 and "image" not in answer["error"]["message"], answer)
    s.stop()


args = arguments(__doc__, every=1)
for function in (test_no_memory, test_no_room, test_cost, test_together, test_idle_sockets, test_names):
    if not args.only or function.__name__ in args.only:
        check.run(function)
check.end()
