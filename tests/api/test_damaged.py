"""Damaged checkpoints: python3 test_damaged.py [--binary B]
Weights that give no finite numbers end requests with an error, not with arbitrary tokens; an unusable checkpoint gives one clear line."""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness  # noqa: E402

args = harness.arguments(__doc__)
check = harness.Checks()


def copy(to, name, value=None):
    """The small checkpoint with the first bytes of tensor `name` replaced."""
    shutil.copytree(args.model, to)
    path = os.path.join(to, "model.safetensors")
    with open(path, "r+b") as f:
        length = struct.unpack("<Q", f.read(8))[0]
        tensor = json.loads(f.read(length))[name]
        f.seek(8 + length + tensor["data_offsets"][0])
        f.write(value)


def test_no_numbers():
    """A NaN in the last layer, and nothing that the model computes is a number; or in a row of the head."""
    with open(os.path.join(args.model, "model.safetensors"), "rb") as f:
        names = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    norm = next(n for n in names if n.endswith("model.norm.weight"))
    for value in (b"\0\0\xc0\x7f", b"\0\0\x80\x7f"):  # NaN, infinity
        with tempfile.TemporaryDirectory() as folder:
            copy(os.path.join(folder, "m"), norm, value)
            server = harness.Server(args.binary, os.path.join(folder, "m"), "--kv-memory", "16M", "--log-level", "error")
            for temperature in (0, 1):
                request = {"prompt": [5, 6, 7], "max_tokens": 4, "temperature": temperature}
                status, answer = server.post("/v1/completions", request)
                check.equal(f"{value} {temperature}", (status, answer.get("error", {}).get("code")), (500, "engine_error"))
                data = server.request("POST", "/v1/completions", {**request, "stream": True})
                check.true(f"{value} {temperature}: streamed", data[0] == 500 or b"engine_error" in data[2], data)
            scores = server.post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 0, "echo": True, "logprobs": 1})
            check.equal(f"{value}: the prompt's scores", (scores[0], scores[1].get("error", {}).get("code")), (500, "engine_error"))
            check.equal("/health", server.request("GET", "/health")[0], 200)
            server.stop()
    embedding = next(n for n in names if n.endswith("embed_tokens.weight"))  # also the head: token 0's logit is NaN
    with tempfile.TemporaryDirectory() as folder:
        copy(os.path.join(folder, "m"), embedding, b"\0\0\xc0\x7f")
        server = harness.Server(args.binary, os.path.join(folder, "m"), "--kv-memory", "16M", "--log-level", "error")
        for what in ({"temperature": 0}, {"temperature": 1, "top_p": 0.9}, {"temperature": 0, "logit_bias": {"9": 1}}, {"temperature": 0, "logprobs": 1}):
            status, answer = server.post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 4, **what})
            check.equal(f"one of the logits is no number, {what}", (status, answer.get("error", {}).get("code")), (500, "engine_error"))
        server.stop()


def test_one_line():
    """Broken in many ways, inspected and served: exit code 1 and one line."""
    def config(**changes):
        def apply(folder):
            with open(os.path.join(folder, "config.json")) as f:
                values = json.load(f)
            values["text_config"].update(changes)
            with open(os.path.join(folder, "config.json"), "w") as f:
                json.dump(values, f)
        return apply

    def missing(name):
        return lambda folder: os.remove(os.path.join(folder, name))

    def cut(folder):
        path = os.path.join(folder, "model.safetensors")
        os.truncate(path, os.path.getsize(path) // 2)

    for what, damage in {"no config": missing("config.json"), "no weights": missing("model.safetensors"), "no tokenizer": missing("tokenizer.json"), "cut": cut,
                         "layers": config(num_hidden_layers=2**31), "head": config(head_dim=0), "negative": config(hidden_size=-8), "huge": config(vocab_size=2**31 - 1)}.items():
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "m")
            shutil.copytree(args.model, model)
            damage(model)
            for command in (["serve", "--port", "0", "--log-level", "error"], ["inspect", "--log-level", "error"]):
                if what == "no weights" and command[0] == "inspect":
                    continue  # it looks at the configuration
                done = subprocess.run([args.binary, *command, "--model", model], capture_output=True, text=True, timeout=60)
                shown = what == "no tokenizer" and command[0] == "inspect"  # the model, and that it wouldn't start
                printed = done.stdout.startswith("served     no: ") if shown else not done.stdout
                one_line = done.stderr.startswith("kvasir: ") and done.stderr.count("\n") == 1
                check.true(f"{what}: {command[0]}", done.returncode == 1 and one_line and printed,
                           (done.returncode, done.stdout, done.stderr))


for function in (test_no_numbers, test_one_line):
    if not args.only or function.__name__ in args.only:
        check.run(function)
check.end()
