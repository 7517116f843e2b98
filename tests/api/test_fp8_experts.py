"""Experts of FP8 in one tensor, with block scales, as in Qwen3-VL's MoE in FP8: the same
output, bit for bit, as of checkpoints with the values as floats.

    python3 test_fp8_experts.py [--binary B]"""
import json
import os
import random
import shutil
import struct
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness  # noqa: E402

args = harness.arguments(__doc__)
check = harness.Checks()
GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/qwen/qwen3_vl_moe_f32")


def e4m3(byte):
    exponent, mantissa = byte >> 3 & 15, byte & 7
    value = mantissa / 512 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -value if byte >> 7 else value


def floats(values):
    return struct.pack(f"<{len(values)}f", *values)


def write(folder, tensors, packing):
    """tensors: name to (dtype, shape, bytes). Experts are 32 wide, so that they can be integers."""
    shutil.copytree(GOLDEN, folder, ignore=shutil.ignore_patterns("golden*", "model.safetensors"))
    head, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(head).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        config = json.load(f)
    config["text_config"]["moe_intermediate_size"] = 32
    if packing:
        config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    with open(path, "w") as f:
        json.dump(config, f)


def score(folder, *flags):
    flags = "--kv-memory", "16M", "--dtype", "f32", "--log-level", "error", *flags
    server = harness.Server(args.binary, folder, *flags)
    request = {"prompt": list(range(20, 80)), "max_tokens": 8, "temperature": 0, "echo": True, "logprobs": 1}
    answer = server.ok("/v1/completions", request)["choices"][0]
    server.stop()
    return answer["text"], answer["logprobs"]["token_logprobs"]


def test_experts():
    """As FP8, as floats as released (inputs first), and as transformers 5 saves them (outputs first)."""
    random.seed(8)
    with open(os.path.join(GOLDEN, "model.safetensors"), "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    head.pop("__metadata__", None)
    plain = {n: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for n, t in head.items()}
    packed, saved = dict(plain), dict(plain)
    experts = [n for n in head if ".experts." in n]
    check.true("experts", len(experts) >= 2)
    for name in experts:
        count, rows, columns = head[name]["shape"][0], 32, 64 if "gate_up" in name else 32
        size = rows * columns
        codes = bytes(random.choice((0, 0x80)) + random.randrange(0x50) for _ in range(count * size))
        scales = [random.randrange(1, 200) / 2 ** 12 for _ in range(count)]
        values = [e4m3(c) * scales[i // size] for i, c in enumerate(codes)]
        turned = [values[e * size + r * columns + c]
                  for e in range(count) for c in range(columns) for r in range(rows)]
        plain[name] = ("F32", [count, rows, columns], floats(values))
        saved[name] = ("F32", [count, columns, rows], floats(turned))
        packed[name] = ("F8_E4M3", [count, rows, columns], codes)
        packed[name + "_scale_inv"] = ("F32", [count, 1, 1], floats(scales))
    with tempfile.TemporaryDirectory() as folder:
        for what, tensors in (("plain", plain), ("saved", saved), ("packed", packed)):
            write(os.path.join(folder, what), tensors, what == "packed")
        answers = {}
        for flags in ((), ("--quantize", "int8"), ("--quantize", "int4")):
            want = answers[flags] = score(os.path.join(folder, "plain"), *flags)
            check.equal(f"{flags}: outputs first", score(os.path.join(folder, "saved"), *flags), want)
            check.equal(f"{flags}: FP8", score(os.path.join(folder, "packed"), *flags), want)
        check.true("three forms", len({str(a) for a in answers.values()}) == 3)


check.run(test_experts)
check.end()
