"""The bundled demo model over HTTP: the question that scripts/run.sh prints, streamed and not; held-out accuracy on one
image, on two, and on two that come in different turns."""
import os
import subprocess
import sys

import harness

args = harness.arguments(__doc__, single=300, pairs=120, turns=400)
root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
check = harness.Checks()


def ask(server, **extra):
    with open(os.path.join(args.demo, "sample.png"), "rb") as f:
        image = harness.data_url(f.read())
    body = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": image}},
                                                      {"type": "text", "text": "What is in this picture?"}]}], **extra}
    return body


def test_sample(server):
    body = ask(server)
    text = server.ok("/v1/chat/completions", body)["choices"][0]["message"]["content"]
    for word in ("red circle", "blue square"):
        check.true(f"the sample's answer names a {word}", word in text, text)
    streamed = harness.stream_text(server.stream("/v1/chat/completions", body))
    check.equal("streamed answer", streamed, text)


def test_heldout(server):
    """In a process of its own, as a person runs it; it exits 1 below 95 % with one image or 90 % with two."""
    for mode in (["--single", str(args.single), "--pairs", str(args.pairs)], ["--mode", "turns", "--turns", str(args.turns)]):
        done = subprocess.run([sys.executable, os.path.join(root, "scripts/demo/eval_http.py"), "--url", f"http://{server.host}:{server.port}"] + mode,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=500)
        print(done.stdout)
        check.true(f"held-out accuracy, {' '.join(mode)}", done.returncode == 0, done.stdout[-1200:])


def main():
    server = harness.Server(args.binary, args.demo)
    for test in (test_sample, test_heldout):
        if not args.only or test.__name__ in args.only:
            check.run(test, server)
    server.stop()
    check.end()


main()
