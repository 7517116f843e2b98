"""The OpenAI Python SDK against the server: python test_sdk.py [--binary B] [--model DIR]   (needs the package `openai`)"""
import os
import sys

import openai

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import ENDLESS, Checks, Server, arguments, data_url, endless, drawing  # noqa: E402

check = Checks()


def raises(what, kind, status, code, call):
    try:
        call()
    except kind as fault:
        check.equal(what, (fault.status_code, fault.code), (status, code))
        check.true(what + ": type, message, id", bool(fault.type) and bool(fault.message) and bool(fault.request_id))
    except Exception as fault:
        check.true(what, False, repr(fault))
    else:
        check.true(what, False, "no exception")


def ask(content="What do you see?"):
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]


def see():
    return ask([{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": data_url(drawing()), "detail": "auto"}}])


def test_models(client, model):
    check.equal("list", [m.id for m in client.models.list()], [model])
    check.equal("retrieve", client.models.retrieve(model).id, model)
    raises("retrieve nothing", openai.NotFoundError, 404, "model_not_found", lambda: client.models.retrieve("a/b"))


def test_chat(client, model):
    a = client.chat.completions.create(model=model, messages=see(), max_completion_tokens=8, temperature=0)
    check.true("image chat", a.choices[0].message.role == "assistant" and a.usage.total_tokens == a.usage.prompt_tokens + a.usage.completion_tokens)
    check.true("request id", a.id == "chatcmpl-" + a._request_id)
    parts = client.chat.completions.create(model=model, messages=see(), max_completion_tokens=8, temperature=0, stream=True, stream_options={"include_usage": True})
    chunks = list(parts)
    check.equal("stream = whole", "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), a.choices[0].message.content)
    streamed = chunks[-1].usage
    check.equal("the second time all but the last token is cached", streamed.prompt_tokens_details.cached_tokens, streamed.prompt_tokens - 1)
    streamed.prompt_tokens_details.cached_tokens = a.usage.prompt_tokens_details.cached_tokens
    check.equal("stream usage", streamed, a.usage)
    with client.chat.completions.stream(model=model, messages=see(), max_completion_tokens=8, temperature=0, n=2) as stream:
        for _ in stream:
            pass
        final = stream.current_completion_snapshot  # get_final_completion refuses answers that ended by length
    check.equal("accumulated by the SDK", [c.message.content for c in final.choices], [a.choices[0].message.content] * 2)


def test_parameters(client, model):
    a = client.chat.completions.create(model=model, messages=ask(), max_tokens=6, logprobs=True, top_logprobs=4, temperature=0, extra_body={"ignore_eos": True})
    entries = a.choices[0].logprobs.content
    check.true("logprobs", len(entries) == 6 == a.usage.completion_tokens and all(len(e.top_logprobs) == 4 for e in entries))
    two = client.chat.completions.create(model=model, messages=ask(), max_tokens=12, n=2, seed=5, temperature=1)
    again = client.chat.completions.create(model=model, messages=ask(), max_tokens=12, n=2, seed=5, temperature=1)
    check.equal("n=2, seed", [c.message.content for c in two.choices], [c.message.content for c in again.choices])
    other = client.chat.completions.create(model=model, messages=ask(), max_tokens=12, n=2, seed=6, temperature=1)
    check.true("another seed", [c.message.content for c in other.choices] != [c.message.content for c in two.choices])
    # A character that the model writes, not the first one, becomes a stop string.
    long = client.chat.completions.create(model=model, messages=ask(), max_tokens=30, temperature=0, extra_body={"ignore_eos": True}).choices[0].message.content
    stop = next(ch for ch in long[1:] if ch != "\ufffd")
    cut = client.chat.completions.create(model=model, messages=ask(), max_tokens=30, temperature=0, stop=[stop], extra_body={"ignore_eos": True})
    check.equal("stop", (cut.choices[0].message.content, cut.choices[0].finish_reason), (long[: long.index(stop)], "stop"))
    short = client.completions.create(model=model, prompt=["One", "Two"], max_tokens=3, temperature=0, logprobs=2, echo=True)
    check.true("completions", len(short.choices) == 2 and short.choices[0].text.startswith("One") and short.choices[0].logprobs.token_logprobs[0] is None)
    pieces = list(client.completions.create(model=model, prompt="One", max_tokens=3, temperature=0, stream=True))
    check.equal("completions stream", "One" + "".join(c.choices[0].text for c in pieces), short.choices[0].text)


def test_errors(client, model, server):
    create = client.chat.completions.create
    raises("400", openai.BadRequestError, 400, "invalid_value", lambda: create(model=model, messages=ask(), temperature=3))
    raises("400 long", openai.BadRequestError, 400, "context_length_exceeded", lambda: create(model=model, messages=ask("word " * 1500000)))
    raises("400 image", openai.BadRequestError, 400, "invalid_image_url",
           lambda: create(model=model, messages=ask([{"type": "image_url", "image_url": {"url": "https://example.com/x.png"}}])))
    raises("404", openai.NotFoundError, 404, "model_not_found", lambda: create(model="gpt-none", messages=ask()))
    raises("413", openai.APIStatusError, 413, "request_too_large", lambda: create(model=model, messages=ask("x" * (65 << 20))))
    raises("404 route", openai.NotFoundError, 404, "unknown_url", lambda: client.moderations.create(input="x"))
    e = client.embeddings.create(model=model, input=["x", "y"])  # asks for base64
    length = sum(v * v for v in e.data[1].embedding)
    check.true("embeddings", len(e.data) == 2 and abs(length - 1) < 1e-5, e.usage)
    stream = create(model=model, messages=ask(), max_tokens=ENDLESS, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    check.true("a closed stream is cancelled", server.soon(lambda: server.held()[1] == 0), server.held())


if __name__ == "__main__":
    args = arguments(__doc__)
    s = Server(args.binary, endless(args.model), "--served-model-name", "tests/tiny")
    c = openai.OpenAI(base_url=f"http://{s.host}:{s.port}/v1", api_key="none", max_retries=0, timeout=300)
    check.run(test_models, c, "tests/tiny")
    check.run(test_chat, c, "tests/tiny")
    check.run(test_parameters, c, "tests/tiny")
    check.run(test_errors, c, "tests/tiny", s)
    check.run(s.stop)
    check.end()
