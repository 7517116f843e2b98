"""Anthropic's SDK on /v1/messages."""
import anthropic
from common import HOST, MODEL, IMAGE_BASE64, QUESTION, Place, is_place, run

client = anthropic.Anthropic(base_url=HOST, api_key="none", timeout=600)
TOOL = {"name": "show", "description": "Shows a place.", "input_schema": Place.model_json_schema()}


def fields(text, **more):
    return {"model": MODEL, "max_tokens": 40, "messages": [{"role": "user", "content": text}],
            "extra_body": {"temperature": 0}, **more}


def messages():
    whole = client.messages.create(**fields("Hello!"))
    with client.messages.stream(**fields("Hello!")) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)


def tools():
    body = fields("A place?", tools=[TOOL], tool_choice={"type": "tool", "name": "show"})
    body["max_tokens"] = 400
    whole = client.messages.create(**body)
    call = whole.content[-1]
    assert (whole.stop_reason, call.type, call.name) == ("tool_use", "tool_use", "show"), whole
    is_place(call.input)
    with client.messages.stream(**body) as stream:
        for _ in stream:
            pass
        assert stream.get_final_message().content[-1].input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "shown"}
    body["messages"] += [{"role": "assistant", "content": whole.content},
                         {"role": "user", "content": [result]}]
    body["tool_choice"] = {"type": "none"}
    body["max_tokens"] = 40
    last = client.messages.create(**body)
    assert last.content[0].type == "text", last


def count_tokens():
    body = fields("Hello!", system="Be short.")
    usage = client.messages.create(**body).usage
    del body["max_tokens"], body["extra_body"]
    counted = client.messages.count_tokens(**body).input_tokens
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0), (counted, usage)


def images():
    source = {"type": "base64", "media_type": "image/png", "data": IMAGE_BASE64}
    content = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
    assert client.messages.create(**fields(content)).content[0].text


def faults():
    try:
        client.messages.create(**{**fields("x"), "model": "not-there"})
    except anthropic.NotFoundError as e:
        assert e.body["error"]["type"] == "not_found_error", e
    else:
        raise AssertionError("no error")


run("anthropic", messages, tools, count_tokens, images, faults)
