"""smolagents: an agent whose every step is a call (tool_choice required)."""
from common import MODEL, URL, run
from smolagents import ChatMessage, OpenAIModel, ToolCallingAgent, tool

model = OpenAIModel(model_id=MODEL, api_base=URL, api_key="none", max_tokens=200, temperature=0)
seen = []


@tool
def final_answer(answer: str) -> str:
    """Ends the task.

    Args:
        answer: The answer, a word.
    """
    seen.append(answer)
    return answer


SHORT = {"system_prompt": "Call final_answer.",
         "planning": {"initial_plan": "", "update_plan_pre_messages": "", "update_plan_post_messages": ""},
         "managed_agent": {"task": "", "report": ""},
         "final_answer": {"pre_messages": "", "post_messages": ""}}


def agent():
    """The prompt is short enough for a small context; the answer's length is bounded by the schema."""
    final_answer.inputs["answer"]["maxLength"] = 12
    one = ToolCallingAgent(tools=[final_answer], model=model, prompt_templates=SHORT, max_steps=2)
    assert one.run("Say yes.") == seen[-1]


def streamed_agent():
    one = ToolCallingAgent(tools=[final_answer], model=model, prompt_templates=SHORT, max_steps=2,
                           stream_outputs=True)
    assert list(one.run("Say yes.", stream=True))[-1].output == seen[-1]


def chat():
    messages = [ChatMessage(role="user", content="Hello!")]
    whole = model(messages, max_tokens=40).content
    assert whole == "".join(d.content or "" for d in model.generate_stream(messages, max_tokens=40))


run("smolagents", agent, streamed_agent, chat)
