"""LoRA adapters over HTTP: python test_lora.py [--binary B] [--demo DIR]
Each API picks one by its name; the base model keeps its bits whatever runs beside it; loading, replacing and
unloading under load; caches by content; hostile adapters."""
import concurrent.futures
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import lora_adapter as lora  # noqa: E402
from harness import ENDLESS, Checks, Server, arguments, data_url, drawing, endless, wait_until  # noqa: E402

check = Checks()
CHAT = "/v1/chat/completions"
ALL = tuple(lora.MODULES)
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


def chat(model=None, content="Tell me a story about the sea.", **fields):
    named = {"model": model} if model else {}
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 12, "temperature": 0,
            "logprobs": True, "top_logprobs": 3, **named, **fields}


def image(seed=0):
    return [{"type": "image_url", "image_url": {"url": data_url(drawing(seed))}},
            {"type": "text", "text": "What?"}]


def bits(answer):
    """What an answer says, without its name, its time and what was cached."""
    c = answer["choices"][0]
    return c["message"]["content"], json.dumps(c["logprobs"])


def ask(s, *args, **fields):
    return bits(s.ok(CHAT, chat(*args, **fields)))


def cached(s, *args, **fields):
    return s.ok(CHAT, chat(*args, **fields))["usage"]["prompt_tokens_details"]["cached_tokens"]


def names(s):
    return [m["id"] for m in json.loads(s.request("GET", "/v1/models")[2])["data"]]


def load(s, name, path, headers=None, **more):
    status, _, data = s.request("POST", LOAD, {"lora_name": name, "lora_path": path, **more}, headers)
    return status, data.decode()


def unload(s, name):
    status, _, data = s.request("POST", UNLOAD, {"lora_name": name})
    return status, data.decode()


def test_listed(s):
    listed = {m["id"]: m for m in json.loads(s.request("GET", "/v1/models")[2])["data"]}
    check.equal("names", list(listed), ["demo", "one", "two", "twin", "tower"])
    check.equal("parents", [m["parent"] for m in listed.values()], [None] + 4 * ["demo"])
    check.equal("root", listed["one"]["root"], DIR + "/one")
    check.equal("by name", json.loads(s.request("GET", "/v1/models/two")[2])["parent"], "demo")
    tags = json.loads(s.request("GET", "/api/tags")[2])["models"]
    check.equal("tags", [(t["name"], t["details"]["parent_model"]) for t in tags],
                [("demo", "")] + [(n, "demo") for n in list(listed)[1:]])
    check.equal("digests", len({t["digest"] for t in tags}), 4)  # one and twin are the same
    status, _, data = s.request("GET", "/v1/models", headers={"anthropic-version": "2023-06-01"})
    check.equal("Anthropic's list", json.loads(data)["last_id"], "tower")
    status, answer = s.post(CHAT, chat("three"))
    check.true("unknown", status == 404 and answer["error"]["code"] == "model_not_found" and
               "`demo`, `one`, `two`, `twin`, `tower`" in answer["error"]["message"], answer)


DIALECTS = {  # path: the body but the model, where the text is
    "/v1/completions": ({"prompt": "The sea", "max_tokens": 8, "temperature": 0},
                        lambda a: a["choices"][0]["text"]),
    "/v1/responses": ({"input": "The sea", "max_output_tokens": 16, "temperature": 0},
                      lambda a: a["output"][-1]["content"][0]["text"]),
    "/v1/messages": ({"messages": [{"role": "user", "content": "The sea"}], "max_tokens": 8,
                      "temperature": 0}, lambda a: a["content"][0]["text"]),
    "/api/chat": ({"messages": [{"role": "user", "content": "The sea"}], "stream": False,
                   "options": {"num_predict": 8, "temperature": 0}}, lambda a: a["message"]["content"]),
    "/api/generate": ({"prompt": "The sea", "stream": False, "options": {"num_predict": 8, "temperature": 0}},
                      lambda a: a["response"]),
    "/v1/embeddings": ({"input": "The sea"}, lambda a: a["data"][0]["embedding"]),
    "/api/embed": ({"input": "The sea"}, lambda a: a["embeddings"][0]),
}


def test_dialects(s):
    for path, (body, text) in DIALECTS.items():
        got = {m: s.ok(path, {**body, "model": m}) for m in ("demo", "one", "twin", "two")}
        check.equal(f"{path}: model", [a["model"] for a in got.values()], list(got))
        said = {m: text(a) for m, a in got.items()}
        check.true(f"{path}: differ", said["demo"] != said["one"] != said["two"] != said["demo"], said)
        check.equal(f"{path}: one content", said["twin"], said["one"])
        check.equal(f"{path}: no model is the base", text(s.ok(path, body)), said["demo"])
    tagged = s.ok("/api/generate", {**DIALECTS["/api/generate"][0], "model": "one:latest"})
    check.equal("Ollama's tag", tagged["model"], "one")
    check.equal("tokenize", s.ok("/tokenize", {"model": "one", "prompt": "The sea"}),
                s.ok("/tokenize", {"prompt": "The sea"}))
    check.equal("show", s.ok("/api/show", {"model": "two"})["details"]["parent_model"], "demo")
    prints = [s.ok(CHAT, chat(m))["system_fingerprint"] for m in ("demo", "one", "twin", "two")]
    check.true("fingerprints", prints[1] == prints[2] and len(set(prints)) == 3 and
               all(p.startswith(prints[0]) for p in prints), prints)
    stored = s.ok("/v1/responses", {"model": "one", "input": "The sea", "max_output_tokens": 16})
    more = {"previous_response_id": stored["id"], "input": "Go on.", "max_output_tokens": 16}
    check.equal("goes on with another", s.ok("/v1/responses", {**more, "model": "two"})["model"], "two")


def test_base_bits(s):
    """In one batch with all adapters, text and images: what a server without adapters says."""
    prompts = [(f"Story {i}?", {}) if i % 2 else (image(i), {"max_tokens": 6}) for i in range(6)]
    with plain() as alone:
        want = [ask(alone, None, p, **more) for p, more in prompts]
    models = ["demo", "one", "two", "tower"]
    jobs = [(m, *p) for p in prompts for m in models]
    one_by_one = {i: ask(s, m, p, cache_salt=f"solo {i}", **more) for i, (m, p, more) in enumerate(jobs)}
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        together = list(pool.map(lambda j: ask(s, j[0], j[1], **j[2]), jobs))
    check.equal("the base", [a for (m, *_), a in zip(jobs, together) if m == "demo"], want)
    check.equal("adapters as alone", together, [one_by_one[i] for i in range(len(jobs))])
    check.equal("all differ", len(set(together)), len(jobs))


def plain(*flags):
    class Plain:
        def __enter__(self):
            self.s = Server(BINARY, MODEL, *flags)
            return self.s

        def __exit__(self, *_):
            self.s.stop()
    return Plain()


def test_caches(s):
    """By content, not by name; images by adapter only where it touches them."""
    text = "A prompt that is as long as several blocks of the cache, " * 4
    few = 16  # the beginning of every chat
    check.true("first", cached(s, "one", text) < few)
    check.true("again", cached(s, "one", text) > 32)
    check.true("its twin", cached(s, "twin", text) > 32)
    check.true("another", cached(s, "two", text) < few)
    check.true("the base", cached(s, "demo", text) < 16)
    check.equal("loaded again", load(s, "later", "one")[0], 200)
    check.true("by another name", cached(s, "later", text) > 32)
    check.equal("replaced", load(s, "later", "other", load_inplace=True)[0], 200)
    check.true("new content", cached(s, "later", text) < few)
    check.equal("unloaded", unload(s, "later")[0], 200)

    def encoded(model):
        before = s.metric("kvasir:images_encoded_total")
        s.ok(CHAT, chat(model, image(77)))
        return s.metric("kvasir:images_encoded_total") - before
    check.equal("encodes", [encoded(m) for m in ("demo", "one", "two", "tower", "tower")], [1, 0, 0, 1, 0])


def test_load(s):
    for what, status, text, args, more in (
        ("taken", 400, "The lora adapter 'one' has already been loaded", ("one", "two"), {}),
        ("the base's", 400, "base model", ("demo", "one"), {}),
        ("no name", 400, "Both 'lora_name' and 'lora_path' must be provided.", ("", "one"), {}),
        ("comma", 400, "no name", ("a,b", "one"), {}),
        ("NUL", 400, "must be provided", ("a\0b", "one"), {}),
        ("nowhere", 404, "No adapter found", ("new", "nowhere"), {}),
        ("outside", 404, "No adapter found", ("new", "../outside"), {}),
        ("outside, absolute", 404, "No adapter found", ("new", OUTSIDE), {}),
        ("by a link", 404, "No adapter found", ("new", "link"), {}),
        ("the hub", 404, "No adapter found", ("new", "hf:org/name"), {}),
        ("wrong type", 400, "load_inplace", ("new", "one"), {"load_inplace": "x"}),
    ):
        got = load(s, *args, **more)
        check.true(what, got[0] == status and text in got[1], got)
    check.equal("unknown", unload(s, "new")[0], 404)
    check.equal("none of it", names(s), ["demo", "one", "two", "twin", "tower"])
    done = "Success: LoRA adapter 'new' {} successfully."
    check.equal("added", load(s, "new", DIR + "/two"), (200, done.format("added")))
    check.equal("it answers", ask(s, "new"), ask(s, "two"))
    check.equal("sixth", load(s, "sixth", "one")[0], 200)
    status, text = load(s, "seventh", "one")
    check.true("--max-loras", status == 400 and "--max-loras" in text, text)
    check.equal("in place", load(s, "new", "one", load_inplace=True)[0], 200)
    check.equal("it is another", ask(s, "new"), ask(s, "one"))
    check.equal("removed", unload(s, "new"), (200, done.format("removed")))
    status = s.request("POST", "/unload_lora_adapter", {"lora_name": "sixth"})[0]
    check.equal("without /v1", status, 200)
    check.equal("gone", s.post(CHAT, chat("new"))[0], 404)


def gauge(s):
    line = next(x for x in s.metrics() if x.startswith("vllm:lora_requests_info"))
    return dict(part.split("=", 1) for part in line[line.index("{") + 1:-1].split('",'))


def test_under_load():
    """Unloaded and replaced while requests run with it: they finish with what they began."""
    with plain("--lora-dir", DIR, "--max-loras", "3", "--max-sequences", "4") as s:
        load(s, "a", "two")
        want = ask(s, "a", max_tokens=200)
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            running = [pool.submit(ask, s, "a", max_tokens=200, cache_salt=str(i)) for i in range(8)]
            wait_until(lambda: gauge(s)["running_lora_adapters"] == '"a')
            check.equal("gauge", gauge(s)["max_lora"], '"3')
            check.equal("replaced", load(s, "a", "one", load_inplace=True)[0], 200)
            later = [pool.submit(ask, s, "a", max_tokens=200, cache_salt=str(i)) for i in range(4)]
            for i in range(20):
                load(s, f"churn {i % 2}", ("one", "two", "other")[i % 3], load_inplace=True)
            check.equal("unloaded", unload(s, "a")[0], 200)
            check.equal("those before", {f.result() for f in running}, {want})
            check.equal("those after", len({f.result() for f in later}), 1)
        check.true("another", later[0].result() != want)
        check.equal("no more", s.post(CHAT, chat("a"))[0], 404)


def test_ends_with_its_client():
    """The adapter is unloaded while an endless request runs; the client goes; then the server ends."""
    s = Server(BINARY, ENDLESS_MODEL, "--lora", f"one={DIR}/one", "--lora-dir", DIR)
    c = s.connect()
    c.request("POST", CHAT, json.dumps(chat("one", max_tokens=ENDLESS, stream=True, ignore_eos=True)),
              {"Content-Type": "application/json"})
    answer = c.getresponse()
    answer.read(2000)
    check.equal("unloaded", unload(s, "one")[0], 200)
    check.true("it goes on", len(answer.read(2000)) == 2000)
    c.close()
    check.true("it ends", wait_until(lambda: s.held()[1] == 0))
    check.equal("the base", s.post(CHAT, chat("demo"))[0], 200)
    s.stop()


def test_keys():
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as f:
        f.write("admin priority\nuser\n")
        f.flush()
        with plain("--lora-dir", DIR, "--api-key-file", f.name) as s:
            for key, status in (("user", 403), ("admin", 200), ("nobody", 401)):
                got = load(s, "a", "one", {"Authorization": f"Bearer {key}"})
                check.equal(key, got[0], status)
    with plain() as s:
        check.equal("no --lora-dir", load(s, "a", DIR + "/one")[0], 404)


def test_receipts(s):
    """A receipt binds the adapter's content."""
    load(s, "later", "two")
    receipt = s.ok(CHAT, chat("later", receipt=True))["receipt"]
    both = {"receipt": receipt, "request": chat("later", receipt=True)}
    check.equal("match", s.ok("/v1/receipts/verify", both)["verdict"], "match")
    load(s, "later", "one", load_inplace=True)
    got = s.ok("/v1/receipts/verify", both)
    check.true("other content", got["verdict"] == "unverifiable" and "adapter" in str(got), got)
    unload(s, "later")


def test_disk(s):
    """A restart finds an adapter's prefixes by its content."""
    text = "A prompt that is as long as several blocks of the cache, " * 4
    with tempfile.TemporaryDirectory() as cache:
        flags = ("--cache-dir", cache, "--cache-load", "always")
        with plain("--lora", f"a={DIR}/two", *flags) as s:
            want = ask(s, "a", text)
        with plain("--lora", f"b={DIR}/two", "--lora", f"a={DIR}/one", *flags) as s:
            check.equal("other content", cached(s, "a", text), 0)
            check.true("the base", cached(s, "demo", text) < 16)
            check.true("another name", cached(s, "b", text) > 32)
            check.equal("the same bits", ask(s, "b", text), want)


# ---- hostile adapters ----

def hostile():
    """name -> a function that makes it in a directory"""
    good, names_ = lora.tensors(), sorted(lora.tensors())
    a, b = names_[0], names_[1]
    nan, inf = float("nan"), float("inf")

    def with_(**changed):
        return {**good, **{k: v for k, v in changed.items() if v is not None}}

    def weights(t):
        return lambda d: lora.make(d, t)

    def conf(**c):
        return lambda d: lora.make(d, None, lora.config(**c))

    def raw(data):
        def make(d):
            lora.make(d)
            with open(d + "/adapter_model.safetensors", "wb") as f:
                f.write(data)
        return make

    def text(data):
        def make(d):
            lora.make(d)
            with open(d + "/adapter_config.json", "w") as f:
                f.write(data)
        return make

    def fifo(name):
        def make(d):
            lora.make(d)
            os.unlink(f"{d}/{name}")
            os.mkfifo(f"{d}/{name}")
        return make

    def without(name):
        def make(d):
            lora.make(d)
            os.unlink(f"{d}/{name}")
        return make
    shape, values = good[a]
    return {
        "rank 0": conf(rank=0), "rank -1": conf(rank=-1), "rank 1e9": conf(rank=10**9),
        "rank of text": conf(rank="x"),
        "rank of another": conf(rank=5), "DoRA": conf(use_dora=True), "bias": conf(bias="all"),
        "modules_to_save": conf(modules_to_save=["lm_head"]), "not LoRA": conf(peft_type="IA3"),
        "alpha NaN": text('{"peft_type":"LORA","r":4,"lora_alpha":1e999,"target_modules":["q_proj"]}'),
        "tensor of rank 0": weights(with_(**{a: ((0, 160), []), b: ((128, 0), [])})),
        "too narrow": weights(with_(**{a: ((4, 8), [0.0] * 32)})),
        "one dimension": weights(with_(**{a: ((len(values),), values)})),
        "transposed": weights(with_(**{a: (shape[::-1], values)})),
        "NaN": weights(with_(**{a: (shape, [nan] + values[1:])})),
        "infinity": weights(with_(**{b: (good[b][0], [inf] + good[b][1][1:])})),
        "without its B": weights({k: v for k, v in good.items() if k != b}),
        "without its A": weights({k: v for k, v in good.items() if k != a}),
        "another base": weights({k.replace("layers.5", "layers.77"): v for k, v in good.items()}),
        "unknown module": weights({**good, a.replace("q_proj", "x_proj"): good[a]}),
        "nothing": weights({}),
        "huge header": raw(struct.pack("<Q", 1 << 62) + b"{}"), "short": raw(b"\0\0"),
        "no JSON": raw(struct.pack("<Q", 2) + b"xx"),
        "config no JSON": text("{"), "config a list": text("[]"), "config deep": text("[" * 100000),
        "a FIFO": fifo("adapter_model.safetensors"), "a FIFO as config": fifo("adapter_config.json"),
        "no config": without("adapter_config.json"), "no weights": without("adapter_model.safetensors"),
    }


def test_hostile(s):
    """One clear line each; nothing else is touched."""
    want, before = ask(s, "one"), s.metric("process_open_fds")
    for what, make in hostile().items():
        d = os.path.join(DIR, "hostile")
        make(d)
        status, answer = load(s, "bad", "hostile")
        error = json.loads(answer)["error"]["message"] if status != 200 else answer
        fine = status in (400, 404) and 20 < len(error) < 500 and "\n" not in error
        check.true(what, fine, (status, error))
        if VERBOSE:
            print(f"{what}: {error.replace(DIR, '')}")
        shutil.rmtree(d)
    check.equal("nothing is loaded", names(s), ["demo", "one", "two", "twin", "tower"])
    check.equal("others answer as before", ask(s, "one"), want)
    check.true("files", s.metric("process_open_fds") <= before + 2)


def test_inspect():
    run = [BINARY, "inspect", MODEL, "--lora"]
    said = subprocess.run([*run, f"a={DIR}/two", "--lora", DIR + "/tower"], capture_output=True, text=True)
    lines = [x for x in said.stdout.splitlines() if x.startswith("lora ")]
    check.true("two", said.returncode == 0 and re.fullmatch(
        r"lora       a: rank 3, scale 4.6188, 24 products \((?=.*q_proj)(?=.*up_proj).*\), \d.\d MiB, "
        r"of demo", lines[0]), said)
    check.true("tower", "tower: rank 4, scale 2," in lines[1] and lines[1].endswith(", changes images"),
               lines)
    said = subprocess.run([*run, OUTSIDE + "/nowhere"], capture_output=True, text=True)
    fine = said.returncode == 1 and "nowhere" in said.stderr and said.stderr.count("\n") == 1
    check.true("refused", fine, said)


def test_start():
    """What --lora refuses, at the start."""
    for flags, text in ((["--lora", f"a={DIR}/nowhere"], "--lora: "),
                        (["--lora", f"demo={DIR}/one"], "base model"),
                        (["--lora", f"a={DIR}/one", "--lora", f"a={DIR}/two"], "already been loaded"),
                        (["--lora", f"a={DIR}/one,b={DIR}/two", "--max-loras", "1"], "--max-loras"),
                        (["--lora-dir", DIR + "/nowhere"], "--lora-dir")):
        with tempfile.TemporaryFile("w+") as log:
            s = Server(BINARY, MODEL, *flags, wait=False, log=log)
            check.true(f"{flags}: ends", s.process.wait(60) in (1, 2))
            log.seek(0)
            said = log.read()
            check.true(f"{flags}", text in said and said.count("\n") == 1, said)
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as f:
        f.write(f"lora = a={DIR}/one\nlora = b={DIR}/two\n")
        f.flush()
        with plain("--config", f.name) as s:
            check.equal("a config file", names(s), ["demo", "a", "b"])
        with plain("--config", f.name, "--lora", f"c={DIR}/one") as s:
            check.equal("and a flag", names(s), ["demo", "a", "b", "c"])


if __name__ == "__main__":
    args = arguments(__doc__, verbose=0)
    BINARY, MODEL, VERBOSE = args.binary, args.demo, args.verbose
    TOP = os.path.realpath(tempfile.mkdtemp(prefix="kvasir-lora-"))
    DIR, OUTSIDE = TOP + "/adapters", TOP + "/outside"
    ENDLESS_MODEL = endless(MODEL)
    try:
        lora.make(DIR + "/one")
        lora.make(DIR + "/two", rank=3, seed=2, modules=ALL, conf=lora.config(3, ALL, use_rslora=True))
        lora.make(DIR + "/other", seed=3)
        tower = {**lora.tensors(seed=4), **lora.tensors(("q_proj", "fc1"), seed=5, tower=True)}
        lora.make(DIR + "/tower", tower, lora.config(4, ("q_proj", "v_proj", "fc1")))
        shutil.copytree(DIR + "/one", DIR + "/twin")
        lora.make(OUTSIDE)
        os.symlink(OUTSIDE, DIR + "/link")
        tests = [v for k, v in list(globals().items())
                 if k.startswith("test_") and (not args.only or k in args.only)]
        flags = [x for n in ("one", "two", "twin", "tower") for x in ("--lora", f"{n}={DIR}/{n}")]
        server = Server(BINARY, MODEL, *flags, "--lora-dir", DIR, "--max-loras", "6")
        for test in tests:
            check.run(test, *([server] if test.__code__.co_argcount else []))
        server.stop()
    finally:
        shutil.rmtree(TOP)
    check.end()
