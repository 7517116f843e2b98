"""Structured outputs: python3 test_structured.py [--binary B] [--demo DIR]
Every finished response matches its schema, regex or list, however random the model; the same bits alone, in a
crowd, streamed, with draft tokens and without, after preemptions; forced tool calls are made."""
import json
import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Checks, Server, arguments  # noqa: E402

check = Checks()
GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/qwen")
NAME = {"type": "string", "maxLength": 6}
PERSON = {"type": "object",
          "properties": {"name": NAME, "ok": {"type": "boolean"}, "kind": {"enum": ["a", "b", 3]}},
          "required": ["name", "kind"], "additionalProperties": False}
TREE = {"$defs": {"t": {
    "type": "object",
    "properties": {"v": {"type": "integer", "minimum": -9, "maximum": 120},
                   "sub": {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 2}},
    "required": ["v"], "additionalProperties": False}}, "$ref": "#/$defs/t"}


# Branches that overlap, a dependency and a condition.
EITHER = {"type": "object", "additionalProperties": False,
          "properties": {k: {"enum": [1, "x"]} for k in "abc"},
          "oneOf": [{"required": ["a"]}, {"required": ["b"]}], "dependentRequired": {"a": ["c"]},
          "if": {"properties": {"c": {"const": 1}}, "required": ["c"]},
          "then": {"properties": {"a": {"const": 1}}}}


def is_either(v):
    return (set(v) <= set("abc") and all(x in (1, "x") for x in v.values()) and ("a" in v) != ("b" in v)
            and ("a" not in v or "c" in v) and not (v.get("c") == 1 and v.get("a") == "x"))


def is_person(v):
    return (isinstance(v, dict) and set(v) <= {"name", "ok", "kind"} and len(v["name"]) <= 6
            and v["kind"] in ("a", "b", 3) and isinstance(v.get("ok", True), bool))


def is_tree(v):
    return (isinstance(v, dict) and set(v) <= {"v", "sub"} and type(v["v"]) is int and -9 <= v["v"] <= 120
            and len(v.get("sub", [])) <= 2 and all(map(is_tree, v.get("sub", []))))


def as_schema(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def in_order(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {
        "name": "in-order", "strict": True, "schema": schema}}}


def as_json(fits):
    def checks(text):
        try:
            return fits(json.loads(text))
        except (ValueError, KeyError):
            return False
    return checks


FORMS = [
    (as_schema(PERSON), as_json(is_person)),
    (as_schema(TREE), as_json(is_tree)),
    ({"response_format": {"type": "json_object", "schema": PERSON}}, as_json(is_person)),
    ({"guided_json": json.dumps(PERSON)}, as_json(is_person)),
    ({"response_format": {"type": "json_schema", "json_schema": {
        "name": "any-order", "strict": False, "schema": PERSON}}}, as_json(is_person)),
    (as_schema(EITHER), as_json(is_either)),
    (in_order(PERSON),
     as_json(lambda v: is_person(v) and list(v) == [k for k in PERSON["properties"] if k in v])),
    ({"structured_outputs": {"json": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3}}},
     as_json(lambda v: len(v) <= 3 and set(v) <= {1, 2})),
    ({"guided_choice": ["yes", "no", "perhaps ü"]}, lambda t: t in ("yes", "no", "perhaps ü")),
    ({"structured_outputs": {"regex": r"\d{3}-[a-f]+!{1,2}"}}, re.compile(r"\d{3}-[a-f]+!{1,2}").fullmatch),
    ({"regex": "(?:ab|c)*d"}, re.compile("(?:ab|c)*d").fullmatch),
]


def requests():
    for k in range(4):
        for form, fits in FORMS:
            yield {"prompt": f"Number {k}: ", "max_tokens": 80, "temperature": (0, 1, 1, 2)[k], "seed": k,
                   "logprobs": 2, "return_token_ids": True, **({"presence_penalty": 0.3} if k == 2 else {}),
                   **({"ignore_eos": True, "min_tokens": 3} if k == 3 else {}), **form}, fits


def answer(s, body):
    c = s.ok("/v1/completions", body, timeout=300)["choices"]
    return [(x["text"], x["token_ids"], x["logprobs"], x["finish_reason"]) for x in c]


def test_forms(binary, model):
    plain = Server(binary, model, "--draft-tokens", "0", "--kv-memory", "64M")
    all_requests = list(requests())
    want, done = [], 0
    for body, fits in all_requests:
        got = answer(plain, body)
        want.append(got)
        if got[0][3] == "stop":
            done += 1
            check.true("fits", fits(got[0][0]), (body, got[0][0]))
    check.true("most are finished", done > len(all_requests) / 2, done)
    for flags in (["--kv-memory", "64M"], ["--kv-memory", "64M", "--draft-tokens", "5"],
                  ["--kv-memory", "1M"]):
        s = Server(binary, model, *flags)
        with ThreadPoolExecutor(12) as pool:
            crowd = list(pool.map(lambda r: answer(s, r[0]), all_requests))
        check.equal(" ".join(["in a crowd", *flags]), crowd, want)
        s.stop()
    for (body, _), w in zip(all_requests[::5], want[::5]):
        events = plain.stream("/v1/completions", {**body, "stream": True})
        check.equal("streamed", "".join(e["choices"][0]["text"] for e in events if e["choices"]), w[0][0])
        check.equal("of several the first", answer(plain, {**body, "n": 2})[0], w[0])
    plain.stop()


CITY = {"type": "function", "function": {"name": "city", "strict": True, "parameters": {
    "type": "object", "properties": {"kind": {"enum": ["big", "small"]}, "n": {"type": "boolean"}},
    "required": ["kind", "n"], "additionalProperties": False}}}
OTHER = {"type": "function", "function": {"name": "other", "parameters": {
    "type": "object", "properties": {"x": {"type": "null"}}, "required": ["x"],
    "additionalProperties": False}}}


def test_calls(binary, folder):
    s = Server(binary, folder, "--kv-memory", "64M")
    named = {"type": "function", "function": {"name": "other"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [CITY]}}
    for how, names, finish in (("required", {"city", "other"}, "tool_calls"), (named, {"other"}, "stop"),
                               (allowed, {"city"}, "tool_calls")):
        for k in range(3):
            body = {"messages": [{"role": "user", "content": "hi"}], "tools": [CITY, OTHER],
                    "tool_choice": how,
                    "parallel_tool_calls": False, "temperature": 1, "seed": k, "max_tokens": 150}
            c = s.ok("/v1/chat/completions", body)["choices"][0]
            if c["finish_reason"] == "length":
                continue
            check.equal("how it ends", c["finish_reason"], finish)
            call = c["message"]["tool_calls"][0]["function"]
            check.true("a function that may be called", call["name"] in names, call)
            arguments = json.loads(call["arguments"])
            fits = arguments.get("kind") in ("big", "small") and arguments.get("n") in (True, False)
            check.true("its arguments", arguments == {"x": None} if call["name"] == "other" else fits, call)
    s.stop()


def test_cut_calls(binary, folder):
    """Where a call must be made, what is cut off before its name is no content."""
    s = Server(binary, folder, "--kv-memory", "64M")
    for n in (1, 3, 6, 9, 40):
        body = {"messages": [{"role": "user", "content": "hi"}], "tools": [CITY], "tool_choice": "required",
                "max_tokens": n, "temperature": 0}
        c = s.ok("/v1/chat/completions", body)["choices"][0]
        check.true("no content", not c["message"]["content"], c)
        events = s.stream("/v1/chat/completions", {**body, "stream": True})
        content = "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"])
        check.equal("nor in a stream", content, "")
    s.stop()


def test_dialects(binary, folder):
    """The other interfaces take the fields of a form, keep to a schema's order, and refuse other fields."""
    s = Server(binary, folder, "--kv-memory", "64M")
    schema = {"type": "object", "properties": {"b": {"type": "boolean"}, "a": {"type": "boolean"}},
              "required": ["a", "b"], "additionalProperties": False}
    hi = [{"role": "user", "content": "hi"}]

    def responses(**more):
        got = s.ok("/v1/responses", {"input": "hi", "max_output_tokens": 300, **more})
        return got["status"], "".join(
            p["text"] for i in got["output"] if i["type"] == "message" for p in i["content"])

    def messages(**more):
        got = s.ok("/v1/messages", {"messages": hi, "max_tokens": 300, **more})
        return got["stop_reason"], "".join(b["text"] for b in got["content"] if b["type"] == "text")

    def finished(ask):
        """The demo model may write blanks for longer than it has room; not always."""
        texts = [text for how, text in (ask(seed) for seed in range(12))
                 if how in ("completed", "end_turn")]
        check.true("some come to an end", texts, texts)
        return texts

    for form in ({"guided_choice": ["yes", "no"]}, {"structured_outputs": {"choice": ["yes", "no"]}},
                 {"guided_regex": "yes|no"}):
        for ask in (responses, messages):
            texts = finished(lambda seed: ask(seed=seed, **form))
            check.true(f"{ask.__name__} {form}", set(texts) <= {"yes", "no"}, texts)
    named = {"type": "json_schema", "name": "x", "schema": schema}
    form = {"format": {"type": "json_schema", "schema": schema}}
    for ask in (lambda seed: responses(text={"format": named}, seed=seed),
                lambda seed: messages(output_config=form, seed=seed)):
        for text in finished(ask):
            check.equal("order", list(json.loads(text)), ["b", "a"])
    for path, body, name in (("/v1/responses", {"input": "hi", "n": 2}, "n"),
                             ("/v1/responses", {"input": "hi", "response_format": {"type": "text"}},
                              "response_format"),
                             ("/v1/messages", {"messages": hi, "max_tokens": 3, "mcp_servers": [{}]},
                              "mcp_servers")):
        status, got = s.post(path, body)[:2]
        check.true(f"refused: {name}", status == 400 and name in got["error"]["message"], got)
    s.ok("/v1/messages", {"messages": hi, "max_tokens": 3, "mcp_servers": []})
    s.stop()


def test_order_of_arguments(binary, folder):
    """As the schema lists them unless the function says `strict: false`."""
    s = Server(binary, folder, "--kv-memory", "64M")
    for strict, wanted in ((True, {"ba"}), (None, {"ba"}), (False, {"ab", "ba"})):
        said = {} if strict is None else {"strict": strict}
        tool = {"type": "function", "function": {"name": "f", **said, "parameters": {
            "type": "object", "properties": {"b": {"type": "boolean"}, "a": {"type": "boolean"}},
            "required": ["a", "b"], "additionalProperties": False}}}
        seen = set()
        for k in range(24):
            body = {"messages": [{"role": "user", "content": "hi"}], "tools": [tool],
                    "tool_choice": {"type": "function", "function": {"name": "f"}}, "seed": k,
                    "max_tokens": 150, "thinking_token_budget": 2}
            c = s.ok("/v1/chat/completions", body)["choices"][0]
            if c["finish_reason"] != "length":
                seen.add("".join(json.loads(c["message"]["tool_calls"][0]["function"]["arguments"])))
        check.equal(f"strict: {strict}", seen, wanted)
    s.stop()


def test_budget_of_messages(binary, folder):
    """thinking.budget_tokens closes the thinking, as a chat's thinking_token_budget does."""
    s = Server(binary, folder, "--kv-memory", "64M")
    for budget in (1, 4):
        lengths = []
        for seed in range(8):
            body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 60, "seed": seed,
                    "thinking": {"type": "enabled", "budget_tokens": budget}, "guided_regex": "[ab]{3}"}
            blocks = s.ok("/v1/messages", body)["content"]
            lengths += [len(s.ok("/tokenize", {"prompt": b["thinking"]})["tokens"])
                        for b in blocks if b["type"] == "thinking"]
            check.true("then the answer", blocks[-1]["text"].strip("ab") == "", blocks)
        check.true(f"budget {budget}", lengths and max(lengths) <= 4 * budget + 4, lengths)
    s.stop()


def test_many_references(binary, folder):
    """Parameters that refer to each other many times over are no more work than they are text."""
    s = Server(binary, folder, "--kv-memory", "64M")
    many = {k: {"$ref": "#/$defs/t"} for k in "abcdefgh"}
    tool = {"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": many, "$defs": {"t": {"type": "object", "properties": many}}}}}
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [tool], "tool_choice": "required",
            "max_tokens": 20}
    check.equal("status", s.post("/v1/chat/completions", body)[0], 200)
    tool["function"]["parameters"]["$defs"]["t"] = {"$ref": "#/$defs/t"}
    tool["function"]["parameters"]["required"] = ["a"]
    status, got = s.post("/v1/chat/completions", body)
    check.true("a schema that nothing satisfies: any object", status == 200 and got["warnings"], got)
    body["tool_choice"] = {"type": "function", "function": {"name": "f"}}
    status, got = s.post("/v1/chat/completions", body)
    check.true("a choice that names it: any object", status == 200 and got["warnings"], got)
    tool["function"]["strict"] = True
    check.equal("a strict one", s.post("/v1/chat/completions", body)[0], 400)
    s.stop()


def test_faults(binary, model):
    s = Server(binary, model, "--kv-memory", "64M")
    for form, param, words in (
            (in_order({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}),
             "response_format", "$.properties.a"),
            (in_order({"type": "integer", "multipleOf": 1009}), "response_format", "multipleOf"),
            (as_schema({"$ref": "#/$defs/none"}), "response_format", "$ref"),
            (as_schema({"$ref": "#/$defs/x", "$defs": {"x": {"$ref": "#/$defs/x"}}}),
             "response_format", "itself"),
            (as_schema({"type": "object", "properties": {"a": {"$ref": "#/$defs/0"}}, "$defs": {
                str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(1000)}}), "response_format", "itself"),
            (as_schema(False), "response_format", "no text"),
            (as_schema({"properties": {"a": {"type": "strin"}}}), "response_format", "$.properties.a"),
            (as_schema({"properties": ["a"]}), "response_format", "properties"),
            (as_schema({"enum": [1, 10**30]}), "response_format", "64 bits"),
            (as_schema({"oneOf": [{"type": "object", "properties": {"t": {"const": i}}, "required": ["t"]}
                                  for i in range(2000)]}), "response_format", "too many"),
            (as_schema({"type": "string", "pattern": "^" + r"\p{L}?" * 1500 + "$"}),
             "response_format", "too large"),
            ({"guided_regex": "(a"}, "guided_regex", "group"),
            ({"guided_json": "{"}, "guided_json", "JSON"),
            (in_order({"type": "string", "pattern": "(a)\\1"}), "response_format", "refers back"),
            ({"guided_json": {"type": "string", "pattern": "(a"}}, "guided_json", "group")):
        status, got = s.post("/v1/completions", {"prompt": "x", **form})[:2]
        error = got["error"] if isinstance(got, dict) else {}
        check.equal("status", status, 400)
        check.equal("code", error.get("code"), "unsupported_schema")
        check.equal("param", error.get("param"), param)
        check.true("says what and where", words in error.get("message", ""), error)
    begin = time.monotonic()
    for schema in ({"enum": [i * 3.5 for i in range(20000)]}, {"enum": [f"v{i}" for i in range(20000)]},
                   {"oneOf": [{"const": f"k{i}", "title": f"K {i}"} for i in range(2000)]},
                   {"allOf": [{"enum": list(range(20000))}, {"enum": list(range(5, 20005))}]},
                   {"type": "integer", "maximum": 10**400}):
        got = s.ok("/v1/completions", {"prompt": "x", "max_tokens": 3, "guided_json": schema})
        check.true("is compiled", got["choices"], got)
    check.true("in time", time.monotonic() - begin < 60, time.monotonic() - begin)
    # Too much may follow in one place, which shows only when the machine gets there.
    some = "y ::= " + " | ".join(f'"a{i}" y' for i in range(700)) + ' | "b"'
    wide = f'root ::= "x"{{3}} z\nz ::= {"y? " * 2000} "end"\n{some}'
    for stream in (False, True):
        body = {"prompt": "x", "guided_grammar": wide, "max_tokens": 9, "stream": stream}
        status, _, got = s.request("POST", "/v1/completions", body)  # a stream may have begun
        check.true("an error, not half an answer", b"constraint_too_costly" in got, (status, got))
    s.stop()


def test_relaxed(binary, model):
    """What no finite machine enforces is left out unless the request is strict, and said each time."""
    s = Server(binary, model, "--kv-memory", "64M")
    loose = {"type": "object", "additionalProperties": False, "required": ["tags", "n"], "properties": {
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 3},
        "n": {"type": "integer", "multipleOf": 1009, "minimum": 0, "maximum": 9999},
        "set": {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "maxItems": 2},
        "back": {"type": "string", "pattern": "(a)\\1", "maxLength": 4}}}
    body = {"prompt": "x", "max_tokens": 200, "temperature": 1, "seed": 4}
    for form in (as_schema(loose), {"guided_json": loose}, as_schema(loose)):  # the third is cached
        got = s.ok("/v1/completions", {**body, **form})
        said = got.get("warnings") or []
        check.equal("the places", sorted(w.rpartition("$")[2] for w in said),
                    [".properties.back", ".properties.n", ".properties.set"])
        check.true("of a keyword each", all(any(k in w for w in said) for k in
                                            ("uniqueItems", "multipleOf", "refers back")), said)
        if got["choices"][0]["finish_reason"] == "stop":
            tags = json.loads(got["choices"][0]["text"])["tags"]
            check.equal("the rest is enforced", sorted(tags), list("abc"))
    check.equal("strict", s.post("/v1/completions", {**body, **in_order(loose)})[0], 400)
    loose = {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 3}, "uniqueItems": True,
             "minItems": 3}
    for seed in range(5):
        got = s.ok("/v1/completions", {**body, "seed": seed, **in_order(loose)})
        check.equal("a finite set", sorted(json.loads(got["choices"][0]["text"])), [1, 2, 3])
        check.true("no warning", "warnings" not in got, got)
    s.stop()


def main():
    a = arguments(__doc__)
    check.run(test_forms, a.binary, a.demo)
    check.run(test_calls, a.binary, os.path.join(GOLDEN, "qwen2_f32"))
    for kind in ("qwen2_f32", "../gemma4/dense_f32"):
        check.run(test_order_of_arguments, a.binary, os.path.join(GOLDEN, kind))
    for kind in ("qwen2_f32", "../gemma4/dense_f32"):
        check.run(test_cut_calls, a.binary, os.path.join(GOLDEN, kind))
    check.run(test_dialects, a.binary, a.demo)
    check.run(test_budget_of_messages, a.binary, os.path.join(GOLDEN, "../gemma4/dense_f32"))
    check.run(test_many_references, a.binary, os.path.join(GOLDEN, "../gemma4/dense_f32"))
    check.run(test_faults, a.binary, a.demo)
    check.run(test_relaxed, a.binary, a.demo)
    check.end()


if __name__ == "__main__":
    main()
