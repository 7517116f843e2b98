"""What one request's body may cost, and who is to blame: python3 test_bodies.py [--binary B] [test ...]
A failed allocation is the server's fault (503) and never gives another prompt; memory and time of any body are bounded."""
import base64
import json
import mmap
import os
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Checks, Server, arguments, data_url, picture  # noqa: E402

check = Checks()
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(os.path.dirname(HERE), "golden")


def file(name):
    with open(os.path.join(GOLDEN, "images", name), "rb") as f:
        return f.read()


def chat(*parts, **fields):
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "red?"}, *parts]}], "max_tokens": 1, "temperature": 0, **fields}


def image(data):
    return {"type": "image_url", "image_url": {"url": data_url(data)}}


class Starved:
    """A server whose workers can be denied memory: nomem.c."""

    def __init__(self, model, *flags):
        self.folder = tempfile.TemporaryDirectory()
        library, control = os.path.join(self.folder.name, "nomem.so"), os.path.join(self.folder.name, "control")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, os.path.join(HERE, "nomem.c"), "-ldl"], check=True)
        with open(control, "wb") as f:
            f.write(struct.pack("llll", 0, -1, 0, 0))
        with open(control, "r+b") as f:
            self.control = mmap.mmap(f.fileno(), 0)
        self.server = Server(args.binary, model, *flags, env={"LD_PRELOAD": library, "NOMEM": control, "UV_THREADPOOL_SIZE": "1"})

    def failed(self):
        return struct.unpack("llll", self.control)[3]

    def post(self, path, body, left=-1, forever=0):
        self.control[:] = struct.pack("llll", 1, left, forever, 0)
        status, answer = self.server.post(path, body)
        failed, self.control[:] = self.failed(), struct.pack("llll", 1, -1, 0, 0)
        return status, answer, failed


def sense(answer):
    """Of an answer what must not depend on luck."""
    return {k: v for k, v in answer.items() if k not in ("id", "created", "model", "cache_info", "timings")}


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
            fine = status == 200 and sense(answer) == want or status == 503 and answer["error"]["code"] == "out_of_memory"
            counts[status] = counts.get(status, 0) + 1
            if not fine:
                bad.append((n, forever, status, answer.get("error", "another answer")))
            n += 1
    check.true(f"{name}: {n} allocations fail, one by one and all behind", not bad and n > 20, bad)
    print(f"{name}: {n} allocations, {counts}")


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": ["integer", "string"]}}}}}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 123456789012345678901234567890}'}}]}
REQUESTS = {
    "text": (TEXT, {"prompt": ["red", [5, 6]], "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1, "stop": ["zz"], "stop_token_ids": [3], "logit_bias": {"5": 1},
                    "return_token_ids": True, "x": 123456789012345678901234567890, "user": "\ud800"}),
    "tokenize": ("/tokenize", {"prompt": "red \ud800 green " * 50, "return_token_strs": True}),
    "tokenize chat": ("/tokenize", {"messages": [{"role": "user", "content": "red"}]}),
    "detokenize": ("/detokenize", {"tokens": [5, 6, 7] * 100}),
    "chat": (CHAT, chat(return_token_ids=True, return_cache_info=True, seed=1, n=2, metadata={"a": [1, {}, None, 1.5, "x"]})),
    "reasoning": (CHAT, {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "red"}, {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "yes"}]}],
                         "max_tokens": 1, "temperature": 0, "return_token_ids": True, "continue_final_message": True, "echo": True,
                         "reasoning_effort": "low", "chat_template_kwargs": {"x": 1}}),
}
PICTURES = {
    "png": file("files/png_pal4_adam7.png"), "jpeg progressive": file("files/jpeg_420_33x21_prog.jpg"), "jpeg": file("files/jpeg_420_33x21.jpg"),
    "gif": file("videos/delta.gif"), "bmp": file("files/bmp_8.bmp"), "webp": file("videos/lossy.webp"),
}  # no lossless WebP: libwebp 1.2.4 crashes where a small table of such a file fails


def test_no_memory():
    """Whichever allocation of a worker fails: the answer is the same as ever, or 503."""
    s = Starved(args.demo, "--prefix-cache", "off")
    for name, (path, body) in REQUESTS.items():
        sweep(s, name, path, body)
    for name, data in PICTURES.items():
        sweep(s, name, CHAT, chat(image(data), return_token_ids=True))
    s.server.stop()
    s = Starved(args.demo, "--prefix-cache", "off", "--picture-memory", "1")  # decoded once more, for the scheduler
    sweep(s, "late picture", CHAT, chat(image(picture()), return_token_ids=True))
    s.server.stop()
    s = Starved(os.path.join(GOLDEN, "qwen/qwen3_vl_video_f32"), "--prefix-cache", "off")
    tools = {"messages": [{"role": "user", "content": "red"}, CALL, {"role": "tool", "tool_call_id": "1", "content": "[1]"}], "tools": [TOOL], "max_tokens": 1, "temperature": 0}
    sweep(s, "tools", CHAT, {**tools, "return_token_ids": True})
    for name in ("delta.gif", "lossy.webp"):
        sweep(s, "video " + name, CHAT, chat({"type": "video_url", "video_url": {"url": data_url(file("videos/" + name), "image/" + name[-4:].strip("."))}}, return_token_ids=True))
    sweep(s, "video of pictures", CHAT, chat({"type": "video", "video": [data_url(picture())] * 2, "fps": 1}, return_token_ids=True))
    s.server.stop()


args = arguments(__doc__)
for function in (test_no_memory,):
    if not args.only or function.__name__ in args.only:
        check.run(function)
check.end()
