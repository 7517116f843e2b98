"""Files, batches and run-batch: python3 test_jobs.py [--binary B] [test ...]
The answers of a batch are those of its lines one by one, each exactly once, also when the server is killed;
what belongs to one key is nobody else's; wrong lines, wrong forms, quotas, hostile names. By OpenAI's SDK."""
import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

import openai

import harness
from harness import Server

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
args = harness.arguments(__doc__)
check = harness.Checks()
DEMO = os.path.join(ROOT, "models/demo")
CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")
IMAGE = harness.data_url(harness.drawing(1))


@contextlib.contextmanager
def serving(*flags):
    server = Server(args.binary, DEMO, *flags)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()


class Folder:
    """A --data-dir that is removed at the end."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="kvasir-test-")
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.path)

    def serve(self, *flags):
        return serving("--data-dir", self.path, *flags)


def wait_until(condition, seconds=60.0, step=0.02):
    assert harness.wait_until(condition, seconds, step)


def sdk(server, key="none"):
    url = f"http://127.0.0.1:{server.port}/v1"
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=60)


def line(i, url=CHAT, **body):
    if url == CHAT:
        image = [{"type": "image_url", "image_url": {"url": IMAGE}}] if i % 3 == 0 else []
        body = {"max_tokens": 6, "temperature": 0, **body,
                "messages": [{"role": "user", "content": [*image, {"type": "text", "text": f"Number {i}?"}]}]}
    return {"custom_id": f"line-{i}", "method": "POST", "url": url, "body": {"model": "demo", **body}}


def jsonl(lines):
    return "".join(x if isinstance(x, str) else json.dumps(x) + "\n" for x in lines).encode()


def upload(client, lines, **more):
    return client.files.create(file=("in.jsonl", jsonl(lines)), purpose="batch", **more)


def begin(client, lines, endpoint=CHAT, **more):
    return client.batches.create(input_file_id=upload(client, lines).id, endpoint=endpoint,
                                 completion_window="24h", **more)


def end(client, batch, seconds=60):
    wait_until(lambda: client.batches.retrieve(batch.id).status in ENDED, seconds, 0.05)
    return client.batches.retrieve(batch.id)


def records(client, file):
    return [json.loads(x) for x in client.files.content(file).text.splitlines()] if file else []


def content(body):
    """What depends on the request alone."""
    return json.dumps([body.get(k) for k in ("choices", "data")]) + json.dumps(
        [i.get("content") for i in body.get("output", [])] and
        [p["text"] for i in body["output"] for p in i.get("content", [])])


def same_as_alone(server, lines, got, headers=None):
    assert sorted(r["custom_id"] for r in got) == sorted(x["custom_id"] for x in lines), len(got)
    alone = {x["custom_id"]: content(server.post(x["url"], x["body"], headers)[1]) for x in lines}
    for r in got:
        assert r["error"] is None and r["response"]["status_code"] == 200, r
        assert content(r["response"]["body"]) == alone[r["custom_id"]], r


def test_sdk_methods():
    with Folder() as d, d.serve() as s:
        c = sdk(s)
        lines = [line(i) for i in range(12)]
        f = upload(c, lines, expires_after={"anchor": "created_at", "seconds": 3600})
        assert f.object == "file" and f.purpose == "batch" and f.filename == "in.jsonl", f
        assert f.bytes == len(jsonl(lines)) and f.expires_at == f.created_at + 3600, f
        assert c.files.content(f.id).read() == jsonl(lines)
        assert c.files.retrieve(f.id) == f
        b = begin(c, lines, metadata={"who": "test"},
                  output_expires_after={"anchor": "created_at", "seconds": 7200})
        assert b.object == "batch" and b.status == "validating" and b.metadata == {"who": "test"}, b
        b = end(c, b)
        assert b.status == "completed" and b.error_file_id is None and b.errors is None, b
        counts = b.request_counts
        assert (counts.total, counts.completed, counts.failed) == (12, 12, 0), b
        assert b.in_progress_at and b.finalizing_at and b.completed_at, b
        assert b.expires_at == b.created_at + 86400, b
        same_as_alone(s, lines, records(c, b.output_file_id))
        out = c.files.retrieve(b.output_file_id)
        assert out.purpose == "batch_output" and out.expires_at == out.created_at + 7200, out
        assert [x.id for x in c.files.list(purpose="batch_output")] == [out.id]
        assert [x.id for x in c.batches.list(limit=1)] == [b.id]
        every = [x.id for x in c.files.list(limit=1, order="asc")]  # pages
        assert len(every) == 3 and set(every) >= {f.id, out.id}, every
        assert c.files.delete(f.id).deleted
        check_error(lambda: c.files.retrieve(f.id), 404)
        m = s.metrics()
        assert [v for k, v in m.items() if "kvasir:batches" in k and '"completed"' in k] == [1], m
        assert [v for k, v in m.items() if "kvasir:batch_lines_total" in k] == [12, 0], m


def check_error(call, status, code=None):
    try:
        call()
    except openai.APIStatusError as e:
        assert e.status_code == status and (code is None or e.code == code), (e, e.status_code)
        return e
    raise AssertionError(f"no error {status}")


def test_other_endpoints():
    kinds = {"/v1/completions": {"prompt": "One two", "max_tokens": 5, "temperature": 0},
             "/v1/responses": {"input": "Hello", "max_output_tokens": 16, "temperature": 0},
             "/v1/embeddings": {"input": ["one", "two"]}}
    with Folder() as d, d.serve() as s:
        c = sdk(s)
        for url, body in kinds.items():
            lines = [line(i, url, **body) for i in range(2)]
            b = end(c, begin(c, lines, url))
            assert b.status == "completed" and b.request_counts.completed == 2, b
            same_as_alone(s, lines, records(c, b.output_file_id))


def kill(server):
    server.process.kill()
    server.process.wait()


def test_killed():
    """Every line exactly once, whatever record the kill has torn."""
    with Folder() as d:
        lines = [line(i, max_tokens=12) for i in range(150)]
        batch = None
        for _ in range(3):
            with d.serve() as s:
                batch = batch or begin(sdk(s), lines)
                part = os.path.join(d.path, f"file-{batch.id[6:]}-output")
                wait_until(lambda: os.path.exists(part))
                had = len(open(part, "rb").readlines())
                wait_until(lambda: len(open(part, "rb").readlines()) > had + 10, 60, 0.002)
                kill(s)
            with open(part, "rb+") as f:  # a torn record, as a power loss would leave it
                f.truncate(os.path.getsize(part) - 7)
        with d.serve() as s:
            c = sdk(s)
            batch = end(c, batch)
            assert batch.status == "completed" and batch.request_counts.completed == 150, batch
            same_as_alone(s, lines, records(c, batch.output_file_id))
        with d.serve() as s:  # and what has ended stays
            assert sdk(s).batches.retrieve(batch.id) == batch


def test_killed_upload():
    body = form_of(purpose="batch", file=b"x" * 3000000)

    def send_part(server):
        raw = harness.socket.create_connection(("127.0.0.1", server.port))
        raw.sendall(head_of(len(body)) + body[:2500000])
        wait_until(lambda: len(os.listdir(d.path)) == 3)
        return raw
    with Folder() as d:
        with d.serve() as s:
            kept = upload(sdk(s), [line(1)])
            send_part(s)
            kill(s)
        with d.serve() as s:
            assert sorted(os.listdir(d.path)) == sorted([kept.id, kept.id + ".json"]), os.listdir(d.path)
            assert [f.id for f in sdk(s).files.list()] == [kept.id]
            send_part(s).close()  # a client that leaves
            wait_until(lambda: len(os.listdir(d.path)) == 2, 20)
            for i in range(30):  # while a worker has a chunk
                raw = harness.socket.create_connection(("127.0.0.1", s.port))
                with contextlib.suppress(ConnectionError):
                    raw.sendall(head_of(1 << 26) + body[:200] + b"x" * 300000 * (i + 1))
                raw.close()
            pieces = b"".join(b"2bc\r\n" + body[i:i + 700] + b"\r\n" for i in range(0, 2800000, 700))
            tail = b"%x\r\n" % (len(body) - 2800000) + body[2800000:] + b"\r\n0\r\n\r\n"
            chunked = b"Connection: close\r\nTransfer-Encoding: chunked"
            head = re.sub(rb"Content-Length.*\d", chunked, head_of(0))
            got = s.raw(head + pieces + tail)
            assert b'"bytes":3000000' in got, got[:300]


def form_of(boundary="xx", **parts):
    out = b""
    for name, value in parts.items():
        file = '; filename="../../etc/x"' if name == "file" else ""
        value = value if isinstance(value, bytes) else value.encode()
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
        out += head.encode() + value + b"\r\n"
    return out + f"--{boundary}--\r\n".encode()


def head_of(length):
    return (f"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=xx\r\n"
            f"Content-Length: {length}\r\n\r\n").encode()


def test_wrong_lines():
    """Each error of a line, as OpenAI names it; the batch fails."""
    cases = [("{\n", "invalid_json_line", None), ('"text"\n', "invalid_json_line", None),
             ({"url": "/v1/models"}, "invalid_url", "url"), ({"method": "GET"}, "invalid_method", "method"),
             ({"custom_id": "line-0"}, "duplicate_custom_id", "custom_id"),
             ({"custom_id": 5}, "missing_required_parameter", "custom_id"),
             ({"body": []}, "missing_required_parameter", "body"),
             ({"body": {"stream": True}}, "unsupported_parameter", "body.stream")]
    wrong = [x if isinstance(x, str) else {**line(3 * i + 49), **x} for i, (x, _, _) in enumerate(cases)]
    with Folder() as d, d.serve("--max-body-bytes", "4096") as s:
        c = sdk(s)
        b = end(c, begin(c, [line(1), {**line(2), "custom_id": "line-0"}, "\n"] + wrong +
                         [line(9, padding="x" * 5000)]))
        assert b.status == "failed" and b.failed_at and b.output_file_id is None, b
        got = [(e.code, e.param, e.line) for e in b.errors.data]
        want = [(code, param, 4 + i) for i, (_, code, param) in enumerate(cases)]
        want.append(("line_too_long", None, 12))
        assert got == want, got
        b = end(c, begin(c, [" \n"]))
        assert [e.code for e in b.errors.data] == ["empty_file"], b
        b = end(c, begin(c, [{**line(1), "custom_id": "x" + 60 * "ä"}] * 2))
        assert [e.code for e in b.errors.data] == ["duplicate_custom_id"], b
        # What only the model can tell is an error of that line.
        lines = [line(1), line(2, temperature="hot"), line(4)]
        lines[2]["body"]["model"] = "other"
        b = end(c, begin(c, lines))
        assert b.status == "completed", b
        assert (b.request_counts.completed, b.request_counts.failed) == (1, 2), b
        wrong = {r["custom_id"]: r["response"] for r in records(c, b.error_file_id)}
        assert {k: v["status_code"] for k, v in wrong.items()} == {"line-2": 400, "line-4": 404}, wrong
        assert wrong["line-2"]["body"]["error"]["param"] == "temperature", wrong


def test_cancel():
    with Folder() as d, d.serve() as s:
        c = sdk(s)
        b = begin(c, [line(i, max_tokens=2000, ignore_eos=True) for i in range(40)])
        wait_until(lambda: c.batches.retrieve(b.id).status == "in_progress")
        check_error(lambda: c.files.delete(b.input_file_id), 409)
        assert c.batches.cancel(b.id).status == "cancelling"
        b = end(c, b, 20)
        assert b.status == "cancelled" and b.cancelled_at and b.cancelling_at, b
        assert b.request_counts.completed == 0 and b.output_file_id is None, b
        wait_until(lambda: s.held()[1:] == (0, 0))
        check_error(lambda: c.batches.cancel(b.id), 409)


def test_owners_and_quota():
    with Folder() as d, tempfile.NamedTemporaryFile("w") as keys:
        keys.write("key-a\nkey-b\n")
        keys.flush()
        with d.serve("--api-key-file", keys.name, "--data-quota", "300000") as s:
            a, b, nobody = sdk(s, "key-a"), sdk(s, "key-b"), sdk(s, "key-c")
            lines = [line(i) for i in range(3)]
            mine = end(a, begin(a, lines))
            same_as_alone(s, lines, records(a, mine.output_file_id), {"Authorization": "Bearer key-a"})
            assert list(b.files.list()) == list(b.batches.list()) == []
            for call in (lambda: b.files.retrieve(mine.input_file_id),
                         lambda: b.files.delete(mine.input_file_id),
                         lambda: b.files.content(mine.output_file_id),
                         lambda: b.batches.retrieve(mine.id),
                         lambda: b.batches.cancel(mine.id),
                         lambda: b.batches.create(input_file_id=mine.input_file_id, endpoint=CHAT,
                                                  completion_window="24h")):
                check_error(call, 404)
            check_error(lambda: nobody.files.list(), 401)
            kept = len(os.listdir(d.path))
            large = ("x", b"x" * 300000)
            check_error(lambda: a.files.create(file=large, purpose="batch"), 400, "quota_exceeded")
            wait_until(lambda: len(os.listdir(d.path)) == kept)
            b.files.create(file=("x", b"x" * 290000), purpose="vision")  # it has a quota of its own
            own = {"Authorization": "Bearer key-a"}
            for name in ("../batch_x", "..%2f..%2fetc%2fpasswd", mine.id, "file-" + "0" * 500, "%00", "."):
                for path in (name, name + "/content"):
                    status = s.request("GET", "/v1/files/" + path, headers=own)[0]
                    assert status == 404, (path, status)
            command = [args.binary, "serve", "--model", DEMO, "--port", "0", "--data-dir", d.path]
            second = subprocess.run(command, capture_output=True, text=True, timeout=20)
            assert second.returncode == 2 and "another server uses it" in second.stderr, second
            assert all(os.stat(os.path.join(d.path, n)).st_mode & 0o77 == 0 for n in os.listdir(d.path))


def test_wrong_forms():
    with Folder() as d, d.serve() as s:
        form = "multipart/form-data; boundary=xx"
        cases = [(form, form_of(purpose="batch", file="a"), 200),
                 (form, form_of(file="a", purpose="batch"), 200),
                 (form, form_of(purpose="batch"), 400), (form, form_of(file="a"), 400),
                 (form, form_of(purpose="other", file="a"), 400),
                 (form, form_of(purpose="b" * 100, file="a"), 400),
                 (form, form_of(purpose="batch", file="a")[:-20], 400), (form, b"", 400),
                 (form, form_of(purpose="batch", file="a", **{"expires_after[seconds]": "3600"}), 400),
                 (form, form_of(purpose="batch", file=b"a", **{"expires_after[anchor]": "created_at",
                                                              "expires_after[seconds]": "1"}), 400),
                 ("application/json", b"{}", 415), ("multipart/form-data", b"{}", 415)]
        for kind, body, want in cases:
            status, _, data = s.request("POST", "/v1/files", body, {"Content-Type": kind})
            assert status == want, (body, status, data)
            assert ("id" if want == 200 else "error") in json.loads(data), data
        for name in os.listdir(d.path):
            assert re.fullmatch(r"file-[0-9a-f]{32}(\.json)?", name), name
        c = sdk(s)
        f = c.files.list().data[0]
        assert f.filename == "../../etc/x", f
        big = os.urandom(5 << 20)
        assert c.files.content(c.files.create(file=("b", big), purpose="user_data").id).read() == big
        good = {"input_file_id": f.id, "endpoint": CHAT, "completion_window": "24h"}
        for field, value in (("input_file_id", None), ("input_file_id", 5), ("endpoint", "/v1/x"),
                             ("endpoint", None), ("completion_window", "1h"), ("metadata", {"a": 1}),
                             ("output_expires_after", {"anchor": "created_at", "seconds": 5})):
            body = {**good, field: value}
            status, answer = s.post("/v1/batches", body)
            assert status == 400 and answer["error"]["message"], (body, answer)
        for query in ("limit=0", "limit=x", "order=up", "after=none"):
            assert s.request("GET", "/v1/files?" + query)[0] == 400, query
    with serving() as s:
        for path in ("/v1/files", "/v1/batches"):
            status, answer = s.post(path, {})
            assert status == 501 and "--data-dir" in answer["error"]["message"], answer


def test_live_requests_go_first():
    """A full queue of lines refuses nobody, and the lines end all the same."""
    with Folder() as d, d.serve("--max-queue", "1", "--max-sequences", "2") as s:
        c = sdk(s)
        b = begin(c, [line(i, max_tokens=300, ignore_eos=True) for i in range(60)])
        wait_until(lambda: s.held()[1] == 2, step=0.002)
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20}
        for _ in range(10):
            s.ok(CHAT, body)
        assert end(c, b).request_counts.completed == 60
        long = {**body, "max_tokens": 1000, "ignore_eos": True}  # and then the limit holds again
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            assert 429 in [x[0] for x in pool.map(lambda _: s.post(CHAT, long), range(16))]


def test_models():
    """Lines for several models behind one port."""
    with Folder() as d:
        golden = os.path.join(ROOT, "tests/golden/gemma3/vision_f32")
        command = [args.binary, "serve", "demo=" + DEMO, "other=" + golden, "--port", "0"]
        s = Server.__new__(Server)
        command += ["--log-level", "warn", "--data-dir", d.path]
        s.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        s.host = "127.0.0.1"
        s.wait_ready()
        lines = [line(i) for i in range(1, 20)]
        for x in lines[::2]:
            x["body"]["model"] = "other"
        c = sdk(s)
        same_as_alone(s, lines, records(c, end(c, begin(c, lines)).output_file_id))
        s.stop()


def test_run_batch():
    with tempfile.TemporaryDirectory() as d:
        into, out = os.path.join(d, "in.jsonl"), os.path.join(d, "out.jsonl")
        command = [args.binary, "run-batch", "-i", into, "-o", out, "--model", DEMO]
        lines = [line(i, max_tokens=30) for i in range(200)] + [line(1000, "/v1/embeddings", input="x")]

        def write(rows):
            with open(into, "wb") as f:
                f.write(jsonl(rows))

        def run():
            return subprocess.run(command, capture_output=True, text=True, timeout=60)
        write(lines)
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        wait_until(lambda: os.path.exists(out + ".part") and os.path.getsize(out + ".part") > 2000, 60, 0.002)
        process.kill()
        process.wait()
        part = open(out + ".part", "rb").read()
        assert not os.path.exists(out)
        done = run()
        assert done.returncode == 0 and "has" in done.stderr, done
        got = open(out, "rb").read()
        assert got.startswith(part[:part.rfind(b"\n") + 1])  # it went on
        with serving() as s:
            same_as_alone(s, lines, [json.loads(x) for x in got.splitlines()])
        write([line(1), line(2, temperature="hot")])
        assert run().returncode == 3 and len(open(out).readlines()) == 2
        write([line(1), line(1)])
        done = run()
        assert done.returncode == 2 and f"{into}:2: " in done.stderr, done
        assert subprocess.run([args.binary, "run-batch"], capture_output=True).returncode == 2
        write([line(i, max_tokens=4000, ignore_eos=True) for i in range(50)])
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130


for name, function in list(globals().items()):
    if name.startswith("test_") and (not args.only or name in args.only):
        began, failed = time.monotonic(), check.failed
        check.run(function)
        check.passed += check.failed == failed
        if args.only:
            print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
check.end()
