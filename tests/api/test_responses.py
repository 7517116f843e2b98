"""POST /v1/responses and related endpoints, as clients use them:
python test_responses.py [--binary B] [--demo DIR]
(with the package `openai` also through its SDK)"""

import json
import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import scripted  # noqa: E402
import test_tools as tools_test  # noqa: E402
from harness import ENDLESS, Checks, Server, arguments, data_url, endless, drawing, wait_until  # noqa: E402

check = Checks()
RESPONSES, COUNT, CHAT = "/v1/responses", "/v1/responses/input_tokens", "/v1/chat/completions"
SCRIPTS = tools_test.SCRIPTS
ENDS = ("response.completed", "response.incomplete", "response.failed")
KEYS = ["background", "completed_at", "created_at", "error", "frequency_penalty", "id", "incomplete_details",
        "instructions", "max_output_tokens", "max_tool_calls", "metadata", "model", "object", "output",
        "parallel_tool_calls", "presence_penalty", "previous_response_id", "prompt_cache_key",
        "prompt_cache_retention", "reasoning", "safety_identifier", "service_tier", "status", "store",
        "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "usage", "user"]
TOOLS = [{"type": "function", **t["function"]} for t in (tools_test.WEATHER, tools_test.CLOCK)]


def ask(asked="What is in this picture?", **fields):
    return {"input": asked, "max_output_tokens": 40, "temperature": 0, **fields}


def message(role, content):
    return {"role": role, "content": content}


def chat_of(text="What is in this picture?", **fields):
    return {"messages": [message("user", text)], "max_tokens": 40, "temperature": 0, **fields}


def image(data, **fields):
    return {"type": "input_image", "image_url": data_url(data), **fields}


def text_of(response):
    return "".join(p["text"] for i in response["output"] if i["type"] == "message" for p in i["content"])


def events(s, body):
    """The events of a stream, whose framing and numbers are checked."""
    status, head, data = s.request("POST", RESPONSES, {**body, "stream": True})
    assert status == 200 and head["content-type"].startswith("text/event-stream"), (status, data[:300])
    assert data.endswith(b"\n\n") and b"\r" not in data and b"[DONE]" not in data
    out = []
    for event in data.decode().split("\n\n")[:-1]:
        name, text = event.split("\n")
        assert name.startswith("event: ") and text.startswith("data: "), event
        out.append(json.loads(text[6:]))
        assert out[-1]["type"] == name[7:], event
    assert [e["sequence_number"] for e in out] == list(range(len(out))), out
    kinds = [e["type"] for e in out]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] in ENDS, kinds
    assert len({e["response"]["id"] for e in out if "response" in e}) == 1
    return out


def accumulate(out):
    """The items that a stream tells, put together from the deltas; `done` events must say the same."""
    items, opened, begin = [], None, out[0]["response"]
    assert (begin["status"], begin["output"], begin["usage"]) == ("in_progress", [], None), begin
    for e in out[2:-1]:
        kind = e["type"][len("response.") :]
        if kind == "output_item.added":
            assert opened is None and e["output_index"] == len(items), e
            opened = e["item"]
            assert opened["status"] == "in_progress" and not opened.get("content", opened.get("arguments")), e
            items.append(opened)
            continue
        assert opened is not None and e["output_index"] == len(items) - 1, e
        if kind == "output_item.done":
            opened["status"] = e["item"]["status"]
            check.equal("item done", opened, e["item"])
            opened = None
            continue
        assert e["item_id"] == opened["id"], e
        if kind.startswith("function_call_arguments"):
            if kind.endswith("delta"):
                opened["arguments"] += e["delta"]
            else:
                assert (e["name"], e["arguments"]) == (opened["name"], opened["arguments"]), e
            continue
        assert e["content_index"] == 0, e
        if kind == "content_part.added":
            opened["content"].append(e["part"])
            continue
        part = opened["content"][0]
        if kind.endswith("_text.delta"):
            part["text"] += e["delta"]
            if kind == "output_text.delta":
                part["logprobs"] += e["logprobs"]
        elif kind.endswith("_text.done"):
            assert e["text"] == part["text"], e
        else:
            assert kind == "content_part.done" and e["part"] == part, e
    assert opened is None
    end = out[-1]["response"]
    check.equal("the last event has the items", end["output"], items)
    return end


def bare(value):
    """Without ids and times."""
    if isinstance(value, dict):
        return {
            k: bare(v)
            for k, v in value.items()
            if k not in ("id", "call_id", "created_at", "completed_at", "cached_tokens")
        }
    return [bare(v) for v in value] if isinstance(value, list) else value


def same_prompt(what, s, chat, body):
    """The prompt is that of the chat, token for token: all but its last token comes from the cache then."""
    n = s.ok(CHAT, {"temperature": 0, **chat, "max_tokens": 1})["usage"]["prompt_tokens"]
    usage = s.ok(RESPONSES, {"temperature": 0, **body, "max_output_tokens": 1})["usage"]
    got = (usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"])
    check.equal(what, got, (n, n - 1))
    counted = {k: v for k, v in body.items() if k not in ("max_output_tokens", "temperature")}
    check.equal(
        what + ": counted", s.ok(COUNT, counted), {"object": "response.input_tokens", "input_tokens": n}
    )


def test_text(s):
    whole, chat = s.ok(RESPONSES, ask()), s.ok(CHAT, chat_of())
    text = chat["choices"][0]["message"]["content"]
    check.equal("keys", sorted(whole), KEYS)
    check.true("ids", whole["id"].startswith("resp_") and whole["output"][0]["id"].startswith("msg_"), whole)
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    check.equal("as the chat", bare(whole["output"]),
                [{"type": "message", "status": "completed", "role": "assistant", "content": [part]}])
    check.equal("tokens", (whole["usage"]["output_tokens"], whole["usage"]["total_tokens"]),
                (chat["usage"]["completion_tokens"], chat["usage"]["total_tokens"]))
    check.equal("streamed", bare(accumulate(events(s, ask()))), bare(whole))
    check.true("token by token", sum(e["type"] == "response.output_text.delta" for e in events(s, ask())) > 5)
    for seed in (1, 2):
        sampled = {"temperature": 1, "top_k": 20, "top_p": 0.9, "seed": seed}
        want = s.ok(CHAT, chat_of("Count.", **sampled))["choices"][0]["message"]["content"]
        check.equal(f"seed {seed}", text_of(s.ok(RESPONSES, ask("Count.", **sampled))), want)
    cut = s.ok(RESPONSES, ask(max_output_tokens=3))
    check.equal("cut", (cut["status"], cut["incomplete_details"], cut["output"][0]["status"]),
                ("incomplete", {"reason": "max_output_tokens"}, "incomplete"))
    check.equal("cut, streamed", bare(accumulate(events(s, ask(max_output_tokens=3)))), bare(cut))
    check.equal("a context that is full",
                s.ok(RESPONSES, ask(max_output_tokens=10**9, ignore_eos=True))["status"], "incomplete")
    empty = s.ok(RESPONSES, ask(stop=[text[:2]]))
    check.equal("nothing said", (text_of(empty), len(empty["output"])), ("", 1))
    check.equal("nothing said, streamed", bare(accumulate(events(s, ask(stop=[text[:2]])))), bare(empty))
    word = text.split()[2]
    check.equal("stop", text_of(s.ok(RESPONSES, ask(stop=[word]))), text[: text.index(word)])


def whole_tool(t):
    """As a response repeats it: with all keys."""
    return {"type": "function", **dict.fromkeys(("name", "description", "parameters", "strict")), **t}


def test_echo(s):
    sent = {"instructions": "Be brief.", "metadata": {"a": "b"}, "user": "u", "temperature": 0.7,
            "top_p": 0.9, "tools": TOOLS, "tool_choice": "none", "parallel_tool_calls": False,
            "top_logprobs": 2, "store": False, "safety_identifier": "x", "prompt_cache_key": "y",
            "prompt_cache_retention": "24h", "presence_penalty": 0.5, "frequency_penalty": -0.25,
            "max_output_tokens": 2, "truncation": "disabled",
            "reasoning": {"effort": "low", "summary": "auto"},
            "text": {"format": {"type": "text"}, "verbosity": "low"}}
    got = s.ok(RESPONSES, {"input": "Hi", **sent})
    check.equal("what the response repeats", {k: got[k] for k in sent},
                {**sent, "tools": [whole_tool(t) for t in TOOLS]})
    form = {"type": "json_schema", "name": "x", "schema": {"type": "boolean"}}
    got = s.ok(RESPONSES, ask(text={"format": form}))
    check.equal("all keys of a format", got["text"]["format"], {"description": None, "strict": False, **form})
    check.equal("penalties", (got["presence_penalty"], got["frequency_penalty"]), (0, 0))
    huge = [
        {**TOOLS[0], "parameters": {"type": "object", "maximum": 10**30, "x": [0.1, -1e300, 1.0, "\u2028\0"]}}
    ]
    check.equal("numbers and texts of any kind",
                s.ok(RESPONSES, ask(tools=huge, tool_choice="none", max_output_tokens=1))["tools"],
                [whole_tool(huge[0])])


def test_logprobs(s):
    for body in (ask(), ask(stop=["image"]), ask(max_output_tokens=5)):
        chat = s.ok(
            CHAT,
            {**chat_of(logprobs=True, top_logprobs=3), "max_tokens": body["max_output_tokens"],
             "stop": body.get("stop")},
        )["choices"][0]
        for include in ({"include": ["message.output_text.logprobs"], "top_logprobs": 3},
                        {"top_logprobs": 3}):
            whole = s.ok(RESPONSES, {**body, **include})
            entries = whole["output"][0]["content"][0]["logprobs"]
            check.equal("entries", entries, chat["logprobs"]["content"][: len(entries)])
            check.true("they are those of the text",
                       "".join(e["token"] for e in entries).startswith(text_of(whole)), entries)
            check.equal("streamed", bare(accumulate(events(s, {**body, **include}))), bare(whole))
    plain = s.ok(RESPONSES, ask(include=["message.output_text.logprobs", "reasoning.encrypted_content"]))
    check.equal("no alternatives",
                {len(e["top_logprobs"]) for e in plain["output"][0]["content"][0]["logprobs"]}, {0})


def test_prompts(s):
    system, turns = message("system", "Be brief."), [message("user", "One."), message("assistant", "Two.")]
    last = message("user", "Three.")
    part = [{"type": "input_text", "text": "Three."}]
    output = {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Tw", "annotations": []},
                    {"type": "refusal", "refusal": "o."}],
    }
    want = {"messages": [system, *turns, last]}
    same_prompt("a text", s, {"messages": [last]}, {"input": "Three."})
    same_prompt(
        "instructions", s, {"messages": [system, last]}, {"input": "Three.", "instructions": "Be brief."}
    )
    two = [{"type": "input_text", "text": t} for t in ("Be", "brief.")]
    joined = [message("system", "Be\nbrief."), last]
    same_prompt(
        "a system message of parts", s, {"messages": joined}, {"input": [message("developer", two), last]}
    )
    same_prompt("turns", s, want, {"input": [*turns, last], "instructions": "Be brief."})
    same_prompt("parts", s, want,
                {"input": [system, turns[0], output, {"type": "message", **message("user", part)}]})


def test_part_strings(binary, demo, folder):
    """A part's strings that only the template knows: a single text stays a part then."""
    path = os.path.join(folder, "languages.jinja")
    with open(path, "w", encoding="utf-8") as f:
        f.write(
            "{% for m in messages %}{% if m.content is string or not m.content[0].source_lang_code %}"
            "{{ raise_exception('no language') }}{% endif %}"
            "{% for p in m.content %}{{ p.source_lang_code }}: {{ p.text }}{% endfor %}{% endfor %}"
        )
    s = Server(binary, demo, "--chat-template", path)
    part = {"text": "Ahoj", "source_lang_code": "cs<|im_end|>"}  # its text, no token
    same_prompt("languages", s, {"messages": [message("user", [{"type": "text", **part}])]},
                {"input": [message("user", [{"type": "input_text", **part}])]})
    s.stop()


def test_conversation(s):
    """A turn that follows by id has the prompt of the chat that sends all again, and finds it cached."""
    texts, messages, before = ["What is in this picture?", "And now?", "Thank you."], [], None
    for i, text in enumerate(texts):
        body = ask(text, previous_response_id=before)
        kept = s.ok(RESPONSES, body) if i % 2 == 0 else accumulate(events(s, body))
        messages.append(message("user", text))
        chat = s.ok(CHAT, {"messages": messages, "max_tokens": 40, "temperature": 0})
        answer = chat["choices"][0]["message"]["content"]
        check.equal(f"turn {i}", (text_of(kept), kept["usage"]["input_tokens"], kept["previous_response_id"]),
                    (answer, chat["usage"]["prompt_tokens"], before))
        if i:  # all that the turns before it left
            found = kept["usage"]["input_tokens_details"]["cached_tokens"]
            check.true(f"turn {i}: cached", found >= held - 1, (found, held))
        held = kept["usage"]["total_tokens"]
        messages.append(message("assistant", answer))
        before = kept["id"]
        check.equal("retrieved", json.loads(s.request("GET", f"{RESPONSES}/{before}")[2]), kept)
    items = json.loads(s.request("GET", f"{RESPONSES}/{before}/input_items")[2])
    check.equal(
        "input items",
        bare(items["data"]),
        [
            {"type": "message", "role": "user", "status": "completed",
             "content": [{"type": "input_text", "text": texts[-1]}]}
        ],
    )
    check.equal("the first id", (items["first_id"], items["has_more"]), (items["data"][0]["id"], False))
    gone = json.loads(s.request("DELETE", f"{RESPONSES}/{before}")[2])
    check.equal("deleted", gone, {"id": before, "object": "response.deleted", "deleted": True})
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")):
        status, _, data = s.request(method, f"{RESPONSES}/{before}{path}")
        check.equal(
            f"{method} {path}", (status, json.loads(data)["error"]["code"]), (404, "response_not_found")
        )
    # What follows upon a deleted one still knows it; a branch, and one that was not kept.
    first = s.ok(RESPONSES, ask("One."))["id"]
    second = s.ok(RESPONSES, ask("Two.", previous_response_id=first))
    s.request("DELETE", f"{RESPONSES}/{first}")
    third = s.ok(RESPONSES, ask("Three.", previous_response_id=second["id"]))
    check.true("after a deletion", third["usage"]["input_tokens"] > second["usage"]["input_tokens"])
    for body in (ask(previous_response_id=first), ask(previous_response_id="resp_x"),
                 ask(previous_response_id=s.ok(RESPONSES, ask(store=False))["id"])):
        status, answer = s.post(RESPONSES, body)
        check.equal("not found", (status, answer["error"]["code"], answer["error"]["param"]),
                    (400, "previous_response_not_found", "previous_response_id"))
    many = [message("user" if i % 2 == 0 else "assistant", f"{i}") for i in range(5)]
    made = s.ok(RESPONSES, ask(many))["id"]
    pages, after = [], ""
    for _ in range(3):
        page = json.loads(s.request("GET", f"{RESPONSES}/{made}/input_items?limit=2&order=asc{after}")[2])
        pages += page["data"]
        after = f"&after={page['last_id']}"
    check.equal("pages", ([i["content"][0]["text"] for i in pages], page["has_more"]), (list("01234"), False))
    down = json.loads(s.request("GET", f"{RESPONSES}/{made}/input_items")[2])["data"]
    check.equal("newest first", [i["content"][0]["text"] for i in down], list("43210"))
    for query in ("limit=0", "limit=x", "order=up", "after=y"):
        check.equal(query, s.request("GET", f"{RESPONSES}/{made}/input_items?{query}")[0], 400)
    for method, path, want in (("POST", "/cancel", 400), ("POST", "", 405), ("DELETE", "/input_items", 405),
                               ("GET", "/cancel", 405), ("GET", "/x", 404), ("GET", "?stream=true", 400),
                               ("PUT", "", 405)):
        check.equal(f"{method} {path}", s.request(method, f"{RESPONSES}/{made}{path}")[0], want)
    only = s.ok(RESPONSES, {"previous_response_id": made, "temperature": 0, "max_output_tokens": 3})
    check.equal("no input of its own", only["status"], "incomplete")


def test_images(s, data, word):
    question = {"type": "input_text", "text": "What is in this picture?"}
    content = [{"type": "image_url", "image_url": {"url": data_url(data)}}, {**question, "type": "text"}]
    chat = {"messages": [message("user", content)], "temperature": 0}
    text = s.ok(CHAT, {**chat, "max_tokens": 40})["choices"][0]["message"]["content"]
    check.true("the chat sees it", word in text, text)
    body = ask([message("user", [image(data, detail="auto"), question])])
    whole = s.ok(RESPONSES, body)
    check.equal("an image", text_of(whole), text)
    check.equal("streamed", bare(accumulate(events(s, body))), bare(whole))
    same_prompt("image", s, chat, body)
    more = s.ok(RESPONSES, ask("And now?", previous_response_id=whole["id"]))
    chat["messages"] += [message("assistant", text), message("user", "And now?")]
    again = s.ok(CHAT, {**chat, "max_tokens": 40})
    check.equal("a turn after it", text_of(more), again["choices"][0]["message"]["content"])
    check.true("the image is cached",
               more["usage"]["input_tokens_details"]["cached_tokens"] >= whole["usage"]["total_tokens"] - 1,
               more["usage"])
    where = "input[1].content[1].image_url"
    bad = [message("user", "a"), message("user", [question, image(b"no image")])]
    for path in (RESPONSES, COUNT):
        status, answer = s.post(path, {"input": bad, "instructions": "See."})
        check.equal(f"a bad image, {path}", (status, answer["error"]["param"]), (400, where))
    status, answer = s.post(RESPONSES, ask([message("user", [{"type": "input_image", "file_id": "f"}])]))
    check.equal("a file", (status, answer["error"]["param"]), (400, "input[0].content[0].file_id"))
    two = {"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}}
    status, answer = s.post(RESPONSES, ask("x", **two))
    want = "structured_outputs can't be combined with text.format."
    check.equal("names its own field", (status, answer["error"]["message"]), (400, want))


def faults():
    """(fields, param of the error)"""
    tool, user = TOOLS[1], message("user", "x")
    call = {"type": "function_call", "call_id": "a", "name": "t", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "a", "output": "x"}

    def item(i):
        return {"input": [user, i]}

    def part(p, role="user"):
        return item(message(role, [p]))

    def without(d, key):
        return {k: v for k, v in d.items() if k != key}

    here = "input[1].content[0]"
    return [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"instructions": 5}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": "9"}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"stream": 1}, "stream"),
        ({"store": 1}, "store"),
        ({"include": "x"}, "include"),
        ({"include": [5]}, "include"),
        ({"stream_options": 5}, "stream_options"),
        ({"background": True}, "background"),
        ({"conversation": "x"}, "conversation"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"truncation": "x"}, "truncation"),
        ({"metadata": 5}, "metadata"),
        ({"metadata": {"a": 5}}, "metadata"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"previous_response_id": 5}, "previous_response_id"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"prompt_cache_key": 5}, "prompt_cache_key"),
        ({"max_tool_calls": -1}, "max_tool_calls"),
        ({"stop_regex": "x"}, "stop_regex"),
        ({"reasoning": 5}, "reasoning"),
        ({"reasoning": {"effort": 5}}, "reasoning.effort"),
        ({"reasoning": {"effort": "x"}}, "reasoning.effort"),
        ({"reasoning": {"max_tokens": "x"}}, "reasoning.max_tokens"),
        ({"thinking_token_budget": -1}, "thinking_token_budget"),
        ({"tools": [{**tool, "name": "a" * 129}]}, "tools[0]"),
        ({"text": 5}, "text"),
        ({"text": {"verbosity": 5}}, "text.verbosity"),
        ({"text": {"format": 5}}, "text.format"),
        ({"text": {"format": {}}}, "text.format.type"),
        ({"text": {"format": {"type": "x"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "name": 5, "schema": {}}}}, "text.format.name"),
        ({"tools": 5}, "tools"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [{}]}, "tools[0]"),
        ({"tools": [tool, {"type": "custom"}]}, "tools[1].name"),
        ({"tools": [tool, {"type": "custom", "name": "x", "format": {"type": "xml"}}]}, "tools[1]"),
        ({"tools": [{"type": "custom", "name": "x", "format": {"type": "grammar"}}]}, "tools[0]"),
        ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0].name"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{**tool, "name": "a b"}]}, "tools[0]"),
        ({"tools": [tool], "tool_choice": "x"}, "tool_choice"),
        ({"tools": [tool], "tool_choice": {}}, "tool_choice.type"),
        ({"tools": [tool], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tools": [tool], "tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tools": [tool], "tool_choice": {"type": "function", "name": "u"}}, "tool_choice"),
        ({"tools": [tool], "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice"),
        (
            {
                "tools": [tool],
                "tool_choice": {"type": "allowed_tools", "mode": "auto",
                                "tools": [{"type": "function", "name": "u"}]},
            },
            "tool_choice",
        ),
        (item({}), "input[1].type"),
        (item({"type": 5}), "input[1].type"),
        (item({"id": "msg_1"}), "input[1].type"),
        (item({"type": "item_reference", "id": "x"}), "input[1].type"),
        (item({"type": "compaction", "encrypted_content": "x"}), "input[1].encrypted_content"),
        (item({"type": "custom_tool_call", "call_id": "a", "name": "t"}), "input[1].input"),
        (item({"role": "user"}), "input[1].content"),
        (item({"type": "message", "content": "x"}), "input[1].role"),
        (item(message("tool", "x")), "input[1].role"),
        (item(message("user", 5)), "input[1].content"),
        (item(message("user", [])), "input[1].content"),
        (part(5), here),
        (part({"text": 5}), here + ".text"),
        (part({"type": "input_file", "file_id": "x"}), here + ".type"),
        (part({"type": "input_image"}), here + ".image_url"),
        (part({"type": "input_text"}), here + ".text"),
        (part({"type": "input_image"}, "assistant"), here),
        (part({"type": "output_text"}, "assistant"), here),
        (item(without(call, "call_id")), "input[1].call_id"),
        (item(without(call, "name")), "input[1].name"),
        (item({**call, "arguments": {}}), "input[1].arguments"),
        (item(without(result, "call_id")), "input[1].call_id"),
        (item(without(result, "output")), "input[1].output"),
        (item({**result, "output": [{"type": "input_file"}]}), "input[1].output[0].type"),
        (item({"type": "reasoning", "content": 5}), "input[1].content"),
        (item({"type": "reasoning", "content": [{}]}), here + ".text"),
    ]


def test_faults(s):
    for fields, where in faults():
        status, answer = s.post(RESPONSES, {"input": "x", **fields})
        error = answer.get("error")
        check.equal(f"{fields}"[:120], (status, error and error["param"]), (400, where))
    for what, (status, answer) in {"no JSON": s.post(RESPONSES, b"{"),
                                   "another model": s.post(RESPONSES, ask(model="other")),
                                   "a long prompt": s.post(RESPONSES, ask("word " * 100000)),
                                   "compact": s.post(RESPONSES + "/compact", {})}.items():
        check.true(what,
                   status in (400, 404) and {"message", "type", "param", "code"} <= set(answer["error"]),
                   answer)


def test_owners(binary, demo):
    """Kept responses are seen by those alone whose they are."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "keys"), "w") as f:
            f.write("one\ntwo\n")
        s = Server(binary, demo, "--api-key-file", f.name)
        one, two = ({"Authorization": f"Bearer {k}"} for k in ("one", "two"))
        mine = s.post(RESPONSES, ask(), one)[1]["id"]
        salted = s.post(RESPONSES, ask(cache_salt="a b"), one)[1]["id"]
        for what, name, head, salt, found in (("its own", mine, one, None, True),
                                              ("another key's", mine, two, None, False),
                                              ("another salt's", mine, one, "a b", False),
                                              ("its salt's", salted, one, "a b", True),
                                              ("no salt's", salted, one, None, False)):
            query = "?cache_salt=a%20b" if salt else ""
            status = s.request("GET", f"{RESPONSES}/{name}{query}", headers=head)[0]
            follow = s.post(RESPONSES, ask(previous_response_id=name, cache_salt=salt), head)[0]
            check.equal(what, (status, follow), (200, 200) if found else (404, 400))
        check.equal("not deleted by others", s.request("DELETE", f"{RESPONSES}/{mine}", headers=two)[0], 404)
        check.equal("no key", s.request("GET", f"{RESPONSES}/{mine}")[0], 401)
        s.stop()


def test_limits(binary, demo):
    s = Server(binary, demo, "--response-store", "0")
    off = s.ok(RESPONSES, ask())
    check.equal(
        "nothing is kept", (off["store"], s.request("GET", f"{RESPONSES}/{off['id']}")[0]), (False, 404)
    )
    check.equal("nor found", s.post(RESPONSES, ask(previous_response_id=off["id"]))[0], 400)
    s.stop()
    s = Server(binary, demo, "--response-store", "16K")
    ids = [s.ok(RESPONSES, ask(f"{i}", max_output_tokens=1))["id"] for i in range(20)]
    there = [s.request("GET", f"{RESPONSES}/{i}")[0] == 200 for i in ids]
    check.true("the newest stay", there == sorted(there) and 1 < sum(there) < 20, there)
    tool = {**TOOLS[1], "description": "x" * 20000}
    large = s.ok(RESPONSES, ask(tools=[tool], tool_choice="none", max_output_tokens=1))
    check.equal("one that is too large", (large["store"], large["tools"]), (False, [whole_tool(tool)]))
    tool["description"] = "\x7f" * 4000  # a byte each in the request, six in the response
    almost = s.ok(RESPONSES, ask(tools=[tool], tool_choice="none", max_output_tokens=1))
    check.equal(
        "one that is too large in the end", (almost["store"], almost["tools"]), (False, [whole_tool(tool)])
    )
    check.equal("the others stay", s.request("GET", f"{RESPONSES}/{ids[-1]}")[0], 200)
    s.stop()


def test_states(binary, demo):
    s = Server(binary, endless(demo), "--max-queue", "1", "--max-sequences", "1", "--request-timeout", "2")
    out = events(s, ask(max_output_tokens=ENDLESS, ignore_eos=True))
    end = out[-1]["response"]
    check.equal("an error inside a stream",
                (out[-1]["type"], end["status"], end["error"]["code"], end["output"]),
                ("response.failed", "failed", "server_error", []))
    check.equal("it is not kept", s.request("GET", f"{RESPONSES}/{end['id']}")[0], 404)
    s.stop()
    s = Server(binary, endless(demo), "--max-queue", "1", "--max-sequences", "1")
    held = [s.connect() for _ in range(2)]
    for i, c in enumerate(held):
        c.request("POST", RESPONSES, json.dumps(ask(max_output_tokens=ENDLESS, ignore_eos=True)),
                  {"Content-Type": "application/json"})
        wait_until(lambda: s.held()[1 + i] == 1)
    check.equal("a full queue", s.post(RESPONSES, ask())[0], 429)
    for c in held:
        c.close()
    check.true("they end with their clients", wait_until(lambda: s.held() == (0, 0, 0)))
    s.stop()


# ---- tools and reasoning, of a checkpoint that says what it is told to ----


def say(script, tools=TOOLS, **fields):
    body = {**ask("Weather?"), "max_output_tokens": 1500, "chat_template_kwargs": {"script": script},
            **fields}
    return {**body, "tools": tools} if tools else body


def wanted(made):
    """The items of a script."""
    items = []
    if made["reasoning"]:
        items.append(
            {"type": "reasoning", "status": "completed", "summary": [],
             "content": [{"type": "reasoning_text", "text": made["reasoning"]}]}
        )
    if made["text"] or not made["calls"]:
        part = {"type": "output_text", "text": made["text"] or "", "annotations": [], "logprobs": []}
        items.append({"type": "message", "status": "completed", "role": "assistant", "content": [part]})
    for name, text in made["calls"]:
        items.append({"type": "function_call", "status": "completed", "name": name, "arguments": text})
    return items


def test_scripts(s):
    for name, (_, made) in SCRIPTS.items():
        whole = s.ok(RESPONSES, say(name))
        check.equal(name, bare(whole["output"]), wanted(made))
        ids = [i["call_id"] for i in whole["output"] if i["type"] == "function_call"]
        check.true(name + ": ids", len(set(ids)) == len(ids) and all(i.startswith("call_") for i in ids), ids)
        check.equal(name + ": streamed", bare(accumulate(events(s, say(name)))), bare(whole))
        chat = s.ok(CHAT, tools_test.ask(name))["usage"]["completion_tokens_details"]
        check.equal(name + ": reasoning tokens", whole["usage"]["output_tokens_details"]["reasoning_tokens"],
                    chat["reasoning_tokens"])
    deltas = [e for e in events(s, say("long")) if e["type"].endswith("arguments.delta")]
    check.true("arguments come as they are written", len(deltas) > 50, len(deltas))
    one = s.ok(RESPONSES, say("two", parallel_tool_calls=False))
    check.equal("one call", [i["type"] for i in one["output"]], ["message", "function_call"])
    none = s.ok(RESPONSES, say("one", tool_choice="none"))
    check.equal("no call", text_of(none), SCRIPTS["one"][0])


def test_every_length(s):
    """Cut anywhere, with log-probs: streamed and whole are the same."""
    for name in ("two", "both", "inside", "broken", "packed", "after"):
        total = s.ok(RESPONSES, say(name))["usage"]["output_tokens"]
        for n in range(1, total):
            body = say(name, max_output_tokens=n, top_logprobs=1)
            whole, streamed = s.ok(RESPONSES, body), accumulate(events(s, body))
            states = [i["status"] for i in whole["output"]]
            fine = (
                bare(whole) == bare(streamed)
                and whole["status"] == "incomplete"
                and states == ["completed"] * (len(states) - 1) + ["incomplete"]
            )
            if not fine:
                check.equal(f"{name} cut at {n}", bare(streamed), bare(whole))
                check.true(f"{name} cut at {n}", False, states)
                break
        else:
            check.true(name, True)


def test_held_back(s):
    """What may begin a tag is held back; cut there, it is text with its log-probs."""
    whole = s.ok(RESPONSES, say("two", max_output_tokens=5, top_logprobs=1))
    part = whole["output"][0]["content"][0]
    check.equal("log-probs", "".join(e["token"] for e in part["logprobs"]), part["text"])


def test_order(s):
    """Text behind a call stays behind it, with its log-probs; the turn is one message of the chat again."""
    whole = s.ok(RESPONSES, say("after", top_logprobs=1))
    check.equal("order", [i["type"] for i in whole["output"]], ["message", "function_call", "message"])
    for i in (0, 2):
        part = whole["output"][i]["content"][0]
        tokens = "".join(e["token"] for e in part["logprobs"])
        check.true(
            f"log-probs of text {i}", part["text"].strip() in tokens and "tool_call" not in tokens, tokens
        )
    check.equal("order, streamed", bare(accumulate(events(s, say("after", top_logprobs=1)))), bare(whole))


def test_round_trip(s):
    calls = [
        {"id": f"call_{i}", "type": "function", "function": {"name": n, "arguments": a}}
        for i, (n, a) in enumerate((("get_weather", '{"city": "Zürich", "days": 1.0}'), ("clock", "{}")))
    ]
    chat = [message("user", "Weather?"),
            {**message("assistant", "I ask."), "reasoning_content": "Hm. Ask.", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "call_0", "content": "sunny"},
            {"role": "tool", "tool_call_id": "call_1", "content": "no clock"}, message("user", "And now?")]
    uses = [
        {"type": "function_call", "id": f"fc_{i}", "call_id": c["id"], **c["function"]}
        for i, c in enumerate(calls)
    ]
    reasoning = [
        {"type": "reasoning", "id": "rs_1", "summary": [],
         "content": [{"type": "reasoning_text", "text": t} for t in ("Hm. ", "Ask.")]}
    ]
    results = [
        {"type": "function_call_output", "call_id": "call_0", "output": "sunny"},
        {"type": "function_call_output", "call_id": "call_1",
         "output": [{"type": "input_text", "text": "no clock"}]},
    ]
    items = [message("user", "Weather?"), *reasoning, message("assistant", "I ask."), *uses, *results,
             message("user", "And now?")]
    extra = {"chat_template_kwargs": {"script": "plain"}}
    chat_tools = [tools_test.WEATHER, tools_test.CLOCK]
    same_prompt("a turn with calls", s, {"messages": chat, "tools": chat_tools, **extra},
                {"input": items, "tools": TOOLS, **extra})
    hidden = {"type": "reasoning", "id": "rs_2", "summary": [{"type": "summary_text", "text": "x"}],
              "encrypted_content": "xyz"}
    text = {"type": "message", "id": "msg_1", "role": "assistant",
            "content": [{"type": "output_text", "text": "I a"}, {"type": "output_text", "text": "sk."}]}
    said = message("assistant", "I ask.")
    same_prompt("two answers", s, {"messages": [chat[0], said, said, chat[-1]], **extra},
                {"input": [chat[0], said, text, chat[-1]], **extra})
    same_prompt(
        "reasoning without text", s, {"messages": chat[:1], **extra}, {"input": [items[0], hidden], **extra}
    )
    for effort in ("none", "low"):
        same_prompt(f"effort {effort}", s, {"messages": chat[:1], **extra, "reasoning_effort": effort},
                    {"input": items[:1], **extra, "reasoning": {"effort": effort}})
    # What the server keeps comes to the same as what a client sends back, and as the chat.
    for name in ("two", "both", "after", "think"):
        first = s.ok(RESPONSES, say(name))
        out = [
            {"type": "function_call_output", "call_id": i["call_id"], "output": "sunny"}
            for i in first["output"]
            if i["type"] == "function_call"
        ]
        follow = [*out, message("user", "And now?")]
        sent = say("plain", input=[message("user", "Weather?"), *first["output"], *follow])
        kept = say("plain", input=follow, previous_response_id=first["id"])
        a, b = s.ok(RESPONSES, sent), s.ok(RESPONSES, kept)
        n = a["usage"]["input_tokens"]
        check.equal(f"{name}: kept and sent",
                    (b["usage"]["input_tokens"], b["usage"]["input_tokens_details"]["cached_tokens"]),
                    (n, n - 1))
        if name == "after":
            continue
        made = SCRIPTS[name][1]
        turn = {**message("assistant", made["text"] or "")}
        if made["reasoning"]:
            turn["reasoning_content"] = made["reasoning"]
        if made["calls"]:
            turn["tool_calls"] = [
                {"id": i["call_id"], "type": "function",
                 "function": {"name": i["name"], "arguments": i["arguments"]}}
                for i in first["output"]
                if i["type"] == "function_call"
            ]
        rest = [{"role": "tool", "tool_call_id": o["call_id"], "content": "sunny"} for o in out]
        same_prompt(f"{name}: as the chat", s,
                    {"messages": [chat[0], turn, *rest, chat[-1]], "tools": chat_tools, **extra}, kept)


def test_forms(s):
    """Constrained answers, by this API's own fields."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    got = s.ok(RESPONSES, ask(text={"format": form}))
    check.true("a schema", set(json.loads(text_of(got))) == {"ok"}, text_of(got))
    check.equal("it is repeated", got["text"], {"format": {"description": None, **form}})


def test_calls(s):
    for choice, names in (
        ("required", {"get_weather", "clock"}),
        ({"type": "function", "name": "clock"}, {"clock"}),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "clock"}]},
         {"clock"}),
    ):
        got = s.ok(RESPONSES, say("plain", tool_choice=choice))
        calls = [i for i in got["output"] if i["type"] == "function_call"]
        check.true(f"{choice}", calls and {c["name"] for c in calls} <= names, got["output"])
        check.equal(f"{choice}: repeated", got["tool_choice"], choice)
    ask = say("plain", tool_choice="required", stop=["}"])
    whole = s.ok(RESPONSES, ask)
    check.equal("stopped within its arguments", [i["status"] for i in whole["output"]], ["incomplete"])
    streamed = accumulate(events(s, ask))
    check.equal("streamed", [i["status"] for i in streamed["output"]], ["incomplete"])


# ---- the SDK ----


# ---- tools of other types ----

LARK = """start: "*** Begin" LF line+ "*** End"
line: /[+-][a-c"]{0,3}/ LF
%import common.LF
"""
PATCH = {"type": "custom", "name": "patch", "description": "Edits files.",
         "format": {"type": "grammar", "syntax": "lark", "definition": LARK}}
CODE = {**PATCH, "name": "code",
        "format": {"type": "grammar", "syntax": "regex", "definition": 'a"[0-9]{3}\\\\\n'}}
NOTE = {"type": "custom", "name": "note"}
ADD = {"type": "function", "name": "add", "defer_loading": True,
       "parameters": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}}
GROUP = {"type": "namespace", "name": "mcp__calc", "description": "Sums.", "tools": [ADD]}
HOSTED = [{"type": "web_search"}, {"type": "local_shell"},
          {"type": "image_generation", "output_format": "png"}]


def test_tool_types(s):
    """Custom tools, namespaces and hosted tools; the model writes nonsense: calls are forced."""
    tools = [*HOSTED, PATCH, CODE, NOTE, GROUP]
    for name, form in (("patch", r'\*\*\* Begin\n([+-][a-c"]{0,3}\n)+\*\*\* End'),
                       ("code", 'a"[0-9]{3}\\\\\n')):
        for seed in range(3):
            body = ask(tools=tools, tool_choice={"type": "custom", "name": name}, max_output_tokens=300,
                       temperature=1, seed=seed, logit_bias={})
            whole = s.ok(RESPONSES, body)
            item = whole["output"][0]
            check.equal(name, (item["type"], item["name"]), ("custom_tool_call", name))
            if whole["status"] == "completed":
                check.true(name + ": its grammar", re.fullmatch(form, item["input"]), item)
            out = events(s, body)
            check.equal(name + ": streamed", bare(out[-1]["response"]["output"]), bare(whole["output"]))
            kinds = [e["type"].partition(".")[2] for e in out[2:-1]]
            input_events = [f"custom_tool_call_input.{k}" for k in ("delta", "done")]
            check.equal(name + ": events", kinds, ["output_item.added", *input_events, "output_item.done"])
            check.equal(name + ": begun", out[2]["item"]["input"], "")
            check.equal(name + ": done", out[4]["input"], item["input"])
    first = s.ok(RESPONSES,
                 ask(tools=tools, tool_choice={"type": "custom", "name": "code"}, max_output_tokens=300))
    result = {"type": "custom_tool_call_output", "call_id": first["output"][0]["call_id"], "output": "done"}
    whole = [message("user", "What is in this picture?"), *first["output"], result]
    count = s.ok(COUNT, {"tools": tools, "input": whole})["input_tokens"]
    kept = {"tools": tools, "input": [result], "previous_response_id": first["id"]}
    check.equal("a kept custom call", s.ok(COUNT, kept)["input_tokens"], count)
    cut = s.ok(
        RESPONSES, ask(tools=tools, tool_choice={"type": "custom", "name": "patch"}, max_output_tokens=55)
    )
    check.true("a cut input is text", cut["output"][0]["input"].startswith("*** Begin\n"), cut["output"])
    check.equal("repeated as sent", [t for t in cut["tools"] if t["type"] != "function"], tools)
    body = ask(tools=tools, tool_choice={"type": "function", "name": "mcp__calc__add"}, max_output_tokens=200)
    item = s.ok(RESPONSES, body)["output"][0]
    check.equal("its namespace", (item["type"], item["namespace"], item["name"]),
                ("function_call", "mcp__calc", "add"))
    check.true("its arguments", json.loads(item["arguments"])["n"] in (1, 2), item)
    for choice in ({"name": "add", "namespace": "mcp__calc"}, {"name": "add"}):
        body["tool_choice"] = {"type": "function", **choice}
        item = s.ok(RESPONSES, body)["output"][0]
        check.equal(f"chosen by {choice}", (item["namespace"], item["name"]), ("mcp__calc", "add"))
    body["tool_choice"] = {"type": "function", "name": "add", "namespace": "other"}
    check.equal("of another namespace", s.post(RESPONSES, body)[0], 400)
    long = "mcp." + "a-long_name." * 10 + "tool"
    body = ask(tools=[{"type": "function", "name": long}], tool_choice="required", max_output_tokens=200)
    check.equal(
        "a name of 128 characters", (len(long), s.ok(RESPONSES, body)["output"][0]["name"]), (128, long)
    )
    nested = ask(tools=[{"type": "function", "function": {"name": "f"}}], max_output_tokens=200)
    nested["tool_choice"] = {"type": "function", "function": {"name": "f"}}
    check.equal("tools and a choice as in chats", s.ok(RESPONSES, nested)["output"][0]["name"], "f")
    check.equal("only hosted tools: none", s.ok(RESPONSES, ask(tools=HOSTED))["output"][0]["type"], "message")
    allowed = {"type": "allowed_tools", "mode": "required",
               "tools": [{"type": "web_search"}, {"type": "custom", "name": "code"}]}
    item = s.ok(RESPONSES, ask(tools=tools, tool_choice=allowed, max_output_tokens=200))["output"][0]
    check.equal("allowed tools", item["name"], "code")
    for one in ({"type": "function", "name": "add", "namespace": "mcp__calc"},
                {"type": "function", "name": "add"}, {"type": "namespace", "name": "mcp__calc"}):
        body = ask(tools=tools, tool_choice={**allowed, "tools": [one]}, max_output_tokens=200)
        got = s.ok(RESPONSES, body)
        item = got["output"][0]
        check.equal(f"allowed {one}", (item["namespace"], item["name"]), ("mcp__calc", "add"))
        check.equal("the choice is repeated as sent", got["tool_choice"]["tools"], [one])
        check.equal("counted", s.post(COUNT, body)[0], 200)
    wrong = {"type": "function", "name": "add", "namespace": "x"}
    for one in ({"type": "namespace", "name": "other"}, wrong):
        body = ask(tools=tools, tool_choice={**allowed, "tools": [one]})
        status, answer = s.post(RESPONSES, body)
        check.equal(f"allowed {one}", (status, answer["error"]["param"]), (400, "tool_choice"))
    status, answer = s.post(
        RESPONSES,
        ask(tools=[{**PATCH, "format": {**PATCH["format"], "definition": "start: x"}}],
            tool_choice="required"),
    )
    check.equal("a wrong grammar", (status, answer["error"]["param"]), (400, "tools.patch.format"))


def test_items_of_tools(s):
    """Calls and results of all kinds go back into the prompt as those of functions do."""
    call = {"id": "call_1", "type": "function",
            "function": {"name": "patch", "arguments": '{"input": "a\\n\\"b\\""}'}}
    group = {**call, "function": {"name": "mcp__calc__add", "arguments": '{"n": 1}'}}
    chat = [message("user", "Weather?"), {**message("assistant", ""), "tool_calls": [call, group]}]
    chat += [{"role": "tool", "tool_call_id": "call_1", "content": "done"}]
    items = [
        message("user", "Weather?"),
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
        {"type": "custom_tool_call", "call_id": "call_1", "name": "patch", "input": 'a\n"b"'},
        {"type": "function_call", "call_id": "call_1", "namespace": "mcp__calc", "name": "add",
         "arguments": '{"n": 1}'},
        {"type": "ghost_snapshot", "ghost_commit": {}},
        {"type": "mcp_call", "id": "m", "server_label": "s", "name": "n", "arguments": "{}", "output": "x"},
        {"type": "local_shell_call_output", "id": "l", "output": "x"},
        {"type": "custom_tool_call_output", "call_id": "call_1", "output": "done"},
    ]
    same_prompt("items", s, {"messages": chat}, {"input": items})
    whole = s.ok(RESPONSES, say("think", include=["reasoning.encrypted_content"]))
    thought, text = whole["output"]
    check.true("sealed", thought["content"][0]["text"] in thought["encrypted_content"], thought)
    streamed = accumulate_sealed(s, say("think", include=["reasoning.encrypted_content"]))
    check.equal("sealed, streamed", streamed, thought["encrypted_content"])
    sealed = {k: thought[k] for k in ("type", "id", "summary", "encrypted_content")}
    asked = [message("user", "Weather?"), sealed, text, message("user", "And now?")]
    shown = [message("user", "Weather?"),
             {**message("assistant", text_of(whole)), "reasoning_content": thought["content"][0]["text"]}]
    same_prompt("reasoning from its sealed text", s, {"messages": [*shown, message("user", "And now?")]},
                {"input": asked})
    check.true("not asked for", "encrypted_content" not in s.ok(RESPONSES, say("think"))["output"][0], "")


def accumulate_sealed(s, body):
    return [e["item"] for e in events(s, body) if e["type"] == "response.output_item.done"][0][
        "encrypted_content"
    ]


def client_of(s):
    import openai

    return openai.OpenAI(base_url=f"http://{s.host}:{s.port}/v1", api_key="none", max_retries=0, timeout=300)


def test_sdk(s, told):
    try:
        import openai
    except ImportError:
        check.skip("the SDK", "the package openai is not there")
        return
    client = client_of(s)
    model = client.models.list().data[0].id
    body = {
        "model": model,
        "temperature": 0,
        "input": [
            message("user", [image(drawing(), detail="auto"), {"type": "input_text", "text": "What is it?"}])
        ],
    }
    whole = client.responses.create(**body)
    check.true(
        "create", whole.output_text and whole.status == "completed" and whole.usage.output_tokens, whole
    )
    with client.responses.stream(**body) as stream:
        deltas = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    check.equal("stream", (deltas, final.output_text), (whole.output_text, whole.output_text))
    raw = list(client.responses.create(**body, stream=True))
    check.equal("events", (raw[0].type, raw[-1].type), ("response.created", "response.completed"))
    check.equal("count", client.responses.input_tokens.count(model=model, input=body["input"]).input_tokens,
                whole.usage.input_tokens)
    more = client.responses.create(
        model=model, input="And now?", previous_response_id=whole.id, temperature=0
    )
    check.true("a next turn", more.usage.input_tokens_details.cached_tokens >= whole.usage.total_tokens - 1,
               more.usage)
    check.equal("retrieve", client.responses.retrieve(more.id).output_text, more.output_text)
    items = client.responses.input_items.list(whole.id)
    check.equal("input items", [(i.role, [c.type for c in i.content]) for i in items],
                [("user", ["input_image", "input_text"])])
    client.responses.delete(more.id)
    for kind, call in ((openai.NotFoundError, lambda: client.responses.retrieve(more.id)),
                       (openai.BadRequestError, lambda: client.responses.cancel(whole.id)),
                       (openai.BadRequestError, lambda: client.responses.create(model=model, input=[]))):
        try:
            call()
            check.true(f"{kind}", False)
        except kind as fault:
            check.true(f"{kind}", fault.code and fault.type == "invalid_request_error", repr(fault))
    from pydantic import BaseModel

    class Answer(BaseModel):
        ok: bool

    parsed = client.responses.parse(model=model, input="x", text_format=Answer, temperature=0)
    check.true("parse", isinstance(parsed.output_parsed, Answer), parsed)
    client = client_of(told)
    model = client.models.list().data[0].id
    for name, (_, made) in SCRIPTS.items():
        asked = {"model": model, "input": "Weather?", "tools": TOOLS, "temperature": 0,
                 "max_output_tokens": 1500, "extra_body": {"chat_template_kwargs": {"script": name}}}
        with client.responses.stream(**asked) as stream:
            seen = [e for e in stream]
            final = stream.get_final_response()
        got = bare(
            [{k: v for k, v in i.to_dict().items() if k not in ("parsed_arguments",)} for i in final.output]
        )
        for i in got:
            for part in i.get("content") or []:
                part.pop("parsed", None)
        check.equal(name + ", accumulated by the SDK", got, wanted(made))
        snapshots = [e for e in seen if e.type == "response.function_call_arguments.delta"]
        check.true(name + ": snapshots", not snapshots or snapshots[-1].snapshot == made["calls"][-1][1])
    # The loop that every agent runs.
    asked = {**asked, "extra_body": {"chat_template_kwargs": {"script": "two"}}}
    first = client.responses.create(**asked)
    results = [
        {"type": "function_call_output", "call_id": i.call_id, "output": "sunny"}
        for i in first.output
        if i.type == "function_call"
    ]
    asked["extra_body"] = {"chat_template_kwargs": {"script": "plain"}}
    for what, fields in (("sent", {"input": [message("user", "Weather?"), *first.output, *results]}),
                         ("kept", {"input": results, "previous_response_id": first.id})):
        check.equal(f"results, {what}", client.responses.create(**{**asked, **fields}).output_text,
                    SCRIPTS["plain"][0])


def run(args, top):
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    with open(os.path.join(args.demo, "sample.png"), "rb") as f:
        sample = f.read()
    images = os.path.join(root, "models/demo-qwen3-vl")
    told = os.path.join(top, "told")
    after = ("Before.\n" + tools_test.CALL % "Graz" + "\nBehind it there is more.", None)
    thinking = scripted.TEMPLATE.split("\n")[-1]  # at the beginning of the prompt: its end chooses the script
    scripted.write(
        told,
        {n: text for n, (text, _) in {**SCRIPTS, "after": after}.items()} | {"wide": tools_test.WIDE},
        template=thinking + scripted.TEMPLATE[: -len(thinking)],
    )
    servers = {"demo": lambda: Server(args.binary, args.demo), "told": lambda: Server(args.binary, told),
               "images": lambda: Server(args.binary, images)}
    tests = {"text": (test_text, "demo"), "echo": (test_echo, "demo"), "logprobs": (test_logprobs, "demo"),
             "prompts": (test_prompts, "demo"),
             "part_strings": (test_part_strings, args.binary, args.demo, top),
             "conversation": (test_conversation, "demo"),
             "images": (test_images, "demo", sample, "red circle"),
             "images_qwen": (test_images, "images", sample, "circle"), "faults": (test_faults, "told"),
             "owners": (test_owners, args.binary, args.demo), "limits": (test_limits, args.binary, args.demo),
             "states": (test_states, args.binary, args.demo), "scripts": (test_scripts, "told"),
             "every_length": (test_every_length, "told"), "held_back": (test_held_back, "told"),
             "order": (test_order, "told"), "round_trip": (test_round_trip, "told"),
             "forms": (test_forms, "demo"), "calls": (test_calls, "told"),
             "tool_types": (test_tool_types, "images"), "items_of_tools": (test_items_of_tools, "told"),
             "sdk": (test_sdk, "demo", "told")}
    running = {}
    for name, (function, *given) in tests.items():
        if args.only and name not in args.only:
            continue
        for g in given:
            if isinstance(g, str) and g in servers and g not in running:
                running[g] = servers[g]()
        check.run(function, *[running.get(g, g) if isinstance(g, str) else g for g in given])
    for s in running.values():
        check.run(s.stop)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as top_folder:
        run(arguments(__doc__), top_folder)
    check.end()
