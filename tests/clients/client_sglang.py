"""SGLang's cases for /v1/responses: of test/registered/openai_server and of
sgl-model-gateway/e2e_test/responses of github.com/sgl-project/sglang, those that need no MCP server, no
conversations and no background. Where they need a model's answer, this checks only what a small model gives
too. Three of them contradict OpenAI's API and are as that has it here: a response with calls is `completed`,
not `in_progress`; one that reaches max_output_tokens is `incomplete`; an unknown previous_response_id is a
400, not a 404."""

import json

import openai
from common import MODEL, URL, run
from socket_turns import fails, opened
from wire import answer, post, stream

client = openai.OpenAI(base_url=URL, api_key="none", timeout=600)
SHORT = {"model": MODEL, "temperature": 0, "max_output_tokens": 60}
OVER = ("completed", "incomplete")


def function(name, **properties):
    """Short texts: a small model ends them."""
    kinds = {k: {"type": "string", "description": v, "maxLength": 12} for k, v in properties.items()}
    parameters = {"type": "object", "properties": kinds, "required": list(kinds)}
    return {"type": "function", "name": name, "description": f"Does {name}.", "parameters": parameters}


WEATHER = function("get_weather", location="City name")
CALCULATE = function("calculate", expression="The expression to evaluate")
SEARCH, LOCAL = function("search_web", query="What"), function("local_search", query="What")
MCP = {"type": "mcp", "server_label": "deepwiki", "server_url": "https://mcp.deepwiki.com/mcp",
       "require_approval": "never"}


def calls(response):
    return [i for i in response.output if i.type == "function_call"]


def response():
    r = client.responses.create(input="The capital of France is", top_p=1, store=True, **SHORT)
    assert r.id and r.object == "response" and r.created_at and r.model == MODEL
    assert r.status in OVER and r.error is None and r.output, r
    assert r.usage.prompt_tokens == r.usage.input_tokens and r.usage.total_tokens > 0
    assert r.usage.completion_tokens == r.usage.output_tokens
    assert r.text.format.type == "text"


def response_stream():
    with client.responses.stream(input="The capital of France is", **SHORT) as events:
        kinds = [e.type for e in events]
        final = events.get_final_response() if kinds[-1] == "response.completed" else None
    assert kinds[:2] == ["response.created", "response.in_progress"], kinds
    assert kinds[-1] in ("response.completed", "response.incomplete") and (not final or final.output_text)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *_, last = client.responses.create(input="The capital of France is", **SHORT, **options)
    assert last.response.usage.total_tokens > 0


def error():
    status, data = answer("/v1/responses", {"input": "Hi", "previous_response_id": "bad"})
    assert status == 400 and {"message", "type", "code"} <= set(data["error"]), data


def penalty():
    body = {**SHORT, "input": "Introduce the capital of France.", "frequency_penalty": 1.0}
    r = post("/v1/responses", body)
    assert r["object"] == "response" and r["output"] and r["status"] in OVER
    assert {"prompt_tokens", "total_tokens"} <= set(r["usage"])


def tool_shapes():
    hosted = [{"type": "code_interpreter"}, {"type": "web_search_preview"}]
    strict = {**CALCULATE, "strict": True}
    empty = {**CALCULATE, "parameters": {"type": "object", "properties": {}}}
    for tools in ([], hosted, [*hosted, empty], [WEATHER], [WEATHER, CALCULATE], [strict]):
        r = client.responses.create(input="Hello!", tools=tools, **SHORT)
        assert r.status in OVER and [t.type for t in r.tools] == [t["type"] for t in tools], r.tools


def tool_choices():
    for choice, tools, name in (
        ("required", [CALCULATE], "calculate"),
        ({"type": "function", "function": {"name": "search_web"}}, [SEARCH, WEATHER], "search_web"),
        ({"type": "function", "function": {"name": "local_search"}}, [MCP, LOCAL], "local_search"),
        ("required", [MCP, WEATHER], "get_weather"),
    ):
        asked = {**SHORT, "max_output_tokens": 200, "tools": tools, "tool_choice": choice}
        r = client.responses.create(input="What is 15 * 23?", **asked)
        assert r.error is None and {c.name for c in calls(r)} == {name}, r.output
        json.loads(calls(r)[0].arguments)
    for choice in ("auto", "none"):
        r = client.responses.create(input="Weather in London?", tools=[WEATHER], tool_choice=choice, **SHORT)
        assert r.output and (choice == "auto" or not calls(r)), r.output


def tool_choice_streaming():
    asked = {**SHORT, "max_output_tokens": 200, "tools": [CALCULATE], "tool_choice": "required"}
    events = list(client.responses.create(input="Calculate 42 * 17", stream=True, **asked))
    parts = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
    assert parts and calls(events[-1].response)[0].arguments == parts, events[-1]
    assert "response.function_call_arguments.done" in [e.type for e in events]


def function_call_in_two_turns():
    asked = {**SHORT, "max_output_tokens": 200, "tools": [CALCULATE]}
    result = {"type": "function_call_output", "output": json.dumps({"result": 345})}
    first = client.responses.create(input="Calculate 15 * 23.", tool_choice="required", **asked)
    items = [{**result, "call_id": c.call_id} for c in calls(first)]
    second = client.responses.create(input=items, previous_response_id=first.id, **asked)
    assert second.status in OVER and second.output, second
    said = [{"role": "user", "content": "Calculate 15 * 23."}, *first.output, *items]
    assert client.responses.create(input=said, **asked).output_text == second.output_text
    with opened() as turn:
        asked["temperature"] = 0
        first = turn(input="Calculate 15 * 23.", store=False, tool_choice="required", **asked)[-1]["response"]
        ids = [i["call_id"] for i in first["output"] if i["type"] == "function_call"]
        items = [{**result, "call_id": i} for i in ids]
        over = turn(input=items, previous_response_id=first["id"], store=False, **asked)[-1]["response"]
        assert ids and over["status"] in OVER and over["output"], over


def structured_output():
    answer_of = {"type": "object", "properties": {"answer": {"type": "string", "maxLength": 8}}}
    step = {"explanation": {"type": "string", "maxLength": 8}, "output": {"type": "string", "maxLength": 8}}
    step = {"type": "object", "properties": step, "required": list(step), "additionalProperties": False}
    steps = {"type": "array", "items": step, "minItems": 1, "maxItems": 2}
    tutor = {"steps": steps, "final_answer": {"type": "string", "maxLength": 8}}
    tutor = {"type": "object", "properties": tutor, "required": list(tutor), "additionalProperties": False}
    for name, schema, more in (("math_answer", {**answer_of, "required": ["answer"]}, {}),
                               ("math_reasoning", tutor, {"strict": True})):
        form = {"type": "json_schema", "name": name, "schema": schema, **more}
        said = [{"role": "system", "content": "You solve."}, {"role": "user", "content": "8x + 7 = -23"}]
        r = client.responses.create(input=said, text={"format": form}, **{**SHORT, "max_output_tokens": 400})
        assert r.text.format.type == "json_schema" and r.text.format.name == name and r.text.format.schema_
        assert set(json.loads(r.output_text)) == set(schema["required"]), r.output_text
        assert bool(r.text.format.strict) == bool(more)


def create_and_get():
    made = client.responses.create(input="Hello, world!", **SHORT)
    got = client.responses.retrieve(made.id)
    assert got.id == made.id and got.status == made.status and got.error is None
    assert client.responses.input_items.list(made.id).data
    client.responses.delete(made.id)
    try:
        client.responses.retrieve(made.id)
    except openai.NotFoundError:
        return
    raise AssertionError("it is still there")


def chaining():
    one = client.responses.create(input="My name is Alice and my friend is Bob.", **SHORT)
    two = client.responses.create(input="What is my name?", previous_response_id=one.id, **SHORT)
    three = client.responses.create(input="What is my friend's?", previous_response_id=two.id, **SHORT)
    assert one.usage.input_tokens < two.usage.input_tokens < three.usage.input_tokens
    for wrong in ({"previous_response_id": "resp_invalid123"},
                  {"previous_response_id": one.id, "conversation": "c"}):
        try:
            client.responses.create(input="Test", extra_body=wrong, **SHORT)
        except openai.BadRequestError:
            continue
        raise AssertionError(f"{wrong} was taken")


def item_events():
    events = stream("/v1/responses", {**SHORT, "input": "Count from 1 to 3"})
    added = [e for e in events if e["type"] == "response.output_item.added"]
    done = [e for e in events if e["type"] == "response.output_item.done"]
    assert [e["output_index"] for e in added] == list(range(len(added))), added
    assert [e["item"] for e in done] == events[-1]["response"]["output"], done
    assert len(added) == len(done) > 0


def streamed_logprobs():
    include = {"top_logprobs": 3, "include": ["message.output_text.logprobs"]}
    events = stream("/v1/responses", {**SHORT, "input": "What is 1 + 1?", **include})
    parts = [p for e in events if e["type"] == "response.output_text.delta" for p in e["logprobs"]]
    whole = [p for e in events if e["type"] == "response.output_text.done" for p in e["logprobs"]]
    assert parts and parts == whole and all(len(p["top_logprobs"]) <= 3 for p in parts), (parts, whole)


def websocket_events():
    body = {**SHORT, "input": "Reply with the single word: hello", "store": False}
    with opened() as turn:
        over = turn(**body)
    assert [e["type"] for e in over] == [e["type"] for e in stream("/v1/responses", body)]
    assert over[-1]["response"]["output"], over[-1]


def websocket_state():
    with opened() as turn:
        first = turn(input="First.", store=False)[-1]["response"]
        second = turn(input="Second.", store=False, previous_response_id=first["id"])[-1]["response"]
        stale = turn(input="Stale.", store=False, previous_response_id=first["id"])
        fails(stale, "previous_response_not_found")
        turn(input="Latest.", store=False, previous_response_id=second["id"])[-1]["response"]
        kept = turn(input="Persist this.", store=True)[-1]["response"]
    with opened() as turn:
        fails(turn(input="x", previous_response_id=second["id"]), "previous_response_not_found")
        fails(turn(input="x", previous_response_id="resp_missing_ws"), "previous_response_not_found")
        more = turn(input="Go on.", store=False, previous_response_id=kept["id"])[-1]["response"]
        assert more["status"] in OVER
        result = {"type": "function_call_output", "call_id": "call_1", "output": "{}"}
        items = [result,
                 {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "On."}]}]
        chain = turn(input=items, store=True, previous_response_id=kept["id"])[-1]["response"]
    for r in (kept, chain):
        got = client.responses.retrieve(r["id"])
        assert got.status == r["status"] and got.store is True and got.output
    for r in (first, second, more):
        assert answer(f"/v1/responses/{r['id']}", method="GET")[0] == 404, r["id"]


def websocket_warm_up():
    for store in (False, True):
        with opened() as turn:
            warm = turn(input="Warm up.", store=store, generate=False)[-1]["response"]
            assert warm["output"] == [] and warm["status"] == "completed", warm
            after = turn(input="Answer.", store=False, previous_response_id=warm["id"])[-1]["response"]
            assert after["output"], after
        with opened() as turn:
            again = turn(input="Answer.", store=False, previous_response_id=warm["id"])
            if store:
                assert again[-1]["response"]["output"], again[-1]
            else:
                fails(again, "previous_response_not_found")
        assert answer(f"/v1/responses/{warm['id']}", method="GET")[0] == (200 if store else 404)


run("sglang", response, response_stream, error, penalty, tool_shapes, tool_choices, tool_choice_streaming,
    function_call_in_two_turns, structured_output, create_and_get, chaining, item_events, streamed_logprobs,
    websocket_events, websocket_state, websocket_warm_up)
