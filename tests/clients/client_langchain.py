"""LangChain: ChatOpenAI over chat completions and over responses."""
from common import MODEL, IMAGE, QUESTION, URL, Place, is_place, run
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

FIELDS = {"model": MODEL, "base_url": URL, "api_key": "none", "temperature": 0, "max_tokens": 400,
          "stream_usage": True}
MODELS = ChatOpenAI(**FIELDS), ChatOpenAI(use_responses_api=True, **FIELDS)


@tool
def show(place: Place) -> str:
    """Shows a place."""
    return "shown"


def stream():
    for llm in MODELS:
        whole = llm.invoke("Hello!", max_tokens=40)
        parts = list(llm.stream("Hello!", max_tokens=40))
        total = parts[0]
        for part in parts[1:]:
            total += part
        assert total.text == whole.text, (total, whole)
        assert total.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"], total


def tools():
    for llm in MODELS:
        bound = llm.bind_tools([show], tool_choice="show")
        answer = bound.invoke("A place?")
        is_place(answer.tool_calls[0]["args"]["place"])
        total = None
        for part in bound.stream("A place?"):
            total = part if total is None else total + part
        assert total.tool_calls[0]["args"] == answer.tool_calls[0]["args"]
        result = show.invoke(answer.tool_calls[0])
        assert isinstance(result, ToolMessage)
        last = llm.bind_tools([show], tool_choice="none").invoke([HumanMessage("A place?"), answer, result],
                                                                 max_tokens=40)
        assert not last.tool_calls


def structured():
    for llm in MODELS:
        for method in ("json_schema", "function_calling"):
            made = llm.with_structured_output(Place, method=method, include_raw=True).invoke("A place?")
            assert isinstance(made["parsed"], Place), (method, made)


def images():
    content = [{"type": "text", "text": QUESTION}, {"type": "image_url", "image_url": {"url": IMAGE}}]
    for llm in MODELS:
        assert llm.invoke([HumanMessage(content=content)], max_tokens=40).text


run("langchain", stream, tools, structured, images)
