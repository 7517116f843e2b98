"""Images of any size and videos, over HTTP, on the small Qwen-VL checkpoints: python3 test_images.py [--binary B] [test ...]
A request's size settings apply, the caches never change the output, and invalid images are rejected."""
import json
import os
import shutil
import sys
import tempfile
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Checks, Server, arguments, data_url, drawing, png, wait_until  # noqa: E402

check = Checks()
CHAT = "/v1/chat/completions"
GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden")
WORDS = {"type": "text", "text": "what?"}


def noisy(width, height, seed=0):
    return png(width, height, lambda x, y: ((x * 91 + y * 57 + seed * 13) % 256, (x * y + seed) % 256, (x * 17 + y * 3) % 256))


def image(data, **fields):
    return {"type": "image_url", "image_url": {"url": data_url(data), **fields}}


def file(path):
    with open(os.path.join(GOLDEN, "images", path), "rb") as f:
        return f.read()


def video(name):
    return {"type": "video_url", "video_url": {"url": data_url(file("videos/" + name), "image/" + name.rsplit(".", 1)[1])}}


def jpegs(count, **fields):
    """Files of different kinds, all of one size."""
    kinds = ["420", "422", "411", "420", "422"][:count]
    return {"type": "video", "video": [data_url(file(f"files/jpeg_{kind}_33x21.jpg"), "image/jpeg") for kind in kinds], **fields}


def frames(count):
    return {"type": "video", "video": [data_url(noisy(32, 24, i)) for i in range(count)], "fps": 1}


def body(*parts, **fields):
    return {"messages": [{"role": "user", "content": [*parts, WORDS]}], "max_tokens": 5, "temperature": 0, "logprobs": True, "top_logprobs": 3, **fields}


def tokens(answer):
    return answer["usage"]["prompt_tokens_details"]["image_tokens"]


BIG = noisy(64, 48)
REQUESTS = {
    "one": body(image(BIG)),
    "low": body(image(BIG, detail="low")),
    "bounded": body(image(BIG), mm_processor_kwargs={"max_pixels": 512}),
    "bounded by size": body(image(BIG), mm_processor_kwargs={"size": {"longest_edge": 512}}),
    "twice": body(image(BIG), image(BIG)),
    "three shapes": body(image(BIG), image(noisy(20, 90)), image(drawing())),
    "gif": body(video("delta.gif")),
    "webp": body(video("lossless.webp")),
    "jpegs": body(jpegs(5)),
    "slow jpegs": body(jpegs(5, fps=0.5)),
    "list": body(frames(4)),
    "both": body(image(BIG), video("transparent.gif"), image(noisy(20, 90))),
}


def test_answers(model):
    """Cold, with all images known to the server but nothing of them computed, warm, and from a server that keeps nothing: one answer."""
    flags = ("--kv-memory", "64M")
    cold, warm = Server(args.binary, model, *flags, "--prefix-cache", "off"), Server(args.binary, model, *flags)
    try:
        for name, request in REQUESTS.items():
            counted = warm.ok("/tokenize", {k: v for k, v in request.items() if k in ("messages", "mm_processor_kwargs")})["count"]
            want = cold.ok(CHAT, request)
            first, again = warm.ok(CHAT, request), warm.ok(CHAT, request)
            check.equal(f"{name}: pixels on demand", first["choices"], want["choices"])
            check.equal(f"{name}: from the cache", again["choices"], want["choices"])
            check.equal(f"{name}: reused", again["usage"]["prompt_tokens_details"]["cached_tokens"], counted - 1)
            check.equal(f"{name}: tokenize counts", counted, want["usage"]["prompt_tokens"])
            REQUESTS[name]["got"] = want
        got = {name: REQUESTS[name].pop("got") for name in REQUESTS}
    finally:
        cold.stop()
        warm.stop()
    check.equal("bounded images are smaller", tokens(got["bounded"]), 6)
    check.equal("both ways to say it", got["bounded by size"]["choices"], got["bounded"]["choices"])
    check.equal("a second image has as many", tokens(got["twice"]), 2 * tokens(got["one"]))
    check.true("sizes count", got["bounded"]["choices"] != got["one"]["choices"])
    if "qwen2_vl" not in model:  # which counts groups of frames, not seconds
        check.true("speed counts", got["slow jpegs"]["choices"][0]["logprobs"] != got["jpegs"]["choices"][0]["logprobs"])


def test_memory(model):
    """Decoded images have a bound together: beyond it a request gets 429, unless it is alone."""
    flags = ("--kv-memory", "64M", "--prefix-cache", "off", "--max-sequences", "3")
    usual = Server(args.binary, model, *flags)
    few = Server(args.binary, model, *flags, "--image-memory", "1")
    want, refused = {}, []

    def among_others(name):
        a = few.request("POST", CHAT, REQUESTS[name])
        while a[0] == 429:
            refused.append((json.loads(a[2])["error"]["code"], a[1].get("retry-after")))
            a = few.request("POST", CHAT, REQUESTS[name])
        check.equal(f"{name}: among others", json.loads(a[2])["choices"], want[name])

    try:
        for name, request in REQUESTS.items():
            want[name] = usual.ok(CHAT, request)["choices"]
            check.equal(f"{name}: alone", few.ok(CHAT, request)["choices"], want[name])
            check.true("nothing is held", wait_until(lambda: few.metric("kvasir:image_bytes") == 0))
        threads = [threading.Thread(target=check.run, args=(among_others, name)) for name in REQUESTS]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        check.equal("beyond the bound", set(refused), {("rate_limit_exceeded", "1")})
        for s in (usual, few):
            check.true("nothing is held", wait_until(lambda: s.metric("kvasir:image_bytes") == 0), s.metric("kvasir:image_bytes"))
    finally:
        for s in (usual, few):
            s.stop()


def test_named(model):
    """Where two prompts part: at a video, at the image behind it."""
    s = Server(args.binary, model, "--kv-memory", "64M")
    try:
        s.ok(CHAT, body(image(BIG), frames(4), image(drawing())))
        for kind, part, other in [("image", 2, body(image(BIG), frames(4), image(noisy(40, 40)))),
                                  ("video", 1, body(image(BIG), jpegs(5), image(drawing()))),
                                  ("image", 0, body(image(BIG, detail="low"), frames(4), image(drawing()), mm_processor_kwargs={"max_pixels": 640}))]:
            where = s.ok(CHAT, {**other, "return_cache_info": True})["cache_info"]["differs_at"]
            check.equal(f"{kind} {part}", (where["kind"], where["part"]), (kind, part))
    finally:
        s.stop()


def test_part_sizes(model):
    """Sizes in Qwen-VL's own part are those of the request's mm_processor_kwargs, image by image."""
    s = Server(args.binary, model, "--kv-memory", "64M")

    def counted(*parts, **fields):
        answer = s.ok("/tokenize", {"messages": [{"role": "user", "content": list(parts)}], **fields})
        return [(i["length"], i["hash"]) for i in answer["images"]]

    try:
        plain = counted(image(BIG))
        own = {"type": "image", "image": data_url(BIG)}
        check.equal("the same image", counted(own), plain)
        bounded = counted(image(BIG), mm_processor_kwargs={"max_pixels": 512, "min_pixels": 256})
        check.equal("bounds", counted({**own, "max_pixels": 512, "min_pixels": 256}), bounded)
        check.equal(
            "each its own", counted({**own, "max_pixels": 512, "min_pixels": 256}, own), bounded + plain
        )
        units = {
            n: counted({**own, "resized_height": n, "resized_width": 2 * n, "min_pixels": 1})[0]
            for n in (16, 32)
        }
        check.true("a size", units[32][0] == 4 * units[16][0] and units[32][1] != units[16][1], units)
        check.equal(
            "near a multiple",
            counted({**own, "resized_height": 17, "resized_width": 31, "min_pixels": 1}),
            [units[16]],
        )
        first = s.ok(CHAT, body({**own, "resized_height": 32, "resized_width": 64}))
        again = s.ok(CHAT, body({**own, "resized_height": 32, "resized_width": 64}))
        check.equal("answered the same from the cache", again["choices"], first["choices"])
        for fields, where in (
            ({"min_pixels": 0}, ".min_pixels"),
            ({"max_pixels": "x"}, ".max_pixels"),
            ({"resized_height": 64}, ""),
        ):
            status, answer = s.post(CHAT, body({**own, **fields}))
            check.equal(
                f"{fields}", (status, answer["error"]["param"]), (400, "messages[0].content[0]" + where)
            )
    finally:
        s.stop()


def test_tool_results(model):
    """An image in a tool's result, with a template that has no place for it: the error names the part."""
    with tempfile.TemporaryDirectory() as top:
        folder = os.path.join(top, "m")
        shutil.copytree(model, folder)
        template = (
            "{% for m in messages %}{{ m.role }}{% if m.content is string %}{{ m.content }}{% else %}"
            "{% for c in m.content %}{% if c.type == 'image' and m.role == 'user' %}"
            "<|vision_start|><|image_pad|><|vision_end|>{% elif c.text %}{{ c.text }}{% endif %}"
            "{% endfor %}{% endif %}{% endfor %}"
        )
        with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as f:
            f.write(template)
        s = Server(args.binary, folder, "--kv-memory", "64M")
        call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        turns = [
            {"role": "user", "content": [image(BIG)]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ]
        for content in (None, [], ""):
            answer = s.ok(
                CHAT,
                {
                    "max_tokens": 1,
                    "messages": [*turns, {"role": "tool", "tool_call_id": "a", "content": content}],
                },
            )
            check.true(f"an empty result: {content}", answer["usage"]["prompt_tokens"])
        result = {
            "role": "tool",
            "tool_call_id": "a",
            "content": [{"type": "text", "text": "x"}, image(BIG)],
        }
        status, answer = s.post(CHAT, {"max_tokens": 1, "messages": [*turns, result]})
        check.equal(
            "which part", (status, answer["error"]["param"]), (400, "messages[2].content[1].image_url.url")
        )
        check.true("why", "role 'tool'" in answer["error"]["message"], answer)
        s.stop()


def test_refused(model):
    s = Server(args.binary, model, "--kv-memory", "64M")
    table = [
        (image(noisy(900, 3)), {}, "invalid_value"),
        (image(BIG, detail="max"), {}, "invalid_value"),
        (image(BIG), {"mm_processor_kwargs": {"max_pixels": 10**9}}, "invalid_value"),
        (image(BIG), {"mm_processor_kwargs": {"max_pixels": 1}}, "invalid_value"),
        (image(BIG), {"mm_processor_kwargs": {"min_pixels": "many"}}, "invalid_type"),
        (image(BIG), {"mm_processor_kwargs": {"do_resize": False}}, "unsupported_parameter"),
        ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAAGGZ0eXBpc29t"}}, {}, "unsupported_content_part"),
        ({"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}, {}, "invalid_image_url"),
        ({"type": "video", "video": ["data:image/jpeg;base64,"]}, {}, "empty_image_file"),
        ({"type": "video", "video": ["data:image/jpeg;base64,!!"]}, {}, "invalid_base64_image"),
        ({"type": "video", "video": [data_url(noisy(32, 24)), data_url(noisy(32, 25))]}, {}, "invalid_value"),
        ({"type": "video", "video": [data_url(file("videos/delta.gif")[:300])]}, {}, "image_parse_error"),
        ({"type": "video", "video": []}, {}, "empty_array"),
        ({"type": "video", "video": data_url(BIG), "fps": -1}, {}, "invalid_value"),
        ({"type": "video", "video": data_url(BIG)}, {}, "unsupported_content_part"),
    ]
    try:
        for part, fields, code in table:
            status, answer = s.post(CHAT, body(part, **fields))
            check.equal(f"{str(part)[:60]} {fields}", (status, answer.get("error", {}).get("code")), (400, code))
        status, answer = s.post(CHAT, body(*[frames(2)] * 5))
        check.equal("five videos", (status, answer["error"]["code"]), (400, "too_many_videos"))
        check.equal("still alive", s.post(CHAT, body(image(BIG)))[0], 200)
        typed = s.ok(CHAT, body({"type": "text", "text": "<|image_pad|><|video_pad|>"}))
        check.equal("typed placeholders are text", tokens(typed), 0)
    finally:
        s.stop()


def test_transparent(_):
    """Transparent places are white for Qwen; Gemma 3 sees the colors under them. The demo models, whose prefix caches compare images by
    their content: the same one as the other file's."""
    def pixel(x, y):
        return (x * 6 % 256, y * 5, 90)

    def over_white(x, y):
        return pixel(x, y) if x < 20 else (255, 255, 255)

    half = png(40, 40, lambda x, y: (*pixel(x, y), 255 if x < 20 else 0), alpha=True)
    for demo, same in (("demo-qwen3-vl", over_white), ("demo", pixel)):
        s = Server(args.binary, os.path.join(os.path.dirname(GOLDEN), "..", "models", demo))
        try:
            s.ok(CHAT, body(image(half)))
            s.ok(CHAT, body(image(png(40, 40, same))))
            check.equal(f"{demo}: encoded once", s.metric("kvasir:images_encoded_total"), 1)
            s.ok(CHAT, body(image(png(40, 40, pixel if same is over_white else over_white))))
            check.equal(f"{demo}: the other is another", s.metric("kvasir:images_encoded_total"), 2)
        finally:
            s.stop()


def test_one_frame(model):
    """As the frame twice, which is what the models' own loader makes of it."""
    def frame(count):
        return {"type": "video", "video": [data_url(noisy(48, 40))] * count, "fps": 24}

    s = Server(args.binary, model, "--kv-memory", "64M")
    try:
        one, two = (s.ok(CHAT, body(frame(n), logprobs=True, temperature=0, max_tokens=4)) for n in (1, 2))
        check.equal("one frame", one["choices"][0], two["choices"][0])
        check.true("seen", tokens(one) > 0)
    finally:
        s.stop()


def test_small_table(_):
    """Gemma 4's image with more patches a side than the table of positions has."""
    s = Server(args.binary, os.path.join(GOLDEN, "gemma4", "12b_f32"))
    try:
        for size in (2, 50), (2000, 1):
            status, answer = s.post(CHAT, body(image(noisy(*size)), max_tokens=1))
            check.equal(f"{size}", (status, answer["error"]["code"]), (400, "invalid_value"))
            check.true(f"{size} says", "places of 144 pixels" in answer["error"]["message"], answer)
        s.ok(CHAT, body(image(noisy(20, 12)), max_tokens=1))
    finally:
        s.stop()


if __name__ == "__main__":
    args = arguments(__doc__)
    for test in [test_answers, test_memory, test_named, test_refused, test_one_frame]:
        if not args.only or test.__name__ in args.only:
            for folder in ["qwen2_vl_f32", "qwen2_5_vl_f32", "qwen3_vl_f32"]:
                check.run(test, os.path.join(GOLDEN, "qwen", folder))
    for test in (test_part_sizes, test_tool_results):
        if not args.only or test.__name__ in args.only:
            check.run(test, os.path.join(GOLDEN, "qwen", "qwen3_vl_f32"))
    for test in (test_transparent, test_small_table):
        if not args.only or test.__name__ in args.only:
            check.run(test, None)
    check.end()
