#!/usr/bin/env python3
"""Writes tests/golden/tokenizer: small trained tokenizers of every shape that engine/tokenizer reads, and what the `tokenizers` library
answers for texts that are hard (golden.json beside each), for its pre-tokenizer patterns (splits.json) and for NFC (nfc.json).

usage: make_tokenizer.py [OUT_DIR]        deterministic for one version of the library
"""
import json
import os
import random
import sys

from compare_tokenizer import EDGE, WORDS, load, random_text
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
QWEN35 = QWEN2.replace(r"\p{L}+|\p{N}|", r"[\p{L}\p{M}]+|\p{N}|").replace(r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
RESPELT = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|"
           r"\s*[\r\n]|\s+(?!\S)|\s")
NUMBERS = r"\p{N}|\P{N}+"
DIGITS = QWEN2.replace(r"|\p{N}|", r"|\p{N}+|")
BARE = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1}|").replace(r"[^\s\p{L}\p{N}]+[\r\n]*", "[^\\s\\p{L}\\p{N}\r\n]+")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

CASES = ["", " ", "  ", "\n", "Hello world", "I'LL  go\n\n\n  x", "don't DON'T we'Re", "a1234b", " 12", "\t\tfoo", "  \tfoo  ", "!!!\n\n a", "x \n y",
         "a   b", "   ", "\r\n\r\n  z", "foo_bar $x", "(foo)", "#include <x>", " 'tis", "你好，世界。", "a\u00a0b", "a\u3000\u3000b", "\u200bfoo",
         "x\u180ey", "½ ²", "e\u0301te\u0301", "नमस्ते", "'ſ x", "it’s", "a\0b", "\ufffd", "\U0010ffff", "0" * 40, " " * 60, "\n" * 45, "a" * 90,
         "👨‍👩‍👧 👍🏽 🇩🇪", "▁a▁ b", "unrelated", "ababc", "aaaa", "\u1100\u1161\u11a8\u11a7", "c\u0327\u0301", "\u0301\u0327x", "the cat's 3 hats\r\n",
         "  return x;\n\t}\n", "<0x41>", "tab\tnew\x0bpage\x0c", "\x1c\x1d\x85\u2028|", "Straße ΑΒΓ привет мир", "สวัสดี مرحبا"]


def corpus():
    """Sentences of the word list: enough structure for merges of several lengths."""
    rng = random.Random(7)
    lines = []
    for _ in range(3000):
        n = rng.randrange(3, 14)
        words = [rng.choice(WORDS[:40]) if rng.random() < 0.6 else rng.choice(WORDS) for _ in range(n)]
        lines.append(" ".join(words) + rng.choice([".", "!", "?\n", ";\n", " = 12;", "\n\n", ""]))
    return lines


# Bytes that SmolLM2's released vocabulary has no token for.
ABSENT = [chr(0x100 + b) for b in (0x04, 0x06, 0x13, 0x14, 0x16, 0x1D)] + [chr(b) for b in range(0xF1, 0xFF)]


def byte_level(pattern, vocab, added, absent=(), **model):
    tok = Tokenizer(models.BPE(**model))
    if pattern is None:
        tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                                     pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    alphabet = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(absent))
    special = [model["unk_token"]] if "unk_token" in model else []
    tok.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=alphabet,
                                                          special_tokens=special, show_progress=False))
    tok.decoder = decoders.ByteLevel()
    tok.add_tokens(added)
    return tok


def sentencepiece(vocab_size, added, bytes_used=range(256), crossing=False, extra_merges=(), **model):
    base = Tokenizer(models.BPE())
    base.normalizer = normalizers.Replace(" ", "▁")
    if not crossing:
        base.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    base.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False))
    trained = json.loads(base.to_str())["model"]
    vocab = {t: i for i, t in enumerate(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"])}
    for b in bytes_used:
        vocab[f"<0x{b:02X}>"] = len(vocab)
    merges = [("\n" * a, "\n" * b) for a, b in ((1, 1), (2, 1), (1, 2), (2, 2), (3, 1))] + list(extra_merges)
    for token in ["\n", "\n\n", "\n\n\n", "\n\n\n\n", "▁▁", "▁▁▁", "▁▁▁▁"] + ["".join(m) for m in extra_merges] + sorted(trained["vocab"], key=trained["vocab"].get):
        vocab.setdefault(token, len(vocab))
    merges += [("▁", "▁"), ("▁▁", "▁"), ("▁", "▁▁"), ("▁▁", "▁▁")]
    merges += [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in trained["merges"]]
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", **model))
    tok.normalizer = normalizers.Replace(" ", "▁")
    tok.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")])
    tok.add_tokens(added)
    return tok


def template(tok, bos, eos=None):
    names = [bos] + ([eos] if eos else [])
    return processors.TemplateProcessing(single=f"{bos} $A" + (f" {eos}" if eos else ""), special_tokens=[(n, tok.token_to_id(n)) for n in names])


def tokenizers():
    chatml = [AddedToken(t, special=True, normalized=False) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|image_pad|>")]
    tools = [AddedToken(t, special=False, normalized=False) for t in ("<tool_call>", "</tool_call>", "<think>")]
    odd = [AddedToken("[L]", lstrip=True, special=True, normalized=False), AddedToken("[R]", rstrip=True, special=True, normalized=False),
           AddedToken("[LR]", lstrip=True, rstrip=True, special=False, normalized=False), AddedToken("sol", single_word=True, normalized=False),
           AddedToken("cafe\u0301", normalized=True), AddedToken("two words", normalized=True), AddedToken("<u1>", normalized=False),
           AddedToken("<u10>", normalized=False), AddedToken("über", normalized=False, special=False)]
    qwen = byte_level(QWEN2, 700, chatml + tools)
    qwen.normalizer = normalizers.NFC()
    qwen.post_processor = processors.ByteLevel(trim_offsets=False)
    yield "qwen2", qwen, {}
    llama = byte_level(LLAMA3, 500, [AddedToken("<|begin_of_text|>", special=True, normalized=False), AddedToken("<|eot_id|>", special=True, normalized=False)],
                       ignore_merges=True)
    llama.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template(llama, "<|begin_of_text|>")])
    yield "llama3", llama, {"merges": "strings"}
    qwen35 = byte_level(QWEN35, 400, chatml + odd)
    qwen35.normalizer = normalizers.NFC()
    yield "qwen3_5", qwen35, {}
    gpt2 = byte_level(None, 400, chatml[:1])
    yield "gpt2", gpt2, {"merges": "strings"}
    gemma = sentencepiece(700, [AddedToken(t, special=True, normalized=False) for t in ("<start_of_turn>", "<end_of_turn>", "<image_soft_token>")] +
                          [AddedToken(t, special=False, normalized=False) for t in ("<h1>", "</h1>", "\t", "\t\t", "\n\n\n\n\n")], fuse_unk=True, byte_fallback=True)
    gemma.post_processor = template(gemma, "<bos>")
    yield "gemma", gemma, {}
    unk = sentencepiece(500, odd, bytes_used=[], fuse_unk=True, byte_fallback=False)
    unk.post_processor = template(unk, "<bos>", "<eos>")
    yield "sp_unk", unk, {}
    # Some byte tokens only, a merge of byte tokens, merges across words: the cuts of long words can't be proved here.
    part = sentencepiece(500, [], bytes_used=[*range(0x20, 0x80), 0xF0, 0x9F, 0x98, 0x80, 0xC3, 0xA9, 0xE2, 0x82, 0xAC], crossing=True,
                         extra_merges=[("<0xF0>", "<0x9F>")], fuse_unk=False, byte_fallback=True)
    yield "sp_partial", part, {}
    # Merges across words with all bytes: cut everywhere but where a merge may join.
    cross = sentencepiece(600, [], crossing=True, fuse_unk=True, byte_fallback=True)
    yield "sp_cross", cross, {}
    # Bytes without a token: dropped, or unknown.
    yield "bytes_lost", byte_level(None, 380, chatml[:1], ABSENT), {}
    yield "bytes_unk", byte_level(QWEN2, 380, chatml[:1], ABSENT, unk_token="<unk>", fuse_unk=True), {}
    # MiniCPM5: digits in threes first. Seed-Coder. The spelling of tiktoken's pattern that LFM2.5 has.
    three = byte_level(DIGITS, 400, chatml[:1], ignore_merges=True)
    three.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"), pre_tokenizers.Split(Regex(DIGITS), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    yield "threes", three, {}
    yield "bare", byte_level(BARE, 400, chatml[:1]), {}
    yield "respelt", byte_level(RESPELT, 400, chatml[:1]), {}


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


def golden(tok, seed):
    rng = random.Random(seed)
    added = [t.content for t in tok.get_added_tokens_decoder().values()]
    texts = CASES + added + [a + b for a in added[-6:] for b in (" x", "\n")] + ["x " + a + "  y" + a for a in added[-6:]] + [a[:-1] for a in added[:4]]
    if isinstance(tok.decoder, decoders.ByteLevel) and tok.token_to_id(ABSENT[0]) is None:
        texts += ["a\x04\x06b \x13\x14", "\x04", "\x16\U000f1234\x1d", "don't\x06 th\x04e\x1d\x1d!",
                  "\U0010ffff \U000e0001x"]
    while len(texts) < 130:
        text = random_text(rng, added)
        if len(text) < 60:
            texts.append(text)
    encode = []
    for text in texts:
        ids = tok.encode(text, add_special_tokens=False).ids
        case = {"text": text, "ids": ids, "special": tok.encode(text, add_special_tokens=True).ids}
        if case["special"] == ids or "<bos>" in text or "<|begin_of_text|>" in text:
            del case["special"]
        encode.append(case)
    decode = []
    odd = [i for i, t in tok.get_added_tokens_decoder().items() if not t.content.isascii()]  # these decode to their content
    byte_tokens = [i for t, i in tok.get_vocab().items() if t.startswith("<0x")]
    for k in range(40):
        ids = [rng.randrange(tok.get_vocab_size()) for _ in range(rng.randrange(1, 8))] if k else tok.encode("a é 👍 b", add_special_tokens=True).ids
        ids = [i for i in ids if (i not in byte_tokens and i not in odd) or k == 0]  # broken bytes: our rule differs, see engine/tokenizer/tokenizer.h
        decode.append({"ids": ids, "text": tok.decode(ids, skip_special_tokens=False), "skipped": tok.decode(ids, skip_special_tokens=True)})
    return {"encode": encode, "decode": decode}


def side_files(where):
    write_json(os.path.join(where, "tokenizer_config.json"),
               {"add_bos_token": False, "bos_token": "<bos>", "eos_token": {"content": "<eos>", "lstrip": False, "normalized": False, "special": True},
                "pad_token": "<pad>", "unk_token": "<unk>", "sep_token": "\n\n\n\n", "boi_token": None,
                "extra_special_tokens": {"image_token": "<image_soft_token>"}, "tokenizer_class": "GemmaTokenizer"})
    write_json(os.path.join(where, "special_tokens_map.json"), {"eos_token": {"content": "<end_of_turn>"}, "mask_token": "<mask>"})


def described(rng, content):
    """An entry of added_tokens_decoder."""
    special = rng.random() < 0.5
    return {"content": content, "lstrip": rng.random() < 0.3, "rstrip": rng.random() < 0.3,
            "single_word": False, "normalized": not special and rng.random() < 0.5, "special": special}


def side_case(rng, base):
    """Random side files for the tokenizer.json of `base`: tokens that it has, that only its model has and
    that it lacks."""
    spec = json.load(open(os.path.join(base, "tokenizer.json"), encoding="utf-8"))
    known = [t["content"] for t in spec["added_tokens"]]
    plain = [t for t in spec["model"]["vocab"] if t.isascii() and len(t) > 2 and t not in known]
    lacks = ["<|n%d|>" % i for i in range(30)] + ["new word", "<n> ", "[PAD]"]

    def some(most):
        return rng.sample(lacks + rng.sample(plain, 3) + rng.sample(known, 2), rng.randrange(most + 1))

    config = {"tokenizer_class": "TokenizersBackend"}
    files = {"tokenizer_config.json": config}
    if rng.random() < 0.6:
        ids = rng.sample(range(len(spec["model"]["vocab"]) - 9, 1200), 12)
        listed = zip(ids, some(12), strict=False)
        config["added_tokens_decoder"] = {str(i): described(rng, t) for i, t in listed}
    else:
        special_map = {}
        for role, t in zip(("pad_token", "mask_token"), some(2), strict=False):
            flags = {"lstrip": rng.random() < 0.5, "rstrip": False, "normalized": False, "single_word": False}
            special_map[role] = rng.choice([t, {"content": t, **flags}])
        if rng.random() < 0.5:
            special_map["extra_special_tokens"] = some(2)
        files["special_tokens_map.json"] = special_map
        ids = rng.sample(range(1000, 1200), 6)
        files["added_tokens.json"] = dict(zip(some(6), ids, strict=False))
    for role in rng.sample(["pad", "eos", "image", "cls", "bos", "video"], 4):
        config[role + "_token"] = (some(1) or [None])[0]
    key = rng.choice(["extra_special_tokens", "additional_special_tokens"])
    config[key] = some(3)
    if key == "extra_special_tokens" and rng.random() < 0.3:
        config[key] = {"vision_token": "<v>", "other_token": "<|n3|>"}
    return files


def side_cases(out):
    """What transformers' AutoTokenizer makes of side files: added tokens, special ones, ids of texts."""
    import shutil
    import tempfile

    from transformers import AutoTokenizer
    rng, cases = random.Random(4), []
    while len(cases) < 40:
        base = ("qwen2", "sp_unk", "gemma")[len(cases) % 3]
        files = side_case(rng, os.path.join(out, base))
        with tempfile.TemporaryDirectory() as where:
            shutil.copy(os.path.join(out, base, "tokenizer.json"), where)
            for name, content in files.items():
                write_json(os.path.join(where, name), content)
            tok = AutoTokenizer.from_pretrained(where)._tokenizer
        tokens = tok.get_added_tokens_decoder()
        added = [t.content for t in tokens.values()]
        texts = [" ".join(rng.sample(added, 3)) + rng.choice(["", "  ", " x"]) for _ in range(3)]
        texts += [" ".join(added)]
        texts += [f"a  {t}  b{t}" for t in added[-3:]]
        files = [part for name, content in files.items() for part in (name, json.dumps(content))]
        cases.append({"base": base, "files": files,
                      "added": [[i, t.content, t.special] for i, t in sorted(tokens.items())],
                      "texts": [[t, tok.encode(t, add_special_tokens=False).ids] for t in texts]})
    write_json(os.path.join(out, "side_files.json"), cases)


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "../../tests/golden/tokenizer")
    os.makedirs(out, exist_ok=True)
    for seed, (name, tok, options) in enumerate(tokenizers()):
        where = os.path.join(out, name)
        os.makedirs(where, exist_ok=True)
        spec = json.loads(tok.to_str())
        if options.get("merges") == "strings":
            spec["model"]["merges"] = [" ".join(m) if isinstance(m, list) else m for m in spec["model"]["merges"]]
        write_json(os.path.join(where, "tokenizer.json"), spec)
        if name == "gemma":
            side_files(where)
        write_json(os.path.join(where, "golden.json"), golden(load(where), seed))
    side_cases(out)
    rng = random.Random(99)
    texts = [c for c in CASES if len(c) < 70] + [t for t in (random_text(rng, []) for _ in range(400)) if 0 < len(t) < 40][:140]
    cases = random.Random(98)  # letters of all cases, marks, slashes behind line breaks
    texts += ["".join(cases.choice("aBǅʰ日\u0301\u0488 /\n\r.7ßΣς") for _ in range(cases.randrange(2, 14)))
              for _ in range(150)]
    splits = {}
    for name, pattern in (("qwen2", QWEN2), ("llama3", LLAMA3), ("qwen3_5", QWEN35), ("gpt2", GPT2),
                          ("tekken", TEKKEN), ("numbers", NUMBERS), ("digits", DIGITS), ("bare", BARE),
                          ("numbers3", r"\p{N}{1,3}")):
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        splits[name] = [[len(w.encode()) for w, _ in split.pre_tokenize_str(t)] for t in texts]
    write_json(os.path.join(out, "splits.json"), {"texts": texts, "bytes": splits})

    nfc = normalizers.NFC()
    marks = ["\u0301", "\u0316", "\u0327", "\u0345", "\u0344", "\u093c", "\u09fe", "\u07fd", "\u1161", "\u11a8", "\u11a7", "\u3099", "\U0001d165"]
    texts = [e for e in EDGE]
    for _ in range(150):
        texts.append("".join(rng.choice(marks) if rng.random() < 0.6 else rng.choice("aeA \u0915\u0958\u1100\uac00\u304b\u212b\ufb1d\u09c7\u09be\U0001d15e")
                             for _ in range(rng.randrange(1, 9))))
    write_json(os.path.join(out, "nfc.json"), [[t, nfc.normalize_str(t)] for t in texts])


if __name__ == "__main__":
    main()
