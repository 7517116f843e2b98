"""llm, the command: Kvasir as a model of its extra-openai-models.yaml."""
import base64
import json
import os
import subprocess
import sys
import tempfile

from common import MODEL, IMAGE_BASE64, QUESTION, SEES, URL, Place, run

folder = tempfile.TemporaryDirectory()
with open(os.path.join(folder.name, "extra-openai-models.yaml"), "w", encoding="utf-8") as f:
    f.write(f"- model_id: kvasir\n  model_name: {json.dumps(MODEL)}\n  api_base: {URL}\n"
            f"  supports_tools: true\n  supports_schema: true\n  vision: {str(SEES).lower()}\n")
with open(os.path.join(folder.name, "image.png"), "wb") as f:
    f.write(base64.b64decode(IMAGE_BASE64))


def llm(*args, may_say=None):
    """-> its answer. may_say: an error that is none here."""
    command = [os.path.join(os.path.dirname(sys.executable), "llm"), "-m", "kvasir", "--key", "none",
               "-o", "temperature", "0", *args]
    env = {**os.environ, "LLM_USER_PATH": folder.name}
    done = subprocess.run(command, env=env, cwd=folder.name, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 or (may_say and may_say in done.stderr), done.stderr
    return done.stdout


def chat():
    short = ("-o", "max_tokens", "40", "Hello!")
    assert llm("--no-stream", *short) == llm(*short) != ""


def conversation():
    llm("-o", "max_tokens", "20", "Hello!")
    assert llm("-c", "-o", "max_tokens", "20", "And?")


def schema():
    made = llm("-o", "max_tokens", "400", "--schema", json.dumps(Place.model_json_schema()), "A place?")
    Place.model_validate_json(made)


def tools():
    """The model may call, or not, or call and call: what is asked is that the exchange works."""
    function = "def show(name: str) -> str:\n    'Shows a place.'\n    return 'shown'\n"
    llm("--functions", function, "-o", "max_tokens", "200", "--chain-limit", "2", "Show Oslo.",
        may_say="Chain limit of 2 exceeded")


def images():
    assert llm("-o", "max_tokens", "40", "-a", "image.png", QUESTION)


run("llm", chat, conversation, schema, tools, images)
