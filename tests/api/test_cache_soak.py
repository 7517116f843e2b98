"""The disk tier under restarts: python3 test_cache_soak.py [--binary B] [--conversations N] [--restarts N]
[--seed S] [model ...]
Random conversations with images, several at a time, in an arena that always evicts; the server restarts again
and again, every second time by kill -9 in the middle. Each response equals that of a server without a cache,
log-probs included; no request fails but those that were killed; the directory never takes more than
--cache-disk. Models are folders of tests/golden."""
import json
import os
import random
import shutil
import sys
import tempfile
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
args = harness.arguments(__doc__, conversations=24, restarts=3, seed=1)
check = harness.Checks()
MODELS = args.only or ["gemma3/vision_f32", "qwen/qwen2_5_vl_f32", "qwen/qwen3_5_f32"]
DISK = 4 << 20
CLIENTS = 4
WORDS = "cat dog red blue seven river stone light under over walk sing green table night paper cold".split()


def sentence(rng):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 14)))


def user_turn(rng, image=False):
    if not image and rng.random() < 0.6:
        return {"role": "user", "content": sentence(rng)}
    image = harness.data_url(harness.drawing(rng.randrange(4), rng.choice((28, 56))))
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": image}},
                                        {"type": "text", "text": sentence(rng)}]}


class Soak:
    def __init__(self, model):
        self.model = os.path.join(ROOT, "tests/golden", model)
        self.dir = tempfile.mkdtemp(prefix="kvasir-soak-")
        self.cold = harness.Server(args.binary, self.model, "--prefix-cache", "off")
        self.known = {}
        self.lock = threading.Lock()
        self.server, self.killed, self.left = None, threading.Event(), []
        self.loads = self.loaded_tokens = self.evicted = self.lost = self.asked = 0

    def serve(self):
        self.server = harness.Server(
            args.binary, self.model, "--cache-dir", self.dir, "--cache-disk", str(DISK), "--kv-memory", "1M",
            "--max-context", "900", "--cache-load", "always")
        self.killed.clear()

    @staticmethod
    def outcome(response):
        choice = response["choices"][0]
        return choice["message"]["content"], choice["logprobs"], choice["finish_reason"]

    def cold_outcome(self, body):
        key = json.dumps(body)
        if key not in self.known:
            value = self.outcome(self.cold.ok("/v1/chat/completions", body))
            with self.lock:
                self.known[key] = value
        return self.known[key]

    def converse(self, seed):
        """All turns of one conversation; False: the server was killed."""
        rng = random.Random(seed)
        system = rng.randrange(6)
        turns = [{"role": "user", "content": f"You are number {system}. " + " ".join(WORDS)},
                 {"role": "assistant", "content": "Yes."}]
        alone = "paligemma" in self.model  # it takes one user message, with an image
        turns = [] if alone else turns
        for _ in range(1 if alone else rng.randrange(1, 4)):
            turns.append(user_turn(rng, alone))
            body = {"messages": list(turns), "max_tokens": rng.randrange(1, 12), "logprobs": True,
                    "top_logprobs": 2, "seed": seed, "temperature": rng.choice((0, 1)),
                    "return_cache_info": True}
            want = self.cold_outcome(body)
            try:
                status, got = self.server.post("/v1/chat/completions", body)
            except (OSError, ValueError, harness.http.client.HTTPException):
                if not self.killed.is_set():
                    self.lost += 1
                return False
            self.asked += 1
            if not check.equal(f"{self.model} conversation {seed}: status", status, 200):
                return True
            same = self.outcome(got) == want
            if not check.true("equals a cold one", same, f"{seed}: {got.get('cache_info')}"):
                print(json.dumps(body)[:300], self.outcome(got), want)
            turns.append({"role": "assistant", "content": want[0] or "."})
        return True

    def client(self):
        while not self.killed.is_set():
            with self.lock:
                if not self.left or self.goal <= 0:
                    return
                self.goal -= 1
                seed = self.left.pop()
            ended = False
            try:
                ended = self.converse(seed)
            except AssertionError as fault:
                ended = check.true(f"conversation {seed}", False, str(fault)) or True
            if not ended:
                with self.lock:
                    self.left.append(seed)
                return

    def counted(self):
        self.loads += self.server.metric("kvasir:cache_tier_loads_total")
        self.loaded_tokens += self.server.metric("kvasir:cache_tier_loaded_tokens_total")
        self.evicted += self.server.metric("kvasir:cache_tier_written_blocks_total")

    def size(self):
        total = 0
        for folder, _, names in os.walk(os.path.join(self.dir, "kvasir-cache")):
            for path in [folder] + [os.path.join(folder, n) for n in names]:
                try:
                    total += os.stat(path).st_blocks * 512
                except FileNotFoundError:
                    pass
        return total

    def life(self, number, rng):
        """From one start of the server to its end."""
        self.serve()
        self.goal = max(1, args.conversations // args.restarts)
        threads = [threading.Thread(target=self.client) for _ in range(CLIENTS)]
        for t in threads:
            t.start()
        if number % 2:
            self.killed.wait(0.05 + rng.random() * 0.6)
            self.counted()
            self.killed.set()
            self.server.process.kill()
            self.server.process.wait()
        for t in threads:
            t.join()
        if not number % 2:
            self.counted()
            self.server.stop()
        check.true("the directory keeps its size", self.size() <= DISK, self.size())

    def run(self):
        rng = random.Random(args.seed)
        some = args.conversations // 2 + 1  # others are repeated
        self.left = [rng.randrange(some) for _ in range(args.conversations)]
        try:
            for number in range(args.restarts):
                self.life(number, rng)
            self.goal = len(self.left)  # those that were killed
            self.serve()
            self.client()
            self.counted()
            self.server.stop()
        finally:
            self.cold.stop()
            shutil.rmtree(self.dir)
        check.equal("no request was lost", self.lost, 0)
        check.equal("all conversations ended", self.left, [])
        counts = (f"{self.loads:.0f} loads of {self.loaded_tokens:.0f} tokens, "
                  f"{self.evicted:.0f} blocks written")
        check.true("prefixes were loaded", self.loads > 0, counts)
        model = os.path.relpath(self.model, ROOT)
        print(f"{model}: {self.asked} requests, {args.restarts + 1} starts, {counts}", flush=True)


for name in MODELS:
    check.run(Soak(name).run)
check.end()
