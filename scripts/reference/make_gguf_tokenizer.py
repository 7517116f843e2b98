#!/usr/bin/env python3
"""Writes tests/golden/tokenizer/gguf_*: small tokenizers as GGUF files without weights, spelt as llama.cpp's
converters spell the families' tokenizers (model.gguf), and what the `tokenizers` library answers for the
tokenizer.json that each was made from (golden.json).

usage: make_gguf_tokenizer.py [OUT_DIR]        deterministic for one version of the libraries; needs gguf
"""
import json
import os
import sys

import gguf
from make_tokenizer import (ABSENT, DIGITS, QWEN2, TEKKEN, byte_level, golden, sentencepiece, template,
                            write_json)
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers
from transformers.tokenization_utils_base import generate_merges

NORMAL, CONTROL, USER, UNUSED, BYTE = 1, 3, 4, 5, 6


def added(texts, special):
    return [AddedToken(t, special=special, normalized=False) for t in texts]


def types_of(tok, size, byte_tokens=False):
    """Spelling and type of each token, and of rows behind the vocabulary."""
    names = {i: t for t, i in tok.get_vocab().items()}
    extra = tok.get_added_tokens_decoder()
    tokens, types = [], []
    for i in range(size):
        name = names.get(i)
        kind = UNUSED if name is None else CONTROL if i in extra and extra[i].special else \
            USER if i in extra else BYTE if byte_tokens and name.startswith("<0x") else NORMAL
        tokens.append(f"[PAD{i}]" if name is None else name)
        types.append(kind)
    return tokens, types


def write(out, name, tok, tokens, types, model, pre, roles, add_bos, scores=None, merges=None, prefix=None,
          chat=None, arch="none"):
    where = os.path.join(out, name)
    os.makedirs(where, exist_ok=True)
    w = gguf.GGUFWriter(os.path.join(where, "model.gguf"), arch)
    w.add_tokenizer_model(model)
    if pre:
        w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    if scores:
        w.add_token_scores(scores)
    w.add_token_types(types)
    if merges:
        w.add_token_merges([" ".join(m) for m in merges])
    for role, content in roles.items():
        getattr(w, f"add_{role}_token_id")(tok.token_to_id(content))
    if add_bos is not None:
        w.add_add_bos_token(add_bos)
    if prefix is not None:
        w.add_add_space_prefix(prefix)
    if chat:
        w.add_chat_template(chat)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()
    write_json(os.path.join(where, "golden.json"), golden(tok, sum(name.encode())))


def spm(vocab, user, control):
    """The library's SentencePiece-style tokenizer with a byte for everything; user-defined and control tokens
    stand in its vocabulary."""
    tok = sentencepiece(vocab, added(control, True) + added(user, False), fuse_unk=True, byte_fallback=True)
    state = json.loads(tok.to_str())
    for t in state["added_tokens"]:
        state["model"]["vocab"].setdefault(t["content"], t["id"])
    return state


def with_merges(state, scores):
    """The merges that transformers makes of a SentencePiece model with these scores."""
    merges = generate_merges(state["model"]["vocab"], scores)
    state["model"]["merges"] = [list(m) for m in merges]
    tok = Tokenizer.from_str(json.dumps(state))
    tok.post_processor = template(tok, "<bos>")
    return tok


def main():
    out = os.path.join(os.path.dirname(__file__), "../../tests/golden/tokenizer")
    out = sys.argv[1] if len(sys.argv) > 1 else out
    sp_roles = {"bos": "<bos>", "eos": "<eos>", "unk": "<unk>", "pad": "<pad>"}

    chatml = added(("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|image_pad|>"), True)
    tok = byte_level(QWEN2, 600, chatml + added(("<tool_call>", "</tool_call>", "<think>"), False))
    tok.normalizer = normalizers.NFC()
    tokens, types = types_of(tok, tok.get_vocab_size() + 9)
    merges = [m if isinstance(m, list) else m.split(" ") for m in json.loads(tok.to_str())["model"]["merges"]]
    write(out, "gguf_bytes", tok, tokens, types, "gpt2", "qwen2",
          {"bos": "<|endoftext|>", "eos": "<|im_end|>", "pad": "<|endoftext|>"}, False, merges=merges,
          chat=[{"name": "default", "template": "{{ messages[0].content }}"},
                {"name": "tool_use", "template": "{{ tools|length }}"}])

    # Scores fall with the ids, those of other tokens are -1000; user-defined tokens have spaces for U+2581.
    state = spm(600, ("▁▁▁▁▁", "<h1>", "</h1>", "\t\t", "\n\n\n\n\n"),
                ("<start_of_turn>", "<end_of_turn>"))
    tok = with_merges(state, {t: -i for t, i in state["model"]["vocab"].items()})
    tokens, types = types_of(tok, tok.get_vocab_size() + 5, True)
    scores = [-float(i) if t == NORMAL else 0.0 if t == BYTE else -1000.0 for i, t in enumerate(types)]
    spelt = [t.replace("▁", " ") if k == USER else t for t, k in zip(tokens, types, strict=True)]
    write(out, "gguf_pieces", tok, spelt, types, "llama", "default", sp_roles, True, scores, prefix=False,
          arch="gemma3")

    # Llama 2: a space before every piece.
    state = spm(500, (), ())
    scores_of = {t: -i for t, i in state["model"]["vocab"].items()}
    state["normalizer"] = json.loads(normalizers.Sequence([
        normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]).__getstate__())
    state["pre_tokenizer"] = None
    state["decoder"]["decoders"].append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    tok = with_merges(state, scores_of)
    tokens, types = types_of(tok, tok.get_vocab_size(), True)
    scores = [-float(i) if t == NORMAL else 0.0 for i, t in enumerate(types)]
    write(out, "gguf_prefix", tok, tokens, types, "llama", "default", sp_roles, True, scores, arch="llama")

    # SmolLM2: each digit alone, then GPT-2's words, and bytes without a token. Mistral since Nemo.
    for name, split, pre, more in (("gguf_numbers", None, "smollm", {"absent": ABSENT}),
                                   ("gguf_tekken", TEKKEN, "tekken", {"ignore_merges": True})):
        tok = byte_level(split, 500, added(("<bos>", "<eos>"), True), **more)
        if not split:
            tok.pre_tokenizer = pre_tokenizers.Sequence([
                pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
        if split:
            tok.post_processor = template(tok, "<bos>")
        tokens, types = types_of(tok, tok.get_vocab_size())
        merges = json.loads(tok.to_str())["model"]["merges"]
        write(out, name, tok, tokens, types, "gpt2", pre, {"bos": "<bos>", "eos": "<eos>"}, None,
              merges=merges)

    # MiniCPM5: digits in threes, then the words.
    tok = byte_level(DIGITS, 400, added(("<bos>", "<eos>"), True), ignore_merges=True)
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
        pre_tokenizers.Split(Regex(DIGITS), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokens, types = types_of(tok, tok.get_vocab_size())
    write(out, "gguf_threes", tok, tokens, types, "gpt2", "minicpm5", {"bos": "<bos>", "eos": "<eos>"}, None,
          merges=json.loads(tok.to_str())["model"]["merges"])

    # Ids in the other order than the scores.
    state = spm(450, (), ())
    vocab = state["model"]["vocab"]
    first = min(i for t, i in vocab.items() if t == "\n")
    count = len(vocab)
    scores_of = {t: -float(i) if i >= first else 0.0 for t, i in vocab.items()}
    vocab.update({t: count - 1 - (i - first) for t, i in vocab.items() if i >= first})
    tok = with_merges(state, scores_of)
    tokens, types = types_of(tok, count, True)
    write(out, "gguf_scores", tok, tokens, types, "llama", None, sp_roles, None,
          [scores_of[t] for t in tokens], prefix=False)

    # Merges in the file; special tokens that the converter marks as user-defined.
    turns = added(("<|turn>", "<turn|>", "<|tool_call>", "<tool_call|>"), True)
    tok = sentencepiece(450, turns, fuse_unk=True, byte_fallback=True)
    tok.post_processor = template(tok, "<bos>")
    tokens, types = types_of(tok, tok.get_vocab_size(), True)
    types = [USER if "tool_call" in t else k for t, k in zip(tokens, types, strict=True)]
    write(out, "gguf_merges", tok, tokens, types, "gemma4", None, sp_roles, False, [0.0] * len(tokens),
          merges=json.loads(tok.to_str())["model"]["merges"], prefix=False)


if __name__ == "__main__":
    main()
