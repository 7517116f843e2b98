"""Ollama's API, and what clients of llama.cpp's server ask for:
python test_ollama.py [--binary B] [--demo DIR]"""

import base64
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import scripted  # noqa: E402
import test_tools as tools_test  # noqa: E402
from harness import Checks, Server, arguments, data_url, drawing, endless, wait_until  # noqa: E402

check = Checks()
CHAT, GENERATE = "/api/chat", "/api/generate"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COUNTS = ("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count",
          "eval_duration")


def user(text="Hello!", **more):
    return {"role": "user", "content": text, **more}


def ask(*messages, options=(), **fields):
    return {"messages": list(messages) or [user()],
            "options": {"temperature": 0, "num_predict": 12, **dict(options)}, **fields}


def lines(s, path, body, headers=None):
    status, head, data = s.request("POST", path, body, headers)
    assert status == 200 and head["content-type"] == "application/x-ndjson", (status, data[:300])
    assert data.endswith(b"\n") and b"\n\n" not in data
    return [json.loads(row) for row in data.splitlines()]


def joined(rows):
    """The lines of a stream as one object."""
    out = dict(rows[-1])
    assert out["done"] is True and all(r["done"] is False for r in rows[:-1]), rows
    if "message" in out:
        parts = [r["message"] for r in rows]
        out["message"] = {"role": "assistant", "content": "".join(p["content"] for p in parts)}
        for key, none in (("thinking", ""), ("tool_calls", [])):
            whole = (
                sum((p.get(key, none) for p in parts), none)
                if none == []
                else "".join(p.get(key, "") for p in parts)
            )
            if whole:
                out["message"][key] = whole
    else:
        out["response"] = "".join(r["response"] for r in rows)
    if any("logprobs" in r for r in rows):
        out["logprobs"] = sum((r.get("logprobs", []) for r in rows), [])
    return out


def plain(answer):
    """Without what differs from one request to the next."""
    out = {k: v for k, v in answer.items() if k != "created_at" and not k.endswith("_duration")}
    for i, call in enumerate(answer.get("message", {}).get("tool_calls", [])):
        assert call["id"].startswith("call_"), call
        out["message"] = json.loads(json.dumps(out["message"]))
        del out["message"]["tool_calls"][i]["id"]
    return out


def both(s, path, body):
    """The whole answer; the stream has the same."""
    whole = s.ok(path, {**body, "stream": False})
    check.equal(f"{path}: stream", plain(joined(lines(s, path, body))), plain(whole))
    return whole


def test_chat(s):
    whole = both(s, CHAT, ask(logprobs=True, top_logprobs=2))
    chat = s.ok(
        "/v1/chat/completions",
        {"messages": [user()], "temperature": 0, "max_tokens": 12, "logprobs": True, "top_logprobs": 2},
    )
    choice = chat["choices"][0]
    check.equal("as chat completions", (whole["message"]["content"], whole["logprobs"], whole["done_reason"]),
                (choice["message"]["content"], choice["logprobs"]["content"], choice["finish_reason"]))
    check.equal("counts", (whole["prompt_eval_count"], whole["eval_count"]),
                (chat["usage"]["prompt_tokens"], chat["usage"]["completion_tokens"]))
    check.true("numbers", all(isinstance(whole[k], int) and whole[k] >= 0 for k in COUNTS), whole)
    check.true(
        "total", whole["total_duration"] >= whole["prompt_eval_duration"] + whole["eval_duration"] > 0, whole
    )
    check.true("time", whole["created_at"].startswith("20") and whole["created_at"].endswith("Z"),
               whole["created_at"])
    free = s.ok(
        CHAT, ask(options={"num_predict": -1, "num_ctx": 64, "num_gpu": 9, "mirostat": 0}, stream=False)
    )
    check.equal("to its end", free["done_reason"], "stop")
    cut = s.ok(
        CHAT, ask(options={"stop": [free["message"]["content"][6:9]], "num_predict": -2}, stream=False)
    )
    check.equal("stop", cut["message"]["content"], free["message"]["content"][:6])
    one, two = (s.ok(CHAT, ask(options={"temperature": 2, "seed": 5}, stream=False)) for _ in range(2))
    check.equal("seed", plain(one), plain(two))
    check.equal(
        "go on",
        s.ok(
            CHAT,
            ask(user(), {"role": "assistant", "content": "Hello! Send"}, stream=False,
                options={"num_predict": 2}),
        )["message"]["content"],
        " me a",
    )
    check.equal(
        "load",
        plain(s.ok(CHAT, {"messages": []})),
        {"model": s.names[0], "message": {"role": "assistant", "content": ""}, "done": True,
         "done_reason": "load"},
    )
    for form in ({"type": "object", "properties": {"a": {"enum": ["x", "yy"]}}, "required": ["a"]}, "json"):
        text = both(s, CHAT, ask(format=form, options={"num_predict": 40, "repeat_penalty": 1.3}))["message"][
            "content"
        ]
        check.true("format", text.startswith("{"), text)
    status, head, data = s.request("POST", CHAT, json.dumps(ask(stream=False)).encode(),
                                   {"Content-Type": "application/x-www-form-urlencoded"})
    check.equal("curl -d", status, 200)


def test_generate(s):
    whole = both(s, GENERATE, {**ask(), "prompt": "Hello!", "suffix": "", "template": "", "context": []})
    check.equal("as a chat", whole["response"], s.ok(CHAT, ask(stream=False))["message"]["content"])
    check.equal(
        "system",
        s.ok(GENERATE, {**ask(stream=False), "prompt": "Hello!", "system": "Be short."})["prompt_eval_count"],
        s.ok(CHAT, ask({"role": "system", "content": "Be short."}, user(), stream=False))[
            "prompt_eval_count"
        ],
    )
    raw = both(s, GENERATE, {**ask(), "prompt": "One, two", "raw": True, "logprobs": True})
    text = s.ok("/v1/completions", {"prompt": "One, two", "temperature": 0, "max_tokens": 12})
    check.equal("raw", (raw["response"], raw["prompt_eval_count"]),
                (text["choices"][0]["text"], text["usage"]["prompt_tokens"]))
    check.equal("raw: log-probs", len(raw["logprobs"]), raw["eval_count"])
    check.equal("load", s.ok(GENERATE, {"prompt": ""})["done_reason"], "load")


def test_images(s):
    for n in (1, 2):
        files = [drawing(k) for k in range(n)]
        chat = s.ok(
            "/v1/chat/completions",
            {
                "temperature": 0,
                "max_tokens": 12,
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            *({"type": "image_url", "image_url": {"url": data_url(f)}} for f in files),
                            {"type": "text", "text": "Which?"},
                        ],
                    }
                ],
            },
        )
        want = (chat["choices"][0]["message"]["content"], chat["usage"]["prompt_tokens"])
        images = [base64.b64encode(f).decode() for f in files]
        got = both(s, CHAT, ask(user("Which?", images=images)))
        check.equal(f"{n}: chat", (got["message"]["content"], got["prompt_eval_count"]), want)
        got = both(s, GENERATE, {**ask(), "prompt": "Which?", "images": images})
        check.equal(f"{n}: generate", (got["response"], got["prompt_eval_count"]), want)


def test_errors(s):
    def fault(what, path, body, status, *words):
        got, answer = s.post(path, body)
        check.true(what,
                   got == status and set(answer) == {"error"} and all(w in answer["error"] for w in words),
                   (got, answer))

    fault("option", CHAT, ask(options={"mirostat": 2}), 400, "mirostat")
    fault("number", CHAT, ask(options={"num_predict": "5"}), 400, "num_predict")
    fault("options", CHAT, {**ask(), "options": 5}, 400, "options")
    fault("format", CHAT, ask(format="yaml"), 400, "format", "JSON schema")
    fault("think", CHAT, ask(think=True), 400, "think", "leave the field out")
    fault("think", CHAT, ask(think=5), 400, "think")
    fault("messages", CHAT, {"messages": "x"}, 400, "messages")
    check.true("once", s.post(GENERATE, {"prompt": "x", "context": [1]})[1]["error"].startswith("context is"))
    fault("role", CHAT, ask(user(), {"role": "robot", "content": "x"}), 400, "messages[1].role")
    fault("content", CHAT, ask(user([{"type": "text", "text": "x"}])), 400, "messages[0].content", "images")
    fault("image", CHAT, ask(user(images=["AAAA"])), 400, "messages[0].images[0]")
    fault("image", GENERATE, {"prompt": "x", "images": [5]}, 400, "images[0]")
    fault("call", CHAT, ask(user(), {"role": "assistant", "tool_calls": [{"function": {"name": 5}}]}), 400,
          "messages[1].tool_calls[0].function")
    fault("template", GENERATE, {"prompt": "x", "template": "{{ .Prompt }}"}, 400, "template", "raw")
    fault("context", GENERATE, {"prompt": "x", "context": [5]}, 400, "context", CHAT)
    fault("raw", GENERATE, {"prompt": "x", "raw": True, "images": ["AAAA"]}, 400, "images")
    fault("prompt", GENERATE, {"prompt": 5}, 400, "prompt")
    fault("length", CHAT, ask(user("One, two " * 9000)), 400, "context length")
    fault("model", CHAT, ask(model="other:latest"), 404, "other:latest")
    fault("JSON", CHAT, b"{", 400, "JSON")
    fault("pull", "/api/pull", {"model": "other"}, 404, "/api/pull")
    fault("method", "/api/tags", {}, 405)
    fault("embed", "/api/embed", {}, 400, "input")
    fault("embeddings", "/api/embeddings", {"input": "x"}, 400, "prompt")


def test_models(s):
    def get(path):
        status, head, data = s.request("GET", path)
        assert status == 200, (path, status, data)
        return json.loads(data)

    name = s.names[0]
    tags, loaded, shown = (get("/api/tags")["models"], get("/api/ps")["models"],
                           s.ok("/api/show", {"model": name}))
    card = get("/v1/models")["data"][0]
    check.equal("names", [m["name"] for m in tags + loaded], s.names * 2)
    check.equal("details", (tags[0]["details"], loaded[0]["details"]), (shown["details"],) * 2)
    check.equal(
        "size", (tags[0]["size"], loaded[0]["context_length"]), (card["meta"]["size"], card["max_model_len"])
    )
    info = shown["model_info"]
    check.equal("info", [info["general." + k] for k in ("architecture", "basename", "parameter_count")],
                ["qwen3_vl", s.names[0], card["meta"]["n_params"]])
    check.equal("context", info["qwen3_vl.context_length"], card["meta"]["n_ctx_train"])
    check.equal("capabilities", shown["capabilities"], ["completion", "vision", "tools"])
    check.equal("earlier name", s.ok("/api/show", {"name": s.names[1] + ":latest"}), shown)
    check.equal("latest", s.ok(CHAT, ask(model=s.names[1] + ":latest", stream=False))["model"], s.names[1])
    check.true("version", get("/api/version")["version"].count(".") == 2)
    check.equal("HEAD", s.request("HEAD", "/")[0], 200)
    vectors = s.ok("/v1/embeddings", {"input": ["One", "two"], "dimensions": 8})["data"]
    got = s.ok("/api/embed", {"input": ["One", "two"], "dimensions": 8, "truncate": True})
    check.equal("embed", got["embeddings"], [v["embedding"] for v in vectors])
    check.equal("embeddings", s.ok("/api/embeddings", {"prompt": "One"})["embedding"],
                s.ok("/api/embed", {"input": "One"})["embeddings"][0])
    props = get("/props")
    check.equal("props",
                (props["default_generation_settings"]["n_ctx"], props["modalities"], props["chat_template"]),
                (card["max_model_len"], {"vision": True, "audio": False}, shown["template"]))
    text = s.ok("/apply-template", ask())["prompt"]
    check.equal("template", s.ok("/tokenize", {"prompt": text})["tokens"], s.ok("/tokenize", ask())["tokens"])
    image = [{"type": "image_url", "image_url": {"url": data_url(drawing())}}]
    text = s.ok("/apply-template", {"messages": [{"role": "user", "content": image}]})["prompt"]
    check.equal("image", text.count("<|image_pad|>"), 1)


def test_scripts(s):
    """Calls and reasoning, complete on one line each; what the template then sees of them."""
    for name in ("one", "two", "think", "both", "never", "unclosed", "broken", "wide", "empty"):
        want = tools_test.SCRIPTS[name][1]
        body = ask(user("Weather?"), tools=[tools_test.WEATHER, tools_test.CLOCK],
                   chat_template_kwargs={"script": name}, options={"num_predict": 1500})
        rows = lines(s, CHAT, body)
        message = both(s, CHAT, body)["message"]
        calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", [])]
        check.equal(f"{name}: calls", calls, [(n, json.loads(a)) for n, a in want["calls"]])
        check.equal(
            f"{name}: text", (message["content"], message.get("thinking")), (want["text"], want["reasoning"])
        )
        check.equal(f"{name}: lines", sum(len(r["message"].get("tool_calls", [])) for r in rows), len(calls))
    call = {"function": {"name": "clock", "arguments": {"hour": 12}}}
    turn = {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [call]}
    openai = [
        user("?"),
        {"role": "assistant", "content": "", "reasoning_content": "Hm.",
         "tool_calls": [{"id": "call00001", "type": "function", **call}]},
        {"role": "tool", "tool_call_id": "call00001", "content": "noon"},
    ]
    more = {"chat_template_kwargs": {"script": "plain"}, "tools": [tools_test.CLOCK]}
    got = s.ok(
        CHAT,
        ask(user("?"), turn, {"role": "tool", "tool_name": "clock", "content": "noon"}, stream=False, **more),
    )
    check.equal("turns", got["prompt_eval_count"], s.ok("/tokenize", {"messages": openai, **more})["count"])
    got = s.ok(CHAT, ask(user("?"), think=False, stream=False, **more))
    seen = s.ok("/apply-template", {"messages": [user("?")], "enable_thinking": False, **more})["prompt"]
    check.true("think", "[thinking False]" in seen, seen)
    check.equal("think", got["prompt_eval_count"], s.ok("/tokenize", {"prompt": seen})["count"])


def test_limits(binary, demo):
    """Keys, a client that leaves, the queue, an error inside a stream."""
    s = Server(binary, endless(demo), "--api-key", "k", "--max-sequences", "1", "--max-queue", "1")
    key = {"Authorization": "Bearer k", "Content-Type": "application/json"}
    for method, path in (("POST", CHAT), ("GET", "/api/tags"), ("POST", "/api/pull")):
        status, head, data = s.request(method, path, {} if method == "POST" else None)
        check.equal(f"{path}: key", (status, set(json.loads(data))), (401, {"error"}))
    check.equal("version", s.request("GET", "/api/version")[0], 200)
    check.equal("with a key", s.request("GET", "/api/tags", headers=key)[0], 200)
    body = json.dumps(ask(options={"num_predict": -1}, ignore_eos=True)).encode()
    held = [s.connect() for _ in range(2)]
    for i, c in enumerate(held):
        c.request("POST", CHAT, body, key)
        wait_until(lambda: s.held()[1 + i] == 1)
    status, head, data = s.request("POST", GENERATE, {"prompt": "x"}, key)
    check.true(
        "a full queue", status == 429 and "retry-after" in head and set(json.loads(data)) == {"error"}, data
    )
    check.true("the first line", json.loads(held[0].getresponse().readline())["message"]["content"])
    for c in held:
        c.close()
    wait_until(lambda: s.held() == (0, 0, 0))
    s.stop()
    s = Server(binary, endless(demo), "--request-timeout", "2")
    rows = lines(s, CHAT, json.loads(body))
    check.true("an error inside a stream", len(rows) > 1 and set(rows[-1]) == {"error"}, rows[-1])
    s.stop()


if __name__ == "__main__":
    args = arguments(__doc__)
    server = Server(
        args.binary, os.path.join(ROOT, "models/demo-qwen3-vl"), "--served-model-name", "first, second"
    )
    server.names = ["first", "second"]
    for function in (test_chat, test_generate, test_images, test_errors, test_models):
        if not args.only or function.__name__[5:] in args.only:
            check.run(function, server)
    check.run(server.stop)
    if not args.only or "scripts" in args.only:
        with tempfile.TemporaryDirectory() as folder:
            thinking = scripted.TEMPLATE.split("\n")[
                -1
            ]  # at the beginning here: a prompt's end chooses the script
            scripted.write(
                folder,
                {name: text for name, (text, _) in tools_test.SCRIPTS.items()} | {"wide": tools_test.WIDE},
                template=thinking + scripted.TEMPLATE[: -len(thinking)],
            )
            server = Server(args.binary, folder)
            check.run(test_scripts, server)
            check.run(server.stop)
    if not args.only or "limits" in args.only:
        check.run(test_limits, args.binary, args.demo)
    check.end()
