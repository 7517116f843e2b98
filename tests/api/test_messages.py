"""POST /v1/messages and related endpoints, as clients use them:
python test_messages.py [--binary B] [--demo DIR]
(with the package `anthropic` also through its SDK)"""

import base64
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import scripted  # noqa: E402
import test_tools as tools_test  # noqa: E402
from harness import ENDLESS, Checks, Server, arguments, data_url, endless, drawing, wait_until  # noqa: E402

check = Checks()
MESSAGES, COUNT, CHAT = "/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions"
SCRIPTS = tools_test.SCRIPTS
TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error",
    405: "invalid_request_error", 413: "request_too_large", 415: "invalid_request_error",
    429: "rate_limit_error", 503: "overloaded_error",
}


def user(content="What is in this picture?"):
    return {"role": "user", "content": content}


def ask(content="What is in this picture?", **fields):
    return {"messages": [user(content)], "max_tokens": 40, "temperature": 0, **fields}


def image(data):
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source}


def events(s, body, path=MESSAGES):
    """The events of a stream, whose framing and order are checked."""
    status, head, data = s.request("POST", path, {**body, "stream": True})
    assert status == 200 and head["content-type"].startswith("text/event-stream"), (status, data[:300])
    out, opened = [], None
    assert data.endswith(b"\n\n") and b"\r" not in data
    for event in data.decode().split("\n\n")[:-1]:
        name, text = event.split("\n")
        assert name.startswith("event: ") and text.startswith("data: "), event
        out.append(json.loads(text[6:]))
        assert out[-1]["type"] == name[7:], event
    kinds = [e["type"] for e in out]
    if kinds[-1] == "error":
        return out
    assert kinds[:2] == ["message_start", "ping"] and kinds[-2:] == ["message_delta", "message_stop"], kinds
    blocks = 0
    for e in out[2:-2]:
        if e["type"] == "content_block_start":
            assert opened is None and e["index"] == blocks, e
            opened, blocks = e["index"], blocks + 1
        else:
            assert e["index"] == opened and e["type"] in ("content_block_delta", "content_block_stop"), e
            opened = None if e["type"] == "content_block_stop" else opened
    assert opened is None
    return out


def accumulate(out):
    """The message that a stream tells."""
    message = out[0]["message"]
    inputs = {}
    assert message["content"] == [] and message["stop_reason"] is None, message
    for e in out:
        if e["type"] == "content_block_start":
            message["content"].append(e["content_block"])
        elif e["type"] == "content_block_delta":
            block, d = message["content"][e["index"]], e["delta"]
            if d["type"] == "input_json_delta":
                inputs[e["index"]] = inputs.get(e["index"], "") + d["partial_json"]
            else:
                key = {"text_delta": "text", "thinking_delta": "thinking",
                       "signature_delta": "signature"}[d["type"]]
                block[key] += d[key]
        elif e["type"] == "message_delta":
            message.update(e["delta"])
            message["usage"].update(e["usage"])
    for index, text in inputs.items():
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        message["content"][index]["input"] = value if isinstance(value, dict) else {"INVALID_JSON": text}
    return message


def text_of(message):
    return "".join(b["text"] for b in message["content"] if b["type"] == "text")


def shape(message):
    """What must not depend on streaming: all but the ids, and what the cache had."""
    blocks = [{k: v for k, v in b.items() if k != "id"} for b in message["content"]]
    usage = message["usage"]
    return {
        **{k: v
           for k, v in message.items() if k not in ("id", "usage", "content")}, "content": blocks,
        "input": usage["input_tokens"] + usage["cache_read_input_tokens"], "output": usage["output_tokens"],
    }


def same_prompt(what, s, chat, body, path=MESSAGES):
    """The prompt is that of the chat, token for token: all but its last token comes from the cache then."""
    a = s.ok(CHAT, {"max_tokens": 1, "temperature": 0, **chat})
    usage = s.ok(path, {"max_tokens": 1, "temperature": 0, **body})["usage"]
    n = a["usage"]["prompt_tokens"]
    check.equal(what, (usage["input_tokens"], usage["cache_read_input_tokens"]), (1, n - 1))
    counted = {k: v for k, v in body.items() if k not in ("max_tokens", "temperature")}
    check.equal(what + ": count_tokens", s.ok(COUNT, counted), {"input_tokens": n})


def test_text(s):
    whole = s.ok(MESSAGES, ask())
    chat = s.ok(CHAT, ask())
    text = chat["choices"][0]["message"]["content"]
    check.equal("keys", list(whole),
                ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"],
                )
    check.true("id", whole["id"].startswith("msg_"), whole["id"])
    check.equal("as the chat", (whole["content"], whole["stop_reason"]),
                ([{"type": "text", "text": text}], "end_turn"),
                )
    check.equal("tokens", whole["usage"]["output_tokens"], chat["usage"]["completion_tokens"])
    out = events(s, ask())
    check.equal("streamed", shape(accumulate(out)), shape(whole))
    deltas = [e for e in out if e["type"] == "content_block_delta"]
    check.true("token by token", len(deltas) > 5, len(deltas))
    for seed in (1, 2):
        sampled = ask("Count.", temperature=1, top_k=20, top_p=0.9, seed=seed)
        want = s.ok(CHAT, sampled)["choices"][0]["message"]["content"]
        check.equal(f"seed {seed}",
                    s.ok(MESSAGES, sampled)["content"], [{"type": "text", "text": want}] if want else [],
                    )
    cut = s.ok(MESSAGES, ask(max_tokens=3))
    check.equal("max_tokens", (cut["stop_reason"], cut["usage"]["output_tokens"]), ("max_tokens", 3))
    word = text.split()[2]
    stopped = s.ok(MESSAGES, ask(stop_sequences=["never there", word]))
    check.equal("stop sequence", (stopped["stop_reason"], stopped["stop_sequence"]), ("stop_sequence", word))
    check.equal("text before it", stopped["content"][0]["text"], text[:text.index(word)])
    check.equal("stop sequence, streamed", shape(accumulate(events(s, ask(stop_sequences=[word])))),
                shape(stopped))
    check.equal("nothing before it", s.ok(MESSAGES, ask(stop_sequences=[text[:2]]))["content"], [])
    full = s.ok(MESSAGES, ask(max_tokens=10**9, ignore_eos=True))
    check.equal("a context that is full", full["stop_reason"], "model_context_window_exceeded")
    long = s.post(MESSAGES, ask("word " * 100000))
    check.true("a prompt that is too long", long[0] == 400
               and "maximum context length" in long[1]["error"]["message"], long,
               )
    check.equal("no content: nothing said", s.ok(MESSAGES, ask(stop_sequences=[text]))["content"], [])


def test_prompts(s):
    system, turns = {"role": "system",
                     "content": "Be brief."}, [user("One."), {"role": "assistant", "content": "Two."}, ]
    last = user("Three.")
    parts = [{"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}},
             {"type": "text", "text": "brief."}, ]
    same_prompt("system", s, {"messages": [system, last]}, {"messages": [last], "system": "Be brief."})
    same_prompt("system as one block", s, {"messages": [system, last]},
                {"messages": [last], "system": [{"type": "text", "text": "Be brief."}]},
                )
    same_prompt(
        "system as blocks", s,
        {"messages": [{**system, "content": "Be\nbrief."}, last]}, {"messages": [last], "system": parts},
    )
    same_prompt("no system", s, {"messages": [last]}, {"messages": [last], "system": ""})
    same_prompt("turns", s, {"messages": turns + [last]},
                {"messages": turns + [user([{"type": "text", "text": "Three."}])]},
                )
    same_prompt("prefill", s, {"messages": turns, "continue_final_message": True}, {"messages": turns})
    same_prompt("empty prefill", s, {"messages": [last]},
                {"messages": [last, {"role": "assistant", "content": ""}]})
    same_prompt("two users", s, {"messages": [user([{"type": "text", "text": t} for t in ("a", "b")])]},
                {"messages": [user("a"), user("b")]},
                )
    prefilled = s.ok(MESSAGES, {**ask(), "messages": turns, "max_tokens": 8})
    chat = s.ok(CHAT, {**ask(), "messages": turns, "continue_final_message": True, "max_tokens": 8})
    check.equal("what is continued", text_of(prefilled), chat["choices"][0]["message"]["content"])


def test_images(s, data, word):
    question = {"type": "text", "text": "What is in this picture?"}
    chat = {
        "messages": [user([{"type": "image_url", "image_url": {"url": data_url(data)}}, question])],
        "temperature": 0, "max_tokens": 60,
    }
    body = ask([image(data), question], max_tokens=60)
    text = s.ok(CHAT, chat)["choices"][0]["message"]["content"]
    check.true("the chat sees it", word in text, text)
    whole = s.ok(MESSAGES, body)
    check.equal("an image", whole["content"], [{"type": "text", "text": text}])
    check.equal("streamed", shape(accumulate(events(s, body))), shape(whole))
    same_prompt("image", s, chat | {"max_tokens": 1}, body | {"max_tokens": 1})
    bad = image(b"no image")
    here = "messages[0].content[0].source"

    def sources(**fields):
        return [user([{"type": "image", "source": fields}])]

    for what, messages, where in (
            ("in a message", [user("a"), user([question, bad])], "messages[1].content[1].source"),
            ("behind system", [user([bad])], here),
            ("of media type", sources(**{**bad["source"], "media_type": "text/html"}), here + ".media_type"),
            ("without source", [user([{"type": "image"}])], here),
            ("of a file", sources(type="file", file_id="x"), here + ".type"),
            ("of a URL", sources(type="url", url="ftp://x/y.png"), here)):
        status, answer = s.post(MESSAGES, {**ask(), "messages": messages, "system": "See."})
        check.true(f"a bad image {what}", status == 400
                   and answer["error"]["message"].startswith(where + ": "), answer,
                   )
        status, answer = s.post(COUNT, {"messages": messages, "system": "See."})
        check.true(f"counted {what}", status == 400 and answer["error"]["message"].startswith(where + ": "),
                   answer)


def faults():
    """(fields, where the message says the fault is)"""
    tool = {"name": "t", "input_schema": {"type": "object"}}

    def block(b, role="user"):
        return {"messages": [user(), {"role": role, "content": [b]}]}

    here = "messages[1].content[0]"
    bad = {"type": "json_schema", "schema": {"type": "x"}}
    return [
        ({"max_tokens": None}, "max_tokens"), ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"), ({"temperature": 1.5}, "temperature"), ({"top_k": 1.5}, "top_k"),
        ({"top_p": 2}, "top_p"), ({"stream": 1}, "stream"), ({"messages": None}, "messages"),
        ({"messages": []}, "messages"), ({"messages": "x"}, "messages"), ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [user([])]}, "messages[0].content"), ({"messages": [user(5)]}, "messages[0].content"),
        ({"messages": [user(["x"])]}, "messages[0].content[0]"),
        ({"messages": [user([{"text": "x"}])]}, "messages[0].content[0].type"), ({"system": 5}, "system"),
        ({"system": [5]}, "system[0]"), ({"system": [{"type": "image"}]}, "system[0].type"),
        (block({"type": "text"}), here + ".text"), (block({"type": "text", "text": 5}), here + ".text"),
        (block({"type": "document", "source": {}}), here + ".source"),
        (block({"type": "document", "source": {"type": "base64", "data": "x"}}), here + ".source"),
        (block({"type": "video"}), here + ".type"),
        (block({"type": "thinking", "thinking": "x"}), here + ".type"),
        (block({"type": "tool_use", "id": "a", "name": "t", "input": {}}), here + ".type"),
        (block({"type": "tool_result", "tool_use_id": "a"}, "assistant"), here + ".type"),
        (block({"type": "tool_use", "id": "a", "name": "t", "input": {}}, "assistant"), "messages[1]"),
        (block({"type": "tool_use", "name": "t", "input": {}}, "assistant"), here + ".id"),
        (block({"type": "tool_use", "id": "a", "input": {}}, "assistant"), here + ".name"),
        (block({"type": "tool_use", "id": "a", "name": "t", "input": "x"}, "assistant"), here + ".input"),
        (block({"type": "tool_result"}), here + ".tool_use_id"),
        (block({"type": "tool_result", "tool_use_id": "a", "is_error": 1}), here + ".is_error"),
        (block({"type": "tool_result", "tool_use_id": "a", "content": 5}), here + ".content"),
        (block({"type": "tool_result", "tool_use_id": "a",
                "content": [{"type": "document"}]}), here + ".content[0].source",
         ), (block({"type": "thinking", "thinking": "hm", "signature": ""}, "assistant"), "messages[1]"),
        ({"stop_regex": "x"}, "stop_regex"), ({"typical_p": 0.5}, "typical_p"),
        ({"stop_sequences": "x"}, "stop_sequences"), ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stop_sequences": ["x",
                             5]}, "stop_sequences[1]"), ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"tools": 5}, "tools"), ({"tools": [5]}, "tools[0]"), ({"tools": [{}]}, "tools[0].name"),
        ({"tools": [{"name": "t"}]}, "tools[0]"), ({"tools": [tool, {**tool, "name": "a b"}]}, "tools[1]"),
        ({"tools": [tool, tool]}, "tools[1]"), ({"tools": [tool], "tool_choice": "auto"}, "tool_choice"),
        ({"tools": [tool], "tool_choice": {}}, "tool_choice.type"),
        ({"tools": [tool], "tool_choice": {"type": "all"}}, "tool_choice.type"),
        ({"tools": [tool], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [tool], "tool_choice": {"type": "tool", "name": "u"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [tool],
          "tool_choice": {"type": "auto",
                          "disable_parallel_tool_use": 1}}, "tool_choice.disable_parallel_tool_use",
         ), ({"thinking": True}, "thinking"), ({"thinking": {}}, "thinking.type"),
        ({"thinking": {"type": "on"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": "x"}}, "thinking.budget_tokens"),
        ({"metadata": 5}, "metadata"), ({"metadata": {"user_id": 5}}, "metadata.user_id"),
        ({"output_config": 5}, "output_config"), ({"output_config": {"effort": 5}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ({"output_config": {"format": bad}}, "output_config.format"),
        ({"output_format": bad}, "output_format"),
    ]


def wrong(what, answer, status, where=None):
    got, head, data = answer
    check.equal(what, got, status)
    try:
        body = json.loads(data)
    except ValueError:
        check.true(what, False, data)
        return
    error = body.get("error", {})
    check.true(
        what + ": shape",
        set(body) == {"type", "error"} and body["type"] == "error" and set(error) == {"type", "message"}
        and error["type"] == TYPES[status], body,
    )
    check.true(what + ": id", head.get("request-id") and head["request-id"] == head["x-request-id"], head)
    if where:
        check.true(what + ": where", error.get("message", "").startswith(where + ": "), body)


def test_faults(s):
    for fields, where in faults():
        wrong(f"{fields}"[:120], s.request("POST", MESSAGES, {**ask(), **fields}), 400, where)
    wrong("no JSON", s.request("POST", MESSAGES, b"{"), 400)
    wrong("a list", s.request("POST", MESSAGES, b"[]"), 400)
    wrong("another model", s.request("POST", MESSAGES, ask(model="other")), 404, "model")
    wrong("GET", s.request("GET", MESSAGES), 405)
    wrong("unknown path", s.request("POST", MESSAGES + "/batches", {}), 404)
    wrong("no type", s.request("POST", MESSAGES, b"{}", {"Content-Type": "text/plain"}), 415)
    wrong("unknown model", s.request("GET", "/v1/models/other", headers={"anthropic-version": "2023-06-01"}),
          404,
          )
    other = json.loads(s.request("POST", "/v1/messagesx", {})[2])
    check.true("other paths keep OpenAI's shape", "type" not in other
               and other["error"]["code"] == "unknown_url", other,
               )
    other = s.post(CHAT, {"messages": []}, {"anthropic-version": "2023-06-01"})[1]
    check.true("so do chats", "code" in other["error"], other)


def test_states(binary, demo):
    with tempfile.TemporaryDirectory() as folder:
        keys = os.path.join(folder, "keys")
        with open(keys, "w") as f:
            f.write("secret\n")
        s = Server(binary, demo, "--api-key-file", keys, "--max-body-bytes", "200000", "--accept-any-model")
        wrong("no key", s.request("POST", MESSAGES, ask()), 401)
        wrong("wrong key", s.request("POST", MESSAGES, ask(), {"x-api-key": "no"}), 401)
        wrong("no key, unknown path", s.request("POST", MESSAGES + "/x", {}), 401)
        for header in ({"x-api-key": "secret"}, {"Authorization": "Bearer secret"}):
            check.equal(f"{header}", s.request("POST", MESSAGES, ask(), header)[0], 200)
        key = {"x-api-key": "secret"}
        wrong("too large", s.request("POST", MESSAGES, ask("x" * 300000), key), 413)
        # As coding agents ask.
        tools = [{
            "name": f"Tool{i}", "description": "Does it.",
            "input_schema": {"type": "object", "properties": {}}, "cache_control": {"type": "ephemeral"},
        } for i in range(20)]
        agent = ask([{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}],
                    model="claude-sonnet-4-5",
                    system=[{
                        "type": "text", "text": "You are it.",
                        "cache_control": {"type": "ephemeral", "ttl": "1h"}
                    }],
                    metadata={"user_id": "user_1_account__session_2"},
                    tools=tools,
                    tool_choice={"type": "none"},
                    thinking={"type": "adaptive"},
                    output_config={"effort": "medium"},
                    max_tokens=32000,
                    context_management={"edits": []},
                    service_tier="auto",
                    stop_sequences=["."],
                    )
        status, head, data = s.request(
            "POST", MESSAGES + "?beta=true", agent,
            {**key, "anthropic-version": "2023-06-01", "anthropic-beta": "a-2025,b-2026"},
        )
        check.equal("an agent's request", (status, json.loads(data).get("type")), (200, "message"))
        s.stop()
        s = Server(binary, endless(demo), "--max-queue", "1", "--max-sequences", "1", "--request-timeout",
                   "2")
        out = events(s, ask(max_tokens=ENDLESS, ignore_eos=True))
        check.equal("an error inside a stream", (out[0]["type"], out[-1]["type"], out[-1]["error"]["type"]),
                    ("message_start", "error", "timeout_error"),
                    )
        s.stop()
        s = Server(binary, endless(demo), "--max-queue", "1", "--max-sequences", "1")
        held = [s.connect() for _ in range(2)]
        for i, c in enumerate(held):
            c.request("POST", MESSAGES, json.dumps(ask(max_tokens=ENDLESS, ignore_eos=True)),
                      {"Content-Type": "application/json"},
                      )
            wait_until(lambda: s.held()[1 + i] == 1)
        wrong("a full queue", s.request("POST", MESSAGES, ask()), 429)
        for c in held:
            c.close()
        s.stop()


# ---- tools and thinking, of a checkpoint that says what it is told to ----

TOOLS = [{
    "name": t["function"]["name"], **({
        "description": t["function"]["description"]
    } if "description" in t["function"] else {}), "input_schema": t["function"].get(
        "parameters", {"type": "object"}),
} for t in (tools_test.WEATHER, tools_test.CLOCK)]
CHAT_TOOLS = [{
    "type": "function",
    "function": {**{k: v
                    for k, v in t.items() if k != "input_schema"}, "parameters": t["input_schema"]},
} for t in TOOLS]


def say(script, tools=TOOLS, **fields):
    body = ask("Weather?", max_tokens=1500, chat_template_kwargs={"script": script}, **fields)
    return {**body, "tools": list(tools)} if tools else body


def wanted(made):
    """The blocks of a script."""
    blocks = []
    if made["reasoning"]:
        blocks.append({"type": "thinking", "thinking": made["reasoning"], "signature": "kvasir"})
    if made["text"]:
        blocks.append({"type": "text", "text": made["text"]})
    for name, arguments_text in made["calls"]:
        try:
            value = json.loads(arguments_text)
        except ValueError:
            value = {"INVALID_JSON": arguments_text}
        blocks.append({"type": "tool_use", "name": name, "input": value})
    return blocks


def test_scripts(s):
    for name, (_, made) in SCRIPTS.items():
        whole = s.ok(MESSAGES, say(name))
        check.equal(name, shape(whole)["content"], wanted(made))
        check.equal(name + ": why", whole["stop_reason"], "tool_use" if made["calls"] else "end_turn")
        ids = [b["id"] for b in whole["content"] if b["type"] == "tool_use"]
        check.true(name + ": ids",
                   len(set(ids)) == len(ids) and all(i.startswith("toolu_") and len(i) == 30 for i in ids),
                   ids,
                   )
        out = events(s, say(name))
        check.equal(name + ": streamed", shape(accumulate(out)), shape(whole))
        chat = s.ok(CHAT, tools_test.ask(name))["usage"]
        details = whole["usage"]["output_tokens_details"]
        check.equal(name + ": thinking tokens", details["thinking_tokens"],
                    chat["completion_tokens_details"]["reasoning_tokens"],
                    )
    deltas = [e for e in events(s, say("long")) if e["type"] == "content_block_delta"]
    check.true("arguments come as they are written", len(deltas) > 50, len(deltas))
    one = s.ok(MESSAGES, say("two", tool_choice={"type": "auto", "disable_parallel_tool_use": True}))
    check.equal("one call", [b["type"] for b in one["content"]], ["text", "tool_use"])
    none = s.ok(MESSAGES, say("one", tool_choice={"type": "none"}))
    check.equal("no call", none["content"], [{"type": "text", "text": SCRIPTS["one"][0]}])
    check.equal("thinking that is not shown",
                s.ok(MESSAGES, say("think", thinking={"type": "adaptive", "display": "omitted"}))["content"],
                [{"type": "text", "text": "So: 42."}],
                )


def test_order(s):
    """Text behind a call stays behind it."""
    whole = s.ok(MESSAGES, say("after"))
    kinds = [b["type"] for b in whole["content"]]
    check.equal("order", kinds, ["text", "tool_use", "text"])
    check.equal("order, streamed", shape(accumulate(events(s, say("after")))), shape(whole))


def test_every_length(s):
    for name in ("two", "both", "inside", "broken", "packed", "after"):
        total = s.ok(MESSAGES, say(name))["usage"]["output_tokens"]
        for n in range(1, total):
            whole = s.ok(MESSAGES, {**say(name), "max_tokens": n})
            streamed = accumulate(events(s, {**say(name), "max_tokens": n}))
            if shape(whole) != shape(streamed) or whole["stop_reason"] != "max_tokens":
                check.equal(f"{name} cut at {n}", shape(streamed), shape(whole))
                break
        else:
            check.true(name, True)


def test_round_trip(s):
    calls = [{
        "id": "toolu_1", "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Zürich", "days": 1.0}'},
    }, {"id": "toolu_2", "type": "function", "function": {"name": "clock", "arguments": "{}"}}, ]
    chat = [
        user("Weather?"),
        {"role": "assistant", "content": "I ask.", "reasoning_content": "Hm. Ask.",
         "tool_calls": calls}, {"role": "tool", "tool_call_id": "toolu_1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "Error: no clock"},
        user("And now?"),
    ]
    uses = [{
        "type": "tool_use", "id": c["id"], "name": c["function"]["name"],
        "input": json.loads(c["function"]["arguments"]),
    } for c in calls]
    thoughts = [{"type": "thinking", "thinking": t, "signature": ""} for t in ("Hm. ", "Ask.")]
    results = [{
        "type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "sunny"}]
    }, {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no clock", "is_error": True}, ]
    answer = {
        "role": "assistant", "content": [
            *thoughts, {"type": "redacted_thinking", "data": "xyz"}, {"type": "text", "text": "I ask."},
            *uses,
        ],
    }
    extra = {"chat_template_kwargs": {"script": "plain"}}
    want = {"messages": chat, "tools": CHAT_TOOLS, **extra}
    same_prompt(
        "results", s, want, {
            "messages": [user("Weather?"), answer,
                         user([*results, {"type": "text", "text": "And now?"}])], "tools": TOOLS, **extra,
        },
    )
    same_prompt(
        "results in messages of their own", s, want,
        {"messages": [user("Weather?"), answer, user(results),
                      user("And now?")], "tools": TOOLS, **extra},
    )
    same_prompt(
        "no result", s, {
            "messages": [*chat[:2], {**chat[2], "content": ""}, {**chat[3], "content": "Error: "}],
            "tools": CHAT_TOOLS, **extra,
        }, {
            "messages": [
                user("Weather?"), answer,
                user([{"type": "tool_result", "tool_use_id": "toolu_1"},
                      {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": True}, ]),
            ], "tools": TOOLS, **extra,
        },
    )
    for thinking, enabled in (({"type": "enabled", "budget_tokens": 1024}, True),
                              ({"type": "adaptive"}, True), ({"type": "disabled"}, False),
                              ):
        same_prompt(f"thinking {enabled}", s,
                    {"messages": chat[:1], **extra, "reasoning": {"enabled": enabled}},
                    {"messages": chat[:1], **extra, "thinking": thinking},
                    )
    same_prompt("effort alone", s, {"messages": chat[:1], **extra},
                {"messages": chat[:1], **extra, "output_config": {"effort": "low"}},
                )


# ---- what Claude Code sends ----

HOSTED = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
          {"type": "mcp_toolset", "mcp_server_name": "x"}]
BILLING = "x-anthropic-billing-header: cc_version=2.1.%d.abc; cc_entrypoint=cli; cch=%05d;"


def billed(n, **fields):
    """The system blocks of a request; the first one differs in each."""
    texts = (BILLING % (n, 7 * n), "You are an agent.", "Be brief.")
    blocks = [{"type": "text", "text": t, "cache_control": {"type": "ephemeral"}} for t in texts]
    return ask("Weather?", system=blocks, **fields)


def test_agent(s):
    extra = {"chat_template_kwargs": {"script": "plain"}}
    chat = {"messages": [{"role": "system", "content": "You are an agent.\nBe brief."}, user("Weather?")],
            "tools": CHAT_TOOLS, **extra}
    plain = [{k: v for k, v in t.items() if k != "type"} for t in TOOLS]
    tools = [*HOSTED, *({**t, "cache_control": {"type": "ephemeral"}, "defer_loading": True} for t in plain)]
    same_prompt("without the billing header, hosted tools and notes", s, chat,
                {**billed(1, tools=tools), **extra}, path=MESSAGES + "?beta=true")
    first, second = (s.ok(MESSAGES, billed(n, return_cache_info=True, **extra)) for n in (2, 3))
    check.equal("what is left out", second["cache_info"]["left_out"], ["system[0]"])
    check.equal("the next request's prompt is cached", second["usage"]["input_tokens"], 1)
    end = events(s, billed(4, return_cache_info=True, **extra))[-2]
    check.equal("in a stream", end["cache_info"]["left_out"], ["system[0]"])
    plain = s.ok(MESSAGES, ask(return_cache_info=True, **extra))
    check.true("nothing is", "left_out" not in plain["cache_info"])
    kept = {"role": "system", "content": "You are an agent.\n" + BILLING % (1, 7)}
    texts = [{"type": "text", "text": t} for t in kept["content"].split("\n")]
    same_prompt("elsewhere it is text", s, {"messages": [kept, user("Hm?")], **extra},
                {"system": texts, "messages": [user("Hm?")], **extra})
    first = {"role": "system", "content": BILLING % (1, 7)}
    same_prompt("in a message as well", s, {"messages": [user("Hm?"), first, user("And?")], **extra},
                {"messages": [user("Hm?"), {**first, "content": [{"type": "text", "text": BILLING % (1, 7)}]},
                              user("And?")], **extra})
    document = {"type": "document", "title": "notes.txt", "cache_control": {"type": "ephemeral"},
                "source": {"type": "text", "media_type": "text/plain", "data": "A note."}}
    calls = [{"id": "t1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}]
    server_tool = [{"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
                   {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}]
    use = {"type": "tool_use", "id": "t1", "name": "clock", "input": {}}
    found = [{"type": "tool_reference", "tool_name": "clock"}, document]
    same_prompt(
        "documents, references and server tools", s, {
            "messages": [user("notes.txt\nA note."),
                         {"role": "assistant", "content": "I ask.", "tool_calls": calls},
                         {"role": "tool", "tool_call_id": "t1", "content": "clock\nnotes.txt\nA note."}],
            "tools": CHAT_TOOLS, **extra,
        }, {
            "messages": [user([document]),
                         {"role": "assistant",
                          "content": [*server_tool, {"type": "text", "text": "I ask."}, use]},
                         user([{"type": "tool_result", "tool_use_id": "t1", "content": found}])],
            "tools": TOOLS, **extra,
        })
    long = {"name": "a.b" + "c" * 125, "input_schema": {"type": "object"}}
    check.equal("a name of 128 characters", s.post(MESSAGES, ask(tools=[long]))[0], 200)
    longer = s.post(MESSAGES, ask(tools=[{**long, "name": long["name"] + "d"}]))
    check.equal("and of 129", longer[0], 400)
    many = [{"name": f"mcp__server__tool_{i}", "input_schema": {"type": "object"}} for i in range(512)]
    check.equal("many tools", s.post(COUNT, ask(tools=many))[0], 200)
    check.equal("64 in chats", s.post(CHAT, {**chat, "tools": [{"type": "function", "function": {
        "name": "a" * 65}}]})[0], 400)
    head = {"anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14"}
    body = {**billed(5), **extra, "context_management": {"edits": []}, "thinking": {"type": "adaptive"},
            "output_config": {"effort": "high"}}
    check.equal("beta features", s.request("POST", MESSAGES + "?beta=true", body, head)[0], 200)


def test_billing_kept(binary, demo):
    s = Server(binary, demo, "--billing-header", "keep")
    text = (BILLING % (1, 7)) + "\nYou are an agent.\nBe brief."
    same_prompt("kept", s, {"messages": [{"role": "system", "content": text}, user("Weather?")]}, billed(1))
    s.stop()


# ---- the SDK ----


def client_of(s):
    import anthropic

    return anthropic.Anthropic(base_url=f"http://{s.host}:{s.port}",
                               api_key="none",
                               max_retries=0,
                               timeout=300)


def test_sdk(s, scripted_server):
    try:
        import anthropic
    except ImportError:
        check.skip("the SDK", "the package anthropic is not there")
        return
    client = client_of(s)
    models = client.models.list()
    check.equal("models", [m.id for m in models], [models.data[0].id])
    model = client.models.retrieve(models.data[0].id)
    check.true(
        "model", model.type == "model" and model.max_tokens and model.created_at.year > 2024
        and model.lifecycle == "active", model,
    )
    body = {
        "model": model.id, "max_tokens": 40,
        "messages": [user([image(drawing()), {"type": "text",
                                              "text": "What is it?"}])], "extra_body": {"temperature": 0},
    }
    whole = client.messages.create(**body)
    check.true(
        "create", whole.type == "message" and whole.id == "msg_" + whole._request_id
        and whole.content[0].type == "text", whole,
    )
    with client.messages.stream(**body) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    blocks = [[b.to_dict() for b in m.content] for m in (final, whole)]
    check.equal("stream", (text, blocks[0], final.stop_reason),
                (whole.content[0].text, blocks[1], whole.stop_reason))
    raw = list(client.messages.create(**body, stream=True))
    check.equal("events", (raw[0].type, raw[-1].type), ("message_start", "message_stop"))
    counted = client.messages.count_tokens(model=model.id, messages=body["messages"])
    check.equal("count_tokens", counted.input_tokens,
                final.usage.input_tokens + final.usage.cache_read_input_tokens)
    for kind, call in ((anthropic.BadRequestError,
                        lambda: client.messages.create(**{**body, "messages": []})),
                       (anthropic.NotFoundError,
                        lambda: client.messages.create(**{**body, "model": "other"})),
                       ):
        try:
            call()
            check.true(f"{kind}", False)
        except kind as fault:
            check.true(f"{kind}", fault.request_id and fault.type in TYPES.values(), repr(fault))
    client = client_of(scripted_server)
    model = client.models.list().data[0].id
    for name, (_, made) in SCRIPTS.items():
        ask_it = {
            "model": model, "max_tokens": 1500, "messages": [user("Weather?")], "tools": TOOLS,
            "extra_body": {"temperature": 0, "chat_template_kwargs": {"script": name}},
        }
        whole = client.messages.create(**ask_it)
        if name == "loose":  # the SDK refuses to read a stream with it
            continue
        with client.messages.stream(**ask_it) as stream:
            final = stream.get_final_message()
        got = [{k: v for k, v in b.to_dict().items() if k != "id"} for b in final.content]
        check.equal(name + ", accumulated by the SDK", (got, final.stop_reason),
                    (wanted(made), whole.stop_reason))
    # The loop that every agent runs.
    ask_it = {**ask_it, "extra_body": {"temperature": 0, "chat_template_kwargs": {"script": "two"}}}
    first = client.messages.create(**ask_it)
    results = [{"type": "tool_result", "tool_use_id": b.id, "content": "sunny"} for b in first.content
               if b.type == "tool_use"]
    ask_it["messages"] += [{"role": "assistant", "content": first.content}, user(results)]
    ask_it["extra_body"]["chat_template_kwargs"] = {"script": "plain"}
    check.equal("a turn with results", client.messages.create(**ask_it).content[0].text, SCRIPTS["plain"][0])


if __name__ == "__main__":
    args = arguments(__doc__)
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    SCRIPTS["after"] = ("Before.\n" + tools_test.CALL % "Graz" + "\nBehind it there is more.",
                        {"text": None, "calls": [], "reasoning": None},
                        )
    with open(os.path.join(args.demo, "sample.png"), "rb") as f:
        sample = f.read()
    thinking = scripted.TEMPLATE.split("\n")[
        -1]  # at the beginning of the prompt here: its end chooses the script
    assert "enable_thinking" in thinking
    template = thinking + scripted.TEMPLATE[:-len(thinking)]
    with tempfile.TemporaryDirectory() as top:
        scripted.write(os.path.join(top, "s"),
                       {n: text
                        for n, (text, _) in SCRIPTS.items()} | {"wide": tools_test.WIDE},
                       template=template,
                       )
        del SCRIPTS["after"]
        demo, told = Server(args.binary, args.demo), Server(args.binary, os.path.join(top, "s"))
        for name, function in {
                "text": (test_text, demo), "prompts": (test_prompts, demo),
                "images": (test_images, demo, sample, "red circle"), "faults": (test_faults, told),
                "states": (test_states, args.binary, args.demo), "scripts": (test_scripts, told),
                "order": (test_order, told), "every_length": (test_every_length, told),
                "round_trip": (test_round_trip, told), "agent": (test_agent, told),
                "billing_kept": (test_billing_kept, args.binary, args.demo), "sdk": (test_sdk, demo, told),
        }.items():
            if not args.only or name in args.only:
                check.run(*function)
        check.run(demo.stop)
        check.run(told.stop)
        if not args.only or "images" in args.only:
            seeing = Server(args.binary, os.path.join(root, "models/demo-qwen3-vl"))
            check.run(test_images, seeing, sample, "red circle")
            check.run(seeing.stop)
    check.end()
