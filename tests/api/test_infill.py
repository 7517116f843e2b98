"""suffix of /v1/completions: python3 test_infill.py [--binary B]
A prompt with a suffix is the text that a client would write by hand with the tokens for it."""

import atexit
import json
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Checks, Server, arguments  # noqa: E402

TEXT = "/v1/completions"
GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden")
PRE, SUF, MID, PAD = (f"<|fim_{name}|>" for name in ("prefix", "suffix", "middle", "pad"))
check = Checks()
args = arguments(__doc__)


def with_tokens(model, names):
    """The checkpoint with other names for added tokens."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, True)
    for name in os.listdir(model):
        if name != "tokenizer.json":
            os.symlink(os.path.join(model, name), os.path.join(folder, name))
    with open(os.path.join(model, "tokenizer.json")) as f:
        tokenizer = json.load(f)
    for token in tokenizer["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump(tokenizer, f)
    return folder


def ask(prompt, **fields):
    return {
        "prompt": prompt,
        "max_tokens": 8,
        "temperature": 0,
        "logprobs": 2,
        "return_token_ids": True,
        **fields,
    }


def refused(s, what, request, code, param, status=400):
    got, answer = s.post(TEXT, request)
    error = answer.get("error") or {}
    check.equal(what, (got, error.get("code"), error.get("param")), (status, code, param))


def test_suffix(s):
    end = {"stop_token_ids": [306, 309, 310, 311, 312]}
    for before, after in (
        ("def f(a):\n    ", "\n    return a\n"),
        ("", "x"),
        ("a ", " b"),
        ("\u00fc", "\U0001f600"),
    ):
        got = s.ok(TEXT, ask(before, suffix=after))
        want = s.ok(TEXT, ask(PRE + before + SUF + after + MID, **end))
        check.equal(f"{before!r} and {after!r}", got["choices"], want["choices"])
    got = s.ok(TEXT, ask(["a", "b"], suffix="c"))["choices"]
    for i, text in enumerate(("a", "b")):
        want = s.ok(TEXT, ask(text, suffix="c"))["choices"][0]
        check.equal(f"prompt {i}", got[i], {**want, "index": i})
    for nothing in ("", None):
        check.equal(
            f"suffix {nothing!r}",
            s.ok(TEXT, ask("a", suffix=nothing))["choices"],
            s.ok(TEXT, ask("a"))["choices"],
        )
    for token in (306, 309, 310, 311, 312):  # of which each ends the middle
        answer = s.ok(TEXT, ask("a", suffix="b", logit_bias={str(token): 100}))["choices"][0]
        check.equal(f"{token} ends it", (answer["text"], answer["finish_reason"]), ("", "stop"))
        answer = s.ok(TEXT, ask("a", suffix="b", logit_bias={str(token): 100}, ignore_eos=True))["choices"][0]
        check.equal(f"{token} does not with ignore_eos", answer["finish_reason"], "length")
    many = list(range(48))
    check.true("with all stop tokens", s.ok(TEXT, ask("a", suffix="b", stop_token_ids=many)))
    stream = s.stream(TEXT, ask("a", suffix="b"))
    check.equal(
        "stream",
        "".join(c["choices"][0]["text"] for c in stream if c["choices"]),
        s.ok(TEXT, ask("a", suffix="b"))["choices"][0]["text"],
    )
    refused(s, "no string", ask("a", suffix=5), "invalid_type", "suffix")
    check.true("Ollama's word", "insert" in s.ok("/api/show", {})["capabilities"])
    refused(s, "echo", ask("a", suffix="b", echo=True), "invalid_value", "echo")
    refused(
        s, "cut", ask("a", suffix="b", truncate_prompt_tokens=3), "invalid_value", "truncate_prompt_tokens"
    )
    for ids in ([1, 2], [[1, 2]], ["a", [1]], [{"type": "text", "text": "a"}]):
        refused(s, f"prompt {ids}", ask(ids, suffix="b"), "invalid_value", "suffix")
    refused(s, "too long", ask("a", suffix="b " * 4000), "context_length_exceeded", "prompt")


def test_without(s, missing):
    check.true("Ollama's word", "insert" not in s.ok("/api/show", {})["capabilities"])
    refused(s, f"no {missing}", ask("a", suffix="b"), "unsupported_parameter", "suffix")
    check.true("says which", missing in s.post(TEXT, ask("a", suffix="b"))[1]["error"]["message"])
    refused(s, "no string", ask("a", suffix=["b"]), "invalid_type", "suffix")


small = os.path.join(GOLDEN, "qwen/qwen2_f32")
names = {"<|vision_start|>": PRE, "<|vision_end|>": MID, "<|vision_pad|>": SUF, "<|image_pad|>": PAD}
server = Server(args.binary, with_tokens(small, names), "--kv-memory", "32M")
check.run(test_suffix, server)
server.stop()
for model, missing in (
    (small, PRE),
    (with_tokens(small, {"<|vision_start|>": PRE, "<|vision_pad|>": SUF}), MID),
):
    server = Server(args.binary, model, "--kv-memory", "32M")
    check.run(test_without, server, missing)
    server.stop()
check.end()
