"""Codex CLI's traffic, as codex-rs/codex-api, protocol and tools of github.com/openai/codex write it:
requests to /v1/responses with tools of all types, also over a WebSocket, its reader of the stream, and the
list of models."""

from common import IMAGE, MODEL, SEES, run
from socket_turns import opened
from wire import get, stream

LARK = """start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF
%import common.LF
"""


def function(name, **properties):
    return {
        "type": "function",
        "name": name,
        "description": f"Does {name}.",
        "strict": False,
        "parameters": {"type": "object", "properties": properties, "required": list(properties),
                       "additionalProperties": False},
    }


TEXT = {"type": "string", "description": "A text."}
TOOLS = [
    function("shell_command", command=TEXT, workdir=TEXT),
    function(
        "update_plan", plan={"type": "array", "items": {"type": "object", "properties": {"step": TEXT}}}
    ),
    function("view_image", path=TEXT),
    {"type": "custom", "name": "apply_patch", "description": "Edits files.",
     "format": {"type": "grammar", "syntax": "lark", "definition": LARK}},
    {
        "type": "namespace",
        "name": "mcp__docs",
        "description": "Documents.",
        "tools": [{**function("find", query=TEXT), "defer_loading": True},
                  function("open", id={"type": "integer"})],
    },
    {"type": "tool_search", "execution": "client", "description": "Finds tools.",
     "parameters": {"type": "object", "properties": {"query": TEXT}}},
    {"type": "web_search", "external_web_access": False},
    {"type": "image_generation", "output_format": "png"},
    {"type": "local_shell"},
]
INSTRUCTIONS = "You are Codex, a coding agent in a terminal. " + " ".join(
    f"Rule {i}: read before you write." for i in range(60)
)


def request(items, **more):
    return {"model": MODEL, "instructions": INSTRUCTIONS, "input": items, "tools": TOOLS,
            "tool_choice": "auto", "parallel_tool_calls": True,
            "reasoning": {"effort": "medium", "summary": "auto"}, "store": False, "stream": True,
            "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0199-a",
            "text": {"verbosity": "low"}, "service_tier": "priority", "max_output_tokens": 60, **more}


def message(role, *parts):
    return {"type": "message", "role": role, "content": list(parts)}


def text(t):
    return {"type": "input_text", "text": t}


def read(events):
    """What Codex's reader takes from a stream: -> (items as it sends them again, usage)."""
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    items, opened = [], None
    for e in events[1:-1]:
        kind = e["type"]
        if kind in ("response.in_progress", "response.created"):
            continue
        assert e["output_index"] == len(items), e
        if kind == "response.output_item.added":
            opened = e["item"]["id"]
        elif kind == "response.output_item.done":
            assert e["item"]["id"] == opened
            item = {k: v for k, v in e["item"].items() if k not in ("id", "status")}
            if item["type"] == "reasoning":  # sent again without its text
                del item["content"]
            if item["type"] == "message":
                item["content"] = [{"type": "output_text", "text": p["text"]} for p in item["content"]]
            items.append(item)
        else:
            assert e["item_id"] == opened, e
            assert "arguments" in kind or "custom_tool_call_input" in kind or e["content_index"] == 0, e
    end = events[-1]
    assert end["type"] in ("response.completed", "response.incomplete"), end
    usage = end["response"]["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] is not None and usage["output_tokens_details"]
    return items, usage


def turns():
    shown_image = [{"type": "input_image", "image_url": IMAGE}] if SEES else []
    items = [message("developer", text("<permissions>none</permissions>"), text("Be brief.")),
             message("user", text("<environment_context>cwd: /tmp</environment_context>"))]
    cached = []
    for turn in range(3):
        items.append(message("user", text(f"Turn {turn}: what is this?"), *shown_image))
        answer, usage = read(stream("/v1/responses", request(items)))
        cached.append((usage["input_tokens_details"]["cached_tokens"], usage["input_tokens"]))
        items += answer
        # What a shell of the client's adds between the model's turns.
        items += [
            {"type": "ghost_snapshot", "ghost_commit": {"id": "x"}},
            {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}},
        ]
    assert all(c >= 0.9 * n for c, n in cached[1:]), cached


def calls():
    """Each kind of call, forced; its result goes back, and the next request finds its prefix cached."""
    items = [message("user", text("Do it."))]
    wanted = [("custom_tool_call", {"type": "custom", "name": "apply_patch"}),
              ("function_call", {"type": "function", "name": "mcp__docs__open"}),
              ("function_call", {"type": "function", "name": "view_image"})]
    for i, (kind, choice) in enumerate(wanted):
        answer, usage = read(stream("/v1/responses", request(items, tool_choice=choice)))
        call = answer[-1]
        assert call["type"] == kind, call
        if kind == "custom_tool_call":
            assert call["input"].startswith("*** Begin Patch\n"), call
        elif i == 1:
            assert (call["namespace"], call["name"]) == ("mcp__docs", "open"), call
        shown = [text("done")]
        if SEES and i == 2:
            shown.append({"type": "input_image", "image_url": IMAGE})
        output = "done" if i == 0 else shown
        items += [*answer, {"type": kind + "_output", "call_id": call["call_id"], "output": output}]
        if i:
            cached, n = usage["input_tokens_details"]["cached_tokens"], usage["input_tokens"]
            assert cached >= 0.9 * n, (i, cached, n)
    read(stream("/v1/responses", request(items)))


def websocket():
    """It warms up with the first request, then sends what is new alone."""
    body = {k: v for k, v in request([]).items() if k not in ("stream", "input")}
    items = [message("user", text("Turn 0: what is this?"))]
    with opened() as turn:
        warm = turn(input=items, generate=False, **body)[-1]["response"]
        fresh, before = [], warm["id"]
        for number in range(3):
            events = turn(input=fresh, previous_response_id=before, **body)
            answer, usage = read(events)
            cached, n = usage["input_tokens_details"]["cached_tokens"], usage["input_tokens"]
            assert cached >= 0.9 * n, (number, cached, n)
            before = events[-1]["response"]["id"]
            items += [*answer, message("user", text(f"Turn {number + 1}: and this?"))]
            fresh = items[-1:]
    whole, _ = read(stream("/v1/responses", request(items[:-2])))
    assert whole == answer, (whole, answer)


def models():
    """codex-rs/protocol/src/openai_models.rs: fields without a default must be there."""
    fields = ["slug", "display_name", "supported_reasoning_levels", "shell_type", "visibility",
              "supported_in_api", "priority", "base_instructions", "supports_reasoning_summaries",
              "support_verbosity", "truncation_policy", "supports_parallel_tool_calls",
              "experimental_supported_tools"]
    for model in get("/v1/models?client_version=0.145.0")["models"]:
        assert all(model[f] is not None for f in fields), model
        assert model["context_window"] > 0 and ("image" in model["input_modalities"]) == SEES, model


run("codex", turns, calls, websocket, models)
