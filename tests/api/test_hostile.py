"""Hostile clients: python3 test_hostile.py [--binary B] [--model DIR] [--rounds N] [--seed N]
Mutated bodies, broken HTTP, random images, slow and rude connections. The server must stay up, answer no 5xx (501, and 503 from its own limits aside), and
return to idle. The seed is printed; the same seed sends the same bytes."""
import base64
import json
import os
import random
import socket
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Checks, Server, arguments, data_url, drawing, wait_until  # noqa: E402

check = Checks()
PATHS = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]
VALUES = [None, True, False, 0, -1, 1, 5.5, 1e308, -1e308, 2**53, 2**63 - 1, -2**63, "", "x", "\u0000", "\ud800", "\u2028", "a" * 3000, [], {}, [[]], [None],
          {"type": "text"}, ["a", 1], [2, 5], [[2, 5], [2]], "data:image/png;base64,", "data:,", "http://x/", {"url": "data:image/png;base64,AAAA"}]
SEEDS = [
    {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "temperature": 1, "top_p": 0.9, "top_k": 5, "n": 2, "stop": ["x"], "logprobs": True,
     "top_logprobs": 2, "seed": 1, "logit_bias": {"5": 1}, "stream": False, "stop_token_ids": [7], "min_tokens": 1},
    {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": "IMG", "detail": "low"}}]},
                  {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                  {"role": "tool", "tool_call_id": "1", "content": "r"}], "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}},
    {"prompt": ["a", "b"], "max_tokens": 2, "echo": True, "logprobs": 1, "best_of": 1, "suffix": None, "prompt_logprobs": 1, "return_token_ids": True},
    {"prompt": [[2, 5, 6], [2, 7]], "max_tokens": 2, "stream": True, "presence_penalty": 1, "frequency_penalty": 1, "repetition_penalty": 1.2, "min_p": 0.1},
    {"prompt": "text", "add_special_tokens": False, "return_token_strs": True},
    {"tokens": [1, 2, 3]},
    {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}], "tool_choice": "none",
     "chat_template_kwargs": {"a": {"b": [1]}}, "response_format": {"type": "text"}, "max_tokens": 1, "continue_final_message": False},
]


def mutate(rng, value, depth=0):
    """The same structure with some things replaced, dropped or doubled."""
    if rng.random() < 0.04:
        return rng.choice(VALUES)
    if isinstance(value, dict):
        out = {}
        for key, item in value.items():
            if rng.random() < 0.04:
                continue
            out[key if rng.random() > 0.03 else rng.choice(["", "x", "role", "\u0000", "type"])] = mutate(rng, item, depth + 1)
        return out
    if isinstance(value, list):
        out = [mutate(rng, item, depth + 1) for item in value if rng.random() > 0.04]
        return out * rng.choice([1, 1, 1, 2, 3]) if depth < 4 else out
    return value


def bytes_mutate(rng, data):
    data = bytearray(data)
    for _ in range(rng.choice([0, 1, 1, 2, 8])):
        if not data:
            break
        at = rng.randrange(len(data))
        how = rng.randrange(4)
        if how == 0:
            data[at] = rng.randrange(256)
        elif how == 1:
            del data[at:at + rng.randrange(1, 20)]
        elif how == 2:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
        else:
            data[at:at] = data[at:at + rng.randrange(1, 40)]
    return bytes(data)


def body(rng, images):
    text = json.dumps(mutate(rng, rng.choice(SEEDS)))
    if "IMG" in text:
        data = bytes_mutate(rng, rng.choice(images))
        kind = rng.choice(["image/png", "image/jpeg", "x", "", "image/webp;charset=a"])
        text = text.replace("IMG", f"data:{kind};base64,{base64.b64encode(data).decode()}")
    data = text.encode("utf-8", "surrogatepass")
    return bytes_mutate(rng, data) if rng.random() < 0.3 else data


def fuzz_bodies(s, seed, rounds):
    rng = random.Random(seed)
    images = [drawing(i, 8 + i) for i in range(3)] + [b"\xff\xd8\xff\xe0" + bytes(64), b"RIFF\x10\0\0\0WEBPVP8 " + bytes(40), b"GIF89a" + bytes(30), b"BM" + bytes(60)]
    counts = {}
    for _ in range(rounds):
        data = body(rng, images)
        try:
            status, head, answer = s.request("POST", rng.choice(PATHS), data)
        except Exception as fault:
            check.true(f"seed {seed}: an answer", False, f"{fault!r} {data[:600]!r}")
            return
        counts[status] = counts.get(status, 0) + 1
        keys = set(json.loads(answer)["error"]) - {"n_prompt_tokens", "n_ctx"} if status != 200 else set()
        if status >= 500 or (status != 200 and keys != {"message", "type", "param", "code"}):
            check.true(f"seed {seed}: no 5xx", False, f"{status} {answer[:300]!r} {data[:600]!r}")
            return
    print(f"seed {seed}: answers by status {dict(sorted(counts.items()))}")
    check.true("both good and bad bodies", counts.get(400, 0) > 0 and counts.get(200, 0) > 0, counts)


def fuzz_http(s, seed, rounds):
    rng = random.Random(seed)
    good = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
    whole = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(good) + good
    for _ in range(2 * rounds):
        data = bytes_mutate(rng, bytes_mutate(rng, whole)) if rng.random() < 0.8 else bytes(rng.randrange(256) for _ in range(rng.randrange(1, 300)))
        try:
            with socket.create_connection((s.host, s.port), timeout=1) as c:
                c.sendall(data)
                c.shutdown(socket.SHUT_WR)
                answer = c.recv(4000)
        except OSError:
            answer = b""
        if answer.startswith(b"HTTP/1.1 5") and answer[9:12] not in (b"501", b"503", b"505"):
            check.true(f"seed {seed}: no 5xx", False, f"{data!r} {answer!r}")
            return
    check.true("broken requests", True)


def rude(s, seed, rounds):
    """Clients that leave at any moment, or read nothing."""
    rng = random.Random(seed)
    data = json.dumps({"prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": True, "n": 2, "temperature": 1}).encode()
    whole = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data
    silent = []
    for _ in range(rounds // 10):
        c = socket.create_connection((s.host, s.port), timeout=60)
        c.settimeout(2)  # what was sent may be no whole request
        try:
            c.sendall(whole[: rng.randrange(1, len(whole) + 1)] if rng.random() < 0.5 else whole)
            if rng.random() < 0.3:
                c.recv(rng.randrange(1, 3000))
        except OSError:
            pass
        if rng.random() < 0.1 and len(silent) < 20:
            silent.append(c)
        elif rng.random() < 0.5:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            c.close()
        else:
            c.close()
        time.sleep(rng.random() * 0.02)
    for c in silent:
        c.close()
    check.true("rude clients", True)


def slow_loris(s):
    """Headers byte by byte: cut off after the header time; others are served meanwhile."""
    held, start = [], time.monotonic()
    for _ in range(50):
        c = socket.create_connection((s.host, s.port), timeout=60)
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n")
        c.setblocking(False)
        held.append(c)
    asked = served = 0
    while held and time.monotonic() - start < 120:
        for c in list(held):
            try:
                c.send(b"X")
                c.recv(1000)  # the end, or an answer before it
            except BlockingIOError:
                continue
            except OSError:
                pass
            held.remove(c)
            c.close()
        asked += 1
        served += s.request("GET", "/health")[0] == 200
        time.sleep(0.5)
    took = time.monotonic() - start
    check.equal("slow headers are cut off", len(held), 0)
    check.true("not before their time", took > 9.9, took)
    check.true("others are served", served == asked > 0, (served, asked))


if __name__ == "__main__":
    args = arguments(__doc__, rounds=250, seed=1)
    rounds, first = args.rounds, args.seed
    print(f"seed {first}, {rounds} rounds")
    server = Server(args.binary, args.model, "--log-level", "error")
    threads = [threading.Thread(target=check.run, args=(fuzz_bodies, server, first + i, rounds)) for i in range(4)]
    threads += [threading.Thread(target=check.run, args=(fuzz_http, server, first + 10 + i, rounds)) for i in range(2)]
    threads += [threading.Thread(target=check.run, args=(rude, server, first + 20 + i, rounds)) for i in range(2)]
    threads += [threading.Thread(target=check.run, args=(slow_loris, server))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check.true("the process lives", server.process.poll() is None)
    check.true("idle again", wait_until(lambda: server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting") == 0))
    check.true("all KV free", wait_until(lambda: server.metric("kvasir:kv_blocks_live") == 0))
    check.true("no request hangs", wait_until(lambda: server.metric("kvasir:requests_in_flight") == 0), server.metric("kvasir:requests_in_flight"))
    check.equal("it answers", server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})[0], 200)
    check.run(server.stop)
    check.end()
