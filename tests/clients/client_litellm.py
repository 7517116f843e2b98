"""LiteLLM as a library: an OpenAI-compatible server, and Anthropic's API."""
import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it fetches one
import litellm  # noqa: E402
from common import HOST, MODEL, IMAGE, QUESTION, URL, Place, is_place, run  # noqa: E402

OPENAI = {"model": "openai/" + MODEL, "api_base": URL, "api_key": "none", "temperature": 0}
ANTHROPIC = {"model": "anthropic/" + MODEL, "api_base": HOST, "api_key": "none", "temperature": 0}
SHOW = {"name": "show", "description": "Shows a place.", "parameters": Place.model_json_schema()}
TOOL = {"type": "function", "function": SHOW}


def user(content):
    return [{"role": "user", "content": content}]


def chat():
    for fields in (OPENAI, ANTHROPIC):
        whole = litellm.completion(messages=user("Hello!"), max_tokens=40, **fields)
        parts = list(litellm.completion(messages=user("Hello!"), max_tokens=40, stream=True, **fields))
        text = "".join(p.choices[0].delta.content or "" for p in parts)
        assert text == whole.choices[0].message.content, (text, whole)
        assert whole.usage.completion_tokens > 0


def tools():
    forced = {"type": "function", "function": {"name": "show"}}
    for fields in (OPENAI, ANTHROPIC):
        body = {"messages": user("A place?"), "tools": [TOOL], "tool_choice": forced, "max_tokens": 400,
                **fields}
        call = litellm.completion(**body).choices[0].message.tool_calls[0].function
        assert call.name == "show", call
        is_place(json.loads(call.arguments))
        parts = list(litellm.completion(stream=True, **body))
        calls = [c for p in parts for c in p.choices[0].delta.tool_calls or []]
        streamed = "".join(c.function.arguments or "" for c in calls)
        assert json.loads(streamed) == json.loads(call.arguments), streamed


def structured():
    body = {"messages": user("A place?"), "response_format": Place, "max_tokens": 400}
    Place.model_validate_json(litellm.completion(**body, **OPENAI).choices[0].message.content)


def responses():
    assert litellm.responses(input="Hello!", max_output_tokens=40, **OPENAI).output[0].content[0].text


def images():
    content = [{"type": "image_url", "image_url": {"url": IMAGE}}, {"type": "text", "text": QUESTION}]
    for fields in (OPENAI, ANTHROPIC):
        answer = litellm.completion(messages=user(content), max_tokens=40, **fields)
        assert answer.choices[0].message.content


run("litellm", chat, tools, structured, responses, images)
