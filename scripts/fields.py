#!/usr/bin/env python3
"""Writes the table of request fields, server/input/fields.def, into docs/http.md, between its two marks.
usage: scripts/fields.py [--check]
  --check: writes nothing; exit 1 if the page has another table"""

import json
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TABLE, PAGE = "server/input/fields.def", "docs/http.md"
APIS, LIMITS = "server/input/fields.h", "engine/sample/sampling.h"
BEGIN, END = "<!-- made by scripts/fields.py: begin -->\n", "<!-- made by scripts/fields.py: end -->\n"
# Sets of APIs that have a name on the page, the largest first; then each API's own.
SETS = ("ALL", "GENERATE", "VECTORS")
NAMES = {"GENERATE": "generation", "TEXT": "completions", "EMBED": "embeddings", "OPTIONS": "`options`",
         "COUNT": "count_tokens", "OLLAMA_EMBED": "ollama embed"}


def source(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def apis():
    """enum field_api: name -> bits"""
    out = {}
    body = re.search(r"enum field_api \{(.*?)\};", source(APIS), re.S)[1]
    for row in re.sub(r"/\*.*?\*/|API_", "", body, flags=re.S).split(","):
        name, value = row.split("=")
        out[name.strip()] = eval(value.strip(), {}, dict(out))
    return out


def call(text, at):
    """The arguments of a call whose opening bracket is at `at`."""
    args, depth, start, i = [], 0, at + 1, at
    while True:
        c = text[i]
        if c == '"':
            i = re.compile(r'"(?:[^"\\]|\\.)*"').match(text, i).end() - 1
        elif c == "(":
            depth += 1
        elif c in ",)" and depth == 1:
            args.append(text[start:i].strip())
            start = i + 1
        depth -= c == ")"
        if not depth:
            return args
        i += 1


def strings(text):
    """"a" "b" -> ab"""
    return "".join(json.loads(s) for s in re.findall(r'"(?:[^"\\]|\\.)*"', text))


def rows():
    """(group, field, APIs, kind, its arguments, help) of each row"""
    text, group = source(TABLE), ""
    text = text[text.index("/* ----"):]
    for name, given, body in re.findall(r"^#define (\w+)\((.*?)\) (.*)\n", text, re.M):  # rows in short
        words = re.compile(rf"\b({given.replace(', ', '|')})\b")
        text = re.sub(rf"^{name}\((.*)\)", lambda row: words.sub(
            lambda w: dict(zip(given.split(", "), row[1].split(", ")))[w[0]], body), text, flags=re.M)
    for found in re.finditer(r"/\* ---- (.*?) ---- \*/|^FIELD(?=\()", text, re.M):
        group = found[1] or group
        if found[1]:
            continue
        name, of, what, said = call(text, found.end())
        kind = re.match(r"\w+", what)[0]
        yield group, name, of, kind, call(what, len(kind)) if kind != what else [], strings(said)


def number(text):
    named = re.search(rf"#define {text} +(\d+)", source(LIMITS)) if text.isidentifier() else None
    if named or text.startswith("INT"):
        return int(named[1]) if named else None
    return float(text)


def span(kind, low, high):
    """integer 1 to 20, as far as it has bounds"""
    low, high = (n if n is None else f"{int(n):,}" if n == int(n) else f"{n:g}" for n in (low, high))
    if low and high:
        return f"{kind} {low} to {high}"
    return f"{kind}, {low} or more" if low else kind


def values(schema):
    """A JSON Schema in some words."""
    if "default" in schema:
        given = schema.pop("default")
        return f"{values(schema)}, default {json.dumps(given)}"
    if "oneOf" in schema:
        return " or ".join(dict.fromkeys(values(s) for s in schema["oneOf"]))
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{json.dumps(v).strip(chr(34))}`" for v in schema.get("enum") or [schema["const"]])
    kind = schema.get("type", "object" if "$ref" in schema else "")
    if kind in ("integer", "number"):
        return span(kind, schema.get("minimum"), schema.get("maximum"))
    words = {"array": "list", "string": "text"}
    return " or ".join(words.get(k, k) for k in (kind if isinstance(kind, list) else [kind]))


def value(kind, args):
    if kind in ("INT", "INT_SET", "UINT", "FLOAT"):
        return span("number" if kind == "FLOAT" else "integer", *map(number, args[1:]))
    if kind in ("READ", "PART"):
        return values(json.loads(strings(args[-1]).replace("'", '"') or "{}"))
    if kind == "ELSEWHERE":
        return "refused" if args[0] == "NULL" else f"refused: use `{strings(args[0])}`"
    if kind == "NEUTRAL":
        return f"refused unless {args[0]}"
    return {"BOOL": "boolean", "SET": "boolean", "TEXT": "text", "LOOSE": "text", "REFUSED": "refused",
            "EMPTY": "refused unless empty"}.get(kind, "")


def who(bits, of):
    names = []
    for api in SETS + tuple(n for n, b in of.items() if b & (b - 1) == 0):
        if bits & of[api] == of[api]:
            names.append(NAMES.get(api, api.lower()))
            bits &= ~of[api]
    return ", ".join(names)


def marked(text):
    """Names of fields, flags and paths as code; a bar does not end a cell."""
    text = re.sub(r"--[a-z][\w-]+|/[a-z]+/\w+|[\w.]*_[\w.:]*\w", r"`\g<0>`", text)
    return text.replace("|", "\\|")


def made():
    """The page's part: a table for each group. What differs only in its APIs or its name shares a row."""
    of, group, out = apis(), None, []
    common, shared = {}, {}
    for title, name, apis_, kind, args, said in rows():
        key = title, name, value(kind, args), marked(said)
        common[key] = common.get(key, 0) | eval(" ".join(apis_.replace("API_", "").split()), {}, of)
    for (title, name, *cells), bits in common.items():
        shared.setdefault((title, who(bits, of), *cells), []).append(f"`{name}`")
    for (title, *cells), names in shared.items():
        if title != group:
            group = title
            head = "\n| field | APIs | values | meaning |\n|---|---|---|---|"
            out += ["", f"**{title[0].upper()}{title[1:]}**", head]
        out.append(" ".join(f"| {', '.join(names)} | {' | '.join(cells)} |".split()))
    return "\n".join(out) + "\n\n"


def main():
    page = source(PAGE)
    head, rest = page.split(BEGIN)
    now = head + BEGIN + made() + END + rest.split(END)[1]
    if sys.argv[1:] == ["--check"]:
        if now != page:
            print(f"{PAGE} is older than {TABLE}: run scripts/fields.py")
        return now != page
    if sys.argv[1:]:
        print(__doc__)
        return 2
    with open(os.path.join(ROOT, PAGE), "w", encoding="utf-8") as f:
        f.write(now)
    return 0


if __name__ == "__main__":
    sys.exit(main())
