"""The cases of Open Responses' compliance suite (src/lib/compliance-tests.ts of its repository) and the
schemas that it checks (schema/*.tsp, version 2026-04-24); and further rules of the specification about
requests. The suite's tool call needs a model that calls a tool unforced: here `tool_choice` is `required`.
Its case response-output-phase-schema checks an example of its own, without a server."""

import common
from common import IMAGE, MODEL, run
from socket_turns import fails, opened
from wire import answer, post, stream

NUMBER, LIST, OBJECT = (int, float), list, dict
NULL = type(None)
STATUS = ("in_progress", "completed", "incomplete")
# A type, a tuple of types, or a function that checks.
FORMATS = {"text": {}, "json_object": {},
           "json_schema": {"name": str, "description": (str, NULL), "strict": bool}}


def fits(value, shape, where):
    for key, kind in shape.items():
        assert key in value, f"{where}.{key} is missing"
        v = value[key]
        wrong = isinstance(v, bool) and kind in (int, NUMBER)
        assert isinstance(v, kind) and not wrong, f"{where}.{key}: {v!r}"


def part_fits(part, where):
    kinds = {"output_text": {"text": str, "annotations": LIST}, "reasoning_text": {"text": str},
             "input_text": {"text": str}, "refusal": {"refusal": str}}
    fits(part, kinds[part["type"]], where)
    for entry in part.get("logprobs", []):
        fits(entry, {"token": str, "logprob": NUMBER, "bytes": LIST, "top_logprobs": LIST}, where)
        for top in entry["top_logprobs"]:
            fits(top, {"token": str, "logprob": NUMBER, "bytes": LIST}, where)


def item_fits(item, where):
    kinds = {"message": {"id": str, "role": str, "content": LIST}, "reasoning": {"id": str, "summary": LIST},
             "function_call": {"id": str, "call_id": str, "name": str, "arguments": str},
             "compaction": {"id": str, "encrypted_content": str}}
    fits(item, kinds[item["type"]], where)
    assert item["type"] == "compaction" or item["status"] in STATUS, item
    for part in item.get("content", []):
        part_fits(part, where)


def usage_fits(usage):
    fits(usage, {k: int for k in ("input_tokens", "output_tokens", "total_tokens")}, "usage")
    fits(usage["input_tokens_details"], {"cached_tokens": int}, "usage")
    fits(usage["output_tokens_details"], {"reasoning_tokens": int}, "usage")


def response_fits(r):
    fits(
        r,
        {"id": str, "object": str, "created_at": int, "completed_at": (int, NULL), "status": str,
         "incomplete_details": (OBJECT, NULL), "model": str, "previous_response_id": (str, NULL),
         "instructions": (str, NULL), "output": LIST, "error": (OBJECT, NULL), "tools": LIST,
         "tool_choice": (str, OBJECT), "truncation": str, "parallel_tool_calls": bool, "text": OBJECT,
         "top_p": NUMBER, "presence_penalty": NUMBER, "frequency_penalty": NUMBER, "top_logprobs": int,
         "temperature": NUMBER, "reasoning": (OBJECT, NULL), "usage": (OBJECT, NULL),
         "max_output_tokens": (int, NULL), "max_tool_calls": (int, NULL), "store": bool, "background": bool,
         "service_tier": str, "metadata": OBJECT, "safety_identifier": (str, NULL),
         "prompt_cache_key": (str, NULL), "user": (str, NULL)},
        "response",
    )
    assert r["object"] == "response"
    for i, item in enumerate(r["output"]):
        item_fits(item, f"output[{i}]")
    for tool in r["tools"]:
        fits(
            tool,
            {"type": str, "name": str, "description": (str, NULL), "parameters": (OBJECT, NULL),
             "strict": (bool, NULL)},
            "tool",
        )
    if isinstance(r["tool_choice"], str):
        assert r["tool_choice"] in ("none", "auto", "required")
    form = r["text"]["format"]
    fits(form, FORMATS[form["type"]], "text.format")
    fits(r["reasoning"], {"effort": (str, NULL), "summary": (str, NULL)}, "reasoning")
    if r["usage"]:
        usage_fits(r["usage"])


ITEM = {"item_id": str, "output_index": int}
IN_ITEM = {**ITEM, "content_index": int}
EVENTS = {"response.output_item.added": {"output_index": int, "item": OBJECT},
          "response.output_item.done": {"output_index": int, "item": OBJECT},
          "response.content_part.added": {**IN_ITEM, "part": OBJECT},
          "response.content_part.done": {**IN_ITEM, "part": OBJECT},
          "response.output_text.delta": {**IN_ITEM, "delta": str, "logprobs": LIST},
          "response.output_text.done": {**IN_ITEM, "text": str, "logprobs": LIST},
          "response.function_call_arguments.delta": {**ITEM, "delta": str},
          "response.function_call_arguments.done": {**ITEM, "arguments": str}}


def streamed(body):
    return events_fit(stream("/v1/responses", body))


def events_fit(events):
    """-> the response at their end, the events."""
    for i, e in enumerate(events):
        assert e["sequence_number"] == i, e
        if "response" in e:
            response_fits(e["response"])
        else:
            fits(e, EVENTS[e["type"]], e["type"])
            if "item" in e:
                item_fits(e["item"], e["type"])
    return events[-1]["response"], events


def user(content):
    return {"type": "message", "role": "user", "content": content}


def asked(*items, **more):
    return {"model": MODEL, "input": list(items), "max_output_tokens": 60, "temperature": 0, **more}


def completed(body, kind="message"):
    r = post("/v1/responses", body)
    response_fits(r)
    assert r["output"] and r["status"] in ("completed", "incomplete"), r
    assert any(i["type"] == kind for i in r["output"]), r["output"]
    return r


WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {
            "location": {"type": "string", "maxLength": 12,
                         "description": "The city and state, e.g. San Francisco, CA"}
        },
        "required": ["location"],
    },
}
SUNNY = user("What's the weather like in San Francisco?")


def basic_response():
    completed(asked(user("Say hello in exactly 3 words.")))
    completed({"input": "Hello", "max_output_tokens": 16})


def streaming_response():
    r, events = streamed(asked(user("Count from 1 to 5.")))
    assert (
        r["output"]
        and len(events) > 4
        and events[-1]["type"] in ("response.completed", "response.incomplete")
    )


def system_prompt():
    for role in ("system", "developer"):
        pirate = {"type": "message", "role": role,
                  "content": "You are a pirate. Always respond in pirate speak."}
        completed(asked(pirate, user("Say hello.")))
    completed(asked(user("Say hello."), instructions="You are a pirate."))


def tool_calling():
    r = completed(
        asked(SUNNY, tools=[WEATHER], tool_choice="required", max_output_tokens=200), "function_call"
    )
    call = next(i for i in r["output"] if i["type"] == "function_call")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    completed(asked(SUNNY, *r["output"], result, tools=[WEATHER]))
    choice = {"type": "function", "name": "get_weather"}
    completed(asked(SUNNY, tools=[WEATHER], tool_choice=choice, max_output_tokens=200), "function_call")
    completed(
        asked(SUNNY, tools=[WEATHER], max_output_tokens=200,
              tool_choice={"type": "allowed_tools", "tools": [choice], "mode": "required"}),
        "function_call",
    )
    completed(asked(SUNNY, tools=[WEATHER], tool_choice="none"))


def tool_calling_streaming():
    _, events = streamed(asked(SUNNY, tools=[WEATHER], tool_choice="required", max_output_tokens=200))
    kinds = {(e["type"], e.get("item", {}).get("type")) for e in events}
    for kind in (("response.output_item.added", "function_call"),
                 ("response.output_item.done", "function_call"),
                 ("response.function_call_arguments.delta", None),
                 ("response.function_call_arguments.done", None)):
        assert kind in kinds, kind


def image_input():
    if common.SEES:
        what = {"type": "input_text", "text": "What do you see in this image? Answer in one sentence."}
        completed(asked(user([what, {"type": "input_image", "image_url": IMAGE}])))
        completed(asked(user([what, {"type": "input_image", "image_url": IMAGE, "detail": "low"}])))


def multi_turn():
    hello = {"type": "message", "role": "assistant", "content": "Hello Alice! Nice to meet you."}
    completed(asked(user("My name is Alice."), {**hello, "phase": "final_answer"}, user("What is my name?")))


def previous_response():
    first = completed(asked(user("My name is Alice.")))
    second = completed(asked(user("What is my name?"), previous_response_id=first["id"]))
    assert second["previous_response_id"] == first["id"]
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]


def assistant_phase():
    """And what the phase of a message of the model's own would be checked for: it has none."""
    said = {"type": "message", "role": "assistant"}
    r = completed(
        asked({**said, "phase": "commentary", "content": "I should answer with the saved number."},
              {**said, "phase": "final_answer", "content": "The number is four."},
              user("Repeat only the number."))
    )
    assert all(i.get("phase", "final_answer") == "final_answer" for i in r["output"]), r["output"]


COBALT = "Remember the code word: cobalt. Reply with OK."


def done(events):
    r, _ = events_fit(events)
    assert r["status"] in ("completed", "incomplete") and r["output"], r
    return r


def websocket_response():
    with opened() as turn:
        done(turn(input=[user("Count from 1 to 3.")]))


def websocket_sequential_responses():
    with opened() as turn:
        for word in ("first", "second"):
            done(turn(store=False, input=f"Reply with exactly: {word}"))


def websocket_continuation():
    with opened() as turn:
        first = done(turn(store=False, input=COBALT))
        second = done(turn(store=False, previous_response_id=first["id"], input="What is the code word?"))
        assert second["previous_response_id"] == first["id"]
        assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]


def websocket_reconnect_store_false_recovery():
    with opened() as turn:
        first = done(turn(store=False, input=COBALT))
    with opened() as turn:
        again = turn(store=False, previous_response_id=first["id"], input="Try to continue.")
        fails(again, "previous_response_not_found")
        done(turn(store=False, input=[user("Start a new response.")]))


def websocket_previous_response_not_found():
    with opened() as turn:
        fails(
            turn(store=False, previous_response_id="resp_missing_1", input="x"), "previous_response_not_found"
        )


def websocket_failed_continuation_evicts_cache():
    with opened() as turn:
        first = done(turn(store=False, input=COBALT))
        result = {"type": "function_call_output", "call_id": "call_missing", "output": "No such call."}
        fails(turn(store=False, previous_response_id=first["id"], input=[result]), "invalid_value")
        stale = turn(store=False, previous_response_id=first["id"], input="Try to continue.")
        fails(stale, "previous_response_not_found")


LAUNCH = [user("We agreed to launch on Tuesday and notify support first."),
          {"type": "message", "role": "assistant", "content": "Understood. The launch is Tuesday."}]


def compacted(items):
    r = post("/v1/responses/compact", {"model": MODEL, "prompt_cache_key": "compact", "input": items})
    fits(r, {"id": str, "created_at": int, "output": LIST, "usage": OBJECT}, "compaction")
    assert r["object"] == "response.compaction"
    usage_fits(r["usage"])
    for i, item in enumerate(r["output"]):
        item_fits(item, f"output[{i}]")
    assert "compaction" in [i["type"] for i in r["output"]]
    return r["output"]


def websocket_compact_new_chain():
    more = user([{"type": "input_text", "text": "Compress this conversation for later continuation."}])
    with opened() as turn:
        done(turn(store=False, input=[*compacted([*LAUNCH, more]), user("Continue from here.")], tools=[]))


def compact_response():
    completed(asked(*compacted(LAUNCH), user("Which day is it?")))


def compact_missing_model():
    status, data = answer("/v1/responses/compact", {"input": [user("Compact this conversation.")]})
    assert status == 400 and data["error"]["param"] == "model", (status, data)


def fields():
    """Every field of a request is repeated or served."""
    r = completed(
        asked(user("Hi"), metadata={"a": "b"}, temperature=0.5, top_p=0.9, presence_penalty=0.5,
              frequency_penalty=0.25, parallel_tool_calls=False, max_tool_calls=2, top_logprobs=2,
              reasoning={"effort": "low", "summary": "auto"}, safety_identifier="s", store=False,
              prompt_cache_key="k", truncation="disabled", service_tier="auto", background=False,
              text={"format": {"type": "text"}, "verbosity": "low"},
              include=["message.output_text.logprobs", "reasoning.encrypted_content"])
    )
    assert (r["metadata"], r["temperature"], r["presence_penalty"]) == ({"a": "b"}, 0.5, 0.5), r
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form = {"type": "json_schema", "name": "x", "schema": schema}
    completed(asked(user("Hi"), text={"format": form}))


run("open_responses", basic_response, streaming_response, system_prompt, tool_calling, tool_calling_streaming,
    image_input, multi_turn, assistant_phase, websocket_response, websocket_sequential_responses,
    websocket_continuation, websocket_reconnect_store_false_recovery, websocket_previous_response_not_found,
    websocket_failed_continuation_evicts_cache, websocket_compact_new_chain, compact_response,
    compact_missing_model, previous_response, fields)
