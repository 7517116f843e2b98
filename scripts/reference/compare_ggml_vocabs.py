#!/usr/bin/env python3
"""Compares our tokenizer with the vocabularies that llama.cpp carries for its own tests:
models/ggml-vocab-*.gguf, each with texts (.inp) and expected ids (.out).

usage: compare_ggml_vocabs.py TEST_BINARY LLAMA_CPP
TEST_BINARY is build/release/tests/test_tokenizer. LLAMA_CPP is a directory of llama.cpp's sources; those in
llama-cpp-python's source package on PyPI are in vendor/llama.cpp:

    pip download --no-binary :all: --no-deps llama-cpp-python && tar xzf llama_cpp_python-*.tar.gz

Prints a line per vocabulary and the first differences; names those whose tokenizer isn't served or that
have no texts. The exit status is 1 if there is a difference, or if nothing was compared.

llama.cpp does not normalize, and the ids in qwen35's file are its own; transformers' class for these models
does. So texts there that NFC changes are compared with that class, made from the vocabulary in the file, and
need transformers and gguf.
"""
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path


def encode(binary, vocab, texts):
    """The ids of each text; None and the reason if the vocabulary doesn't load."""
    with tempfile.NamedTemporaryFile() as f:
        f.write(b"".join(b"%d\n%s\n" % (len(t), t) for t in texts))
        f.flush()
        got = subprocess.run([binary, "--dir", vocab, "--corpus", f.name], capture_output=True, text=True)
    if got.returncode:
        return None, (got.stderr + got.stdout).strip().splitlines()[-1].removeprefix(f"{vocab}: ")
    return [[int(i) for i in line.split()] for line in got.stdout.split("\n")[:len(texts)]], ""


def reference(vocab):
    """transformers' tokenizer of Qwen3.5 with this vocabulary."""
    import gguf
    from transformers import Qwen3_5Tokenizer
    fields = gguf.GGUFReader(vocab).fields
    tokens, merges = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "merges"))
    return Qwen3_5Tokenizer(vocab={t: i for i, t in enumerate(tokens)},
                            merges=[tuple(m.split(" ")) for m in merges])


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    binary, models = sys.argv[1], Path(sys.argv[2]) / "models"
    same = different = skipped = 0
    for vocab in sorted(models.glob("ggml-vocab-*.gguf")):
        name, inp, out = vocab.stem.removeprefix("ggml-vocab-"), Path(f"{vocab}.inp"), Path(f"{vocab}.out")
        if not inp.exists():
            skipped += 1
            print(f"{name}: skipped: no texts")
            continue
        texts = inp.read_bytes().split(b"\n__ggml_vocab_test__\n")
        want = [[int(i) for i in line.split()] for line in out.read_text().split("\n")[:len(texts)]]
        changed = [i for i, t in enumerate(texts) if not unicodedata.is_normalized("NFC", t.decode())]
        note = ""
        if name == "qwen35" and changed:
            tok = reference(vocab)
            for i in changed:
                want[i] = tok.encode(texts[i].decode(), add_special_tokens=False)
            note = f", {len(changed)} of them as transformers has them"
        ours, why = encode(binary, vocab, texts)
        if ours is None:
            skipped += 1
            print(f"{name}: skipped: {why}")
            continue
        wrong = [i for i in range(len(texts)) if ours[i] != want[i]]
        same, different = same + len(texts) - len(wrong), different + len(wrong)
        print(f"{name}: {len(texts) - len(wrong)} of {len(texts)} texts have the expected ids{note}")
        for i in wrong[:5]:
            print(f"  {texts[i][:60]!r}\n    ours     {ours[i][:16]}\n    expected {want[i][:16]}")
    print(f"{same} equal, {different} different, {skipped} vocabularies skipped")
    sys.exit(1 if different or not same else 0)


if __name__ == "__main__":
    main()
