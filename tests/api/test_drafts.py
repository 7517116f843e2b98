"""Speculative decoding: python3 test_drafts.py [--binary B] [--model DIR]
Output with --draft-tokens equals that without, token for token and log-prob for log-prob: greedy and sampled,
alone and in a crowd, with stop strings and several choices. And tokens were drafted, and some were accepted.
The same with a drafter (the checkpoints of tests/golden/gemma4-mtp), where the accepted draft tokens are also
those of transformers."""
import http.client
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Checks, Server, arguments  # noqa: E402

check = Checks()


def requests():
    """Repetitive prompts: what follows was there before, or seems to."""
    for k in range(12):
        run = [20 + (k * 7 + i) % 11 for i in range(11)]
        body = {"prompt": run * 6 + [30 + k], "max_tokens": 60, "logprobs": 3, "seed": k,
                "return_token_ids": True}
        yield {**body, "temperature": 0}
        yield {**body, "temperature": 0, "ignore_eos": True, "min_tokens": 40, "presence_penalty": 0.5}
        yield {**body, "temperature": 0.2, "n": 2}
        # Draws between three tokens: draft tokens are right by luck.
        yield {**body, "temperature": 1, "logit_bias": {str(21 + k + i): 60 for i in range(3)}}
        yield {**body, "temperature": 1, "logit_bias": {str(21 + k): 90}, "ignore_eos": True}
        yield {**body, "temperature": 1, "top_n_sigma": 0.5, "logit_bias": {str(21 + k): 9, str(22 + k): 9}}
        yield {**body, "temperature": 0, "stop": ["e", "th"]}
        # Draft tokens that repeat are never right, beyond the window they may be.
        yield {**body, "temperature": 0, "no_repeat_ngram_size": 2 + k % 3}
        yield {**body, "temperature": 0, "vllm_xargs": {"ngram_size": 2, "window_size": 4 + k}}


def answer(s, body):
    got = s.ok("/v1/completions", body, timeout=300)
    choices = [(c["text"], c["token_ids"], c["logprobs"], c["finish_reason"]) for c in got["choices"]]
    return choices, got["usage"]


def test_same_answers(plain, drafting):
    bodies = list(requests())
    want = [answer(plain, b)[0] for b in bodies]
    alone = [answer(drafting, b) for b in bodies]
    check.equal("alone", [a for a, _ in alone], want)
    with ThreadPoolExecutor(12) as pool:
        crowd = list(pool.map(lambda b: answer(drafting, b)[0], bodies))
    check.equal("in a crowd, behind hits", crowd, want)
    details = [u["completion_tokens_details"] for _, u in alone]
    accepted = sum(d["accepted_prediction_tokens"] for d in details)
    rejected = sum(d["rejected_prediction_tokens"] for d in details)
    check.true("some drafts are right, some are wrong", accepted > 10 and rejected > 0, (accepted, rejected))
    check.true("usage never has more than were generated", all(
        d["accepted_prediction_tokens"] < u["completion_tokens"] for (_, u), d in zip(alone, details)))
    drafted = drafting.metric("vllm:spec_decode_num_draft_tokens_total")
    counted = drafting.metric("vllm:spec_decode_num_accepted_tokens_total")
    check.true("/metrics counts them", drafted > counted >= accepted, (drafted, counted, accepted))
    check.equal("none without", plain.metric("vllm:spec_decode_num_draft_tokens_total"), 0)
    steps = [s.metric("kvasir:engine_steps_total") for s in (plain, drafting)]
    check.true("steps are saved", steps[1] < 2 * steps[0], steps)


MTP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/gemma4-mtp")


def test_drafter_golden(variant, binary):
    """--draft-tokens N: the rounds of transformers, as far as usage tells of them."""
    folder = os.path.join(MTP, variant)
    with open(os.path.join(folder, "golden.json"), encoding="utf-8") as f:
        golden = json.load(f)
    s = Server(binary, folder, "--draft-model", folder + "/assistant", "--kv-memory", "64M",
               "--draft-tokens", str(golden["drafts"]), "--prefix-cache", "off")
    for case in golden["cases"]:
        count = 1 + sum(len(r["emitted"]) for r in case["rounds"])
        body = {"max_tokens": count, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        if case["kind"] == "raw":
            got = s.ok("/v1/completions", {**body, "prompt": case["prompt"]})
        else:
            got = s.ok("/v1/chat/completions", {**body, "messages": case["messages"]})
        details = got["usage"]["completion_tokens_details"]
        accepted, drafted = case["measured"]["accepted"]
        ids = got["choices"][0]["token_ids"]
        check.equal(f"{variant}: tokens", ids[1:], [t for r in case["rounds"] for t in r["emitted"]])
        check.equal(f"{variant}: accepted", details["accepted_prediction_tokens"], accepted)
        check.equal(f"{variant}: rejected", details["rejected_prediction_tokens"], drafted - accepted)
    s.stop()


# What the drafters were fitted to (make_gemma4_mtp.py), and what they know nothing of.
TEXTS = ["The gulls", "A woman in a yellow coat", "When the fog", "Nobody on deck", "Two and two", "What is",
         "Why?", "Nobody on deck saw the fog come in. "]


def drafter_requests():
    for k, text in enumerate(TEXTS):
        body = {"prompt": text, "max_tokens": 40, "logprobs": 3, "seed": k, "return_token_ids": True,
                "ignore_eos": k % 2 == 0}
        yield {**body, "temperature": 0}
        yield {**body, "temperature": 0, "presence_penalty": 0.2, "min_tokens": 20}
        yield {**body, "temperature": 1}
        yield {**body, "temperature": 0.2, "top_p": 0.8, "n": 2}
        yield {**body, "temperature": 0, "stop": ["e", "t"]}
        yield {**body, "temperature": 0.1, "logit_bias": {str(100 + k): 4}}
        yield {**body, "prompt": 30 * text, "max_tokens": 300, "temperature": k % 3 / 4, "ignore_eos": True}


def cancel_between_rounds(s, body):
    connection = http.client.HTTPConnection(s.host, s.port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True, "max_tokens": 300,
                                                              "ignore_eos": True, "n": 1, "stop": None}))
    connection.getresponse().read(300)
    connection.close()


def test_drafter_same_answers(variant, binary):
    """Alone, in a crowd, behind hits, with preemptions (the second server's memory is small) and cancels."""
    folder = os.path.join(MTP, variant)
    drafter = ["--draft-model", folder + "/assistant"]
    plain = Server(binary, folder, "--draft-tokens", "0", "--kv-memory", "64M")
    bodies = list(drafter_requests())
    want = [answer(plain, b)[0] for b in bodies]
    plain.stop()
    for flags in (["--kv-memory", "64M"], ["--kv-memory", "64M", "--draft-tokens", "5"],
                  ["--kv-memory", "1M", "--draft-tokens", "3"]):
        s = Server(binary, folder, *drafter, *flags)
        name = " ".join([variant, *flags])
        if "64M" in flags:
            check.equal(f"{name}: alone", [answer(s, b)[0] for b in bodies[::3]], want[::3])
        with ThreadPoolExecutor(16) as pool:
            cancels = [pool.submit(cancel_between_rounds, s, b) for b in bodies[::4]]
            check.equal(f"{name}: in a crowd, behind hits", list(pool.map(lambda b: answer(s, b)[0], bodies)),
                        want)
            for c in cancels:
                c.result()
        drafted = s.metric("vllm:spec_decode_num_draft_tokens_total")
        counted = s.metric("vllm:spec_decode_num_accepted_tokens_total")
        # How many "auto" makes hangs on what the drafter and a step cost: as much, with models this small.
        least = 20 if "--draft-tokens" in flags else 0
        check.true(f"{name}: some draft tokens are right", drafted > counted >= least, (drafted, counted))
        if "1M" in flags:
            total, each = s.metric("vllm:num_preemptions_total"), s.metric("vllm:request_num_preemptions_sum")
            check.true(f"{name}: some are preempted", total > 0 and 0 < each <= total, (total, each))
        s.stop()


def test_demo(binary, model):
    """What docs/demo-models.md shows."""
    # A fixed number, and the best of five: what steps cost on a busy machine may pause drafting for a while.
    s = Server(binary, model, "--kv-memory", "64M", "--draft-tokens", "8")
    text = "one two three four one two three four one two three four one two"
    accepted = 0
    for _ in range(5):
        got = s.ok("/v1/completions", {"prompt": text, "max_tokens": 40, "temperature": 0,
                                         "ignore_eos": True})
        accepted = max(accepted, got["usage"]["completion_tokens_details"]["accepted_prediction_tokens"])
    check.true("most tokens were drafted", 20 < accepted < 40, accepted)
    s.stop()


def main():
    a = arguments(__doc__)
    check.run(test_demo, a.binary, a.demo)
    for variant in sorted(os.listdir(MTP)):
        check.run(test_drafter_golden, variant, a.binary)
        check.run(test_drafter_same_answers, variant, a.binary)
    plain = Server(a.binary, a.model, "--draft-tokens", "0", "--kv-memory", "64M")
    drafting = Server(a.binary, a.model, "--draft-tokens", "8", "--kv-memory", "64M")
    check.run(test_same_answers, plain, drafting)
    plain.stop()
    drafting.stop()
    check.end()


if __name__ == "__main__":
    main()
