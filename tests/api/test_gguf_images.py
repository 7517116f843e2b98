"""GGUF files with their towers over HTTP, in float32 (tests/golden/gguf/NAME_f32.gguf): a chat with images
gives the prompt's token ids, the greedy tokens and the log-probs that transformers has for the checkpoint
that the files were made of.

python3 test_gguf_images.py [--binary B] [name ...]"""
import os
import struct

import harness
from golden import Golden

root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
args = harness.arguments(__doc__)
check = harness.Checks()
LIMIT = 1e-4
SOURCES = {"idefics3": "tiles/idefics3_f32", "smolvlm": "tiles/smolvlm_f32", "internvl": "tiles/internvl_f32",
           "lfm2_vl": "tiles/lfm2_vl_gguf_f32", "minicpmv4_6": "tiles/minicpmv4_6_f32",
           "mistral3": "native/mistral3_gguf_f32", "lighton_ocr": "native/lighton_ocr_f32",
           "paddleocr_vl": "native/paddleocr_vl_f32", "glm4v": "native/glm4v_f32",
           "glm_ocr": "native/glm_ocr_f32"}


def floats(raw):
    return struct.unpack(f"<{len(raw) // 4}f", raw)


def test_pair(name):
    file = os.path.join(root, "tests/golden/gguf", name + "_f32")
    g = Golden(os.path.join(root, "tests/golden"), SOURCES[name])
    tower = file + "-mmproj.gguf"
    server = harness.Server(args.binary, file + ".gguf", "--mmproj", tower, "--kv-memory", "64M")
    for n, case in enumerate(g.cases):
        prompt, greedy = g.ids(f"case{n}.prompt_ids"), g.greedy(n)
        follow = floats(g.bytes(f"case{n}.follow"))  # of each token, given those before it
        body = {"temperature": 0, "max_tokens": len(greedy), "ignore_eos": True, "return_token_ids": True,
                "logprobs": True, "prompt_logprobs": 0, "chat_template_kwargs": case.get("template") or {},
                "messages": [{**m, "content": g.content(n, m["content"])} for m in case["messages"]]}
        answer = server.ok("/v1/chat/completions", body)
        choice = answer["choices"][0]
        check.equal(f"{name} case {n}: prompt", answer["prompt_token_ids"], prompt)
        check.equal(f"{name} case {n}: answer", choice["token_ids"], greedy)
        got = [list(p.values())[0]["logprob"] for p in answer["prompt_logprobs"][1:]]
        got += [t["logprob"] for t in choice["logprobs"]["content"]]
        worst = max(abs(a - b) for a, b in zip(got, follow))
        check.true(f"{name} case {n}: log-probs", len(got) == len(follow) and worst <= LIMIT, worst)
    server.stop()


for pair in args.only or SOURCES:
    check.run(test_pair, pair)
check.end()
