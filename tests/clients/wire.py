"""HTTP requests written by hand, for clients that are not Python packages."""

import http.client
import json
import urllib.parse

from common import HOST

_host = urllib.parse.urlsplit(HOST).netloc


def answer(path, body=None, headers=None, method="POST"):
    """-> (status, JSON, or the bytes of a stream)"""
    connection = http.client.HTTPConnection(_host, timeout=600)
    sent = {"Content-Type": "application/json", **(headers or {})} if body is not None else {}
    connection.request(method, path, body and json.dumps(body), sent)
    reply = connection.getresponse()
    data = reply.read()
    connection.close()
    is_json = reply.headers["Content-Type"] == "application/json"
    return reply.status, json.loads(data) if is_json else data


def post(path, body, headers=None):
    """-> the JSON of a 200."""
    status, data = answer(path, body, headers)
    assert status == 200, (status, data)
    return data


def get(path):
    return answer(path, method="GET")[1]


def stream(path, body, headers=None):
    """-> the events of a stream; each names its type twice."""
    events = []
    for event in post(path, {**body, "stream": True}, headers).decode().split("\n\n")[:-1]:
        name, _, text = event.partition("\n")
        events.append(json.loads(text.removeprefix("data: ")))
        assert name == "event: " + events[-1]["type"], event
    return events


def stream_chat(path, body, headers=None):
    """-> the text of a streamed chat."""
    events = post(path, {**body, "stream": True}, headers).decode().split("\n\n")[:-1]
    assert events[-1] == "data: [DONE]", events[-1]
    chunks = [json.loads(e.removeprefix("data: ")) for e in events[:-1]]
    return "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])
