#!/usr/bin/env python3
"""Two Kvasirs behind existing routers: are chats, streams, images, tools, disconnects and dead workers as
they should be, and does a conversation find its cache again? Prints a table; exit 1 if something is not.

  python3 -m venv build/routers && build/routers/bin/pip install sglang-router vllm-router
  build/routers/bin/python scripts/deploy/routers.py [--only NAME] [--conversations 40]

Routers are started as modules and programs of the Python that runs this. Numbers: docs/kv-events.md."""

import argparse
import concurrent.futures
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests/api"))
from harness import data_url, endless, drawing  # noqa: E402

HEALTH = [
    "--health-check-interval-secs",
    "1",
    "--health-failure-threshold",
    "2",
    "--health-success-threshold",
    "1",
    "--cb-timeout-duration-secs",
    "2",
    "--retry-max-retries",
    "5",
]


# vllm-router's cache_aware does not see images; its kv_aware does not either, and weighs load too.
NOT_JUDGED = (("vllm cache_aware", True), ("vllm kv_aware", False), ("vllm kv_aware", True))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Worker:
    def __init__(self, args, model):
        self.args, self.model, self.port = args, model, free_port()
        self.events = f"tcp://127.0.0.1:{free_port()}"
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [
                self.args.binary,
                "serve",
                "--model",
                self.model,
                "--port",
                str(self.port),
                "--threads",
                "1",
                "--log-level",
                "error",
                "--shutdown-delay",
                "0",
                "--kv-memory",
                "256M",
                "--kv-events",
                self.events,
                "--kv-events-layout",
                "map",
            ],
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout.readline(), "a server did not start"

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait(60)
        self.process.stdout.close()

    def metric(self, *names):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        c.request("GET", "/metrics")
        lines = c.getresponse().read().decode().splitlines()
        c.close()
        return [
            sum(float(x.rsplit(" ", 1)[1]) for x in lines if x.split("{")[0].split(" ")[0] == n)
            for n in names
        ]


class Router:
    def __init__(self, name, command, workers, log):
        self.port = free_port()
        urls = [w.url for w in workers]
        self.process = subprocess.Popen(
            [
                *command,
                "--host",
                "127.0.0.1",
                "--port",
                str(self.port),
                "--prometheus-port",
                str(free_port()),
                "--worker-urls",
                *urls,
                *HEALTH,
            ],
            stdout=log,
            stderr=log,
        )
        until(lambda: self.models() is not None, 60, f"{name} did not start")

    def models(self):
        try:
            status, body = self.request("GET", "/v1/models", None)
            return [m["id"] for m in json.loads(body)["data"]] or None if status == 200 else None
        except (OSError, http.client.HTTPException, ValueError):
            return None

    def request(self, method, path, body, headers=None, timeout=60):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        c.request(
            method,
            path,
            json.dumps(body) if body else None,
            {"Content-Type": "application/json", **(headers or {})},
        )
        answer = c.getresponse()
        data = answer.read()
        c.close()
        return answer.status, data

    def chat(self, model, messages, user="", **more):
        """user: some routers keep a user's requests on one worker."""
        body = {"model": model, "messages": messages, "max_tokens": 24, "temperature": 0, **more}
        if user:
            body["user"] = user
        status, data = self.request("POST", "/v1/chat/completions", body, {"x-session-id": user or "none"})
        if status != 200:
            raise RuntimeError(f"{status}: {data[:200]}")
        return json.loads(data)

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def until(condition, seconds, what):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(what)
        time.sleep(0.002)


def message(text, url=None):
    parts = [{"type": "image_url", "image_url": {"url": url}}] if url else []
    return {"role": "user", "content": parts + [{"type": "text", "text": text}]}


def check_chat(r, model, workers):
    a = r.chat(model, [message("Hello!")])
    return a["choices"][0]["message"]["content"] and a["model"] == model


def check_stream(r, model, workers):
    body = {
        "model": model,
        "messages": [message("Hello!")],
        "max_tokens": 24,
        "temperature": 0,
        "stream": True,
    }
    status, data = r.request("POST", "/v1/chat/completions", body)
    chunks = [json.loads(x[6:]) for x in data.decode().split("\n") if x.startswith("data: {")]
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    whole = r.chat(model, [message("Hello!")])["choices"][0]["message"]["content"]
    return status == 200 and data.endswith(b"data: [DONE]\n\n") and len(chunks) > 2 and text == whole


def check_image(r, model, workers):
    with open(os.path.join(ROOT, "models/demo/sample.png"), "rb") as f:
        a = r.chat(model, [message("What is in this picture?", data_url(f.read()))])
    return "circle" in a["choices"][0]["message"]["content"]


def check_tools(r, model, workers):
    """The demo model calls none: whether the worker is told of tools, and of a call and its result."""
    tool = {
        "type": "function",
        "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
    }
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    }
    result = {"role": "tool", "tool_call_id": "c1", "content": "a red circle"}
    a = r.chat(model, [message("Look!"), call, result], tools=[tool])
    b = r.chat(model, [message("Look!"), call, result])
    return a["usage"]["prompt_tokens"] > b["usage"]["prompt_tokens"]  # the worker was told of the tool


def check_disconnect(r, model, workers):
    """-> milliseconds and engine steps from the client's leaving to the worker's stopping, at most of four"""
    names = ("vllm:num_requests_running", "kvasir:engine_steps_total")
    worst = [0, 0]
    for i in range(4):
        c = http.client.HTTPConnection("127.0.0.1", r.port, timeout=60)
        body = {
            "model": model or os.path.basename(workers[0].model),
            "messages": [message(f"Go on {i}")],
            "max_tokens": 150000,
            "ignore_eos": True,
            "stream": True,
        }
        c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = c.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {answer.read()[:200]}")
        for _ in range(20):
            answer.readline()
        busy = next(w for w in workers if w.metric(names[0])[0])
        steps, left = busy.metric(names[1])[0], time.monotonic()
        c.sock.shutdown(socket.SHUT_RDWR)
        answer.close()
        c.close()
        until(lambda: not busy.metric(names[0])[0], 30, "a request went on without its client")
        worst[0] = max(worst[0], (time.monotonic() - left) * 1000)
        worst[1] = max(worst[1], busy.metric(names[1])[0] - steps)
    return f"{worst[0]:.0f} ms, {worst[1]:.0f} steps"


def check_killed(r, model, workers):
    """-> requests lost of 40 while one of two workers is killed, and seconds until it serves again"""
    victim, lost = workers[1], 0
    threads, results = [], []

    def one(i):
        try:
            r.chat(model, [message(f"{random.getrandbits(4000):x}")], user=f"u{i}")
            results.append(True)
        except (OSError, RuntimeError, http.client.HTTPException):
            results.append(False)

    for i in range(40):
        if i == 10:
            victim.end(signal.SIGKILL)
        t = threading.Thread(target=one, args=(i,))
        t.start()
        threads.append(t)
        time.sleep(0.05)
    for t in threads:
        t.join()
    lost = results.count(False)
    victim.start()
    begin, n = time.monotonic(), 0

    def healthy():
        return sum(w["is_healthy"] for w in json.loads(r.request("GET", "/workers", None)[1])["workers"])

    until(lambda: healthy() == 2, 60, "a worker that is back is not found again")
    text = f"{lost} lost; found again after {time.monotonic() - begin:.1f} s"
    # Whether it is given something is the policy's choice; texts that nobody knows, and long ones.
    while not victim.metric("vllm:generation_tokens_total")[0] and n < 100:
        n += 1
        one(1000 + n)
    return text + (f", used at request {n}" if n < 100 else ", not used in 100 requests")


def check_reuse(r, model, workers, conversations, with_images):
    """-> what second turns reuse, in % of what their conversations had in common with the first"""
    before = [w.metric("vllm:prompt_tokens_total")[0] for w in workers]

    def first_turn(i):
        images = [data_url(drawing(1000 * i + k, 40)) for k in range(2 if with_images else 0)]
        text = f"{random.random()} Look. " + " ".join(str((i * 7919 + k) % 1000) for k in range(30))
        first = [
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": u}} for u in images]
                + [{"type": "text", "text": text}],
            }
        ]
        return first, r.chat(model, first, user=f"s{with_images}{i}")

    def second_turn(i):
        first, a = history[i]
        text = a["choices"][0]["message"]["content"] or ""
        b = r.chat(
            model,
            first + [{"role": "assistant", "content": text}, message("Why?")],
            user=f"s{with_images}{i}",
        )
        had = a["usage"]["prompt_tokens"]
        return had, min(had, b["usage"]["prompt_tokens_details"]["cached_tokens"])

    order = list(range(conversations))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        history = dict(enumerate(pool.map(first_turn, order)))
        random.Random(1).shuffle(order)
        turns = list(pool.map(second_turn, order))
    known, reused = (sum(x) for x in zip(*turns))
    shares = [w.metric("vllm:prompt_tokens_total")[0] - x for w, x in zip(workers, before)]
    return 100 * reused / known, 100 * max(shares) / max(1, sum(shares))


def run(name, command, args, model, log):
    workers = [Worker(args, model) for _ in range(2)]
    if command and "kv_aware" in command:
        for w in workers:
            command = command + ["--kv-event-source", f"{w.url}={w.events}"]
        command = command + ["--kv-event-block-size", "32", "--kv-event-model", os.path.basename(model)]
    router, good, row = None, True, []
    try:
        if not command:  # the worker itself, to compare with
            print(
                f"| {name} | - | - | - | - | - | - | - | {check_disconnect(workers[0], None, workers)} | - |"
            )
            return True
        router = Router(name, command, workers, log)
        served = os.path.basename(model)
        row.append(",".join(router.models()))
        good &= row[0] == served
        time.sleep(2)
        for check in (check_chat, check_stream, check_image, check_tools):
            ok = bool(check(router, served, workers))
            good &= ok
            row.append("yes" if ok else "NO")
        for images in (False, True):
            share, most = check_reuse(router, served, workers, args.conversations, images)
            good &= share >= 90 or (name, images) in NOT_JUDGED
            row.append(f"{share:.1f} % ({most:.0f} %)")
        row.append(check_disconnect(router, served, workers))
        row.append(check_killed(router, served, workers))
    except Exception as fault:  # one router's trouble is no reason not to look at the next
        row.append(f"FAILED: {fault}")
        good = False
    finally:
        if router:
            router.end()
        for w in workers:
            if w.process.poll() is None:
                w.end()
    print(f"| {name} | " + " | ".join(row) + " |", flush=True)
    return good


def main():
    bin_dir = os.path.dirname(sys.executable)
    sglang = [sys.executable, "-m", "sglang_router.launch_router"]
    vllm = [os.path.join(bin_dir, "vllm-router")]
    kinds = {
        "none": None,
        "sglang cache_aware": [*sglang, "--policy", "cache_aware"],
        "vllm cache_aware": [*vllm, "--policy", "cache_aware"],
        "vllm consistent_hash": [*vllm, "--policy", "consistent_hash"],
        "vllm kv_aware": [*vllm, "--policy", "kv_aware"],
    }
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--binary", default=os.path.join(ROOT, "build/release/kvasir"))
    p.add_argument("--model", default=os.path.join(ROOT, "models/demo-qwen3-vl"))
    p.add_argument("--only", choices=kinds, help="one of them")
    p.add_argument("--conversations", type=int, default=40)
    p.add_argument("--log", help="file for what the routers write")
    args = p.parse_args()
    model = endless(args.model)
    print(
        "| router | model | chat | stream | image | tools | second turns: text | with images | "
        "disconnect | "
        "worker killed, 40 requests |\n|---|---|---|---|---|---|---|---|---|---|",
        flush=True,
    )
    with open(args.log, "w") if args.log else tempfile.TemporaryFile("w") as log:
        results = [run(n, c, args, model, log) for n, c in kinds.items() if args.only in (None, n)]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
