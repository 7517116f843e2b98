"""200 tool schemas as public MCP servers' generators write them (zod 3 and 4, pydantic, schemars, Go's
jsonschema): no request is refused for a tool that it needn't call, in three dialects, with auto, required and
a named choice of another tool."""

import random

from common import MODEL, run
from wire import post

random_ = random.Random(35)
TEXT = {"type": "string", "description": "Ein <Text> & mehr — 文字"}
EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
DURATION = r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"
LEAVES = [
    lambda: dict(TEXT),
    lambda: {"type": "string", "enum": ["open", "closed", "all"], "default": "open"},
    lambda: {"type": "string",
             "format": random_.choice(["uri", "date-time", "email", "uuid", "date", "duration"])},
    lambda: {"type": "string",
             "pattern": random_.choice([EMAIL, DURATION, r"^\S+$", r"(?i)^[a-f0-9]{40}$", r"\bword\b"])},
    lambda: {"type": "string", "format": "email", "pattern": EMAIL},
    lambda: {"type": "string", "pattern": "^(\\p{Extended_Pictographic}|\\p{Emoji_Component})+$"},
    lambda: {"type": "string", "minLength": 1, "maxLength": 200, "contentEncoding": "base64"},
    lambda: {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
    lambda: {"type": "number", "multipleOf": random_.choice([0.01, 3, 10, 0.25])},
    lambda: {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991, "multipleOf": 7},
    lambda: {"type": "boolean", "default": False, "title": "Flag"},
    lambda: {"const": random_.choice(["a", 1, None, True])},
    lambda: {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None, "title": "Limit"},
    lambda: {"type": ["string", "null"]},
    lambda: {"type": ["string", "number", "boolean"]},
    lambda: {},
    lambda: {"description": "Anything."},
    lambda: {"$ref": "#/$defs/Node"},
    lambda: {"allOf": [{"$ref": "#/$defs/Color"}], "default": "red"},
]


def value(depth):
    kind = random_.random()
    if depth > 2 or kind < 0.6:
        return random_.choice(LEAVES)()
    if kind < 0.72:
        return {
            "type": "array",
            "items": value(depth + 1),
            **random_.choice(
                [{}, {"minItems": 1}, {"maxItems": 5}, {"uniqueItems": True}, {"minItems": 2, "maxItems": 2}]
            ),
        }
    if kind < 0.76:
        return {"type": "array", "prefixItems": [value(depth + 1), value(depth + 1)], "items": False}
    if kind < 0.8:
        return {"type": "object", "additionalProperties": value(depth + 1),
                "propertyNames": {"pattern": "^[a-z_]+$"}}
    if kind < 0.84:
        return {
            "oneOf": [
                {"type": "object", "properties": {"kind": {"const": k}, "v": value(depth + 1)},
                 "required": ["kind"]}
                for k in "ab"
            ],
            "discriminator": {"propertyName": "kind"},
        }
    if kind < 0.88:
        return {"anyOf": [value(depth + 1), value(depth + 1)]}
    return {**fields(depth + 1), **random_.choice([{}, {"title": "Part"}, {"unevaluatedProperties": False}])}


def fields(depth):
    names = random_.sample(
        ["query", "path", "owner", "repo", "page", "perPage", "labels", "body", "in-reply-to", "$filter",
         "größe", "from", "ids[]", "options", "kind.of"],
        random_.randint(0, 6),
    )
    schema = {"type": "object", "properties": {n: value(depth) for n in names}}
    some = [n for n in names if random_.random() < 0.5]
    if some:
        schema["required"] = some
    return {**schema, **random_.choice([{}, {"additionalProperties": False}, {"additionalProperties": {}}])}


def parameters():
    top = {
        **random_.choice(
            [{}, {"$schema": "http://json-schema.org/draft-07/schema#"},
             {"$schema": "https://json-schema.org/draft/2020-12/schema"}]
        ),
        **fields(0),
    }
    names = list(top["properties"])
    if len(names) > 1:
        top.update(
            random_.choice(
                [{}, {}, {}, {"dependentRequired": {names[0]: [names[1]]}},
                 {"anyOf": [{"required": [names[0]]}, {"required": [names[1]]}]},
                 {"if": {"required": [names[0]]}, "then": {"required": [names[1]]}}, {"minProperties": 1},
                 {"not": {"required": names[:2]}}]
            )
        )
    node = {"type": "object",
            "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/Node"}}}}
    return {**top, "$defs": {"Node": node, "Color": {"type": "string", "enum": ["red", "blue"]}}}


TOOLS = [(f"tool_{i}", parameters()) for i in range(200)]
PLAIN = ("plain",
         {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]})
ASKED = [{"role": "user", "content": "Hi."}]


def chat(tools, choice):
    named = {"type": "function", "function": {"name": "plain"}}
    return "/v1/chat/completions", {
        "messages": ASKED,
        "max_tokens": 4,
        "tool_choice": named if choice == "named" else choice,
        "tools": [{"type": "function", "function": {"name": n, "parameters": p}} for n, p in tools],
    }


def responses(tools, choice):
    named = {"type": "function", "name": "plain"}
    return "/v1/responses", {
        "input": ASKED,
        "max_output_tokens": 4,
        "tool_choice": named if choice == "named" else choice,
        "tools": [{"type": "function", "name": n, "parameters": p, "strict": False} for n, p in tools],
    }


def messages(tools, choice):
    kinds = {"named": {"type": "tool", "name": "plain"}, "required": {"type": "any"},
             "auto": {"type": "auto"}}
    return "/v1/messages", {"messages": ASKED, "max_tokens": 4, "tool_choice": kinds[choice],
                            "tools": [{"name": n, "input_schema": p} for n, p in tools]}


def check(choice):
    refused = {}
    for name, schema in TOOLS:
        for dialect in (chat, responses, messages):
            path, body = dialect([(name, schema), PLAIN], choice)
            try:
                post(path, {"model": MODEL, **body})
            except AssertionError as e:
                refused.setdefault(str(e), []).append(f"{dialect.__name__} {name}")
    for said, where in list(refused.items())[:10]:
        print(where[0], said)
    assert not refused, f"{choice}: {sum(map(len, refused.values()))} of 600 requests are refused"


def auto():
    check("auto")


def required():
    check("required")


def named():
    check("named")


run("mcp_tools", auto, named, required)
