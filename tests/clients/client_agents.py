"""OpenAI's agents SDK, over chat completions and over responses."""
import asyncio

import agents
import openai
from agents import Agent, ModelSettings, Runner, function_tool
from common import MODEL, IMAGE, QUESTION, URL, Place, run

agents.set_tracing_disabled(True)
seen = []


@function_tool
def show(place: Place) -> str:
    """Shows a place.

    Args:
        place: The place.
    """
    seen.append(place)
    return "It is shown."


async def both(**agent):
    settings = ModelSettings(max_tokens=400, temperature=0, tool_choice=agent.pop("choice", None))
    question = agent.pop("question", "A place?")
    client = openai.AsyncOpenAI(base_url=URL, api_key="none", timeout=600)
    for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
        whole = Agent(name="a", instructions="Be short.", model_settings=settings,
                      model=kind(model=MODEL, openai_client=client), **agent)
        yield await Runner.run(whole, question, max_turns=3), whole


def tools():
    """A forced call, its result, and what the model says then."""
    async def go():
        async for result, _ in both(tools=[show], choice="required", tool_use_behavior="stop_on_first_tool"):
            assert result.final_output == "It is shown." and isinstance(seen[-1], Place), result
    asyncio.run(go())


def output_type():
    async def go():
        async for result, _ in both(output_type=Place):
            assert isinstance(result.final_output, Place), result
    asyncio.run(go())


def stream():
    async def go():
        async for whole, agent in both():
            streamed, text = Runner.run_streamed(agent, "A place?"), ""
            async for event in streamed.stream_events():
                if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                    text += event.data.delta
            assert text == streamed.final_output == whole.final_output, (text, whole)
    asyncio.run(go())


def images():
    content = [{"type": "input_image", "image_url": IMAGE, "detail": "auto"},
               {"type": "input_text", "text": QUESTION}]

    async def go():
        async for result, _ in both(question=[{"role": "user", "content": content}]):
            assert result.final_output, result
    asyncio.run(go())


run("openai-agents", tools, output_type, stream, images)
