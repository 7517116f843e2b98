#!/usr/bin/env python3
"""/classify, /v1/rerank and /v1/score of checkpoints with a classification head, against transformers
(tests/golden/classify); the same bits whatever is cached, batched or chunked; what they refuse."""
import concurrent.futures
import json
import math
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Checks, Server, arguments  # noqa: E402

check = Checks()
GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden")


def laid_out(name, work):
    """The files of classify/NAME over those of its source, whose weights become base.safetensors."""
    folder = os.path.join(GOLDEN, "classify", name)
    g = json.load(open(os.path.join(folder, "golden.json")))
    for place in ([os.path.join(GOLDEN, g["source"])] if g["source"] else []) + [folder]:
        for f in os.listdir(place):
            to = "base.safetensors" if f == "model.safetensors" and g["source"] else f
            if os.path.lexists(os.path.join(work, to)):
                os.remove(os.path.join(work, to))
            os.symlink(os.path.join(place, f), os.path.join(work, to))
    return g


def configured(work, **changes):
    path = os.path.join(work, "config.json")
    config = json.load(open(path)) | changes
    os.remove(path)
    with open(path, "w") as f:
        json.dump(config, f)


def post(s, path, body):
    status, _, data = s.request("POST", path, body)
    return status, json.loads(data)


def classified(s, body, status=200):
    got = post(s, "/classify", body)
    check.equal(f"status {str(body)[:60]}", got[0], status)
    return got[1]["data"]


def close(name, got, want, most=1e-4):
    worst = max(abs(a - b) for a, b in zip(got, want))
    check.true(f"{name}: {worst:.2g}", len(got) == len(want) and worst < most)


def probs(data):
    return [d["probs"] for d in data]


def variant(name, work):
    g = laid_out(name, work)
    count = len(g["labels"])
    flags = ["--prefill-chunk", "16"] + (["--dtype", "f32"] if "bf16" in name else [])
    s = Server(BINARY, work, *flags)
    try:
        asked = [({"input": t}, w) for t, w in zip(g["inputs"], g["texts"])]
        asked += [({"input": [i]}, w) for i, w in zip(g["ids"], g["by_ids"])]
        asked += [({"messages": m}, w) for m, w in zip(g.get("chats", []), g.get("by_chats", []))]
        alone = []
        for body, want in asked:
            d = classified(s, body)[0]
            close(f"{name} probs", d["probs"], want["probs"])
            raw = classified(s, body | {"use_activation": False})[0]
            close(f"{name} logits", raw["probs"], want["logits"])
            best = g["labels"][max(range(count), key=lambda i: want["logits"][i])]
            check.equal(f"{name} class", (d["index"], d["label"], d["num_classes"]), (0, best, count))
            alone.append(d)
        usage = post(s, "/v1/classify", {"input": g["inputs"][2]})[1]["usage"]
        check.equal(f"{name} usage", (usage["prompt_tokens"], usage["total_tokens"]),
                    (g["texts"][2]["tokens"],) * 2)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:  # together, and cached
            for got in pool.map(lambda _: classified(s, {"input": g["inputs"]}), range(6)):
                check.equal(f"{name} bits", probs(got), probs(alone[:len(got)]))
        pooled = post(s, "/pooling", {"input": g["inputs"], "task": "classify"})[1]["data"]
        check.equal(f"{name} pooling", [d["data"] for d in pooled], probs(alone[:len(pooled)]))
        raw = post(s, "/pooling", {"input": g["inputs"], "activation": False})[1]["data"]
        for d, w in zip(raw, g["texts"]):
            close(f"{name} pooling logits", d["data"], w["logits"])
        pairs(s, name, work, g) if count == 1 else several(s, name)
        refused(s, name, work)
    finally:
        s.stop()
    cold = Server(BINARY, work, *flags, "--prefix-cache", "off")
    try:
        got = classified(cold, {"input": g["inputs"][::-1]})[::-1]
        check.equal(f"{name} cold bits", probs(got), probs(alone[:len(got)]))
        chat = {"messages": g["chats"][0]} if "chats" in g else {"input": g["ids"][1:2]}
        check.true(f"{name} cold", probs(classified(cold, chat))[0] in probs(alone))
    finally:
        cold.stop()


def pairs(s, name, work, g):
    config = json.load(open(os.path.join(work, "config.json")))
    identity = str(config.get("sbert_ce_default_activation_function")).endswith("Identity")
    want = [w["logits"][0] if identity else 1 / (1 + math.exp(-w["logits"][0])) for w in g["by_pairs"]]
    queries, documents = [list(x) for x in zip(*g["pairs"])]
    status, answer = post(s, "/v1/score", {"text_1": queries, "text_2": documents})
    check.equal(f"{name} score", status, 200)
    tokens = sum(w["tokens"] for w in g["by_pairs"])
    check.equal(f"{name} pair tokens", answer["usage"]["prompt_tokens"], tokens)
    got = [d["score"] for d in answer["data"]]
    close(f"{name} scores", got, want)
    for names in ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"):
        again = post(s, "/v1/score", {names[0]: queries, names[1]: documents, "use_activation": False})[1]
        close(f"{name} {names}", [d["score"] for d in again["data"]], [w["logits"][0] for w in g["by_pairs"]])
    ranked = post(s, "/v1/rerank", {"query": queries[0], "documents": documents[:2] * 5})[1]["results"]
    order = sorted([0, 1] * 5, key=lambda i: -got[i])
    check.equal(f"{name} order", [r["index"] % 2 for r in ranked], order)
    check.equal(f"{name} alone and together", {r["relevance_score"] for r in ranked}, set(got[:2]))
    if "chats" in g:  # an image in a pair: batched as alone, and seen
        url = g["chats"][0][0]["content"][0]["image_url"]["url"]
        body = {"query": queries[0], "documents": [{"image": url, "text": "12"}, "12", {"text": "12"}]}
        status, answer = post(s, "/v1/rerank", body)
        check.equal(f"{name} image", status, 200)
        by = {r["index"]: r["relevance_score"] for r in answer["results"]}
        check.true(f"{name} image seen", by[1] == by[2] == got[1] != by[0], by)
        one = post(s, "/v1/score", {"queries": queries[0], "documents": body["documents"][0]})[1]["data"]
        check.equal(f"{name} image alone", one[0]["score"], by[0])
    if "image_pairs" in g:
        answer = post(s, "/v1/rerank", g["image_pairs"])[1]["results"]
        for r in answer:
            close(f"{name} image", [r["relevance_score"]], g["by_image_pairs"][r["index"]]["probs"])
    if g.get("own_pairs"):  # instructions have a place
        told = [post(s, "/v1/score", {"text_1": "a", "text_2": "b"} | more)[1]["data"][0]["score"]
                for more in ({}, {"instruction": "c"}, {"chat_template_kwargs": {"instruction": "c"}})]
        check.true(f"{name} instruction", told[0] != told[1] == told[2], told)
        return
    for field in {"instruction": "c"}, {"chat_template_kwargs": {}}:
        status, answer = post(s, "/v1/score", {"text_1": "a", "text_2": "b"} | field)
        check.equal(f"{name} {field}", (status, answer["error"]["param"]), (400, *field))


def several(s, name):
    status, answer = post(s, "/v1/rerank", {"query": "a", "documents": ["b"]})
    check.equal(f"{name} rerank", (status, answer["error"]["code"]), (400, "unsupported_model"))
    check.true(f"{name} rerank says", "/classify" in answer["error"]["message"], answer)


def refused(s, name, work):
    turns = [{"role": "user", "content": "a"}]
    made = json.load(open(os.path.join(work, "config.json")))["architectures"][0]
    for path, body in [("/v1/chat/completions", {"messages": turns}), ("/v1/completions", {"prompt": "a"}),
                       ("/v1/responses", {"input": "a"}),
                       ("/v1/messages", {"messages": turns, "max_tokens": 1}),
                       ("/api/chat", {"messages": turns}), ("/api/generate", {"prompt": "a"}),
                       ("/v1/embeddings", {"input": "a"})]:
        status, answer = post(s, path, body)
        said = answer["error"] if isinstance(answer["error"], str) else answer["error"]["message"]
        check.true(f"{name} {path} {status} {said}", status == 400 and made in said and "/classify" in said)
    for path, body, param in [("/classify", {}, "input"), ("/classify", {"input": 5}, "input"),
                              ("/classify", {"input": "a", "use_activation": 2}, "use_activation"),
                              ("/pooling", {"input": "a", "task": "token_embed"}, "task")]:
        status, answer = post(s, path, body)
        check.equal(f"{name} {path} {param}", (status, answer["error"]["param"]), (400, param))
    card = json.loads(s.request("GET", "/v1/models")[2])["data"][0]
    check.equal(f"{name} card", (card["architectures"], card["endpoints"][0]), ([made], "/classify"))
    shown = subprocess.run([BINARY, "inspect", "--model", work], capture_output=True, text=True).stdout
    check.true(f"{name} inspect", shown.startswith("served     yes, by /classify") and made in shown, shown)


def control_tokens():
    """Joined pairs are the client's whole prompt, control tokens too."""
    with tempfile.TemporaryDirectory() as work:
        laid_out("qwen3_f32", work)
        s = Server(BINARY, work)
        try:
            whole = "<|im_start|>user\nq<|im_end|>"
            want = classified(s, {"input": whole})[0]["probs"][0]
            got = post(s, "/v1/rerank", {"query": whole[:17], "documents": [whole[17:]]})[1]["results"][0]
            want = 1 / (1 + math.exp(-want))
            check.true("control tokens", abs(got["relevance_score"] - want) < 1e-6, (got, want))
        finally:
            s.stop()


def other_checkpoints():
    """What config.json says of the head, and a head that doesn't fit it."""
    with tempfile.TemporaryDirectory() as work:
        laid_out("qwen2_bf16", work)
        configured(work, id2label={"0": "a", "1": "b"})
        run = subprocess.run([BINARY, "serve", "--model", work, "--port", "0"], capture_output=True)
        check.true("two labels, three rows", run.returncode and b"score.weight" in run.stderr, run.stderr)
        configured(work, id2label={"0": "a", "1": "b", "2": None}, problem_type="regression")
        s = Server(BINARY, work)
        try:
            raw = classified(s, {"input": "a", "use_activation": False})[0]
            check.equal("regression", classified(s, {"input": "a"})[0]["probs"], raw["probs"])
        finally:
            s.stop()
    s = Server(BINARY, os.path.join(GOLDEN, "qwen", "qwen3_f32"))
    try:
        status, answer = post(s, "/classify", {"input": "a"})
        check.equal("no classifier", (status, answer["error"]["code"]), (400, "unsupported_model"))
    finally:
        s.stop()


if __name__ == "__main__":
    BINARY = arguments(__doc__).binary
    for folder in sorted(os.listdir(os.path.join(GOLDEN, "classify"))):
        with tempfile.TemporaryDirectory() as place:
            check.run(variant, folder, place)
    check.run(control_tokens)
    check.run(other_checkpoints)
    check.end()
