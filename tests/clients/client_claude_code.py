"""Claude Code's traffic, as public captures of it show: /v1/messages?beta=true with a billing header that
differs in each request, cache_control, thinking, its tools, and count_tokens."""

from common import IMAGE_BASE64, MODEL, SEES, run
from wire import post, stream

CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
HEADERS = {
    "anthropic-version": "2023-06-01",
    "x-app": "cli",
    "user-agent": "claude-cli/2.1.227 (external, cli)",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
    "anthropic-dangerous-direct-browser-access": "true",
    "authorization": "Bearer none",
}


def tool(name, **properties):
    return {
        "name": name,
        "description": f"Does {name}.",
        "input_schema": {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
                         "properties": properties, "required": list(properties),
                         "additionalProperties": False},
    }


TEXT = {"type": "string", "description": "A text."}
LONG = "mcp__a_server_with_a_long_name__" + "a_tool_with_a_longer_name_" * 3
TOOLS = [tool("Bash", command=TEXT), tool("Read", file_path=TEXT),
         tool("Edit", file_path=TEXT, new_string=TEXT),
         {**tool(LONG, n={"type": "integer"}), "defer_loading": True},
         {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
         {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}]
_requests = []


def request(messages, **more):
    _requests.append(1)
    n = len(_requests)
    texts = [
        f"x-anthropic-billing-header: cc_version=2.1.{n:03x}; cc_entrypoint=cli; cch={n * 7919 % 65536:05x};",
        "You are Claude Code, Anthropic's official CLI for Claude.",
        "\nYou are an interactive agent. "
        + " ".join(f"Rule {i}: read before you write." for i in range(60)),
    ]
    system = [{"type": "text", "text": t, **(CACHED if i else {})} for i, t in enumerate(texts)]
    return {"model": MODEL, "max_tokens": 60, "system": system, "messages": messages, "tools": TOOLS,
            "metadata": {"user_id": '{"device_id":"x","session_id":"y"}'}, "thinking": {"type": "adaptive"},
            "output_config": {"effort": "high"}, "context_management": {"edits": []}, **more}


def read(events):
    """-> the content that goes back into the conversation, and the usage of the whole."""
    content, texts = [], {}
    assert events[0]["type"] == "message_start" and events[-1]["type"] == "message_stop"
    for e in events:
        if e["type"] == "content_block_start":
            content.append(dict(e["content_block"]))
        elif e["type"] == "content_block_delta":
            delta, block = e["delta"], content[e["index"]]
            if delta["type"] == "input_json_delta":
                texts[e["index"]] = texts.get(e["index"], "") + delta["partial_json"]
            else:
                key = delta["type"].removesuffix("_delta")
                block[key] += delta[key]
    return content, events[-2]["usage"], texts


def read_tokens(usage):
    return usage["cache_read_input_tokens"], usage["input_tokens"] + usage["cache_read_input_tokens"]


def image():
    source = {"type": "base64", "media_type": "image/png", "data": IMAGE_BASE64}
    return [{"type": "image", "source": source, **CACHED}] if SEES else []


def turns():
    messages, cached = [], []
    for turn in range(3):
        reminder = {"type": "text", "text": "<system-reminder>As you like.</system-reminder>"}
        asked = {"type": "text", "text": f"Turn {turn}: what is this?", **CACHED}
        messages.append({"role": "user", "content": [reminder, *image(), asked]})
        body = request(messages)
        content, usage, _ = read(stream("/v1/messages?beta=true", body, HEADERS))
        cached.append(read_tokens(usage))
        counted = {k: v for k, v in body.items() if k not in ("max_tokens", "metadata")}
        assert (
            post("/v1/messages/count_tokens?beta=true", counted, HEADERS)["input_tokens"] == cached[-1][1]
        )
        messages.append({"role": "assistant", "content": content})
    assert all(c >= 0.9 * n for c, n in cached[1:]), cached


def calls():
    """Forced calls, whose results go back: text, images, and a reference to a tool."""
    messages = [{"role": "user", "content": "Do it."}]
    for name in ("Bash", LONG, "Read"):
        body = request(messages, tool_choice={"type": "tool", "name": name}, max_tokens=250)
        content, usage, texts = read(stream("/v1/messages?beta=true", body, HEADERS))
        use = content[-1]
        assert (use["type"], use["name"]) == ("tool_use", name) and texts, content
        results = [{"type": "text", "text": "done"}, {"type": "tool_reference", "tool_name": LONG}, *image()]
        messages += [
            {"role": "assistant", "content": content},
            {"role": "user",
             "content": [{"type": "tool_result", "tool_use_id": use["id"], "content": results, **CACHED}]},
        ]
        if len(messages) > 3:
            cached, n = read_tokens(usage)
            assert cached >= 0.9 * n, (name, cached, n)
    read(stream("/v1/messages?beta=true", request(messages), HEADERS))


run("claude_code", turns, calls)
