"""Experts of FP8 in one tensor, scales of blocks beside it (Qwen3-VL's MoE in FP8): python3 test_fp8_experts.py [--binary B]
The same answers, bit for bit, as of a checkpoint that has their values as floats."""
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
    """tensors: name to (dtype, shape, bytes)."""
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
    if packing:
        config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    with open(path, "w") as f:
        json.dump(config, f)


def score(folder):
    server = harness.Server(args.binary, folder, "--kv-memory", "16M", "--dtype", "f32", "--log-level", "error")
    request = {"prompt": list(range(20, 80)), "max_tokens": 8, "temperature": 0, "echo": True, "logprobs": 1}
    answer = server.ok("/v1/completions", request)["choices"][0]
    server.stop()
    return answer


def test_experts():
    random.seed(8)
    with open(os.path.join(GOLDEN, "model.safetensors"), "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    head.pop("__metadata__", None)
    plain = {n: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for n, t in head.items()}
    packed = dict(plain)
    experts = [n for n in head if ".experts." in n]
    check.true("experts", len(experts) >= 2)
    for name in experts:
        count, rows, columns = head[name]["shape"]
        codes = bytes(random.choice((random.randrange(0x50), 0x80 + random.randrange(0x50))) for _ in range(count * rows * columns))
        scales = [random.randrange(1, 200) / 2 ** 12 for _ in range(count)]
        values = [e4m3(c) * scales[i // (rows * columns)] for i, c in enumerate(codes)]
        plain[name] = ("F32", head[name]["shape"], floats(values))
        packed[name] = ("F8_E4M3", head[name]["shape"], codes)
        packed[name + "_scale_inv"] = ("F32", [count, 1, 1], floats(scales))
    with tempfile.TemporaryDirectory() as folder:
        write(os.path.join(folder, "plain"), plain, False)
        write(os.path.join(folder, "packed"), packed, True)
        want, got = score(os.path.join(folder, "plain")), score(os.path.join(folder, "packed"))
        check.equal("text", got["text"], want["text"])
        check.equal("log-probs", got["logprobs"]["token_logprobs"], want["logprobs"]["token_logprobs"])


check.run(test_experts)
check.end()
