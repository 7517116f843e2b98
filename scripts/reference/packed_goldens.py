"""Writes tests/golden/packed/matrices.safetensors: small matrices in every layout of
engine/checkpoint/packed.h, as STEM.*, and STEM.floats: what the method's own formula makes of them.

    ~/oracle/bin/python scripts/reference/packed_goldens.py
"""
import pathlib

import torch
from safetensors.torch import save_file

AWQ = [0, 2, 4, 6, 1, 3, 5, 7]


def words(q, dim, order=range(8), bits=4):
    """Codes of 4 bits [..] (or 8) to int32 words along `dim`; order[i]: which of eight stands in bits 4i."""
    q = q.movedim(dim, -1)
    q = q.reshape(*q.shape[:-1], -1, 32 // bits).to(torch.int64)
    out = sum(q[..., c] << bits * i for i, c in enumerate(order[:32 // bits]))
    out = torch.where(out >= 2 ** 31, out - 2 ** 32, out).to(torch.int32)
    return out.movedim(-1, dim).contiguous()


def main():
    torch.manual_seed(3)
    n, k, out = 40, 128, {}

    def add(stem, floats, **tensors):
        out[stem + ".floats"] = floats.to(torch.float32).contiguous()
        out.update({stem + "." + name: t.contiguous() for name, t in tensors.items()})

    for stem, group, dtype in (("awq", 64, torch.float16), ("awq_wide", 128, torch.bfloat16)):
        q, z = torch.randint(0, 16, (k, n)), torch.randint(0, 16, (k // group, n))
        s = (torch.rand(k // group, n) * 0.02).to(dtype)
        floats = (q - z.repeat_interleave(group, 0)) * s.float().repeat_interleave(group, 0)
        add(stem, floats.T, qweight=words(q, 1, AWQ), qzeros=words(z, 1, AWQ), scales=s)
    for stem in ("gptq", "gptq_ordered"):
        group = 32
        index = torch.arange(k) // group
        if stem == "gptq_ordered":
            index = index[torch.randperm(k)]
        q, z = torch.randint(0, 16, (k, n)), torch.randint(1, 16, (k // group, n))
        s = (torch.rand(k // group, n) * 0.02).half()
        add(stem, ((q - z[index]) * s.float()[index]).T, qweight=words(q, 0), qzeros=words(z - 1, 1),
            scales=s, g_idx=index.to(torch.int32))
    for stem, group, zeros in (("words", 32, False), ("words_channel", k, False), ("words_zeros", 64, True)):
        q = torch.randint(0, 16, (n, k))
        z = torch.randint(0, 16, (n, k // group)) if zeros else torch.full((n, k // group), 8)
        s = (torch.rand(n, k // group) * 0.02).bfloat16()
        floats = (q - z.repeat_interleave(group, 1)) * s.float().repeat_interleave(group, 1)
        extra = {"weight_zero_point": words(z, 0)} if zeros else {}
        shape = torch.tensor([n, k])
        add(stem, floats, weight_packed=words(q, 1), weight_scale=s, weight_shape=shape, **extra)
    q = torch.randint(-128, 128, (n, k))
    s = (torch.rand(n, 1) * 0.02).bfloat16()
    add("int8", q * s.float(), weight=q.to(torch.int8), weight_scale=s)
    w = torch.randn(n, k).to(torch.float8_e4m3fn)
    w.view(torch.uint8)[0, :4] = torch.tensor([0, 0x80, 1, 0x7e], dtype=torch.uint8)
    s = torch.rand(n, 1) * 0.02
    add("fp8_channel", w.float() * s, weight=w, weight_scale=s)
    add("fp8_tensor", w.float() * 0.125, weight=w.clone(), weight_scale=torch.tensor(0.125))
    n, k = 160, 200
    w, s = torch.randn(n, k).to(torch.float8_e4m3fn), (torch.rand(2, 2) * 0.02).bfloat16()
    blocks = s.float().repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
    add("fp8_blocks", w.float() * blocks, weight=w, weight_scale_inv=s)
    q, z = torch.randint(0, 256, (k := 128, n := 40)), torch.randint(1, 256, (4, n))
    s, index = (torch.rand(4, n) * 0.02).half(), torch.arange(k) // 32
    add("gptq8", ((q - z[index]) * s.float()[index]).T, qweight=words(q, 0, bits=8),
        qzeros=words(z - 1, 1, bits=8), scales=s, g_idx=index.to(torch.int32))
    q, s = torch.randint(0, 256, (n, k)), (torch.rand(n, 4) * 0.02).bfloat16()
    add("words8", (q - 128) * s.float().repeat_interleave(32, 1), weight_packed=words(q, 1, bits=8),
        weight_scale=s, weight_shape=torch.tensor([n, k]))
    z = torch.randint(0, 256, (n, 4))
    add("words8_zeros", (q - z.repeat_interleave(32, 1)) * s.float().repeat_interleave(32, 1),
        weight_packed=words(q, 1, bits=8), weight_scale=s.clone(), weight_zero_point=words(z, 0, bits=8))
    index = torch.arange(k)[torch.randperm(k)] // 32
    add("words_ordered", (q % 16 - 8) * s.float()[:, index], weight_packed=words(q % 16, 1),
        weight_scale=s.clone(), weight_g_idx=index.to(torch.int32))
    q, z = q[:, :n].T % 16, torch.randint(0, 16, (4, n))
    q, s, index = q.repeat(4, 1)[:k], (torch.rand(4, n) * 0.02).half(), torch.arange(k) // 32
    add("gptq_v2", ((q - z[index]) * s.float()[index]).T, qweight=words(q, 0), qzeros=words(z, 1), scales=s)
    path = pathlib.Path(__file__).parents[2] / "tests/golden/packed/matrices.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(out, path)
    print(path, path.stat().st_size, "bytes")


main()
