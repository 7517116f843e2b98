#!/usr/bin/env python3
"""Does a running server make the same prompts of chats with tools as transformers, and does the model call one?

    compare_tools.py MODEL_DIR --url http://127.0.0.1:8000 [--no-ask]

For every chat and every set of tools of make_templates.py: the ids of /tokenize against AutoTokenizer.apply_chat_template(tools=...). Where a
client's texts hold tags, transformers is asked for sanitize_control_tokens, and the text and the control tokens are compared: it encodes such a tag apart, the server
in one piece with its neighbours. Then (unless --no-ask) a question about the weather is asked,
whole and as a stream, and answered with a result. Exit 1 when ids differ or an answer is malformed; a model that answers in words is only reported.
"""
import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
from transformers import AutoTokenizer  # noqa: E402

from make_templates import TOOL_CHATS, TOOL_SETS, for_template  # noqa: E402

WEATHER = {"type": "function", "function": {"name": "get_current_weather", "description": "Gets the current weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "Name of the city"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
    "required": ["city"]}}}


def post(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    key = os.environ.get("KVASIR_API_KEY")
    if key:
        request.add_header("Authorization", "Bearer " + key)
    try:
        with urllib.request.urlopen(request, timeout=600) as r:
            return r.read().decode()
    except urllib.error.HTTPError as e:
        sys.exit(f"{path} answered {e.code}: {e.read().decode(errors='replace')}")


def compare_prompts(url, tokenizer):
    same, differing = 0, 0
    for label, messages in TOOL_CHATS.items():
        for name, tools in {**TOOL_SETS, "none": None}.items():
            generate = messages[-1]["role"] != "assistant"
            typed = label in ("typed tags", "result in parts", "reasoning inside") or name == "tags"
            options = {"sanitize_control_tokens": True} if typed else {}
            want = tokenizer.apply_chat_template(for_template(messages), tools=tools, add_generation_prompt=generate, tokenize=True, return_dict=False, **options)
            body = {"messages": messages, "add_generation_prompt": generate}
            got = json.loads(post(url, "/tokenize", {**body, "tools": tools} if tools else body))["tokens"]
            if typed:
                control = set(tokenizer.added_tokens_decoder)
                same_tags = [i for i in got if i in control] == [i for i in want if i in control]
                equal = same_tags and tokenizer.decode(got) == tokenizer.decode(want)
            else:
                equal = got == want
            if equal:
                same += 1
                continue
            differing += 1
            at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
            print(f"differ: {label}, tools {name}, at {at}: server {tokenizer.decode(got[at:at + 8])!r}, transformers {tokenizer.decode(want[at:at + 8])!r}")
    print(f"prompts: {same} equal, {differing} differ")
    return differing == 0


def streamed(url, body):
    message, finish = {"content": None, "tool_calls": []}, None
    for line in post(url, "/v1/chat/completions", {**body, "stream": True}).split("\n"):
        if not line.startswith("data: {"):
            continue
        choice = json.loads(line[6:])["choices"][0]
        if choice["delta"].get("content"):
            message["content"] = (message["content"] or "") + choice["delta"]["content"]
        for c in choice["delta"].get("tool_calls", []):
            if c["index"] == len(message["tool_calls"]):
                message["tool_calls"].append({"name": c["function"]["name"], "arguments": ""})
            message["tool_calls"][c["index"]]["arguments"] += c["function"].get("arguments", "")
        finish = choice["finish_reason"] or finish
    return message, finish


def ask(url):
    body = {"messages": [{"role": "user", "content": "What is the weather like in Paris right now? Use celsius."}], "tools": [WEATHER], "temperature": 0, "max_tokens": 200}
    choice = json.loads(post(url, "/v1/chat/completions", body))["choices"][0]
    message = choice["message"]
    calls = [c["function"] for c in message.get("tool_calls", [])]
    print("answer:", choice["finish_reason"], json.dumps(message, ensure_ascii=False))
    again, finish = streamed(url, body)
    good = again["content"] == (message["content"] or None) and again["tool_calls"] == calls and finish == choice["finish_reason"]
    if not good:
        print("the stream differs:", finish, json.dumps(again, ensure_ascii=False))
    if not calls:
        print("the model answered in words")
        return good
    arguments = json.loads(calls[0]["arguments"])
    print("call:", calls[0]["name"], arguments)
    body["messages"] += [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": '{"temperature": 18, "sky": "overcast"}'}]
    last = json.loads(post(url, "/v1/chat/completions", body))
    print("then:", last["choices"][0]["message"]["content"], last["usage"]["prompt_tokens_details"])
    return good and choice["finish_reason"] == "tool_calls"


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("folder", type=Path, metavar="MODEL_DIR")
    a.add_argument("--url", required=True)
    a.add_argument("--no-ask", action="store_true")
    o = a.parse_args()
    url = o.url.rstrip("/")
    good = compare_prompts(url, AutoTokenizer.from_pretrained(o.folder))
    if not o.no_ask:
        good = ask(url) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
