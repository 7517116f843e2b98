"""HTTP requests written by hand, for clients that are not Python packages."""

import http.client
import json
import urllib.parse

from common import HOST

_host = urllib.parse.urlsplit(HOST).netloc


def post(path, body, headers=None):
    """-> the JSON of a 200."""
    connection = http.client.HTTPConnection(_host, timeout=600)
    connection.request(
        "POST", path, json.dumps(body), {"Content-Type": "application/json", **(headers or {})}
    )
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    assert answer.status == 200, (answer.status, data[:500])
    return data if body.get("stream") else json.loads(data)


def get(path):
    connection = http.client.HTTPConnection(_host, timeout=600)
    connection.request("GET", path)
    data = json.loads(connection.getresponse().read())
    connection.close()
    return data


def stream(path, body, headers=None):
    """-> the events of a stream; each names its type twice."""
    events = []
    for event in post(path, {**body, "stream": True}, headers).decode().split("\n\n")[:-1]:
        name, _, text = event.partition("\n")
        events.append(json.loads(text.removeprefix("data: ")))
        assert name == "event: " + events[-1]["type"], event
    return events
