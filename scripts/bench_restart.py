#!/usr/bin/env python3
"""Time to the first token of a conversation's next turn: computed, and after a restart with --cache-dir.

scripts/bench_restart.py --model DIR [--tokens 2000] [--images 2] [--repeat 3]
    [--llama-server FILE --gguf FILE] [-- FLAGS OF kvasir serve]

Each round starts a server without anything cached and sends the second turn; then one with an empty
directory, sends the first turn, ends it with SIGTERM, starts it again and sends the second turn, twice: from
disk, and from memory. Printed are the best times, and whether tokens and log-probs of the three were equal
(exit status 1 if not). Without images the prompt is text for /v1/completions, with images it is a chat. With
--llama-server the same text goes to llama.cpp's server, which saves its slot after the first turn
(--slot-save-path) and restores it after the restart; the time to the first token includes the restore.
Standard library only."""
import argparse
import base64
import json
import os
import random
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import zlib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def png(size, rng):
    """Colors in large squares: every image differs."""
    squares = [rng.randbytes(3) for _ in range(64)]
    rows = b"".join(b"\0" + b"".join(squares[y * 8 // size * 8 + x * 8 // size] for x in range(size))
                    for y in range(size))

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


class Server:
    disk = "--cache-dir"

    def __init__(self, args, *flags):
        command = [args.binary, "serve", "--model", args.model, "--port", "0", "--log-level", "warn",
                   "--shutdown-delay", "0", *args.flags, *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        match = re.fullmatch(r"kvasir: listening on (http://.+:\d+)\n", line)
        if not match:
            raise SystemExit(f"the server did not start: {' '.join(command)}")
        self.url = match[1]

    def save(self):
        pass

    restore = save

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.stdout.close()
        self.process.wait(300)

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            return urllib.request.urlopen(request, timeout=3600)
        except urllib.error.HTTPError as error:
            text = error.read(600).decode(errors="replace")
            raise SystemExit(f"{path}: HTTP {error.code}: {text}") from None

    def get(self, path):
        return urllib.request.urlopen(self.url + path, timeout=60)

    def turn(self, path, body):
        """-> milliseconds to the first token; what came; prompt tokens; cached tokens"""
        body = {"temperature": 0, "max_tokens": 24, "ignore_eos": True, "return_token_ids": True,
                "stream": True, "stream_options": {"include_usage": True}, **body}
        begin, first, out, usage = time.monotonic(), None, [], {}
        with self.post(path, body) as reply:
            for line in reply:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                usage = event.get("usage") or usage
                for choice in event.get("choices", []):
                    if choice.get("logprobs") or choice.get("text"):
                        first = first or time.monotonic()
                        out.append([choice.get("token_ids"), choice["logprobs"]])
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        return (first - begin) * 1e3, out, usage["prompt_tokens"], cached


class LlamaServer(Server):
    disk = "--slot-save-path"

    def __init__(self, args, *flags):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [args.llama_server, "-m", args.gguf, "--port", str(port), "-c", "16384", "-np", "1", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        while True:
            try:
                urllib.request.urlopen(self.url + "/health", timeout=10).close()
                return
            except (OSError, urllib.error.HTTPError):
                if self.process.poll() is not None:
                    raise SystemExit(f"the server did not start: {' '.join(command)}") from None
                time.sleep(0.1)

    def save(self, action="save"):
        begin = time.monotonic()
        self.post(f"/slots/0?action={action}", {"filename": "slot.bin"}).close()
        return (time.monotonic() - begin) * 1e3

    def restore(self):
        return self.save("restore")


def text_of(server, tokens, rng):
    """Words that take about so many tokens."""
    with open(os.path.join(ROOT, "docs", "caching.md")) as f:
        words = f.read().split()
    rng.shuffle(words)
    low, high = 1, 20 * tokens
    while low < high:
        n = (low + high) // 2
        text = " ".join((words * (n // len(words) + 1))[:n])
        with server.post("/tokenize", {"prompt": text}) as reply:
            count = json.load(reply)["count"]
        low, high = (n + 1, high) if count < tokens else (low, n)
    return text


def turns(args, text, rng):
    """-> path, body of the first turn, body of the second"""
    if not args.images:
        first = {"prompt": text, "logprobs": 5}
        return "/v1/completions", first, {**first, "prompt": text + "\nAnd what follows, in one line?\n"}
    content = [{"type": "text", "text": text}]
    for _ in range(args.images):
        url = "data:image/png;base64," + base64.b64encode(png(args.image_size, rng)).decode()
        content.append({"type": "image_url", "image_url": {"url": url}})
    one = [{"role": "user", "content": content}]
    two = one + [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "What follows?"}]
    common = {"logprobs": True, "top_logprobs": 5}
    return "/v1/chat/completions", {**common, "messages": one}, {**common, "messages": two}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--binary", default=os.path.join(ROOT, "build/release/kvasir"))
    parser.add_argument("--tokens", type=int, default=2000, help="of the text")
    parser.add_argument("--images", type=int, default=0)
    parser.add_argument("--image-size", type=int, default=448)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--llama-server")
    parser.add_argument("--gguf", help="of the same checkpoint, for llama.cpp")
    parser.add_argument("flags", nargs="*", help="of kvasir serve, after --")
    args = parser.parse_args()
    best, equal, prompt, cached, disk = {}, True, 0, 0, 0

    kinds = [("", Server)] + [("llama.cpp, ", LlamaServer)] * bool(args.llama_server)
    for round_ in range(args.repeat):
        rng = random.Random(round_)
        with Server(args) as server:
            path, first, second = turns(args, text_of(server, args.tokens, rng), rng)
        for who, kind in kinds:
            folder = tempfile.mkdtemp(prefix="kvasir-restart-")
            got = {}
            try:
                with kind(args) as server:
                    got["computed"] = server.turn(path, second)
                with kind(args, kind.disk, folder) as server:
                    server.turn(path, first)
                    server.save()
                with kind(args, kind.disk, folder) as server:
                    restored = server.restore() or 0
                    ms, *rest = server.turn(path, second)
                    got["from disk"] = (ms + restored, *rest)
                    got["from memory"] = server.turn(path, second)
                if kind is Server:
                    disk = sum(e.stat().st_size for e in os.scandir(os.path.join(folder, "kvasir-cache")))
                    prompt, cached = got["from disk"][2:]
                    equal = equal and all(out == got["computed"][1] for _, out, *_ in got.values())
            finally:
                shutil.rmtree(folder)
            for name, (ms, *_) in got.items():
                best[who + name] = min(best.get(who + name, ms), ms)
    print(f"prompt of {prompt} tokens, {args.images} images; {cached} from disk ({disk / 2**20:.1f} MiB)")
    for name, ms in best.items():
        cold = best[name[:name.rfind(", ") + 2] + "computed"] if ", " in name else best["computed"]
        print(f"{name:24} {ms:9.1f} ms  {100 * ms / cold:5.1f} %")
    print("tokens and log-probs:", "equal" if equal else "DIFFERENT")
    return not equal


if __name__ == "__main__":
    sys.exit(main())
