"""Memory returns: random requests with fresh images, in an arena and a feature cache that are small, so that everything is evicted many times.
Afterwards all blocks in use are cached ones, nothing runs or waits, and the process has stopped growing."""
import json
import random
import threading

import harness

args = harness.arguments(__doc__, requests=2000, seed=1)
check = harness.Checks()
GROWTH_MAX = 6 << 20
WORDS = "red blue green circle square what where how many are there is it the same picture go on and then".split()


def body(rng, number):
    messages = []
    for turn in range(rng.randrange(1, 4)):
        text = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 40)))
        content = [{"type": "text", "text": text}]
        if rng.random() < 0.4:  # never seen before
            content.insert(0, {"type": "image_url", "image_url": {"url": harness.data_url(harness.png(
                8, 8, lambda x, y, k=number * 4 + turn: ((k + 3 * x) % 256, (k // 256 + 5 * y) % 256, (x * y + k) % 256)))}})
        messages += [{"role": "user", "content": content}, {"role": "assistant", "content": rng.choice(WORDS)}]
    request = {"messages": messages[:-1], "max_tokens": rng.randrange(1, 16), "temperature": rng.choice((0, 1)), "seed": number}
    if rng.random() < 0.1:
        request["cache_salt"] = f"tenant {rng.randrange(20)}"
    if rng.random() < 0.1:
        request["n"] = 3
    return request


def resident(server):
    with open(f"/proc/{server.process.pid}/statm") as f:
        return int(f.read().split()[1]) * 4096


def run(server, first, count):
    numbers, lock = iter(range(first, first + count)), threading.Lock()

    def client():
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            rng = random.Random(f"{args.seed}:{number}")
            server.ok("/v1/chat/completions", body(rng, number), timeout=300)

    threads = [threading.Thread(target=check.run, args=(client,)) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def test_memory_returns():
    server = harness.Server(args.binary, args.demo, "--kv-memory", "24M", "--encoder-cache-memory", "1M", "--max-images", "8")
    sizes, parts, last = [], 8, 6
    # The first parts fill caches and the allocator's pools. How many it takes depends on how the threads meet, so what still grows is given more
    # of them; what leaks grows on.
    while len(sizes) < parts or (sizes[-1] - sizes[-1 - last] >= GROWTH_MAX and len(sizes) < 3 * parts):
        run(server, len(sizes) * (args.requests // parts), args.requests // parts)
        check.true("nothing is held", harness.wait_until(lambda: server.held() == (0, 0, 0) and server.metric("kvasir:requests_in_flight") == 0), server.held())
        sizes.append(resident(server))
    m = server.metrics()
    total = lambda name: sum(v for k, v in m.items() if k.split("{")[0] == name)
    check.equal("nothing runs or waits", total("vllm:num_requests_running") + total("vllm:num_requests_waiting"), 0)
    check.true("blocks in use are blocks cached", total("kvasir:kv_blocks_cached") > 0)
    check.true("the cache had to evict", total("kvasir:prefix_cache_evicted_nodes_total") > 50 or total("kvasir:prefix_cache_evictions_total") > 50,
               [k for k in m if "evict" in k])
    grown = sizes[-1] - sizes[-1 - last]
    print("resident MiB after each part: " + ", ".join(f"{s / 2**20:.1f}" for s in sizes))
    check.true("the process stopped growing", grown < GROWTH_MAX, f"{grown} bytes more in the last {last} parts of {len(sizes)}")
    server.stop()


def test_waiting():
    """What a waiting request has no more use for is gone: 24 bodies of 600,000 numbers would take some 800 MiB as parsed JSON."""
    server = harness.Server(args.binary, harness.endless(args.demo), "--max-sequences", "1")
    body = json.dumps({"prompt": "red", "max_tokens": 1, "unknown": [5] * 300_000, "request_id": [5] * 300_000, "rid": "x" * 100_000, "stop": ["green"]}).encode()
    first = server.connect()
    first.request("POST", "/v1/completions", json.dumps({"prompt": "blue", "max_tokens": harness.ENDLESS, "ignore_eos": True}), {"Content-Type": "application/json"})
    check.true("one runs", harness.wait_until(lambda: server.held()[1] == 1))
    before = resident(server)
    threads = [threading.Thread(target=check.run, args=(lambda: check.equal("an answer", server.request("POST", "/v1/completions", body, timeout=300)[0], 200),)) for _ in range(24)]
    for t in threads:
        t.start()
    check.true("all wait", harness.wait_until(lambda: server.held()[1:] == (1, 24)), server.held())
    grown = resident(server) - before
    check.true("waiting requests are small", grown < 200 << 20, f"{grown >> 20} MiB for 24")
    print(f"resident MiB for 24 waiting requests with large bodies: {grown >> 20}")
    first.close()
    for t in threads:
        t.join()
    server.stop()


def test_large_bodies():
    """Parsed bodies of many values, of good requests and of refused ones, are given back: each worker's takes some 100 MiB."""
    server = harness.Server(args.binary, args.demo)
    values = b",".join([b"{}"] * 500_000)
    good, refused = b'{"prompt":"red","max_tokens":1,"unknown":[%s]}' % values, b'{"prompt":"red","max_tokens":1,"model":"none","unknown":[%s]}' % values
    before = resident(server)
    for path, body, status in (("/v1/completions", good, 200), ("/v1/completions", refused, 404), ("/tokenize", good, 200)):
        threads = [threading.Thread(target=check.run, args=(lambda: check.equal("status", server.request("POST", path, body, timeout=300)[0], status),)) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        grown = resident(server) - before
        check.true(f"{path} {status}: the memory is given back", grown < 70 << 20, f"{grown >> 20} MiB")
    server.stop()


for function in (test_memory_returns, test_waiting, test_large_bodies):
    if not args.only or function.__name__ in args.only:
        check.run(function)
check.end()
