"""Requests and conversations read from a file.

jsonl     one request a line: {"messages": [...]} or {"prompt": "..."}, with "max_tokens" if wanted; also the
          lines of batch files, which hold that as "body". Images: image_url parts with a data: or http URL,
          or with the name of a file next to the data set. A final assistant message is dropped.
sharegpt  {"conversations": [{"from": "human", "value": ...}, {"from": "gpt", ...}, ...]}, as a list or one a
          line. The questions are sent in order; the server's own responses go between them, each at
          most as long as the response in the file."""
import base64
import json
import mimetypes
import os

from .wire import Fault
from .work import Turn

ASKS, ANSWERS = ("human", "user"), ("gpt", "assistant", "chatgpt", "bing", "bard", "model")
SAMPLE = 20000  # characters that are tokenized to learn how many tokens a word has


class Bad(Exception):
    """An entry that can't be used; its text says why."""


def read(path, form, opts, tokenizer):
    """-> [(system prompt, turns)], at least one"""
    try:
        entries = list(load(path))
    except (OSError, ValueError) as fault:
        raise Fault(f"--dataset {path}: {getattr(fault, 'strerror', None) or fault}") from None
    out = []
    for place, entry in entries:
        try:
            if not isinstance(entry, dict):
                raise Bad("not an object")
            if form == "jsonl":
                out.append(("", [request(entry, os.path.dirname(path), opts.completions)]))
            else:
                out.append(conversation(entry))
        except Bad as fault:
            raise Fault(f"--dataset {path}, {place}: {fault}") from None
    out = [(system, turns[:opts.turns_most]) for system, turns in out if turns]
    if not out:
        raise Fault(f"--dataset {path}: nothing to ask in it")
    if form == "sharegpt":
        count_answers(out, tokenizer)
    return out


def load(path):
    """The values of a JSON list or of a file with one value a line, each with its place."""
    with open(path, encoding="utf-8") as f:
        begin = f.read(4096).lstrip()[:1]
        f.seek(0)
        if begin == "[":
            yield from ((f"entry {i}", value) for i, value in enumerate(json.load(f), 1))
            return
        for i, line in enumerate(f, 1):
            if line.strip():
                try:
                    yield f"line {i}", json.loads(line)
                except ValueError as fault:
                    raise ValueError(f"line {i}: {fault}") from None


def request(entry, folder, completions):
    entry = entry.get("body", entry)
    if not isinstance(entry, dict):
        raise Bad("body is not an object")
    most = entry.get("max_tokens", entry.get("max_completion_tokens"))
    if most is not None and (not isinstance(most, int) or most < 1):
        raise Bad(f"max_tokens is {most!r}")
    if isinstance(entry.get("prompt"), str):
        return Turn(entry["prompt"], [], 0, most, [{"role": "user", "content": entry["prompt"]}])
    messages = entry.get("messages")
    if not isinstance(messages, list) or not all(isinstance(m, dict) and "role" in m for m in messages):
        raise Bad("neither messages nor a prompt")
    while messages and messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    if not messages:
        raise Bad("no question in its messages")
    images, texts = [], []
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else [{"type": "text", "text": content or ""}]:
            if part.get("type") == "image_url":
                part["image_url"] = {**part["image_url"], "url": embed(part["image_url"]["url"], folder)}
                images.append(part["image_url"]["url"])
            else:
                texts.append(str(part.get("text", "")))
    if completions and images:
        raise Bad("--completions has no images")
    return Turn("\n\n".join(texts), images, 0, most, messages)


def embed(url, folder):
    """The file that is named instead of a URL, as a data: URL."""
    if url.startswith(("data:", "http://", "https://")):
        return url
    path = os.path.join(folder, url.removeprefix("file://"))
    try:
        with open(path, "rb") as f:
            data = base64.b64encode(f.read()).decode()
    except OSError as fault:
        raise Bad(f"image {path}: {fault.strerror}") from None
    return f"data:{mimetypes.guess_type(path)[0] or 'image/png'};base64,{data}"


def conversation(entry):
    said = entry.get("conversations", entry.get("conversation"))
    if not isinstance(said, list):
        raise Bad("no list \"conversations\"")
    system, turns = "", []
    for piece in said:
        who, text = piece.get("from", piece.get("role")), piece.get("value", piece.get("content"))
        if not isinstance(text, str):
            raise Bad("a value that is no text")
        if who in ASKS:
            turns.append(Turn(text, [], 0))
        elif who in ANSWERS and turns:
            turns[-1].max_tokens = max(1, len(text.split()))  # words, until count_answers()
        elif who == "system" and not turns:
            system = text
    return system, turns


def count_answers(entries, tokenizer):
    """Makes tokens of the lengths in words, at the rate that a part of the questions shows."""
    text = " ".join(turn.text for _, turns in entries[:200] for turn in turns)[:SAMPLE]
    per_word = tokenizer.count(text) / max(1, len(text.split()))
    for _, turns in entries:
        for turn in turns:
            if turn.max_tokens:
                turn.max_tokens = max(1, round(turn.max_tokens * per_word))
