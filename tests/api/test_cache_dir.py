"""--cache-dir over HTTP: python3 test_cache_dir.py [--binary B] [test ...]
After a restart a conversation with images continues from the disk and equals a cold one, bit for bit, in all
kinds of models; name spaces stay apart; damaged records, a second server, an unusable directory cost nothing.
Killed servers: test_cache_soak."""
import os
import random
import resource
import shutil
import subprocess
import tempfile

import harness
from harness import Server

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GOLDEN = os.path.join(ROOT, "tests/golden")
args = harness.arguments(__doc__)
check = harness.Checks()
KINDS = {
    "sliding windows": ("gemma3/vision_f32",),
    "sliding windows, per-layer embeddings": ("gemma4/e2b_vision_f32",),
    "mRoPE": ("qwen/qwen2_vl_f32",),
    "recurrent layers": ("qwen/qwen3_5_f32",),
    "prefix-LM": ("paligemma/pg1_f32",),
    "int8 KV": ("gemma3/vision_bf16", "--kv-dtype", "int8"),
}


class Folder:
    """A cache directory that is removed at the end."""

    def __init__(self, model, *flags):
        self.path = tempfile.mkdtemp(prefix="kvasir-test-")
        self.model, self.flags = model, flags

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.path)

    def serve(self, *flags, **more):
        own = ["--cache-dir", self.path, "--cache-load", "always", *self.flags]
        return Server(args.binary, self.model, *own, *flags, **more)

    def records(self):
        at = os.path.join(self.path, "kvasir-cache")
        return [os.path.join(at, n) for n in sorted(os.listdir(at)) if len(n) == 33]

    def command(self, what, *more):
        command = [args.binary, "cache", what, self.path, *more]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        return done.returncode, done.stdout


def words(n):
    rng = random.Random(0)
    return " ".join(rng.choice("the a red blue small house tree on under runs".split()) for _ in range(n))


def ask(server, messages, headers=None, **fields):
    """-> what came, with log-probs; cached tokens; the tier that they came from"""
    body = {"messages": messages, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "logprobs": True,
            "top_logprobs": 3, "return_token_ids": True, "return_cache_info": True, **fields}
    status, answer = server.post("/v1/chat/completions", body, headers)
    assert status == 200, answer
    choice = answer["choices"][0]
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return (choice["token_ids"], choice["logprobs"]), cached, answer["cache_info"]["tier"]


def conversation(model=""):
    """-> messages of the first turn, messages of the second. A prefix-LM takes one turn: another question."""
    content = [{"type": "text", "text": words(40)}]
    for i in range(2):
        url = harness.data_url(harness.drawing(i))
        content.append({"type": "image_url", "image_url": {"url": url}})
    one = [{"role": "user", "content": content}]
    if "paligemma" in model:
        return one, [{"role": "user", "content": [*content, {"type": "text", "text": "what now?"}]}]
    return one, one + [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "what now?"}]


def cold(model, *flags):
    server = Server(args.binary, model, "--prefix-cache", "off", *flags)
    try:
        return [ask(server, turn)[0] for turn in conversation(model)]
    finally:
        server.stop()


def test_kinds():
    for kind, (name, *flags) in KINDS.items():
        model = os.path.join(GOLDEN, name)
        want = cold(model, *flags)
        with Folder(model, *flags) as folder:
            one, two = conversation(model)
            server = folder.serve()
            check.equal(f"{kind}: nothing cached", ask(server, one), (want[0], 0, None))
            server.stop()
            check.true(f"{kind}: written at the end", len(folder.records()) > 0)
            check.equal(f"{kind}: cache verify", folder.command("verify")[0], 0)
            server = folder.serve()
            out, cached, tier = ask(server, two)
            check.equal(f"{kind}: the second turn after a restart", out, want[1])
            if kind != "prefix-LM":
                check.true(f"{kind}: from the disk", cached > 20 and tier == "disk", (cached, tier))
            server.stop()
            server = folder.serve()
            out, cached, tier = ask(server, one)
            check.equal(f"{kind}: the first turn after a restart", out, want[0])
            check.true(f"{kind}: from the disk, too", cached > 20 and tier == "disk", (cached, tier))
            server.stop()


def test_damaged():
    model = os.path.join(GOLDEN, "gemma3/vision_f32")
    want = cold(model)
    with Folder(model) as folder:
        server = folder.serve()
        for turn in conversation():
            ask(server, turn)
        server.stop()
        rng = random.Random(1)
        for n, path in enumerate(folder.records()):
            with open(path, "r+b") as f:
                size = os.fstat(f.fileno()).st_size
                if n % 3 == 2:
                    f.truncate(rng.randrange(size))
                elif n % 3 == 1:
                    f.seek(rng.randrange(size))
                    byte = f.read(1)[0]
                    f.seek(-1, os.SEEK_CUR)
                    f.write(bytes([byte ^ 1 << rng.randrange(8)]))
        with open(os.path.join(folder.path, "kvasir-cache", "notes"), "w") as f:
            f.write("not a record")
        check.equal("cache verify names damaged records", folder.command("verify")[0], 1)
        server = folder.serve()
        for turn, out in zip(conversation(), want):
            check.equal("damaged records change nothing", ask(server, turn)[0], out)
        server.stop()
        check.equal("cache prune", folder.command("prune", "1G")[0], 0)  # those that nobody asked for
        check.equal("they are gone", folder.command("verify")[0], 0)
        check.true("the others are not", len(folder.records()) > 0)


def test_name_spaces():
    model = os.path.join(GOLDEN, "gemma3/vision_f32")
    one, _ = conversation()
    with Folder(model) as folder, tempfile.NamedTemporaryFile("w") as keys:
        keys.write("key-one\nkey-two\n")
        keys.flush()
        first, second = ({"Authorization": f"Bearer {k}"} for k in ("key-one", "key-two"))
        server = folder.serve("--api-key-file", keys.name)
        ask(server, one, first)
        ask(server, one, first, cache_salt="s")
        server.stop()
        text = b"".join(open(p, "rb").read() for p in folder.records())
        check.true("no key on disk", b"key-one" not in text)
        server = folder.serve("--api-key-file", keys.name)
        check.equal("another key", ask(server, one, second)[1], 0)
        check.equal("another salt", ask(server, one, first, cache_salt="t")[1], 0)
        check.true("the same key", ask(server, one, first)[1] > 0)
        check.true("the same salt", ask(server, one, first, cache_salt="s")[1] > 0)
        server.stop()


def test_directory():
    """What does not work is said, and the server runs without."""
    model = os.path.join(GOLDEN, "gemma3/vision_f32")
    want = cold(model)
    one, two = conversation()
    with Folder(model) as folder, tempfile.TemporaryFile("w+") as log:
        server = folder.serve()
        other = folder.serve(log=log)
        check.equal("the second server", ask(other, one)[0], want[0])
        check.equal("the first server", ask(server, one)[0], want[0])
        check.equal("cache prune while a server runs", folder.command("prune")[0], 1)
        other.stop()
        server.stop()
        log.seek(0)
        check.true("the second one says so", "another server" in log.read())
        check.equal("cache prune", folder.command("prune")[0], 0)
        check.equal("nothing is left", folder.records(), [])
        folder.model = os.path.join(GOLDEN, "gemma3/text_f32")  # another checkpoint
        server = folder.serve()
        server.stop()
    with tempfile.TemporaryFile("w+") as log:
        server = Server(args.binary, model, "--cache-dir", "/dev/null", log=log)
        check.equal("without a directory", ask(server, two)[0], want[1])
        server.stop()
        log.seek(0)
        check.true("it is named", "/dev/null" in log.read())


def test_tiers():
    """Host memory above the disk; both are named in responses and counted; a full disk ends in a metric."""
    model = os.path.join(GOLDEN, "gemma3/text_f32")
    prompts = [f"{words(120)} {i} {words(40)}"[i:] for i in range(16)]

    def complete(server, prompt):
        body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True, "logprobs": 3,
                "return_cache_info": True}
        status, answer = server.post("/v1/completions", body)
        assert status == 200, answer
        return answer["choices"][0]["logprobs"], answer["cache_info"]["tier"]

    def of_tier(server, what, tier):
        return sum(v for k, v in server.metrics().items()
                   if k.startswith(f"kvasir:cache_tier_{what}{{") and f'tier="{tier}"' in k)

    server = Server(args.binary, model, "--prefix-cache", "off")
    want = [complete(server, p)[0] for p in prompts]
    server.stop()
    with Folder(model, "--kv-memory", "1M", "--max-context", "1000", "--cache-host", "64M") as folder:
        server = folder.serve()
        for tier in ("nothing", "host"):
            got = [complete(server, p) for p in prompts]
            check.equal(f"from {tier}: equal", [out for out, _ in got], want)
        check.equal("they came from host memory", {tier for _, tier in got}, {"host"})
        check.true("bytes by tier", of_tier(server, "bytes", "host") > 0)
        check.true("hits by tier", of_tier(server, "hits_total", "host") >= len(prompts))
        check.true("tokens", server.metric("kvasir:cache_tier_loaded_tokens_total") > 100)
        loads = server.metric("kvasir:cache_tier_loads_total")
        seconds = server.metric("kvasir:cache_tier_load_seconds_total")
        check.true("no load waits for the engine's heartbeat", 0 < seconds < 0.5 * loads, (seconds, loads))
        server.stop()
        check.true("all of it is on the disk", len(folder.records()) > 0)
        server = folder.serve()
        got = [complete(server, p) for p in prompts]
        check.equal("after a restart: equal", [out for out, _ in got], want)
        check.equal("they came from the disk", {tier for _, tier in got}, {"disk"})
        check.true("hits of the disk", of_tier(server, "hits_total", "disk") >= len(prompts) - 1)
        server.stop()
    with Folder(model, "--kv-memory", "1M", "--max-context", "1000") as folder:
        server = folder.serve()
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        for _ in range(2):
            got = [complete(server, p)[0] for p in prompts]
            check.equal("a full disk changes nothing", got, want)
        check.true("it is off", server.soon(lambda: server.metric("kvasir:cache_tier_off") == 1))
        server.stop()


for function in (test_kinds, test_damaged, test_name_spaces, test_directory, test_tiers):
    if not args.only or function.__name__ in args.only:
        check.run(function)
check.end()
