#!/usr/bin/env python3
"""Log-probs of given output: trace_decode_token_ids and continuations, bit for bit those of the generation
that made the tokens; of prompts (echo, prompt_logprobs); and /v1/score with label_token_ids."""
import json
import math
import os
import threading

import harness
from golden import Golden

root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
args = harness.arguments(__doc__)
check = harness.Checks()
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
DEMO = os.path.join(root, "models/demo-qwen3-vl")
GOLDEN = ("gemma3/window_small_f32", "gemma3/vision_bf16", "qwen/qwen3_5_bf16", "qwen/qwen3_5_moe_f32",
          "llama/lfm2_bf16", "paligemma/pg2_bf16", "gemma4-mtp/e2b_f32")
IMAGE = {"type": "image_url", "image_url": {"url": harness.data_url(harness.drawing(7))}}
USER = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, IMAGE]}]


def numbers(choice):
    """Every token's id, log-prob and alternatives; the floats as they were sent: one text for each float."""
    lp = choice["logprobs"]
    return choice["token_ids"], lp.get("content") or [lp["token_logprobs"], lp["top_logprobs"]]


def choices(server, path, body):
    return server.ok(path, body)["choices"]


def bits(choice):
    return [t["logprob"] for t in choice["logprobs"]["content"]] if "content" in choice["logprobs"] else \
        choice["logprobs"]["token_logprobs"]


def scored(server, path, made, ask, what, top):
    """ask's output, which was made elsewhere with other fields, given in every form."""
    ids, n = made["token_ids"], len(made["token_ids"])
    top = {**top, "return_token_ids": True}
    one = choices(server, path, {**ask, **top, "trace_decode_token_ids": ids})[0]
    check.equal(f"{what}: forced", numbers(one), numbers(made))
    text = "message" if path == CHAT else "text"
    for call in [c for m in (one, made) for c in m.get("message", {}).get("tool_calls") or []]:
        call["id"] = "random"
    check.equal(f"{what}: its text", one[text], made[text])
    check.equal(f"{what}: its end", one["finish_reason"], made["finish_reason"])
    lists = [ids[:n // 2], [ids[0] ^ 1, *ids[1:]], ids, ids[:1]]
    got = choices(server, path, {**ask, **top, "continuations": lists})
    check.equal(f"{what}: each its own", [c["token_ids"] for c in got], lists)
    check.equal(f"{what}: among others", numbers(got[2]), numbers(made))
    check.equal(f"{what}: beginnings", [bits(got[0]), bits(got[3])], [bits(made)[:n // 2], bits(made)[:1]])
    check.true(f"{what}: a sum", abs(got[2]["logprob"] - sum(bits(made))) < 1e-3, got[2]["logprob"])


def test_equal(folder, path, asks, makers, flags=()):
    """Made by one server; given to it, and to one without cache that computes in small chunks."""
    top = {"logprobs": 2} if path == TEXT else {"logprobs": True, "top_logprobs": 2}
    servers = [harness.Server(args.binary, folder, *flags),
               harness.Server(args.binary, folder, "--prefix-cache", "off", "--step-ms", "1",
                              "--draft-tokens", "0", "--threads", "1")]
    for i, ask in enumerate(asks):
        for maker in makers:
            what = f"{os.path.basename(folder)} {path} {i} {maker}"[:160]
            body = {"max_tokens": 14, **ask, **maker, **top, "return_token_ids": True}
            made = servers[0].ok(path, body)["choices"][0]
            for k, server in enumerate(servers):
                scored(server, path, made, ask, f"{what}, server {k}", top)
    for server in servers:
        server.stop()


def test_demo():
    """Sampling, constraints, penalties, drafts: what made the tokens has no part in their log-probs."""
    makers = [{"temperature": 0}, {"temperature": 1, "seed": 5, "max_tokens": 40},
              {"temperature": 1.3, "seed": 6, "logit_bias": {"40": 3}, "frequency_penalty": 1, "top_p": 0.9},
              {"temperature": 1, "seed": 7, "guided_regex": "[a-z]{3,8} [0-9]{2}"},
              {"temperature": 1, "seed": 8, "ignore_eos": True, "min_tokens": 14}]
    test_equal(DEMO, CHAT, [{"messages": USER}], makers, ("--draft-tokens", "4"))
    call = {"type": "function", "function": {"name": "look", "parameters": {
        "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}}
    asks = [{"messages": USER, "tools": [call], "tool_choice": "required", "parallel_tool_calls": False}]
    test_equal(DEMO, CHAT, asks, [{"temperature": 1, "seed": 2, "max_tokens": 60}])
    words = "one two three one two three one two three one two"
    test_equal(DEMO, TEXT, [{"prompt": words}], makers[:2], ("--draft-tokens", "4"))


def test_families():
    for name in GOLDEN:
        g = Golden(os.path.join(root, "tests/golden", os.path.dirname(name)), os.path.basename(name))
        makers = [{"temperature": 1, "seed": 3, "ignore_eos": True}]
        asks = [{"prompt": list(range(20, 61))}]
        for n, case in enumerate(g.cases):
            if case.get("messages") and name.startswith("paligemma") and not asks[1:]:
                asks.append({"prompt": g.parts(n)})
        test_equal(g.folder, TEXT, asks, makers)


def test_prompts(s):
    """As lm-eval asks: token ids, echo, one more token; and vLLM's prompt_logprobs."""
    prompt = s.ok("/tokenize", {"prompt": "Once upon a time"})["tokens"]
    ask = {"max_tokens": 20, "temperature": 1, "seed": 4, "logprobs": 1, "return_token_ids": True,
           "ignore_eos": True}
    made = s.ok(TEXT, {**ask, "prompt": prompt})["choices"][0]
    whole, n = prompt + made["token_ids"], len(prompt)
    echoed = s.ok(TEXT, {"prompt": [whole, prompt], "echo": True, "logprobs": 1, "max_tokens": 1})["choices"]
    long, short = (bits(c) for c in echoed)
    check.equal("echo", long[n:-1], bits(made))
    check.equal("and of the other", short[:n], long[:n])
    rows = choices(s, TEXT, {"prompt": whole, "prompt_logprobs": 1, "max_tokens": 1})[0]["prompt_logprobs"]
    check.equal("prompt_logprobs", [r[str(t)]["logprob"] for r, t in zip(rows[n:], whole[n:])], bits(made))


def test_many(s):
    """Thousands in one call, with other requests about: each as it is alone."""
    vocabulary = range(60, 760)
    ask = {"messages": USER, "logprobs": True}
    stop = threading.Event()

    def others():
        while not stop.is_set():
            s.ok(CHAT, {"messages": USER[:1], "max_tokens": 8, "temperature": 1})

    thread = threading.Thread(target=others)
    thread.start()
    many = s.ok(CHAT, {**ask, "continuations": [[t, t + 1] for t in vocabulary]})
    stop.set()
    thread.join()
    check.equal("all of them", [c["index"] for c in many["choices"]], list(range(len(vocabulary))))
    check.true("one prefix", many["usage"]["prompt_tokens"] < 100, many["usage"])
    for t in (60, 300, 759):
        alone = s.ok(CHAT, {**ask, "trace_decode_token_ids": [t, t + 1]})["choices"][0]
        check.equal(f"{t}", bits(many["choices"][t - 60]), bits(alone))
    firsts = [c["logprob"] for c in choices(s, CHAT, {**ask, "continuations": [[t] for t in vocabulary]})]
    made = s.ok(CHAT, {**ask, "max_tokens": 1, "temperature": 0, "top_logprobs": 5})["choices"][0]
    known = [t["logprob"] for t in made["logprobs"]["content"][0]["top_logprobs"]]
    best = max(firsts)
    check.true("of the most likely ones", best <= known[0] and (best in known or best < known[-1]), known)


def test_cut(s):
    whole = {"messages": USER, "max_tokens": 12, "ignore_eos": True, "return_token_ids": True}
    ids = s.ok(CHAT, whole)["choices"][0]["token_ids"]
    ask = {"messages": USER, "trace_decode_token_ids": ids, "logprobs": True, "return_token_ids": True}
    cut = s.ok(CHAT, {**ask, "max_tokens": 5})["choices"][0]
    check.equal("max_tokens", (cut["token_ids"], cut["finish_reason"]), (ids[:5], "length"))
    also = s.ok(CHAT, {**ask, "n": 2, "stop": ["a", "e", "i", "o", " "], "min_tokens": 99,
                       "response_format": {"type": "json_object"}})
    check.equal("nothing else ends it", [c["token_ids"] for c in also["choices"]], [ids, ids])
    chunks = s.stream(CHAT, ask)
    streamed = [i for c in chunks for d in c["choices"] for i in d.get("token_ids") or []]
    check.equal("in a stream", streamed, ids)
    best = s.ok(CHAT, {**whole, "temperature": 0})["choices"][0]["token_ids"]
    two = s.ok(CHAT, {"messages": USER, "continuations": [best, [best[0] ^ 1]]})["choices"]
    check.equal("is_greedy", [c["is_greedy"] for c in two], [True, False])
    text = choices(s, TEXT, {"prompt": "Hello", "continuations": [" there"], "return_token_ids": True})[0]
    there = s.ok("/tokenize", {"prompt": " there", "add_special_tokens": False})["tokens"]
    check.equal("texts", text["token_ids"], there)
    check.equal("its text", text["text"], " there")


def test_refused(s):
    vocabulary = 1 << 30
    for field, value, path in (("trace_decode_token_ids", [], None), ("trace_decode_token_ids", "a", None),
                               ("trace_decode_token_ids", [vocabulary], None),
                               ("trace_decode_token_ids", [1.5], None),
                               ("continuations", [], None), ("continuations", "a", None),
                               ("continuations", [""], "continuations[0]"),
                               ("continuations", [[1], []], "continuations[1]"),
                               ("continuations", [3], "continuations[0]"),
                               ("continuations", ["a"] * 4097, None),
                               ("continuations", [[1] * 5000], "prompt")):
        status, answer = s.post(TEXT, {"prompt": "a", field: value})
        check.equal(f"{field} {str(value)[:30]}", (status, answer["error"]["param"]), (400, path or field))
    for more, param in (({"trace_decode_token_ids": [1]}, "continuations"), ({"n": 2}, "continuations"),
                        ({"max_tokens": 0, "echo": True}, "max_tokens"), ({"receipt": True}, "receipt")):
        status, answer = s.post(TEXT, {"prompt": "a", "continuations": ["b"], **more})
        check.equal(f"with {more}", (status, answer["error"]["param"]), (400, param))


def test_labels(s):
    """The numbers follow from log-probs of continuations, whose equality is tested above."""
    labels, query, items = [40, 300, 5, 777], "Is this good? ", ["yes it is", "no"]

    def firsts(prompt):
        body = {"prompt": prompt, "continuations": [[t] for t in labels]}
        return [c["logprob"] for c in choices(s, TEXT, body)]

    def chances(prompt):
        return [math.exp(v) for v in firsts(prompt)]

    def near(got, want):
        return len(got) == len(want) and all(abs(a - b) <= 2e-7 + 1e-5 * b for a, b in zip(got, want))

    def softmax(row):
        return [math.exp(v) / sum(math.exp(w) for w in row) for v in row]

    ask = {"query": query, "items": items, "label_token_ids": labels}
    want = [firsts(query + i) for i in items]
    got = s.ok("/v1/score", ask)
    check.equal("SGLang's object", (got["object"], got["usage"]["total_tokens"] > 0), ("scoring", True))
    check.true("probabilities", all(near(g, chances(query + i)) for g, i in zip(got["scores"], items)), got)
    soft = s.ok("/score", {**ask, "apply_softmax": True})["scores"]
    check.true("among the labels", all(near(g, softmax(w)) for g, w in zip(soft, want)), soft)
    turned = s.ok("/v1/score", {**ask, "item_first": True})["scores"]
    check.true("item first", near(turned[1], chances("no" + query)), turned)
    vllm = s.ok("/generative_scoring", ask)
    check.true("vLLM's object", near([d["score"] for d in vllm["data"]], [softmax(w)[0] for w in want]), vllm)
    plain = s.ok("/generative_scoring", {**ask, "apply_softmax": False})["data"]
    check.true("of all", near([d["score"] for d in plain], [math.exp(w[0]) for w in want]), plain)
    ids = {"query": [5, 6, 7], "items": [[8], [9, 10]], "label_token_ids": labels}
    rows = [chances(p) for p in ([5, 6, 7, 8], [5, 6, 7, 9, 10])]
    got = s.ok("/v1/score", ids)["scores"]
    check.true("of ids", all(near(g, w) for g, w in zip(got, rows)), got)
    one = s.ok("/v1/score", {**ask, "items": items[0]})["scores"]
    check.equal("one item", one, s.ok("/v1/score", ask)["scores"][:1])
    for change, param in (({"query": None}, "query"), ({"items": []}, "items"), ({"items": [[]]}, "items"),
                          ({**ids, "query": [], "items": [[]]}, "items[0]"), ({"items": ["a", 3]}, "items"),
                          ({"label_token_ids": []}, "label_token_ids"),
                          ({"label_token_ids": [-1]}, "label_token_ids"),
                          ({"items": ["a"] * 1500}, "items"), ({"apply_softmax": 1}, "apply_softmax"),
                          ({"query": "many words " * 40000, "items": ["a"] * 1000}, "items")):
        status, answer = s.post("/v1/score", {**ask, **change})
        check.equal(f"refused {str(change)[:40]}", (status, answer["error"]["param"]), (400, param))


def main():
    alone = [test_demo, test_families]
    shared = [test_prompts, test_many, test_cut, test_refused, test_labels]
    for test in alone:
        if not args.only or test.__name__ in args.only:
            check.run(test)
    server = harness.Server(args.binary, DEMO)
    for test in shared:
        if not args.only or test.__name__ in args.only:
            check.run(test, server)
    server.stop()
    check.end()


main()
