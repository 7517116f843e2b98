"""Models that take images, under templates that take only strings, or only parts of text: the parts of a
message become what the family's own template writes for them, marks around images and videos included. And
--chat-template-kwargs, whose texts are trusted where a request's are not.

python3 test_string_templates.py [--binary B]"""
import json
import os
import tempfile

import harness

root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
args = harness.arguments(__doc__)
check = harness.Checks()

STRINGS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
TEXTS = ("{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
         "{% for p in m.content if p.type == 'text' %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}")
# As these are released; the golden checkpoint's own has another order.
PADDLE = ("{% for m in messages %}{% for p in m.content if p.type == 'image' %}"
          "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>{% endfor %}"
          "{% for p in m.content if p.type == 'text' %}{{ p.text }}{% endfor %}{% endfor %}")
MINISTRAL = ("{% for m in messages %}{% set c = m.content %}"
             "{% set parts = c|sort(attribute='type') if c|length == 2 else c %}"
             "{% for p in parts %}{{ p.text if p.type == 'text' else '[IMG]' }}{% endfor %}{% endfor %}")

QWEN = ("<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|><|video_pad|><|vision_end|>")
GLM = ("<|begin_of_image|><|image|><|end_of_image|>",)
# checkpoint, what stands for an image and a video, differences
FAMILIES = [
    ("qwen/qwen2_vl_f32", QWEN, {}),
    ("qwen/qwen2_5_vl_f32", QWEN, {}),
    ("qwen/qwen3_vl_video_f32", QWEN, {}),
    ("qwen/qwen3_5_f32", QWEN, {}),
    ("native/glm_ocr_f32", GLM, {}),
    ("native/glm4v_f32", GLM, {}),
    ("native/glm46v_f32", GLM, {}),
    ("native/paddleocr_vl_f32", ("<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>",),
     {"template": PADDLE, "first": 9}),
    ("native/lighton_ocr_f32", ("<|image_pad|>",), {}),
    ("native/mistral3_f32", ("[IMG]",), {}),
    ("native/ministral3_vision_f32", ("[IMG]",), {"template": MINISTRAL, "first": 2}),
    ("native/pixtral_f32", ("[IMG]",), {}),
    ("gemma3/vision_f32", ("<start_of_image>",), {"trim": True}),
    ("gemma4/e2b_vision_f32", ("<|image|>", "<|video|>"), {"trim": True}),
    ("tiles/smolvlm_f32", ("<image>",), {}),
    ("tiles/idefics3_f32", ("<image>",), {}),
    ("tiles/granite_docling_f32", ("<image>",), {}),
    ("tiles/internvl_f32", ("<IMG_CONTEXT>\n",), {}),
    ("tiles/qianfan_f32", ("<image>\n",), {}),
    ("tiles/lfm2_vl_f32", ("<image>",), {}),
    ("tiles/minicpmv4_6_f32", ("<|image_pad|>",), {}),
]
URL = harness.data_url(harness.png(40, 40, lambda x, y: (x, y, 9)))
IMAGE = {"type": "image_url", "image_url": {"url": URL}}
VIDEO = {"type": "video_url", "video_url": {"url": [URL] * 4}}


def text(t):
    return {"type": "text", "text": t}


def contents(marks):
    yield [text(" What is"), IMAGE, text("and"), IMAGE, text(" this?")]
    yield [text("Look: "), IMAGE]
    yield [IMAGE, text("a"), text("b")]
    if len(marks) > 1:
        yield [text("A video: "), VIDEO, text("an image:"), IMAGE]


def written(parts, marks, rule):
    if len(parts) <= rule.get("first", 0):
        parts = sorted(parts, key=lambda p: p["type"] == "text")
    marks = dict(zip(("image_url", "video_url"), marks))
    texts = [p.get("text", "").strip() if rule.get("trim") else p.get("text", "") for p in parts]
    return "".join(marks.get(p["type"], t) for p, t in zip(parts, texts))


def test_family(name, marks, rule):
    model = os.path.join(root, "tests/golden", name)
    with tempfile.TemporaryDirectory() as folder:
        for kind, source in (("own", rule.get("template")), ("strings", STRINGS), ("texts", TEXTS)):
            flags = []
            if source:
                flags = ["--chat-template", os.path.join(folder, kind)]
                with open(flags[1], "w") as f:
                    f.write(source)
            server = harness.Server(args.binary, model, "--kv-memory", "64M", *flags)
            for parts in contents(marks):
                body = {"messages": [{"role": "user", "content": parts}]}
                shown, want = server.ok("/apply-template", body)["prompt"], written(parts, marks, rule)
                what = f"{name}, {kind}: {json.dumps([p.get('text') for p in parts])}"
                check.true(what, want in shown if kind == "own" else shown == "<user>" + want, (shown, want))
                check.equal(what + " is tokenized", server.post("/tokenize", body)[0], 200)
            server.stop()


def test_kwargs():
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as f:
        f.write("{{ k }}|{{ n }}|{{ messages[0].content }}")
        f.flush()
        flags = ("--chat-template", f.name, "--chat-template-kwargs", '{"k": "<bos>", "n": 1}')
        server = harness.Server(args.binary, os.path.join(root, "models/demo"), *flags)
    body = {"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": False}
    for more, want in (({}, "<bos>|1|x"), ({"chat_template_kwargs": {"n": 2}}, "<bos>|2|x"),
                       ({"chat_template_kwargs": {"k": "<bos>"}}, "<bos>|1|x")):
        check.equal(f"kwargs, {more}", server.ok("/apply-template", {**body, **more})["prompt"], want)
        bos = server.ok("/tokenize", {"content": "", "add_special": True})["tokens"][0]
        tokens = server.ok("/tokenize", {**body, **more, "add_special_tokens": False})["tokens"]
        check.equal(f"an operator's token, {more}", tokens[0] == bos, "k" not in str(more.values()))
    server.stop()


check.run(test_kwargs)
for family in FAMILIES:
    check.run(test_family, *family)
check.end()
