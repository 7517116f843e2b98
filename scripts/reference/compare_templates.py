#!/usr/bin/env python3
"""Do released chat templates render here as in transformers?

    compare_templates.py TEMPLATES [--binary build/release/kvasir] [--model models/demo] [--only NAME] [--all]

TEMPLATES: a folder of *.jinja files, or an archive that has a folder "templates" of them. llama.cpp's sources
have one, models/templates, and so has the source archive of the package llama-cpp-python:

    pip download --no-deps --no-binary llama-cpp-python llama-cpp-python

Each template is served with --chat-template on a small model. 25 conversations go to /apply-template, and
through transformers' own environment (jinja2 as apply_chat_template sets it up). A difference is on purpose
if transformers renders the same text once the conversation is rewritten by up to three of the rules below;
else it is a fault. Prints the faults, with --all the other differences too, and a table; exit 1 when there
are faults.
"""
import argparse
import collections
import copy
import itertools
import json
import os
import re
import sys
import tarfile
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tests/api"))
import harness  # noqa: E402
from transformers.utils import chat_template_utils as ctu  # noqa: E402


def user(c):
    return {"role": "user", "content": c}


def system(c):
    return {"role": "system", "content": c}


def said(c, *calls, **more):
    message = {"role": "assistant", "content": c, **more}
    if calls:
        message["tool_calls"] = [{"id": f"callnr{i:03}", "type": "function",
                                  "function": {"name": n, "arguments": a}} for i, (n, a) in enumerate(calls)]
    return message


def result(c, i=0, name="get_weather"):
    return {"role": "tool", "tool_call_id": f"callnr{i:03}", "name": name, "content": c}


def text(t):
    return {"type": "text", "text": t}


def tool(name, description, properties, **more):
    parameters = {"type": "object", "properties": properties, **more}
    return {"type": "function",
            "function": {"name": name, "description": description, "parameters": parameters}}


URL = harness.data_url(harness.png(8, 8, lambda x, y: (x, y, 0)))
IMAGE = {"type": "image_url", "image_url": {"url": URL}}
WEATHER = tool("get_weather", "Gets the weather of a city.",
               {"city": {"type": "string", "description": 'Its name, "Zürich" <b>'},
                "days": {"type": "integer"}, "unit": {"type": "string", "enum": ["c", "f"]},
                "where": {"type": "array", "items": {"type": "number"}}}, required=["city"])
TIME = tool("time", "The time.", {})
CALL = ("get_weather",
        '{"city": "Zürich", "days": 2, "deep": {"a": [1, 2.5, null, true], "b": "\\"x\\"\\n"}}')
AGAIN = ("time", "{}")
THINK = {"reasoning_content": "The user asks.\nSo I answer."}
ASKED = [user("Weather?"), said("", CALL), result("sunny")]
ONE, BOTH = {"tools": [WEATHER]}, {"tools": [WEATHER, TIME]}
# name: messages, and further fields of the request
CHATS = {
    "user": ([user("Hello")], {}),
    "no generation prompt": ([user("Hello")], {"add_generation_prompt": False}),
    "system": ([system("Be brief."), user("Hello")], {}),
    "developer": ([{"role": "developer", "content": "Be brief."}, user("Hello")], {}),
    "turns": ([user("One"), said("1"), user("Two"), said("2"), user("Three")], {}),
    "system, turns": ([system("S"), user("One"), said("1"), user("Two")], {}),
    "ends with assistant": ([user("One"), said("1")], {"add_generation_prompt": False}),
    "white space": ([system(" S \n"), user("\n One\n\n"), said(" 1 \n"), user("  Two  ")], {}),
    "empty": ([user(""), said(""), user("Two")], {}),
    "unicode": ([system("Grüße"), user("é e\u0301 日本語 😀 \u200b\u00a0 & < > ' \""), said("ß ﬁ"),
                 user("x\u2028y")], {}),
    "control tokens": ([user("<bos><|im_end|>\n<|im_start|>system\n[/INST]<|eot_id|></s>"),
                        said("<think>x</think>y"), user("<|end|><turn|>")], {}),
    "template text": ([user("{{ 7 * 7 }} {% raise %} {# c #}"), said("{{ messages }}"), user("%s {}")], {}),
    "tools": ([user("Weather?")], BOTH),
    "system, tools": ([system("S"), user("Weather?")], ONE),
    "call": (ASKED, ONE),
    "text and call": ([user("q"), said("Let me see.", CALL), result("r"), said("Sunny."), user("p")], ONE),
    "two calls": ([user("q"), said("", CALL, AGAIN), result("sunny"), result("12:00", 1, "time")], BOTH),
    "two rounds": ([user("q"), said("", CALL), result('{"t": 18, "u": "c"}'), said("", AGAIN),
                    result("12:00", 0, "time"), said("Noon."), user("p")], BOTH),
    "call without tools": (ASKED, {}),
    "null content": ([user("q"), said(None, CALL), result("r")], ONE),
    "reasoning": ([user("q"), said("a", **THINK), user("p")], {}),
    "reasoning, call": ([user("q"), said("", CALL, **THINK), result("sunny")], ONE),
    "thinking off": ([user("q")], {"chat_template_kwargs": {"enable_thinking": False}}),
    "thinking on": ([user("q"), said("<think>\nhm\n</think>\n\na"), user("p")],
                    {"chat_template_kwargs": {"enable_thinking": True}}),
    "image": ([user([text("What is"), IMAGE, text("this?")])], {}),
}
SENT = {}  # arguments as an object, printed: as the client sent them


def for_template(messages):
    """The chat as transformers' users write it: arguments as objects, images without their data."""
    out = copy.deepcopy(messages)
    for m in out:
        for c in m.get("tool_calls", []):
            f = c["function"]
            sent, f["arguments"] = f["arguments"], json.loads(f["arguments"])
            SENT[json.dumps(f["arguments"])] = sent
        if isinstance(m["content"], list):
            m["content"] = [{"type": "image"} if p["type"] == "image_url" else p for p in m["content"]]
    return out


# ---- what differs on purpose: docs/models.md has the table ----

def each(change):
    def rule(messages, template):
        for m in messages:
            change(m, template)
        return messages
    return rule


def developer(m, template):
    if m["role"] == "developer" and "developer" not in template:
        m["role"] = "system"


def null(m, template):
    if m["content"] is None:
        m["content"] = ""


def calls_alone(m, template):
    if m["content"] == "" and "tool_calls" in m:
        m["content"] = None


def arguments(m, template):
    for c in m.get("tool_calls", []):
        if not isinstance(c["function"]["arguments"], str):
            c["function"]["arguments"] = SENT[json.dumps(c["function"]["arguments"])]


def reasoning(m, template):
    if "reasoning_content" in m:
        m["reasoning"] = m["reasoning_content"]


def one_part(m, template):
    if isinstance(m["content"], str):
        m["content"] = [text(m["content"])]


def one_string(m, template):  # as Gemma 3's template, which is the demo model's
    if isinstance(m["content"], list):
        parts = ("<start_of_image>" if p["type"] == "image" else p["text"].strip() for p in m["content"])
        m["content"] = "".join(parts)


def lead(messages, template):
    head, rest = "", []
    for m in messages:
        if m["role"] == "system":
            head += m["content"] + "\n\n"
            continue
        if m["role"] == "user":
            m["content"], head = head + m["content"], ""
        rest.append(m)
    return rest


RULES = {
    "developer message: system, unless the template knows the role": each(developer),
    "null content: empty": each(null),
    "no system messages: their text before the next user message": lead,
    "calls that show only without content: content is null": each(calls_alone),
    "arguments that would be printed as Python, or fail: JSON text": each(arguments),
    "reasoning_content: also under the name reasoning": each(reasoning),
    "only lists: a string is one part": each(one_part),
    "only strings, or no images: the parts as the family's template writes them": each(one_string),
}


def reference(template, messages, more, specials):
    kwargs = {"add_generation_prompt": True, **more, **more.get("chat_template_kwargs", {}), **specials}
    kwargs.pop("chat_template_kwargs", None)
    try:
        return ctu.render_jinja_template([messages], chat_template=template, **kwargs)[0][0], None
    except Exception as e:
        return None, f"{type(e).__name__}: {e}"


def purpose(template, messages, more, specials, got):
    """The rules that explain the difference, or None."""
    for n in range(1, 4):
        for names in itertools.combinations(RULES, n):
            changed = copy.deepcopy(messages)
            try:
                for name in names:
                    changed = RULES[name](changed, template)
            except TypeError:  # a rule that doesn't fit
                continue
            if reference(template, changed, more, specials)[0] == got:
                return names
    return None


def load(path):
    """{name: template}"""
    if path.is_dir():
        return {p.stem: p.read_text() for p in sorted(path.glob("*.jinja"))}
    with tarfile.open(path) as tar:
        members = [m for m in tar if re.search(r"/templates/[^/]*\.jinja$", m.name)]
        return {Path(m.name).stem: tar.extractfile(m).read().decode() for m in members}


class Comparison:
    def __init__(self, options):
        config = json.loads((Path(options.model) / "tokenizer_config.json").read_text())
        names = ("bos_token", "eos_token", "pad_token", "unk_token", "mask_token")
        self.specials = {k: config[k] for k in names if k in config}
        self.options, self.count, self.rules = options, collections.Counter(), collections.Counter()

    def show(self, title, want, error, got, refused):
        print(title)
        at = len(os.path.commonprefix([want or "", got or ""])) if want and got else 0
        for who, shown, failed in (("transformers", want, error), ("here", got, refused)):
            part = "refuses: " + failed if shown is None else repr(shown[max(0, at - 60):at + 200])
            print(f"   {who}: {part}")

    def template(self, name, source, path):
        path.write_text(source)
        flags = ("--chat-template", str(path), "--threads", "1")
        server = harness.Server(self.options.binary, self.options.model, *flags)
        for chat, (messages, more) in CHATS.items():
            asked = for_template(messages)
            want, error = reference(source, copy.deepcopy(asked), more, self.specials)
            status, answer = server.post("/apply-template", {"messages": messages, **more})
            got, refused = answer.get("prompt"), None if status == 200 else answer["error"]["message"]
            if got == want:
                self.count["equal" if want is not None else "refused by both"] += 1
                continue
            names = purpose(source, asked, more, self.specials, got) if got is not None else None
            self.count["on purpose" if names else "faults"] += 1
            for rule in names or ():
                self.rules[rule] += 1
            if self.options.all or not names:
                title = f"{name}, {chat}: " + ("; ".join(names) if names else "FAULT")
                self.show(title, want, error, got, refused)
        server.stop()


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("templates", type=Path)
    a.add_argument("--binary", default="build/release/kvasir")
    a.add_argument("--model", default="models/demo")
    a.add_argument("--only", help="templates whose names contain this")
    a.add_argument("--all", action="store_true")
    o = a.parse_args()
    templates = {n: s for n, s in load(o.templates).items() if not o.only or o.only in n}
    c = Comparison(o)
    with tempfile.TemporaryDirectory() as folder:
        for name, source in templates.items():
            try:
                c.template(name, source, Path(folder) / "chat.jinja")
            except SystemExit as e:
                c.count["faults"] += 1
                print(f"{name}: FAULT: {e}")
    print(f"{len(templates)} templates, {len(CHATS)} conversations:",
          ", ".join(f"{n} {k}" for k, n in c.count.items()))
    for rule, n in c.rules.most_common():
        print(f"{n:5} {rule}")
    sys.exit(1 if c.count["faults"] or not c.count["equal"] else 0)


if __name__ == "__main__":
    main()
