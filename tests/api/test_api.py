"""Conformance of the HTTP surface against a real server: python3 test_api.py [--binary B] [--model DIR] [test ...]
The model's output doesn't matter here, only that the API's rules hold for it."""
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
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import ENDLESS, Checks, Server, arguments, data_url, endless, parse_stream, drawing, png, read_all, stream_text, wait_until  # noqa: E402

check = Checks()
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def chat(text="Hello there", **fields):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 8, "temperature": 0, **fields}


def text(prompt="Hello there", **fields):
    return {"prompt": prompt, "max_tokens": 8, "temperature": 0, **fields}


def parts(*items, **fields):
    return {"messages": [{"role": "user", "content": list(items)}], "max_tokens": 4, "temperature": 0, **fields}


def image(url, **more):
    return {"type": "image_url", "image_url": {"url": url, **more}}


def is_error(what, answer, status, code=None, param=False):
    """answer = (status, headers, bytes) or (status, json)"""
    body = answer[-1] if isinstance(answer[-1], dict) else json.loads(answer[-1] or b"{}")
    error = body.get("error") or {}
    keys = {"message", "type", "param", "code"}
    if code == "context_length_exceeded":
        keys |= {"n_prompt_tokens", "n_ctx"}
    good = answer[0] == status and set(error) == keys and isinstance(error.get("message"), str)
    good = good and len(error["message"]) <= 1000 and isinstance(error["type"], str)
    good = good and (code is None or error["code"] == code) and (param is False or error["param"] == param)
    check.true(what, good, f"want {status} {code} {param}, got {answer[0]} {body}")
    if len(answer) == 3:
        check.true(what + ": headers", answer[1].get("content-type") == "application/json" and "x-request-id" in answer[1], answer[1])


def test_chat(s):
    a = s.ok(CHAT, chat())
    check.equal("chat keys", list(a), ["id", "object", "created", "model", "system_fingerprint", "choices", "usage", "prompt_logprobs"])
    check.equal("chat object", a["object"], "chat.completion")
    choice = a["choices"][0]
    message_keys = ["role", "content", "refusal", "annotations", "tool_calls"]
    check.equal("message keys", list(choice["message"]), message_keys)
    check.true("finish", choice["finish_reason"] in ("stop", "length"))
    u = a["usage"]
    check.equal("usage sum", u["prompt_tokens"] + u["completion_tokens"], u["total_tokens"])
    check.true("id", re.fullmatch(r"chatcmpl-[0-9a-f]{32}", a["id"]), a["id"])
    check.true("fingerprint", re.fullmatch(r"fp_[0-9a-f]{10}", a["system_fingerprint"]), a["system_fingerprint"])
    b = s.ok(CHAT, chat())
    check.equal("same twice", b["choices"], a["choices"])
    u = b["usage"]
    check.equal("the second time all but the last token is cached", u["prompt_tokens_details"]["cached_tokens"], u["prompt_tokens"] - 1)
    check.equal("else the same usage", {**u, "prompt_tokens_details": 0}, {**a["usage"], "prompt_tokens_details": 0})
    chunks = s.stream(CHAT, chat())
    check.equal("stream text", stream_text(chunks), choice["message"]["content"])
    check.equal("role chunk", chunks[0]["choices"][0]["delta"], {"role": "assistant", "content": "", "refusal": None})
    check.equal("finish chunk", (chunks[-1]["choices"][0]["delta"], chunks[-1]["choices"][0]["finish_reason"]), ({}, choice["finish_reason"]))
    check.true("no usage unasked", all("usage" not in c for c in chunks))
    check.true("one id", len({(c["id"], c["created"], c["model"], c["system_fingerprint"]) for c in chunks}) == 1)
    check.true("chunk object", all(c["object"] == "chat.completion.chunk" for c in chunks))
    chunks = s.stream(CHAT, chat(stream_options={"include_usage": True}))
    check.true("usage null", all(c["usage"] is None for c in chunks[:-1]))
    check.equal("usage chunk", (chunks[-1]["choices"], chunks[-1]["usage"]), ([], u))
    chunks = s.stream(CHAT, chat(stream_options={"include_usage": True, "continuous_usage_stats": True}))
    counts = [c["usage"]["completion_tokens"] for c in chunks]
    check.true("running usage", counts == sorted(counts) and counts[0] == 0 and chunks[-1]["usage"] == u, counts)
    is_error("stream_options alone", s.post(CHAT, chat(stream_options={"include_usage": True})), 400, None, "stream_options")


def test_framing(s):
    body = json.dumps(chat(stream=True, max_tokens=12, ignore_eos=True)).encode()
    head = b"POST /v1/chat/completions HTTP/1.%d\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n"
    raw = s.raw(head % (1, len(body), b"Connection: close\r\n") + body)
    top, rest = raw.split(b"\r\n\r\n", 1)
    check.true("SSE head", b"text/event-stream; charset=utf-8" in top and b"chunked" in top.lower() and b"content-length" not in top.lower()
               and b"X-Accel-Buffering: no" in top and b"Cache-Control: no-cache" in top, top)
    events, whole = b"", True
    while rest:
        size, rest = rest.split(b"\r\n", 1)
        n = int(size, 16)
        piece, rest = rest[:n], rest[n + 2:]
        events += piece
        whole = whole and (n == 0 or piece.endswith(b"\n\n"))
        if n == 0:
            break
    check.true("events are whole in their chunks", whole)
    chunks = parse_stream(events)
    check.true("a chunk per step", len(chunks) == 14, len(chunks))
    raw = s.raw(head % (0, len(body), b"") + body)
    top, rest = raw.split(b"\r\n\r\n", 1)
    check.true("HTTP/1.0 is not chunked", b"chunked" not in top.lower() and rest.startswith(b"data: "), top)
    check.equal("HTTP/1.0 stream", len(parse_stream(rest)), 14)


def test_many(s):
    chunks = s.stream(CHAT, chat(n=3, temperature=1, seed=7))
    check.equal("roles first", [c["choices"][0]["index"] for c in chunks[:3]], [0, 1, 2])
    check.true("role chunks", all(c["choices"][0]["delta"].get("role") == "assistant" for c in chunks[:3]))
    check.equal("three finishes", sorted(c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"]), [0, 1, 2])
    a, b = s.ok(CHAT, chat(n=3, temperature=1, seed=7)), s.ok(CHAT, chat(n=3, temperature=1, seed=7))
    check.equal("seed repeats", a["choices"], b["choices"])
    texts = [c["message"]["content"] for c in a["choices"]]
    check.equal("stream = whole, n 3", [stream_text(chunks, i) for i in range(3)], texts)
    check.true("samples differ", len(set(texts)) > 1, texts)
    one = s.ok(CHAT, chat(temperature=1, seed=7))
    check.equal("choice 0 = the solo answer", one["choices"][0]["message"]["content"], texts[0])
    check.equal("prompt counted once", a["usage"]["prompt_tokens"], one["usage"]["prompt_tokens"])
    draws = {s.ok(CHAT, chat(temperature=1, max_tokens=6))["choices"][0]["message"]["content"] for _ in range(4)}
    check.true("no seed: random", len(draws) > 1, draws)
    for value, code in ((0, "invalid_value"), (129, "invalid_value"), ("2", "invalid_type"), (1.5, "invalid_type"), (True, "invalid_type")):
        is_error(f"n={value!r}", s.post(CHAT, chat(n=value)), 400, code, "n")
    check.equal("n=2.0", len(s.ok(CHAT, chat(n=2.0))["choices"]), 2)


def test_budget(s):
    a = s.ok(CHAT, chat(max_completion_tokens=3, max_tokens=50, ignore_eos=True))
    check.equal("max_completion_tokens wins", (a["usage"]["completion_tokens"], a["choices"][0]["finish_reason"]), (3, "length"))
    is_error("max_tokens 0", s.post(CHAT, chat(max_tokens=0)), 400, "invalid_value", "max_tokens")
    window = s.request("GET", "/v1/models")[2]
    window = json.loads(window)["data"][0]["max_model_len"]
    base = s.ok("/tokenize", {"prompt": "a"})["tokens"]
    token = base[-1]
    for path, make in ((TEXT, lambda n, **k: text([2] + [token] * (n - 1), **k)),):
        is_error("prompt too long", s.post(path, make(window + 50, max_tokens=1)), 400, "context_length_exceeded", "prompt")
        status, answer = s.post(path, make(window - 48, max_tokens=100))
        is_error("prompt and answer too long", (status, answer), 400, "context_length_exceeded")
        check.true("message", answer["error"]["message"].startswith(f"This model's maximum context length is {window} tokens."), answer)
        check.equal("exact fit", s.ok(path, make(window - 4, max_tokens=4, ignore_eos=True))["usage"]["total_tokens"], window)
    status, answer = s.post(CHAT, chat("a " * (window + 10), max_tokens=None))
    is_error("chat too long", (status, answer), 400, "context_length_exceeded", "messages")
    check.true("its numbers", answer["error"]["n_prompt_tokens"] > answer["error"]["n_ctx"] == window, answer)
    check.true("chat message", answer["error"]["message"].startswith(f"This model's maximum context length is {window} tokens."), answer)
    a = s.ok(TEXT, text(max_tokens=None))
    check.true("completions default 16", a["usage"]["completion_tokens"] <= 16)
    a = s.ok(CHAT, chat(ignore_eos=True, max_tokens=64))
    check.equal("ignore_eos", (a["usage"]["completion_tokens"], a["choices"][0]["finish_reason"]), (64, "length"))
    ends = {str(i): 100 for i in eos_ids(s)}
    a = s.ok(CHAT, chat(logit_bias=ends))
    check.equal("ends at once", (a["usage"]["completion_tokens"], a["choices"][0]["finish_reason"], a["choices"][0]["stop_reason"]), (1, "stop", None))
    a = s.ok(CHAT, chat(logit_bias=ends, min_tokens=5))
    check.equal("min_tokens", a["usage"]["completion_tokens"], 6)
    cut = s.ok(TEXT, text("one two three four", truncate_prompt_tokens=3, return_token_ids=True))
    full = s.ok("/tokenize", {"prompt": "one two three four"})["tokens"]
    check.equal("truncate", cut["choices"][0]["prompt_token_ids"], full[-3:])


def eos_ids(s):
    with open(os.path.join(MODEL, "generation_config.json")) as f:
        ids = json.load(f)["eos_token_id"]
    return ids if isinstance(ids, list) else [ids]


def test_timings(s):
    kinds = ("n", "ms", "per_token_ms", "per_second")
    names = {f"{of}_{kind}" for of in ("prompt", "predicted") for kind in kinds} | {"cache_n"}
    whole = s.ok(CHAT, chat(timings_per_token=True, max_tokens=5))
    t, usage = whole["timings"], whole["usage"]
    check.true("all, and positive", set(t) == names and min(t.values()) >= 0 and t["prompt_ms"] > 0, t)
    check.equal("prompt tokens", t["cache_n"] + t["prompt_n"], usage["prompt_tokens"])
    chunks = s.stream(CHAT, chat(timings_per_token=True, max_tokens=5))
    counts = [c["timings"]["predicted_n"] for c in chunks if "timings" in c]
    check.true("in chunks", counts == sorted(counts) and len(counts) > 1, counts)
    check.equal("all tokens", (counts[-1], t["predicted_n"]), (usage["completion_tokens"],) * 2)
    check.true("on request", not any("timings" in c for c in s.stream(CHAT, chat(max_tokens=5))))
    one = s.ok(CHAT, chat(timings_per_token=True, max_tokens=1, ignore_eos=True))["timings"]
    check.equal("no rate of one token", (one["predicted_n"], one["predicted_per_second"]), (1, 0))
    t = s.ok(CHAT, chat(timings_per_token=True, max_tokens=9, ignore_eos=True))["timings"]
    rate = (t["predicted_n"] - 1) * 1e3 / t["predicted_ms"]
    check.true("the rate", abs(t["predicted_per_second"] - rate) < 0.01 * rate, t)


def test_progress(s):
    text = " ".join(f"word{i}" for i in range(300))
    completion = {"prompt": text, "max_tokens": 3, "temperature": 0}
    for path, body in ((CHAT, chat(text, max_tokens=3)), ("/v1/completions", completion)):
        plain = s.stream(path, body)
        chunks = s.stream(path, {**body, "return_progress": True, "stream_options": {"include_usage": True}})
        said = [c["prompt_progress"] for c in chunks if "prompt_progress" in c]
        done, usage = [p["processed"] for p in said], chunks[-1]["usage"]
        check.true("it grows to the whole", done == sorted(done) and done[-1] == said[0]["total"], said)
        check.equal("the prompt", said[0]["total"], usage["prompt_tokens"])
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        check.true("from the cache", {p["cache"] for p in said} == {cached} and cached > 100, said)
        steps = [c["choices"][0] for c in chunks if "prompt_progress" in c]
        check.true("without text", not any(c.get("text") or c.get("delta") for c in steps), steps)
        key = "delta" if path == CHAT else "text"
        check.equal("the same text", stream_text(chunks, key=key), stream_text(plain, key=key))
        check.true("on request", not any("prompt_progress" in c for c in plain))


def test_stops(s):
    base = s.ok(CHAT, chat(max_tokens=40, ignore_eos=True, return_token_ids=True))["choices"][0]
    whole = base["message"]["content"]
    at = next((i for i in range(4, len(whole) - 3) if "\ufffd" not in whole[i:i + 2]), 4)
    stop = whole[at:at + 2]
    want = whole[:whole.index(stop)]
    a = s.ok(CHAT, chat(max_tokens=40, ignore_eos=True, stop=stop, return_token_ids=True))
    c = a["choices"][0]
    check.equal("stop string", (c["message"]["content"], c["finish_reason"], c["stop_reason"]), (want, "stop", stop))
    check.equal("stop: tokens", c["token_ids"], base["token_ids"][:len(c["token_ids"])])
    check.equal("stop: count", a["usage"]["completion_tokens"], len(c["token_ids"]))
    chunks = s.stream(CHAT, chat(max_tokens=40, ignore_eos=True, stop=["\u1234never", stop]))
    check.equal("stop in stream", stream_text(chunks), want)
    c = s.ok(CHAT, chat(max_tokens=40, ignore_eos=True, stop=[stop], include_stop_str_in_output=True))["choices"][0]
    check.equal("include_stop_str_in_output", c["message"]["content"], want + stop)
    chunks = s.stream(CHAT, chat(max_tokens=40, ignore_eos=True, stop=[whole[-1] + "\u1234"]))
    check.equal("held text comes at the end", stream_text(chunks), whole)
    is_error("empty stop", s.post(CHAT, chat(stop="")), 400, "invalid_value", "stop")
    is_error("bad stop", s.post(CHAT, chat(stop=[3])), 400, "invalid_type", "stop")
    is_error("17 stops", s.post(CHAT, chat(stop=["x"] * 17)), 400, "invalid_value", "stop")
    check.equal("no stops", [s.post(CHAT, chat(stop=v))[0] for v in ([], None)], [200, 200])
    k = next(i for i, t in enumerate(base["token_ids"]) if i > 1)
    token = base["token_ids"][k]
    first = base["token_ids"].index(token)
    c = s.ok(CHAT, chat(max_tokens=40, ignore_eos=True, stop_token_ids=[token], return_token_ids=True))["choices"][0]
    check.equal("stop token", (c["finish_reason"], c["stop_reason"], c["token_ids"]), ("stop", token, base["token_ids"][:first + 1]))
    is_error("stop token out of range", s.post(CHAT, chat(stop_token_ids=[10**7])), 400, "invalid_value", "stop_token_ids")


def test_logprobs(s):
    a = s.ok(CHAT, chat(logprobs=True, top_logprobs=3, max_tokens=12, ignore_eos=True))
    entries = a["choices"][0]["logprobs"]["content"]
    check.equal("one entry per token", len(entries), a["usage"]["completion_tokens"])
    good = all(len(e["top_logprobs"]) == 3 and e["top_logprobs"] == sorted(e["top_logprobs"], key=lambda t: -t["logprob"]) for e in entries)
    check.true("three alternatives, descending", good)
    check.true("greedy = most likely", all(e["logprob"] == e["top_logprobs"][0]["logprob"] for e in entries))
    joined = b"".join(bytes(e["bytes"] or []) for e in entries).decode("utf-8", "replace")
    check.equal("bytes make the text", joined.replace("\ufffd", ""), a["choices"][0]["message"]["content"].replace("\ufffd", ""))
    chunks = s.stream(CHAT, chat(logprobs=True, top_logprobs=3, max_tokens=12, ignore_eos=True))
    streamed = [e for c in chunks for choice in c["choices"] if choice["logprobs"] for e in choice["logprobs"]["content"]]
    check.equal("streamed entries", streamed, entries)
    ends = s.ok(CHAT, chat(logprobs=True, logit_bias={str(i): 100 for i in eos_ids(s)}))
    entries = ends["choices"][0]["logprobs"]["content"]
    check.true("the end token has an entry without bytes", len(entries) == ends["usage"]["completion_tokens"] == 1 and entries[0]["bytes"] is None, entries)
    # A special token that the text shows has bytes, one that it leaves out has none; so they always make the text.
    special = s.ok("/tokenize", {"prompt": "<mask>", "add_special_tokens": False})["tokens"]
    check.equal("<mask> is one token", len(special), 1)
    for skip, seen in ((False, "<mask>"), (True, "")):
        c = s.ok(CHAT, chat(logit_bias={str(special[0]): 100}, max_tokens=3, skip_special_tokens=skip, logprobs=True, top_logprobs=1))["choices"][0]
        entries = c["logprobs"]["content"]
        check.equal(f"special token, skip {skip}", (c["message"]["content"] or "", [e["token"] for e in entries]), (seen * 3, ["<mask>"] * 3))
        check.equal(f"its bytes, skip {skip}", [e["bytes"] for e in entries], [list(seen.encode()) or None] * 3)
    is_error("top_logprobs alone", s.post(CHAT, chat(top_logprobs=3)), 400, "invalid_value", "top_logprobs")
    is_error("top_logprobs 21", s.post(CHAT, chat(logprobs=True, top_logprobs=21)), 400, "invalid_value", "top_logprobs")
    a = s.ok(CHAT, chat(logprobs=True, return_tokens_as_token_ids=True, return_token_ids=True))
    check.equal("token_id:N", [e["token"] for e in a["choices"][0]["logprobs"]["content"]], [f"token_id:{i}" for i in a["choices"][0]["token_ids"]])
    first = a["choices"][0]["token_ids"][0]
    b = s.ok(CHAT, chat(logit_bias={str(first): -100}, return_token_ids=True))
    check.true("logit_bias bans", first not in b["choices"][0]["token_ids"])
    is_error("bad bias key", s.post(CHAT, chat(logit_bias={"abc": 1})), 400, "invalid_value", "logit_bias")
    is_error("bias out of range", s.post(CHAT, chat(logit_bias={"99999999": 1})), 400, "invalid_value", "logit_bias")
    a = s.ok(CHAT, chat(prompt_logprobs=2, return_token_ids=True))
    ids, scores = a["prompt_token_ids"], a["prompt_logprobs"]
    check.true("prompt_logprobs", len(scores) == len(ids) and scores[0] is None and all(str(i) in e for i, e in zip(ids[1:], scores[1:])))
    is_error("prompt_logprobs in a stream", s.post(CHAT, chat(prompt_logprobs=2, stream=True)), 400, "invalid_value", "prompt_logprobs")


def repeats(ids, size, window=None):
    """Places where a token completes an n-gram that stands in the window before it already."""
    found = []
    for i in range(size - 1, len(ids)):
        seen = ids[max(0, i - window) if window else 0:i]
        grams = {tuple(seen[k:k + size]) for k in range(len(seen) - size + 1)}
        if tuple(ids[i - size + 1:i + 1]) in grams:
            found.append(i)
    return found


def test_ngrams(s):
    ask = dict(max_tokens=48, ignore_eos=True, return_token_ids=True)
    words = {"prompt": "red blue red green red blue", "add_special_tokens": False}
    prompt = s.ok("/tokenize", words)["tokens"]
    favourite = {str(i): 100 for i in prompt[:2]}  # without a rule they are all there is

    def ids(**more):
        return s.ok(TEXT, text(prompt, **ask, logit_bias=favourite, **more))["choices"][0]["token_ids"]

    free = ids()
    check.true("without it, n-grams repeat", repeats(free, 2))
    for size in (1, 2, 3):
        whole = ids(no_repeat_ngram_size=size)
        again = [i for i in repeats(prompt + whole, size) if i >= len(prompt)]
        check.equal(f"{size}-grams of prompt and output", again, [])
        own = ids(vllm_xargs={"no_repeat_ngram_size": size, "debug": False})
        check.equal(f"{size}-grams of the output", repeats(own, size), [])
        check.true(f"{size}-grams: the prompt's may return", repeats(prompt + own, size))
    near = ids(vllm_xargs={"ngram_size": 2, "window_size": 6})
    check.equal("2-grams within a window", repeats(near, 2, 6), [])
    check.true("beyond the window they may return", repeats(near, 2))
    args = {"ngram_size": 2, "window_size": 90, "whitelist_token_ids": [int(i) for i in favourite]}
    check.equal("whitelist", ids(vllm_xargs=args), free)
    check.equal("off", ids(no_repeat_ngram_size=0, vllm_xargs={}), free)
    # The same for other dialects, and where a constraint leaves only what would repeat.
    body = {"input": "Hello", "temperature": 0, "max_output_tokens": 48, "logit_bias": favourite}
    answers = [s.ok("/v1/responses", {**body, "ignore_eos": True, "no_repeat_ngram_size": n}) for n in (0, 2)]
    answers = [a["output"][0]["content"][0]["text"] for a in answers]
    check.true("Responses", answers[0] != answers[1], answers)
    forced = s.ok(CHAT, chat(max_tokens=40, no_repeat_ngram_size=1, structured_outputs={"regex": "abababab"}))
    check.equal("a constraint comes first", forced["choices"][0]["message"]["content"], "abababab")
    # A draw from a temperature, alone and next to others, with the same seed.
    seeded = dict(seed=5, no_repeat_ngram_size=2)
    both = [s.ok(TEXT, {**text(p, **ask, **seeded), "temperature": 1}) for p in ([prompt, free], prompt)]
    both = [b["choices"][0]["token_ids"] for b in both]
    check.equal("in a batch as alone", both[0], both[1])


def test_sigma(s):
    """top_n_sigma in every API: a small one leaves the most likely token, 0 and below are off."""
    say, short = {"messages": [{"role": "user", "content": "Count."}]}, {"max_tokens": 12}
    ollama = {"stream": False, "options": {"num_predict": 12}}
    apis = (
        (CHAT, {**say, **short}, lambda a: a["choices"][0]["message"]["content"]),
        (TEXT, {"prompt": "Count.", **short}, lambda a: a["choices"][0]["text"]),
        ("/v1/responses", {"input": "Count.", "max_output_tokens": 12},
         lambda a: a["output"][0]["content"][0]["text"]),
        ("/v1/messages", {**say, **short}, lambda a: a["content"][0]["text"]),
        ("/api/chat", {**say, "stream": False, **short}, lambda a: a["message"]["content"]),
        ("/api/chat", {**say, **ollama}, lambda a: a["message"]["content"]),
    )
    for path, body, said in apis:
        options = body.get("options")

        def answer(**more):
            return said(s.ok(path, {**body, "options": {**options, **more}} if options else {**body, **more}))

        likely, drawn = answer(temperature=0), answer(temperature=1, seed=5)
        name = f"{path}{' options' if options else ''}: top_n_sigma"
        check.true(f"{name} has something to do", likely != drawn, likely)
        check.equal(f"{name} small", answer(temperature=1, seed=5, top_n_sigma=1e-6), likely)
        for off in (0, -1):
            check.equal(f"{name} {off}", answer(temperature=1, seed=5, top_n_sigma=off), drawn)
    ask = dict(temperature=1, seed=5, top_n_sigma=1.5, max_tokens=24, return_token_ids=True)
    both = [s.ok(TEXT, text(p, **ask))["choices"][0]["token_ids"] for p in (["One two", "A b c"], "One two")]
    check.equal("top_n_sigma in a batch as alone", both[0], both[1])


def test_special_tokens(s):
    special = s.ok("/tokenize", {"prompt": "<mask>", "add_special_tokens": False})["tokens"]
    for skip, want in ((False, "<mask>" * 3), (True, "")):
        more = dict(logit_bias={str(special[0]): 100}, max_tokens=3, skip_special_tokens=skip)
        said = s.ok(CHAT, chat(**more))["choices"][0]["message"]["content"] or ""
        check.equal(f"chat, skip {skip}", said, want)
        check.equal(f"chat, streamed, skip {skip}", stream_text(s.stream(CHAT, chat(**more))), want)
        check.equal(f"text, skip {skip}", s.ok(TEXT, text(**more))["choices"][0]["text"], want)
        streamed = stream_text(s.stream(TEXT, text(**more)), key="text")
        check.equal(f"text, streamed, skip {skip}", streamed, want)


def test_completions(s):
    ids = s.ok("/tokenize", {"prompt": "Hello there"})["tokens"]
    other = s.ok("/tokenize", {"prompt": "Something else"})["tokens"]
    one = s.ok(TEXT, text())
    check.equal("keys", list(one), ["id", "object", "created", "model", "system_fingerprint", "choices", "usage", "prompt_logprobs"])
    check.true("object, id", one["object"] == "text_completion" and one["id"].startswith("cmpl-"))
    two = s.ok(TEXT, text(["Hello there", "Something else"]))
    check.equal("two prompts", [c["index"] for c in two["choices"]], [0, 1])
    check.equal("prompt 0 = solo", two["choices"][0]["text"], one["choices"][0]["text"])
    check.equal("ids = string", s.ok(TEXT, text(ids))["choices"][0]["text"], one["choices"][0]["text"])
    check.equal("id lists", [c["text"] for c in s.ok(TEXT, text([ids, other]))["choices"]], [c["text"] for c in two["choices"]])
    check.equal("ids verbatim", s.ok(TEXT, text(ids[1:], return_token_ids=True))["choices"][0]["prompt_token_ids"], ids[1:])
    check.equal("prompts times n", [c["index"] for c in s.ok(TEXT, text(["a", "b"], n=2, temperature=1))["choices"]], [0, 1, 2, 3])
    a = s.ok(TEXT, text("Hello \u2028 w\u00f6rld", echo=True, max_tokens=0, logprobs=1))
    c = a["choices"][0]
    p = c["logprobs"]
    check.equal("echo alone", c["text"], "Hello \u2028 w\u00f6rld")
    check.equal("equal lengths", len({len(p[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}), 1)
    check.true("first is null", p["token_logprobs"][0] is None and p["top_logprobs"][0] is None and all(v <= 0 for v in p["token_logprobs"][1:]))
    check.true("offsets", p["text_offset"] == sorted(p["text_offset"]) and p["text_offset"][0] == 0 and p["text_offset"][-1] < len(c["text"]))
    raw = s.request("POST", TEXT, text("a\u2028b\u0085c\x7f", echo=True, max_tokens=1))[2]
    check.true("line separators are escaped", b"a\\u2028b\\u0085c\\u007f" in raw, raw)
    a = s.ok(TEXT, text(echo=True, logprobs=2, max_tokens=4, ignore_eos=True))
    c = a["choices"][0]
    check.equal("echo and answer", c["text"], "Hello there" + s.ok(TEXT, text(max_tokens=4, ignore_eos=True))["choices"][0]["text"])
    check.equal("entries", len(c["logprobs"]["tokens"]), a["usage"]["total_tokens"])
    chunks = s.stream(TEXT, text(echo=True, logprobs=2, max_tokens=4, ignore_eos=True))
    check.equal("echo in a stream", stream_text(chunks, key="text"), c["text"])
    merged = {k: [v for x in chunks if x["choices"][0]["logprobs"] for v in x["choices"][0]["logprobs"][k]] for k in c["logprobs"]}
    check.equal("log-probs in a stream", merged, c["logprobs"])
    long = s.ok(TEXT, text("w\u00f6rld \u2028" * 60, n=2, echo=True, logprobs=2, prompt_logprobs=0,
                           max_tokens=2))
    for c in long["choices"]:  # its scores come in several events
        scores = [next(iter(e.values()))["logprob"] for e in c["prompt_logprobs"][1:]]
        p = {k: v[:len(scores) + 1] for k, v in c["logprobs"].items()}
        check.equal("log-probs of a long prompt", p["token_logprobs"], [None] + scores)
        offsets = p["text_offset"]
        check.true("their offsets", offsets == sorted(offsets) and offsets[-1] < 420)
    check.equal("best_of 1", s.post(TEXT, text(best_of=1))[0], 200)
    is_error("best_of 3", s.post(TEXT, text(best_of=3)), 400, "unsupported_parameter", "best_of")
    is_error("suffix", s.post(TEXT, text(suffix="x")), 400, "unsupported_parameter", "suffix")
    check.equal("empty suffix", s.post(TEXT, text(suffix=""))[0], 200)
    is_error("no prompt", s.post(TEXT, {"max_tokens": 1}), 400, "missing_required_parameter", "prompt")
    is_error("no prompts", s.post(TEXT, text([])), 400, "empty_array", "prompt")
    is_error("bad prompt", s.post(TEXT, text(5)), 400, "invalid_type", "prompt")
    is_error("mixed prompt", s.post(TEXT, text(["a", 5])), 400, "invalid_type")
    is_error("id out of range", s.post(TEXT, text([2, 10**6])), 400, "invalid_value", "prompt")
    is_error("negative id", s.post(TEXT, text([2, -1])), 400, "invalid_value", "prompt")
    check.equal("stream finish", s.stream(TEXT, text())[-1]["choices"][0]["finish_reason"], one["choices"][0]["finish_reason"])


def test_refused(s):
    schema = {"type": "json_schema",
              "json_schema": {"name": "x", "strict": True, "schema": {"uniqueItems": True}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    table = [
        ({"response_format": schema}, "unsupported_schema", "response_format"),
        ({"response_format": {"type": "json_object", "schema": {"unevaluatedProperties": False}}},
         "unsupported_schema", "response_format"),
        ({"response_format": {"type": "json_schema"}}, None, "response_format"),
        ({"response_format": {"type": "poem"}}, "invalid_value", "response_format.type"),
        ({"guided_choice": []}, "invalid_value", "guided_choice"),
        ({"structured_outputs": {"regex": "a("}}, "unsupported_schema", "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "invalid_value", "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "guided_choice": ["b"]}, "invalid_value", "guided_choice"),
        ({"tools": [tool]}, "tools_unsupported", "tools"),
        ({"tools": [tool, tool], "tool_choice": "none"}, "invalid_value", "tools[1]"),
        ({"tools": [{"type": "custom"}]}, "unsupported_value", "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 2**70}}], "tool_choice": "none"}, "invalid_type", "tools[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 2**70}}]}]}, "invalid_type", "messages[0].tool_calls[0].function.arguments"),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"tool_choice": "maybe"}, "invalid_value", "tool_choice"),
        ({"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "invalid_value", "tool_choice"),
        ({"modalities": ["text", "audio"]}, "unsupported_value", "modalities"),
        ({"audio": {"voice": "x"}}, "unsupported_parameter", "audio"),
        ({"web_search_options": {}}, "unsupported_parameter", "web_search_options"),
        ({"functions": []}, "unsupported_parameter", "functions"),
        ({"chat_template": "x"}, "unsupported_parameter", "chat_template"),
        ({"mm_processor_kwargs": {"a": 1}}, "unsupported_parameter", "mm_processor_kwargs"),
        ({"use_beam_search": True}, "unsupported_parameter", "use_beam_search"),
        ({"length_penalty": 2}, "unsupported_parameter", "length_penalty"),
        ({"typical_p": 0.9}, "unsupported_parameter", "typical_p"),
        ({"mirostat": 2}, "unsupported_parameter", "mirostat"),
        ({"dry_multiplier": "x"}, "unsupported_parameter", "dry_multiplier"),
        ({"return_progress": 1}, "invalid_type", "return_progress"),
        ({"enable_thinking": 1}, "invalid_type", "enable_thinking"),
        ({"grammar_lazy": True}, "unsupported_parameter", "grammar_lazy"),
        ({"lora": [{"id": 0}]}, "unsupported_parameter", "lora"),
        ({"lora_path": "x"}, "unsupported_parameter", "lora_path"),
        ({"stop_regex": "x+"}, "unsupported_parameter", "stop_regex"),
        ({"vllm_xargs": {"a": 1}}, "unsupported_parameter", "vllm_xargs"),
        ({"vllm_xargs": [1]}, "invalid_type", "vllm_xargs"),
        ({"vllm_xargs": {"ngram_size": 0}}, "invalid_value", "ngram_size"),
        ({"vllm_xargs": {"ngram_size": 2, "window_size": 0}}, "invalid_value", "window_size"),
        ({"vllm_xargs": {"whitelist_token_ids": [-1]}}, "invalid_value", "whitelist_token_ids"),
        ({"no_repeat_ngram_size": 1025}, "invalid_value", "no_repeat_ngram_size"),
        ({"no_repeat_ngram_size": "3"}, "invalid_type", "no_repeat_ngram_size"),
        ({"timings_per_token": 1}, "invalid_type", "timings_per_token"),
        ({"allowed_token_ids": [1]}, "unsupported_parameter", "allowed_token_ids"),
        ({"reasoning_effort": "huge"}, "invalid_value", "reasoning_effort"),
        ({"temperature": 2.1}, "invalid_value", "temperature"),
        ({"temperature": "1"}, "invalid_type", "temperature"),
        ({"top_p": 1.5}, "invalid_value", "top_p"),
        ({"top_k": -2}, "invalid_value", "top_k"),
        ({"min_p": 2}, "invalid_value", "min_p"),
        ({"top_n_sigma": "1"}, "invalid_type", "top_n_sigma"),
        ({"repetition_penalty": 0}, "invalid_value", "repetition_penalty"),
        ({"presence_penalty": 3}, "invalid_value", "presence_penalty"),
        ({"seed": "x"}, "invalid_type", "seed"),
        ({"stream": "yes"}, "invalid_type", "stream"),
        ({"cache_salt": ""}, "invalid_value", "cache_salt"),
        ({"chat_template_kwargs": [1]}, "invalid_type", "chat_template_kwargs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "invalid_value", "continue_final_message"),
        ({"messages": []}, "empty_array", "messages"),
        ({"messages": None}, "missing_required_parameter", "messages"),
        ({"messages": "x"}, "invalid_type", "messages"),
        ({"messages": [{"role": "foo", "content": "x"}]}, "invalid_value", None),
        ({"model": 1}, "invalid_type", "model"),
        ({"seed": 2**63}, "invalid_value", "seed"),
        ({"max_tokens": 1e30}, "invalid_value", "max_tokens"),
        ({"response_format": {"type": "text\0"}}, "invalid_value", "response_format.type"),
        ({"tool_choice": "none\0x"}, "invalid_value", "tool_choice"),
        ({"messages": [{"role": "user\0", "content": "x"}]}, "invalid_value", "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "text\0", "text": "x"}]}]}, "unsupported_content_part", "messages[0].content[0].type"),
        ({"chat_template_kwargs": {"messages": []}}, "invalid_value", "chat_template_kwargs"),
        ({"bad_words": ["x"]}, "unsupported_parameter", "bad_words"),
    ]
    for fields, code, param in table:
        param = False if param is None else param
        is_error(json.dumps(fields)[:60], s.request("POST", CHAT, {**chat(), **fields}), 400, code, param)
    said = s.post(CHAT, chat(mm_processor_kwargs={"do_pan_and_scan": True}))[1]["error"]["message"]
    check.true("pan and scan", "as the checkpoint's preprocessor_config.json says" in said, said)
    fine = {k: None for k in ("stop", "logprobs", "top_logprobs", "seed", "n", "stream", "stream_options", "tools", "tool_choice", "user", "model",
                              "top_p", "logit_bias", "response_format", "max_completion_tokens", "audio", "functions", "top_k", "metadata")}
    check.equal("nulls and unknown fields", s.post(CHAT, chat(**fine, chat_id="x", provider={"a": [1]}))[0], 200)
    nothing = {"bad_words": [], "logits_processors": [], "logprob_token_ids": [], "media_io_kwargs": {}, "chat_template_kwargs": {}, "x": 2**64}
    check.equal("fields that ask for nothing", s.post(CHAT, chat(**nothing))[0], 200)
    big = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer", "maximum": 2**64 - 1}}}}}
    check.equal("64 bits without a sign in a schema", s.post(CHAT, chat(tools=[big], tool_choice="none"))[0], 200)
    check.equal("tools with choice none", s.post(CHAT, chat(tools=[tool], tool_choice="none"))[0], 200)
    check.equal("empty tools", s.post(CHAT, chat(tools=[]))[0], 200)
    a = s.ok(CHAT, chat(service_tier="auto", user="u", seed=-1, top_k=0, top_p=0, temperature=1, repeat_penalty=1.1))
    check.equal("service_tier", a["service_tier"], "default")
    is_error("unknown model", s.request("POST", CHAT, chat(model="nope")), 404, "model_not_found", "model")
    check.true("and which there is", b"This server has `" in s.request("POST", CHAT, chat(model="nope"))[2])
    long = "m" * 5000
    status, answer = s.post(CHAT, chat(model=long))
    check.true("values are cut", status == 404 and len(answer["error"]["message"]) < 400)


def test_images(s):
    url = data_url(drawing())
    plain = s.ok(CHAT, parts({"type": "text", "text": "What is it?"}))["usage"]["prompt_tokens"]
    a = s.ok(CHAT, parts(image(url), {"type": "text", "text": "What is it?"}))
    tokens = a["usage"]["prompt_tokens_details"]["image_tokens"]
    check.true("image tokens", tokens > 0 and a["usage"]["prompt_tokens"] >= plain + tokens, a["usage"])
    b = s.ok(CHAT, parts(image(url.replace("image/png", "image/jpeg")), {"type": "text", "text": "What is it?"}))
    check.equal("declared type is ignored", b["choices"], a["choices"])
    shape = s.ok(CHAT, parts({"image_url": {"url": url}}, {"type": "text", "text": "What is it?"}))
    check.equal("part without type", shape["choices"], a["choices"])
    shape = s.ok(CHAT, parts({"type": "image_url", "image_url": url}, {"type": "text", "text": "What is it?"}))
    check.equal("url as a plain string", shape["choices"], a["choices"])
    chunks = s.stream(CHAT, parts(image(url), {"type": "text", "text": "What is it?"}))
    check.equal("image in a stream", stream_text(chunks), a["choices"][0]["message"]["content"])
    top = dict(logprobs=True, top_logprobs=5)
    x = s.ok(CHAT, parts(image(url), {"type": "text", "text": "?"}, **top))
    y = s.ok(CHAT, parts(image(data_url(drawing(3))), {"type": "text", "text": "?"}, **top))
    check.true("another image, other log-probs", x["choices"][0]["logprobs"] != y["choices"][0]["logprobs"])
    two = s.ok(CHAT, parts(image(url), image(data_url(drawing(3))), {"type": "text", "text": "?"}))
    check.equal("two images", two["usage"]["prompt_tokens_details"]["image_tokens"], 2 * tokens)
    check.equal("detail low", s.post(CHAT, parts(image(url, detail="low"), {"type": "text", "text": "?"}))[0], 200)
    truncated = drawing()[:200]
    huge = png(2, 2, lambda x, y: (0, 0, 0), claim=(60000, 60000))
    table = [
        (image(url, detail="max"), "invalid_value"),
        (image(data_url(truncated)), "image_parse_error"),
        (image("data:image/png;base64,"), "empty_image_file"),
        (image("data:image/png,abc"), "invalid_image_url"),
        (image(data_url(b"just some text, no image")), "unsupported_image_media_type"),
        (image("data:image/png;base64,!!!"), "invalid_base64_image"),
        (image(data_url(huge)), "image_too_large"),
        (image("http://127.0.0.1/x.png"), "invalid_image_url"),
        (image("https://169.254.169.254/"), "invalid_image_url"),
        (image("file:///etc/passwd"), "invalid_image_url"),
        (image("iVBORw0KGgo="), "invalid_image_url"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "unsupported_content_part"),
        ({"type": "file", "file": {"file_id": "x"}}, "unsupported_content_part"),
        ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}, "unsupported_content_part"),
    ]
    for part, code in table:
        is_error(json.dumps(part)[:70], s.request("POST", CHAT, parts(part, {"type": "text", "text": "?"})), 400, code)
    is_error("17 images", s.request("POST", CHAT, parts(*[image(url)] * 17)), 400, "too_many_images")


def test_messages(s):
    conversation = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"},
                    {"role": "user", "content": [{"type": "text", "text": "And?"}]}]
    a = s.ok(CHAT, {"messages": conversation, "max_tokens": 3, "temperature": 0})
    tokens = s.ok("/tokenize", {"messages": conversation})
    check.equal("tokenize = prompt_tokens", tokens["count"], a["usage"]["prompt_tokens"])
    check.equal("count", tokens["count"], len(tokens["tokens"]))
    developer = [{**conversation[0], "role": "developer"}] + conversation[1:]
    check.equal("developer = system", s.ok("/tokenize", {"messages": developer})["tokens"], tokens["tokens"])
    open_end = s.ok("/tokenize", {"messages": conversation[:3], "add_generation_prompt": False, "continue_final_message": True})["tokens"]
    check.equal("continue_final_message", s.post(CHAT, {"messages": conversation[:3], "continue_final_message": True, "add_generation_prompt": False, "max_tokens": 2})[0], 200)
    closed = s.ok("/tokenize", {"messages": conversation[:3], "add_generation_prompt": False})["tokens"]
    check.true("left open", open_end == closed[:len(open_end)] and len(open_end) < len(closed), (open_end, closed))
    typed = s.ok("/tokenize", {"messages": [{"role": "user", "content": "<end_of_turn>"}]})["tokens"]
    plain = s.ok("/tokenize", {"messages": [{"role": "user", "content": ""}]})["tokens"]
    special = s.ok("/tokenize", {"prompt": "<end_of_turn>", "add_special_tokens": False})["tokens"]
    check.true("typed control tokens stay text", typed.count(special[0]) == plain.count(special[0]), (typed, special))
    twice = s.request("POST", CHAT, {"messages": [{"role": "user", "content": "a"}] * 2})
    is_error("alternation", twice, 400, "chat_template_error", "messages")
    check.true("it names the message", b"messages[1] (role 'user' after 'user'): " in twice[2], twice[2])
    lists = [{"role": "system", "content": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}]}, conversation[1]]
    first = [{"role": "system", "content": "Be brief."}, conversation[1]]
    check.equal("of a system message in parts this template shows the first", *(s.ok("/tokenize", {"messages": m})["tokens"] for m in (lists, first)))
    lists[0]["content"].append(image(data_url(drawing())))
    is_error("an image in a system message", s.request("POST", CHAT, {"messages": lists}), 400, "chat_template_error", "messages")


def test_tokenize(s):
    sample = "Hello, w\u00f6rld \U0001f600\n\n  two"
    a = s.ok("/tokenize", {"prompt": sample, "return_token_strs": True})
    check.true("tokenize", a["count"] == len(a["tokens"]) == len(a["token_strs"]) and a["max_model_len"] > 0)
    bare = s.ok("/tokenize", {"prompt": sample, "add_special_tokens": False})["tokens"]
    check.equal("round trip", s.ok("/detokenize", {"tokens": bare})["prompt"], sample)
    is_error("tokenize nothing", s.post("/tokenize", {}), 400, "missing_required_parameter")
    is_error("bad tokens", s.post("/detokenize", {"tokens": [1, "x"]}), 400, "invalid_type", "tokens")
    is_error("no such token", s.post("/detokenize", {"tokens": [-1]}), 400, "invalid_value", "tokens")
    # As lm-eval's remote tokenizer asks.
    info = json.loads(s.request("GET", "/tokenizer_info")[2])
    check.true("tokenizer_info", {"bos_token", "eos_token", "pad_token", "chat_template"} <= set(info), info)
    eos = s.ok("/tokenize", {"prompt": info["eos_token"], "add_special_tokens": False})["tokens"]
    said = s.ok("/detokenize", {"tokens": eos})["prompt"]
    check.equal("its end token is one", (len(eos), said), (1, info["eos_token"]))
    props = json.loads(s.request("GET", "/props")[2])
    check.equal("its template", info["chat_template"], props["chat_template"])
    card = json.loads(s.request("GET", "/v1/models")[2])["data"][0]
    check.equal("determinism", props["determinism"], card["determinism"])
    promise, answer = card["determinism"], s.ok(TEXT, text(max_tokens=1))
    check.equal("of an answer", answer["system_fingerprint"], promise["system_fingerprint"])
    check.true("it is on", promise["batch_invariant"] is True and promise["numerics_revision"] > 0)


def test_misspelt(s):
    """A field that is nearly a known one is named, in every API; fields of other servers are not."""
    odd = {"tempreature": 0, "models": ["a"], "n_probs": 1, "min_k": 2, "unheard_of": 3}
    user = [{"role": "user", "content": "Hi"}]
    want = ["The field 'tempreature' is unknown and ignored: 'temperature' is similar."]
    for path, body in ((CHAT, {"messages": user, "max_tokens": 1}),
                       ("/v1/completions", {"prompt": "Hi", "max_tokens": 1}),
                       ("/v1/messages", {"messages": user, "max_tokens": 1}),
                       ("/v1/responses", {"input": "Hi", "max_output_tokens": 1}),
                       ("/api/chat", {"messages": user, "stream": False})):
        got = s.ok(path, {**body, **odd}).get("warnings")
        check.equal(f"misspelt, {path}", got, want)
        check.true(f"well spelt, {path}", "warnings" not in s.ok(path, body))
    short = {"messages": user, "max_tokens": 1}
    form = {"type": "text", "json_shema": {}}
    for path, body, name, near in (
            ("/tokenize", {"content": "Hi", "add_special_token": 1}, "add_special_token",
             "add_special_tokens"),
            (CHAT, {**short, "reasoning": {"efort": "low"}}, "reasoning.efort", "effort"),
            (CHAT, {**short, "response_format": form}, "response_format.json_shema", "json_schema"),
            ("/v1/responses", {"input": "Hi", "text": {"verbosty": "low"}}, "text.verbosty", "verbosity")):
        want_it = f"The field '{name}' is unknown and ignored: '{near}' is similar."
        check.equal(f"misspelt, {path} {name}", s.ok(path, body)["warnings"], [want_it])
    status, _, data = s.request("POST", CHAT, {"mesages": user})
    check.true("a required field is misspelt", status == 400 and b"'messages' is similar" in data, data)
    options = {"num_predict": 1, "tempreature": 0, "num_ctx": 9, "unheard_of": 3}
    got = s.ok("/api/chat", {"messages": user, "stream": False, "options": options}).get("warnings")
    check.equal("misspelt in Ollama's options", got, want)
    chunks = s.stream(CHAT, {"messages": user, "max_tokens": 1, **odd})
    check.true("misspelt, streamed", any("warnings" in c for c in chunks), chunks)
    schema = {"type": "array", "items": {"type": "number"}, "uniqueItems": True}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    both = s.ok(CHAT, {"messages": user, "max_tokens": 1, "response_format": form, **odd})
    check.equal("after those of a schema", both["warnings"][1:], want)
    check.true("which come first", "uniqueItems" in both["warnings"][0])


def test_http(s):
    name = json.loads(s.request("GET", "/v1/models")[2])["data"][0]
    check.true("model card", {"id", "object", "created", "owned_by", "root", "max_model_len"} <= set(name))
    check.equal("retrieve", json.loads(s.request("GET", "/v1/models/" + name["id"])[2]), name)
    check.equal("percent encoded", json.loads(s.request("GET", "/v1/models/%" + format(ord(name["id"][0]), "02X") + name["id"][1:])[2]), name)
    listed = [sorted(json.loads(s.request("GET", "/v1/models" + q)[2])) for q in ("", "?client_version=0.1")]
    check.equal("Codex's list for Codex alone", listed, [["data", "object"], ["data", "models", "object"]])
    is_error("no such model", s.request("GET", "/v1/models/nope%2Fx"), 404, "model_not_found", "model")
    for path in ("/health", "/ready", "/health/ready", "/readyz", "/live", "/health/live", "/livez", "/ping", "/version", "/metrics", "/load", "/", "//health/", "/health?x=1"):
        check.equal(path, s.request("GET", path)[0], 200)
        status, head, body = s.request("HEAD", path)
        check.true("HEAD " + path, status == 200 and body == b"" and "content-length" in head, (status, head))
    check.equal("/health is empty", s.request("GET", "/health")[2], b"")
    check.equal("POST /ping", s.request("POST", "/ping", b"")[0], 200)
    check.equal("ready", json.loads(s.request("GET", "/ready")[2]), {"status": "ready"})
    check.true("version", re.fullmatch(r"\d+\.\d+\.\d+(-dev)?", json.loads(s.request("GET", "/version")[2])["version"]))
    a = s.request("GET", CHAT)
    is_error("GET on a POST route", a, 405, "method_not_supported")
    check.equal("Allow", a[1].get("allow"), "POST, OPTIONS")
    is_error("DELETE", s.request("DELETE", "/v1/models"), 405, "method_not_supported")
    a = s.request("GET", "/v1/nope")
    is_error("unknown URL", a, 404, "unknown_url")
    check.equal("its message", json.loads(a[2])["error"]["message"],
                "Invalid URL (GET /v1/nope): GET /openapi.json lists the endpoints")
    check.equal("405 names the methods", json.loads(s.request("GET", CHAT)[2])["error"]["message"],
                "GET is not supported for this URL: it takes POST, OPTIONS.")
    for body in (b"{", b"", b"[]", b'{"messages":[]} x', b"[" * 500, b'{"a":' * 200 + b"1" + b"}" * 200, b'{"max_tokens":1e999}', b"\xff\xfe"):
        is_error(f"body {body[:20]!r}", s.request("POST", CHAT, body), 400, "invalid_json", None)
    odd = json.dumps(chat("X")).encode().replace(b'"X"', b'"a\xff\\ud800b\\u0000c"')
    check.equal("repaired text", s.request("POST", CHAT, b"\xef\xbb\xbf" + odd)[0], 200)
    is_error("text/plain", s.request("POST", CHAT, chat(), {"Content-Type": "text/plain"}), 415, "unsupported_media_type")
    is_error("no type", s.request("POST", CHAT, chat(), {"Content-Type": None}), 415, "unsupported_media_type")
    check.equal("charset", s.request("POST", CHAT, chat(), {"Content-Type": "application/json; charset=utf-8"})[0], 200)
    a = s.request("POST", CHAT, chat(), {"Content-Encoding": "gzip"})
    is_error("gzip", a, 415, "unsupported_media_type")
    check.equal("what would do", (a[1].get("accept-encoding"), a[1].get("accept")), ("identity", None))
    is_error("no body", s.request("POST", CHAT, b""), 400, "invalid_json", None)
    a = s.request("POST", CHAT, chat(), {"X-Request-Id": "abc"})
    check.equal("request id", (a[1]["x-request-id"], json.loads(a[2])["id"]), ("abc", "chatcmpl-abc"))
    a = s.request("POST", CHAT, chat(), {"X-Request-Id": "bad id"})
    check.true("bad request id", re.fullmatch("[0-9a-f]{32}", a[1]["x-request-id"]))
    check.equal("request_id field", s.ok(CHAT, chat(request_id="r-1"))["id"], "chatcmpl-r-1")
    page = "http://localhost:3000"
    a = s.request("OPTIONS", CHAT, None, {"Origin": page, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-y"})
    check.true("preflight", a[0] == 204 and a[1]["access-control-allow-origin"] == page and "authorization" in a[1]["access-control-allow-headers"]
               and "POST" in a[1]["access-control-allow-methods"], a)
    a = s.request("POST", CHAT, b"{", {"Origin": page})
    check.true("CORS on errors", a[1].get("access-control-allow-origin") == page and "access-control-expose-headers" in a[1])
    check.equal("OPTIONS /", s.request("OPTIONS", "/")[0], 204)
    check.equal("open server ignores keys", s.request("POST", CHAT, chat(), {"Authorization": "Bearer None"})[0], 200)


def test_wire(s):
    post = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    body = json.dumps(chat()).encode()

    def status(raw):
        return int(raw.split(b" ", 2)[1]) if raw.startswith(b"HTTP/1.1 ") else None

    raw = s.raw(post + b"Content-Length: 68157441\r\n\r\n")
    check.true("413 before the body", status(raw) == 413 and b'"code":"request_too_large"' in raw and b"Connection: close" in raw, raw)
    check.equal("TE and CL", status(s.raw(post + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n")), 400)
    check.equal("two lengths", status(s.raw(post + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}    ")), 400)
    check.true("unknown coding", status(s.raw(post + b"Transfer-Encoding: xchunked\r\n\r\n")) in (400, 501))
    for what, request in (("no Host", b"GET /health HTTP/1.1\r\nX: y\r\n\r\n"), ("a space in the target", b"GET /hea lth HTTP/1.1\r\nHost: x\r\n\r\n"),
                          ("a space behind it", b"GET /health?a HTTP/1.1 HTTP/1.1\r\nHost: x\r\n\r\n"), ("a carriage return in a header", b"GET /health HTTP/1.1\r\nHost: x\r\nX: y\rZ: z\r\n\r\n"),
                          ("a control character", b"GET /health HTTP/1.1\r\nHost: x\r\nX: \x01\r\n\r\n")):
        raw = s.raw(request)
        check.true(what, status(raw) == 400 and raw.count(b"HTTP/1.1") == 1 and b'"code":"invalid_request"' in raw, raw)
    check.equal("HTTP/1.0 needs no Host", s.raw(b"GET /health HTTP/1.0\r\n\r\n").split(b" ")[1], b"200")
    check.equal("tabs, letters, arguments", status(s.raw(b"GET /health?a=b+c%20d HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: \xc3\xa4\ty\r\n\r\n")), 200)
    check.equal("long URL", status(s.raw(b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")), 414)
    check.equal("a header's name with a space", status(s.raw(b"GET /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n")), 400)
    check.equal("large headers", status(s.raw(b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 70000 + b"\r\n\r\n")), 431)
    check.equal("Expect: other", status(s.raw(post + b"Expect: 200-maybe\r\nContent-Length: 2\r\n\r\n")), 417)
    with socket.create_connection((s.host, s.port), timeout=60) as c:
        c.sendall(post + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
        first = c.recv(1000)  # before there is any body
        check.true("100 Continue", first.startswith(b"HTTP/1.1 100"), first)
        c.sendall(body)
        check.equal("then 200", status(c.recv(1000)), 200)
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (body[:10], body[10:])) + b"0\r\n\r\n"
    request = post + b"Transfer-Encoding: chunked\r\n"
    check.equal("chunked body", status(s.raw(request + b"Connection: close\r\n\r\n" + chunked)), 200)
    one = post + b"Content-Length: %d\r\n" % len(body)
    raw = s.raw(one + b"\r\n" + body + one + b"Connection: close\r\n\r\n" + body)
    check.equal("pipelined pair", raw.count(b"HTTP/1.1 200"), 2)
    connection = s.connect()
    for _ in range(3):
        connection.request("POST", CHAT, body, {"Content-Type": "application/json"})
        check.equal("kept connection", json.loads(connection.getresponse().read())["object"], "chat.completion")
    connection.request("POST", CHAT, b"x" * 1000, {"Content-Type": "text/plain"})
    answer = connection.getresponse()
    answer.read()
    check.equal("refused, connection kept", (answer.status, answer.getheader("Connection")), (415, None))
    connection.request("GET", "/health")
    check.equal("and used again", connection.getresponse().status, 200)
    connection.close()
    # Clients that leave in the middle of a request, so that their end comes together with what they sent.
    for sent in (b"", post[:40], post + b"Content-Length: 100\r\n\r\n{"):
        for reset in (False, True):
            s.pause()
            c = socket.create_connection((s.host, s.port))
            c.sendall(sent)
            if reset:
                c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            c.close()
            s.resume()
    check.true("who left is forgotten", wait_until(lambda: s.metric("kvasir:open_connections") == 1), s.metric("kvasir:open_connections"))
    # A body that is too large, which the client sends all the same, for longer than the server bears silence.
    for _ in range(5):
        pause = 0
        with socket.create_connection((s.host, s.port), timeout=60) as c:
            c.sendall(post + b"Content-Length: 68157441\r\n\r\n")
            start = last = time.monotonic()
            try:
                while last - start < 2.6:
                    time.sleep(0.05)
                    c.sendall(b" " * 4096)
                    now = time.monotonic()
                    pause, last = max(pause, now - last), now
                c.shutdown(socket.SHUT_WR)
                got = status(read_all(c))
            except OSError as fault:
                got = fault
        if got == 413 or pause < 1:  # else this machine has kept us from sending
            break
    check.equal("413 is not torn away", got, 413)


def test_metrics(s):
    status, head, body = s.request("GET", "/metrics")
    check.true("content type", head["content-type"].startswith("text/plain; version=0.0.4"))
    seen, families, buckets = set(), set(), {}
    for line in body.decode().splitlines():
        if line.startswith("# TYPE "):
            name = line.split()[2]
            check.true(f"family {name} once", name not in families)
            families.add(name)
            continue
        if line.startswith("#") or not line:
            continue
        match = re.fullmatch(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{([a-z_]+="(\\.|[^"\\])*",?)*\})? (\S+)', line)
        if not check.true("sample syntax", match, line):
            continue
        series = line.rsplit(" ", 1)[0]
        check.true("no series twice", series not in seen, series)
        seen.add(series)
        value = float(line.rsplit(" ", 1)[1])
        if match[1].endswith("_bucket"):
            key = (match[1], re.sub(r',?le="[^"]*"', "", match[2]))
            check.true("monotone buckets", value >= buckets.get(key, 0), line)
            buckets[key] = value
        elif match[1].endswith("_count") and match[1][:-6] in families:
            check.equal("+Inf = count", buckets[(match[1][:-6] + "_bucket", match[2])], value)
    check.true("no _created", not any("_created" in x for x in seen))
    starred = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total", "generation_tokens_total", "request_success_total",
               "request_prompt_tokens", "request_generation_tokens", "request_max_num_generation_tokens", "time_to_first_token_seconds",
               "inter_token_latency_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds",
               "request_decode_time_seconds", "prefix_cache_queries_total", "prefix_cache_hits_total", "mm_cache_queries_total", "mm_cache_hits_total",
               "prompt_tokens_cached_total", "prompt_tokens_recomputed_total", "prompt_tokens_by_source_total", "cache_config_info"]
    for name in starred:
        check.true("present: " + name, "vllm:" + name in families)
    check.true("usage per group", any(x.startswith("kvasir:kv_blocks_used{") for x in seen))
    before = s.metric("vllm:generation_tokens_total")
    s.ok(CHAT, chat(max_tokens=5, ignore_eos=True))
    check.equal("tokens counted", s.metric("vllm:generation_tokens_total") - before, 5)
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../server/api/routes.def")) as f:
        rows = f.read()
    routes = re.findall(r'^ROUTE\("([^"]+)",\s*"([^"]+)",', rows, re.M)  # path, label
    check.true("routes are read", len(routes) > 30, len(routes))
    for path, _ in routes:
        for method in ("GET", "HEAD", "POST", "DELETE", "PUT"):
            s.request(method, path + "x" * path.startswith("/v1/") if path.endswith("/") else path)
    counted = {x.split('"')[1] for x in s.metrics() if x.startswith("http_requests_total{")}
    missing = sorted({label for _, label in routes} - counted)
    check.equal("each route is counted, whatever was asked before", missing, [])


def test_disconnect():
    s = Server(BINARY, endless(MODEL))
    try:
        for stream in (True, False):
            def aborted():
                return sum(v for k, v in s.metrics().items() if k.startswith('vllm:request_success_total{engine="0",finished_reason="abort",'))

            before = aborted()
            body = json.dumps(chat(stream=stream, max_tokens=ENDLESS, ignore_eos=True, temperature=1, n=4)).encode()
            c = socket.create_connection((s.host, s.port))
            c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            if stream:
                c.recv(100)
            check.true("it runs", wait_until(lambda: s.held()[1] == 4), s.held())
            c.close()
            check.true(f"KV freed within a second (stream={stream})", s.soon(lambda: s.held() == (0, 0, 0)), s.held())
            check.equal("no KV counts as used", s.metric("vllm:kv_cache_usage_perc"), 0)
            check.true("counted as aborted", wait_until(lambda: aborted() - before == 4), aborted() - before)
    finally:
        s.stop()


def test_keys():
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as f:
        f.write("# keys\nsecret-one\nsecret-two\n")
        f.flush()
        s = Server(BINARY, MODEL, "--api-key-file", f.name, "--served-model-name", "org/tiny")
        try:
            a = s.request("POST", CHAT, chat())
            is_error("no key", a, 401, "invalid_api_key")
            check.equal("WWW-Authenticate", a[1].get("www-authenticate"), "Bearer")
            is_error("wrong key", s.request("GET", "/v1/models", None, {"Authorization": "Bearer nope"}), 401, "invalid_api_key")
            is_error("tokenize needs a key", s.request("POST", "/tokenize", {"prompt": "x"}), 401, "invalid_api_key")
            for head in ({"Authorization": "Bearer secret-one"}, {"authorization": "bearer secret-two"}, {"x-api-key": "secret-one"}, {"api-key": "secret-two"}):
                check.equal(str(head), s.request("POST", CHAT, chat(), head)[0], 200)
            check.equal("open paths", [s.request("GET", p)[0] for p in ("/health", "/metrics", "/live", "/version", "/ready")], [200] * 5)
            a = s.request("OPTIONS", CHAT, None, {"Origin": "http://x", "Access-Control-Request-Method": "POST"})
            check.equal("preflight without a key", a[0], 204)
            key = {"x-api-key": "secret-one"}
            check.equal("id with a slash", [s.request("GET", "/v1/models/" + i, None, key)[0] for i in ("org/tiny", "org%2Ftiny", "org%2ftin")], [200, 200, 404])
        finally:
            s.stop()


def test_small_arena():
    """What the KV memory can't hold is not offered as context, and all that is offered can be used."""
    model = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/gemma3/released_keys_f32")
    with open(os.path.join(model, "config.json")) as f:
        config = json.load(f)
    s = Server(BINARY, model, "--kv-memory", "1M", "--log-level", "error")
    try:
        window = json.loads(s.request("GET", "/v1/models")[2])["data"][0]["max_model_len"]
        check.true("less than the model's own", 0 < window < config.get("text_config", config).get("max_position_embeddings", 131072), window)
        check.equal("no limit asked for", s.ok(CHAT, chat("a", max_tokens=None, ignore_eos=True))["usage"]["total_tokens"], window)
        is_error("one more", s.post(TEXT, text([2] + [5] * (window - 4), max_tokens=4)), 400, "context_length_exceeded", "prompt")
    finally:
        s.stop()


def hold(s, **fields):
    """A sequence that runs until its connection is closed; returns that. No stream: of one that nobody reads so much may wait, then it is ended."""
    c = s.connect()
    c.request("POST", CHAT, json.dumps(chat(max_tokens=ENDLESS, ignore_eos=True, **fields)), {"Content-Type": "application/json"})
    check.true("it runs", wait_until(lambda: s.held()[1] == 1), s.held())
    return c


def test_queue():
    s = Server(BINARY, endless(MODEL), "--max-queue", "2", "--max-sequences", "1")
    try:
        holder, answers = hold(s), []

        def one():
            answers.append(s.post(CHAT, chat())[0])

        threads = []
        for waiting in (1, 2):
            threads.append(threading.Thread(target=one))
            threads[-1].start()
            check.true("it waits", wait_until(lambda: s.held()[1:] == (1, waiting)), s.held())
        for _ in range(3):
            status, head, data = s.request("POST", CHAT, chat())
            is_error("queue full", (status, head, data), 429, "rate_limit_exceeded", None)
            retry = head.get("retry-after", "")
            check.true("Retry-After", retry.isdigit() and 1 <= int(retry) <= 30, retry)
        for path in (CHAT, TEXT, "/v1/messages", "/v1/responses", "/v1/responses/compact", "/v1/embeddings",
                     "/pooling", "/v1/classify", "/classify", "/v1/rerank", "/v2/rerank", "/v1/score",
                     "/api/chat", "/api/generate", "/api/embed", "/api/embeddings"):
            status, head, _ = s.request("POST", path, "not JSON")
            check.equal(f"{path}: before its body is read", (status, "retry-after" in head), (429, True))
        check.equal("no place is needed", s.request("POST", "/tokenize", {"prompt": "x"})[0], 200)
        check.equal("and the body is read there", s.request("POST", "/tokenize", "not JSON")[0], 400)
        holder.close()
        for t in threads:
            t.join()
        check.equal("those that waited are answered", answers, [200, 200])
        check.equal("and it still answers", s.post(CHAT, chat())[0], 200)
    finally:
        s.stop()


def test_drain():
    patient = ("--drain-timeout", "600")
    answers = []

    def long():
        answers.append(s.stream(CHAT, chat(max_tokens=500, ignore_eos=True, n=6), timeout=300))

    def running():
        thread, before = threading.Thread(target=long), len(answers)
        thread.start()
        check.true("the stream has begun", wait_until(lambda: s.held()[1] > 1 or len(answers) > before))  # beside the one that holds
        return thread

    s = Server(BINARY, endless(MODEL), *patient)
    open_before = [s.connect() for _ in range(2)]
    for c in open_before:  # used once: a connection without any request is closed after ten seconds
        c.request("GET", "/live")
        c.getresponse().read()
    holder, thread = hold(s), running()
    s.process.send_signal(signal.SIGTERM)

    def draining():
        """New connections are refused; that comes before the answer on those that are open."""
        try:
            s.connect().connect()
            return False
        except OSError:
            return True

    check.true("no new connections while draining", wait_until(draining))
    probe, late = open_before
    probe.request("GET", "/ready")
    check.equal("unready while draining", probe.getresponse().status, 503)
    late.request("POST", CHAT, json.dumps(chat()), {"Content-Type": "application/json"})
    a = late.getresponse()
    is_error("new requests while draining", (a.status, {k.lower(): v for k, v in a.getheaders()}, a.read()), 503, "server_draining")
    thread.join()
    check.true("the stream completes", answers and answers[0][-1]["choices"][0]["finish_reason"] == "length")
    check.equal("the process waits for another", s.process.poll(), None)
    holder.close()
    check.run(lambda: s.stop(send=False))
    s = Server(BINARY, endless(MODEL), *patient)
    holder, thread = hold(s), running()
    s.pause()
    for signum in (signal.SIGINT, signal.SIGTERM):  # one Ctrl-C: the terminal's signal and that of a script around the server
        s.process.send_signal(signum)
    s.resume()
    thread.join()
    check.true("two signals at once: the stream completes", len(answers) == 2 and answers[1][-1]["choices"][0]["finish_reason"] == "length")
    holder.close()
    check.run(lambda: s.stop(send=False))
    s = Server(BINARY, endless(MODEL), "--drain-timeout", "0", "--shutdown-delay", "0")
    c = s.connect()
    c.request("POST", CHAT, json.dumps(chat(max_tokens=ENDLESS, ignore_eos=True, stream=True, n=8)), {"Content-Type": "application/json"})
    a = c.getresponse()
    a.read(10)
    s.process.send_signal(signal.SIGTERM)
    rest = a.read()
    check.true("drain limit: error in the stream", rest.endswith(b"data: [DONE]\n\n") and b"server_draining" in rest, rest[-300:])
    check.run(lambda: s.stop(send=False))
    s = Server(BINARY, MODEL, "--shutdown-delay", "600")
    s.process.send_signal(signal.SIGTERM)
    check.true("unready in the delay", wait_until(lambda: s.request("GET", "/ready")[0] == 503))
    check.equal("alive in the delay", s.request("GET", "/live")[0], 200)
    check.equal("still serving in the delay", s.request("POST", CHAT, chat())[0], 200)
    time.sleep(0.4)  # later than what counts as the same signal
    s.process.send_signal(signal.SIGTERM)
    check.true("the second signal ends at once, not after the delay", s.process.wait(120) != 0)
    s.process.stdout.close()


def test_loading():
    """The chat template is a pipe that nobody writes to: loading waits for it, and the server answers probes meanwhile."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        pipe = os.path.join(folder, "pipe")
        os.mkfifo(pipe)
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # stays bound, so that nobody else is given the port; the server may listen on it
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        s = Server(BINARY, MODEL, "--chat-template", pipe, "--port", str(port), wait=False)
        s.port = port

        def up():
            try:
                return s.request("GET", "/live")[0] == 200
            except OSError:
                return False

        check.true("alive while loading", wait_until(up))
        check.equal("unready while loading", [s.request("GET", p)[0] for p in ("/health", "/ready", "/v1/models")], [503, 503, 200])
        a = s.request("POST", CHAT, chat())
        is_error("chat while loading", a, 503, "model_loading", None)
        check.true("Retry-After", a[1].get("retry-after", "").isdigit())
        with open(pipe, "wb"):
            pass
        check.equal("nothing came from it: exit", s.process.wait(120), 1)
        check.equal("nothing on stdout", s.process.stdout.read(), "")
        s.process.stdout.close()


def test_answer_memory():
    """Answers have a budget together: beyond it the largest gives way, one that nobody reads too, and small ones go on."""
    scored = lambda prompts: {"prompt": [[5 + i % 50 for i in range(1500)]] * prompts, "max_tokens": 1, "prompt_logprobs": 20}
    s = Server(BINARY, MODEL, "--response-memory", "16M")
    try:
        body = json.dumps(scored(4)).encode()
        with socket.create_connection((s.host, s.port), timeout=10) as c:
            c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            check.true("an answer that nobody reads is held", wait_until(lambda: s.metric("kvasir:response_bytes") > 8 << 20), s.metric("kvasir:response_bytes"))
            check.equal("it makes room for one that is read", s.request("POST", "/v1/completions", scored(3))[0], 200)
            check.true("and is gone", wait_until(lambda: s.metric("kvasir:response_bytes") == 0), s.metric("kvasir:response_bytes"))
        a = s.request("POST", "/v1/completions", scored(9))
        is_error("too much", a, 429, "rate_limit_exceeded", None)
        check.equal("Retry-After", a[1].get("retry-after"), "5")
        check.true("nothing is held", wait_until(lambda: s.metric("kvasir:response_bytes") == 0), s.metric("kvasir:response_bytes"))
    finally:
        s.stop()
    s = Server(BINARY, MODEL, "--response-memory", "16K")
    try:
        large, small = {"prompt": [5, 6], "max_tokens": 900, "n": 16, "ignore_eos": True}, {"prompt": [5, 6], "max_tokens": 5, "ignore_eos": True}
        want = s.ok("/v1/completions", {**small, "seed": 1})["choices"]
        got = []
        t = threading.Thread(target=lambda: got.append(s.request("POST", "/v1/completions", {**large, "stream": True})[2]))
        t.start()
        while t.is_alive():
            check.equal("a small one meanwhile", s.ok("/v1/completions", {**small, "seed": 1})["choices"], want)
        t.join()
        check.true("an error ends the stream", b'"code":"rate_limit_exceeded"' in got[0] and got[0].endswith(b"data: [DONE]\n\n"), got[0][-300:])
        check.equal("the large one", s.request("POST", "/v1/completions", large)[0], 429)
        check.true("nothing is held", wait_until(lambda: s.metric("kvasir:response_bytes") == 0), s.metric("kvasir:response_bytes"))
    finally:
        s.stop()
    s = Server(BINARY, MODEL, "--response-memory", "2M")
    try:
        body = json.dumps(chat(max_tokens=900, n=4, ignore_eos=True, logprobs=True, top_logprobs=20, stream=True)).encode()
        with socket.socket() as c:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            c.connect((s.host, s.port))
            c.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body)) + body)
            check.true("a stream that nobody reads gives way", wait_until(lambda: s.metric("vllm:request_success_total") == 4), s.metric("vllm:request_success_total"))
            check.true("what nobody has read of it isn't held", s.metric("kvasir:response_bytes") < 64 << 10, s.metric("kvasir:response_bytes"))
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)  # else the rest may take minutes
            c.settimeout(30)
            events = [line[6:] for line in re.sub(rb"\r\n[0-9a-fA-F]+\r\n", b"", read_all(c)).split(b"\n") if line.startswith(b"data: ")]
        check.equal("the error is its end", (json.loads(events[-2])["error"]["code"] if len(events) > 1 else 0, events[-1:]), ("rate_limit_exceeded", [b"[DONE]"]))
        check.true("of whole events", all(json.loads(x)["choices"] for x in events[:-2]))
        check.true("nothing is held", wait_until(lambda: s.metric("kvasir:response_bytes") == 0), s.metric("kvasir:response_bytes"))
    finally:
        s.stop()


def test_overdue():
    """Bodies that don't come are answered, whatever of them is there; slow ones are waited for."""
    s = Server(BINARY, MODEL, "--keep-alive-timeout", "1")
    try:
        post = b"POST %s HTTP/1.1\r\nHost: x\r\nOrigin: http://[::1]:9\r\nContent-Type: application/json\r\n"
        body = json.dumps(chat()).encode()
        for what, path, rest, want in (("nothing", CHAT, b"Content-Length: 100\r\n\r\n", (408, "request_timeout")), ("a part", CHAT, b"Content-Length: 100\r\n\r\n{", (408, "request_timeout")),
                                       ("a chunk", CHAT, b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", (408, "request_timeout")),
                                       ("what was refused", "/nope", b"Content-Length: 100\r\n\r\n{", (404, "unknown_url"))):
            t = time.monotonic()
            head, _, text = s.raw(post % path.encode() + rest).partition(b"\r\n\r\n")
            answer = json.loads(text or b"{}")
            check.equal(f"{what}: answer", (int(head[9:12] or 0), answer.get("error", {}).get("code")), want)
            check.true(f"{what}: headers", b"Connection: close" in head and b"Access-Control-Allow-Origin: http://[::1]:9\r\nContent" in head and b"Content-Length: %d" % len(text) in head, head)
            check.true(f"{what}: time", 0.9 < time.monotonic() - t < 30)
        for _ in range(10):
            with socket.create_connection((s.host, s.port), timeout=10) as c:
                c.sendall(post % CHAT.encode() + b"Content-Length: %d\r\n\r\n" % len(body))
                t, longest = time.monotonic(), 0
                for i in range(4):
                    time.sleep(0.4)
                    c.sendall(body[i:i + 1] if i < 3 else body[3:])
                    t, longest = time.monotonic(), max(longest, time.monotonic() - t)
                answer = c.recv(1000)
            if longest < 0.8:  # else this side was held up: no fault of the server's
                break
        check.true("slow, but it comes", answer.startswith(b"HTTP/1.1 200"), (longest, answer))
        check.true("counted", s.metric("kvasir:requests_rejected_total") >= 4)
        refused = socket.create_connection((s.host, s.port), timeout=10)
        refused.sendall(post % b"/nope" + b"Content-Length: 1000000\r\n\r\n{")
        check.true("an answer before the body's end", refused.recv(1000).startswith(b"HTTP/1.1 404"))
    finally:
        s.stop()  # while the rest of that body is still waited for
    refused.close()


def flag_groups(pattern, text):
    """-> flag: the heading above it"""
    out, title = {}, None
    for heading, flag in re.findall(pattern, text, re.M):
        title = heading or title
        if flag:
            out.setdefault(flag, title)
    return out


def inspect_without_weights():
    """The memory of weights that aren't there: by quantization_config, and by the index."""
    llama = {"model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8,
             "vocab_size": 64, "num_attention_heads": 8}
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": False}

    def weights(index=None, **quantization):
        with tempfile.TemporaryDirectory() as folder:
            config = {**llama, "quantization_config": quantization} if quantization else llama
            json.dump(config, open(os.path.join(folder, "config.json"), "w"))
            if index:
                where = os.path.join(folder, "model.safetensors.index.json")
                named = {"metadata": {"total_size": index}, "weight_map": {"a": "model-1.safetensors"}}
                json.dump(named, open(where, "w"))
            run = subprocess.run([BINARY, "inspect", "--model", folder], capture_output=True, text=True)
        return float(re.search("^memory .*: weights ([0-9.]+),", run.stdout, re.M).group(1)), run.stdout

    plain, packed = weights()[0], weights(**awq)[0]
    down = 8 * 1024 * 4096 * (2 - 0.625) / 2**20  # bf16 and not 4 bits with a scale and a minimum of 32 each
    check.true("4 bits", abs(packed / plain - 0.625 / 2) < 0.01, (plain, packed))
    whole_names = [f"model.layers.{i}.mlp.down_proj" for i in range(8)]
    for kept in (["mlp.down_proj"], whole_names, ["down_proj", "visual"]):
        more = weights(**awq, modules_to_not_convert=kept)[0] - packed
        check.true(f"{kept[0]} stays in bf16", abs(more - down) < 0.2, (more, down))
    one = weights(**awq, modules_to_not_convert=["model.layers.3.mlp.down_proj"])[0] - packed
    check.true("of one layer", abs(one - down / 8) < 0.2, (one, down / 8))
    rounded = {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4}
    floats = {name: {"bits": 16} for name in whole_names}
    check.equal("AutoRound", weights(**rounded)[0], packed)
    check.equal("its floats", weights(**rounded, extra_config=floats)[0],
                weights(**awq, modules_to_not_convert=whole_names)[0])
    size, said = weights(**awq, index=123 << 20)
    check.true("by the index", size == 123 and "stored as awq, 123.0 MiB in the files" in said, said)
    check.equal("FP8 becomes bf16", weights(quant_method="fp8", index=50 << 20)[0], plain)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("config.json", "tokenizer.json"):
            shutil.copy(os.path.join(MODEL, name), folder)
        shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
        with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
            json.dump({"weight_map": dict(zip("ab", shards, strict=True))}, f)
        run = subprocess.run([BINARY, "serve", "--model", folder, "--port", "0"], capture_output=True, text=True)
    check.true("serve names the missing shards", run.returncode == 1
               and f"2 of its 2 shard files are missing, the first is {shards[0]}" in run.stderr, run)
    size, said = weights(**awq, index=123 << 40)
    first = said.splitlines()[0]
    no = "served     no: weights and working memory take"
    check.true("too large: shown, and said", first.startswith(no)
               and first.endswith("1 of its 1 shard files are missing, the first is model-1.safetensors")
               and "\nlayers\n" in said, said)


def inspect_says_no():
    """Yes only to what would start."""
    for what, name, text in (("tokenizer", "tokenizer.json", "{}"), ("pooling", "modules.json", "x"),
                             ("template", "chat_template.jinja", "{% if %}")):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(MODEL, folder, dirs_exist_ok=True)
            with open(os.path.join(folder, name), "w") as f:
                f.write(text)
            run = subprocess.run([BINARY, "inspect", "--model", folder], capture_output=True, text=True)
            first = run.stdout.split("\n")[0]
            said = first.startswith(f"served     no: {folder}") and name in first and first[15:] in run.stderr
            check.true(f"inspect, a broken {what}", run.returncode == 1 and said, run)
            check.true("the model is shown", "\nlayers\n" in run.stdout, run)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(MODEL, folder, dirs_exist_ok=True)
        for name in os.listdir(folder):
            if "processor_config" in name:
                os.remove(os.path.join(folder, name))
        run = subprocess.run([BINARY, "inspect", "--model", folder], capture_output=True, text=True)
        check.true("inspect, no processor", run.returncode == 1 and "has image settings" in run.stderr
                   and "no weights" not in run.stdout, run)


def test_start():
    with tempfile.TemporaryDirectory() as empty:
        run = subprocess.run([BINARY, "serve", "--model", empty, "--port", "0"], capture_output=True, text=True, timeout=60)
        lines = [x for x in run.stderr.splitlines() if x.startswith("kvasir: ")]
        check.true("broken checkpoint: one line, exit 1", run.returncode == 1 and len(lines) == 1 and not run.stdout, run)
        check.true("what is wrong with it", f"{empty} holds no checkpoint: one has config.json" in lines[0], lines)
        # inspect needs only config.json: in one line, whether it is served.
        for config, code, says in (
                ({"model_type": "llama", "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
                  "vocab_size": 64, "num_attention_heads": 2}, 0, "served     yes, by config.json; the "),
                ({"model_type": "mamba"}, 1, 'model_type "mamba" is not served; served: gemma, '),
                ({}, 1, "no model_type")):
            with open(os.path.join(empty, "config.json"), "w") as f:
                json.dump(config, f)
            command = [BINARY, "inspect", "--model", empty]
            run = subprocess.run(command, capture_output=True, text=True, timeout=60)
            said = (run.stderr.splitlines()[-1:] if code else run.stdout.splitlines())[0]
            check.true(f"inspect, {config.get('model_type')}", run.returncode == code and says in said, run)
    inspect_without_weights()
    inspect_says_no()
    with tempfile.TemporaryFile("w+") as log:
        s = Server(BINARY, MODEL, "--max-context", "1000000", log=log)
        context = s.ok("/tokenize", {"prompt": "a"})["max_model_len"]
        s.stop()
        log.seek(0)
        said = f"--max-context 1000000 is above the checkpoint's {context}: {context} is used"
        check.true("a context above the checkpoint's", said in log.read(), said)
    run = subprocess.run([BINARY, "serve", "--no-such-flag"], capture_output=True, text=True, timeout=60)
    check.true("unknown flag: exit 2", run.returncode == 2 and "no-such-flag" in run.stderr)
    run = subprocess.run([BINARY, "serve", "--port", "70000"], capture_output=True, text=True, timeout=60)
    check.true("bad port: exit 2", run.returncode == 2 and "port" in run.stderr)
    taken = socket.create_server(("127.0.0.1", 0))
    for flags, code, words in ((["--model", "/nonexistent"], 1, "--model /nonexistent: No such file"),
                               (["--model", BINARY], 1, "neither a directory nor a GGUF file"),
                               (["--draft-tokens", "99"], 2, "is not allowed: auto, or 0 to 16"),
                               (["--model", MODEL, "--kv-memory", "10T"], 1, "or auto"),
                               (["--model", MODEL, "--draft-model", MODEL], 1, "Only Gemma 4's MTP drafters"),
                               (["--port", str(taken.getsockname()[1])], 1, "choose another with --port"),
                               (["--model", MODEL, MODEL], 2, f"unexpected argument '{MODEL[:60]}"),
                               (["--allow-private-media", "10.0.0.0/8"], 2, "needs --allow-remote-media"),
                               (["--threads", "999"], 2, "999 is outside 0..256")):
        run = subprocess.run([BINARY, "serve", "--port", "0", *flags], capture_output=True, text=True, timeout=60)
        check.true(f"{flags}: says what is wrong", run.returncode == code and words in run.stderr, run)
    taken.close()
    for command, words in (([], "kvasir serve"), (["nonsense"], "see kvasir --help"),
                           (["bench", "--nonsense"], "see kvasir bench --help"),
                           (["bench"], "either --model or --shape"),
                           (["bench", "--shape", "foo"], 'unknown shape "foo" (see')):
        run = subprocess.run([BINARY, *command], capture_output=True, text=True, timeout=60)
        check.true(f"{command}: exit 2", run.returncode == 2 and words in run.stderr and not run.stdout, run)
    run = subprocess.run([BINARY, "version"], capture_output=True, text=True, timeout=60)
    check.true("version", run.returncode == 0 and run.stdout.startswith("kvasir "))
    run = subprocess.run([BINARY, "inspect", "--model", MODEL], capture_output=True, text=True, timeout=60)
    check.true("inspect", run.returncode == 0 and "gemma3" in run.stdout, run)
    run = subprocess.run([BINARY, "serve", "--help"], capture_output=True, text=True, timeout=60)
    check.true("help", run.returncode == 0 and "--max-queue" in run.stdout)
    for command in ("--help", "help"):
        short = subprocess.run([BINARY, command], capture_output=True, text=True, timeout=60)
        check.true(f"{command}: the commands", short.returncode == 0 and "kvasir inspect" in short.stdout
                   and "--max-queue" not in short.stdout and len(short.stdout.splitlines()) <= 20, short)
    with open(os.path.join(os.path.dirname(__file__), "../../docs/flags.md")) as f:
        described = flag_groups(r"^## (.*)|^\| `(--[a-z-]+)", f.read())
    printed = flag_groups(r"^([A-Z]\w.*)|^  (--[a-z-]+)", run.stdout)
    check.equal("its groups are those of docs/flags.md", printed, {x: described.get(x) for x in printed})
    bench = subprocess.run([BINARY, "bench", "--help"], capture_output=True, text=True, timeout=60).stdout
    for name, text in (("serve", run.stdout), ("bench", bench)):
        check.equal(f"{name} --help: long lines", [x for x in text.splitlines() if len(x) > 110], [])
    check.true("bench --help: all options",
               all(f"\n  --{x} " in bench for x in ("cpu-kernels", "kv-dtype", "repeats", "json")), bench)
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as f:
        f.write('# settings\nserved_model_name = "from-file"\nmax-n = 2\n')
        f.flush()
        s = Server(BINARY, MODEL, "--config", f.name, "--stream-finish", "merged", env={"KVASIR_MAX_N": "3"})
        try:
            check.equal("config file", json.loads(s.request("GET", "/v1/models")[2])["data"][0]["id"], "from-file")
            check.equal("environment wins", [s.post(CHAT, chat(n=n))[0] for n in (3, 4)], [200, 400])
            chunks = s.stream(CHAT, chat())
            last = chunks[-1]["choices"][0]
            check.true("merged finish", last["finish_reason"] and stream_text(chunks) == s.ok(CHAT, chat())["choices"][0]["message"]["content"], last)
        finally:
            s.stop()


def test_suppressed():
    """suppress_tokens of generation_config.json are never drawn, whatever the request's bias."""
    ask = text("one two", max_tokens=3, temperature=0, logprobs=2, return_token_ids=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in os.listdir(MODEL):
            if name != "generation_config.json":
                os.symlink(os.path.join(os.path.abspath(MODEL), name), os.path.join(folder, name))
        with open(os.path.join(MODEL, "generation_config.json")) as f:
            settings = json.load(f)

        def first(*flags, **more):
            s = Server(BINARY, folder, *flags)
            try:
                c = s.ok(TEXT, {**ask, **more})["choices"][0]
                return c["token_ids"][0], c["text"]
            finally:
                s.stop()

        def suppress(ids):
            with open(os.path.join(folder, "generation_config.json"), "w") as f:
                json.dump({**settings, "suppress_tokens": ids}, f)

        suppress([])
        usual = first()
        suppress([usual[0]])
        other = first()
        check.true("another token is drawn", other[0] != usual[0], (usual, other))
        suppress([usual[0], other[0]])
        check.true("whatever the bias", first(logit_bias={str(usual[0]): 100})[0] not in (usual[0], other[0]))
        check.equal("--generation-config ignore", first("--generation-config", "ignore"), usual)
        suppress([-1])
        run = subprocess.run([BINARY, "serve", "--model", folder, "--port", "0"], capture_output=True, text=True,
                             timeout=60)
        check.true("a bad list is an error", run.returncode == 1 and "suppress_tokens" in run.stderr, run)


if __name__ == "__main__":
    args = arguments(__doc__)
    BINARY, MODEL = args.binary, args.model
    shared = [test_chat, test_framing, test_many, test_budget, test_timings, test_progress, test_stops,
              test_logprobs, test_ngrams, test_sigma, test_special_tokens, test_completions, test_refused,
              test_messages, test_images, test_tokenize, test_misspelt, test_http, test_wire, test_metrics]
    alone = [test_disconnect, test_keys, test_small_arena, test_queue, test_drain, test_loading,
             test_answer_memory, test_overdue, test_start, test_suppressed]
    wanted = [t for t in shared if not args.only or t.__name__ in args.only]
    if wanted:
        server = Server(BINARY, MODEL, "--prefill-chunk", "64")
        for test in wanted:
            check.run(test, server)
        check.run(server.stop)
    for test in alone:
        if not args.only or test.__name__ in args.only:
            check.run(test)
    check.end()
