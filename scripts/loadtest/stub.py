"""A server that answers like an OpenAI-compatible one without any model: python3 stub.py [flags]; it prints its address.
A token is a word (an image: 16 tokens by its bytes). It remembers the beginnings of all prompts, apart for each cache_salt, and takes --prefill seconds for each token that it does
not know, so what a load test should print about it can be computed. Each streamed event carries `sent`, the monotonic time at which it was written.
Used by `load_test.py --calibrate` and by tests/api/test_load_tool.py."""
import argparse
import asyncio
import hashlib
import itertools
import json
import logging
import os
import random
import signal
import sys
import time

IMAGE_TOKENS = 16


def prompt_tokens(body):
    """The prompt as a list of strings that are equal where the tokens are."""
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return [str(t) for t in prompt]
    if prompt is not None:
        return prompt.split()
    tokens = []
    for message in body["messages"]:
        tokens.append(f"<{message['role']}>")
        content = message["content"]
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if part["type"] == "text":
                tokens += part["text"].split()
            else:
                tokens += [hashlib.sha256(part["image_url"]["url"].encode()).hexdigest()] * IMAGE_TOKENS
        tokens.append("<end>")
    return tokens


class Stub:
    def __init__(self, opts):
        self.opts, self.known, self.asked, self.bodies = opts, set(), itertools.count(1), []

    def lookup(self, tokens, salt):
        """-> tokens of the longest known beginning; the last token of a prompt is always computed. Remembers the prompt."""
        state, cached, depth = hashlib.sha256(repr(salt).encode()), 0, 0
        for depth, token in enumerate(tokens, 1):
            state.update(token.encode() + b"\0")
            key = state.digest()
            if key in self.known and cached == depth - 1:
                cached = depth
            self.known.add(key)
        return min(cached, max(0, len(tokens) - 1))

    async def connection(self, reader, writer):
        try:
            for number in itertools.count(1):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.split("\r\n")
                fields = {k.lower(): v.strip() for k, _, v in (x.partition(":") for x in lines)}
                data = await reader.readexactly(int(fields.get("content-length", 0)))
                if number == 2 and self.opts.drop:
                    break
                if not await self.answer(first.split(" ")[1], fields, data, writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def whole(self, writer, status, value):
        data = json.dumps(value).encode()
        writer.write(f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        return True

    async def answer(self, path, fields, data, writer):
        """-> whether the connection stays open"""
        if path == "/v1/models":
            return self.whole(writer, "200 OK", {"object": "list", "data": [{"id": "stub"}]})
        body = json.loads(data)
        if path == "/tokenize" and not self.opts.no_tokenize:
            count = len(body["prompt"].split())
            return self.whole(writer, "200 OK", {"count": count, "tokens": [0] * count})
        if path == "/seen":  # for tests: the bodies so far
            return self.whole(writer, "200 OK", self.bodies)
        if path not in ("/v1/chat/completions", "/v1/completions"):
            return self.whole(writer, "404 Not Found", {"error": {"message": "no such path", "type": "invalid_request_error", "code": "not_found"}})
        if self.opts.key and fields.get("authorization") != f"Bearer {self.opts.key}":
            return self.whole(writer, "401 Unauthorized", {"error": {"message": "no or wrong key", "type": "authentication_error", "code": "invalid_api_key"}})
        if self.opts.keep_bodies:
            self.bodies.append(body)
        number = next(self.asked)
        broken = self.opts.fail if self.opts.fail and number > 1 and number % self.opts.every == 0 else None
        if self.opts.hang_from and number >= self.opts.hang_from:
            broken = "hang"
        if broken == "429":
            return self.whole(writer, "429 Too Many Requests", {"error": {"message": "the queue is full", "type": "rate_limit_error", "code": "rate_limit_exceeded"}})
        return await self.stream(path.endswith("chat/completions"), body, broken, writer)

    async def stream(self, chat, body, broken, writer):
        tokens = prompt_tokens(body)
        cached = self.lookup(tokens, body.get("cache_salt"))
        answer = [f"w{(len(tokens) * 7 + i) % 97}" for i in range(body.get("max_tokens", 16))]
        await asyncio.sleep(self.opts.first + self.opts.prefill * (len(tokens) - cached))
        if broken == "hang":
            await asyncio.sleep(600)
        due = time.perf_counter() + (random.random() * self.opts.interval if self.opts.spread else 0)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")

        def event(value):
            line = b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"
            writer.write(b"%x\r\n%s\r\n" % (len(line), line))

        if chat:
            event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}], "usage": None})
        for i, word in enumerate(answer):
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            due += self.opts.interval
            if i == 1 and broken == "cut":
                await writer.drain()
                return False
            if i == 1 and broken == "error":
                event({"error": {"message": "the engine stopped", "type": "server_error", "code": "engine_error"}})
                break
            if i == 1 and broken == "garbage":
                event(b"{not json")
            choice = {"delta": {"content": word + " "}} if chat else {"text": word + " "}
            if body.get("return_token_ids"):
                choice["token_ids"] = [500 + (len(tokens) + i) % 200]
            event({"choices": [{"index": 0, **choice, "finish_reason": None}], "usage": None, "sent": time.perf_counter()})
        else:
            last = {"delta": {}} if chat else {"text": ""}
            event({"choices": [{"index": 0, **last, "finish_reason": "length"}], "usage": None})
            if (body.get("stream_options") or {}).get("include_usage"):
                event({"choices": [], "usage": {"prompt_tokens": len(tokens), "completion_tokens": len(answer), "prompt_tokens_details": {"cached_tokens": cached}}})
        event(b"[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


async def serve(opts):
    stub = Stub(opts)
    server = await asyncio.start_server(stub.connection, "127.0.0.1", 0, backlog=4096, limit=1 << 26)
    print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, os._exit, 0)  # whatever streams still run
    await server.serve_forever()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interval", type=float, default=0.001, help="seconds between two tokens")
    parser.add_argument("--first", type=float, default=0.0, help="seconds before the first token, whatever is known")
    parser.add_argument("--prefill", type=float, default=0.0, help="seconds for each token that is not known")
    parser.add_argument("--spread", action="store_true", help="streams start at a random part of the interval, so that events don't come in step")
    parser.add_argument("--fail", choices=("429", "cut", "error", "garbage", "hang"), help="what goes wrong")
    parser.add_argument("--every", type=int, default=5, help="with which requests: each whose number is a multiple of this")
    parser.add_argument("--hang-from", type=int, default=0, help="this request and all that follow it are never answered")
    parser.add_argument("--key", help="the API key that is needed")
    parser.add_argument("--drop", action="store_true", help="close a kept connection when its second request comes, as a server does whose idle time is just over")
    parser.add_argument("--no-tokenize", action="store_true", help="no /tokenize")
    parser.add_argument("--keep-bodies", action="store_true", help="POST /seen answers with the bodies of all requests")
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # clients that go away are expected
    asyncio.run(serve(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
