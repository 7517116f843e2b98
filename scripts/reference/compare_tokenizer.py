#!/usr/bin/env python3
"""Compares our tokenizer with the `tokenizers` library on a large random corpus: ids, ids with the post-processor, decoded text.

usage: compare_tokenizer.py TEST_BINARY MODEL_DIR [--texts N] [--seed S] [--file TEXT_FILE]...
TEST_BINARY is build/release/tests/test_tokenizer. Prints the first differences; the exit status is 1 if there are any.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

EDGE = ["\0", "\t", "\n", "\r", "\r\n", " ", "  ", "    ", "'", "'s", "'LL", "'\u017f", "\u2019s", "\x1c", "\x7f", "\u0085", "\u00a0", "\u00ad",
        "\u180e", "\u200b", "\u200d", "\u2028", "\u202f", "\u3000", "\u2581", "\ufeff", "\ufffd", "\U0010ffff", "0", "12", "12345", "\u0660",
        "\u00bd", "\u2167", "e\u0301", "\u0301", "\u0316\u0301", "\u0345", "\u1100\u1161\u11a8", "\u11a7", "\uac00\u11a8", "\u0958", "\u09fe",
        "\u0344", "\u212b", "\ufb1d", "\U0001d15e", "\u07fd\u0300", "\u09c7\u09be", "_", "-", "--", "...", "!!!", "(", ")", "{}", ";\n", "#include <x>",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "<0x41>", "<0xE2>", "<unk>", "<s>", "\x00\x01"]
BLOCKS = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x600), (0x600, 0x700), (0x900, 0xE00), (0xE00, 0x1000), (0x1100, 0x1200),
          (0x1E00, 0x2070), (0x2070, 0x2C00), (0x3000, 0x3100), (0x4E00, 0x9FFF), (0xA640, 0xAC00), (0xAC00, 0xD7A4), (0xF900, 0xFFFE),
          (0x10000, 0x11000), (0x1D100, 0x1D800), (0x1F000, 0x1FB00), (0x20000, 0x20100), (0xE0000, 0xE0200)]
WORDS = ("the of and to in is that it for was on are as with his they at be this have from or one had by word but not what all were we when your "
         "can said there use an each which she do how their if will up other about out many then them these so some her would make like him into "
         "time has look two more write go see number no way could people my than first water been call who oil its now find long down day did get "
         "come made may part int return void struct if while for printf NULL self def import class lambda don't we're I'll THE Hello World "
         "straße Übung niño façade привет мир как дела 你好 世界 今天 天气 こんにちは 東京 안녕하세요 한국어 नमस्ते हिन्दी สวัสดี مرحبا שלום Ελλάδα").split()


def random_text(rng, added):
    parts, kind = [], rng.randrange(7)
    for _ in range(rng.choice([1, 2, 3, 5, 8, 13, 30, 100])):
        roll = rng.randrange(12) if kind == 0 else kind + 5 if kind < 6 else rng.randrange(3)
        if roll in (0, 1):
            parts.append(rng.choice(EDGE))
        elif roll == 2:
            lo, hi = rng.choice(BLOCKS)
            parts.append("".join(chr(rng.randrange(lo, hi)) for _ in range(rng.randrange(1, 6))))
        elif roll == 3 and added:
            parts.append(rng.choice(added))
        elif roll == 4 and added:
            token = rng.choice(added)
            parts.append(token[:rng.randrange(len(token) + 1)])
        elif roll == 5:
            parts.append(rng.choice([" ", "\n", "\t", "\r\n", "0", "7", "a", "=", "-", "\u3000", "\u2581", "\u0301", "\u597d"]) * rng.randrange(1, 40))
        elif roll == 6:
            c = rng.randrange(0x110000)
            parts.append(chr(c) if not 0xD800 <= c < 0xE000 else "?")
        else:
            parts.append(rng.choice(WORDS) + rng.choice([" ", " ", " ", "", ", ", ". ", "\n"]))
    return "".join(parts)


def load(directory):
    """The files as transformers reads them where no class of a family overrules them."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(directory).backend_tokenizer


def run(command, records):
    with tempfile.NamedTemporaryFile(delete=False) as f:
        f.write(records)
    try:
        return subprocess.run(command + [f.name], check=True, stdout=subprocess.PIPE).stdout
    finally:
        os.unlink(f.name)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("binary")
    ap.add_argument("dir")
    ap.add_argument("--texts", type=int, default=20000)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--file", action="append", default=[])
    args = ap.parse_args()
    rng = random.Random(args.seed)
    tok = load(args.dir)
    byte_level = json.dumps(json.loads(tok.to_str())["decoder"]).find("ByteLevel") >= 0
    added = [t.content for t in tok.get_added_tokens_decoder().values()]
    texts = [random_text(rng, added) for _ in range(args.texts)]
    texts += [c * 5000 for c in (" ", "\n", "a", "1", "\u2581", "\u597d", "\u0301", "\U0001f468\u200d", "ab", "\t\n")]
    texts += [open(f, encoding="utf-8", newline="").read() for f in args.file]
    records = b"".join(b"%d\n%s\n" % (len(t.encode()), t.encode()) for t in texts)
    bad = 0

    def report(what, text, ours, theirs):
        nonlocal bad
        bad += 1
        if bad <= 10:
            at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
            print(f"{what}: {text[:80]!r}\n  ours   {ours[max(0, at - 3):at + 12]}\n  theirs {theirs[max(0, at - 3):at + 12]}  at {at}")

    for special in (False, True):
        lines = run([args.binary, "--dir", args.dir] + (["--special"] if special else []) + ["--corpus"], records).decode().split("\n")
        theirs = tok.encode_batch(texts, add_special_tokens=special)
        for text, line, enc in zip(texts, lines, theirs, strict=False):
            ours = [int(x) for x in line.split()]
            ids = enc.ids
            # We never double a BOS that the text brings along; the library does.
            if special and ids[:1] == ids[1:2] and len(ours) == len(ids) - 1:
                ids = ids[1:]
            if ours != ids:
                report(f"ids (add_special={special})", text, ours, ids)

    # Added tokens beyond ASCII decode to their content here; the library pushes them through the byte-level alphabet.
    odd = {i for i, t in tok.get_added_tokens_decoder().items() if byte_level and not t.content.isascii()}
    # Decoding: what was encoded, and random ids. Broken UTF-8 is compared for byte-level only: see the header of engine/tokenizer/tokenizer.h.
    ids = [e.ids for e in tok.encode_batch(texts, add_special_tokens=False)]
    top = tok.get_vocab_size() + 20
    ids += [[rng.randrange(top) for _ in range(rng.randrange(1, 20))] for _ in range(args.texts // 4)]
    ids = [i for i in ids if i and not odd.intersection(i)]
    records = b"".join(b" ".join(b"%d" % x for x in i) + b"\n" for i in ids)
    compared = 0
    for skip in (False, True):
        out = run([args.binary, "--dir", args.dir] + (["--skip-special"] if skip else []) + ["--decode"], records)
        at = 0
        for i in ids:
            nl = out.index(b"\n", at)
            n = int(out[at:nl])
            ours = out[nl + 1:nl + 1 + n].decode()
            at = nl + 2 + n
            theirs = tok.decode(i, skip_special_tokens=skip)
            if not byte_level and ("\ufffd" in ours or "\ufffd" in theirs):
                continue
            compared += 1
            if ours != theirs:
                report(f"decode (skip_special={skip})", str(i[:20]), ours, theirs)
    print(f"{args.dir}: {len(texts)} texts, {sum(map(len, texts))} characters, {compared} decodes, {bad} differences")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
