"""The golden cases over HTTP: messages with images, videos and tools, and raw text, give the ids that
transformers' processor makes of them, and for f32 checkpoints its greedy output.

python3 test_golden_prompts.py [--binary B] [family ...]"""
import json
import os

import harness
from golden import Golden

root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
args = harness.arguments(__doc__)
check = harness.Checks()
FAMILIES = ("gemma", "gemma3", "gemma4", "gemma4-mtp", "llama", "native", "qwen", "tiles")


def message(g, n, m):
    calls = [{**c, "function": {**c["function"], "arguments": json.dumps(c["function"]["arguments"])}}
             for c in m.get("tool_calls") or []]
    return {**m, "content": g.content(n, m["content"]), **({"tool_calls": calls} if calls else {})}


def test_variant(family, variant):
    g = Golden(os.path.join(root, "tests/golden", family), variant)
    server = harness.Server(args.binary, g.folder, "--kv-memory", "64M", "--generation-config", "ignore")
    for n, case in enumerate(g.cases):
        want, answer_ids = g.ids(f"case{n}.prompt_ids"), g.greedy(n)
        body = {"temperature": 0, "max_tokens": len(answer_ids), "ignore_eos": True, "return_token_ids": True}
        if case["kind"] == "raw" and case.get("images"):  # the API has no such request
            continue
        if case["kind"] == "raw":
            # Those of the text families were made without the tokens that a tokenizer adds.
            body |= {"prompt": case["prompt"], "add_special_tokens": family != "llama"}
            answer = server.ok("/v1/completions", body)
            ids = answer["choices"][0]["prompt_token_ids"]
        else:
            kwargs = dict(case.get("template") or {})
            body["tools"] = kwargs.pop("tools", None)
            body["chat_template_kwargs"] = kwargs
            body["messages"] = [message(g, n, m) for m in case["messages"]]
            answer = server.ok("/v1/chat/completions", body)
            ids = answer["prompt_token_ids"]
        check.equal(f"{family}/{variant} case {n}: prompt", ids, want)
        if g.about["weights"] == "float32":
            check.equal(f"{family}/{variant} case {n}: answer", answer["choices"][0]["token_ids"], answer_ids)
    server.stop()


def test_placeholders(variant):
    """Gemma 4 embeds a placeholder without features as the padding token, as transformers' forward does."""
    folder = os.path.join(root, "tests/golden/gemma4", variant)
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    server = harness.Server(args.binary, folder, "--kv-memory", "64M")
    pad, audio, other = (server.ok("/v1/completions", {
        "prompt": [5, 6, t, 7], "temperature": 0, "max_tokens": 4, "logprobs": 3})["choices"]
        for t in (config["text_config"].get("pad_token_id", 0), config["audio_token_id"], 9))
    check.equal(f"{variant}: a placeholder", audio, pad)
    check.true(f"{variant}: another token", other != pad, other)
    server.stop()


def main():
    for family in args.only or FAMILIES:
        for variant in sorted(os.listdir(os.path.join(root, "tests/golden", family))):
            check.run(test_variant, family, variant)
    if "gemma4" in (args.only or FAMILIES):
        for variant in ("e2b_vision_f32", "12b_f32", "26b_vision_f32"):
            check.run(test_placeholders, variant)
    check.end()


main()
