"""Writes tests/golden/tool_calls.json: malformed tool calls in eight syntaxes, and the calls they mean.

The expected result is what a case was generated from, never the server's output: calls (name and arguments)
and the text around them. `open`: the last call is not complete. A case that has no clear meaning is expected
as text. Standard library only."""

import json
import os

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/golden/tool_calls.json")

STRING, INTEGER = {"type": "string"}, {"type": "integer"}


def function(name, **properties):
    return {"type": "function",
            "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


FUNCTIONS = [
    function("get_weather", city=STRING, days=INTEGER, metric={"type": "boolean"}),
    function("search", query=STRING, tags={"type": "array", "items": STRING}, limit=INTEGER),
    function("write_file", path=STRING, text=STRING),
    function("plot", options={"type": "object"}, x={"type": "number"}, note={"type": ["string", "null"]}),
    function("clock")]

WEATHER = ("get_weather", {"city": "Paris", "days": 3, "metric": True})
SEARCH = ("search", {"query": "it's 5 o'clock", "tags": ["a b", "c"], "limit": 10})
FILE = ("write_file", {"path": "/tmp/x.c", "text": "int main(void)\n{\n    return 0; /* {[( */\n}\n"})
PLOT = ("plot",
        {"options": {"color": "red", "size": [1, 2.5], "deep": {"on": False}}, "x": -0.5, "note": None})
CITY = ("get_weather", {"city": "Zürich 北京"})
CLOCK = ("clock", {})
ALL = [WEATHER, SEARCH, FILE, PLOT, CITY]

cases = []


def add(form, what, text, calls, content="", **more):
    cases.append(
        {"form": form, "what": what, "text": text, "calls": [list(c) for c in calls], "content": content,
         **more})


# ---- values ----


def dumps(v, **k):
    return json.dumps(v, ensure_ascii=False, **k)


def python(v):
    return repr(v)


def unquoted_keys(v):
    if isinstance(v, dict):
        return "{" + ", ".join(f"{k}: {unquoted_keys(x)}" for k, x in v.items()) + "}"
    if isinstance(v, list):
        return "[" + ", ".join(map(unquoted_keys, v)) + "]"
    return dumps(v)


def trailing(v):
    if isinstance(v, dict):
        return "{" + "".join(f"{dumps(k)}: {trailing(x)}, " for k, x in v.items()) + "}"
    if isinstance(v, list):
        return "[" + "".join(trailing(x) + ", " for x in v) + "]"
    return dumps(v)


def no_commas(v):
    if isinstance(v, dict):
        return (
            "{"
            + "\n".join(
                f"{dumps(k)}: {no_commas(x)}" for k, x in v.items()
                if not isinstance(x, (int, float)) or k == list(v)[-1])
            + "}")
    return dumps(v)


def raw_lines(v):
    """Line breaks and tabs of strings stand in them as they are."""
    return dumps(v).replace("\\n", "\n").replace("\\t", "\t")


def doubled(v):
    if isinstance(v, dict):
        return "{{" + ", ".join(f"{dumps(k)}: {doubled(x)}" for k, x in v.items()) + "}}"
    return dumps(v)


def spread(v):
    return dumps(v, indent=2)


WAYS = {"python": python, "keys without quotes": unquoted_keys, "commas at the end": trailing,
        "raw line breaks": raw_lines, "doubled braces": doubled, "spread": spread}


def without_numbers(arguments):
    return {k: v for k, v in arguments.items() if isinstance(v, str) or k == list(arguments)[-1]}


# ---- calls as JSON objects: in tags, alone, in a fence, in a list ----

JSON_FORMS = {"hermes": ("<tool_call>\n%s\n</tool_call>", True), "bare": ("%s", False),
              "fenced": ("```json\n%s\n```", False), "mistral": ("[TOOL_CALLS][%s]", True)}


def json_calls(form, around, tags):
    for name, args in ALL:
        for what, way in WAYS.items():
            add(form, what, around % f'{{"name": "{name}", "arguments": {way(args)}}}', [(name, args)])
        add(form, "parameters", around % f'{{"name": "{name}", "parameters": {dumps(args)}}}', [(name, args)])
        add(form, "arguments first", around % f'{{"arguments": {dumps(args)}, "name": "{name}"}}',
            [(name, args)])
        add(form, "all in Python", around % repr({"name": name, "arguments": args}), [(name, args)])
        some = without_numbers(args)
        add(form, "no commas", around % f'{{"name": "{name}", "arguments": {no_commas(some)}}}',
            [(name, some)])
        if not tags:
            continue
        add(form, "packed", around % dumps({"name": name, "arguments": dumps(args)}), [(name, args)])
        add(form, "packed Python", around % dumps({"name": name, "arguments": repr(args)}), [(name, args)])
        add(form, "flat", around % dumps({"name": name, **args}), [(name, args)])
        add(form, "wrapped",
            around % dumps({"type": "function", "function": {"name": name, "arguments": args}}),
            [(name, args)])
        add(form, "function", around % dumps({"function": name, "args": args}), [(name, args)])
        add(form, "tool", around % dumps({"tool": name, "input": args}), [(name, args)])
    add(form, "an argument beside the arguments",
        around % '{"name": "get_weather", "arguments": {"city": "Rom"}, "days": 2}',
        [("get_weather", {"city": "Rom", "days": 2})])
    add(form, "a brace too many", around % '{"name": "get_weather", "arguments": {"city": "Rom"}}}',
        [("get_weather", {"city": "Rom"})])
    add(form, "quotes in a string",
        around % '{"name": "write_file", "arguments": {"path": "a", "text": "print("hi", 5)"}}',
        [("write_file", {"path": "a", "text": 'print("hi", 5)'})])
    add(form, "a quoted word in a string",
        around % '{"name": "write_file", "arguments": {"text": "say "yes" now", "path": "a"}}',
        [("write_file", {"text": 'say "yes" now', "path": "a"})])
    add(form, "an unknown escape",
        around % '{"name": "write_file", "arguments": {"path": "C:\\dir", "text": "\\d+\\\'"}}',
        [("write_file", {"path": "C:\\dir", "text": "\\d+'"})])
    add(form, "numbers",
        around % '{"name": "plot", "arguments": {"x": +.5, "options": {"a": 1., "b": -.25e3}}}',
        [("plot", {"x": 0.5, "options": {"a": 1.0, "b": -250.0}})])
    add(form, "words", around % '{"name": "get_weather", "arguments": {"city": Paris, "days": 2}}',
        [("get_weather", {"city": "Paris", "days": 2})])
    add(form, "a bracket is missing",
        around % '{"name": "search", "arguments": {"query": "q", "tags": ["a", "b"}}',
        [("search", {"query": "q", "tags": ["a", "b"]})])
    add(form, "a tuple", around % '{"name": "search", "arguments": {"query": "q", "tags": ("a", "b")}}',
        [("search", {"query": "q", "tags": ["a", "b"]})])
    add(form, "None", around % '{"name": "plot", "arguments": {"note": None, "x": 1}}',
        [("plot", {"note": None, "x": 1})])
    two = '{"name": "clock", "arguments": {}}'
    add(form, "two, with a comma", around % ('{"name": "get_weather", "arguments": {"city": "Rom"}}, ' + two),
        [("get_weather", {"city": "Rom"}), CLOCK])
    add(form, "two, on lines", around % ('{"name": "get_weather", "arguments": {"city": "Rom"}}\n' + two),
        [("get_weather", {"city": "Rom"}), CLOCK])


def more_json(form, around):
    call = '{"name": "search", "arguments": {"query": "a", %s}}'
    for what, inside, more in (
        ("a comment", '// so many\n "limit": 3', {"limit": 3}),
        ("a comment of C", '"limit": 3, /* , "x": 1 */', {"limit": 3}),
        ("no comma after a number", '"limit": 3 "tags": ["x"]', {"limit": 3, "tags": ["x"]}),
        ("no comma after a line", '"limit": 3\n"tags": ["x"]', {"limit": 3, "tags": ["x"]}),
        ("semicolons", '"limit": 3; "tags": ["x"]', {"limit": 3, "tags": ["x"]}),
        ("two commas", ', "limit": 3', {"limit": 3}),
        ("curly quotes", "\u201ctags\u201d: [\u201cx, y\u201d]", {"tags": ["x, y"]}),
        ("backticks", '"tags": [`x`]', {"tags": ["x"]}),
        ("triple quotes", '"tags": ["""say "x", y\n"""]', {"tags": ['say "x", y\n']}),
        ("capital words", '"limit": NONE', {"limit": None}),
    ):
        add(form, what, around % (call % inside), [("search", {"query": "a", **more})])


for form_, (around_, tags_) in JSON_FORMS.items():
    json_calls(form_, around_, tags_)
    more_json(form_, around_)

H = "hermes"
add(H, "no end tag", '<tool_call>\n{"name": "clock", "arguments": {}}', [CLOCK])
add(H, "no brace, no end tag", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rom"}',
    [("get_weather", {"city": "Rom"})])
add(H, "no braces", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rom"\n</tool_call>',
    [("get_weather", {"city": "Rom"})])
add(H, "no quote", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rom}}\n</tool_call>',
    [("get_weather", {"city": "Rom"})])
add(H, "cut within a string", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Ro',
    [("get_weather", '{"city": "Ro')], open=True)
add(H, "an end tag in a string",
    '<tool_call>\n{"name": "write_file", "arguments": {"text": "a </tool_call> b"}}\n</tool_call>',
    [("write_file", {"text": "a </tool_call> b"})])
add(H, "a list", '<tool_call>\n[{"name": "clock", "arguments": {}}, {"name": "clock"}]\n</tool_call>',
    [CLOCK, CLOCK])
add(H, "a fence in the tags", '<tool_call>\n```json\n{"name": "clock", "arguments": {}}\n```\n</tool_call>',
    [CLOCK])
add(H, "tags of parameters",
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nRom\n</parameter>\n</function>\n</tool_call>",
    [("get_weather", {"city": "Rom"})])
add(H, "a name and an object", '<tool_call>\nget_weather\n{"city": "Rom"}\n</tool_call>',
    [("get_weather", {"city": "Rom"})])
add(H, "a name and keywords", "<tool_call>\nget_weather(city='Rom', days=2)\n</tool_call>",
    [("get_weather", {"city": "Rom", "days": 2})])
add(H, "text before and after", 'First this.\n<tool_call>\n{"name": "clock"}\n</tool_call>\nThen that.',
    [CLOCK], "First this.\nThen that.")
add(H, "a half call after a call", '<tool_call>\n{"name": "clock"}\n</tool_call>\n<tool_call>\n{"name": "cl',
    [CLOCK], '\n<tool_call>\n{"name": "cl')
add(H, "an object that is no call after a call", '<tool_call>\n{"name": "clock"}\n{"x": 1}\n</tool_call>',
    [CLOCK], '{"x": 1}\n</tool_call>')
for what, inside in (("prose", "I would call clock now."), ("no name", '{"arguments": {"city": "Rom"}}'),
                     ("a number for a name", '{"name": 5, "arguments": {}}'),
                     ("a list for arguments", '{"name": "clock", "arguments": [1, 2]}'),
                     ("an empty name", '{"name": "", "arguments": {}}'), ("nothing", ""),
                     ("a number for arguments", '{"name": "clock", "arguments": 5}')):
    text = f"<tool_call>\n{inside}\n</tool_call>"
    add(H, "no call: " + what, text, [], text)
for form_, text in (("bare", '{"name": "nobody", "arguments": {}}'), ("bare", '{"name": "clock"}'),
                    ("bare", 'Use {"name": "clock", "arguments": {}}.'),
                    ("bare", '{"city": "Rom", "days": 3}'), ("bare", "['a', 'b']"),
                    ("fenced", "```python\nprint({'name': 'clock'})\n```"),
                    ("fenced", '```json\n{"name": "Rom", "arguments": []}\n```'),
                    ("fenced", "```\nplain\n```")):
    add(form_, "no call", text, [], text)
add("mistral", "no call", "[TOOL_CALLS] is a tag.", [], "[TOOL_CALLS] is a tag.")

# ---- a name and arguments ----

for name, args in ALL:
    for what, way in {"JSON": dumps, **WAYS}.items():
        add("mistral", "a name, " + what, f"[TOOL_CALLS]{name}[ARGS]{way(args)}", [(name, args)])
        if (
            name != "search" or what != "python"
        ):  # its apostrophe is in double quotes there: repr is JSON-like then
            add("call", what, f"<|tool_call>call:{name}{way(args)}<tool_call|>", [(name, args)])
    add("mistral", "no [ARGS]", f"[TOOL_CALLS]{name}{dumps(args)}", [(name, args)])
    add("mistral", "an id", f"[TOOL_CALLS]{name}[CALL_ID]abc123XYZ[ARGS]{dumps(args)}", [(name, args)])
    add("mistral", "white space", f"[TOOL_CALLS] {name} [ARGS] {dumps(args)}", [(name, args)])
add("mistral", "two", '[TOOL_CALLS]clock[ARGS]{}[TOOL_CALLS]get_weather[ARGS]{"city": "Rom"}',
    [CLOCK, ("get_weather", {"city": "Rom"})])
add("mistral", "text before", "Sure.[TOOL_CALLS]clock[ARGS]{}", [CLOCK], "Sure.")
add("mistral", "cut", '[TOOL_CALLS]get_weather[ARGS]{"city": "R', [("get_weather", '{"city": "R')], open=True)


def notation(v, quote='<|"|>'):
    if isinstance(v, dict):
        return "{" + ",".join(f"{k}:{notation(x, quote)}" for k, x in v.items()) + "}"
    if isinstance(v, list):
        return "[" + ",".join(notation(x, quote) for x in v) + "]"
    if isinstance(v, str):
        return quote + v + quote
    return dumps(v)


def pythonic(text):
    return text.replace("true", "True").replace("false", "False").replace("null", "None")


C = "call"
for name, args in ALL:
    add(C, "as it should be", f"<|tool_call>call:{name}{notation(args)}<tool_call|>", [(name, args)])
    add(C, "JSON quotes", f"<|tool_call>call:{name}{notation(args, chr(34))}<tool_call|>", [(name, args)])
    add(C, "a doubled brace", f"<|tool_call>call:{name}{{{notation(args)}}}<tool_call|>", [(name, args)])
    add(C, "no call:", f"<|tool_call>{name}{notation(args)}<tool_call|>", [(name, args)])
    add(C, "white space", f"<|tool_call> call: {name} {notation(args)} <tool_call|>", [(name, args)])
    add(C, "parentheses", f"<|tool_call>call:{name}({notation(args)[1:-1]})<tool_call|>", [(name, args)])
    add(C, "no end tag", f"<|tool_call>call:{name}{notation(args)}", [(name, args)])
    add(C, "no brace", f"<|tool_call>call:{name}{notation(args)[:-1]}<tool_call|>", [(name, args)])
    add(C, "brackets too many", f"<|tool_call>call:{name}{notation(args)}]}}<tool_call|>", [(name, args)])
    add(C, "an object", f"<|tool_call>{dumps({'name': name, 'arguments': args})}<tool_call|>", [(name, args)])
    add(C, "True, None", f"<|tool_call>call:{name}{pythonic(notation(args))}<tool_call|>", [(name, args)])
add(C, "quotes in a list", '<|tool_call>call:f{data_refs:["ds_15"],n:1}<tool_call|>',
    [("f", {"data_refs": ["ds_15"], "n": 1})])
add(C, "Python quotes in a list", "<|tool_call>call:f{data_refs:['ds_15', 'it's', 'it\\'s'],n:1}<tool_call|>",
    [("f", {"data_refs": ["ds_15", "it's", "it's"], "n": 1})])
add(C, "a word with a comma", "<|tool_call>call:f{place:Paris, France,n:1}<tool_call|>",
    [("f", {"place": "Paris, France", "n": 1})])
add(C, "an address", "<|tool_call>call:f{url:https://a.b/c?d=e,n:1}<tool_call|>",
    [("f", {"url": "https://a.b/c?d=e", "n": 1})])
add(
    C, "no comma", '<|tool_call>call:f{a:<|"|>x<|"|>b:<|"|>y<|"|>}<tool_call|>', [("f", {"a": "x", "b": "y"})]
)
add(C, "a quoted key", '<|tool_call>call:f{<|"|>a<|"|>:1,"b":2,\'c\':3}<tool_call|>',
    [("f", {"a": 1, "b": 2, "c": 3})])
add(C, "quotes within quotes", '<|tool_call>call:f{a:<|"|>say "x", {now}<|"|>}<tool_call|>',
    [("f", {"a": 'say "x", {now}'})])
add(C, "a backslash", '<|tool_call>call:f{a:<|"|>\\d\\n<|"|>}<tool_call|>', [("f", {"a": "\\d\\n"})])
add(C, "no quote", '<|tool_call>call:f{a:<|"|>open}<tool_call|>', [("f", {"a": "open"})])
add(C, "mixed quotes", '<|tool_call>call:f{a:"x<|"|>,b:1}<tool_call|>', [("f", {"a": "x", "b": 1})])
add(C, "equal signs", "<|tool_call>call:f{a=1,b='x'}<tool_call|>", [("f", {"a": 1, "b": "x"})])
add(C, "no comma, on a line", "<|tool_call>call:f{a:x\nb:y z}<tool_call|>", [("f", {"a": "x", "b": "y z"})])
add(C, "no comma after a number", "<|tool_call>call:f{a:1 b:2}<tool_call|>", [("f", {"a": 1, "b": 2})])
add(C, "two in a block", "<|tool_call>call:f{a:1},call:g{}<tool_call|>", [("f", {"a": 1}), ("g", {})])
add(C, "a path and a glob", "<|tool_call>call:f{a://x/y,b:/*.c,c:a:b}<tool_call|>",
    [("f", {"a": "//x/y", "b": "/*.c", "c": "a:b"})])
add(C, "two", "<|tool_call>call:f{a:1}<tool_call|><|tool_call>call:g{}<tool_call|>",
    [("f", {"a": 1}), ("g", {})])
add(C, "cut", '<|tool_call>call:f{a:<|"|>x', [("f", '{"a":"x')], open=True)
for text in ("<|tool_call>call:f{a,b}<tool_call|>", "<|tool_call>call:{a:1}<tool_call|>",
             "<|tool_call>Now I call f.<tool_call|>", "<|tool_call>call:f"):
    add(C, "no call", text, [], text)

# ---- tags ----


def tagged(v):
    return v if isinstance(v, str) else dumps(v)


def shown(v):
    return v if isinstance(v, str) else repr(v)


def parameters(args, value=tagged, begin="\n", end="\n"):
    return "".join(f"<parameter={k}>{begin}{value(v)}{end}</parameter>\n" for k, v in args.items())


X = "xml"
for name, args in ALL:
    body = parameters(args)
    add(X, "as it should be", f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>",
        [(name, args)])
    add(
        X, "no line breaks",
        (
            f"<tool_call><function={name}>{parameters(args, begin='', end='')}</function></tool_call>"
            if "\n" not in str(args.get("text", ""))
            else f"<tool_call>\n<function={name}>\n{body}</function></tool_call>"),
        [(name, args)])
    add(X, "no <tool_call>", f"<function={name}>\n{body}</function>", [(name, args)])
    add(X, "no </function>", f"<tool_call>\n<function={name}>\n{body}</tool_call>", [(name, args)])
    add(X, "no </tool_call>", f"<tool_call>\n<function={name}>\n{body}</function>", [(name, args)])
    add(
        X, "no </parameter>",
        f"<tool_call>\n<function={name}>\n" + body.replace("</parameter>\n", "")
        + "</function>\n</tool_call>",
        [(name, args)])
    add(X, "an object", f"<tool_call>\n<function={name}>\n{dumps(args)}\n</function>\n</tool_call>",
        [(name, args)])
    add(X, "an object in Python", f"<tool_call>\n<function={name}>{args!r}</function>\n</tool_call>",
        [(name, args)])
    add(X, "JSON in the tags", f"<tool_call>\n{dumps({'name': name, 'arguments': args})}\n</tool_call>",
        [(name, args)])
    add(
        X, "names as attributes",
        f'<tool_call>\n<function name="{name}">\n' + body.replace("<parameter=", "<parameter name=")
        + "</function>\n</tool_call>",
        [(name, args)])
    add(
        X, "names in quotes",
        '<tool_call>\n<function="%s">\n%s</function>\n</tool_call>'
        % (name, "".join(f'<parameter="{k}">\n{tagged(v)}\n</parameter>\n' for k, v in args.items())),
        [(name, args)])
    add(X, "values in Python",
        f"<tool_call>\n<function={name}>\n{parameters(args, shown)}</function>\n</tool_call>", [(name, args)])


def xml(inside):
    return f"<tool_call>\n<function=write_file>\n{inside}</function>\n</tool_call>"


for what, value in (("an end tag", "Use </parameter> to end."),
                    ("an end tag and a line", "a\n</parameter>\nb"),
                    ("two end tags", "</parameter></parameter>x"), ("the end of a call", "x </function> y"),
                    ("a tag of no parameter", "a\n<parameter=zzz>\nb"),
                    ("an end of a block", "see </tool_call> there"),
                    ("all of it", "<tool_call>\n<function=f>\n</function>\n</tool_call> is a call")):
    add(X, "a value with " + what, xml(parameters({"path": "a", "text": value})),
        [("write_file", {"path": "a", "text": value})])
    add(X, "and another after " + what, xml(parameters({"text": value, "path": "a"})),
        [("write_file", {"text": value, "path": "a"})])
add(X, "text after a value",
    xml("<parameter=text>\na\n</parameter>\nand b\n<parameter=path>\np\n</parameter>\n"),
    [("write_file", {"text": "a\n</parameter>\nand b", "path": "p"})])
add(
    X, "two in a block",
    "<tool_call>\n<function=clock>\n</function>\n"
    "<function=get_weather>\n<parameter=city>\nRom\n</parameter>\n</function>\n</tool_call>",
    [CLOCK, ("get_weather", {"city": "Rom"})])
add(X, "a string as it is",
    xml('<parameter=text>\n"q"\n</parameter>\n<parameter=path>\nTrue\n</parameter>\n'),
    [("write_file", {"text": '"q"', "path": "True"})])
add(X, "a number in quotes",
    "<tool_call>\n<function=get_weather>\n<parameter=days>\n+3\n</parameter>\n</function>\n</tool_call>",
    [("get_weather", {"days": 3})])
add(X, "cut", "<tool_call>\n<function=get_weather>\n<parameter=city>\nRo", [("get_weather", '{"city": "Ro')],
    open=True)
for text in ("<tool_call>\n<function=clock\n</tool_call>", "Write <function=NAME>, please.",
             "<tool_call>\nno\n</tool_call>"):
    add(X, "no call", text, [], text)

G = "glm"


def glm(name, args, value=tagged, gap="\n"):
    return (
        f"<tool_call>{name}{gap}"
        + "".join(
            f"<arg_key>{k}</arg_key>{gap}<arg_value>{value(v)}</arg_value>{gap}" for k, v in args.items())
        + "</tool_call>")


for name, args in ALL:
    add(G, "as it should be", glm(name, args), [(name, args)])
    add(G, "no line breaks", glm(name, args, gap=""), [(name, args)])
    add(G, "blanks", glm(name, args, gap=" "), [(name, args)])
    add(
        G, "values in Python", glm(name, args, lambda v: v if isinstance(v, str) else repr(v)), [(name, args)]
    )
    add(G, "no end tag", glm(name, args).replace("</tool_call>", ""), [(name, args)])
    add(G, "JSON", f"<tool_call>\n{dumps({'name': name, 'arguments': args})}\n</tool_call>", [(name, args)])
    add(G, "an object", f"<tool_call>{name}\n{dumps(args)}\n</tool_call>", [(name, args)])
    add(G, "the tags of others",
        f"<tool_call>\n<function={name}>\n{parameters(args)}</function>\n</tool_call>", [(name, args)])
add(G, "no arguments", "<tool_call>clock\n</tool_call>", [CLOCK])
add(G, "an end tag in a value", glm("write_file", {"text": "a </arg_value> b", "path": "p"}),
    [("write_file", {"text": "a </arg_value> b", "path": "p"})])
add(
    G, "no </arg_value>",
    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rom\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
    [("get_weather", {"city": "Rom", "days": 3})])
add(G, "two", glm(*CLOCK) + "\n" + glm("get_weather", {"city": "Rom"}),
    [CLOCK, ("get_weather", {"city": "Rom"})])
add(G, "no call", "<tool_call>I think so.</tool_call>", [], "<tool_call>I think so.</tool_call>")

L = "lfm2"


def keywords(args, value=python, equal="="):
    return ", ".join(f"{k}{equal}{value(v)}" for k, v in args.items())


def lfm2(inside):
    return f"<|tool_call_start|>{inside}<|tool_call_end|>"


for name, args in ALL:
    add(L, "as it should be", lfm2(f"[{name}({keywords(args)})]"), [(name, args)])
    add(L, "JSON values", lfm2(f"[{name}({keywords(args, dumps)})]"), [(name, args)])
    add(L, "colons", lfm2(f"[{name}({keywords(args, dumps, ': ')})]"), [(name, args)])
    add(L, "no list", lfm2(f"{name}({keywords(args)})"), [(name, args)])
    add(L, "no bracket", lfm2(f"[{name}({keywords(args)})"), [(name, args)])
    add(L, "no parenthesis", lfm2(f"[{name}({keywords(args)}]"), [(name, args)])
    add(L, "no end tag", f"<|tool_call_start|>[{name}({keywords(args)})]", [(name, args)])
    add(L, "a comma at the end", lfm2(f"[{name}({keywords(args)}, ),]"), [(name, args)])
    add(L, "an object", lfm2(f"[{name}({dumps(args)})]"), [(name, args)])
    add(L, "JSON", lfm2(f"[{dumps({'name': name, 'arguments': args})}]"), [(name, args)])
    add(L, "spread",
        lfm2(f"[\n  {name}(\n    " + ",\n    ".join(f"{k} = {v!r}" for k, v in args.items()) + "\n  )\n]"),
        [(name, args)])
add(L, "two", lfm2("[clock(), get_weather(city='Rom')]"), [CLOCK, ("get_weather", {"city": "Rom"})])
add(L, "two on lines", lfm2("clock()\nget_weather(city='Rom')"), [CLOCK, ("get_weather", {"city": "Rom"})])
add(L, "text after", lfm2("[clock()]") + "Let me see.", [CLOCK], "Let me see.")
add(L, "no call", lfm2("I can't."), [], lfm2("I can't."))
add(L, "cut", "<|tool_call_start|>[get_weather(city='Ro", [("get_weather", '{"city": "Ro')], open=True)

if __name__ == "__main__":
    with open(OUT, "w", encoding="utf-8") as f:
        f.write(
            '{"functions": ' + dumps(FUNCTIONS) + ',\n"cases": [\n' + ",\n".join(dumps(c) for c in cases)
            + "\n]}\n")
    print(len(cases), "cases in", len({c["form"] for c in cases}), "forms")
