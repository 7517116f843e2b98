"""Receipts: python3 test_receipts.py [--binary B] [--count N] [--seed S]
What a response comes from, in every API, recomputed from the receipt alone or with the request; with one bit
of it flipped, none is right. --count: so many receipts of random requests instead, and as many flipped."""

import base64
import concurrent.futures
import copy
import glob
import hashlib
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Checks, Server, arguments, data_url, drawing, parse_stream  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GOLDEN = os.path.join(ROOT, "tests", "golden")
DEMO = os.path.join(ROOT, "models", "demo")
VERIFY = "/v1/receipts/verify"
CHAT, TEXT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
OLLAMA, GENERATE = "/api/chat", "/api/generate"
check = Checks()
args = arguments(__doc__, count=0, seed=1)
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def turn(text="Say three words about rivers."):
    return [{"role": "user", "content": text}]


def with_image(text, seed):
    part = {"type": "image_url", "image_url": {"url": data_url(drawing(seed))}}
    return [{"role": "user", "content": [part, {"type": "text", "text": text}]}]


def ends_of(value):
    """The receipt of a response, or of one of its events."""
    if isinstance(value, list):
        found = [ends_of(v) for v in value]
        return next((f for f in reversed(found) if f), None)
    if not isinstance(value, dict):
        return None
    return value.get("receipt") or ends_of(value.get("response"))


def events(text):
    out = []
    for line in text.splitlines():
        line = line.removeprefix("data: ")
        if line.startswith("{"):
            out.append(json.loads(line))
    return out


def made(s, path, body, strict=True):
    """The receipt of a request."""
    if not body.get("stream"):
        status, answer = s.post(path, body)
    else:
        status, _, data = s.request("POST", path, body)
        answer = events(data if isinstance(data, str) else data.decode())
    if status != 200 and strict:
        check.true(f"{path} answers", False, f"{status} {str(answer)[:300]} to {str(body)[:300]}")
    return ends_of(answer) if status == 200 else None


def verdict(s, receipt, request=None):
    body = {"receipt": receipt}
    if request is not None:
        body["request"] = request
    status, answer = s.post(VERIFY, body)
    return answer if status == 200 else {"verdict": f"HTTP {status}", "reason": answer}


REQUESTS = [
    (CHAT, {"messages": turn(), "max_tokens": 12}),
    (CHAT, {"messages": turn(), "max_tokens": 12, "n": 3, "temperature": 1.3, "stream": True}),
    (CHAT, {"messages": turn(), "max_tokens": 60, "temperature": 0.9, "top_p": 0.9, "stop": ["e", "th"]}),
    (CHAT, {"messages": turn(), "max_tokens": 20, "response_format": {
        "type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER}}}),
    (CHAT, {"messages": turn(), "max_tokens": 24, "min_tokens": 20, "temperature": 1, "top_k": 40,
            "logit_bias": {"300": 3}, "presence_penalty": 0.5, "repetition_penalty": 1.2, "logprobs": True,
            "top_logprobs": 3, "stream": True, "stream_options": {"include_usage": True}}),
    (TEXT, {"prompt": ["A river", [5, 6, 7, 8]], "max_tokens": 20, "temperature": 0.8, "seed": 5, "n": 2}),
    (TEXT, {"prompt": "one two one two one two", "max_tokens": 40, "temperature": 0, "echo": True,
            "logprobs": 1, "stream": True}),
    (TEXT, {"prompt": "yes or no:", "structured_outputs": {"regex": "(yes|no)( yes| no){4,9}"},
            "max_tokens": 40}),
    (MESSAGES, {"messages": turn(), "max_tokens": 16, "temperature": 0.7}),
    (MESSAGES, {"messages": turn(), "max_tokens": 16, "stream": True, "stop_sequences": ["a"]}),
    (RESPONSES, {"input": "A question about hills?", "max_output_tokens": 16}),
    (RESPONSES, {"input": "A question about hills?", "max_output_tokens": 16, "stream": True}),
    (OLLAMA, {"messages": turn(), "options": {"num_predict": 14, "temperature": 0.8}, "stream": True}),
    (GENERATE, {"prompt": "Rivers", "options": {"num_predict": 14}, "stream": False}),
]


def test_all(s, images):
    """Every API, streaming or not, short and full."""
    receipts = []
    more = [(CHAT, {"messages": with_image("What is it?", k), "max_tokens": 9}) for k in range(2 * images)]
    for i, (path, body) in enumerate(REQUESTS + more):
        for kind in (True, "full"):
            request = {**body, "receipt": kind}
            receipt = made(s, path, request)
            if not receipt:
                check.true(f"{path} {i} has a receipt", False)
                continue
            answer = verdict(s, receipt, None if kind == "full" else request)
            check.equal(f"{path} {i} {kind}", answer.get("verdict"), "match")
            if answer.get("verdict") != "match":
                print("   ", json.dumps(answer)[:400])
            text = json.dumps(receipt)
            check.equal(f"{path} {i}: only a full one has the request", kind == "full", "rivers" in text
                        or "hills" in text or '"body"' in text)
            receipts.append((path, request, receipt))
    return receipts


def leaves(value, path=()):
    if isinstance(value, dict):
        for key, v in value.items():
            yield from leaves(v, path + (key,))
    elif isinstance(value, list):
        for i, v in enumerate(value):
            yield from leaves(v, path + (i,))
    else:
        yield path, value


def flipped(text, dice):
    """The text with one bit flipped, anywhere: JSON again, or None."""
    data = bytearray(text.encode())
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    try:
        return json.loads(data.decode())
    except (UnicodeDecodeError, json.JSONDecodeError):
        return None


def test_flips(s, receipts, dice, count):
    """One bit anywhere: what is JSON still is found wrong, with a reason."""
    seen = {"mismatch": 0, "unverifiable": 0}
    done = 0
    while done < count:
        path, request, receipt = dice.choice(receipts)
        wrong = flipped(json.dumps(receipt, separators=(",", ":")), dice)
        if wrong is None or wrong == receipt:
            continue
        done += 1
        body = receipt["predicate"]["request"].get("body")
        answer = verdict(s, wrong, request if body is None else None)
        ok = answer.get("verdict") in seen and answer.get("reason")
        if not ok:
            check.true("a flipped bit is found", False, f"{answer} for {json.dumps(wrong)[:2000]}")
        else:
            seen[answer["verdict"]] += 1
    check.true(f"{done} flipped: {seen}", all(seen.values()))


def test_reasons(s, receipts):
    """Each part: the verdict, and what is named."""
    path, request, receipt = next(r for r in receipts if r[1]["receipt"] is True and r[0] == CHAT)
    cases = [
        (("predicate", "weights", "kvasir.checkpoint.v1"), "unverifiable", "weights"),
        (("predicate", "arithmetic", "kernels"), "unverifiable", "kernels"),
        (("predicate", "arithmetic", "revision"), "unverifiable", "revision"),
        (("predicate", "request", "sha256"), "unverifiable", "request"),
        (("predicate", "request", "api"), "unverifiable", "api"),
        (("predicate", "prompts", 0, "sha256"), "unverifiable", "prompt"),
        (("predicate", "sampling", "temperature"), "mismatch", "sampling"),
        (("predicate", "choices", 0, "token_ids", 0), "mismatch", "token 0"),
        (("predicate", "choices", 0, "token_ids", 3), "mismatch", "token 3"),
        (("predicate", "choices", 0, "logprobs_sha256"), "mismatch", "choices"),
        (("predicate", "choices", 0, "finish"), "mismatch", "choices"),
        (("subject", 0, "digest", "sha256"), "mismatch", "subject"),
        (("predicateType",), "unverifiable", "version"),
    ]
    for where, want, named in cases:
        wrong = copy.deepcopy(receipt)
        at = wrong
        for key in where[:-1]:
            at = at[key]
        old = at[where[-1]]
        swapped = old + 1 if isinstance(old, (int, float)) else ("1" if old[0] == "0" else "0") + old[1:]
        at[where[-1]] = swapped
        answer = verdict(s, wrong, request)
        check.equal(f"{where}", answer.get("verdict"), want)
        check.true(f"{where} is named", named in str(answer.get("reason")), answer.get("reason"))
    shorter = copy.deepcopy(receipt)
    shorter["predicate"]["choices"][0]["token_ids"].pop()
    check.equal("a token less", verdict(s, shorter, request).get("verdict"), "mismatch")
    unlimited = {k: v for k, v in request.items() if k != "max_tokens"} | {"seed": 3}
    whole, cut = made(s, path, unlimited), made(s, path, {**unlimited, "max_tokens": 5})
    check.equal("no limit", verdict(s, whole, unlimited).get("verdict"), "match")
    whole["subject"], whole["predicate"]["choices"] = cut["subject"], cut["predicate"]["choices"]
    answer = verdict(s, whole, unlimited)
    check.equal("cut where no limit is", answer.get("verdict"), "unverifiable")
    check.true("the limit is named", "--max-context" in str(answer.get("reason")), answer)
    longer = copy.deepcopy(receipt)
    longer["predicate"]["choices"][0]["token_ids"].append(5)
    check.equal("a token more", verdict(s, longer, request).get("verdict"), "mismatch")
    check.equal("without the request", verdict(s, receipt).get("verdict"), "unverifiable")
    other = {**request, "messages": turn("Something else.")}
    check.equal("another request", verdict(s, receipt, other).get("verdict"), "unverifiable")
    answer = verdict(s, receipt, {**request, "messages": 5})
    check.equal("an invalid request", answer.get("verdict"), "unverifiable")
    check.equal("no receipt", s.post(VERIFY, {})[0], 400)
    scored = s.ok(TEXT, {"prompt": "A hill", "max_tokens": 9, "logprobs": 0, "receipt": True})
    floats = struct.pack("<9f", *scored["choices"][0]["logprobs"]["token_logprobs"])
    choice = scored["receipt"]["predicate"]["choices"][0]
    check.equal("the log-probs' digest", choice["logprobs_sha256"], hashlib.sha256(floats).hexdigest())
    text = hashlib.sha256(scored["choices"][0]["text"].encode()).hexdigest()
    check.equal("the subject", scored["receipt"]["subject"][0]["digest"]["sha256"], text)
    for odd in ([], "x", {}, {"payload": "AA=="}, {"_type": 1}):
        check.equal(f"{odd} as a receipt", verdict(s, odd, request).get("verdict"), "unverifiable")


def command(folder, receipts, *flags, request=None):
    """kvasir verify: its exit code and verdicts."""
    paths = []
    for i, receipt in enumerate(receipts):
        paths.append(os.path.join(folder, f"receipt-{i}.json"))
        with open(paths[-1], "w") as f:
            f.write(receipt if isinstance(receipt, str) else json.dumps(receipt))
    if request is not None:
        with open(os.path.join(folder, "request.json"), "w") as f:
            json.dump(request, f)
        flags += ("--request", f.name)
    run = subprocess.run([args.binary, "verify", "--json", *paths, "--model", DEMO, *flags],
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=120)
    return run.returncode, [json.loads(line) for line in run.stdout.splitlines()]


def test_command(dice):
    """Signed receipts, other kernel sets, the command's verdicts and exit codes."""
    with tempfile.TemporaryDirectory() as folder:
        key, public = os.path.join(folder, "key.pem"), os.path.join(folder, "public.pem")
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
        subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", public], check=True)
        short, full = ({"messages": turn(), "max_tokens": 10, "receipt": k} for k in (True, "full"))
        s = Server(args.binary, DEMO, "--receipt-key", key, "--receipts", "on")
        signed = [made(s, CHAT, body) for body in (full, short)]
        plain = made(s, CHAT, {k: v for k, v in short.items() if k != "receipt"})
        check.true("--receipts on", plain and plain.get("payload"))
        check.equal("a signed one over HTTP", verdict(s, signed[0]).get("verdict"), "match")
        s.stop()
        code, answers = command(folder, [signed[0], {"receipt": signed[0]}], "--public-key", public)
        check.equal("signed, by the command", (code, [a["verdict"] for a in answers]), (0, ["match"] * 2))
        code, answers = command(folder, [signed[1]], "--public-key", public, request=short)
        check.equal("with --request", (code, [a["verdict"] for a in answers]), (0, ["match"]))
        code, answers = command(folder, [signed[1], "{"])
        verdicts = [a["verdict"] for a in answers]
        check.equal("without it, and no JSON", (code, verdicts), (2, ["unverifiable"] * 2))
        wrong = []
        while len(wrong) < 40:
            one = flipped(json.dumps(signed[0], separators=(",", ":")), dice)
            if one is not None and one != signed[0]:
                wrong.append(one)
        code, answers = command(folder, wrong, "--public-key", public)
        check.equal("one bit flipped in a signed one", code, 1)
        check.equal("none matches", [a for a in answers if a["verdict"] == "match"], [])
        check.true("all have a reason", len(answers) == 40 and all(a["reason"] for a in answers))
        statement = json.loads(base64.b64decode(signed[0]["payload"]))
        kernels = statement["predicate"]["arithmetic"]["kernels"]
        if kernels == "cpu-avx2":
            check.skip("another kernel set", "this CPU has avx2 alone")
        else:
            code, answers = command(folder, [signed[0]], "--cpu-kernels", "avx2")
            check.equal(f"{kernels} on avx2", (code, answers[0]["verdict"]), (2, "unverifiable"))
            check.true("names both", kernels in answers[0]["reason"] and "cpu-avx2" in answers[0]["reason"])
        s = Server(args.binary, DEMO, "--cpu-kernels", "avx2", "--max-context", "64")
        other = made(s, CHAT, full)
        longest = made(s, CHAT, {"messages": turn(), "ignore_eos": True, "receipt": "full"})
        s.stop()
        code, answers = command(folder, [other])
        check.equal("avx2 picks its kernel set", (code, answers[0]["verdict"]), (0, "match"))
        code, answers = command(folder, [other, signed[0], longest])
        verdicts = [a["verdict"] for a in answers]
        check.equal("a set each; a shorter context", (code, verdicts), (2, ["match"] * 2 + ["unverifiable"]))
        code, answers = command(folder, [longest], "--max-context", "64")
        check.equal("with that context", (code, answers[0]["verdict"]), (0, "match"))


def random_request(dice, chat, images):
    """A request of any API, with what can change its tokens."""
    words = "river hill stone one two three yes no a the of {} [1, 2] \n".split(" ")
    text = " ".join(dice.choice(words) for _ in range(dice.randrange(1, 40)))
    common = {"temperature": dice.choice((0, 0.7, 1)), "top_p": dice.choice((1, 0.9)),
              "top_k": dice.choice((0, 0, 20)), "min_tokens": dice.choice((0, 0, 4))}
    if dice.random() < 0.3:
        common["repetition_penalty"] = 1.2
    if dice.random() < 0.3:
        common["logit_bias"] = {str(dice.randrange(4, 200)): dice.choice((-100, 4, 8))}
    if dice.random() < 0.2:
        common["frequency_penalty"] = 0.5
    if dice.random() < 0.3:
        common["seed"] = dice.randrange(1 << 40)
    most, stream = dice.randrange(4, 48), dice.random() < 0.5
    path = dice.choice((CHAT, TEXT, MESSAGES, RESPONSES, OLLAMA) if chat else (TEXT,))
    stops = [dice.choice("aeiou .")] if dice.random() < 0.3 else []
    if path == OLLAMA:
        options = {"num_predict": most, "temperature": common["temperature"], "stop": stops}
        return path, {"messages": turn(text), "options": options, "stream": stream}
    body = {**common, "stream": stream}
    if path in (CHAT, TEXT):
        body.update({"n": dice.choice((1, 1, 3)), "max_tokens": most, "stop": stops})
        if dice.random() < 0.2:
            body["structured_outputs"] = dice.choice(({"regex": "[a-z ]{3,40}"}, {"json": WEATHER},
                                                      {"choice": ["yes", "no", "perhaps not"]}))
        if dice.random() < 0.2:
            body["logprobs"] = 2 if path == TEXT else True
    if path == TEXT:
        return path, {**body, "prompt": dice.choice((text, [text, text + " and"], [5, 6, 7, 8, 9]))}
    if path == MESSAGES:
        body.update({"max_tokens": most, "stop_sequences": stops})
    if path == RESPONSES:
        return path, {**body, "input": text, "max_output_tokens": most, "stop": stops}
    if path == CHAT and images and dice.random() < 0.5:
        return path, {**body, "messages": with_image(text, dice.randrange(4))}
    return path, {**body, "messages": turn(text)}


def each(things, work):
    """work(thing), eight at a time; the results in order."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return list(pool.map(work, things))


def test_many(dice, count):
    """Random requests of every checkpoint, under load, with preemptions, drafts, caches in memory and on
    disk; verified there and by a server that differs in all of this. Then as many with a bit flipped."""
    models = sorted(os.path.dirname(p) for p in glob.glob(os.path.join(GOLDEN, "*", "*", "config.json")))
    models = [m for m in models if os.path.exists(os.path.join(m, "tokenizer.json"))]
    dice.shuffle(models)
    total, wrong, flips = 0, 0, {"mismatch": 0, "unverifiable": 0}
    for i, model in enumerate(models):
        share = (count - total) // (len(models) - i) + 1
        with tempfile.TemporaryDirectory() as folder:
            flags = ["--max-sequences", str(dice.choice((2, 5, 16))),
                     "--draft-tokens", dice.choice(("0", "8")), "--cache-dir", folder,
                     "--max-batch-tokens", str(dice.choice((64, 256, 2048)))]
            try:
                s = Server(args.binary, model, *flags, log=subprocess.DEVNULL)
            except SystemExit:
                continue  # e.g. of embeddings
            status, _ = s.post(CHAT, {"messages": turn(), "max_tokens": 1})
            image, _ = s.post(CHAT, {"messages": with_image("x", 1), "max_tokens": 1})
            requests = [random_request(dice, status == 200, image == 200) for _ in range(share)]
            requests = [(p, {**b, "receipt": dice.choice((True, "full"))}) for p, b in requests]
            answers = each(requests, lambda q: made(s, *q, strict=False))
            receipts = [(r, *q) for r, q in zip(answers, requests) if r]

            def right(one):
                receipt, path, body = one
                return verdict(server, receipt, body if body["receipt"] is True else None)

            def flip(one):
                receipt, path, body = one
                text = json.dumps(receipt, separators=(",", ":"))
                bad = None
                while bad is None or bad == receipt:
                    bad = flipped(text, dice)
                return bad, verdict(server, bad, body if body["receipt"] is True else None)

            server = s
            answers = each(receipts[::2], right)
            s.stop()
            server = Server(args.binary, model, "--prefix-cache", "off", log=subprocess.DEVNULL)
            answers += each(receipts[1::2], right)
            for receipt, answer in zip(receipts[::2] + receipts[1::2], answers):
                if answer.get("verdict") != "match":
                    wrong += 1
                    check.true(f"{model} {flags}", False, f"{answer} of {json.dumps(receipt)[:3000]}")
            for bad, answer in each(receipts, flip):
                if answer.get("verdict") in flips and answer.get("reason"):
                    flips[answer["verdict"]] += 1
                else:
                    check.true(f"{model}: a flipped bit", False, f"{answer} of {json.dumps(bad)[:3000]}")
            server.stop()
            total += len(receipts)
            name = os.path.relpath(model, GOLDEN)
            print(f"{total} of {count}: {name}, {len(receipts)} of {share}, {flips}", flush=True)
    check.true(f"{total} receipts match but {wrong}; with a bit flipped: {flips}", total and not wrong)


def main():
    dice = random.Random(args.seed)
    if args.count:
        test_many(dice, args.count)
        return check.end()
    models = [(DEMO, True)] + [(os.path.join(GOLDEN, *m), False) for m in (("llama", "smollm3_f32"),)]
    for model, images in models:
        with_images = images and 1
        s = Server(args.binary, model, "--port", "0")
        receipts = test_all(s, with_images)
        if receipts:
            test_reasons(s, receipts)
            test_flips(s, receipts, dice, 60)
        s.stop()
    test_command(dice)
    return check.end()


if __name__ == "__main__":
    sys.exit(main())
