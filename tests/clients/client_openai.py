"""OpenAI's own SDK: chat completions and responses, whole and streamed."""
from typing import Literal

import openai
from common import MODEL, IMAGE, QUESTION, URL, Place, run
from pydantic import BaseModel

client = openai.OpenAI(base_url=URL, api_key="none", timeout=600)
SHORT = {"model": MODEL, "max_completion_tokens": 100, "temperature": 0}


class Weather(BaseModel):
    city: Literal["Oslo", "Lima"]
    days: Literal[1, 2, 3]


WEATHER = openai.pydantic_function_tool(Weather, name="weather", description="Tells the weather.")
FORCED = {"type": "function", "function": {"name": "weather"}}


def user(text):
    return [{"role": "user", "content": text}]


def chat():
    whole = client.chat.completions.create(messages=user("Hello!"), **SHORT)
    with client.chat.completions.stream(messages=user("Hello!"), **SHORT) as stream:
        text = "".join(e.delta for e in stream if e.type == "content.delta")
        final = stream.get_final_completion()
    assert text == final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens


def parse():
    fields = {"model": MODEL, "messages": user("A place?"), "max_completion_tokens": 400, "seed": 1}
    whole = client.chat.completions.parse(response_format=Place, **fields).choices[0].message
    assert isinstance(whole.parsed, Place), whole
    with client.chat.completions.stream(response_format=Place, **fields) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.parsed == whole.parsed


def tools():
    fields = {"messages": user("Oslo?"), "tools": [WEATHER], "tool_choice": FORCED, **SHORT}
    whole = client.chat.completions.parse(**fields).choices[0].message
    call = whole.tool_calls[0].function
    assert call.name == "weather" and isinstance(call.parsed_arguments, Weather), call
    with client.chat.completions.stream(**fields) as stream:
        done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
    assert [d.arguments for d in done] == [call.arguments], done
    messages = fields["messages"] + [whole, {"role": "tool", "tool_call_id": whole.tool_calls[0].id,
                                             "content": "sunny"}]
    last = client.chat.completions.create(**{**fields, "messages": messages, "tool_choice": "none"})
    assert last.choices[0].message.content and not last.choices[0].message.tool_calls


def auto_tools():
    """Whether it calls is the model's choice, the same one streamed and whole."""
    fields = {"messages": user("What is the weather in Oslo?"), "tools": [WEATHER], **SHORT}
    whole = client.chat.completions.create(**fields).choices[0]
    with client.chat.completions.stream(**fields) as stream:
        for _ in stream:
            pass
        final = stream.current_completion_snapshot.choices[0]
    calls = [[(c.function.name, c.function.arguments) for c in choice.message.tool_calls or []]
             for choice in (whole, final)]
    assert calls[0] == calls[1] and whole.message.content == final.message.content, calls
    assert whole.finish_reason == final.finish_reason, whole
    if whole.finish_reason == "tool_calls":
        for _, arguments in calls[0]:
            Weather.model_validate_json(arguments)


def responses():
    fields = {"model": MODEL, "input": "Hello!", "max_output_tokens": 40, "temperature": 0}
    whole = client.responses.create(**fields)
    with client.responses.stream(**fields) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        assert text == whole.output_text == stream.get_final_response().output_text
    again = client.responses.create(**{**fields, "input": "And?", "previous_response_id": whole.id})
    assert again.usage.input_tokens > whole.usage.input_tokens
    parsed = client.responses.parse(model=MODEL, input="A place?", text_format=Place,
                                    max_output_tokens=400)
    assert isinstance(parsed.output_parsed, Place), parsed


def responses_tools():
    tool = {"type": "function", **WEATHER["function"]}
    forced = {"type": "function", "name": "weather"}
    answer = client.responses.create(model=MODEL, input="Oslo?", tools=[tool], tool_choice=forced,
                                     max_output_tokens=60)
    call = answer.output[-1]
    assert call.type == "function_call" and call.name == "weather", call
    Weather.model_validate_json(call.arguments)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    last = client.responses.create(model=MODEL, input=[output], previous_response_id=answer.id,
                                   tools=[tool], tool_choice="none", max_output_tokens=40)
    assert last.output[-1].type == "message", last


def websocket():
    with client.responses.connect() as connection:
        kinds = []
        fields = {"model": MODEL, "input": "Hello!", "max_output_tokens": 60, "temperature": 0}
        connection.response.create(**fields)
        for event in connection:
            kinds.append(event.type)
            if event.type in ("response.completed", "response.incomplete"):
                break
        assert event.response.output_text == client.responses.create(**fields).output_text
        assert "response.output_text.delta" in kinds, kinds


def images():
    content = [{"type": "image_url", "image_url": {"url": IMAGE}}, {"type": "text", "text": QUESTION}]
    chat = client.chat.completions.create(messages=user(content), **SHORT).choices[0].message.content
    content = [{"type": "input_image", "image_url": IMAGE}, {"type": "input_text", "text": QUESTION}]
    answer = client.responses.create(model=MODEL, input=user(content), max_output_tokens=40, temperature=0)
    assert chat and chat == answer.output_text, (chat, answer.output_text)


def faults():
    try:
        client.chat.completions.create(messages=user("x"), model="not-there")
    except openai.NotFoundError as e:
        assert e.code == "model_not_found", e
    else:
        raise AssertionError("no error")


run("openai", chat, parse, tools, auto_tools, responses, responses_tools, websocket, images, faults)
