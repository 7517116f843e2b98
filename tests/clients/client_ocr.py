"""What OCR clients send, in their own words and with their defaults, a page in and text out: docling
(docling/utils/api_image_request.py, vlm_model_specs.py), MinerU (mineru_vl_utils/vlm_client/http_client.py,
mineru_client.py), olmOCR (olmocr/pipeline.py), PaddleOCR (paddlex/inference/models/doc_vlm/predictor.py,
common/genai.py), GLM-OCR (glmocr/dataloader/page_loader.py, ocr_client.py), LightOnOCR
(lightonocr/client.py), Surya (surya/inference/backends/openai_client.py), and DeepSeek-OCR's recipe of vLLM.
The clients themselves want PDFs and layout models of
gigabytes; docs/ocr.md shows how each finds a server."""

import base64
import io
import json
import socket
import urllib.parse

import openai
from common import HOST, IMAGE_BASE64, MODEL, run
from PIL import Image
from wire import answer, get, post, stream_chat

PAGE = Image.open(io.BytesIO(base64.b64decode(IMAGE_BASE64))).convert("RGB")
CHAT = "/v1/chat/completions"


def url(kind="png", mode="RGB"):
    data = io.BytesIO()
    PAGE.convert(mode).save(data, format=kind)
    return f"data:image/{kind};base64," + base64.b64encode(data.getvalue()).decode()


def message(image, text, image_first=True):
    parts = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": text}]
    return {"role": "user", "content": parts if image_first else parts[::-1]}


def text_of(reply):
    """As all of them read it."""
    choice = reply["choices"][0]
    assert choice["finish_reason"] in ("stop", "length") and reply["usage"]["total_tokens"] > 0, reply
    assert isinstance(choice["message"]["content"], str) and choice["message"]["content"], reply
    return choice["message"]["content"]


def docling():
    """Granite-Docling's options for vLLM; a page is RGBA. Streamed, with a header of its own."""
    body = {"messages": [message(url(mode="RGBA"), "Convert this page to docling.")], "model": MODEL,
            "max_tokens": 40, "skip_special_tokens": False, "temperature": 0.0}
    whole = text_of(post(CHAT, body))
    headers = {"Accept": "text/event-stream", "X-Temperature": "0.0"}
    assert stream_chat(CHAT, body, headers) == whole
    # docling-serve leaves the model's name out unless it is among the params.
    assert text_of(post(CHAT, {k: v for k, v in body.items() if k != "model"})) == whole


def mineru():
    """Its steps: the layout of a page, then what is in a block."""
    models = get("/v1/models")["data"]
    assert [m["id"] for m in models] == [MODEL], models  # without a model's name, exactly one
    plain = {"temperature": 0.0, "top_p": 0.01, "top_k": 1, "repetition_penalty": 1.0}
    layout = {"presence_penalty": 0.0, "frequency_penalty": 0.0}
    block = {"presence_penalty": 1.0, "frequency_penalty": 0.05}
    system = {"role": "system", "content": "You are a helpful assistant."}
    for prompt, penalties in (("\nLayout Detection:", layout), ("\nText Recognition:", block)):
        body = {"model": MODEL, "messages": [system, message(url(), prompt)], "priority": 0, **plain,
                **penalties, "vllm_xargs": {"no_repeat_ngram_size": 100, "debug": False},
                "max_completion_tokens": 40, "skip_special_tokens": False}
        assert text_of(post(CHAT, body)) == stream_chat(CHAT, body)
    # Tokens such as <|box_start|> are special and still in the text: its layout is read from them.
    mark = "<|vision_start|>"
    ids = post("/tokenize", {"prompt": mark, "add_special_tokens": False})["tokens"]
    if len(ids) == 1:
        body |= {"logit_bias": {str(ids[0]): 100}, "max_completion_tokens": 3, "presence_penalty": 0}
        assert mark in text_of(post(CHAT, body)) == stream_chat(CHAT, body)


def olmocr():
    """Its own HTTP: one connection per request, and an answer of a known length."""
    body = {
        "model": MODEL,
        "messages": [message(url(), "Attached is one page of a document.", image_first=False)],
        "max_tokens": 4500,
        "temperature": 0.1,
        "guided_regex": r"---\nprimary_language: (?:[a-z]{2}|null)"
        r"\nis_rotation_valid: (?:True|False|true|false)"
        r"\nrotation_correction: (?:0|90|180|270)\nis_table: (?:True|False|true|false)"
        r"\nis_diagram: (?:True|False|true|false)\n(?:---|---\n[\s\S]+)",
    }
    body["max_tokens"] = 200
    sent = json.dumps(body)
    at = urllib.parse.urlsplit(HOST)
    with socket.create_connection((at.hostname, at.port), timeout=600) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: {at.hostname}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(sent)}\r\nConnection: close\r\n\r\n{sent}".encode())
        with connection.makefile("rb") as reply:
            assert reply.readline().split()[1] == b"200"
            lines = iter(reply.readline, b"\r\n")
            fields = dict(line.decode().lower().strip().split(": ", 1) for line in lines)
            data = reply.read(int(fields["content-length"]))
            assert reply.read() == b""
    assert text_of(json.loads(data)).startswith("---\nprimary_language: "), data


def paddleocr():
    """vl_rec_backend="vllm-server": the openai package without a key; pages are JPEGs."""
    client = openai.OpenAI(base_url=HOST + "/v1", api_key="null")
    model = client.models.list().data[0].id
    more = {"skip_special_tokens": True, "repetition_penalty": 1.0}
    more["mm_processor_kwargs"] = {"min_pixels": 3136, "max_pixels": 100352}
    reply = client.chat.completions.create(model=model, messages=[message(url("jpeg"), "OCR:")],
                                           temperature=0, max_completion_tokens=40, extra_body=more,
                                           timeout=600)
    assert reply.choices[0].message.content


def glm_ocr():
    """First a question without an image and without a model's name, then blocks of a page, sampled."""
    hello = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]}
    text_of(post(CHAT, {**hello, "max_tokens": 10, "temperature": 0.1}))
    body = {"messages": [message(url("jpeg"), "Text Recognition:")], "max_tokens": 40, "temperature": 0.8}
    body |= {"top_p": 0.9, "top_k": 50, "repetition_penalty": 1.1}
    text_of(post(CHAT, body))


def lighton_ocr():
    """The page alone."""
    client = openai.OpenAI(base_url=HOST + "/v1", api_key="EMPTY")
    page = {"role": "user", "content": message(url(), "")["content"][:1]}
    reply = client.chat.completions.create(model=client.models.list().data[0].id, messages=[page],
                                           temperature=0.2, top_p=0.9, max_tokens=20,
                                           extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert reply.choices[0].message.content


def surya():
    """Probabilities of each token, and text in a given form."""
    client = openai.OpenAI(base_url=HOST + "/v1", api_key="EMPTY")
    fields = {"model": MODEL, "messages": [message(url(), "Layout")], "temperature": 0.0, "top_p": 0.1}
    fields |= {"max_tokens": 400, "logprobs": True}
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    schema["additionalProperties"] = False
    form = {"type": "json_schema"}
    form["json_schema"] = {"name": "structured_output", "schema": schema, "strict": True}
    reply = client.chat.completions.create(**fields, response_format=form)
    assert json.loads(reply.choices[0].message.content)["n"] in (1, 2)
    assert all(token.logprob <= 0 for token in reply.choices[0].logprobs.content)
    reply = client.chat.completions.create(**fields, extra_body={"guided_regex": "(a|b){3}"})
    assert set(reply.choices[0].message.content) <= set("ab")


def deepseek_ocr():
    """The logits processor of vLLM's recipe, as fields of the request."""
    body = {"messages": [message(url(), "Free OCR.")], "temperature": 0.0, "max_tokens": 60}
    body |= {"ignore_eos": True, "skip_special_tokens": False, "return_token_ids": True}
    body["vllm_xargs"] = {"ngram_size": 4, "window_size": 30, "whitelist_token_ids": []}
    ids = post(CHAT, body)["choices"][0]["token_ids"]
    for i in range(3, len(ids)):
        seen = ids[max(0, i - 30) : i]
        assert ids[i - 3 : i + 1] not in [seen[k : k + 4] for k in range(len(seen) - 3)], (i, ids)
    status, data = answer(CHAT, {**body, "vllm_xargs": {"ngram": 4}})
    assert status == 400 and "ngram" in data["error"]["message"], data


if __name__ == "__main__":
    run("ocr", docling, mineru, olmocr, paddleocr, glm_ocr, lighton_ocr, surya, deepseek_ocr)
