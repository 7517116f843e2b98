"""instructor: each of its ways to get a structure from an OpenAI-compatible server."""
import instructor
import openai
from common import MODEL, IMAGE, QUESTION, URL, Place, run
from pydantic import BaseModel, Field

raw = openai.OpenAI(base_url=URL, api_key="none", timeout=600)
FIELDS = {"model": MODEL, "max_tokens": 400, "temperature": 0, "max_retries": 0}


class Answer(BaseModel):
    text: str = Field(max_length=20)


def ask(mode, content="A place?", model=Place):
    client = instructor.from_openai(raw, mode=mode)
    messages = [{"role": "user", "content": content}]
    return client.chat.completions.create(messages=messages, response_model=model, **FIELDS)


def tools():
    assert isinstance(ask(instructor.Mode.TOOLS), Place)


def json_schema():
    assert isinstance(ask(instructor.Mode.JSON_SCHEMA), Place)


def responses():
    client = instructor.from_openai(raw, mode=instructor.Mode.RESPONSES_TOOLS)
    made = client.responses.create(model=MODEL, input="A place?", response_model=Place, max_retries=0,
                                   max_output_tokens=400)
    assert isinstance(made, Place)


def partial():
    client = instructor.from_openai(raw, mode=instructor.Mode.TOOLS)
    messages = [{"role": "user", "content": "A place?"}]
    made = list(client.chat.completions.create_partial(messages=messages, response_model=Place, **FIELDS))
    assert len(made) > 1 and Place.model_validate(made[-1].model_dump()), made[-1]


def images():
    content = [{"type": "text", "text": QUESTION}, {"type": "image_url", "image_url": {"url": IMAGE}}]
    assert isinstance(ask(instructor.Mode.JSON_SCHEMA, content, Answer), Answer)


run("instructor", tools, json_schema, responses, partial, images)
