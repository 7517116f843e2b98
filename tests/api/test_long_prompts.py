"""Long prompts alongside short ones: python3 test_long_prompts.py [--binary B] [--model DIR]
A short prompt completes while an earlier long one is still being prefilled; a running stream goes
on meanwhile. By order, not by time. scripts/long_prompt.py measures it."""
import json
import os
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import ENDLESS, Checks, Server, arguments, endless, wait_until  # noqa: E402

check = Checks()
LONG = 40_000


def ids(seed, count):
    return [10 + (seed * 31 + i * i * 7 + i) % 150 for i in range(count)]


def completion(s, prompt, **more):
    return s.ok("/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0, **more}, timeout=600)


def test_short_passes_long(s):
    answers = []
    stream = s.connect()
    body = {"prompt": ids(1, 9), "max_tokens": ENDLESS, "ignore_eos": True, "stream": True}
    stream.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    events = stream.getresponse()
    events.readline()
    before = s.metric("vllm:prompt_tokens_total")

    def long_one():
        completion(s, ids(2, LONG))
        answers.append("long")

    thread = threading.Thread(target=long_one)
    thread.start()
    check.true("the long prompt has begun", wait_until(lambda: s.metric("vllm:prompt_tokens_total") > before))
    generated = s.metric("vllm:generation_tokens_total")
    for k in range(5):
        completion(s, ids(3 + k, 30))
        answers.append("short")
    done = s.metric("vllm:prompt_tokens_total") - before - 5 * 30
    check.equal("the short ones pass the long one", answers, ["short"] * 5)
    check.true("of which not all was read", 0 < done < LONG, done)
    check.true("the stream went on", s.metric("vllm:generation_tokens_total") >= generated + 5 + 5)
    thread.join()
    check.equal("and then it ends", answers[-1:], ["long"])
    stream.close()


def main():
    a = arguments(__doc__)
    s = Server(a.binary, endless(a.model), "--step-ms", "5", "--kv-memory", "1G")
    check.run(test_short_passes_long, s)
    s.stop()
    check.end()


main()
