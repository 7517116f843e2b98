#!/usr/bin/env python3
"""Clients that people use, on a Kvasir of this tree, with the versions of PyPI that are named here. On the
demo that sees images; with --model also on another checkpoint. By hand, or scripts/test.sh --clients."""
import argparse
import json
import os
import re
import subprocess
import sys

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(here))
sys.path.insert(0, os.path.join(root, "tests/api"))
from harness import Server  # noqa: E402

# Each in an environment of its own: they ask for different versions of the package openai.
CLIENTS = {"openai": ["openai[realtime]==3.54.0", "pydantic==2.14.3"], "anthropic": ["anthropic==2.12.0"],
           "agents": ["openai-agents==0.24.0"], "pydantic_ai": ["pydantic-ai-slim[openai]==2.68.0"],
           "smolagents": ["smolagents==1.26.0", "openai==3.54.0"], "langchain": ["langchain-openai==1.7.3"],
           "instructor": ["instructor==1.17.0"], "litellm": ["litellm==1.106.2", "mcp==2.3.0"],
           "llm": ["llm==0.36"], "ollama": ["ollama==0.6.3", "langchain-ollama==1.1.0", "pydantic==2.14.3"],
           "codex": ["pydantic==2.14.3", "websockets==17.4"], "claude_code": ["pydantic==2.14.3"],
           "open_responses": ["pydantic==2.14.3", "websockets==17.4"],
           "ocr": ["openai==3.54.0", "pillow", "pydantic==2.14.3"],
           "sglang": ["openai==3.54.0", "websockets==17.4"], "mcp_tools": ["pydantic==2.14.3"],
           "lm_eval": ["lm-eval[api]==0.4.13", "pydantic==2.14.3"]}


def environment(client):
    """-> its python. Made again where it was made for other versions."""
    folder, wanted = os.path.join(root, "build/clients-venv", client), " ".join(CLIENTS[client])
    python, mark = os.path.join(folder, "bin/python"), os.path.join(folder, "versions")
    if os.path.exists(mark):
        with open(mark, encoding="utf-8") as f:
            if f.read() == wanted:
                return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, *CLIENTS[client]], check=True)
    with open(mark, "w", encoding="utf-8") as f:
        f.write(wanted)
    return python


def run(client, server, sees):
    """-> how many of its checks passed, and failed."""
    model = json.loads(server.request("GET", "/v1/models")[2])["data"][0]["id"]
    env = {**os.environ, "KVASIR_URL": f"http://{server.host}:{server.port}", "KVASIR_MODEL": model,
           "KVASIR_SEES": "1" if sees else "0"}
    try:
        done = subprocess.run([environment(client), os.path.join(here, f"client_{client}.py")], env=env,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1800)
        said = done.stdout
    except (subprocess.SubprocessError, OSError) as e:
        said = f"{client}: {e}\n"
    end = re.search(r"^(.*)\n(\d+) passed, (\d+) failed\n\Z", said, re.M)
    passed, failed = (int(end[2]), int(end[3])) if end else (0, 1)
    print(said.rstrip() if failed else end[1], flush=True)
    return passed, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default=os.path.join(root, "build/release/kvasir"))
    parser.add_argument("--model", help="a further checkpoint")
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=", ".join(CLIENTS))
    args = parser.parse_args()
    unknown = set(args.clients) - set(CLIENTS)
    if unknown:
        parser.error(f"no such client: {', '.join(unknown)}")
    passed = failed = 0
    for model in filter(None, (os.path.join(root, "models/demo-qwen3-vl"), args.model)):
        with open(os.path.join(model, "config.json"), encoding="utf-8") as f:
            sees = "vision_config" in json.load(f)
        print(f"# {model}", flush=True)
        server = Server(args.binary, model)
        for client in args.clients or CLIENTS:
            more = run(client, server, sees)
            passed, failed = passed + more[0], failed + more[1]
        server.stop()
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
