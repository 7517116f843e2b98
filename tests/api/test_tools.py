"""Tools and reasoning over HTTP, with checkpoints with scripted output: python test_tools.py [--binary B]
(with the package `openai` also through its SDK)"""
import json
import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import scripted  # noqa: E402
from harness import Checks, Server, arguments, stream_text  # noqa: E402

check = Checks()
CHAT = "/v1/chat/completions"

# Key order, numbers and characters as here reach the prompt.
WEATHER = {"type": "function", "function": {"description": "Wetter für <Ort> & \"Tage\"", "name": "get_weather", "strict": False, "parameters": {
    "type": "object", "required": ["city"], "properties": {"days": {"type": "integer", "maximum": 1e2, "minimum": -1, "default": 1.0}, "city": {"type": "string"}},
    "additionalProperties": False}}}
CLOCK = {"type": "function", "function": {"name": "clock"}}

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "%s"}}\n</tool_call>'


def made(text="", calls=(), reasoning=None):
    return {"text": text, "calls": list(calls), "reasoning": reasoning}


OTHER_JSON = '\n```json\n{"name": "get_wetter", "arguments": {"city": "Graz"}}\n```\n'

# name: (text of the model, what is made of it)
SCRIPTS = {
    "one": (CALL % "Oslo", made(calls=[("get_weather", '{"city": "Oslo"}')])),
    "tag": ('Tag as one token.\n{TAG}\n{"name": "clock", "arguments": {}}\n</tool_call>', made("Tag as one token.", [("clock", "{}")])),
    "two": ("I ask twice.\n" + CALL % "Zürich 北京 😀" + "\n" + '<tool_call>\n{"arguments": {"b": [1.50, "}\\u00e9\\""]}, "name": "clock"}\n</tool_call>',
            made("I ask twice.", [("get_weather", '{"city": "Zürich 北京 😀"}'), ("clock", '{"b": [1.50, "}\\u00e9\\""]}')])),
    "packed": ('<tool_call>{"name": "clock", "arguments": "{\\"packed\\": \\"\\u00fc\\"}"}</tool_call>', made(calls=[("clock", '{"packed": "ü"}')])),
    "noend": ('<tool_call>\n{"name": "no_end_tag", "arguments": {"x": null}}', made(calls=[("no_end_tag", '{"x": null}')])),
    "broken": ('Broken.\n<tool_call>\n{"name": broken}\n</tool_call> !', made('Broken.\n<tool_call>\n{"name": broken}\n</tool_call> !')),
    "loose": ('<tool_call>\n{"name": "loose", "arguments": {"flag": True}}\n</tool_call>', made(calls=[("loose", '{"flag": true}')])),
    "plain": ("Just a <b>word</b>, no tool at all.", made("Just a <b>word</b>, no tool at all.")),
    "think": ("<think>\nFirst, hm.\n" + CALL % "Rom" + "\n</think>\n\nSo: 42.", made("So: 42.", reasoning="First, hm.\n" + CALL % "Rom")),
    "both": ("<think>\nMust call.\n</think>\n\n" + CALL % "Lima", made(calls=[("get_weather", '{"city": "Lima"}')], reasoning="Must call.")),
    "inside": ("\nAlready in it.\n</think>\n\nOut of it.\n" + CALL % "Bern", made("Out of it.", [("get_weather", '{"city": "Bern"}')], "Already in it.")),
    "never": ("<think>\nNever ends, this", made("", reasoning="Never ends, this")),
    "empty": ("<think>\n\n</think>\n\nNo thought.", made("No thought.")),
    "long": ('<tool_call>\n{"name": "write_file", "arguments": {"body": "' + " ".join(f"w{k}" for k in range(150)) + '"}}\n</tool_call>',
             made(calls=[("write_file", '{"body": "' + " ".join(f"w{k}" for k in range(150)) + '"}')])),
    # Calls as plain JSON, and JSON that is none.
    "json": ('{"name": "get_weather", "arguments": {"city": "Kiel"}}',
             made(calls=[("get_weather", '{"city": "Kiel"}')])),
    "json_fence": ('<think>\nCall.\n</think>\n\n```json\n[{"name": "clock", "parameters": {}},\n'
                   ' {"name": "get_weather", "arguments": {"city": "Köln"}}]\n```',
                   made(calls=[("clock", "{}"), ("get_weather", '{"city": "Köln"}')], reasoning="Call.")),
    "json_hour": ('{"name": "clock", "arguments": {"hour": 12}}',
                  made(calls=[("clock", '{"hour": 12}')])),
    "json_other": (OTHER_JSON, made(OTHER_JSON)),
}
JSON_SCRIPTS = [name for name in SCRIPTS if name.startswith("json")]


# A call whose arguments are known at once, and are longer than a line should be.
WIDE = ['<tool_call>\n{"arguments": {"wide": "', "a" + "ü" * 30000, '"}, "name": "wide"}', "\n</tool_call>\n"]
SCRIPTS["wide"] = ("".join(WIDE), made(calls=[("wide", '{"wide": "a' + "ü" * 30000 + '"}')]))
# A call in reasoning without end is one.
SCRIPTS["unclosed"] = ("<think>\nI look.\n" + CALL % "Rom" + "\nAnd:\n" + CALL % "Ulm",
                       made(calls=[("get_weather", '{"city": "%s"}' % city) for city in ("Rom", "Ulm")],
                            reasoning="I look.\nAnd:"))


def ask(script, tools=(WEATHER, CLOCK), **fields):
    body = {"messages": [{"role": "user", "content": "Weather?"}], "temperature": 0, "max_tokens": 1500, "chat_template_kwargs": {"script": script}, **fields}
    return {**body, "tools": list(tools)} if tools else body


def text_of(script):
    return SCRIPTS[script][0].replace("{TAG}", "<tool_call>")


def shape(message):
    """The parts of a message that must not depend on streaming."""
    return {"text": message.get("content"), "calls": [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or []],
            "reasoning": message.get("reasoning_content")}


def accumulate(chunks, index=0):
    """As the SDKs do: texts of equal keys are put together, null is nothing."""
    message, finish, stop = {}, None, None
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] != index:
                continue
            delta = choice["delta"]
            for key in ("role", "content", "reasoning_content"):
                if key in delta:
                    message[key] = (message.get(key) or "") + delta[key] if delta[key] is not None else message.get(key)
            for c in delta.get("tool_calls", []):
                calls = message.setdefault("tool_calls", [])
                if c["index"] == len(calls):
                    assert c["id"].startswith("call_") and c["type"] == "function" and c["function"]["arguments"] == "", c
                    calls.append({"id": c["id"], "type": "function", "function": {"name": c["function"]["name"], "arguments": ""}})
                else:
                    assert set(c) == {"index", "function"} and set(c["function"]) == {"arguments"} and c["function"]["arguments"], c
                    calls[c["index"]]["function"]["arguments"] += c["function"]["arguments"]
            if choice["finish_reason"]:
                finish, stop = choice["finish_reason"], choice.get("stop_reason")
    return message, finish, stop


def wanted(made_of):
    w = dict(made_of)
    if w["calls"] and not w["text"]:
        w["text"] = None
    return w


def test_answers(s):
    for name, (_, made_of) in SCRIPTS.items():
        a = s.ok(CHAT, ask(name))
        choice = a["choices"][0]
        check.equal(name, shape(choice["message"]), wanted(made_of))
        check.equal(name + ": finish", (choice["finish_reason"], choice["stop_reason"]), ("tool_calls" if made_of["calls"] else "stop", None))
        ids = [c["id"] for c in choice["message"]["tool_calls"] or []]
        check.true(name + ": ids", len(set(ids)) == len(ids) and all(re.fullmatch("call_[A-Za-z0-9]{24}", i) for i in ids), ids)
        check.true(name + ": no empty list", choice["message"]["tool_calls"] != [])
        reasoning = a["usage"]["completion_tokens_details"]["reasoning_tokens"]
        thinks = made_of["reasoning"] is not None or name == "empty"
        check.true(name + ": reasoning tokens", (0 < reasoning <= a["usage"]["completion_tokens"]) if thinks else reasoning == 0, reasoning)
        chunks = s.stream(CHAT, ask(name, stream_options={"include_usage": True}))
        message, finish, stop = accumulate(chunks)
        check.equal(name + ": streamed", shape(message), wanted(made_of))
        check.equal(name + ": streamed finish", (finish, stop), (choice["finish_reason"], None))
        check.equal(name + ": streamed usage", chunks[-1]["usage"]["completion_tokens_details"], a["usage"]["completion_tokens_details"])
        check.true(name + ": one role", sum("role" in c["choices"][0]["delta"] for c in chunks if c["choices"]) == 1)
    lines = s.request("POST", CHAT, ask("wide", stream=True))[2].split(b"\n")
    check.true("lines of a long call", max(map(len, lines)) < 20000 and len(lines) > 8)
    deltas = [c["choices"][0]["delta"] for c in s.stream(CHAT, ask("long"))]
    pieces = [d for d in deltas if d.get("tool_calls") and "name" not in d["tool_calls"][0]["function"]]
    check.true("arguments come as they are written", len(pieces) > 50, len(pieces))
    check.equal("the role chunk of a call", deltas[0], {"role": "assistant", "content": None, "refusal": None})
    for script, tools, want in (("think", None, ""), ("think", (CLOCK,), None), ("plain", (CLOCK,), ""), ("never", None, "")):
        check.equal(f"the role chunk of {script}", s.stream(CHAT, ask(script, tools))[0]["choices"][0]["delta"]["content"], want)
    check.equal("reasoning only, without tools", shape(accumulate(s.stream(CHAT, ask("never", None)))[0]), wanted(SCRIPTS["never"][1]))


def test_every_length(s):
    """max_tokens at every token: streamed = whole, the calls so far are kept, and finish_reason tells."""
    for name in ("tag", "two", "both", "inside", "unclosed", "broken", "packed", *JSON_SCRIPTS):
        total = s.ok(CHAT, ask(name))["usage"]["completion_tokens"]
        for n in range(1, total):
            a = s.ok(CHAT, ask(name, max_tokens=n, return_token_ids=True, logprobs=True))
            choice = a["choices"][0]
            message, finish, _ = accumulate(s.stream(CHAT, ask(name, max_tokens=n)))
            if shape(message) != shape(choice["message"]) or (finish, choice["finish_reason"]) != ("length", "length"):
                check.equal(f"{name} cut at {n}", (shape(message), finish), (shape(choice["message"]), choice["finish_reason"]))
                break
            if not len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == n == a["usage"]["completion_tokens"]:
                check.true(f"{name} cut at {n}: tokens", False)
                break
        else:
            check.true(name, True)


def test_tokens(s):
    """Log-probs and ids of all tokens arrive, whatever became of their text."""
    for name in SCRIPTS:
        a = s.ok(CHAT, ask(name, logprobs=True, top_logprobs=2, return_token_ids=True))["choices"][0]
        spoken = b"".join(bytes(e["bytes"] or []) for e in a["logprobs"]["content"])
        check.equal(name + ": bytes of the log-probs", spoken.decode(), text_of(name))
        chunks = s.stream(CHAT, ask(name, logprobs=True, top_logprobs=2, return_token_ids=True))
        ids, entries = [], []
        for c in chunks:
            ids += c["choices"][0].get("token_ids") or []
            entries += (c["choices"][0]["logprobs"] or {}).get("content") or []
        check.equal(name + ": streamed ids", ids, a["token_ids"])
        check.equal(name + ": streamed log-probs", entries, a["logprobs"]["content"])
        message, _, _ = accumulate(chunks)
        check.equal(name + ": streamed message", shape(message), wanted(SCRIPTS[name][1]))


def test_rules(s):
    for tools in (None, (WEATHER,)):
        for name in ("two", "broken"):
            fields = {"tool_choice": "none"} if tools else {}
            a = s.ok(CHAT, ask(name, tools, **fields))["choices"][0]
            check.equal(f"{name} without tools", (shape(a["message"]), a["finish_reason"]), (made(text_of(name)), "stop"))
            check.equal(f"{name} without tools, streamed", stream_text(s.stream(CHAT, ask(name, tools, **fields))), text_of(name))
    a = s.ok(CHAT, ask("two", parallel_tool_calls=False))
    want = made("I ask twice.", SCRIPTS["two"][1]["calls"][:1])
    check.equal("one call", (shape(a["choices"][0]["message"]), a["choices"][0]["finish_reason"]), (want, "tool_calls"))
    check.true("nothing is generated behind it", a["usage"]["completion_tokens"] < s.ok(CHAT, ask("two"))["usage"]["completion_tokens"])
    check.equal("one call, streamed", shape(accumulate(s.stream(CHAT, ask("two", parallel_tool_calls=False)))[0]), want)
    # reasoning: dropped, left in the text, without tools
    for stream in (False, True):
        def get(script, **fields):
            body = ask(script, **fields)
            return shape(accumulate(s.stream(CHAT, body))[0] if stream else s.ok(CHAT, body)["choices"][0]["message"])

        check.equal("dropped", get("think", include_reasoning=False), made("So: 42."))
        check.equal("dropped, with a call", get("both", include_reasoning=False), wanted(made(calls=SCRIPTS["both"][1]["calls"])))
        check.equal("left in the text", get("think", separate_reasoning=False), made(text_of("think")))
        check.equal("left in the text, with a call", get("inside", separate_reasoning=False),
                    made("\nAlready in it.\n</think>\n\nOut of it.", SCRIPTS["inside"][1]["calls"]))
        calls = SCRIPTS["unclosed"][1]["calls"]
        check.equal("dropped, with a call in it", get("unclosed", include_reasoning=False),
                    wanted(made(calls=calls)))
        check.equal("left in the text, with a call in it", get("unclosed", separate_reasoning=False),
                    made("<think>\nI look.\nAnd:", calls))
        check.equal("dropped, nothing left", get("never", include_reasoning=False), made(""))
        check.equal("reasoning without tools", get("think", tools=None), wanted(SCRIPTS["think"][1]))
    # stop strings
    a = s.ok(CHAT, ask("two", stop=["ürich"]))["choices"][0]
    check.equal("stop within a call", (shape(a["message"]), a["finish_reason"], a["stop_reason"]),
                (made("I ask twice.", [("get_weather", '{"city": "Z')]), "stop", "ürich"))
    check.equal("stop within a call, streamed", shape(accumulate(s.stream(CHAT, ask("two", stop=["ürich"])))[0]), shape(a["message"]))
    a = s.ok(CHAT, ask("two", stop=["</tool_call>"]))["choices"][0]
    check.equal("stop behind a call", (shape(a["message"]), a["finish_reason"], a["stop_reason"]),
                (made("I ask twice.", SCRIPTS["two"][1]["calls"][:1]), "tool_calls", "</tool_call>"))
    a = s.ok(CHAT, ask("think", stop=["hm."]))["choices"][0]
    check.equal("stop within the reasoning", (shape(a["message"]), a["finish_reason"]), (made("", reasoning="First, "), "stop"))
    # A message that is continued within its reasoning, behind it, without any. What comes is noise.
    for text, where in (("<think>\nhalf a tho", "reasoning"), ("<think>a</think>\n\nand ", "text"), ("and ", "text")):
        body = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}], "continue_final_message": True, "max_tokens": 2, "temperature": 0,
                "ignore_eos": True, "skip_special_tokens": False}
        got = shape(s.ok(CHAT, body)["choices"][0]["message"])
        check.true(f"continued {text!r}", bool(got[where]) and not got["text" if where == "reasoning" else "reasoning"], got)
    a = s.ok(CHAT, ask("plain", n=3, temperature=0))
    check.equal("n = 3", [shape(c["message"]) for c in a["choices"]], [made(text_of("plain"))] * 3)
    chunks = s.stream(CHAT, ask("both", n=2))
    check.equal("n = 2, streamed", [shape(accumulate(chunks, i)[0]) for i in (0, 1)], [wanted(SCRIPTS["both"][1])] * 2)
    one, two = (accumulate(chunks, i)[0]["tool_calls"][0]["id"] for i in (0, 1))
    check.true("ids differ", one != two)
    a = s.ok(CHAT, ask("tag", skip_special_tokens=False))["choices"][0]
    check.equal("special tokens shown", shape(a["message"]), wanted(SCRIPTS["tag"][1]))


def test_plain_json(s, binary, folder):
    """What may be a call as plain JSON, and what is one, by the request and by the flag."""
    def both(s, script, *tools, **fields):
        body = ask(script, tools or (WEATHER, CLOCK), **fields)
        choice = s.ok(CHAT, body)["choices"][0]
        message, finish, _ = accumulate(s.stream(CHAT, body))
        whole = shape(choice["message"]), choice["finish_reason"]
        check.equal(f"{script}, {fields}: streamed", (shape(message), finish), whole)
        return whole

    text, calls = made(text_of("json")), made(text=None, calls=SCRIPTS["json"][1]["calls"])
    clock = {"type": "function", "function": {"name": "clock"}}
    some = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [clock]}}
    check.equal("auto", both(s, "json", tool_choice="auto"), (calls, "tool_calls"))
    check.equal("none", both(s, "json", tool_choice="none"), (text, "stop"))
    check.equal("another function is offered", both(s, "json", CLOCK), (text, "stop"))
    check.equal("another function is allowed", both(s, "json", tool_choice=some), (text, "stop"))
    cut = made(text=None, calls=[("get_weather", '{"city": "')])
    check.equal("with a stop string", both(s, "json", stop=["Ki"]), (cut, "stop"))
    check.equal("with one in the name", both(s, "json", stop=["weath"]), (made('{"name": "get_'), "stop"))
    one = both(s, "json_fence", parallel_tool_calls=False)
    check.equal("one call", one[0]["calls"], [("clock", "{}")])
    whole, chunks = s.ok(CHAT, ask("json", n=2))["choices"], s.stream(CHAT, ask("json", n=2))
    check.equal("n = 2", [shape(c["message"]) for c in whole], [calls] * 2)
    check.equal("n = 2, streamed", [shape(accumulate(chunks, i)[0]) for i in (0, 1)], [calls] * 2)
    deltas = [c["choices"][0]["delta"].get("content") for c in s.stream(CHAT, ask("json_other"))]
    check.true("other JSON is streamed", len([d for d in deltas if d]) > 5, deltas)
    exact = [{**t, "function": {**t["function"], "strict": True}} for t in (WEATHER, CLOCK)]
    check.equal("strict functions", both(s, "json", *exact), (calls, "tool_calls"))
    other, _ = both(s, "json_other", *exact)
    check.equal("strict functions, other JSON", other, made(OTHER_JSON))
    kept, _ = both(s, "json_hour", *exact, max_tokens=60)
    check.true("a strict function's arguments", "hour" not in str(kept), kept)
    strict = Server(binary, folder, "--tool-parser", "strict")
    check.equal("--tool-parser strict", both(strict, "json"), (text, "stop"))
    strict.stop()


def test_reasoning_budget(s, ids):
    """A limit on the tokens of reasoning closes it after exactly as many, streamed or not, also with another
    constraint."""

    def words(n):
        return s.ok("/detokenize", {"tokens": n})["prompt"]

    for script in ("both", "inside", "think"):
        free = s.ok(CHAT, ask(script, None, max_tokens=400))
        for budget in (0, 1, 2, 5):
            for fields in (
                {"thinking_token_budget": budget},
                {"reasoning": {"max_tokens": budget}},
                {"thinking_token_budget": budget, "guided_regex": "[a-z]{3}"},
            ):
                what = f"{script}, {fields}"
                body = ask(script, None, **fields, max_tokens=budget + 16)
                a = s.ok(CHAT, {**body, "return_token_ids": True})["choices"][0]
                got, tokens = shape(a["message"]), a["token_ids"]
                opening = (
                    0
                    if script == "inside"
                    else next(n for n in range(1, 16) if "<think>" in words(tokens[:n]))
                )
                check.equal(
                    f"{what}: the tag is after as many", tokens.index(ids["</think>"]), opening + budget
                )
                check.true(f"{what}: what was said is kept", (got["reasoning"] or "") in text_of(script), got)
                check.true(f"{what}: no tag in the text", "think" not in got["text"], got)
                check.equal(f"{what}: streamed", shape(accumulate(s.stream(CHAT, body))[0]), got)
                if "guided_regex" in fields:
                    check.true(f"{what}: the form", re.fullmatch("[a-z]{3}", got["text"]), got)
        large = s.ok(CHAT, ask(script, None, max_tokens=400, thinking_token_budget=300))
        check.equal(
            f"{script}: a budget that suffices",
            shape(large["choices"][0]["message"]),
            shape(free["choices"][0]["message"]),
        )
    for value, code in ((-1, "invalid_value"), ("5", "invalid_type"), (1.5, "invalid_type")):
        status, e = s.post(CHAT, ask("think", None, thinking_token_budget=value))
        check.equal(
            f"budget {value}",
            (status, e["error"]["code"], e["error"]["param"]),
            (400, code, "thinking_token_budget"),
        )


def test_constrained_after_reasoning(s):
    """White space after the reasoning is no part of a constrained answer."""
    for script in ("think", "inside", "both", "plain"):
        for choices in (["red", "blue"], [" red", "\tblue"]):
            for stream in (False, True):
                body = ask(script, None, guided_choice=choices, max_tokens=300)
                got = shape(
                    accumulate(s.stream(CHAT, body))[0]
                    if stream
                    else s.ok(CHAT, body)["choices"][0]["message"]
                )
                check.true(f"{script}, {choices}", got["text"] in choices, got)


def test_weak_schema(s):
    """A tool whose schema can't be enforced does not end a request that can do without that."""
    bad = {
        "type": "function",
        "function": {
            "name": "bad",
            "parameters": {
                "type": "object",
                "properties": {"x": {"type": "object", "unevaluatedProperties": False}},
                "required": ["x"],
            },
        },
    }
    body = ask("plain", (CLOCK, bad), tool_choice="required", max_tokens=60)
    for _ in range(2):  # compiled, and cached
        a = s.ok(CHAT, body)
        check.true("required: a call", a["choices"][0]["message"]["tool_calls"], a)
        check.true(
            "required: the warning names the tool",
            len(a["warnings"]) == 1 and "'bad'" in a["warnings"][0],
            a.get("warnings"),
        )
    only = s.ok(CHAT, ask("plain", (bad,), tool_choice="required", max_tokens=60))
    check.true(
        "required, no other tool",
        only["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "bad",
        only,
    )
    chunks = s.stream(CHAT, {**body, "stream_options": {"include_usage": True}})
    check.true("required, streamed: the warning", "'bad'" in chunks[-1]["warnings"][0], chunks[-1])
    auto = s.ok(CHAT, ask("plain", (CLOCK, bad)))
    check.true(
        "auto: as it was, without a warning",
        shape(auto["choices"][0]["message"]) == made(text_of("plain")) and "warnings" not in auto,
        auto,
    )
    strict = {"type": "function", "function": {**bad["function"], "strict": True}}
    named = {"type": "function", "function": {"name": "bad"}}
    for tool, choice in ((strict, "auto"), (strict, "required"), (bad, named)):
        a = s.ok(CHAT, ask("plain", (CLOCK, tool), tool_choice=choice, max_tokens=60))
        check.true(f"strict or named, {choice}: a warning", "'bad'" in a["warnings"][0], a)
        check.true(f"{choice}: calls", choice == "auto" or a["choices"][0]["message"]["tool_calls"], a)
    status, e = s.post(CHAT, ask("plain", (CLOCK, strict), tool_choice=named))
    check.true(
        "named and strict: the error names the tool",
        status == 400
        and "'bad'" in e["error"]["message"]
        and e["error"]["param"] == "tools[1].function.parameters",
        e,
    )
    tags = {"type": "array", "items": {"type": "string", "maxLength": 3}, "uniqueItems": True, "maxItems": 2}
    loose = {"type": "object", "properties": {"t": tags}, "required": ["t"], "additionalProperties": False}
    loose = {"type": "function", "function": {"name": "loose", "strict": True, "parameters": loose}}
    a = s.ok(CHAT, ask("plain", (loose,), tool_choice="required", parallel_tool_calls=False, max_tokens=90))
    call = a["choices"][0]["message"]["tool_calls"][0]["function"]
    check.true("strict, a keyword that is ignored", "uniqueItems" in a["warnings"][0], a["warnings"])
    check.equal("strict, the rest is enforced", list(json.loads(call["arguments"])), ["t"])
    key = {
        "name": "keyed",
        "parameters": {"type": "object", "properties": {"n": {"enum": [1]}}, "required": ["n"]},
        "format": {"type": "grammar", "syntax": "regex", "definition": "x"},
    }
    keyed = ({"type": "function", "function": key},)
    got = s.ok(CHAT, ask("plain", keyed, tool_choice="required", parallel_tool_calls=False, max_tokens=200))
    call = got["choices"][0]["message"]["tool_calls"][0]["function"]
    check.true("a key `format` is none of a custom tool", '"n": 1' in call["arguments"], call)
    check.true(
        "another is named",
        s.ok(
            CHAT,
            ask(
                "plain",
                (CLOCK, bad),
                tool_choice={"type": "function", "function": {"name": "clock"}},
                max_tokens=60,
            ),
        ),
    )


def test_required_in_every_syntax(binary, top):
    """A required call is one that is read back, with arguments of its schema, in each syntax; so is one whose
    schema can't be enforced."""
    pick = {"type": "function", "function": {"name": "pick", "parameters": {
        "type": "object", "required": ["color", "on", "sizes"], "additionalProperties": False,
        "properties": {"color": {"enum": ["red", "a \"b\" {c}"]}, "on": {"type": "boolean"},
                       "sizes": {"type": "array", "items": {"enum": [1, 22]}, "minItems": 1,
                                 "maxItems": 2}}}}}
    bad = {"type": "function", "function": {"name": "bad", "parameters": {"type": "object", "properties": {
        "x": {"type": "array", "items": {"type": "string", "pattern": "(a)\\1"}}}, "required": ["x"]}}}
    for marks in ("<tool_call>", "<tool_call><function=<parameter=", "<|tool_call>call:", "[TOOL_CALLS]",
                  "[TOOL_CALLS][ARGS]", "<tool_call><arg_key>", "List of tools: ", "<function_calls>",
                  "<|tool_call|>", '"parameters": dictionary of argument name'):
        template = ("{# " + marks + " #}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
                    "{% for m in messages %}{{ m.role + m.content }}{% endfor %}"
                    "{% if script %}{{ '<<' + script + '>>' }}{% endif %}")
        folder = tempfile.mkdtemp(dir=top)
        scripted.write(folder, {"plain": SCRIPTS["plain"][0]}, template=template)
        s = Server(binary, folder)
        for tool in (pick, bad):
            body = ask("plain", [tool], tool_choice="required", parallel_tool_calls=False, max_tokens=400)
            body["temperature"] = 1.5
            done = 0
            for seed in range(6):
                choice = s.ok(CHAT, {**body, "seed": seed})["choices"][0]
                message, finish, _ = accumulate(s.stream(CHAT, {**body, "seed": seed}))
                check.equal(f"{marks}: streamed", (shape(message), finish),
                            (shape(choice["message"]), choice["finish_reason"]))
                if choice["finish_reason"] != "tool_calls":
                    continue
                done += 1
                call = choice["message"]["tool_calls"][0]["function"]
                args = json.loads(call["arguments"])
                check.true(f"{marks}: no text", not choice["message"]["content"], choice)
                check.true(f"{marks}: {call}", call["name"] == tool["function"]["name"] and (tool is bad or (
                    set(args) == {"color", "on", "sizes"} and args["color"] in ("red", 'a "b" {c}') and
                    args["on"] in (True, False) and set(args["sizes"]) <= {1, 22})))
            check.true(f"{marks}: some are complete", done > 1 or tool is bad, done)
        s.stop()


# What a released template says -> an output in its syntax, and what is made of it.
RELEASED = {
    '"parameters": dictionary of argument name': (
        '{"name": "get_weather", "parameters": {"city": "Oslo"}}',
        made(calls=[("get_weather", '{"city": "Oslo"}')])),
    '<|python_tag|>"parameters": dictionary of argument name': (
        '<|python_tag|>{"name": "clock", "parameters": {}}', made(calls=[("clock", "{}")])),
    "<|tool_call|>": (
        '<|tool_call|>[{"name": "clock", "arguments": {}}, '
        '{"name": "get_weather", "arguments": {"city": "Rom"}}]',
        made(calls=[("clock", "{}"), ("get_weather", '{"city": "Rom"}')])),
    "<function_calls>": (
        'I look.\n<function_calls>\nget_weather(city="Bern")\nclock()\n</function_calls>',
        made("I look.", [("get_weather", '{"city": "Bern"}'), ("clock", "{}")])),
    "[TOOL_CALLS][ARGS][THINK][/THINK]": (
        '[THINK]Hm.[/THINK][TOOL_CALLS]get_weather[ARGS]{"city": "Lima"}',
        made(calls=[("get_weather", '{"city": "Lima"}')], reasoning="Hm.")),
    "List of tools: </think>": (
        '<think>Hm.</think><|tool_call_start|>[get_weather(city="Ulm")]<|tool_call_end|>',
        made(calls=[("get_weather", '{"city": "Ulm"}')], reasoning="Hm.")),
}


def test_released_syntaxes(binary, top):
    for marks, (text, want) in RELEASED.items():
        template = ("{# " + marks + " #}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
                    "{% for m in messages %}{{ m.role + m.content }}{% endfor %}"
                    "{% if script %}{{ '<<' + script + '>>' }}{% endif %}")
        folder = tempfile.mkdtemp(dir=top)
        scripted.write(folder, {"text": text}, template=template)
        s = Server(binary, folder)
        choice = s.ok(CHAT, ask("text"))["choices"][0]
        check.equal(marks, shape(choice["message"]), wanted(want))
        check.equal(marks + ": end", choice["finish_reason"], "tool_calls")
        check.equal(marks + ", streamed", shape(accumulate(s.stream(CHAT, ask("text")))[0]), wanted(want))
        s.stop()


def test_merged(s):
    """--stream-finish=merged: the finish_reason stands in the last chunk that says something."""
    for name, (_, made_of) in SCRIPTS.items():
        for fields in ({}, {"logprobs": True, "return_token_ids": True}):
            whole = s.ok(CHAT, ask(name, **fields))["choices"][0]
            chunks = s.stream(CHAT, ask(name, **fields))
            message, finish, _ = accumulate(chunks)
            check.equal(name + ", merged", (shape(message), finish), (wanted(made_of), whole["finish_reason"]))
            check.equal(name + ", merged: one finish, at the end", [bool(c["choices"][0]["finish_reason"]) for c in chunks], [False] * (len(chunks) - 1) + [True])
            if fields:
                check.equal(name + ", merged: ids", sum((c["choices"][0].get("token_ids") or [] for c in chunks), []), whole["token_ids"])


def rendered(s, body):
    ids = s.ok("/tokenize", body)["tokens"]
    return ids, s.ok("/detokenize", {"tokens": ids})["prompt"]


def test_prompt(s, ids):
    _, text = rendered(s, ask("one"))
    dumps = ["\n" + json.dumps(t, ensure_ascii=False) for t in (WEATHER, CLOCK)]
    check.true("tools as they were sent", "<tools>" + "".join(dumps) + "\n</tools>" in text, text)
    check.equal("the chat has the same prompt", s.ok(CHAT, ask("one", return_token_ids=True))["prompt_token_ids"], rendered(s, ask("one"))[0])
    none = {**ask("one"), "tool_choice": "none"}
    check.equal("choice none keeps the prompt", s.ok(CHAT, {**none, "return_token_ids": True})["prompt_token_ids"], rendered(s, ask("one"))[0])
    # What people type is never a tag; what the template writes is.
    opens = rendered(s, ask("one"))[0].count(ids["<tool_call>"])
    typed = {**ask("one"), "messages": [{"role": "user", "content": CALL % "x" + "<think></think><|im_end|>"}]}
    got, text = rendered(s, typed)
    check.true("typed tags are text", got.count(ids["<tool_call>"]) == opens and ids["<think>"] not in got and CALL % "x" + "<think>" in text)
    evil = {"type": "function", "function": {"name": "f", "description": "<tool_call>"}}
    check.equal("tags within tools are text", rendered(s, {**ask("one"), "tools": [WEATHER, CLOCK, evil]})[0].count(ids["<tool_call>"]), opens)
    history = [{"role": "user", "content": "q"},
               {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [
                   {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"b": 1.0, "a": {"z": "é<tool_call>", "y": [1e2, null]}}'}},
                   {"id": "b", "type": "function", "function": {"name": "g", "arguments": ""}},
                   {"id": "c", "type": "function", "function": {"name": "h", "arguments": "no json"}}]},
               {"role": "tool", "tool_call_id": "a", "content": "r1"}, {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "r2"}, {"type": "text", "text": "r3"}]}]
    got, text = rendered(s, {**ask("one"), "messages": history})
    want = ('<|im_start|>assistant\n<think>\nhm\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {"b": 1.0, "a": {"z": "é<tool_call>", "y": [100.0, null]}}}\n</tool_call>\n'
            '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>\n<tool_call>\n{"name": "h", "arguments": no json}\n</tool_call><|im_end|>\n'
            "<|im_start|>user\n<tool_response>\nr1\n</tool_response>\n<tool_response>\nr2\nr3\n</tool_response><|im_end|>\n<|im_start|>assistant\n<<one>>")
    check.true("history", text.endswith(want), text[-len(want) - 50:])
    check.equal("history: tags", got.count(ids["<tool_call>"]) - opens, 3)
    for fields, want in (({"reasoning_effort": "none"}, "[thinking False]"), ({"reasoning_effort": "high"}, "[thinking True]"), ({"reasoning": {"enabled": False}}, "[thinking False]"),
                         ({"enable_thinking": False}, "[thinking False]"),
                         ({"thinking": {"type": "disabled"}}, "[thinking False]"),
                         ({"thinking": {"type": "enabled"}}, "[thinking True]"),
                         ({"reasoning": {"effort": "low"}}, "[thinking True]"), ({}, "<<one>>")):
        _, text = rendered(s, ask("one", **fields))
        check.true(f"effort {fields}", text.endswith(want), text[-40:])
    by_hand = {**ask("one", reasoning_effort="high"), "chat_template_kwargs": {"script": "one", "enable_thinking": False}}
    check.true("the client's own variable wins", rendered(s, by_hand)[1].endswith("[thinking False]"))


def test_round_trip(s):
    """An answer that is sent back is rendered as it was generated: the next turn finds all of it cached."""
    for name in ("one", "tag", "both", "plain"):
        body = ask(name, return_token_ids=True)
        a = s.ok(CHAT, body)
        message = a["choices"][0]["message"]
        before = s.ok("/detokenize", {"tokens": a["prompt_token_ids"]})["prompt"].removesuffix(f"<<{name}>>")
        turn = body["messages"] + [message, {"role": "tool", "tool_call_id": "x", "content": "r"}]
        _, text = rendered(s, {**ask("plain"), "messages": turn})
        check.true(name, text.startswith(before + text_of(name) + "<|im_end|>\n"), text)


def test_refused(s, bare):
    def refused(what, server, body, code, param):
        status, answer = server.post(CHAT, body)
        check.equal(what, (status, answer.get("error", {}).get("code"), answer.get("error", {}).get("param")), (400, code, param))

    def tool(**function):
        return {"type": "function", "function": function}

    named = {"type": "function", "function": {"name": "clock"}}
    table = [
        ({"tools": {}}, "invalid_type", "tools"), ({"tools": [5]}, "invalid_type", "tools[0]"), ({"tools": [{"function": {"name": "f"}}]}, "missing_required_parameter", "tools[0]"),
        ({"tools": [{"type": 5}]}, "invalid_type", "tools[0]"), ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "unsupported_value", "tools[0]"),
        ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0]"), ({"tools": [CLOCK, tool(name="a b")]}, "invalid_value", "tools[1]"),
        ({"tools": [tool(name="x" * 65)]}, "invalid_value", "tools[0]"), ({"tools": [tool(name="")]}, "invalid_value", "tools[0]"), ({"tools": [tool(name=5)]}, "invalid_type", "tools[0]"),
        ({"tools": [tool(name="f", parameters={"type": "string"})]}, "invalid_value", "tools[0]"), ({"tools": [tool(name="f", parameters=[])]}, "invalid_type", "tools[0]"), ({"tools": [tool(name="f", description=5)]}, "invalid_type", "tools[0]"),
        ({"tools": [tool(name="f", strict="yes")]}, "invalid_type", "tools[0]"), ({"tools": [CLOCK, CLOCK]}, "invalid_value", "tools[1]"),
        ({"tools": [tool(name=f"f{k}") for k in range(513)]}, "invalid_value", "tools"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "some", "tools": [named]}}}, "invalid_value", "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}}, "invalid_value", "tool_choice"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "f"}}}, "unsupported_value", "tool_choice"), ({"tool_choice": {"type": "poem"}}, "invalid_value", "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "nope"}}}, "invalid_value", "tool_choice"), ({"tool_choice": {"type": "function"}}, "invalid_value", "tool_choice"),
        ({"tool_choice": "maybe"}, "invalid_value", "tool_choice"), ({"tool_choice": 5}, "invalid_type", "tool_choice"), ({"tools": None, "tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"tools": None, "tool_choice": named}, "invalid_value", "tool_choice"), ({"parallel_tool_calls": "no"}, "invalid_type", "parallel_tool_calls"),
        ({"include_reasoning": 1}, "invalid_type", "include_reasoning"), ({"separate_reasoning": "x"}, "invalid_type", "separate_reasoning"), ({"reasoning": "high"}, "invalid_type", "reasoning"),
        ({"reasoning": {"effort": "huge"}}, "invalid_value", "reasoning.effort"), ({"reasoning": {"enabled": 1}}, "invalid_type", "reasoning.enabled"),
        ({"reasoning_effort": "huge"}, "invalid_value", "reasoning_effort"), ({"reasoning_effort": 1}, "invalid_type", "reasoning_effort"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "missing_required_parameter", "messages[0].tool_call_id"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "missing_required_parameter", "messages[0].tool_calls[0].function.name"),
    ]
    for fields, code, param in table:
        refused(json.dumps(fields)[:70], s, ask("plain", **{k: v for k, v in fields.items() if k != "tools"}) | {k: v for k, v in fields.items() if k == "tools"}, code, param)
    many = [tool(name=f"f{k}") for k in range(128)]
    for fields in ({"tools": many}, {"tools": [tool(name="f", parameters=None, strict=None)]}, {"tools": []}, {"tools": None, "tool_choice": "auto"}, {"tools": None, "tool_choice": "none"},
                   {"tools": [], "tool_choice": "required"}, {"tool_choice": "auto"}, {"tool_choice": None, "parallel_tool_calls": None, "reasoning": None, "reasoning_effort": None}):
        check.equal("fine: " + json.dumps(fields)[:60], s.post(CHAT, {**ask("plain"), **fields})[0], 200)
    # A template without tools, and one whose calls have another form.
    refused("no place for tools", bare, ask("plain"), "tools_unsupported", "tools")
    check.equal("but with choice none", bare.post(CHAT, ask("plain", tool_choice="none"))[0], 200)


def test_special_tags(binary, folder):
    """Tags that are special tokens are seen all the same."""
    scripted.write(folder, {"tag": SCRIPTS["tag"][0], "inside": SCRIPTS["inside"][0]}, tags_special=True)
    s = Server(binary, folder)
    for name in ("tag", "inside"):
        check.equal(name, shape(s.ok(CHAT, ask(name))["choices"][0]["message"]), wanted(SCRIPTS[name][1]))
        check.equal(name + ", streamed", shape(accumulate(s.stream(CHAT, ask(name)))[0]), wanted(SCRIPTS[name][1]))
    s.stop()


def test_other_form(binary, folder):
    scripted.write(folder, {"plain": SCRIPTS["plain"][0]}, template=scripted.TEMPLATE.replace('{"name": <name>, "arguments": <object>}', "<function=name>"))
    s = Server(binary, folder)
    status, answer = s.post(CHAT, ask("plain"))
    check.equal("calls of another form", (status, answer["error"]["code"]), (400, "tools_unsupported"))
    s.stop()


FORECAST = {"type": "function", "function": {"name": "forecast", "parameters": {"type": "object", "properties": {
    "city": {"type": "string"}, "days": {"type": "integer"}, "hourly": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}, "where": {"$ref": "#/$defs/place"}},
    "$defs": {"place": {"type": "object", "properties": {"at": {"type": "array"}}}}}}}
TAGGED = "<tool_call>\n<function=forecast>\n<parameter=city>\nZürich \"HB\"\n\\o/ 😀\n</parameter>\n<parameter=days>\n5\n</parameter>\n%s</function>\n</tool_call>"
TAGS = {
    "one": (TAGGED % "", made(calls=[("forecast", '{"city": "Zürich \\"HB\\"\\n\\\\o/ 😀", "days": 5}')])),
    "two": ("Both.\n" + TAGGED % "<parameter=hourly>\nTrue\n</parameter>\n" + "\n<tool_call>\n<function=clock>\n</function>\n</tool_call>",
            made("Both.", [("forecast", '{"city": "Zürich \\"HB\\"\\n\\\\o/ 😀", "days": 5, "hourly": true}'), ("clock", "{}")])),
    "typed": ('<tool_call>\n<function=forecast>\n<parameter=where>\n{"at": [1.5, {"b": null}]}\n</parameter>\n<parameter=hourly>\nNone\n</parameter>\n<parameter=city>\n5\n</parameter>\n</function>\n</tool_call>',
              made(calls=[("forecast", '{"where": {"at": [1.5, {"b": null}]}, "hourly": null, "city": "5"}')])),
    "tag": ("{TAG}\n<function=clock>\n</function>\n</tool_call>", made(calls=[("clock", "{}")])),
    "bare": ("I look.\n<function=clock>\n</function>\n</tool_call>", made("I look.", [("clock", "{}")])),
    "json": ('{"name": "clock", "arguments": {}}', made(calls=[("clock", "{}")])),
    "prose": ("Write <function=NAME> within <tool_call>.", made("Write <function=NAME> within <tool_call>.")),
    "long": ("<tool_call>\n<function=forecast>\n<parameter=city>\n" + " ".join(f"w{k}" for k in range(150)) + "\n</parameter>\n</function>\n</tool_call>",
             made(calls=[("forecast", '{"city": "' + " ".join(f"w{k}" for k in range(150)) + '"}')])),
    "misspelt": ("<tool_call>\n<function=forecast>\n<parameter=city>\nUlm\n</invoke>\n<parameter=days>\n5\n"
                 "</parameter>\n</function_invocation>\n</tool_call>\n"
                 "<tool_call>\n<function=clock>\n</function>",
                 made(calls=[("forecast", '{"city": "Ulm", "days": 5}'), ("clock", "{}")])),
    "preface": ('<tool_call>\u00a0Here:\n```json\n{"name": "clock", "arguments": {}}\n```\n</tool_call>',
                made(calls=[("clock", "{}")])),
}


def test_tags(binary, folder):
    """Calls with a tag for every parameter: the schema tells 5 from "5", values are streamed, and the history is written back as it was."""
    scripted.write(folder, {name: text for name, (text, _) in TAGS.items()}, template=scripted.TAGS_TEMPLATE)
    s = Server(binary, folder)
    tools = (FORECAST, CLOCK)
    for name, (text, made_of) in TAGS.items():
        choice = s.ok(CHAT, ask(name, tools))["choices"][0]
        check.equal(name, (shape(choice["message"]), choice["finish_reason"]), (wanted(made_of), "tool_calls" if made_of["calls"] else "stop"))
        message, finish, _ = accumulate(s.stream(CHAT, ask(name, tools)))
        check.equal(name + ", streamed", (shape(message), finish), (wanted(made_of), choice["finish_reason"]))
        check.equal(name + " without tools", shape(s.ok(CHAT, ask(name, None))["choices"][0]["message"]), made(text.replace("{TAG}", "<tool_call>")))
        if name in ("bare", "json", "misspelt", "preface"):
            continue
        body = ask(name, tools, return_token_ids=True)
        a = s.ok(CHAT, body)
        before = s.ok("/detokenize", {"tokens": a["prompt_token_ids"]})["prompt"].removesuffix(f"<<{name}>>")
        turn = body["messages"] + [a["choices"][0]["message"], {"role": "tool", "tool_call_id": "x", "content": "r"}]
        _, again = rendered(s, {**ask("one", tools), "messages": turn})
        check.true(name + ", sent back", again.startswith(before + text.replace("{TAG}", "<tool_call>") + "<|im_end|>\n"), again)
    for name in ("one", "two", "typed"):
        for n in range(1, s.ok(CHAT, ask(name, tools))["usage"]["completion_tokens"]):
            whole = s.ok(CHAT, ask(name, tools, max_tokens=n))["choices"][0]
            message, finish, _ = accumulate(s.stream(CHAT, ask(name, tools, max_tokens=n)))
            if shape(message) != shape(whole["message"]) or (finish, whole["finish_reason"]) != ("length", "length"):
                check.equal(f"{name} cut at {n}", (shape(message), finish), (shape(whole["message"]), whole["finish_reason"]))
                break
        else:
            check.true(name, True)
    exact = {**CLOCK, "function": {"name": "clock", "strict": True}}
    kept = shape(s.ok(CHAT, ask("json", [exact]))["choices"][0]["message"])
    check.equal("a strict function is called in the template's form only", kept, made(TAGS["json"][0]))
    pieces = [d for d in (c["choices"][0]["delta"] for c in s.stream(CHAT, ask("long", tools))) if d.get("tool_calls") and "name" not in d["tool_calls"][0]["function"]]
    check.true("a text comes as it is written", len(pieces) > 50, len(pieces))
    check.equal("one call", shape(s.ok(CHAT, ask("two", tools, parallel_tool_calls=False))["choices"][0]["message"]), made("Both.", TAGS["two"][1]["calls"][:1]))
    s.stop()


def test_reasoning_fields(s, bare):
    """On thinking templates both fields are there, null without reasoning; in a stream they come together."""
    for script in ("plain", "think", "one"):
        message = s.ok(CHAT, ask(script))["choices"][0]["message"]
        want = SCRIPTS[script][1]["reasoning"]
        check.equal(script, (message["reasoning_content"], message["reasoning"]), (want, want))
    deltas = [c["choices"][0]["delta"] for c in s.stream(CHAT, ask("think")) if c["choices"]]
    check.true("deltas", all(d.get("reasoning_content") == d.get("reasoning") for d in deltas), deltas)
    check.equal("streamed", "".join(d.get("reasoning", "") for d in deltas), SCRIPTS["think"][1]["reasoning"])
    message = bare.ok(CHAT, ask("plain", tools=None))["choices"][0]["message"]
    check.true("not where the template doesn't think", "reasoning_content" not in message)
    check.equal("no calls", s.ok(CHAT, ask("plain"))["choices"][0]["message"]["tool_calls"], None)


def test_sdk(s):
    try:
        import openai
    except ImportError:
        check.skip("the SDK", "the package openai is not there")
        return
    client = openai.OpenAI(base_url=f"http://{s.host}:{s.port}/v1", api_key="none", max_retries=0, timeout=300)
    model = client.models.list().data[0].id

    def body(script):
        return {"model": model, "messages": [{"role": "user", "content": "Weather?"}], "tools": [WEATHER, CLOCK], "temperature": 0, "max_completion_tokens": 1500,
                "extra_body": {"chat_template_kwargs": {"script": script}}}

    for name, (_, made_of) in SCRIPTS.items():
        whole = client.chat.completions.create(**body(name)).choices[0]
        check.equal(name, shape(whole.message.model_dump()), wanted(made_of))
        with client.chat.completions.stream(**body(name)) as stream:
            for _ in stream:
                pass
            final = stream.current_completion_snapshot.choices[0]
        check.equal(name + ", accumulated by the SDK", (shape(final.message.model_dump()), final.finish_reason), (wanted(made_of), whole.finish_reason))
    # The loop that every agent runs.
    first = client.chat.completions.create(**body("two")).choices[0].message
    again = body("plain")
    again["messages"] += [first, *({"role": "tool", "tool_call_id": c.id, "content": "sunny"} for c in first.tool_calls)]
    check.equal("a turn with results", client.chat.completions.create(**again).choices[0].message.content, text_of("plain"))


if __name__ == "__main__":
    args = arguments(__doc__)
    with tempfile.TemporaryDirectory() as top:
        main, other, bare_folder, form, tags = (os.path.join(top, n) for n in ("scripted", "special", "bare", "form", "tags"))
        token_ids = scripted.write(main, {name: text for name, (text, _) in SCRIPTS.items()} | {"wide": WIDE})
        plain_template = "{% for m in messages %}{{ '<|im_start|>' + m.role + m.content }}{% endfor %}{{ '<<' + script + '>>' }}"
        scripted.write(bare_folder, {"plain": SCRIPTS["plain"][0]}, template=plain_template)
        server, bare_server, merged = Server(args.binary, main), Server(args.binary, bare_folder), Server(args.binary, main, "--stream-finish", "merged")
        for name, function in {"answers": (test_answers, server), "every_length": (test_every_length, server),
                               "tokens": (test_tokens, server), "rules": (test_rules, server),
                               "reasoning_budget": (test_reasoning_budget, server, token_ids),
                               "syntaxes": (test_required_in_every_syntax, args.binary, top),
                               "released": (test_released_syntaxes, args.binary, top),
                               "constrained": (test_constrained_after_reasoning, server),
                               "weak_schema": (test_weak_schema, server), "merged": (test_merged, merged),
                               "plain_json": (test_plain_json, server, args.binary, main),
                               "prompt": (test_prompt, server, token_ids), "round_trip": (test_round_trip, server), "refused": (test_refused, server, bare_server),
                               "reasoning_fields": (test_reasoning_fields, server, bare_server),
                               "special_tags": (test_special_tags, args.binary, other), "other_form": (test_other_form, args.binary, form),
                               "tags": (test_tags, args.binary, tags), "sdk": (test_sdk, server)}.items():
            if not args.only or name in args.only:
                check.run(*function)
        check.run(server.stop)
        check.run(bare_server.stop)
        check.run(merged.stop)
    check.end()
