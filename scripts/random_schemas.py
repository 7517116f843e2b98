#!/usr/bin/env python3
"""Random JSON schemas against a running server: every finished response must parse and satisfy its schema, as
Python's jsonschema sees it (draft 2020-12, formats checked). Exit 1 if one does not.

usage: scripts/random_schemas.py --url http://localhost:8000 --model NAME [--count 300] [--seed 1]
       scripts/random_schemas.py --files DIR [--count 300] [--seed 1]
           no server: writes schemas with instances, valid and not, as files for bench_grammar

Needs the Python packages jsonschema[format] and, for --url, openai."""

import argparse
import collections
import copy
import json
import os
import random
import sys

from jsonschema import Draft202012Validator as Validator

FORMATS = [
    "date",
    "time",
    "date-time",
    "uuid",
    "ipv4",
    "ipv6",
    "email",
    "uri",
    "hostname",
    "duration",
    "uri-reference",
]
PATTERNS = ["^[a-z]{2,5}$", "^x", "[0-9]", "^(a|b)*$", "^$|^k", "^[^ ]+$"]
NAMES = ["a", "b", "c", "name", "x-1", "kind", "größe"]
WORDS = ["", "a", "b", "x", "ab", "x9", "kk", "red", "a b", "\u00e9", "/", '"', "\t"]


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def some(self, p):
        return self.r.random() < p

    def scalar(self):
        r = self.r
        return r.choice([None, True, False, 0, 1, -3, 7, 2.5, 12, r.choice(WORDS)])

    def number(self):
        r, s = self.r, {"type": self.r.choice(["integer", "number"])}
        if self.some(0.5):
            s[r.choice(["minimum", "exclusiveMinimum"])] = r.choice([-5, 0, 1, 2.5])
        if self.some(0.5):
            s[r.choice(["maximum", "exclusiveMaximum"])] = r.choice([3, 7, 10.25, 100])
        if self.some(0.1):
            s["multipleOf"] = r.choice([1, 0.1, 0.01])
        return s

    def string(self):
        r, s = self.r, {"type": "string"}
        kind = r.randrange(6)
        if kind == 0:
            s["minLength"] = r.randrange(3)
        if kind in (0, 1):
            s["maxLength"] = r.randrange(2, 6)
        if kind == 2:
            s["pattern"] = r.choice(PATTERNS)
        if kind == 3:
            s["format"] = r.choice(FORMATS)
        if kind == 4:
            s["enum"] = r.sample(WORDS, 3)
        return s

    def array(self, depth):
        r, s = self.r, {"type": "array"}
        if self.some(0.2):
            s["prefixItems"] = [self.schema(depth - 1) for _ in range(r.randrange(1, 3))]
        if self.some(0.8):
            s["items"] = False if self.some(0.1) else self.schema(depth - 1)
        if self.some(0.3):
            s["minItems"] = r.randrange(3)
        if self.some(0.5):
            s["maxItems"] = r.randrange(1, 4)
        if self.some(0.1):
            s["contains"] = self.schema(0)
        if self.some(0.1):
            s = {"type": "array", "items": {"enum": r.sample(["a", "b", 1, True], 3)}, "uniqueItems": True}
        return s

    def object(self, depth):
        r, s = self.r, {"type": "object"}
        names = r.sample(NAMES, r.randrange(4))
        s["properties"] = {n: self.schema(depth - 1) for n in names}
        if self.some(0.6):
            s["required"] = r.sample(NAMES[:5] if self.some(0.2) else names, r.randrange(len(names) + 1))
        if self.some(0.6):
            s["additionalProperties"] = False if self.some(0.7) else self.schema(0)
        if self.some(0.15):
            s["patternProperties"] = {r.choice(["^x", "a", "^[b-k]"]): self.schema(0)}
        if self.some(0.1):
            s["propertyNames"] = {"pattern": r.choice(["^[a-x]", "^.{1,4}$"])}
        if self.some(0.15) and names:
            s["dependentRequired"] = {r.choice(NAMES[:4]): r.sample(NAMES[:5], 1)}
        if self.some(0.1):
            s["dependentSchemas"] = {r.choice(NAMES[:4]): self.object(0)}
        if self.some(0.1):
            s["minProperties"] = r.randrange(1, 3)
        if self.some(0.1):
            s["maxProperties"] = r.randrange(1, 4)
        return s

    def combined(self, depth):
        r, n = self.r, self.r.choice([2, 2, 3])
        kind = r.choice(["anyOf", "oneOf", "allOf", "not", "if", "beside"])
        if kind == "not":
            return {"allOf": [self.schema(depth - 1), {"not": self.schema(0)}]}
        if kind == "if":
            s = {
                "if": self.object(0),
                "then": self.object(0),
                "type": "object",
                "properties": {"a": self.schema(0)},
            }
            if self.some(0.5):
                s["else"] = self.object(0)
            return s
        if kind == "beside":
            return dict(
                self.object(depth - 1), **{r.choice(["anyOf", "oneOf"]): [self.object(0) for _ in range(n)]}
            )
        return {kind: [self.schema(depth - 1) for _ in range(n)]}

    def schema(self, depth):
        r = self.r
        kind = r.randrange(12 if depth > 0 else 5)
        if kind == 0:
            return self.number()
        if kind in (1, 2):
            return self.string()
        if kind == 3:
            return (
                {"enum": [self.scalar() for _ in range(3)]} if self.some(0.6) else {"const": self.scalar()}
            )
        if kind == 4:
            return r.choice(
                [{"type": "boolean"}, {"type": "null"}, {"type": ["string", "integer"]}, True, {}]
            )
        if kind == 5:
            return {"$ref": "#/$defs/node"}
        if kind < 8:
            return self.array(depth)
        return self.object(depth) if kind < 10 else self.combined(depth)

    def root(self):
        s = self.object(3) if self.some(0.7) else self.combined(3)
        s["$defs"] = {
            "node": {
                "type": "object",
                "additionalProperties": False,
                "required": ["v"],
                "properties": {"v": self.schema(0), "next": {"$ref": "#/$defs/node"}},
            }
        }
        return s

    def value(self, s, depth, root):
        """A value that satisfies the schema often."""
        r = self.r
        if not isinstance(s, dict) or not s or self.some(0.07) or depth > 6:
            return r.choice([self.scalar(), [], {}, {"a": 1}, [1, "a"]])
        if "$ref" in s:
            return self.value(root["$defs"]["node"], depth + 1, root)
        if "enum" in s:
            return r.choice(s["enum"])
        if "const" in s:
            return s["const"]
        for key in ("anyOf", "oneOf", "allOf"):
            if key in s:
                one = self.value(r.choice(s[key]), depth + 1, root)
                rest = (
                    self.value({k: v for k, v in s.items() if k != key}, depth + 1, root)
                    if len(s) > 1
                    else None
                )
                if isinstance(one, dict) and isinstance(rest, dict):
                    return {**one, **rest}
                if isinstance(one, dict) and key == "allOf":
                    for other in s[key]:
                        more = self.value(other, depth + 1, root)
                        one = {**more, **one} if isinstance(more, dict) else one
                return one
        kind = s.get("type", "object" if "properties" in s else "string")
        kind = r.choice(kind) if isinstance(kind, list) else kind
        if kind == "object":
            out = {}
            for name in s.get("properties", {}):
                if name in s.get("required", []) or self.some(0.5):
                    out[name] = self.value(s["properties"][name], depth + 1, root)
            for name in s.get("required", []):
                out.setdefault(name, self.scalar())
            if self.some(0.3):
                more = s.get("additionalProperties", True)
                out[r.choice(NAMES + ["zz", "xy"])] = self.value(more, depth + 1, root)
            items = list(out.items())
            if self.some(0.3):
                r.shuffle(items)
            return dict(items)
        if kind == "array":
            front = [self.value(x, depth + 1, root) for x in s.get("prefixItems", [])]
            return front[: r.randrange(4)] + [
                self.value(s.get("items", True), depth + 1, root) for _ in range(r.randrange(3))
            ]
        if kind in ("integer", "number"):
            return (
                r.choice([0, 1, -5, 3, 7, 10, 100, 5])
                if kind == "integer"
                else r.choice([0, 2.5, 3.25, 0.05, 10.25, 6])
            )
        if kind == "boolean":
            return self.some(0.5)
        if kind == "null":
            return None
        return r.choice(
            WORDS
            + [
                "2024-02-29",
                "2023-02-29",
                "10:00:00Z",
                "2024-01-01T00:00:00Z",
                "::1",
                "1.2.3.4",
                "a@b.c",
                "http://a/b",
                "P1D",
                "abc",
                "abba",
                "k",
            ]
        )


def files(args):
    os.makedirs(args.files, exist_ok=True)
    for i in range(args.count):
        m = Maker(args.seed * 1000003 + i)
        schema = m.root()
        check = Validator(schema, format_checker=Validator.FORMAT_CHECKER)
        tests, seen = [], set()
        for _ in range(25):
            v = m.value(schema, 0, schema)
            text = json.dumps(v, sort_keys=False)
            if text not in seen:
                seen.add(text)
                tests.append({"valid": check.is_valid(v), "data": v})
        with open(os.path.join(args.files, "%06d.json" % i), "w", encoding="utf-8") as f:
            json.dump({"schema": schema, "tests": tests}, f)


def server(args):
    import openai

    client = openai.OpenAI(base_url=args.url.rstrip("/") + "/v1", api_key=args.key, max_retries=0)
    counts, bad = collections.Counter(), 0
    for i in range(args.count):
        m = Maker(args.seed * 1000003 + i)
        schema = m.root()
        given = copy.deepcopy(schema)
        try:
            out = client.chat.completions.create(
                model=args.model,
                temperature=1,
                seed=i,
                max_tokens=args.max_tokens,
                messages=[{"role": "user", "content": "Write some JSON: " + ", ".join(NAMES)}],
                response_format={"type": "json_schema", "json_schema": {"name": "r", "schema": schema}},
            )
        except openai.BadRequestError as e:
            counts["400: " + str(e.body.get("message", e))[:70]] += 1
            continue
        choice = out.choices[0]
        if choice.finish_reason != "stop":
            counts["cut by " + choice.finish_reason] += 1
            continue
        try:
            value = json.loads(choice.message.content)
            error = next(Validator(given, format_checker=Validator.FORMAT_CHECKER).iter_errors(value), None)
        except ValueError as e:
            error = e
        counts["wrong" if error else "finished"] += 1
        if error:
            bad += 1
            print(
                "WRONG %d: %s\n  schema %s\n  answer %s"
                % (i, str(error).split("\n")[0][:200], json.dumps(given), choice.message.content)
            )
    for what, n in counts.most_common():
        print("%6d %s" % (n, what))
    return 1 if bad else 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--url")
    p.add_argument("--files")
    p.add_argument("--model", default="default")
    p.add_argument("--key", default="none")
    p.add_argument("--count", type=int, default=300)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--max-tokens", type=int, default=200)
    args = p.parse_args()
    if args.files:
        files(args)
        return 0
    return server(args)


if __name__ == "__main__":
    sys.exit(main())
