"""Ollama's own package, and LangChain's ChatOllama, on /api/chat and what belongs to it."""

import json

import ollama
from common import HOST, IMAGE_BASE64, MODEL, QUESTION, Place, is_place, run
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM

client = ollama.Client(HOST, timeout=600)
OPTIONS = {"temperature": 0, "num_predict": 40}
FIELDS = {"model": MODEL, "base_url": HOST, "temperature": 0, "validate_model_on_init": True}
HELLO = [{"role": "user", "content": "Hello!"}]


def show(city: str, rank: int = 1) -> str:
    """Shows a place.

    Args:
      city: its name
      rank: its number
    """
    return f"{city} {rank}"


def models():
    listed, loaded, shown = client.list().models[0], client.ps().models[0], client.show(MODEL + ":latest")
    assert (
        listed.model == loaded.model == MODEL and listed.size > 0 and listed.details == shown.details
    ), listed
    assert (
        "completion" in shown.capabilities and shown.modelinfo["general.architecture"] == shown.details.family
    )
    try:
        client.chat("not-there", HELLO)
    except ollama.ResponseError as e:
        assert e.status_code == 404 and "not-there" in e.error, e
    else:
        raise AssertionError("no error")


def chat():
    whole = client.chat(MODEL, HELLO, options=OPTIONS, logprobs=True, top_logprobs=2)
    parts = list(client.chat(MODEL, HELLO, options=OPTIONS, stream=True))
    assert whole.done and whole.done_reason in ("stop", "length") and whole.total_duration > 0, whole
    assert len(whole.logprobs) == whole.eval_count and len(whole.logprobs[0].top_logprobs) == 2
    assert "".join(p.message.content for p in parts) == whole.message.content
    assert parts[-1].eval_count == whole.eval_count and not parts[0].done


def generate():
    whole = client.generate(MODEL, "Hello!", options=OPTIONS)
    assert whole.response == client.chat(MODEL, HELLO, options=OPTIONS).message.content
    raw = client.generate(MODEL, "Hello!", raw=True, options=OPTIONS, stream=True)
    assert "".join(p.response for p in raw)
    assert client.generate(MODEL).done_reason == "load"


def structured():
    answer = client.chat(
        MODEL, HELLO, format=Place.model_json_schema(), options={**OPTIONS, "num_predict": 400}
    )
    is_place(json.loads(answer.message.content))
    made = (
        ChatOllama(**FIELDS, num_predict=400)
        .with_structured_output(Place, include_raw=True)
        .invoke("A place?")
    )
    assert isinstance(made["parsed"], Place), made


def tools():
    call = ollama.Message.ToolCall(function={"name": "show", "arguments": {"city": "Oslo", "rank": 2}})
    turns = [*HELLO, ollama.Message(role="assistant", tool_calls=[call]),
             {"role": "tool", "tool_name": "show", "content": show(**call.function.arguments)}]
    assert client.chat(MODEL, turns, tools=[show], options=OPTIONS).done
    calls = [{"name": "show", "args": {"city": "Oslo"}, "id": "1", "type": "tool_call"}]
    turns = [HumanMessage("Hello!"), AIMessage("", tool_calls=calls), ToolMessage("Oslo 1", tool_call_id="1")]
    last = ChatOllama(**FIELDS, num_predict=40).bind_tools([show]).invoke(turns)
    assert last.response_metadata["done"], last


def embed():
    vectors = client.embed(MODEL, ["One", "two"], dimensions=8).embeddings
    assert [len(v) for v in vectors] == [8, 8]
    lang = OllamaEmbeddings(model=MODEL, base_url=HOST).embed_query("One")
    assert lang == client.embed(MODEL, "One").embeddings[0] == client.embeddings(MODEL, "One").embedding


def langchain():
    llm = ChatOllama(**FIELDS, num_predict=40)
    whole, total = llm.invoke("Hello!"), None
    for part in llm.stream("Hello!"):
        total = part if total is None else total + part
    assert total.text == whole.text and total.usage_metadata == whole.usage_metadata, (total, whole)
    assert OllamaLLM(**FIELDS, num_predict=40).invoke("Hello!") == whole.text


def images():
    answer = client.chat(
        MODEL, [{"role": "user", "content": QUESTION, "images": [IMAGE_BASE64]}], options=OPTIONS
    )
    content = [{"type": "image_url", "image_url": f"data:image/png;base64,{IMAGE_BASE64}"},
               {"type": "text", "text": QUESTION}]
    assert ChatOllama(**FIELDS, num_predict=40).invoke([HumanMessage(content)]).text == answer.message.content


run("ollama", models, chat, generate, structured, tools, embed, langchain, images)
