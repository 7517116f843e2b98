"""Starts a kvasir server and talks to it with the standard library only. Used by the scripts in this folder."""
import argparse
import base64
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import zlib


class Server:
    def __init__(self, binary, model, *flags, wait=True, env=None):
        command = [binary, "serve", "--model", model, "--port", "0", "--log-level", "warn", "--shutdown-delay", "0", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sys.stderr, text=True, env={**os.environ, **(env or {})})
        self.host, self.port = "127.0.0.1", None
        if wait:
            self.wait_ready()

    def wait_ready(self):
        line = self.process.stdout.readline()
        match = re.fullmatch(r"kvasir: listening on http://(.+):(\d+)\n", line)
        if not match:
            raise SystemExit(f"the server did not start: {line!r}, exit {self.process.poll()}")
        self.port = int(match[2])

    def connect(self, timeout=60):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None, timeout=20):
        """-> (status, headers with lower-case names, bytes)"""
        connection = self.connect(timeout)
        send = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None and not any(k.lower() == "content-type" for k in send):
            send["Content-Type"] = "application/json"
        connection.request(method, path, body=body, headers={k: v for k, v in send.items() if v is not None})
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, data

    def post(self, path, body, headers=None, timeout=60):
        status, head, data = self.request("POST", path, body, headers, timeout)
        return status, json.loads(data)

    def ok(self, path, body, timeout=60):
        status, answer = self.post(path, body, timeout=timeout)
        if status != 200:
            raise AssertionError(f"{path} answered {status}: {answer}")
        return answer

    def stream(self, path, body, timeout=60):
        """-> list of the JSON chunks; checks the framing of every line."""
        status, head, data = self.request("POST", path, {**body, "stream": True}, timeout=timeout)
        if status != 200:
            raise AssertionError(f"{path} answered {status}: {data[:300]}")
        return parse_stream(data)

    def raw(self, data, timeout=10, half_close=False):
        """Sends bytes, returns everything until the server closes or is silent for a while."""
        with socket.create_connection((self.host, self.port), timeout=timeout) as s:
            s.sendall(data)
            if half_close:
                s.shutdown(socket.SHUT_WR)
            return read_all(s)

    def metrics(self):
        values = {}
        for line in self.request("GET", "/metrics")[2].decode().splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[name] = float(value)
        return values

    def metric(self, name):
        """Sum over all series of a family."""
        return sum(v for k, v in self.metrics().items() if k.split("{")[0] == name)

    def stop(self, expect=0, timeout=60, send=True):
        if send and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError("the server did not end after SIGTERM") from None
        self.process.stdout.close()
        assert code == expect, f"exit code {code}"


def read_all(s):
    data = b""
    try:
        while True:
            piece = s.recv(65536)
            if not piece:
                break
            data += piece
    except (TimeoutError, ConnectionResetError):
        pass
    return data


def parse_stream(data):
    assert data.endswith(b"data: [DONE]\n\n"), data[-200:]
    assert b"\r" not in data
    chunks = []
    for line in data.decode("utf-8").split("\n"):
        if not line:
            continue
        assert line.startswith("data: "), line
        if line != "data: [DONE]":
            chunks.append(json.loads(line[6:]))
    return chunks


def stream_text(chunks, index=0, key="delta"):
    """Text of one choice of a parsed stream (chat: key 'delta', completions: 'text')."""
    parts = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] == index:
                parts.append(choice["delta"].get("content") or "" if key == "delta" else choice["text"])
    return "".join(parts)


def png(width, height, pixel, claim=None, alpha=False):
    """A PNG; pixel(x, y) -> (r, g, b), or (r, g, b, a) with alpha. claim: (width, height) that the header states instead."""
    rows = b"".join(b"\0" + bytes(v for x in range(width) for v in pixel(x, y)) for y in range(height))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", *(claim or (width, height)), 8, 6 if alpha else 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def data_url(data, kind="image/png"):
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def picture(seed=0, size=40):
    return png(size, size, lambda x, y: ((x * 5 + seed * 37) % 256, (y * 5 + seed * 11) % 256, (x * y + seed) % 256))


def arguments(description, **extra):
    """--binary, --model and more (name=default) for the scripts in this folder."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=os.path.join(root, "build/release/kvasir"))
    parser.add_argument("--model", default=os.path.join(root, "tests/golden/gemma3/vision_f32"), help="a small vision checkpoint")
    parser.add_argument("--demo", default=os.path.join(root, "models/demo"), help="used too where it exists and the test asks for it")
    parser.add_argument("only", nargs="*", help="names of test functions; default all")
    for name, default in extra.items():
        parser.add_argument("--" + name, type=type(default), default=default)
    return parser.parse_args()


class Checks:
    """Counts; a failure prints and goes on."""

    def __init__(self):
        self.passed, self.failed = 0, 0

    def true(self, what, condition, detail=""):
        if condition:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAIL {what} {detail}"[:1500], flush=True)
        return condition

    def equal(self, what, got, want):
        return self.true(what, got == want, f"\n  got  {got!r}\n  want {want!r}")

    def run(self, function, *args):
        """Runs a test function; an exception in it is one failure."""
        try:
            function(*args)
        except Exception as fault:  # a test must not end the others
            import traceback

            self.true(function.__name__, False, "".join(traceback.format_exception(fault))[-1400:])

    def end(self):
        print(f"{self.passed} passed, {self.failed} failed")
        sys.exit(1 if self.failed else 0)


def wait_until(condition, seconds=10.0, step=0.02):
    """True as soon as condition() is; False after `seconds`."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if condition():
            return True
        time.sleep(step)
    return bool(condition())
