"""Shared by the clients' scripts: the server's address, an image, and how a script's checks are run.
Each function of a script is one check; it needs nothing that a small model might not do: calls and structures
are forced, and their sizes are bounded."""
import base64
import os
import sys
import traceback
from typing import Literal

from pydantic import BaseModel, Field

HOST = os.environ["KVASIR_URL"]
URL = HOST + "/v1"
MODEL = os.environ["KVASIR_MODEL"]
SEES = os.environ["KVASIR_SEES"] == "1"
_path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../models/demo/sample.png")
with open(_path, "rb") as f:
    IMAGE_BASE64 = base64.b64encode(f.read()).decode()
IMAGE = "data:image/png;base64," + IMAGE_BASE64
QUESTION = "What shape is this?"


class Place(BaseModel):
    """A place on a map."""

    city: str = Field(min_length=1, max_length=12)
    country: Literal["Norway", "Peru", "Japan"]
    rank: int = Field(ge=0, le=99)
    tags: list[Literal["north", "south", "coast"]] = Field(max_length=3)


def is_place(value):
    """value: a dict that a client made of JSON."""
    assert Place.model_validate(value).model_dump() == value, value


def run(name, *checks):
    worked, failed = [], 0
    for check in checks:
        if check.__name__ == "images" and not SEES:
            continue
        try:
            check()
            worked.append(check.__name__)
        except Exception:  # whatever it is, the other checks go on
            failed += 1
            traceback.print_exc()
            print(f"FAIL {name}: {check.__name__}")
    print(f"{name}: {', '.join(worked)}")
    print(f"{len(worked)} passed, {failed} failed")
    sys.stdout.flush()
    os._exit(1 if failed else 0)  # some clients leave threads behind that never end
