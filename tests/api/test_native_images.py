"""Towers that take images at their own size, over HTTP: five images over three turns answer the same with and
without the prefix cache, whose hits end inside images too; an image of 2 x 2 pixels is served, one that the
processor would resize to nothing (1 x 4,000) gets a 400 that says so. Towers over tiles: such images and one
of many tiles make as many tokens as transformers' processor gives them. Files that llama.cpp's converter made
of a checkpoint answer bit for bit as the checkpoint does.

python3 test_native_images.py [--binary B]"""
import json
import os
import shutil
import struct
import tempfile

import harness

root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
args = harness.arguments(__doc__)
check = harness.Checks()


def image(seed, width, height):
    data = harness.png(width, height,
                       lambda x, y: ((seed * 37 + x * 9) % 256, (y * 11 + seed) % 256, (x * y) % 256))
    return {"type": "image_url", "image_url": {"url": harness.data_url(data)}}


def text(t):
    return {"type": "text", "text": t}


TURNS = [[text("One"), image(1, 20, 20), text("two"), image(2, 4, 60)], [image(3, 31, 9), text("and?")],
         [image(4, 2, 2), image(5, 50, 30)]]


def ask(server, messages):
    body = {"temperature": 0, "max_tokens": 6, "ignore_eos": True, "return_token_ids": True,
            "messages": messages}
    answer = server.ok("/v1/chat/completions", body)
    return answer["choices"][0]["token_ids"], answer["usage"]


def test_turns(variant):
    model = os.path.join(root, "tests/golden/native", variant)
    flags = ("--kv-memory", "64M", "--generation-config", "ignore")
    warm, cold = (harness.Server(args.binary, model, *flags, "--prefix-cache", way) for way in ("on", "off"))
    for last in (5, 6):  # the last image is another one in the second conversation
        messages = []
        for k, turn in enumerate(TURNS):
            content = turn[:-1] + [image(last, 50, 30)] if k == 2 else turn
            messages.append({"role": "user", "content": content})
            ids, usage = ask(warm, messages)
            check.equal(f"{variant}, turn {k}", ids, ask(cold, messages)[0])
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            if k or last > 5:
                check.true(f"{variant}, turn {k}: the turns before are reused", cached > 8, usage)
            messages.append({"role": "assistant", "content": "Yes."})
    warm.stop()
    cold.stop()


def test_sizes(variant, refused):
    model = os.path.join(root, "tests/golden/native", variant)
    server = harness.Server(args.binary, model, "--kv-memory", "64M", "--generation-config", "ignore")
    ask(server, [{"role": "user", "content": [image(1, 2, 2)]}])
    body = {"max_tokens": 1, "messages": [{"role": "user", "content": [image(2, 1, 4000)]}]}
    status, answer = server.post("/v1/chat/completions", body)
    check.equal(f"{variant}: 1 x 4,000", status, 400)
    check.true(f"{variant}: says why", refused in str(answer), answer)
    server.stop()


# Tokens of a prompt with one image of 1 x 4,000, 4,000 x 1, 2 x 2 and 60 x 45 pixels, by transformers.
TILED = {"smolvlm_f32": (37, 36, 49, 49), "idefics3_f32": (73, 59, 233, 164),
         "internvl_odd_f32": (71, 71, 39, 71), "qianfan_odd_f32": (71, 71, 39, 71),
         "lfm2_vl_odd_f32": (294, 294, 22, 189),
         "granite_docling_f32": (109, 93, 22, 61), "minicpmv4_6_odd_f32": (682, 49, 25, 64)}


def test_tiles(variant):
    model = os.path.join(root, "tests/golden/tiles", variant)
    server = harness.Server(args.binary, model, "--kv-memory", "64M", "--generation-config", "ignore")
    for size, tokens in zip(((1, 4000), (4000, 1), (2, 2), (60, 45)), TILED[variant]):
        _, usage = ask(server, [{"role": "user", "content": [image(3, *size)]}])
        check.equal(f"{variant}: {size}", usage["prompt_tokens"], tokens)
    server.stop()


def test_fewer_tiles(variant, name):
    """A request's bound of the tiles: as the processor does it, and a key of the caches."""
    model = os.path.join(root, "tests/golden/tiles", variant)
    server = harness.Server(args.binary, model, "--kv-memory", "64M")
    body = {"temperature": 0, "max_tokens": 6, "ignore_eos": True, "return_token_ids": True}
    body["messages"] = [{"role": "user", "content": [image(3, 60, 45)]}]
    kwargs = (None, {name: 1}, None, {name: 1})
    answers = [server.ok("/v1/chat/completions", {**body, "mm_processor_kwargs": k}) for k in kwargs]
    tokens = [a["usage"]["prompt_tokens"] for a in answers]
    check.true(f"{variant}: fewer", tokens[1] < tokens[0], tokens)
    for k in (0, 1):
        check.equal(f"{variant}: again", answers[k + 2]["choices"][0]["token_ids"],
                    answers[k]["choices"][0]["token_ids"])
        check.equal(f"{variant}: again, tokens", tokens[k + 2], tokens[k])
    server.stop()


def test_transparent(variant):
    """Transparent places are white, in towers over tiles too."""
    model = os.path.join(root, "tests/golden/tiles", variant)
    server = harness.Server(args.binary, model, "--kv-memory", "64M")

    def pixel(x, y):
        return (x * 9 % 256, y * 11 % 256, x * y % 256)

    half = harness.png(30, 30, lambda x, y: (*pixel(x, y), 255 if x < 15 else 0), alpha=True)
    white = harness.png(30, 30, lambda x, y: pixel(x, y) if x < 15 else (255, 255, 255))
    first, second = (ask(server, [{"role": "user", "content": [{
        "type": "image_url", "image_url": {"url": harness.data_url(data)}}]}]) for data in (white, half))
    check.equal(f"{variant}: transparent", second[0], first[0])
    check.true(f"{variant}: the same image", second[1]["prompt_tokens_details"]["cached_tokens"] > 8, second)
    server.stop()


def test_converted(variant, file, sizes):
    model = os.path.join(root, "tests/golden", variant)
    out = os.path.join(root, "tests/golden/gguf", file)
    answers = []
    tower = ("--mmproj", out + "-mmproj.gguf") if sizes[0] else ()
    for name, more in (model, ()), (out + ".gguf", tower):
        server = harness.Server(args.binary, name, "--kv-memory", "64M", *more)
        for size in sizes:
            content = text("Convert page 2024, line 102, to docling. <loc_10>")
            content = [image(3, *size), content] if size else content["text"]
            body = {"temperature": 0, "max_tokens": 12, "return_token_ids": True, "logprobs": True,
                    "top_logprobs": 5, "skip_special_tokens": False,
                    "messages": [{"role": "user", "content": content}]}
            answer = server.ok("/v1/chat/completions", body)
            # how many drafts were accepted depends on when drafting paid
            answers.append((answer["choices"], answer["usage"]["prompt_tokens"]))
        server.stop()
    half = len(sizes)
    check.equal(f"{file}: answers of the files and of the checkpoint", answers[half:], answers[:half])


def read_tensors(path):
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    head.pop("__metadata__", None)
    return {k: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for k, t in head.items()}


def write_tensors(path, tensors):
    head, data = {}, b""
    for name, (kind, shape, part) in tensors.items():
        head[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


RELEASED = (("model.language_model.", "language_model.model."), ("lm_head.", "language_model.lm_head."),
            ("model.multi_modal", "multi_modal"), ("multi_modal_projector.layer_norm.", "mlp1.0."),
            ("multi_modal_projector.linear_1.", "mlp1.1."), ("multi_modal_projector.linear_2.", "mlp1.3."),
            ("model.vision_tower.", "vision_tower."),
            (".encoder.layer.", ".encoder.layers."), ("position_embeddings", "position_embedding"),
            ("cls_token", "class_embedding"), ("patch_embeddings.projection", "patch_embedding"),
            ("attention.projection_layer", "attn.proj"), ("vision_tower.", "vision_model."),
            ("layernorm_before", "norm1"), ("layernorm_after", "norm2"), ("lambda_", "ls"))


def released_name(name):
    for new, old in RELEASED:
        name = name.replace(new, old) if not name.startswith("language_model.") else name
    return name


def image_settings(folder):
    settings = json.load(open(os.path.join(folder, "processor_config.json")))
    if "image_processor" not in settings:
        return json.load(open(os.path.join(folder, "preprocessor_config.json")))
    return settings["image_processor"]


def as_released(folder, out, template):
    """A checkpoint converted for transformers, in the layout that OpenGVLab releases."""
    config = json.load(open(os.path.join(folder, "config.json")))
    images = image_settings(folder)
    vision = config["vision_config"]
    vision |= {"qkv_bias": vision.pop("attention_bias"), "qk_normalization": vision.pop("use_qk_norm")}
    vision["model_type"] = "intern_vit_6b"
    config["text_config"]["tie_word_embeddings"] = config.get("tie_word_embeddings", True)
    vision["image_size"], vision["patch_size"] = vision["image_size"][0], vision["patch_size"][0]
    json.dump({"model_type": "internvl_chat", "llm_config": config["text_config"], "vision_config": vision,
               "downsample_ratio": config["downsample_ratio"], "image_token_id": config["image_token_id"],
               "force_image_size": vision["image_size"], "dynamic_image_size": True, "ps_version": "v2",
               "min_dynamic_patch": images["min_patches"], "max_dynamic_patch": images["max_patches"],
               "use_thumbnail": True, "select_layer": -1}, open(os.path.join(out, "config.json"), "w"))
    tensors = {}
    all = read_tensors(os.path.join(folder, "model.safetensors"))
    for name, (kind, shape, data) in all.items():
        q, k, v = (".attention.%s_proj." % x for x in "qkv")
        if k in name or v in name:
            continue
        if q in name:
            data = b"".join(all[name.replace(q, x)][2] for x in (q, k, v))
            name, shape = name.replace(q, ".attn.qkv."), [3 * shape[0]] + shape[1:]
        tensors[released_name(name)] = kind, shape, data
    write_tensors(os.path.join(out, "model.safetensors"), tensors)
    tokenizer = json.load(open(os.path.join(folder, "tokenizer.json")))
    json.dump(tokenizer["model"]["vocab"], open(os.path.join(out, "vocab.json"), "w"))
    with open(os.path.join(out, "merges.txt"), "w") as f:
        f.write("#version: 0.2\n" + "".join(" ".join(m) + "\n" for m in tokenizer["model"]["merges"]))
    options = json.load(open(os.path.join(folder, "tokenizer_config.json")))
    options |= {"tokenizer_class": "Qwen2Tokenizer",
                "added_tokens_decoder": {str(t["id"]): t for t in tokenizer["added_tokens"]}}
    json.dump(options | ({"chat_template": template} if template else {}),
              open(os.path.join(out, "tokenizer_config.json"), "w"))
    json.dump({"crop_size": 448, "size": 448, "image_mean": [0.485, 0.456, 0.406]},
              open(os.path.join(out, "preprocessor_config.json"), "w"))


TEXT_ONLY = """{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}
{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"""


def test_released(variant):
    golden = os.path.join(root, "tests/golden/tiles", variant)
    with tempfile.TemporaryDirectory() as tmp:
        for kind in ("plain", "none", "text"):
            os.mkdir(os.path.join(tmp, kind))
        for name in os.listdir(golden):
            shutil.copy(os.path.join(golden, name), os.path.join(tmp, "plain"))
        images = image_settings(golden) | {"image_mean": [0.485, 0.456, 0.406],
                                           "image_std": [0.229, 0.224, 0.225]}
        json.dump({"image_processor": images}, open(os.path.join(tmp, "plain/processor_config.json"), "w"))
        as_released(golden, os.path.join(tmp, "none"), None)
        as_released(golden, os.path.join(tmp, "text"), TEXT_ONLY)
        answers = {}
        for kind in ("plain", "none", "text"):
            server = harness.Server(args.binary, os.path.join(tmp, kind), "--kv-memory", "64M")
            answers[kind] = []
            for size in ((60, 45), (1, 400), (3, 2)):
                content = [image(3, *size), text("Is e\u0301 42nd 日本?")]
                body = {"temperature": 0, "max_tokens": 12, "return_token_ids": True, "logprobs": True,
                        "top_logprobs": 5, "messages": [{"role": "user", "content": content}]}
                answers[kind].append(server.ok("/v1/chat/completions", body)["choices"])
            server.stop()
        check.equal(f"{variant}: released layout, no template", answers["none"], answers["plain"])
        check.equal(f"{variant}: released layout, template of text", answers["text"], answers["plain"])


def main():
    for variant in ("mistral3_f32", "paddleocr_vl_f32", "glm_ocr_f32"):
        check.run(test_turns, variant)
    check.run(test_sizes, "mistral3_f32", "would be resized to nothing")
    check.run(test_sizes, "paddleocr_vl_f32", "must not differ by more than 200 to 1")
    check.run(test_sizes, "glm_ocr_f32", "must not differ by more than 200 to 1")
    for variant in TILED:
        check.run(test_tiles, variant)
    check.run(test_fewer_tiles, "internvl_odd_f32", "max_patches")
    check.run(test_fewer_tiles, "minicpmv4_6_f32", "max_slice_nums")
    check.run(test_converted, "tiles/docling_258m_f32", "docling_258m", ((60, 45), (1, 400), (3, 2)))
    check.run(test_converted, "llama/granite4_f32", "granite4", (None,))
    for variant in ("internvl_f32", "internvl_6b_f32"):
        check.run(test_released, variant)
    for variant in ("smolvlm_f32", "internvl_f32", "granite_docling_f32"):
        check.run(test_transparent, variant)
    check.end()


main()
