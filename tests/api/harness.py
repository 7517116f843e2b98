"""Starts a kvasir server and talks to it with the standard library only. Used by the scripts in this folder.

No test may fail because the machine is slow or busy: a test waits for the condition itself (wait_until, which gives up late), keeps the server busy for
as long as it needs with a request that does not end by itself (endless), and where something is promised in time, asks soon()."""
import argparse
import atexit
import base64
import http.client
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zlib


class Server:
    def __init__(self, binary, model, *flags, wait=True, env=None, log=None):
        """log: where its stderr goes; default this process's own."""
        command = [binary, "serve", "--model", model, "--port", "0", "--log-level", "warn", "--shutdown-delay", "0", "--allowed-hosts", "*", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log or sys.stderr, text=True, env={**os.environ, **(env or {})})
        self.host, self.port = "127.0.0.1", None
        if wait:
            self.wait_ready()

    def wait_ready(self):
        line = self.process.stdout.readline()
        match = re.fullmatch(r"kvasir: listening on http://(.+):(\d+)\n", line)
        if not match:
            raise SystemExit(f"the server did not start: {line!r}, exit {self.process.poll()}")
        self.port = int(match[2])

    def connect(self, timeout=120):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None, timeout=120):
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

    def post(self, path, body, headers=None, timeout=120):
        status, head, data = self.request("POST", path, body, headers, timeout)
        return status, json.loads(data)

    def ok(self, path, body, timeout=120):
        status, answer = self.post(path, body, timeout=timeout)
        if status != 200:
            raise AssertionError(f"{path} answered {status}: {answer}")
        return answer

    def stream(self, path, body, timeout=120):
        """-> list of the JSON chunks; checks the framing of every line."""
        status, head, data = self.request("POST", path, {**body, "stream": True}, timeout=timeout)
        if status != 200:
            raise AssertionError(f"{path} answered {status}: {data[:300]}")
        return parse_stream(data)

    def raw(self, data, timeout=60, half_close=False):
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

    def held(self):
        """KV blocks that sequences hold, sequences that run, sequences that wait: from one reading."""
        return self.sums("kvasir:kv_blocks_live", "vllm:num_requests_running", "vllm:num_requests_waiting")

    def sums(self, *names):
        """Of one reading: for each name the sum over its series, which begin with it."""
        m = self.metrics()
        return tuple(sum(v for k, v in m.items() if k.split("{")[0] == name or ("{" in name and k.startswith(name))) for name in names)

    def soon(self, condition, seconds=1.0):
        """For what is promised within a time. The measure of a slow or busy machine is the server itself: it has at least as long as 25 readings of
        its metrics, one after the other, and three steps of its engine take."""
        name = "kvasir:engine_steps_total"
        begin, first, readings = time.monotonic(), self.metric(name), 0
        while not condition():
            readings += 1
            passed = time.monotonic() - begin
            if passed > 60 * seconds or (passed > seconds and readings >= 25 and self.metric(name) >= first + 3):
                return False
            time.sleep(0.02)
        return True

    def pause(self):
        """Stops the process; what is sent to it until resume() comes all at once."""
        self.process.send_signal(signal.SIGSTOP)
        while True:
            with open(f"/proc/{self.process.pid}/stat") as f:
                if f.read().rsplit(")", 1)[1].split()[0] == "T":
                    return

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def stop(self, expect=0, timeout=120, send=True):
        if send and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError("the server did not end after SIGTERM") from None
        self.process.stdout.close()
        assert code == expect, f"exit code {code}"


def edited(model, **keys):
    """The checkpoint with other keys of its text: a folder that is removed at exit."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, True)
    folder = os.path.join(folder, os.path.basename(os.path.abspath(model)))
    os.mkdir(folder)
    for name in os.listdir(model):
        if name != "config.json":
            os.symlink(os.path.abspath(os.path.join(model, name)), os.path.join(folder, name))
    with open(os.path.join(model, "config.json")) as f:
        config = json.load(f)
    config.get("text_config", config).update(keys)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    return folder


def end_process(process):
    """SIGTERM, and SIGKILL to one that does not end by it."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def endless(model):
    """The checkpoint with a context so long that no request comes to its end while a test looks on."""
    return edited(model, max_position_embeddings=2 * ENDLESS)


ENDLESS = 500_000  # max_tokens of a request that only its client ends


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


def drawing(seed=0, size=40):
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
        self.passed, self.failed, self.skipped = 0, 0, 0

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

    def skip(self, what, why):
        """What can't run here, because of `why`; in CI, where everything is installed, a failure."""
        self.skipped += 1
        if os.environ.get("CI"):
            self.true(what, False, f"was skipped: {why}")
        else:
            print(f"skipped {what}: {why}", flush=True)

    def end(self):
        if not self.passed and not self.failed and not self.skipped:
            print("FAIL nothing was run: no test function has the names that were given")
            self.failed = 1
        more = f", {self.skipped} skipped" if self.skipped else ""
        print(f"{self.passed} passed, {self.failed} failed{more}")
        sys.exit(1 if self.failed else 0)


def wait_until(condition, seconds=120.0, step=0.02):
    """True as soon as condition() is; False after `seconds`, which no machine takes."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if condition():
            return True
        time.sleep(step)
    return bool(condition())
