#!/usr/bin/env python3
"""/v1/embeddings, /pooling, /v1/rerank and /v1/score with images against transformers
(tests/golden/retrieval): Qwen3-VL-Embedding and -Reranker, ColPali, ColQwen2; and the same bits whatever is
cached, batched or chunked."""
import base64
import concurrent.futures
import json
import os
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Checks, Server, arguments  # noqa: E402

check = Checks()
GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden")
LIMIT = 1e-4


def post(s, path, body):
    status, _, data = s.request("POST", path, body)
    return status, json.loads(data)


def flat(v):
    return [x for row in v for x in row] if v and isinstance(v[0], list) else v


def close(name, got, want):
    got, want = flat(got), flat(want)
    worst = max(abs(a - b) for a, b in zip(got, want))
    check.true(f"{name}: {worst:.2g}, {len(got)} of {len(want)}", len(got) == len(want) and worst < LIMIT)


def vectors(answer, name="embedding"):
    return [d[name] for d in answer["data"]]


def same_bits(name, ask, inputs, want):
    """Alone and cold; then together, several at once, with what the first left in the caches."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for status, answer in pool.map(lambda _: ask(input=inputs), range(4)):
            check.equal(f"{name} bits", vectors(answer), want)
    back = ask(input=inputs[::-1])[1]
    check.equal(f"{name} bits in another order", vectors(back), want[::-1])


def scored(s, name, query, documents, want, field="documents"):
    status, answer = post(s, "/v1/rerank", {"query": query, "documents": documents})
    check.equal(f"{name} rerank", status, 200)
    by_index = {r["index"]: r["relevance_score"] for r in answer["results"]}
    check.equal(f"{name} order", [r["index"] for r in answer["results"]],
                sorted(range(len(want)), key=lambda i: -want[i]))
    close(f"{name} scores", [by_index[i] for i in range(len(want))], want)
    for r in answer["results"]:
        d = documents[r["index"]]
        text = d if isinstance(d, str) else d.get("text")
        check.equal(f"{name} text", r.get("document"), {"text": text} if text else None)
    for d, alone in zip(documents, [by_index[i] for i in range(len(want))]):
        got = post(s, "/v1/score", {"queries": query, "documents": d})[1]["data"][0]["score"]
        check.equal(f"{name} alone", got, alone)
    pairs = post(s, "/v1/score", {"text_1": [query] * len(want), "text_2": documents})[1]["data"]
    check.equal(f"{name} pairs", [d["score"] for d in pairs], [by_index[i] for i in range(len(want))])


def served(folder, *flags):
    return Server(BINARY, folder, "--prefill-chunk", "16", *flags)


def laid_over(name, work):
    """The files of retrieval/NAME over those of its source; golden.json's content."""
    folder = os.path.join(GOLDEN, "retrieval", name)
    g = json.load(open(os.path.join(folder, "golden.json")))
    for place in os.path.join(GOLDEN, g["source"]), folder:
        for f in os.listdir(place):
            if os.path.lexists(os.path.join(work, f)):
                os.remove(os.path.join(work, f))
            os.symlink(os.path.join(place, f), os.path.join(work, f))
    return g


def content(item):
    item = {"text": item} if isinstance(item, str) else item
    parts = [{"type": "image_url", "image_url": {"url": item["image"]}}] if "image" in item else []
    return parts + ([{"type": "text", "text": item["text"]}] if "text" in item else [])


def qwen3_vl(name):
    with tempfile.TemporaryDirectory() as work:
        g = laid_over(name, work)
        s = served(work)
        try:
            def ask(**body):
                return post(s, "/v1/embeddings", body)
            alone = []
            for item, want, tokens in zip(g["inputs"], g["vectors"], g["tokens"]):
                status, answer = ask(input=item)
                check.equal(f"{name} status", status, 200)
                check.equal(f"{name} tokens", answer["usage"]["prompt_tokens"], tokens)
                close(name, vectors(answer)[0], want)
                alone.append(vectors(answer)[0])
            same_bits(name, ask, g["inputs"], alone)
            # as vLLM has it: messages
            for item, want in list(zip(g["inputs"], alone))[:4]:
                turns = [{"role": "system", "content": "Represent the user's input."},
                         {"role": "user", "content": content(item)}]
                body = {"messages": turns, "add_special_tokens": True}
                got = ask(**body, add_generation_prompt=True)[1]
                check.equal(f"{name} messages", vectors(got)[0], want)
                turns.append({"role": "assistant", "content": [{"type": "text", "text": ""}]})
                got = ask(**body, continue_final_message=True)[1]
                check.equal(f"{name} continued", vectors(got)[0], want)
            told = ask(input=["a", {"content": content(g["inputs"][1])}], instruction="Find it")[1]
            check.equal(f"{name} instruction", vectors(told)[0], alone[4])
            check.true(f"{name} instruction of all", vectors(told)[1] != alone[1])
            said = [ask(input="a", instruction=i)[1]["usage"]["prompt_tokens"]
                    for i in ("b", "\0b", "\v b\f")]
            check.true(f"{name} only white space is removed: {said}", said[0] == said[2] < said[1])
            ids = ask(input=[[5, 6, 7]])
            check.equal(f"{name} ids", (ids[0], ids[1]["usage"]["prompt_tokens"]), (200, 3))
            scored(s, name, g["query"], g["documents"], g["scores"])
            many = post(s, "/v1/rerank", {"query": g["query"], "documents": g["documents"] * 9})[1]["results"]
            check.equal(f"{name} many", len({r["relevance_score"] for r in many}), 3)
            for path, body, param in [
                    ("/v1/embeddings", {"input": {}}, "input"),
                    ("/v1/embeddings", {"input": ["a", {"image": 5}]}, "input[1].image[0].image"),
                    ("/v1/embeddings", {"input": "a", "instruction": 1}, "instruction"),
                    ("/v1/embeddings", {"input": [{"text": "a", "instruction": 1}]}, "input[0].instruction"),
                    # the text would have no system message because of the ids
                    ("/v1/embeddings", {"input": [[5, 6, 7], "a"]}, "input"),
                    ("/v1/embeddings", {"input": [{"image": "data:image/png;base64,AAAA"}]},
                     "input[0].image[0].image"),
                    ("/v1/rerank", {"query": {}, "documents": ["a"]}, "query"),
                    ("/v1/rerank", {"query": "a", "documents": ["b", 1]}, "documents[1]")]:
                status, answer = post(s, path, body)
                check.equal(f"{path} {param}", (status, answer["error"]["param"]), (400, param))
        finally:
            s.stop()


def repeated_image():
    """The query's image in every pair, where its features don't stay cached."""
    with tempfile.TemporaryDirectory() as work:
        g = laid_over("qwen3_vl_odd_f32", work)
        for flags in (), ("--prefix-cache", "off"):
            s = served(work, "--encoder-cache-memory", "1K", *flags)
            try:
                for documents in g["documents"], g["documents"] * 6:
                    body = {"queries": {"content": content(g["query"])}, "documents": documents}
                    status, answer = post(s, "/v1/score", body)
                    check.equal(f"{flags} status", status, 200)
                    want = g["scores"] * (len(documents) // 3)
                    close(f"{flags}", [d["score"] for d in answer["data"]], want)
            finally:
                s.stop()


def bounded_pixels():
    """--image-memory bounds what one request of many inputs holds: the rest is decoded again in its turn."""
    with tempfile.TemporaryDirectory() as work:
        g = laid_over("qwen3_vl_odd_f32", work)
        url = next(d["image"] for d in g["documents"] + g["inputs"] if isinstance(d, dict) and "image" in d)
        inputs = [{"image": [url] * n} for n in (1, 2, 3)]
        got = []
        for flags in (), ("--image-memory", "1K"):
            s = served(work, "--encoder-cache-memory", "1K", "--prefix-cache", "off", *flags)
            try:
                status, answer = post(s, "/v1/embeddings", {"input": inputs})
                check.equal(f"{flags} status", status, 200)
                got.append((vectors(answer), s.metric("kvasir:images_decoded_total")))
            finally:
                s.stop()
        check.equal("bounded bits", got[1][0], got[0][0])
        check.true(f"decoded again: {got[0][1]}, {got[1][1]}", got[0][1] == 6 and got[1][1] > 6)


def videos():
    """At most four in a prompt, whatever the other inputs of the request have."""
    with tempfile.TemporaryDirectory() as work:
        g = laid_over("qwen3_vl_odd_f32", work)
        url = next(d["image"] for d in g["documents"] + g["inputs"] if isinstance(d, dict) and "image" in d)
        video = {"content": [{"type": "video", "video": [url, url]}]}
        s = served(work)
        try:
            check.equal("videos of several inputs", post(s, "/v1/embeddings", {"input": [video] * 6})[0], 200)
            for input in [{"content": video["content"] * 5}], [{"image": [url] * 9}, {"image": [url] * 17}]:
                status, answer = post(s, "/v1/embeddings", {"input": input})
                check.equal("too many of one", status, 400)
                check.true("the number", answer["error"]["message"].startswith(
                    "At most 4 video" if len(input) == 1 else "At most 16 image"), answer)
        finally:
            s.stop()


def plain_images():
    """A model with images and no prompts for retrieval: a text is no chat, whatever else is in the list."""
    s = Server(BINARY, os.path.join(os.path.dirname(os.path.dirname(GOLDEN)), "models", "demo"))
    try:
        for body, param in [({"input": [{"text": "a"}, "a"]}, "input"),
                            ({"input": ["a", {"text": "a"}]}, "input"),
                            ({"input": {"text": "a"}, "instruction": "b"}, "instruction"),
                            ({"input": {"text": "a", "instruction": "b"}}, "input.instruction")]:
            status, answer = post(s, "/v1/embeddings", body)
            check.equal(f"{body}", (status, answer.get("error", {}).get("param")), (400, param))
        check.equal("objects", post(s, "/v1/embeddings", {"input": [{"text": "a"}, {"text": "b"}]})[0], 200)
    finally:
        s.stop()


def counted_vectors():
    """--response-memory counts the vectors of all tokens with the scheduler's copy in f64."""
    body = {"input": [[5] * 400] * 40, "task": "token_embed", "encoding_format": "base64"}  # 2 MiB in f32
    for memory, want in ("12M", 200), ("6M", 429):
        s = Server(BINARY, os.path.join(GOLDEN, "embeddings", "last_f32"), "--response-memory", memory)
        try:
            check.equal(f"vectors in {memory}", post(s, "/pooling", body)[0], want)
        finally:
            s.stop()


def late(name):
    folder = os.path.join(GOLDEN, "retrieval", name)
    g = json.load(open(os.path.join(folder, "golden.json")))
    pages = [{"image": p} for p in g["pages"]]
    inputs = g["queries"] + pages
    s = served(folder)
    try:
        def ask(**body):
            return post(s, "/v1/embeddings", body)
        alone = []
        for item, want, ids in zip(inputs, g["vectors"], g["ids"]):
            status, answer = ask(input=item)
            check.equal(f"{name} status", status, 200)
            check.equal(f"{name} tokens", answer["usage"]["prompt_tokens"], len(ids))
            close(name, vectors(answer)[0], want)
            alone.append(vectors(answer)[0])
        same_bits(name, ask, inputs, alone)
        pooled = post(s, "/pooling", {"input": inputs, "task": "token_embed"})[1]
        check.equal(f"{name} pooling", vectors(pooled, "data"), alone)
        check.equal(f"{name} pooling's object", pooled["data"][0]["object"], "pooling")
        packed = base64.b64decode(vectors(ask(input=inputs[-1:], encoding_format="base64")[1])[0])
        check.equal(f"{name} base64", packed, struct.pack(f"<{len(packed) // 4}f", *flat(alone[-1])))
        short = vectors(ask(input=inputs[0], dimensions=3)[1])[0]
        check.equal(f"{name} dimensions", {len(v) for v in short}, {3})
        turn = [{"role": "user", "content": content(pages[0])}]
        check.equal(f"{name} messages", vectors(ask(messages=turn)[1])[0], alone[len(g["queries"])])
        for q, row in zip(g["queries"], g["scores"]):
            scored(s, name, q, inputs, row)
        status, answer = post(s, "/v1/completions", {"prompt": "a"})
        check.equal(f"{name} completions", (status, answer["error"]["code"]), (400, "unsupported_model"))
        status, answer = ask(input={"image": pages[0]["image"], "text": "a"})
        check.equal(f"{name} both", (status, answer["error"]["code"]), (400, "chat_template_error"))
        status, answer = post(s, "/pooling", {"input": "a", "task": "embed"})
        check.equal(f"{name} task", (status, answer["error"]["param"]), (400, "task"))
    finally:
        s.stop()


def inspected():
    """The first line of `inspect`, by config.json alone; what a model inside or a processor may be."""
    def first(name, change=None, processor=None):
        with tempfile.TemporaryDirectory() as work:
            for f, edit in ("config.json", change), ("processor_config.json", processor):
                c = json.load(open(os.path.join(GOLDEN, "retrieval", name, f)))
                c = edit(c) if edit else c
                with open(os.path.join(work, f), "w") as out:
                    json.dump(c, out)
            if processor:  # its file is read with the weights
                os.symlink(os.path.join(GOLDEN, "retrieval", name, "model.safetensors"),
                           os.path.join(work, "model.safetensors"))
            run = subprocess.run([BINARY, "inspect", "--model", work], capture_output=True, text=True)
            return run.stdout.splitlines()[0] if not run.returncode else run.stderr.split(work)[-1]

    yes = "served     yes, for multi-vector embeddings, by config.json; the directory has no weights"
    for name in "colpali_f32", "colqwen2_f32", "colqwen2_odd_f32":
        check.equal(f"{name} inspect", first(name), yes)
        turned = first(name, lambda c: {"vlm_config": c.pop("vlm_config"), "z": {"}": "{"}, **c})
        check.equal(f"{name} keys in another order", turned, yes)
    for change, what in [(lambda c: c["vlm_config"].update(model_type="qwen3_vl"), "model_type"),
                         (lambda c: c.pop("vlm_config"), "vlm_config"),
                         (lambda c: c["vlm_config"].pop("vision_config"), "vision_config"),
                         (lambda c: c.update(vlm_config=[]), "vlm_config")]:
        check.true(f"{what} named", what in first("colqwen2_f32", lambda c: (change(c), c)[1]))
    said = first("colpali_f32", processor=lambda c: c | {"query_prefix": "Ask: "})
    check.true(f"query_prefix named: {said}", "query_prefix" in said)


def texts_only():
    """A model without images: objects with a text are scored, images refused; a vector per token."""
    s = Server(BINARY, os.path.join(GOLDEN, "embeddings", "last_f32"))
    try:
        whole = post(s, "/v1/embeddings", {"input": "The cat sat."})[1]["data"][0]["embedding"]
        each = post(s, "/pooling", {"input": "The cat sat.", "task": "token_embed"})[1]["data"][0]["data"]
        check.equal("the last of all", each[-1], whole)
        for path, body, param in [("/v1/embeddings", {"input": [{"text": "a"}]}, "input[0]"),
                                  ("/v1/embeddings", {"input": "a", "instruction": "b"}, "instruction")]:
            status, answer = post(s, path, body)
            check.equal(f"{path} {param}", (status, answer["error"]["param"]), (400, param))
    finally:
        s.stop()


if __name__ == "__main__":
    ARGS = arguments(__doc__)
    BINARY = ARGS.binary
    for variant in "qwen3_vl_f32", "qwen3_vl_odd_f32":
        check.run(qwen3_vl, variant)
    for test in repeated_image, bounded_pixels, videos, plain_images, counted_vectors:
        check.run(test)
    for variant in "colpali_f32", "colpali_odd_f32", "colqwen2_f32", "colqwen2_odd_f32":
        check.run(late, variant)
    check.run(texts_only)
    check.run(inspected)
    check.end()
