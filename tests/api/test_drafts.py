"""Tokens guessed ahead: python3 test_drafts.py [--binary B] [--model DIR]
Answers with --draft-tokens are those without, token for token and log-prob for log-prob: greedy and drawn,
alone and in a crowd, with stop strings and several choices. And guesses were made, and some were right."""
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
        # Draws between three tokens: guesses are right by luck.
        yield {**body, "temperature": 1, "logit_bias": {str(21 + k + i): 60 for i in range(3)}}
        yield {**body, "temperature": 1, "logit_bias": {str(21 + k): 90}, "ignore_eos": True}
        yield {**body, "temperature": 0, "stop": ["e", "th"]}


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
    check.true("some guesses are right, some are wrong", accepted > 10 and rejected > 0, (accepted, rejected))
    check.true("usage never has more than were generated", all(
        d["accepted_prediction_tokens"] < u["completion_tokens"] for (_, u), d in zip(alone, details)))
    drafted = drafting.metric("vllm:spec_decode_num_draft_tokens_total")
    counted = drafting.metric("vllm:spec_decode_num_accepted_tokens_total")
    check.true("/metrics counts them", drafted > counted >= accepted, (drafted, counted, accepted))
    check.equal("none without", plain.metric("vllm:spec_decode_num_draft_tokens_total"), 0)
    steps = [s.metric("kvasir:engine_steps_total") for s in (plain, drafting)]
    check.true("steps are saved", steps[1] < 2 * steps[0], steps)


def main():
    a = arguments(__doc__)
    plain = Server(a.binary, a.model, "--draft-tokens", "0", "--kv-memory", "64M")
    drafting = Server(a.binary, a.model, "--draft-tokens", "8", "--kv-memory", "64M")
    check.run(test_same_answers, plain, drafting)
    plain.stop()
    drafting.stop()
    check.end()


if __name__ == "__main__":
    main()
