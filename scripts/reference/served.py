"""A server of ours for the comparisons of this folder: started on a free port, asked by JSON, stopped."""

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request


class Server:
    def __init__(self, binary, model, *flags):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [binary, "serve", "--model", str(model), *flags, "--port", str(port), "--log-level", "error"],
            stdout=subprocess.DEVNULL,
        )
        while True:
            try:
                urllib.request.urlopen(self.url + "/health", timeout=5)
                return
            except OSError:
                if self.process.poll() is not None:
                    raise RuntimeError(f"{model}: the server ended at its start") from None
                time.sleep(0.1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def post(self, path, body):
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=1800) as r:
                return json.load(r)
        except urllib.error.HTTPError as e:
            raise RuntimeError(f"{path}: {e.code} {e.read().decode(errors='replace')[:400]}") from None
