#!/usr/bin/env python3
"""POST /v1/embeddings, /v1/rerank and /v1/score against transformers' vectors (tests/golden/embeddings), and
the same bits whatever is cached, batched or chunked."""
import base64
import concurrent.futures
import json
import os
import struct
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Checks, Server, arguments  # noqa: E402

check = Checks()
GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden")


def golden(*parts):
    return os.path.join(GOLDEN, *parts)


def post(s, path, body):
    status, _, data = s.request("POST", path, body)
    return status, json.loads(data)


def vectors(answer):
    return [d["embedding"] for d in answer["data"]]


def close(name, got, want):
    worst = max(abs(a - b) for a, b in zip(got, want))
    check.true(f"{name}: {worst:.2g}", len(got) == len(want) and worst < 2e-5)


def variant(name):
    folder = golden("embeddings", name)
    cases = json.load(open(os.path.join(folder, "golden.json")))
    s = Server(BINARY, folder, "--prefill-chunk", "16")
    try:
        def ask(**body):
            return post(s, "/v1/embeddings", body)
        alone = []
        for c in cases:
            named = {"prompt_name": c["prompt_name"]} if c["prompt_name"] else {}
            status, answer = ask(input=c["input"], **named)
            check.equal(f"{name} status", status, 200)
            check.equal(f"{name} tokens", answer["usage"]["prompt_tokens"], len(c["ids"]))
            close(f"{name} {c['input'][:12]!r}", vectors(answer)[0], c["vector"])
            alone.append(vectors(answer)[0])
        plain = [i for i, c in enumerate(cases) if not c["prompt_name"]]
        texts = [cases[i]["input"] for i in plain]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:  # together, and cached
            for status, answer in pool.map(lambda _: ask(input=texts), range(6)):
                check.equal(f"{name} bits", vectors(answer), [alone[i] for i in plain])
        ids = [cases[i]["ids"] for i in plain]
        got = vectors(ask(input=ids, add_special_tokens=False)[1])
        check.equal(f"{name} ids", got, [alone[i] for i in plain])
        packed = ask(input=texts[1], encoding_format="base64")[1]["data"][0]["embedding"]
        count = f"<{len(alone[0])}f"
        check.equal(f"{name} base64", base64.b64decode(packed), struct.pack(count, *alone[1]))
        named = next((c["prompt_name"] for c in cases if c["prompt_name"]), None)
        if named:  # U+0000 ends no text
            for text in "a\0b", ["a\0b"]:
                both = [ask(input=t, prompt_name=named)[1]["usage"]["prompt_tokens"] for t in ("a", text)]
                check.true(f"{name} U+0000", both[0] < both[1])
        short = vectors(ask(input=texts[1], dimensions=8)[1])[0]
        check.equal(f"{name} dimensions", len(short), 8)
        check.true(f"{name} length", abs(sum(v * v for v in short) - 1) < 1e-5)
        if name in ("encoder_f32", "plain_f32"):  # generates no text
            status, answer = post(s, "/v1/completions", {"prompt": "a"})
            check.equal(f"{name} completions", (status, answer["error"]["code"]), (400, "unsupported_model"))
        # an empty text has one token if the tokenizer ends each text with one
        check.equal(f"{name} empty", ask(input="")[0], 200 if name != "mean_f32" else 400)
        for body, param in [({}, "input"), ({"input": []}, "input"), ({"input": ["a", 5]}, "input[1]"),
                            ({"input": "a", "dimensions": 33}, "dimensions"),
                            ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
                            ({"input": "a", "prompt_name": "other"}, "prompt_name"),
                            ({"input": "word " * 30000}, "input")]:
            status, answer = ask(**body)
            check.equal(f"{name} {param}", (status, answer["error"]["param"]), (400, param))
    finally:
        s.stop()


def ggufs():
    """As GGUF files in float32: pooling, layers and the end of each text from their keys."""
    for name, source in ("gemma_embedding", "plain_f32"), ("qwen3_embedding", "last_f32"):
        cases = json.load(open(golden("embeddings", source, "golden.json")))
        cases = [c for c in cases if not c["prompt_name"]]
        s = Server(BINARY, golden("gguf", name + ".gguf"))
        try:
            for c in cases:
                status, answer = post(s, "/v1/embeddings", {"input": [c["ids"]], "add_special_tokens": False})
                check.equal(f"{name} status", status, 200)
                close(f"{name} {c['input'][:12]!r}", vectors(answer)[0], c["vector"])
            counts = [post(s, "/v1/embeddings", {"input": t})[1]["usage"]["prompt_tokens"] for t in ("", "a")]
            added = 2 if source == "plain_f32" else 1  # <bos>, and the token at the end
            check.equal(f"{name} tokens added", counts, [added, added + 1])
        finally:
            s.stop()


def outside():
    """A module that is not in the model's folder is not left out: the vectors would be others."""
    with tempfile.TemporaryDirectory() as folder:
        for f in os.listdir(golden("embeddings", "mean_f32")):
            if f != "modules.json":
                os.symlink(golden("embeddings", "mean_f32", f), os.path.join(folder, f))
        with open(os.path.join(folder, "modules.json"), "w") as f:
            json.dump([{"path": "../1_Pooling", "type": "sentence_transformers.models.Pooling"}], f)
        s = Server(BINARY, folder)
        try:
            status, answer = post(s, "/v1/embeddings", {"input": "a"})
            check.equal("outside", (status, answer.get("error", {}).get("code")), (400, "unsupported_model"))
        finally:
            s.stop()


def scores():
    want = json.load(open(golden("embeddings", "scores.json")))
    with tempfile.TemporaryDirectory() as folder:
        for f in os.listdir(golden("qwen", "qwen3_f32")):
            os.symlink(golden("qwen", "qwen3_f32", f), os.path.join(folder, f))
        os.mkdir(os.path.join(folder, "1_LogitScore"))
        with open(os.path.join(folder, "1_LogitScore", "config.json"), "w") as f:
            json.dump({k: want[k] for k in ("true_token_id", "false_token_id")}, f)
        with open(os.path.join(folder, "modules.json"), "w") as f:
            json.dump([{"idx": 0, "name": "0", "path": "",
                        "type": "sentence_transformers.base.modules.transformer.Transformer"},
                       {"idx": 1, "name": "1", "path": "1_LogitScore",
                        "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"}], f)
        s = Server(BINARY, folder)
        try:
            status, answer = post(s, "/v1/rerank", {"query": want["query"], "documents": want["documents"]})
            check.equal("rerank status", status, 200)
            order = sorted(range(3), key=lambda i: -want["scores"][i])
            check.equal("rerank order", [r["index"] for r in answer["results"]], order)
            for r in answer["results"]:
                check.true("rerank score", abs(r["relevance_score"] - want["scores"][r["index"]]) < 2e-5)
                check.equal("rerank text", r["document"]["text"], want["documents"][r["index"]])
            one = post(s, "/v2/rerank", {"query": want["query"], "documents": [{"text": d} for d in
                            want["documents"]], "top_n": 1, "return_documents": False})[1]["results"]
            best = answer["results"][0]
            check.equal("rerank top", one, [{k: best[k] for k in ("index", "relevance_score")}])
            nul = post(s, "/v1/rerank", {"query": "q", "documents": ["a", "a\0b", "a\0c"]})[1]["results"]
            check.equal("U+0000", len({r["relevance_score"] for r in nul}), 3)
            check.equal("U+0000 text", {r["document"]["text"] for r in nul}, {"a", "a\0b", "a\0c"})
            got = post(s, "/v1/score", {"text_1": want["query"], "text_2": want["documents"]})[1]["data"]
            by_index = {r["index"]: r["relevance_score"] for r in answer["results"]}
            check.equal("score", {d["index"]: d["score"] for d in got}, by_index)
            for path, body, param in [("/v1/rerank", {"documents": ["a"]}, "query"),
                                      ("/v1/rerank", {"query": "a"}, "documents"),
                                      ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
                                      ("/v1/rerank", {"query": "a", "documents": ["b", 1]}, "documents[1]"),
                                      # 20 GB of prompts, by a body of 10 MB
                                      ("/v1/rerank", {"query": "a" * 10**7,
                                                        "documents": ["b"] * 2048}, "documents"),
                                      ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_1")]:
                status, answer = post(s, path, body)
                check.equal(f"{path} {param}", (status, answer["error"]["param"]), (400, param))
        finally:
            s.stop()


def others():
    """The event loop serves others while many vectors become text."""
    s = Server(BINARY, DEMO)
    try:
        many = [str(i) for i in range(2048)]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            began, longest = time.monotonic(), 0
            waits = pool.submit(s.request, "POST", "/v1/embeddings", {"input": many})
            while not waits.done():
                asked = time.monotonic()
                check.equal("health", s.request("GET", "/health")[0], 200)
                longest = max(longest, time.monotonic() - asked)
                time.sleep(0.005)
            whole = time.monotonic() - began
        check.equal("many", waits.result()[0], 200)
        check.true(f"longest wait {longest:.3f} of {whole:.3f} s", longest < whole / 5)
    finally:
        s.stop()


if __name__ == "__main__":
    ARGS = arguments(__doc__)
    BINARY, DEMO = ARGS.binary, ARGS.demo
    check.run(variant, "last_f32")
    check.run(variant, "mean_f32")
    check.run(variant, "encoder_f32")
    check.run(variant, "plain_f32")
    check.run(ggufs)
    check.run(outside)
    check.run(scores)
    check.run(others)
    check.end()
