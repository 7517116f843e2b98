"""Models by name, against hub_stub.py: what is downloaded, faults, the cache that huggingface_hub reads and
writes as well, and the lines for what is not a model: python test_hub.py [--binary B] [--demo DIR] [test ...]
"""

import concurrent.futures
import fcntl
import hashlib
import json
import os
import pty
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Checks, Server, arguments, end_process, wait_until  # noqa: E402
from hub_stub import FAULTS, Hub, git_sha1  # noqa: E402

check = Checks()
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
hub = Hub()
HEAD = b"\x02" + bytes(7) + b"{}"  # of safetensors
LARGE = HEAD + random.Random(1).randbytes((17 << 20) + 12335)


def checkpoint(large=LARGE, **more):
    return {"config.json": b'{"model_type": "gemma3"}', "tokenizer.json": b"{}",
            "vocab.json": b'{"only": "without tokenizer.json"}', "merges.txt": b"only without tokenizer.json",
            "README.md": b"# a model", "model.safetensors": large, "pytorch_model.bin": b"not needed",
            "onnx/model.onnx": b"nor this", **more}


class Home:
    """A cache of its own."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="kvasir-hub-")
        self.cache = os.path.join(self.dir, "hub")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.dir, True)

    def env(self, **more):
        env = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith("HF_") and not k.lower().endswith("_proxy")
        }
        return {**env, "HF_HOME": self.dir, "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1",
                "HF_HUB_DISABLE_TELEMETRY": "1", **more}

    def run(self, *command, limit=None, **env):
        p = subprocess.run([BINARY, *command], env=self.env(**env), capture_output=True, text=True,
                           timeout=120, preexec_fn=limit, restore_signals=False, check=False)
        said = [x for x in p.stderr.splitlines() if not re.match(r"\d{4}-\S+ (info|warn) ", x)]
        return p.returncode, p.stdout.strip(), "\n".join(said)

    def blobs(self):
        """name -> bytes of everything that counts as a whole file"""
        found = {}
        for top, _, names in os.walk(self.cache):
            for name in names if os.path.basename(top) == "blobs" else ():
                if not name.endswith(".incomplete"):
                    with open(os.path.join(top, name), "rb") as f:
                        found[name] = f.read()
        return found

    def whole(self, what):
        for name, data in self.blobs().items():
            good = hashlib.sha256(data).hexdigest() if len(name) == 64 else git_sha1(data)
            check.equal(f"{what}: a blob has its hash", good, name)

    def folder(self, name):
        return os.path.join(self.cache, "models--" + name.replace("/", "--"))

    def snapshot(self, name):
        return os.path.join(self.folder(name), "snapshots", hub.repos[name].commit)

    def partial(self, name, path):
        return os.path.join(self.folder(name), "blobs", hub.repos[name].hash[path] + ".incomplete")


def holds(home, what, name, *paths):
    """The snapshot has exactly these files, as relative links to their blobs."""
    there, top = [], home.snapshot(name)
    for folder, _, names in os.walk(top):
        there += [os.path.relpath(os.path.join(folder, x), top) for x in names]
    check.equal(f"{what}: files", sorted(there), sorted(paths))
    for path in there:
        full = os.path.join(top, path)
        link = os.readlink(full)
        check.true(f"{what}: {path} is a relative link",
                   link.startswith("../" * (2 + path.count("/")) + "blobs/"), link)
        with open(full, "rb") as f:
            check.true(f"{what}: {path} is whole", f.read() == hub.repos[name].files[path])


def test_pull():
    repo = hub.add("org/plain", checkpoint(**{"chat_template.jinja": b"", "1_Pooling/config.json": b"{}",
                                            "2_Dense/model.safetensors": HEAD}))
    need = ["config.json", "tokenizer.json", "model.safetensors", "chat_template.jinja",
            "1_Pooling/config.json", "2_Dense/model.safetensors"]
    with Home() as home:
        hub.tokens.clear(), hub.cdn_tokens.clear()
        for name in ("org/plain", "hf:org/plain", "org/plain@v1", "org/plain@" + repo.commit,
                     "org/plain@refs/pr/1"):
            before = repo.sent
            rc, out, err = home.run("pull", name, HF_TOKEN="hf_good")
            check.equal(name, (rc, out, err), (0, home.snapshot("org/plain"), ""))
            check.equal(f"{name}: sent", repo.sent - before, len(LARGE + HEAD) if name == "org/plain" else 0)
        holds(home, "pull", "org/plain", *need)
        check.equal("the endpoint gets the token", set(hub.tokens), {"Bearer hf_good"})
        check.equal("the CDN gets none", set(hub.cdn_tokens), {None})
        check.equal("a request per file", len(hub.cdn_tokens), 2)
        for ref in ("main", "v1", "refs/pr/1"):
            with open(os.path.join(home.folder("org/plain"), "refs", ref), encoding="utf-8") as f:
                check.equal(f"refs/{ref}", f.read(), repo.commit)
        rc, out, _ = home.run("pull", "org/plain", HF_HUB_OFFLINE="1")
        check.equal("offline", (rc, out), (0, home.snapshot("org/plain")))
        rc, out, _ = home.run("pull", "org/plain", HF_ENDPOINT="http://127.0.0.1:9")
        check.equal("without a net, from the cache", (rc, out), (0, home.snapshot("org/plain")))
        with open(os.path.join(home.dir, "token"), "w", encoding="utf-8") as f:
            f.write("hf_good\n")
        hub.tokens.clear()
        home.run("pull", "org/plain")
        check.equal("the token's file", set(hub.tokens), {"Bearer hf_good"})
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            hub.tokens.clear()
            home.run("pull", "org/plain", **{name: " hf_other\n"})
            check.equal(name, set(hub.tokens), {"Bearer hf_other"})
        rc, out, _ = home.run("list")
        check.true(
            "list", rc == 0 and re.search(rf"org/plain +{repo.commit[:12]} +\S*main\S* +17.0 MiB", out), out
        )
        second = hub.add(
            "org/plain", checkpoint(**{"config.json": b'{"model_type": "llama"}'}), commit="b" * 40
        )
        check.equal("a new commit", home.run("pull", "org/plain")[:2], (0, home.snapshot("org/plain")))
        check.equal("its weights are there already", second.sent, 0)
        check.equal("rm of the old one", home.run("rm", "org/plain@v1")[0], 0)
        left = {second.hash[p] for p in ("config.json", "tokenizer.json", "model.safetensors")}
        check.equal("it leaves the other's files", set(home.blobs()), left)
        check.equal("and its ref", sorted(os.listdir(os.path.join(home.folder("org/plain"), "refs"))),
                    ["main", "refs"])
        check.equal("rm", home.run("rm", "org/plain")[0], 0)
        check.equal(
            "all gone", [os.listdir(home.cache), os.listdir(home.cache + "/.locks")], [[".locks"], []]
        )
        rc, _, err = home.run("rm", "org/plain")
        check.true("rm again", rc == 1 and "org/plain is not in" in err, err)
        check.equal(
            "usage", [home.run(*c)[0] for c in (["pull"], ["rm"], ["list", "x"], ["pull", "--x"])], [2] * 4
        )
        for command in ("pull", "list", "rm", "ready"):
            rc, out, err = home.run(command, "--help")
            check.true(f"{command} --help", rc == 0 and out.startswith("usage: kvasir " + command), (rc, err))


def test_weights():
    shards = {f"model-0000{i}-of-00002.safetensors": HEAD + bytes([i]) * 1000 for i in (1, 2)}
    index = (
        '{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'
    )
    files = checkpoint(
        **shards,
        **{"consolidated.safetensors": b"the same again", "model.safetensors.index.json": index.encode()},
    )
    del files["model.safetensors"]
    hub.add("org/shards", files)
    hub.add("org/merges", {k: v for k, v in checkpoint(HEAD).items() if k != "tokenizer.json"})
    hub.add(
        "org/lost", {**files, "model.safetensors.index.json": index.replace("00002-of", "00003-of").encode()}
    )
    hub.add("org/out",
            {**files, "model.safetensors.index.json": index.replace("model-00002-of", "../../x").encode()})
    gguf = {"README.md": b"", "m-Q4_K_M.gguf": b"GGUF" + b"a" * 100,
            "q/m-BF16-00001-of-00002.gguf": b"GGUF" + b"b" * 100,
            "q/m-BF16-00002-of-00002.gguf": b"GGUF" + b"c" * 100, "mmproj-BF16.gguf": b"GGUFddddd",
            "mmproj-F16.gguf": b"GGUFeeeeee"}
    hub.add("org/gguf", gguf)
    with Home() as home:
        check.equal("shards", home.run("pull", "org/shards")[0], 0)
        holds(home, "shards", "org/shards", "config.json", "tokenizer.json", "model.safetensors.index.json",
              *shards)
        check.equal("merges", home.run("pull", "org/merges")[0], 0)
        holds(home, "merges", "org/merges", "config.json", "vocab.json", "merges.txt", "model.safetensors")
        for name in ("org/lost", "org/out"):
            rc, _, err = home.run("pull", name)
            check.true(name, rc == 1 and re.search("index.json names '[^']+', which is not there", err), err)
            check.true(f"{name}: no ref", not os.path.exists(home.folder(name) + "/refs"))
        one, two = "hf:org/gguf:m-Q4_K_M.gguf", "org/gguf@main:q/m-BF16-00001-of-00002.gguf"
        check.equal("GGUF", home.run("pull", one)[:2], (0, home.snapshot("org/gguf") + "/m-Q4_K_M.gguf"))
        holds(home, "GGUF", "org/gguf", "m-Q4_K_M.gguf", "mmproj-F16.gguf")
        check.equal("split GGUF", home.run("pull", two)[0], 0)
        holds(home, "split", "org/gguf", *[p for p in gguf if p not in ("README.md", "mmproj-BF16.gguf")])
        check.equal("offline", home.run("pull", two, HF_HUB_OFFLINE="1")[0], 0)
        rc, _, err = home.run("pull", "org/shards:x.gguf")
        check.true("no GGUF there", rc == 1 and "org/shards has no GGUF files" in err, err)
        for tag, file in (("q4_k_m", "m-Q4_K_M.gguf"), ("BF16", "q/m-BF16-00001-of-00002.gguf")):
            for offline in "0", "1":
                got = home.run("pull", f"org/gguf:{tag}", HF_HUB_OFFLINE=offline)[:2]
                check.equal(f"{tag}, offline {offline}", got, (0, home.snapshot("org/gguf") + "/" + file))
        for name in ("org/gguf", "org/gguf:Q8_0", "org/gguf:K_M", "org/gguf:m-Q8_0.gguf"):
            rc, _, err = home.run("pull", name)
            check.true(f"{name} lists them",
                       rc == 1 and "choose one of its GGUF files: m-Q4_K_M.gguf q/m-" in err, err)
        lora = {"adapter_config.json": b"{}", "adapter_model.safetensors": struct.pack("<Q", 2) + b"{}"}
        hub.add("org/adapter", {"README.md": b"", **lora})
        check.equal("an adapter", home.run("pull", "org/adapter")[:2], (0, home.snapshot("org/adapter")))
        holds(home, "adapter", "org/adapter", *lora)
        rc, _, err = home.run("serve", "org/adapter")
        check.true("is no model", rc == 1 and "LoRA adapter (adapter_config.json), not a model" in err, err)
        hub.add("org/lora", {"adapter_config.json": b"{}"})
        hub.add("org/bin", {"config.json": b"{}", "pytorch_model.bin": b""})
        hub.add("org/none", {"README.md": b""})
        for name, line in (("org/lora", "LoRA adapter"), ("org/bin", "pytorch_model.bin only"),
                           ("org/none", "holds no checkpoint")):
            rc, _, err = home.run("pull", name)
            check.true(name, rc == 1 and name in err and line in err and "\n" not in err, err)


# fault: a line of stderr, or None where it is overcome
OUTCOMES = {
    "dropped": None,
    "stalls": None,
    "busy_again": None,
    "busy_once": None,
    "no_ranges": None,
    "expires": None,
    "no_hashes": None,
    "renamed": None,
    "unsized": None,
    "no_ranges_dropped": r"model.safetensors: .*\d+ bytes.*, 5 times; .*",
    "dropped_always": r"model.safetensors: .*\d+ bytes.*, 5 times; .*kept, and resumed next time",
    "drips": "model.safetensors: .*1024 bytes/sec.*, 5 times; .* kept, and resumed next time",
    "drips_and_drops": "model.safetensors: .*, 5 times; .*",
    "list_drips": "org/list_drips: .*1024 bytes/sec.*, 5 times; .*",
    "wrong_hash": "model.safetensors is damaged: its hash is .*, not .*",
    "wrong_small": "config.json is damaged: .*",
    "truncated": "model.safetensors: the hub sends 1060701 bytes where its list has 1060801",
    "longer": "model.safetensors: the hub sends more than its list has",
    "pointer": "the hub sends a Git LFS pointer for model.safetensors instead of the file",
    "busy": "org/busy: the hub answers HTTP 503",
    "limited": "org/limited: the hub answers HTTP 429 and asks to wait 3600 s: .*HF_TOKEN.*",
    "limited_as_the_hub": "org/limited_as_the_hub: the hub answers HTTP 429 and asks to wait 290 s: .*",
    "escape": r"org/escape: the hub's list has the file name 'a\?\]0;evil\?\?\?2J', which is not allowed",
    "long_list": "org/long_list: the hub's list of files is too large",
    "gated": "org/gated is gated: ask for access on http://.*/org/gated, then set HF_TOKEN .*",
    "forbidden": "org/forbidden: the hub answers HTTP 403 This token may not read it",
    "private": "org/private is not on http://.*, or is private: then set HF_TOKEN",
    "missing": "org/missing is not on http://.*",
    "up": "org/up: the hub's list has the file name '../../../evil', which is not allowed",
    "absolute": "org/absolute: .*'/tmp/evil', which is not allowed",
    "loop": "model.safetensors: .*redirects.*",
    "portal": "the hub's list of files.*",
    "no_commit": ".* is no hub: its list of files has no commit",
    "no_etag": ".*: the hub gives no size and hash of it .*",
    "huge": "org/huge needs 1073741824.00 GiB more, and .* has .* GiB free: .*",
}


def one_fault(name):
    line = OUTCOMES[name]
    repo = hub.add(f"org/{name}", checkpoint(LARGE if name != "truncated" else LARGE[:1060801]), fault=name)
    with Home() as home:
        rc, _, err = home.run("pull", f"org/{name}", HF_HUB_DOWNLOAD_TIMEOUT="3")
        if line:
            check.true(
                f"{name}: one line", rc == 1 and re.fullmatch("kvasir: " + line + " ?", err), (rc, err)
            )
            check.true(f"{name}: no ref", not os.path.exists(home.folder(repo_name(repo)) + "/refs"))
        elif check.equal(f"{name}: overcome", (rc, err), (0, "")):
            holds(home, name, f"org/{name}", "config.json", "tokenizer.json", "model.safetensors")
            if name in ("dropped", "stalls", "busy_again", "expires"):
                check.equal(f"{name}: what has come is kept", repo.sent, len(LARGE))
        home.whole(name)
        check.true(f"{name}: nothing outside", not os.path.exists(os.path.join(home.dir, "evil")))


def repo_name(repo):
    return next(n for n, r in hub.repos.items() if r is repo)


def test_faults():
    check.equal("each fault has an outcome", set(OUTCOMES), set(FAULTS))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for name, done in [(n, pool.submit(one_fault, n)) for n in OUTCOMES]:
            check.run(done.result)


def test_access():
    hub.add("org/open", checkpoint(b"w"))
    hub.add("org/closed", checkpoint(b"w"), fault="gated")
    with Home() as home:
        for name, line, env in (
            ("org/open", "the hub does not accept the token for org/open .*: HTTP 401 Invalid.*",
             {"HF_TOKEN": "hf_bad"}),
            ("org/closed", "org/closed is gated: .* has no access yet.*", {"HF_TOKEN": "hf_good"}),
            ("org/open@v9", "org/open has no such revision: .*", {}),
            ("org/open", "http://127.0.0.1:9 can't be reached: .*", {"HF_ENDPOINT": "http://127.0.0.1:9"}),
            ("org/open", "http://no.invalid can't be reached: .*", {"HF_ENDPOINT": "http://no.invalid"}),
            ("org/open", "HF_ENDPOINT=ftp://x: not an http or https URL", {"HF_ENDPOINT": "ftp://x"}),
            ("org/open", "org/open@main is not in .*, and HF_HUB_OFFLINE is set", {"HF_HUB_OFFLINE": "1"}),
            *(
                (n, ".* is not a model of the Hugging Face hub: write ORG/NAME.*", {})
                for n in ("a/b/c", "../x", "org/..", "org/x@../y", "org/x:../y.gguf", "org/x:/y.gguf", "/x",
                          "org/", "o rg/x", "org/x@", "org/x--y", "hf:", "org/x:a\x9b.gguf", "org/x?y=1",
                          "org/x#1")
            ),
        ):
            rc, _, err = home.run("pull", name, **env)
            check.true(f"{name} {env}", rc == 1 and re.fullmatch("kvasir: " + line, err), (rc, err))
        file = os.path.join(home.dir, "file")
        with open(file, "w", encoding="utf-8"):
            pass
        rc, _, err = home.run("pull", "org/open", HF_HUB_CACHE=file + "/x")
        check.true(
            "no directory", rc == 1 and re.fullmatch("kvasir: can't make .*: Not a directory", err), err
        )

        def small():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

        hub.add("org/full", checkpoint())
        rc, _, err = home.run("pull", "org/full", limit=small)
        check.true("no room to write",
                   rc == 1 and re.fullmatch("kvasir: can't write .*: File too large; .*", err), err)
        check.equal("it is resumed", home.run("pull", "org/full")[0], 0)
        holds(home, "resumed", "org/full", "config.json", "tokenizer.json", "model.safetensors")


def test_resume():
    repo = hub.add("org/cut", checkpoint(), fault="slow")
    with Home() as home:
        p = subprocess.Popen([BINARY, "pull", "org/cut"], env=home.env(), stderr=subprocess.DEVNULL)
        part = home.partial("org/cut", "model.safetensors")
        check.true(
            "a part", wait_until(lambda: os.path.exists(part) and os.path.getsize(part) >= 1000_000, 30)
        )
        p.send_signal(signal.SIGKILL)
        p.wait()
        repo.slow.set()
        had, repo.sent = os.path.getsize(part), 0
        with open(part, "rb") as f:
            check.true("what is there is the beginning", LARGE.startswith(f.read()))
        home.whole("killed")
        repo.fault = None
        check.equal("resumed", home.run("pull", "org/cut")[0], 0)
        check.equal("only the rest is sent", repo.sent, len(LARGE) - had)
        holds(home, "resumed", "org/cut", "config.json", "tokenizer.json", "model.safetensors")
        blob = os.path.join(home.folder("org/cut"), "blobs", repo.hash["model.safetensors"])
        for what, data in (("another beginning", b"x" * 5000000), ("too long", LARGE + b"more"),
                           ("whole", LARGE), ("another whole", LARGE[:-1] + b"x")):
            os.unlink(blob)
            with open(part, "wb") as f:
                f.write(data)
            check.equal(f"{what}: pull", home.run("pull", "org/cut")[0], 0)
            holds(home, what, "org/cut", "config.json", "tokenizer.json", "model.safetensors")
            check.true(f"{what}: nothing left", not os.path.exists(part))
        with open(blob, "wb") as f:
            f.write(LARGE[:1000])
        check.equal("a blob of another size is fetched again", home.run("pull", "org/cut")[0], 0)
        home.whole("cut blob")
        os.unlink(blob)
        repo.sent = 0
        both = [
            subprocess.Popen([BINARY, "pull", "org/cut"], env=home.env(), stderr=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL)
            for _ in range(2)
        ]
        check.equal("two at a time", [p.wait(60) for p in both], [0, 0])
        check.equal("one download", repo.sent, len(LARGE))


def test_side_by_side():
    """Eight files at a time. One that another process downloads is waited for, and is in no other's way."""
    shards = [f"model-{i:05}-of-00016.safetensors" for i in range(16)]
    files = checkpoint(**{x: HEAD + x.encode() for x in shards})
    files["model.safetensors.index.json"] = json.dumps({"weight_map": {x: x for x in shards}}).encode()
    del files["model.safetensors"]
    repo = hub.add("org/many", files, fault="meets")
    need = ["config.json", "tokenizer.json", "model.safetensors.index.json", *shards]
    with Home() as home:
        check.equal("pull", home.run("pull", "org/many")[0], 0)
        check.equal("eight at a time", repo.most, 8)
        holds(home, "side by side", "org/many", *need)
    repo.fault = None
    with Home() as home:
        locks = os.path.join(home.cache, ".locks", "models--org--many")
        os.makedirs(locks)
        held = [open(f"{locks}/{repo.hash[x]}.lock", "w", encoding="utf-8") for x in shards[:9]]
        for lock in held:
            fcntl.flock(lock, fcntl.LOCK_EX)
        p = subprocess.Popen(
            [BINARY, "pull", "org/many"], env=home.env(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        rest = {repo.hash[x] for x in shards[9:]}
        check.true("the others come", wait_until(lambda: rest <= set(home.blobs()), 30), home.blobs())
        check.true("these wait", len(home.blobs()) == 3 + len(rest) and p.poll() is None, home.blobs())
        for lock in held:
            lock.close()
        said = p.communicate(timeout=60)[1]
        check.equal("then they come", (p.returncode, said.count(b"waiting: another process")), (0, 9))
        holds(home, "no lock is held", "org/many", *need)


def test_damaged_cache():
    """A blob is what its hash says, not its size; that is looked at once. What is in the way is said."""
    repo = hub.add("org/old", checkpoint())
    names = ["config.json", "tokenizer.json", "model.safetensors"]
    with Home() as home:
        check.equal("pull", home.run("pull", "org/old")[0], 0)
        for name in names:
            time.sleep(0.05)  # a tick of the file system's clock
            blob = os.path.join(home.folder("org/old"), "blobs", repo.hash[name])
            lock = os.path.join(home.cache, ".locks", "models--org--old", repo.hash[name] + ".lock")
            for revision in ("", "@" + repo.commit):
                good = repo.files[name]
                with open(blob, "wb") as f:
                    f.write(good[:-1] + bytes([good[-1] ^ 1]))
                what = f"org/old{revision}"
                rc, _, err = home.run("pull", what, HF_HUB_OFFLINE="1")
                check.true(f"{what} {name}, offline", rc == 1 and "not wholly" in err, err)
                check.equal(f"{what} {name} is fetched again", home.run("pull", what)[0], 0)
                holds(home, "fetched again", "org/old", *names)
            os.unlink(blob)
            os.mkdir(blob)
            check.equal(f"{name}: a directory for a blob", home.run("pull", "org/old")[0], 0)
            holds(home, "no directory", "org/old", *names)
        # What is known is not read again: what is younger than its check is.
        with open(blob, "r+b") as f:
            f.write(b"x" * 9)
        os.utime(lock)
        check.equal("known", home.run("pull", "org/old")[0], 1)  # its beginning is none of safetensors
        check.equal("its blob is still there", home.blobs()[repo.hash[name]][:9], b"x" * 9)
        os.utime(lock, (1, 1))
        check.equal("older", home.run("pull", "org/old")[0], 0)
        holds(home, "read again", "org/old", *names)
        link = os.path.join(home.snapshot("org/old"), "config.json")
        os.unlink(link)
        os.mkdir(link)
        rc, _, err = home.run("pull", "org/old")
        check.true("a directory for a file", rc == 1 and "can't make the link" in err and link in err, err)


NO_MODEL = (("config.json", b"<html>"), ("config.json", b"[]"), ("config.json", b""),
            ("tokenizer.json", b"{"), ("tokenizer.json", None), ("model.safetensors", b""),
            ("model.safetensors", b"PK" * 50), ("model.safetensors", b"\0" * 99),
            ("model.safetensors", b"\xff" * 7 + b"\0{"))


def test_no_model():
    """What has come whole and is no model is no success."""
    with Home() as home:
        for i, (file, data) in enumerate(NO_MODEL):
            files = checkpoint(HEAD, **{file: data})
            if data is None:
                del files[file], files["vocab.json"]
            hub.add(f"org/no{i}", files)
            for _ in range(2):
                rc, _, err = home.run("pull", f"org/no{i}")
                check.true(f"{file} {data}", rc == 1 and file in err, (rc, err))
            check.true("no ref", not os.path.exists(home.folder(f"org/no{i}") + "/refs"))
        hub.add("org/nogguf", {"m-Q8_0.gguf": b"PK" * 50})
        rc, _, err = home.run("pull", "org/nogguf:m-Q8_0.gguf")
        check.true("no GGUF", rc == 1 and "m-Q8_0.gguf" in err, (rc, err))


def test_progress():
    """On a terminal a bar with rate and time left; elsewhere lines."""
    for terminal in (True, False):
        hub.add("org/bar", checkpoint(), fault="dropped")
        with Home() as home:
            reader, writer = pty.openpty() if terminal else os.pipe()
            p = subprocess.Popen(
                [BINARY, "pull", "org/bar"], env=home.env(), stderr=writer, stdout=subprocess.DEVNULL
            )
            os.close(writer)
            said = b""
            try:
                while chunk := os.read(reader, 65536):
                    said += chunk
            except OSError:  # how a terminal ends
                pass
            os.close(reader)
            check.equal("pull", p.wait(60), 0)
        line = rb"\[[#.]{40}\] +\d+ % of 17 MiB" if terminal else rb"\d+ of 17 MiB"
        line = rb"downloading " + line + rb", [0-9.]+ MiB/s, \d+:\d\d:\d\d left"
        check.true(f"terminal {terminal}", re.search(line, said), said[-500:])


def test_huggingface_hub():
    """It finds what we have downloaded, and we what it has."""
    hub.add("org/ours", checkpoint(), commit="1" * 40)
    hub.add("org/theirs", checkpoint(), commit="2" * 40)
    look = """
import huggingface_hub as h, os, sys
name = sys.argv[1]
path = h.snapshot_download(name, local_files_only=os.environ.get("HF_HUB_OFFLINE") == "1",
                           allow_patterns=["*.json", "model.safetensors"])
file = h.try_to_load_from_cache(name, "model.safetensors")
info = h.scan_cache_dir()
print(path, os.path.realpath(file), [r.repo_id for r in info.repos], info.warnings)
"""
    with Home() as home:

        def python(name, **env):
            p = subprocess.run([sys.executable, "-c", look, name], env=home.env(**env), capture_output=True,
                               text=True, timeout=120, check=False)
            return p.stdout.strip() or p.stderr[-1500:]

        check.equal("pull", home.run("pull", "org/ours")[0], 0)
        blob = os.path.join(home.folder("org/ours"), "blobs", hub.repos["org/ours"].hash["model.safetensors"])
        check.equal("it finds ours", python("org/ours", HF_HUB_OFFLINE="1"),
                    f"{home.snapshot('org/ours')} {blob} ['org/ours'] []")
        sent = hub.repos["org/ours"].sent
        python("org/ours")
        check.equal("and fetches nothing again", hub.repos["org/ours"].sent, sent)
        python("org/theirs")
        rc, out, err = home.run("pull", "org/theirs", HF_HUB_OFFLINE="1")
        check.equal("we find its", (rc, out, err), (0, home.snapshot("org/theirs"), ""))
        sent = hub.repos["org/theirs"].sent
        check.equal("online", (home.run("pull", "org/theirs")[0], hub.repos["org/theirs"].sent), (0, sent))
        check.equal(
            "list", [x.split()[0] for x in home.run("list")[1].splitlines()[1:]], ["org/ours", "org/theirs"]
        )


def read_all(folder):
    return {n: open(os.path.join(folder, n), "rb").read() for n in os.listdir(folder)}


def test_serve():
    hub.add("org/demo", read_all(DEMO))
    gguf = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden/gguf")
    names = ["glm_ocr_f32.gguf", "glm_ocr_f32-mmproj.gguf"]
    hub.add("org/vl", {n: open(os.path.join(gguf, n), "rb").read() for n in names})
    with Home() as home:
        s = Server(BINARY, "hf:org/demo@main", env=home.env())
        ids = [m["id"] for m in json.loads(s.request("GET", "/v1/models")[2])["data"]]
        check.equal("its name", ids, ["org/demo"])
        body = {"prompt": "Hello", "max_tokens": 2, "model": "org/demo"}
        check.equal("it answers", len(s.ok("/v1/completions", body)["choices"]), 1)
        s.stop()
        rc, out, _ = home.run("inspect", "org/vl:glm_ocr_f32.gguf")
        check.true("a GGUF file, with its tower", rc == 0 and "glm_ocr" in out and "\nvision " in out, out)
        p = subprocess.Popen([BINARY, "serve", "org/demo", "--port", "0", "--shutdown-delay", "0"], text=True,
                             env=home.env(HF_HUB_OFFLINE="1"), stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL)
        check.true("a name alone, offline", p.stdout.readline().startswith("kvasir: listening on http://"))
        p.terminate()
        check.equal("it ends", p.wait(30), 0)


def test_llama_swap():
    """The commands of the proxy's file, started as it starts them."""
    with open(os.path.join(ROOT, "scripts/deploy/llama-swap.yaml"), encoding="utf-8") as f:
        text = f.read()
    models = re.findall(r'^  "(\S+)":\n    cmd: (.+)\n    checkEndpoint: (\S+)\n', text, re.M)
    check.equal("models", len(models), 2)
    with Home() as home:
        for name, command, path in models:
            words = command.replace("${PORT}", "0").split()
            check.equal(f"{name}: the program", words.pop(0), "kvasir")
            hub.add(words[1], read_all(DEMO))
            p = subprocess.Popen(
                [BINARY, *words], env=home.env(), stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL
            )
            try:
                port = int(p.stdout.readline().rsplit(":", 1)[1])
                with urllib.request.urlopen(f"http://localhost:{port}{path}") as answer:
                    check.equal(f"{name}: ready", answer.status, 200)
                with urllib.request.urlopen(f"http://localhost:{port}/v1/models") as answer:
                    check.equal(f"{name}: its name", json.load(answer)["data"][0]["id"], name)
            finally:
                end_process(p)
                p.stdout.close()
            check.equal(f"{name}: it ends", p.returncode, 0)


def test_lines():
    """What is not a model, or not our spelling: one line with the right one."""
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    with Home() as home:

        def folder(name, **files):
            path = os.path.join(home.dir, name)
            os.mkdir(path)
            for file, data in files.items():
                with open(os.path.join(path, file.replace("__", ".")), "wb") as f:
                    f.write(data)
            return path

        lfs = folder("lfs", config__json=b"{}", tokenizer__json=b"{}", model__safetensors=pointer)
        bins = folder("bin", config__json=b"{}", pytorch_model__bin=pointer)
        lora = folder("lora", adapter_config__json=b"{}", adapter_model__safetensors=b"")
        some = folder("some", **{"a-Q4_K_M__gguf": b"GGUF"})
        one = folder("one", x__gguf=pointer) + "/x.gguf"
        for rc, line, *args in (
            (1, "model.safetensors is a Git LFS pointer.*`git lfs pull`", "--model", lfs),
            (1, "x.gguf is a Git LFS pointer", one),
            (1, "pytorch_model.bin only.*safetensors", "--model", bins),
            (1, "LoRA adapter.*serve its base model, with --lora", "--model", lora),
            (1, "choose one of its GGUF files: a-Q4_K_M.gguf", "--model", some),
            (1, "No such file.*use --model hf:Qwen/Qwen3-VL-2B-Instruct", "--model",
             "Qwen/Qwen3-VL-2B-Instruct"),
            (1, "No such file or directory$", "./nowhere"),
            (2, "unknown flag '-m': here it is --model", "-m", "x"),
            (2, "unknown flag '-c': here it is --max-context", "-c", "4096"),
            (2, "unknown flag '--ctx-size': here it is --max-context", "--ctx-size", "4096"),
            (2, "unknown flag '-ngl': here it is --backend cuda", "-ngl", "99"),
            (2, "unknown flag '-hf': here it is kvasir serve ORG/NAME", "-hf", "org/x"),
            (2, "a model is a directory, a GGUF file or ORG/NAME", "word"),
            (2, "unexpected argument 'word'", "org/a", "word"),
        ):
            got, _, err = home.run("serve", *args)
            check.true(" ".join(args[:2]), got == rc and re.search(line, err) and "\n" not in err, (got, err))


if __name__ == "__main__":
    args = arguments(__doc__)
    BINARY, DEMO = args.binary, args.demo
    for test in (test_pull, test_weights, test_faults, test_access, test_resume, test_side_by_side,
                 test_damaged_cache, test_no_model, test_progress, test_huggingface_hub, test_serve,
                 test_llama_swap, test_lines):
        if not args.only or test.__name__ in args.only:
            check.run(test)
    check.end()
