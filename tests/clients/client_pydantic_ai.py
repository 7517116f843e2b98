"""Pydantic AI: output types by a tool, by a schema, tools, streams, images."""
import base64

from common import MODEL, IMAGE_BASE64, QUESTION, URL, Place, run
from pydantic_ai import Agent, BinaryContent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=URL, api_key="none")
MODELS = OpenAIChatModel(MODEL, provider=provider), OpenAIResponsesModel(MODEL, provider=provider)
SETTINGS = {"max_tokens": 400, "temperature": 0}


def output_by_tool():
    for model in MODELS:
        agent = Agent(model, output_type=ToolOutput(Place), model_settings=SETTINGS)
        assert isinstance(agent.run_sync("A place?").output, Place)


def output_by_schema():
    for model in MODELS:
        agent = Agent(model, output_type=NativeOutput(Place), model_settings=SETTINGS)
        assert isinstance(agent.run_sync("A place?").output, Place)


def tools():
    """The output is a function's: it must be called, and its result is the end."""
    seen = []

    def show(place: Place) -> str:
        """Shows a place."""
        seen.append(place)
        return "shown"

    for model in MODELS:
        agent = Agent(model, output_type=show, model_settings=SETTINGS)
        assert agent.run_sync("A place?").output == "shown" and isinstance(seen[-1], Place)


def stream():
    for model in MODELS:
        agent = Agent(model, model_settings={**SETTINGS, "max_tokens": 40})
        with agent.run_stream_sync("Hello!") as result:
            text = "".join(result.stream_text(delta=True, debounce_by=None))
        assert text == agent.run_sync("Hello!").output


def images():
    image = BinaryContent(data=base64.b64decode(IMAGE_BASE64), media_type="image/png")
    for model in MODELS:
        assert Agent(model, model_settings=SETTINGS).run_sync([QUESTION, image]).output


run("pydantic-ai", output_by_tool, output_by_schema, tools, stream, images)
