"""WebSocket mode of /v1/responses, as its clients use it."""

import contextlib
import json

from common import HOST, MODEL
from websockets.sync.client import connect

ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


@contextlib.contextmanager
def opened():
    """-> turn(fields) -> the events of a response; of an error there is one event alone."""
    url = HOST.replace("http://", "ws://") + "/v1/responses"
    with connect(url, max_size=None, additional_headers={"Authorization": "Bearer none"}) as socket:

        def turn(**fields):
            body = {"type": "response.create", "model": MODEL, "temperature": 0, "max_output_tokens": 60}
            socket.send(json.dumps({**body, **fields}))
            events = [json.loads(socket.recv(timeout=600))]
            while events[-1]["type"] not in ENDS:
                events.append(json.loads(socket.recv(timeout=600)))
            return events

        yield turn


def fails(events, code):
    """One message with this error."""
    (e,) = events
    assert (e["type"], e["error"]["code"]) == ("error", code), e
    assert isinstance(e["status"], int) and isinstance(e["error"]["message"], str), e
