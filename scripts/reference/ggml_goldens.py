#!/usr/bin/env python3
"""Writes tests/golden/ggml/golden.safetensors: blocks of every type of ggml's that is read, and their values.

usage: ggml_goldens.py        (needs the packages gguf, numpy, safetensors)

NAME.bytes, U8 [n]: random blocks; NAME.values, F32: what gguf.quants.dequantize makes of them. Names are
those of GGMLQuantizationType. The scales of the first blocks are f16's odd numbers: zeros of both signs,
subnormal ones, the largest; all scales are finite, and so are the values."""
import os

import gguf
import gguf.quants
import numpy as np
from safetensors.numpy import save_file

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ODD = [0x03FF, 0xFBFF, 0x8001, 0x0000, 0x0400, 0x7BFF, 0x8000, 0x0001]
# name: byte offsets of the f16 scales in a block
TYPES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
         "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0],
         "MXFP4": []}
EXPONENTS = [0, 1, 2, 127, 250, 3, 120, 130, 128]  # of MXFP4's scales; above 250 values may overflow


def blocks(rng, kind, at):
    numbers, size = gguf.GGML_QUANT_SIZES[kind]
    count = 5 if numbers == 256 else 10
    data = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for b in range(count):
        for k, offset in enumerate(at):
            h = np.float16(rng.uniform(-0.02, 0.02)).view(np.uint16)
            if b < (4 if numbers == 256 else len(ODD)):
                h = np.uint16(ODD[(b + 3 * k) % len(ODD)])
            data[b, offset:offset + 2] = np.frombuffer(h.tobytes(), np.uint8)
    if kind == gguf.GGMLQuantizationType.MXFP4:
        data[:, 0] = (EXPONENTS + [119])[:count]
    return data


def main():
    rng = np.random.default_rng(17)
    odd = np.array(ODD + [0x3C00, 0xC248], np.uint16)
    half = np.concatenate([odd, rng.standard_normal(61).astype(np.float16).view(np.uint16)])
    f32 = rng.standard_normal(71).astype(np.float32)
    f32[:3] = [0.0, -0.0, 1e-41]
    tensors = {"F32": f32.view(np.uint8), "F16": half.view(np.uint8),
               "BF16": np.concatenate([odd, (f32.view(np.uint32) >> 16).astype(np.uint16)]).view(np.uint8)}
    for name, at in TYPES.items():
        tensors[name] = blocks(rng, gguf.GGMLQuantizationType[name], at).reshape(-1)
    out = {}
    for name, data in tensors.items():
        values = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name]).astype(np.float32).reshape(-1)
        assert np.isfinite(values).all(), name
        out[name + ".bytes"], out[name + ".values"] = data, values
    folder = os.path.join(ROOT, "tests/golden/ggml")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "golden.safetensors")
    save_file(out, path)
    print(path, os.path.getsize(path), "bytes")


if __name__ == "__main__":
    main()
