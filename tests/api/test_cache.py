"""The prefix cache as a client sees it: python3 test_cache.py [--binary B] [--demo DIR] [test ...]
Counts of reused tokens are exact, output and log-probs of a warm request are those of a cold one, and cache_info names the right position.
Numbers like T9 are rows of the list of failures of other servers that these tests cover."""
import base64
import json
import os
import sys
import tempfile
import threading
import zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import ENDLESS, Checks, Server, arguments, data_url, endless, drawing, png, stream_text, wait_until  # noqa: E402

check = Checks()
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def image(data, kind="image/png"):
    return {"type": "image_url", "image_url": {"url": data if isinstance(data, str) else data_url(data, kind)}}


def words(text):
    return {"type": "text", "text": text}


def turn(role, *parts):
    return {"role": role, "content": parts[0] if len(parts) == 1 and isinstance(parts[0], str) else list(parts)}


def ask(s, *turns, path=CHAT, **fields):
    body = {"messages": list(turns), "max_tokens": 6, "temperature": 0, "return_cache_info": True, **fields}
    return s.ok(path, body, timeout=300)


def cached(answer):
    n = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    info = answer.get("cache_info")
    if info and "reused_tokens" in info:
        check.equal("usage and cache_info agree", info["reused_tokens"], n)
        check.equal("prompt tokens agree", info["prompt_tokens"], answer["usage"]["prompt_tokens"])
    return n


def total(answer):
    return answer["usage"]["prompt_tokens"]


def spoken(answer):
    return answer["choices"][0]["message"]["content"]


def fresh(s, *what):
    for name in what or ("reset_prefix_cache",):
        status, _, data = s.request("POST", "/" + name)
        check.equal(name, (status, json.loads(data)), (200, {"success": True}))


def decoded(s):
    return s.metric("kvasir:images_decoded_total")


def encoded(s):
    return s.metric("kvasir:images_encoded_total")


def text_start(what, answer):
    """Index of the first token of image `what` in a prompt asked for with return_token_ids."""
    ids = answer["prompt_token_ids"]
    soft = max(set(ids), key=ids.count) if what is not None else None
    starts = [i for i, t in enumerate(ids) if t == soft and (i == 0 or ids[i - 1] != soft)]
    return starts[what]


PROBS = {"logprobs": True, "top_logprobs": 5}
RECURRENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/qwen/qwen3_5_f32")


def test_twice(s):
    fresh(s)
    for turns in ([turn("user", "what shapes are there and where are they")],
                  [turn("system", "be brief"), turn("user", image(drawing(1)), words("what is in this picture?"))],
                  [turn("user", image(drawing(2)), image(drawing(3)), words("what differs?")), turn("assistant", "color"), turn("user", "where?")]):
        a = ask(s, *turns, **PROBS)
        b = ask(s, *turns, **PROBS)
        check.equal("all but the last token is reused", cached(b), total(b) - 1)
        check.equal("warm = cold, log-probs and all", b["choices"], a["choices"])
        check.equal("stop: none", (b["cache_info"]["stop"], b["cache_info"]["equal_tokens"], b["cache_info"]["differs_at"]), ("none", total(b), None))
        fresh(s)
        c = ask(s, *turns, **PROBS)
        check.equal("nothing after a reset", cached(c), 0)
        check.equal("cold again", c["choices"], a["choices"])
    sampled = dict(temperature=1, seed=11, n=3, max_tokens=12, **PROBS)
    turns = [turn("user", image(drawing(4)), words("what is in this picture?"))]
    a, b = ask(s, *turns, **sampled), ask(s, *turns, **sampled)
    check.equal("sampled, n=3: warm = cold", b["choices"], a["choices"])
    check.equal("counted once for all samples", cached(b), total(b) - 1)


def test_completions(s):
    fresh(s)
    prompts = ["what shapes are there", "where is the red circle", "what shapes are here"]
    a = s.ok(TEXT, {"prompt": prompts, "max_tokens": 4, "temperature": 0, "return_cache_info": True, "logprobs": 3})
    b = s.ok(TEXT, {"prompt": prompts, "max_tokens": 4, "temperature": 0, "return_cache_info": True, "logprobs": 3})
    check.equal("warm = cold", b["choices"], a["choices"])
    infos = b["cache_info"]["prompts"]
    check.equal("one report per prompt", [i["stop"] for i in infos], ["none"] * 3)
    check.equal("usage is their sum", cached(b), sum(i["reused_tokens"] for i in infos))
    check.equal("all but the last of each", cached(b), total(b) - 3)
    one = s.ok(TEXT, {"prompt": prompts[0] + " on the left", "max_tokens": 4, "return_cache_info": True})
    check.equal("no message to name", one["cache_info"]["differs_at"]["kind"], "prompt")
    scored = s.ok(TEXT, {"prompt": prompts[0], "max_tokens": 1, "echo": True, "logprobs": 1, "return_cache_info": True})
    check.equal("scoring computes", (cached(scored), scored["cache_info"]["stop"]), (0, "disabled"))
    scored = ask(s, turn("user", "what shapes are there"), prompt_logprobs=1)
    check.equal("prompt_logprobs computes", (cached(scored), scored["cache_info"]["stop"]), (0, "disabled"))


def test_same_image(s):
    fresh(s)
    data = drawing(5)
    plain = base64.b64encode(data).decode()
    broken = "\n".join(plain[i:i + 76] for i in range(0, len(plain), 76))
    question = words("what is in this picture?")
    a = ask(s, turn("user", image(data), question), **PROBS)
    before = decoded(s)
    for url in (f"data:image/jpeg;base64,{plain}", f"data:image/png;base64,{broken}", "data:;base64," + plain.rstrip("="),
                "DATA:x/y;BASE64," + plain.replace("+", "-").replace("/", "_")):
        b = ask(s, turn("user", image(url), question), **PROBS)
        check.equal("same bytes, other spelling", cached(b), total(b) - 1)
        check.equal("same answer", b["choices"], a["choices"])
    check.equal("none was decoded", decoded(s), before)
    end = data.index(b"IDAT") - 4
    size = int.from_bytes(data[end:end + 4], "big")
    raw = zlib.decompress(data[end + 8:end + 8 + size])
    packed = zlib.compress(raw, 0)
    again = data[:end] + len(packed).to_bytes(4, "big") + b"IDAT" + packed + zlib.crc32(b"IDAT" + packed).to_bytes(4, "big") + data[end + 12 + size:]
    b = ask(s, turn("user", image(again), question), **PROBS)
    check.equal("other file, same pixels", cached(b), total(b) - 1)
    check.equal("that one had to be decoded", decoded(s), before + 1)


def test_other_image(s):
    """T2, T3: one text, many images. What is reused is exactly what stands before the image."""
    fresh(s)
    question = words("what is in this picture?")
    first = ask(s, turn("user", words("page"), image(drawing(10)), question), return_token_ids=True)
    start = text_start(0, first)
    for i in range(11, 17):
        a = ask(s, turn("user", words("page"), image(drawing(i)), question))
        info = a["cache_info"]
        check.equal("up to the image", (cached(a), info["equal_tokens"], info["stop"]), (start, start, "image_differs"))
        check.equal("the image is named", info["differs_at"], {"token": start, "kind": "image", "message": 0, "role": "user", "part": 1, "image": 0})
    values = [(i * 73 % 256, i * 31 % 256, i * 7 % 256) for i in range(30 * 150)]
    wide, tall = png(150, 30, lambda x, y: values[y * 150 + x]), png(30, 150, lambda x, y: values[y * 30 + x])
    grey, again = png(40, 40, lambda x, y: (90, 90, 90)), png(41, 40, lambda x, y: (90, 90, 91))
    for one, other in ((wide, tall), (grey, again)):  # T7: equal bytes, other dimensions; a shade that can't be seen
        ask(s, turn("user", words("page"), image(one), question))
        a = ask(s, turn("user", words("page"), image(other), question))
        check.equal("another image", (cached(a), a["cache_info"]["stop"]), (start, "image_differs"))
    a = ask(s, turn("user", words("page"), words("two"), question))
    check.true("text instead of an image", cached(a) <= start and a["cache_info"]["stop"] in ("image_differs", "token_differs"), a["cache_info"])


def test_growing(s):
    """T9: what stands before a new image is reused, however many images came before. T15: the first may come late."""
    fresh(s)
    for late in (False, True):
        turns, last = [], None
        for k in range(5):
            new = image(drawing(20 + k + 10 * late))
            turns.append(turn("user", "what shapes are there?") if late and k == 0 else turn("user", new, words("what is in this picture?")))
            a = ask(s, *turns, **PROBS)
            if last:
                check.true(f"turn {k}: the whole turn before it", cached(a) >= total(last), (cached(a), total(last)))
                at = a["cache_info"]["differs_at"]
                check.true(f"turn {k}: parts in the new turn or at the end of the answer", at["token"] >= total(last) and (at.get("message", k * 2) == k * 2 or at["kind"] == "template" or at.get("message") == k * 2 - 1), at)
            last = a
            turns.append(turn("assistant", spoken(a) or "yes"))
        warm = ask(s, *turns[:-1], **PROBS)
        check.equal("warm", cached(warm), total(warm) - 1)
        fresh(s)
        cold = ask(s, *turns[:-1], **PROBS)
        check.equal("cold = built up turn by turn = warm", (cached(cold), cold["choices"], warm["choices"]), (0, last["choices"], last["choices"]))


def test_named(s):
    """return_cache_info says which message and part it was."""
    fresh(s)
    base = [turn("system", "be brief"), turn("user", words("look"), image(drawing(40)), words("what is it?")), turn("assistant", "a circle"),
            turn("user", words("and"), image(drawing(41)), words("where is it?")), turn("assistant", "left"), turn("user", "how many?")]
    full = ask(s, *base)

    def edited(message, change):
        copy = json.loads(json.dumps(base))
        change(copy[message])
        a = ask(s, *copy)
        at = a["cache_info"]["differs_at"]
        check.true("equal up to there, the cache holds it", at and at["token"] == a["cache_info"]["equal_tokens"] and a["cache_info"]["reused_tokens"] <= at["token"], a["cache_info"])
        return a["cache_info"]["stop"], {k: v for k, v in at.items() if k != "token"}

    def put(part, value):
        def change(m):
            m["content"][part] = value
        return change

    def say(text):
        def change(m):
            m["content"] = text
        return change

    table = [
        (2, say("no idea"), "token_differs", {"kind": "text", "message": 2, "role": "assistant", "part": None}),
        (3, put(0, words("now")), "token_differs", {"kind": "text", "message": 3, "role": "user", "part": 0}),
        (3, put(2, words("how big is it?")), "token_differs", {"kind": "text", "message": 3, "role": "user", "part": 2}),
        (1, put(1, image(drawing(42))), "image_differs", {"kind": "image", "message": 1, "role": "user", "part": 1, "image": 0}),
        (3, put(1, image(drawing(43))), "image_differs", {"kind": "image", "message": 3, "role": "user", "part": 1, "image": 1}),
        (0, say("say more"), "token_differs", {"kind": "text", "message": 0, "role": "system", "part": None}),
        (5, say("what color?"), "token_differs", {"kind": "text", "message": 5, "role": "user", "part": None}),
    ]
    for message, change, stop, place in table:
        got = edited(message, change)
        check.equal(f"edit in message {message}", got, (stop, place))
    longer = ask(s, *base, turn("assistant", spoken(full) or "two"), turn("user", "sure?"))
    check.true("a longer conversation goes on where the cached one ends", longer["cache_info"]["stop"] in ("end_of_cached", "token_differs") and cached(longer) >= total(full), longer["cache_info"])
    prompt = {"messages": base, "max_tokens": 6, "temperature": 0}
    chunks = s.stream(CHAT, {**prompt, "return_cache_info": True})
    check.equal("stream: in the finish chunk, once", [("cache_info" in c, bool(c["choices"][0]["finish_reason"])) for c in chunks if "cache_info" in c], [(True, True)])
    check.true("stream: it is the last chunk", "cache_info" in chunks[-1] and chunks[-1]["cache_info"]["reused_tokens"] == total(full) - 1)
    chunks = s.stream(CHAT, {**prompt, "return_cache_info": True, "n": 3, "stream_options": {"include_usage": True}})
    check.equal("stream with usage: in the usage chunk, once", [i for i, c in enumerate(chunks) if "cache_info" in c], [len(chunks) - 1])
    check.equal("and usage says the same", chunks[-1]["usage"]["prompt_tokens_details"]["cached_tokens"], chunks[-1]["cache_info"]["reused_tokens"])
    chunks = s.stream(CHAT, {**prompt, "return_cache_info": True, "n": 3})
    check.equal("n=3: once, in the last", [i for i, c in enumerate(chunks) if "cache_info" in c], [len(chunks) - 1])
    check.true("unasked: nowhere", all("cache_info" not in c for c in s.stream(CHAT, prompt)) and "cache_info" not in s.ok(CHAT, prompt))
    status, answer = s.post(CHAT, {**prompt, "return_cache_info": 1})
    check.equal("must be a boolean", (status, answer["error"]["code"]), (400, "invalid_type"))


def test_salt(s):
    fresh(s)
    turns = [turn("user", image(drawing(50)), words("what is in this picture?"))]
    plain = ask(s, *turns, **PROBS)
    before, known = decoded(s), s.metric("kvasir:image_hash_cache_hits_total")
    a = ask(s, *turns, cache_salt="a", **PROBS)
    check.equal("that the file came before is not known there", s.metric("kvasir:image_hash_cache_hits_total"), known)
    check.equal("a name space of its own", (cached(a), a["cache_info"]["stop"], a["cache_info"]["differs_at"]), (0, "salt", None))
    check.equal("its images too", decoded(s), before + 1)
    check.equal("same answer", a["choices"], plain["choices"])
    again = ask(s, *turns, cache_salt="a", **PROBS)
    check.equal("shared within", cached(again), total(again) - 1)
    check.equal("decoded once within", decoded(s), before + 1)
    b = ask(s, *turns, cache_salt="b", **PROBS)
    check.equal("not across", cached(b), 0)
    none = ask(s, *turns, **PROBS)
    check.equal("and the common one is as it was", cached(none), total(none) - 1)
    check.equal("null = absent", cached(ask(s, *turns, cache_salt=None)), total(none) - 1)
    for value, code in (("", "invalid_value"), ("x" * 1025, "invalid_value"), (5, "invalid_type")):
        status, answer = s.post(CHAT, {"messages": turns, "cache_salt": value})
        check.equal(f"cache_salt {value!r:.20}", (status, answer["error"]["code"], answer["error"]["param"]), (400, code, "cache_salt"))
    check.equal("1024 bytes are fine", cached(ask(s, *turns, cache_salt="x" * 1024)), 0)


def test_pixels_on_demand(s):
    """A file that came before is decoded only when neither its KV nor its features are there."""
    fresh(s, "reset_prefix_cache", "reset_mm_cache")
    turns = [turn("user", *[image(drawing(60 + i)) for i in range(8)], words("which differ?"))]
    d, e = decoded(s), encoded(s)
    cold = ask(s, *turns, **PROBS)
    check.equal("8 new images", (decoded(s) - d, encoded(s) - e), (8, 8))
    d, e = decoded(s), encoded(s)
    for _ in range(3):
        a = ask(s, *turns, **PROBS)
        check.equal("warm", (cached(a), a["choices"]), (total(a) - 1, cold["choices"]))
    check.equal("fully cached: nothing decoded, nothing encoded", (decoded(s) - d, encoded(s) - e), (0, 0))
    fresh(s)
    a = ask(s, *turns, **PROBS)
    check.equal("features alone", (cached(a), a["choices"]), (0, cold["choices"]))
    check.equal("still nothing decoded, nothing encoded", (decoded(s) - d, encoded(s) - e), (0, 0))
    fresh(s, "reset_prefix_cache", "reset_encoder_cache")
    a = ask(s, *turns, **PROBS)
    check.equal("neither: pixels are fetched", (cached(a), a["choices"]), (0, cold["choices"]))
    check.equal("all decoded and encoded again", (decoded(s) - d, encoded(s) - e), (8, 8))
    fresh(s, "reset_prefix_cache", "reset_encoder_cache")
    single = ask(s, *turns, n=1, temperature=1, seed=3, **PROBS)
    fresh(s, "reset_prefix_cache", "reset_encoder_cache")
    many = ask(s, *turns, n=4, temperature=1, seed=3, **PROBS)
    check.equal("several samples want the same pixels", many["choices"][0], single["choices"][0])
    scored = [ask(s, *turns, prompt_logprobs=1, **PROBS) for _ in range(2)]
    check.equal("scored: computed restart, pixels and all", [cached(a) for a in scored], [0, 0])
    check.equal("the same scores", (scored[1]["prompt_logprobs"], scored[1]["choices"]), (scored[0]["prompt_logprobs"], cold["choices"]))
    same = ask(s, turn("user", *[image(drawing(60))] * 6, words("which differ?")), **PROBS)
    fresh(s, "reset_prefix_cache", "reset_mm_cache")
    d, e = decoded(s), encoded(s)
    again = ask(s, turn("user", *[image(drawing(60))] * 6, words("which differ?")), **PROBS)
    check.equal("one image six times: decoded once, encoded once", (decoded(s) - d, encoded(s) - e), (1, 1))
    check.equal("same answer", again["choices"], same["choices"])
    d = decoded(s)
    fresh(s, "reset_prefix_cache", "reset_encoder_cache")
    one, two = ask(s, turns[0], max_tokens=1), ask(s, turn("user", image(drawing(60)), words("what is in this picture?")), max_tokens=1)
    check.equal("features serve another prompt", (decoded(s) - d, cached(one)), (8, 0))
    check.true("which shares no more than its beginning", 0 < cached(two) < total(two) - 1, cached(two))
    # A client that leaves while its pixels are wanted.
    for _ in range(5):
        fresh(s, "reset_prefix_cache", "reset_encoder_cache")
        c = s.connect()
        c.request("POST", CHAT, json.dumps({"messages": turns, "max_tokens": 50}), {"Content-Type": "application/json"})
        c.close()
    check.true("left alone, the server comes to rest", wait_until(lambda: s.metric("vllm:num_requests_running") + s.metric("vllm:num_requests_waiting") + s.metric("kvasir:requests_in_flight") == 0))
    a = ask(s, *turns, **PROBS)
    check.equal("and answers as before", a["choices"], cold["choices"])


def test_concurrent(s):
    """T2: images that hardly differ, all at once; each answer is the one that it has alone."""
    def near(i):
        return png(32, 32, lambda x, y: (200, 40, 40) if (x - 8 - i % 8) ** 2 + (y - 8 - i // 8) ** 2 < 30 else (20 + i, 20, 20))

    bodies = [[turn("user", words("page"), image(near(i)), words("what is in this picture?"))] for i in range(32)]
    alone = []
    for turns in bodies:
        fresh(s, "reset_prefix_cache", "reset_mm_cache")
        alone.append(ask(s, *turns, **PROBS)["choices"])
    fresh(s, "reset_prefix_cache", "reset_mm_cache")
    together = [None] * (2 * len(bodies))

    def run(first):
        for i in range(first, len(together), 16):
            together[i] = ask(s, *bodies[i % len(bodies)], **PROBS)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    wrong = [i for i, a in enumerate(together) if not a or a["choices"] != alone[i % len(bodies)]]
    check.equal("answers that differ from the solo answer", wrong, [])
    check.true("and the cache was used", sum(cached(a) > 0 for a in together if a) > len(bodies), [cached(a) for a in together if a])


def test_metrics(s):
    fresh(s)
    turns = [turn("user", image(drawing(70)), words("what is in this picture?"))]
    before = s.metrics()
    a, b = ask(s, *turns), ask(s, *turns)
    after = s.metrics()

    def grown(name, **labels):
        def sums(m):
            return sum(v for k, v in m.items() if k.split("{")[0] == name and all(f'{x}="{y}"' in k for x, y in labels.items()))
        return sums(after) - sums(before)

    n, hit = total(a), cached(b)
    check.equal("tokens looked up", grown("vllm:prefix_cache_queries_total"), 2 * n)
    check.equal("tokens found", grown("vllm:prefix_cache_hits_total"), cached(a) + hit)
    check.equal("tokens cached", grown("vllm:prompt_tokens_cached_total"), cached(a) + hit)
    check.equal("by source: cache", grown("vllm:prompt_tokens_by_source_total", source="local_cache_hit"), cached(a) + hit)
    check.equal("by source: computed", grown("vllm:prompt_tokens_by_source_total", source="local_compute"), 2 * n - cached(a) - hit)
    check.equal("prefill tokens", grown("vllm:prompt_tokens_total"), 2 * n - cached(a) - hit)
    check.true("the last token of the full hit was computed again", grown("vllm:prompt_tokens_recomputed_total") >= 1)
    check.equal("lookups", grown("kvasir:prefix_cache_lookups_total"), 2)
    check.equal("stop none", grown("kvasir:prefix_cache_stops_total", stop="none"), 1)
    check.true("image looked up", grown("vllm:mm_cache_queries_total") >= 1)
    check.equal("full group: hit tokens", grown("kvasir:prefix_cache_hit_tokens_total", window="0"), cached(a) + hit)
    check.true("blocks are cached, none live", wait_until(lambda: s.metric("kvasir:kv_blocks_live") == 0) and s.metric("kvasir:kv_blocks_cached") > 0)
    check.equal("used = live + cached", s.metric("kvasir:kv_blocks_used"), s.metric("kvasir:kv_blocks_cached"))
    check.equal("usage counts what runs", s.metric("vllm:kv_cache_usage_perc"), 0)
    check.true("nodes", s.metric("kvasir:prefix_cache_nodes") > 0)
    check.true("feature bytes", s.metric("kvasir:encoder_cache_bytes") > 0)
    check.true("cache_config_info", any(k.startswith("vllm:cache_config_info") and 'enable_prefix_caching="True"' in k for k in after))
    fresh(s)
    check.true("a reset empties it", wait_until(lambda: s.metric("kvasir:kv_blocks_cached") == 0))


def test_reset(s):
    for method, path, status in (("POST", "/flush_cache", 200), ("GET", "/flush_cache", 200), ("GET", "/reset_prefix_cache", 405), ("POST", "/reset_mm_cache", 200),
                                 ("POST", "/reset_encoder_cache", 200), ("POST", "/reset_prefix_cache?reset_running_requests=false&reset_external=false", 200),
                                 ("POST", "/reset_prefix_cache?reset_running_requests=true", 400)):
        got, head, data = s.request(method, path)
        check.equal(f"{method} {path}", got, status)
        if path == "/flush_cache":
            check.true("flush_cache answers text", head["content-type"].startswith("text/plain") and data, head)
    turns = [turn("user", "what shapes are there?")]
    ask(s, *turns)
    s.request("POST", "/flush_cache")
    check.equal("flush_cache drops prefixes", cached(ask(s, *turns)), 0)
    done = []

    def busy():
        done.append(ask(s, turn("user", "count"), max_tokens=800, ignore_eos=True, n=3))

    t = threading.Thread(target=busy)
    t.start()
    while t.is_alive():
        fresh(s, "reset_prefix_cache", "reset_encoder_cache")
    t.join()
    check.equal("resets while it runs do no harm", [len(d["choices"]) for d in done], [3])
    check.equal("same as undisturbed", ask(s, turn("user", "count"), max_tokens=800, ignore_eos=True, n=3)["choices"], done[0]["choices"])


def test_recurrent():
    """Recurrent layers: their state is saved where an answer ends; hits end only at saved states."""
    s = Server(BINARY, RECURRENT)
    try:
        def say(ids, **fields):
            body = {"prompt": ids, "max_tokens": 6, "temperature": 0, "ignore_eos": True, "logprobs": 3}
            return s.ok(TEXT, {**body, "return_token_ids": True, "return_cache_info": True, **fields})

        prompt = [20 + i * 7 % 60 for i in range(70)]
        first = say(prompt)
        history = prompt + first["choices"][0]["token_ids"]
        nxt = say(history + [33, 34])
        check.equal("the next turn goes on from the answer's end", cached(nxt), len(history) - 1)
        check.equal("and knows why", nxt["cache_info"]["stop"], "end_of_cached")
        check.true("states are saved", s.metric("kvasir:saved_states") >= 2)
        check.true("they take memory", s.metric("kvasir:saved_state_bytes") > 0)
        parts = say(prompt[:40] + [90, 91])
        info = parts["cache_info"]
        check.equal("no state inside the prompt", info["stop"], "no_state_saved")
        check.equal("all before the end is equal", info["equal_tokens"], 40)
        check.equal("computed again from", info["reuse_ends_at"]["token"], info["reused_tokens"])
        check.equal("they differ at", info["differs_at"]["token"], 40)
        same = say(history + [33, 34])
        check.equal("warm = warm", same["choices"], nxt["choices"])
        fresh(s)
        check.true("no state is left", wait_until(lambda: s.metric("kvasir:saved_states") == 0))
        cold = say(history + [33, 34])
        check.equal("warm = cold", (cached(cold), cold["choices"]), (0, nxt["choices"]))
        # An image, then another question about it.
        turns = [turn("user", image(drawing(1)), words("what is in this picture?"))]
        a = ask(s, *turns, **PROBS)
        b = ask(s, *turns, turn("assistant", spoken(a)), turn("user", "and now?"), **PROBS)
        fresh(s, "reset_prefix_cache", "reset_encoder_cache")
        c = ask(s, *turns, turn("assistant", spoken(a)), turn("user", "and now?"), **PROBS)
        check.equal("with an image: warm = cold", (cached(c), c["choices"]), (0, b["choices"]))
    finally:
        s.stop()


def test_off():
    s = Server(BINARY, DEMO, "--prefix-cache", "off")
    on = Server(BINARY, DEMO)
    try:
        turns = [turn("user", image(drawing(80)), words("what is in this picture?"))]
        for _ in range(2):
            a, b = ask(s, *turns, **PROBS), ask(on, *turns, **PROBS)
            check.equal("off: nothing is reused", (cached(a), a["cache_info"]["stop"]), (0, "disabled"))
            check.equal("off = on", a["choices"], b["choices"])
        check.true("on: it was", cached(b) == total(b) - 1)
        check.true("metrics say so", any('enable_prefix_caching="False"' in k for k in s.metrics()))
        check.equal("off: no blocks stay", s.metric("kvasir:kv_blocks_cached"), 0)
    finally:
        s.stop()
        on.stop()


def test_scope():
    """Two keys send the same: with --cache-scope key (the default) neither learns of the other's; with server
    both share."""
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as f:
        f.write("one\ntwo\n")
        f.flush()
        for scope in ("key", "server"):
            s = Server(
                BINARY,
                DEMO,
                "--api-key-file",
                f.name,
                *(() if scope == "key" else ("--cache-scope", "server")),
            )
            try:
                check_scope(s, scope)
            finally:
                s.stop()


def check_scope(s, scope):
    shared = scope == "server"
    a, b = ({"Authorization": f"Bearer {k}"} for k in ("one", "two"))
    secret = [turn("user", image(drawing(60)), words("my password is swordfish; what is in this picture?"))]

    def say(key, turns, **fields):
        status, answer = s.post(
            CHAT,
            {
                "messages": turns,
                "max_tokens": 4,
                "temperature": 0,
                "return_cache_info": True,
                **PROBS,
                **fields,
            },
            key,
        )
        check.equal("status", status, 200)
        return answer

    def metric(name):
        return s.metric(f"kvasir:{name}")

    def tree(key):
        return json.loads(s.request("GET", "/cache_tree", None, key)[2])

    first = say(a, secret)
    images, known, mine = decoded(s), metric("image_hash_cache_hits_total"), tree(a)
    check.true(
        f"{scope}: the tree has what the caller made",
        len(mine["nodes"]) > 0 and mine["total_tokens"] >= total(first),
        mine,
    )
    check.equal(
        f"{scope}: and what another made",
        tree(b),
        mine if shared else {"total_nodes": 0, "total_tokens": 0, "nodes": []},
    )
    # As the attack goes: attempts of growing length, each told how much of it somebody has cached.
    attempts = [turn("user", "My "), turn("user", "My p"), turn("user", "My password is s")]
    learnt = [
        (i["equal_tokens"], i["stop"])
        for i in (say(b, [g], cache_salt=f"fresh {n}")["cache_info"] for n, g in enumerate(attempts))
    ]
    check.equal(f"{scope}: behind a salt of its own", learnt, [(0, "salt")] * 3)
    again = say(b, secret)
    info = again["cache_info"]
    check.equal(
        f"{scope}: hits of another key",
        (cached(again), info["equal_tokens"], info["stop"], info["differs_at"]),
        (total(first) - 1, total(first), "none", None) if shared else (0, 0, "salt", None),
    )
    check.equal(
        f"{scope}: the image is decoded, its file unknown",
        (decoded(s) - images, metric("image_hash_cache_hits_total") - known),
        (0, 1) if shared else (1, 0),
    )
    check.equal(f"{scope}: same answer", again["choices"], first["choices"])
    check.equal(f"{scope}: its own it finds", cached(say(b, secret)), total(first) - 1)
    for salt in ("x", "one"):  # what the client chooses is no way into another key's
        say(a, secret, cache_salt=salt)
        check.equal(
            f"{scope}: another key's salt {salt}",
            cached(say(b, secret, cache_salt=salt)),
            total(first) - 1 if shared else 0,
        )
    kept = s.post("/v1/responses", {"input": "hello", "max_output_tokens": 4, "cache_salt": "x"}, a)[1]["id"]
    path = f"/v1/responses/{kept}"
    check.equal(
        f"{scope}: kept responses",
        [
            s.request("GET", path + q, None, k)[0]
            for q, k in (("?cache_salt=x", a), ("", a), ("?cache_salt=x", b))
        ],
        [200, 404, 404],
    )
    if not shared:
        check.true(
            "no sum tells of another's",
            tree(b)["total_nodes"] == len(tree(b)["nodes"]) < metric("prefix_cache_nodes"),
            tree(b),
        )


def test_admin():
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as f:
        f.write("one\ntwo priority\n")
        f.flush()
        for flags, want in (((), [401, 403, 200]), (("--enable-admin", "on"), [401, 200, 200])):
            s = Server(BINARY, DEMO, "--api-key-file", f.name, *flags)
            try:
                for path in ("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/flush_cache"):
                    keys = [None, {"Authorization": "Bearer one"}, {"x-api-key": "two"}]
                    got = [s.request("POST", path, None, k)[0] for k in keys]
                    check.equal(f"{path} needs a key with a right", got, want)
            finally:
                s.stop()
        with open(f.name, "w") as only:
            only.write("one\n")
        s = Server(BINARY, DEMO, "--api-key-file", f.name)
        try:
            status = s.request("POST", "/reset_prefix_cache", None, {"x-api-key": "one"})[0]
            check.equal("an only key needs no mark", status, 200)
        finally:
            s.stop()
    s = Server(BINARY, DEMO, "--enable-admin", "off")
    try:
        status, _, data = s.request("POST", "/reset_prefix_cache")
        check.equal("switched off", (status, json.loads(data)["error"]["code"]), (403, "insufficient_permissions"))
    finally:
        s.stop()


def test_timeout():
    """What has begun in time and what has not. A machine on which nothing begins within the limit is given a longer one."""
    for limit in (1, 5, 25):
        s = Server(BINARY, endless(DEMO), "--request-timeout", str(limit), "--log-level", "error")
        try:
            body = {"messages": [turn("user", "count")], "max_tokens": ENDLESS, "ignore_eos": True, "temperature": 1}
            status, head, data = s.request("POST", CHAT, {**body, "n": 48})
            check.equal("whole answer: 504", (status, json.loads(data)["error"]["code"], json.loads(data)["error"]["type"]), (504, "timeout", "server_error"))
            status, head, data = s.request("POST", CHAT, {**body, "stream": True})
            short = s.post(CHAT, {**body, "max_tokens": 2})[0]
            check.true("and all is free again", wait_until(lambda: s.held() == (0, 0, 0)), s.held())
            check.true("counted", s.metrics().get('kvasir:sequences_ended_total{engine="0",end="deadline",model_name="demo"}', 0) >= 2, [k for k in s.metrics() if "ended" in k])
            if limit < 25 and (status, short) != (200, 200):
                continue
            last = [line for line in data.decode().split("\n") if line.startswith("data: ")]
            check.true("stream: an error inside, then the end", status == 200 and last[-1] == "data: [DONE]" and json.loads(last[-2][6:])["error"]["code"] == "timeout", data[-300:])
            check.equal("short ones are in time", short, 200)
            return
        finally:
            s.stop()


def test_small_arena():
    """Hardly room for two conversations: eviction and preemption all the time, and every answer is the one of a server with room."""
    small, large = Server(BINARY, DEMO, "--kv-memory", "2M"), Server(BINARY, DEMO)
    try:
        bodies = []
        for i in range(10):
            turns = [turn("user", image(drawing(90 + i % 4)), words("what is in this picture? " + "red circle blue square " * (5 * (i % 3)))), turn("assistant", "yes " * (i % 5)),
                     turn("user", "and where is it?")]
            bodies.append(turns)
        want = [ask(large, *t, **PROBS)["choices"] for t in bodies]
        got = [None] * (3 * len(bodies))

        def run(first):
            for i in range(first, len(got), 6):
                got[i] = ask(small, *bodies[i % len(bodies)], **PROBS)

        threads = [threading.Thread(target=run, args=(i,)) for i in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        check.equal("answers that differ", [i for i, a in enumerate(got) if not a or a["choices"] != want[i % len(bodies)]], [])
        check.true("something was reused", any(a and cached(a) for a in got))
    finally:
        small.stop()
        large.stop()


if __name__ == "__main__":
    args = arguments(__doc__)
    BINARY, DEMO = args.binary, args.demo
    shared = [test_twice, test_completions, test_same_image, test_other_image, test_growing, test_named, test_salt, test_pixels_on_demand, test_concurrent,
              test_metrics, test_reset]
    alone = [test_recurrent, test_off, test_scope, test_admin, test_timeout, test_small_arena]
    wanted = [t for t in shared if not args.only or t.__name__ in args.only]
    if wanted:
        server = Server(BINARY, DEMO)
        for test in wanted:
            check.run(test, server)
        check.run(server.stop)
    for test in alone:
        if not args.only or test.__name__ in args.only:
            check.run(test)
    check.end()
