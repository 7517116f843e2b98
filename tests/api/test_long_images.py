"""Warm output equals cold output, bit for bit, with long images: longer than the window of the layers that
have one, made of 4 million pixels, several in a conversation, all families. Cold is a server without a cache,
on one thread, with steps of another size.

python3 test_long_images.py [--binary B] [--long 1] [setup ...]
--long 1: every scenario in every setup, with all windows and budgets"""
import os
import random
import struct
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Checks, Server, arguments, data_url, edited  # noqa: E402

root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
args = arguments(__doc__, long=0)
check = Checks()
CONTEXT = 16384
PIXELS = {"mm_processor_kwargs": {"max_pixels": 1120 * 64}}  # of the Qwen checkpoints, 8 x 8 to a token


def budget(tokens):
    return {"mm_processor_kwargs": {"max_soft_tokens": tokens}}


# name, folder, windows (None: the checkpoint's, or none), fields of the requests
SETUPS = [
    ("gemma4 e2b", "gemma4/e2b_vision_f32", (1024, 11), [budget(1120), {}]),
    ("gemma4 26b", "gemma4/26b_vision_f32", (1024, 50), [budget(1120), {}]),
    ("gemma4 31b", "gemma4/31b_vision_f32", (1024, 20), [budget(1120), {}]),
    ("gemma4 31b bf16", "gemma4/31b_vision_bf16", (7,), [{}, budget(1120)]),
    ("gemma4 12b", "gemma4/12b_f32", (90, 25), [budget(280), {}]),
    ("gemma4 12b released", "gemma4/12b_released_f32", (1, 90), [budget(280)]),
    ("gemma3", "gemma3/vision_f32", (9, 24, 1), [{}]),
    ("gemma3 bf16", "gemma3/vision_bf16", (5,), [{}]),
    ("qwen2", "qwen/qwen2_vl_f32", (None,), [{}, PIXELS]),
    ("qwen2.5", "qwen/qwen2_5_vl_f32", (None,), [{}, PIXELS]),
    ("qwen3", "qwen/qwen3_vl_f32", (None,), [{}, PIXELS]),
    ("qwen3 experts", "qwen/qwen3_vl_moe_f32", (None,), [{}]),
    ("paligemma", "paligemma/pg1_f32", (None,), [{}]),
    ("paligemma2", "paligemma/pg2_f32", (3, 11, 40), [{}]),
    ("paligemma2 bf16", "paligemma/pg2_bf16", (11,), [{}]),
]
# In short: of the setups in float32 the first window with the first fields, the second with the second.
SHORT = [(0, 0), (1, 1)]


def drawing(seed, width=900, height=700):
    """Of any size in no time: rows of noise that move."""
    noise = random.Random(seed).randbytes(9 * width)
    rows = b"".join(b"\0" + noise[y * 39 % (6 * width):][:3 * width] for y in range(height))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 1))
    data += chunk(b"IEND", b"")
    return {"type": "image_url", "image_url": {"url": data_url(data)}}


A, B, C, D, E, F = (drawing(k) for k in range(6))
BIG, TALL = drawing(7, 2100, 2000), drawing(8, 700, 1400)


def words(text):
    return {"type": "text", "text": text}


def user(*parts):
    return {"role": "user", "content": list(parts)}


def says(text):
    return {"role": "assistant", "content": text}


def conversations(heavy):
    """Lists of messages that are asked one after the other: most begin as an earlier one did."""
    look = words("look at it")
    yield "A", [user(A, look)]
    yield "A and another question", [user(A, words("look there"))]
    yield "A, then B", [user(A, look), says("I see."), user(B, words("and this?"))]
    if not heavy:
        return
    yield "A, then A", [user(A, look), says("I see."), user(A, words("and this?"))]
    yield "B where A was", [user(B, look), says("I see."), user(B, words("and this?"))]
    yield "B at the end of a prompt", [user(words("look at them"), A, words("and"), B)]
    yield "4 million pixels", [user(BIG, look)]
    tall = user(TALL, words("and this?"))
    yield "4 million pixels, then a tall one", [user(BIG, look), says("Large."), tall]
    first = [user(A, C, words("two of them"))]
    second = first + [says("Two."), user(D, words("a third"))]
    third = second + [says("Three."), user(E, F, words("and two more"))]
    yield "turn 1 of five images", first
    yield "turn 2 of five images", second
    yield "turn 3 of five images", third
    yield "another third turn", second + [says("Three."), user(F, E, words("and two more"))]
    other = [says("Two."), user(E, words("a third")), says("Three."), user(D, look)]
    yield "another second turn", first + other


def whole_prompts(heavy):
    """The same for models of one turn, in which every prompt is a whole."""
    for what, parts in (("A", [A]), ("B", [B]), ("A, B", [A, B]), ("B, A", [B, A]), ("tall", [TALL])):
        yield what, [user(*parts, words("look at it"))]
    yield "A and another question", [user(A, words("look at all of it, " * 9))]
    yield "no question", [user(A)]
    if heavy:
        yield "4 million pixels", [user(BIG, words("look at it"))]
        yield "five images", [user(A, B, C, D, E, words("look at them"))]


def ask(server, messages, fields):
    body = {"messages": messages, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "logprobs": True,
            "top_logprobs": 3, "return_token_ids": True, **fields}
    answer = server.ok("/v1/chat/completions", body, timeout=600)
    usage = answer["usage"]
    return answer["choices"], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], answer


def placeholder_tokens(answer):
    """Places of the longest run of equal ids: [begin, end) of an image."""
    ids, best, begin = answer["prompt_token_ids"], (0, 0), 0
    for i in range(1, len(ids) + 1):
        if i == len(ids) or ids[i] != ids[begin]:
            best, begin = max(best, (begin, i), key=lambda r: r[1] - r[0]), i
    return best


def compare(name, warm, cold, prompts, fields, whole_prompt):
    """Every prompt for the first time, where it may hit an earlier one, and again."""
    for what, messages in prompts:
        what = f"{name}: {what}"
        want, total, none, _ = ask(cold, messages, fields)
        check.equal(f"{what}: the server without a cache reuses nothing", none, 0)
        first, _, hit, answer = ask(warm, messages, fields)
        check.equal(f"{what}: as cold, {hit} of {total} tokens reused", first, want)
        again, _, rest, _ = ask(warm, messages, fields)
        check.equal(f"{what}: again", again, want)
        check.equal(f"{what}: again, all but the last token reused", rest, total - 1)
        begin, end = placeholder_tokens(answer)
        if "then" in what or "turn 2" in what or "turn 3" in what:
            check.true(f"{what}: what came before is reused", hit > begin, (hit, begin, end))
        if whole_prompt and "again" not in what:
            check.true(f"{what}: nothing but a whole prompt is reused", hit in (0, total - 1), hit)
    what, messages = prompts[-1]
    drawn = {**fields, "temperature": 1, "seed": 5, "n": 2, "max_tokens": 16}
    check.equal(f"{name}: {what}, drawn twice", ask(warm, messages, drawn)[0], ask(cold, messages, drawn)[0])
    what, messages = prompts[0]
    salted, _, none, _ = ask(warm, messages, {**fields, "cache_salt": "another"})
    check.equal(f"{name}: {what}, behind another salt", (salted, none), (ask(cold, messages, fields)[0], 0))


def run(setup, window, fields, heavy):
    name, folder, _, _ = setup
    whole = folder.startswith("paligemma")
    keys = {"max_position_embeddings": CONTEXT}
    if window:
        keys["sliding_window"] = window
    model = edited(os.path.join(root, "tests/golden", folder), **keys)
    kv = ("--kv-memory", "256M")
    warm = Server(args.binary, model, *kv, "--threads", "2", "--draft-tokens", "4")
    cold = Server(args.binary, model, *kv, "--threads", "1", "--prefix-cache", "off", "--draft-tokens", "0",
                  "--max-batch-tokens", "300")
    name += f", window {window}" if window else ""
    name += "".join(f", {k} {v}" for k, v in fields.get("mm_processor_kwargs", {}).items())
    prompts = list((whole_prompts if whole else conversations)(heavy))
    compare(name, warm, cold, prompts, fields, whole)
    soft = placeholder_tokens(ask(warm, prompts[0][1], fields)[3])
    if window == 1024 and fields:
        check.true(f"{name}: the image is longer than the window", soft[1] - soft[0] > 1024, soft)
    if not heavy:
        warm.stop()
        cold.stop()
        return
    # All at once, each behind the others' prefixes or beside them.
    fresh = [(what, m) for what, m in prompts[:6]]
    warm.request("POST", "/reset_prefix_cache")
    with ThreadPoolExecutor(len(fresh)) as pool:
        crowd = list(pool.map(lambda p: ask(warm, p[1], fields)[0], fresh))
    check.equal(f"{name}: all at once", crowd, [ask(cold, m, fields)[0] for _, m in fresh])
    warm.stop()
    cold.stop()


def main():
    for setup in SETUPS:
        name, _, windows, kinds = setup
        if args.only and name not in args.only:
            continue
        for i, window in enumerate(windows):
            for k, fields in enumerate(kinds):
                if args.long or args.only or ((i, k) in SHORT and "bf16" not in name):
                    check.run(run, setup, window, fields, bool(args.long) or not fields)
    check.end()


main()
