#!/usr/bin/env python3
"""How close do we and llama.cpp come to the float32 run of a checkpoint, with the same GGUF files of it?

    compare_gguf.py MODEL_DIR [--binary build/release/kvasir] [--tokens 2000] FILE.gguf...

The first --tokens tokens of mixed.txt are scored in one sequence, as compare_real.py does, whose cached run
of transformers is the measure: mean |log-prob - that of float32| of llama.cpp (through llama_cpp, from PyPI)
and of a server of ours, and the second over the first.

--own: the measure is float32 with the weights that are in the file (transformers reads it): arithmetic alone
is compared. Else it is MODEL_DIR's, and the loss of the quantization is in both columns.
"""
import argparse
import ctypes
import sys
from pathlib import Path

import numpy as np
from compare_real import reference, run_server, run_transformers, token_ids
from served import Server

ROOT = Path(__file__).resolve().parents[2]


def run_llama(path, ids):
    """With llama.cpp's defaults, two threads."""
    import llama_cpp as lib
    quiet = lib.llama_log_callback(lambda *_: None)
    lib.llama_log_set(quiet, ctypes.c_void_p(0))
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_threads, params.n_threads_batch = len(ids) + 8, 128, 2, 2
    context = lib.llama_init_from_model(model, params)
    width = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    out = np.empty(len(ids) - 1, np.float64)
    batch = lib.llama_batch_init(128, 0, 1)
    for begin in range(0, len(ids), 128):
        some = ids[begin:begin + 128]
        batch.n_tokens = len(some)
        for i, token in enumerate(some):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, begin + i, 1, 1
            batch.seq_id[i][0] = 0
        if lib.llama_decode(context, batch) != 0:
            sys.exit(f"{path}: llama.cpp fails")
        rows = np.ctypeslib.as_array(lib.llama_get_logits(context), (len(some), width)).astype(np.float64)
        for i in range(min(len(some), len(ids) - 1 - begin)):
            top = rows[i].max()
            out[begin + i] = rows[i][ids[begin + i + 1]] - top - np.log(np.exp(rows[i] - top).sum())
    lib.llama_free(context)
    lib.llama_model_free(model)
    return out


def own_weights(path, ids, cache):
    import torch
    if not cache.exists() or cache.stat().st_mtime < path.stat().st_mtime:
        cache.parent.mkdir(parents=True, exist_ok=True)
        np.save(cache, run_transformers(path.parent, ids, torch.float32, gguf_file=path.name))
    return np.load(cache)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=Path)
    p.add_argument("files", nargs="+")
    p.add_argument("--binary", default=str(ROOT / "build/release/kvasir"))
    p.add_argument("--tokens", type=int, default=2000)
    p.add_argument("--own", action="store_true")
    p.add_argument("--flags", default="", help="of our server, in one word")
    args = p.parse_args()
    ids = token_ids(args.folder, args.tokens)
    cache = Path.home() / ".cache/kvasir-reference"
    kept = cache / f"{args.folder.name}-{args.tokens}.npz"
    f32 = None if args.own else reference(args.folder, ids, kept)[0]
    print("| file | llama.cpp | ours | ratio |\n|---|---|---|---|")
    for path in args.files:
        if args.own:
            f32 = own_weights(Path(path).resolve(), ids, cache / f"{Path(path).name}-{args.tokens}.npy")
        theirs = np.abs(run_llama(path, ids) - f32).mean()
        with Server(args.binary, path, *args.flags.split()) as server:
            ours = np.abs(run_server(server.url, None, ids) - f32).mean()
        print(f"| {Path(path).name} | {theirs:.4f} | {ours:.4f} | {ours / theirs:.3f} |", flush=True)


if __name__ == "__main__":
    main()
