"""Prefix-LM models over HTTP: their processor's rule for chats and for completions with
parts, transformers' greedy ids, only whole hits of the prefix cache, and what is rejected."""
import os
import shutil
import struct
import tempfile

import harness
from golden import Golden

root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
args = harness.arguments(__doc__, golden=os.path.join(root, "tests/golden/paligemma"))
check = harness.Checks()
COUNT = 16  # tokens that golden.json has of each answer


def body(**more):
    return {"temperature": 0, "max_tokens": COUNT, "ignore_eos": True, "return_token_ids": True, **more}


def chat(server, content, **more):
    return server.ok("/v1/chat/completions", body(messages=[{"role": "user", "content": content}], **more))


def ids_of(answer, choice=0):
    return answer["choices"][choice]["token_ids"]


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_golden(variant):
    """Every case cold, then warm; all of them through chat, with images through completions, too."""
    g = Golden(args.golden, variant)
    server = harness.Server(args.binary, g.folder)
    for n, case in enumerate(g.cases):
        what = f"{variant} case {n}"
        if case["kind"] == "raw":
            ask = body(prompt=case["prompt"])
            first, second = (server.ok("/v1/completions", ask) for _ in range(2))
            parts = None
        else:
            parts = g.parts(n)
            first, second = (chat(server, parts) for _ in range(2))
        check.equal(f"{what}: ids", ids_of(first), g.greedy(n))
        check.equal(f"{what}: warm ids", ids_of(second), g.greedy(n))
        check.equal(f"{what}: prompt tokens", first["usage"]["prompt_tokens"], case["prompt_tokens"])
        check.equal(f"{what}: cold", cached(first), 0)
        rest = case["prompt_tokens"] - 1
        check.equal(f"{what}: an equal prompt is taken over but for its last token", cached(second), rest)
        if not parts:
            continue
        third = server.ok("/v1/completions", body(prompt=parts))
        check.equal(f"{what}: completions with parts", ids_of(third), g.greedy(n))
        check.equal(f"{what}: completions with parts are the same prompt", cached(third), rest)
        back = [p for p in parts if p["type"] == "text"] + [p for p in parts if p["type"] != "text"]
        check.equal(f"{what}: text in front of the images", ids_of(chat(server, back)), g.greedy(n))
        chunks = server.stream("/v1/chat/completions", body(messages=[{"role": "user", "content": parts}]))
        text = first["choices"][0]["message"]["content"]
        check.equal(f"{what}: stream", harness.stream_text(chunks), text)
        if len(parts) > 2:
            swapped = [parts[1], parts[0], *parts[2:]]
            want = rest if parts[0] == parts[1] else 0
            check.equal(f"{what}: other order of images", cached(chat(server, swapped)), want)
    server.stop()


def test_whole_hits():
    """Another last word, one image more: nothing may be taken over. Encoded images are."""
    g = Golden(args.golden, "pg2_f32")
    server = harness.Server(args.binary, g.folder)
    cold = harness.Server(args.binary, g.folder, "--prefix-cache", "off")
    image = g.image(0, 0)
    long = "the boat and the lines of the hall near the water, all of them old and red, and in the sand " * 3
    asked = [[image, {"type": "text", "text": long + end}] for end in ("one", "two", "three", "")]
    asked += [[image, image, {"type": "text", "text": long}], [image], [image, image]]
    top = {"logprobs": True, "top_logprobs": 3}
    for i, parts in enumerate(asked):
        answer, want = chat(server, parts, **top), chat(cold, parts, **top)
        check.equal(f"prompt {i}: nothing of another prompt", cached(answer), 0)
        check.equal(f"prompt {i}: bits of the answer", answer["choices"], want["choices"])
    other = [image, {"type": "text", "text": long + "four"}]
    info = chat(server, other, return_cache_info=True)["cache_info"]
    check.equal("why nothing was taken over", (info["stop"], info["differs_at"]), ("prompt_differs", None))
    for i, parts in enumerate(asked):
        answer, want = chat(server, parts, **top), chat(cold, parts, **top)
        rest = answer["usage"]["prompt_tokens"] - 1
        check.equal(f"prompt {i} again: all but the last token", cached(answer), rest)
        check.equal(f"prompt {i} again: bits of the answer", answer["choices"], want["choices"])
    many = chat(server, asked[0], n=2, temperature=0.8, seed=5)
    both = chat(cold, asked[0], n=2, temperature=0.8, seed=5)
    check.equal("n=2: as without a cache", many["choices"], both["choices"])
    check.equal("n=2: two answers", len(many["choices"]), 2)
    check.true("n=2: that differ", ids_of(many) != ids_of(many, 1), many["choices"])
    check.equal("the image was encoded once", server.metric("kvasir:images_encoded_total"), 1)
    scored, want = (chat(s, asked[1], prompt_logprobs=2) for s in (server, cold))
    check.equal("prompt_logprobs: as without a cache", scored["prompt_logprobs"], want["prompt_logprobs"])
    count = scored["usage"]["prompt_tokens"]
    check.equal("prompt_logprobs: one for each token", len(scored["prompt_logprobs"]), count)
    cold.stop()
    server.stop()


def test_prompt_logprobs():
    """Log-probs of the prompt's own tokens are those of the mask in which they see each other."""
    g = Golden(args.golden, "pg2_f32")
    server = harness.Server(args.binary, g.folder)
    n = 3
    raw = g.bytes(f"case{n}.follow")
    follow = struct.unpack(f"<{len(raw) // 4}f", raw)
    answer = server.ok("/v1/completions", body(prompt=g.cases[n]["prompt"], prompt_logprobs=0))
    ids = g.ids(f"case{n}.prompt_ids")
    scores = answer["choices"][0]["prompt_logprobs"]
    got = [entry[str(i)]["logprob"] for i, entry in zip(ids[1:], scores[1:])]
    check.equal("as many as tokens", len(scores), len(ids))
    worst = max(abs(a - b) for a, b in zip(got, follow))
    check.true("prompt_logprobs as transformers has them", worst <= 1e-4, worst)
    server.stop()


def test_loc_tokens():
    """<loc> and <seg> are one token each where the client types them, and are seen in the answer."""
    for variant in ("pg1_f32", "pg2_f32"):
        g = Golden(args.golden, variant)
        server = harness.Server(args.binary, g.folder)
        for text, count in (("<loc0003>", 1), ("<loc0003><seg001>", 2), ("<loc0011>", 1)):
            ask = {"prompt": text, "add_special_tokens": False, "return_token_strs": True}
            got = server.ok("/tokenize", ask)
            check.equal(f"{variant}: {text}", (got["count"], "".join(got["token_strs"])), (count, text))
        loc = server.ok("/tokenize", {"prompt": "<loc0003>", "add_special_tokens": False})["tokens"][0]
        answer = chat(server, g.parts(0), logit_bias={str(loc): 100}, max_tokens=3)
        text = answer["choices"][0]["message"]["content"]
        check.equal(f"{variant}: the answer shows them", text, "<loc0003>" * 3)
        server.stop()


def test_refused():
    g = Golden(args.golden, "pg1_f32")
    server = harness.Server(args.binary, g.folder)
    parts = g.parts(0)
    user = {"role": "user", "content": parts}

    def refused(what, path, ask, code, param):
        status, answer = server.post(path, body(**ask))
        error = answer.get("error", {})
        check.equal(what, (status, error.get("code"), error.get("param")), (400, code, param))
        return error.get("message", "")

    hello = {"type": "text", "text": "hello"}
    wrong = {
        "system message": [{"role": "system", "content": "Be short."}, user],
        "earlier turns": [user, {"role": "assistant", "content": "red"}, user],
        "no image": [{"role": "user", "content": "hello"}],
        "no image in the parts": [{"role": "user", "content": [hello]}],
        "no user": [{"role": "system", "content": "hello"}],
    }
    for what, messages in wrong.items():
        refused(what, "/v1/chat/completions", {"messages": messages}, "chat_template_error", "messages")
    typed = chat(server, [parts[0], {"type": "text", "text": "a <image> b"}])
    check.true("a typed placeholder is text", 0 < typed["usage"]["prompt_tokens"] < 40, typed["usage"])
    complete = "/v1/completions"
    refused("a placeholder in a raw prompt", complete, {"prompt": "<image>hello"}, "invalid_value", "prompt")
    refused("parts and echo", complete, {"prompt": parts, "echo": True}, "invalid_value", "echo")
    refused("parts without an image", complete, {"prompt": [hello]}, "chat_template_error", "prompt")
    bad = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    refused("a broken image in parts", complete, {"prompt": bad}, "unsupported_image_media_type",
            "prompt[0].image_url.url")
    long = [{"role": "user", "content": [parts[0], {"type": "text", "text": "a b c d " * 1000}]}]
    message = refused("a prompt beyond the context", "/v1/chat/completions", {"messages": long},
                      "context_length_exceeded", "messages")
    check.true("the limit is named", "2048" in message, message)
    longest = server.ok("/v1/completions", body(prompt=[5] * (2048 - COUNT)))
    check.equal("a prompt as long as the context", longest["usage"]["prompt_tokens"], 2048 - COUNT)
    check.equal("the server is as before", ids_of(chat(server, parts)), g.greedy(0))
    server.stop()


def test_longer_than_a_step():
    """A context that no step can hold: prompts up to a step's length, no longer ones."""
    model = harness.endless(os.path.join(args.golden, "pg1_f32"))
    server = harness.Server(args.binary, model, "--max-context", "100000", "--kv-memory", "64M")
    status, answer = server.post("/v1/completions", body(prompt=[5] * 66000))
    error = answer["error"]
    want = (400, "context_length_exceeded", "prompt")
    check.equal("a prompt longer than a step", (status, error["code"], error["param"]), want)
    check.true("what is said about it", "bidirectional attention" in error["message"], error)
    check.true("its length", "66000" in error["message"], error)
    shorter = server.ok("/v1/completions", body(prompt=[5] * 3000))
    check.equal("a shorter one", shorter["usage"]["completion_tokens"], COUNT)
    server.stop()


def test_without_rule():
    """Models with a chat template take no list of parts as a prompt."""
    server = harness.Server(args.binary, args.demo)
    status, answer = server.post("/v1/completions", {"prompt": [{"type": "text", "text": "x"}]})
    check.equal("parts as a prompt", (status, answer["error"]["code"]), (400, "invalid_type"))
    server.stop()


def test_own_template():
    """A checkpoint that brings a template is asked through that."""
    g = Golden(args.golden, "pg1_f32")
    folder = tempfile.mkdtemp()
    model = os.path.join(folder, "model")
    shutil.copytree(g.folder, model)
    with open(os.path.join(model, "chat_template.jinja"), "w") as f:
        f.write("{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}<image>"
                "{% else %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}\n")
    server = harness.Server(args.binary, model)
    text = {"type": "text", "text": "detect"}
    one, two = [text, g.image(0, 0), text], [text, g.image(2, 1), text, g.image(2, 0)]
    answers = [chat(server, content) for content in (one, one, two)]
    ids = server.ok("/tokenize", {"messages": [{"role": "user", "content": two}]})["tokens"]
    soft = [i for i, t in enumerate(ids) if t == 371]
    newline = server.ok("/tokenize", {"prompt": "\n", "add_special_tokens": False})["tokens"]
    check.equal("tokens of two images", len(soft), 2 * g.about["soft_tokens"])
    check.equal("bos stands behind the last", [i for i, t in enumerate(ids) if t == 2], [soft[-1] + 1])
    check.equal("a newline ends it", ids[-1:], newline)
    check.equal("text on both sides of an image, warm", ids_of(answers[1]), ids_of(answers[0]))
    rest = answers[1]["usage"]["prompt_tokens"] - 1
    check.equal("taken over as a whole", cached(answers[1]), rest)
    server.request("POST", "/reset_prefix_cache")
    again = chat(server, two)
    check.equal("images between texts: nothing is left", cached(again), 0)
    check.equal("images between texts: decoded again", ids_of(again), ids_of(answers[2]))
    server.stop()
    shutil.rmtree(folder)


def main():
    for variant in sorted(os.listdir(args.golden)):
        if variant.endswith("_f32"):
            check.run(test_golden, variant)
    check.run(test_whole_hits)
    check.run(test_prompt_logprobs)
    check.run(test_loc_tokens)
    check.run(test_refused)
    check.run(test_longer_than_a_step)
    check.run(test_without_rule)
    check.run(test_own_template)
    check.end()


main()
