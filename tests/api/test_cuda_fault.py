"""A device that fails while it serves: who gets which error, what the probes say, and that the process ends for its supervisor. And a machine
without a device: what --backend auto and cuda do, and what `kvasir inspect --devices` prints. All on the emulated device (make cuda-host-so),
whose faults the environment orders."""
import json
import os
import re
import subprocess
import threading
import time

import harness

args = harness.arguments(__doc__, library="")
check = harness.Checks()
LIBRARY = args.library or os.path.join(os.path.dirname(os.path.abspath(args.binary)), "cuda-host", "kvasir-cuda.so")
DEVICE = {"KVASIR_CUDA_LIBRARY": LIBRARY, "KVASIR_GEMM": "own"}  # the faults count calls
FLAGS = ("--backend", "cuda", "--max-sequences", "4", "--kv-memory", "8M")
GRAPH_CALLS = 12  # about graphs at start: begin, end, instantiate and upload, of the sizes 1, 2 and 4


def completion(tokens, **more):
    return {"model": "m", "prompt": [5, 6, 7, 8, 9], "max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True, "temperature": 0, **more}


def start(fault, *flags, **env):
    return harness.Server(args.binary, args.model, *FLAGS, "--served-model-name", "m", *flags, env={**DEVICE, "CUEMU_FAIL": fault, **env})


def error_ok(what, answer, code):
    error = answer.get("error", {})
    check.equal(what, (sorted(error), error.get("code"), error.get("type")), (["code", "message", "param", "type"], code, "server_error"))
    check.true(what + ": a message", isinstance(error.get("message"), str) and error["message"])
    check.true(what + ": nothing of the inside", "cuda" not in json.dumps(error).lower(), error)


class TooLate(Exception):
    """The process ends a second after the failure; this machine let us come later."""


def others_told(server):
    """Once the device has failed and the process is still there."""
    try:
        status, answer = server.post("/v1/completions", completion(2))
        health, ready = server.request("GET", "/health")[0], server.request("GET", "/ready")[2]
    except (ConnectionError, harness.http.client.HTTPException) as fault:
        server.process.kill()
        raise TooLate from fault
    check.equal("a request after the failure", status, 503)
    error_ok("a request after the failure", answer, "engine_dead")
    check.equal("/health", health, 503)
    check.equal("/ready", json.loads(ready).get("status"), "failed")


def ends(server):
    """It has 15 seconds for that; slow machines begin to count late."""
    try:
        code = server.process.wait(60)
    except subprocess.TimeoutExpired:
        server.process.kill()
        check.true("the process ends", False, "it runs on")
        return
    check.equal("exit code", code, 1)
    server.process.stdout.close()


def test_decoding():
    """The fault comes in a decode step played back from a graph, two requests in flight."""
    server = start(f"graph:{GRAPH_CALLS + 40}:719:sticky")
    check.equal("before the fault", server.ok("/v1/completions", completion(4))["usage"]["completion_tokens"], 4)
    idle = server.connect()
    idle.request("GET", "/live")
    idle.getresponse().read()
    got = {}

    def plain():
        got["plain"] = server.post("/v1/completions", completion(100))

    def streamed():
        status, _, data = server.request("POST", "/v1/completions", {**completion(100), "stream": True}, timeout=60)
        got["stream"] = status, harness.parse_stream(data)

    threads = [threading.Thread(target=check.run, args=(f,)) for f in (plain, streamed)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    try:
        idle.request("GET", "/health")  # a connection that was open all the time
        health = idle.getresponse().status
    except (ConnectionError, harness.http.client.HTTPException) as fault:
        server.process.kill()
        raise TooLate from fault
    check.equal("/health on an old connection", health, 503)
    others_told(server)
    check.equal("the request in flight", got["plain"][0], 500)
    error_ok("the request in flight", got["plain"][1], "engine_error")
    check.equal("the stream in flight began well", got["stream"][0], 200)
    check.true("tokens came first", any("choices" in c for c in got["stream"][1]))
    check.true("and its error last", "error" in got["stream"][1][-1], got["stream"][1][-1])
    idle.close()
    ends(server)


def test_prefill():
    """The fault is a kernel launch, wherever it comes; without graphs."""
    server = start("launch:2500:700:sticky", KVASIR_CUDA_GRAPHS="0")
    for turn in range(200):
        status, answer = server.post("/v1/completions", completion(8, prompt=[5 + turn % 50] * 40))
        if status != 200:
            break
    check.true("some were answered", turn > 0, turn)
    check.equal("the request concerned", status, 500)
    error_ok("the request concerned", answer, "engine_error")
    others_told(server)
    ends(server)


def test_many():
    """More requests than run at a time: each of them is answered, those that waited too."""
    server = start(f"graph:{GRAPH_CALLS + 30}:719:sticky")
    got, clients = [], [server.connect() for _ in range(12)]
    server.pause()  # they all come before the failure
    for c in clients:
        c.request("POST", "/v1/completions", json.dumps(completion(100)), {"Content-Type": "application/json"})
    server.resume()
    for c in clients:
        answer = c.getresponse()
        got.append((answer.status, json.loads(answer.read())))
    kinds = sorted({(status, answer["error"]["code"] if status != 200 else None) for status, answer in got}, key=str)
    check.true("all of them errors of the engine", set(kinds) <= {(500, "engine_error"), (503, "engine_dead")}, kinds)
    check.true("some were concerned", (500, "engine_error") in kinds, kinds)
    for c in clients:
        c.close()
    ends(server)


def test_stuck_client():
    """A client that reads nothing of its answer doesn't keep the process alive."""
    server = start(f"graph:{GRAPH_CALLS + 20}:719:sticky")
    with harness.socket.create_connection((server.host, server.port)) as s:
        body = json.dumps({**completion(100), "stream": True}).encode()
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        ends(server)


def test_hang():
    """A call that never comes back: probes are told after --watchdog, and after --watchdog-exit the process ends."""
    server = start("sync:120:0:hang", "--watchdog", "1", "--watchdog-exit", "1")
    got = []
    client = threading.Thread(target=lambda: got.append(server.post("/v1/completions", completion(200))))
    client.start()
    try:
        dead = harness.wait_until(lambda: server.request("GET", "/health")[0] == 503)
    except ConnectionError as fault:
        raise TooLate from fault
    check.true("/health", dead)
    if dead:
        others_told(server)
    ends(server)
    client.join()
    check.equal("who waited", [status for status, _ in got], [503])
    error_ok("who waited", got[0][1], "engine_dead")


def test_slow():
    """An engine whose steps take longer than all limits is slow, not dead."""
    server = start("launch:1:200:slow", "--watchdog", "3", "--watchdog-exit", "2", KVASIR_CUDA_GRAPHS="0")
    began = time.monotonic()
    check.equal("an answer", server.ok("/v1/completions", completion(1))["usage"]["completion_tokens"], 1)
    check.true("of one step that took longer than both", time.monotonic() - began > 5.2, time.monotonic() - began)
    check.equal("/health", server.request("GET", "/health")[0], 200)
    server.stop()


def run(*command, **env):
    done = subprocess.run([args.binary, *command], capture_output=True, text=True, timeout=60, env={**os.environ, **DEVICE, **env})
    return done.returncode, done.stdout, done.stderr


def test_loading():
    code, _, said = run("serve", "--model", args.model, "--port", "0", *FLAGS, CUEMU_FAIL="copy:9:719:sticky")
    check.equal("a device that fails while loading", code, 1)
    check.true("says so", "CUDA" in said and "out of memory" not in said, said)


def test_devices():
    code, out, _ = run("inspect", "--devices")
    check.equal("inspect --devices", code, 0)
    check.true("CPU line", re.search(r"^CPU +.+ thread.*kernel sets:.* reference$", out, re.M), out)
    check.true("GPU line", re.search(r"^GPU 0 +emulated device, compute capability 8\.0, 4 multiprocessors, \d+ of 4096 MiB free", out, re.M), out)
    check.true("versions", re.search(r"^CUDA +runtime 13\.0, driver for up to 13\.0$", out, re.M), out)
    code, out, _ = run("inspect", "--devices", CUEMU_NO_DEVICE="1")
    check.equal("inspect --devices without a GPU", code, 0)
    check.true("why there is none", re.search(r"^GPU +none: no NVIDIA GPU is visible$", out, re.M), out)
    code, out, _ = run("inspect", "--devices", KVASIR_CUDA_LIBRARY="/nonexistent.so")
    check.true("without the library", code == 0 and re.search(r"^GPU +none: .*nonexistent", out, re.M), out)
    check.equal("--devices takes nothing else", run("inspect", "--devices", "--model", args.model)[0], 2)


def test_no_device():
    for how in ({"CUEMU_NO_DEVICE": "1"}, {"KVASIR_CUDA_LIBRARY": "/nonexistent.so"}):
        code, out, said = run("serve", "--model", args.model, "--port", "0", "--backend", "cuda", **how)
        check.equal("--backend cuda without a GPU", (code, out), (1, ""))
        check.true("a clear error", re.search(r"^kvasir: backend cuda: .+", said, re.M), said)
        code, _, said = run("inspect", "--model", args.model, "--backend", "auto", **how)
        check.equal("--backend auto without a GPU", code, 0)
        check.equal("no line about it where there is no GPU", re.findall(r"running on the CPU", said), [])
    code, out, _ = run("inspect", "--model", args.model, "--backend", "auto")
    check.true("--backend auto takes the GPU", code == 0 and re.search(r"^backend +cuda-host \(emulated device", out, re.M), out)
    code, out, said = run("bench", "--model", args.model, "--backend", "cuda", "--prefill", "16", "--decode", "1,3", "--repeats", "1", "--json")
    check.equal("bench --backend cuda", code, 0)
    figures = json.loads(out) if code == 0 else {"results": []}
    check.equal("its figures", [(r["name"], r["per_s"] > 0) for r in figures["results"]], [("prefill 16", True), ("decode batch 1", True), ("decode batch 3", True)])
    check.equal("bench --backend cuda without a GPU", run("bench", "--model", args.model, "--backend", "cuda", CUEMU_NO_DEVICE="1")[0], 1)


if not os.path.exists(LIBRARY):
    check.true(f"{LIBRARY} is there (make cuda-host-so)", False)
    check.end()
def in_time(function):
    for _ in range(5):
        try:
            return function()
        except TooLate:
            print(f"{function.__name__}: the machine was too slow, once more")
    check.true(f"{function.__name__}: the failure is told before the process ends", False)


for function in (test_decoding, test_prefill, test_many, test_stuck_client, test_hang, test_slow, test_loading, test_devices, test_no_device):
    if not args.only or function.__name__ in args.only:
        check.run(in_time, function)
check.end()
