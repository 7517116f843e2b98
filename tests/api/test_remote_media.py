"""Images from http(s) and file: URLs: python3 test_remote_media.py [--binary B] [test ...]
Output equals that of data: URIs, bit for bit; what must not be fetched is not; hosts that are slow, endless
or wrong cost their own request alone, which ends in time with one clear error."""

import gzip
import json
import os
import socket
import sys
import tempfile
import threading
import time
import urllib.parse

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Checks, Server, arguments, data_url, drawing, wait_until  # noqa: E402

check = Checks()
CHAT = "/v1/chat/completions"
WORDS = {"type": "text", "text": "what?"}
GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden")
PARAM = "messages[0].content[0].image_url.url"
PNG = drawing(3)


class Store:
    """A host of images that does as the path says; it is on all of 127.0.0.0/8."""

    def __init__(self):
        self.socket = socket.socket()
        self.socket.bind(("0.0.0.0", 0))
        self.socket.listen(128)
        self.port = self.socket.getsockname()[1]
        self.heads, self.waiting, self.left = [], 0, 0
        self.go_on = threading.Event()
        threading.Thread(target=self.accept, daemon=True).start()

    def url(self, path, host="127.0.0.1"):
        return f"http://{host}:{self.port}/{path}"

    def accept(self):
        while True:
            connection = self.socket.accept()[0]
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, c):
        head = b""
        try:
            while b"\r\n\r\n" not in head:
                piece = c.recv(65536)
                if not piece:
                    return
                head += piece
            self.heads.append(head.decode())
            target = head.split(b" ")[1].decode()
            path, _, query = target[1:].partition("?")
            getattr(self, path.split("/")[0].split(".")[0])(c, urllib.parse.unquote(query))
        except OSError:
            pass
        finally:
            c.close()

    def answer(self, c, body, *lines, status="200 OK", length=None):
        length = len(body) if length is None else length
        head = [f"HTTP/1.1 {status}", f"Content-Length: {length}", *lines]
        c.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + body)

    def good(self, c, query):
        self.answer(c, PNG, "Content-Type: text/plain", "Set-Cookie: a=b", 'Alt-Svc: h2="evil:443"')

    def numbered(self, c, query):
        self.answer(c, drawing(int(query)))

    def chunked(self, c, query):
        c.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for i in range(0, len(PNG), 100):
            c.sendall(b"%x\r\n%s\r\n" % (len(PNG[i : i + 100]), PNG[i : i + 100]))
        c.sendall(b"0\r\n\r\n")

    def closed(self, c, query):
        c.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + PNG)

    def to(self, c, query):
        self.answer(c, b"x" * 100, "Location: " + query, status="302 Found")

    def hops(self, c, query):
        n = int(query)
        where = f"/hops?{n - 1}" if n else "/good"
        self.answer(c, b"", "Location: " + where, status="301 Moved")

    def loop(self, c, query):
        self.answer(c, b"", "Location: /loop", status="307 Temporary")

    def slow(self, c, query):
        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        for _ in range(1000):
            c.sendall(b"x")
            time.sleep(0.05)

    def silent(self, c, query):
        self.waiting += 1
        if not c.recv(1):
            self.left += 1

    def blocked(self, c, query):
        self.waiting += 1
        self.go_on.wait()
        self.good(c, query)

    def endless(self, c, query):
        c.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            c.sendall(bytes(65536))

    def headers(self, c, query):
        c.sendall(b"HTTP/1.1 200 OK\r\n")
        while True:
            c.sendall(b"X-More: " + b"x" * 1000 + b"\r\n")

    def informed(self, c, query):
        while True:
            c.sendall(b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" * 100)

    def oneline(self, c, query):
        c.sendall(b"HTTP/1.1 200 OK\r\nX-More: ")
        while True:
            c.sendall(b"x" * 65536)

    def huge(self, c, query):
        self.answer(c, b"x", length=10**15)

    def negative(self, c, query):
        self.answer(c, PNG, length=-5)

    def short(self, c, query):
        self.answer(c, PNG, length=len(PNG) + 100)

    def zipped(self, c, query):
        self.answer(c, gzip.compress(PNG), "Content-Encoding: gzip")

    def zipbomb(self, c, query):
        c.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n")
        data = gzip.compress(bytes(50 << 20))
        c.sendall(b"%x\r\n" % len(data) + data + b"\r\n0\r\n\r\n")

    def text(self, c, query):
        self.answer(c, b"<html>secret of the store</html>", "Content-Type: image/png")

    def none(self, c, query):
        self.answer(c, PNG + b"secret", status="404 secret")

    def part(self, c, query):
        self.answer(c, PNG, status="206 Partial Content")

    def empty(self, c, query):
        self.answer(c, b"")

    def cut(self, c, query):
        self.answer(c, PNG[:-20])

    def nothing(self, c, query):
        pass

    def garbage(self, c, query):
        c.sendall(b"\x89PNG" * 1000)


def image(url):
    return {"type": "image_url", "image_url": {"url": url}}


def body(*urls, **fields):
    return {"messages": [{"role": "user", "content": [*map(image, urls), WORDS]}], "max_tokens": 5,
            "temperature": 0, "logprobs": True, "top_logprobs": 3, "return_token_ids": True, **fields}


def video(url):
    return {
        "messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": url}}, WORDS]}]
    }


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def start(hosts="127.0.0.1:*,localhost:*", private="127.0.0.0/8", *flags, model=None, **more):
    allow = ["--allow-remote-media", hosts, *(["--allow-private-media", private] if private else [])]
    return Server(args.binary, model or args.model, "--kv-memory", "64M", "--media-timeout", "600", *allow,
                  *flags, **more)


def refused(s, what, url, code, param=PARAM, request=None, contains=""):
    status, answer = s.post(CHAT, request or body(url))
    error = answer.get("error") or {}
    check.equal(f"{what}: refused", (status, error.get("code"), error.get("param")), (400, code, param))
    told = json.dumps(answer)
    check.true(
        f"{what}: nothing is told that the client didn't know", "secret" not in told and len(told) < 400, told
    )
    check.true(f"{what}: says why", contains in told, told)


def test_answers():
    store = Store()
    nowhere = "http://127.0.0.1:9"  # where no proxy is
    proxy = {"http_proxy": nowhere, "HTTP_PROXY": nowhere, "https_proxy": nowhere, "ALL_PROXY": nowhere,
             "all_proxy": nowhere}
    plain, s = Server(args.binary, args.model, "--kv-memory", "64M"), start(env=proxy)
    try:
        want = plain.ok(CHAT, body(data_url(PNG)))
        got, again = s.ok(CHAT, body(store.url("good"))), s.ok(CHAT, body(store.url("good")))
        check.equal("as its data: URI", (got["choices"], got["prompt_token_ids"]),
                    (want["choices"], want["prompt_token_ids"]))
        check.equal("again", again["choices"], want["choices"])
        check.equal("again: from the cache", cached(again), want["usage"]["prompt_tokens"] - 1)
        check.equal("and its data: URI too", cached(s.ok(CHAT, body(data_url(PNG)))), cached(again))
        for path in ("chunked", "closed", "hops?2", "to?" + store.url("good"),
                     "to?" + store.url("good", "localhost"), "to?//127.0.0.1:%d/good" % store.port,
                     "good?a=b%20c#fragment"):
            check.equal(path, s.ok(CHAT, body(store.url(path)))["choices"], want["choices"])
        for host in ("LOCALHOST", "2130706433", "0x7f.1", "0177.0.0.1"):
            check.equal(host, s.ok(CHAT, body(store.url("good", host)))["choices"], want["choices"])
        many = [store.url(f"numbered?{i}") for i in range(8)] + [store.url("good")] * 3 + [data_url(PNG)]
        same = [data_url(drawing(i)) for i in range(8)] + [data_url(PNG)] * 4
        before = len(store.heads)
        check.equal("many", s.ok(CHAT, body(*many))["choices"], plain.ok(CHAT, body(*same))["choices"])
        check.equal("the same URL once", len(store.heads) - before, 9)
        check.equal("tokenize",
                    s.ok("/tokenize", {"messages": body(store.url("good"))["messages"]})["tokens"],
                    plain.ok("/tokenize", {"messages": body(data_url(PNG))["messages"]})["tokens"])
        chunks = s.stream(CHAT, body(store.url("good")))
        text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
        check.equal("stream", text, want["choices"][0]["message"]["content"])
        first = store.heads[0]
        check.true(
            "head", first.startswith("GET /good HTTP/1.1\r\n") and "Accept: image/*\r\n" in first, first
        )
        check.true("no cookies", not any(x in h for h in store.heads for x in ("Cookie", "Authorization")))
    finally:
        plain.stop()
        s.stop()


def test_videos():
    """An animation, and a list of images from everywhere."""
    store = Store()
    with open(os.path.join(GOLDEN, "images/videos/delta.gif"), "rb") as f:
        store.numbered = lambda c, query: store.answer(c, gif if query == "gif" else drawing(int(query)))
        gif = f.read()
    images = [drawing(i) for i in range(4)]
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "0.png"), "wb") as f:
            f.write(images[0])
        s = start("127.0.0.1:*", "127.0.0.1", "--allowed-media-dir", folder, model=args.qwen)
        try:
            for name, one, other in (
                ("gif", store.url("numbered?gif"), data_url(gif)),
                (
                    "list",
                    [f"file://{folder}/0.png", store.url("numbered?1"), data_url(images[2]),
                     store.url("numbered?3")],
                    [data_url(p) for p in images],
                ),
            ):
                ask = [body(**video(url)) for url in (one, other)]
                got, want = s.ok(CHAT, ask[0]), s.ok(CHAT, ask[1])
                check.equal(name, got["choices"], want["choices"])
                check.equal(name + ": known", cached(want), want["usage"]["prompt_tokens"] - 1)
            param = "messages[0].content[0].video_url.url"
            refused(s, "not there", None, "failed_to_download_image", param, body(**video(store.url("none"))))
            refused(s, "no video", None, "unsupported_content_part", param, body(**video(store.url("text"))))
            refused(s, "too many", None, "invalid_value", param,
                    body(**video([store.url(f"numbered?{i}") for i in range(65)])))
        finally:
            s.stop()


def test_refused():
    """What must not be connected to is not, however it is written or reached."""
    store = Store()
    public = start("*:*", None)
    listed = start("127.0.0.2:*,*.example.org,pictures.example.com", "127.0.0.0/8")
    mixed = start("*:*", "127.0.0.2")  # of the loopback's addresses one
    hosts = ("127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0x7f.0.0.1", "localhost", "0",
             "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]",
             "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[fe80::1]", "10.0.0.1", "192.168.0.1", "100.64.0.1",
             "224.0.0.1", "169.254.169.254")
    urls = ["http://user@127.0.0.1/x", "http://user:pw@127.0.0.1/x", "http://", "http://a b/x",
            "http://a/\nx", "http://a\\@127.0.0.1/", "http://[::1", "http://[fe80::1%25lo]/", "http://a/\0x",
            "http://a:99999/", "http://ex%41mple.org%00/", "http://\u2460/", "ftp://127.0.0.1/x",
            "gopher://127.0.0.1/x", "http://a/" + "x" * 9000, "file:///etc/passwd", "dict://127.0.0.1/",
            "javascript:1", "https:x"]
    try:
        for h in hosts:
            refused(public, h, store.url("good", h), "invalid_image_url")
        for u in urls:
            refused(public, repr(u)[:60], u, "invalid_image_url")
        check.equal("nobody came", store.heads, [])
        for h in ("127.0.0.1", "localhost", "example.org", "notexample.org", "a.pictures.example.com"):
            refused(listed, "unlisted " + h, store.url("good", h), "invalid_image_url")
        for u in ("http://pictures.example.com:81/", "http://a.example.org:8080/"):
            refused(listed, "other port " + u, u, "invalid_image_url")
        check.equal("nobody came by other names", store.heads, [])
        check.true("the listed one", listed.ok(CHAT, body(store.url("good", "127.0.0.2"))))
        for h in ("127.0.0.1", "127.0.0.3", "169.254.169.254", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1",
                  "localhost", "[::1]"):
            to = store.url("good", h)
            refused(mixed, "redirect to " + h, store.url("to?" + to, "127.0.0.2"), "invalid_image_url")
        for to in ("file:///etc/passwd", "gopher://127.0.0.2/", "ftp://127.0.0.2/", "http://a@127.0.0.2/"):
            refused(mixed, "redirect to " + to, store.url("to?" + to, "127.0.0.2"), "invalid_image_url")
        refused(listed, "redirect to an unlisted host",
                store.url("to?" + store.url("good", "127.0.0.3"), "127.0.0.2"), "invalid_image_url")
        check.equal("nobody was sent on", [h for h in store.heads if "GET /good" in h][1:], [])
        off = Server(args.binary, args.model, "--kv-memory", "64M")
        refused(off, "off", store.url("good"), "invalid_image_url", contains="--allow-remote-media")
        refused(off, "off, file", "file:///etc/passwd", "invalid_image_url", contains="--allowed-media-dir")
        off.stop()
    finally:
        public.stop()
        listed.stop()
        mixed.stop()


def test_hostile():
    store = Store()
    s = start("*:*", "127.0.0.0/8", "--media-timeout", "5")
    cases = {"slow": "failed_to_download_image", "silent": "failed_to_download_image",
             "endless": "image_file_too_large", "headers": "failed_to_download_image",
             "informed": "failed_to_download_image", "oneline": "failed_to_download_image",
             "huge": "image_file_too_large", "negative": "failed_to_download_image",
             "short": "failed_to_download_image", "zipped": "failed_to_download_image",
             "zipbomb": "failed_to_download_image", "text": "unsupported_image_media_type",
             "none": "failed_to_download_image", "part": "failed_to_download_image",
             "empty": "empty_image_file", "cut": "image_parse_error", "nothing": "failed_to_download_image",
             "garbage": "failed_to_download_image", "loop": "failed_to_download_image",
             "hops?3": "failed_to_download_image", "to?": "invalid_image_url"}
    try:
        closed = socket.socket()
        closed.bind(("127.0.0.1", 0))
        refused(
            s, "nobody listens", f"http://127.0.0.1:{closed.getsockname()[1]}/", "failed_to_download_image"
        )
        refused(s, "no such name", "http://no-such-host.invalid:80/", "failed_to_download_image")
        refused(s, "no TLS", f"https://127.0.0.1:{store.port}/good", "failed_to_download_image")
        closed.close()
        for path, code in cases.items():
            begin = time.monotonic()
            refused(s, path, store.url(path), code)
            print(f"{path}: {time.monotonic() - begin:.1f} s")
        refused(s, "the second of two", None, "failed_to_download_image",
                "messages[0].content[1].image_url.url", body(store.url("good"), store.url("none")))
        refused(s, "one fails, one is silent", None, "failed_to_download_image",
                "messages[0].content[1].image_url.url", body(store.url("silent"), store.url("none")))
        check.true("it goes on", s.ok(CHAT, body(store.url("good"))))
        sums = s.sums("kvasir:urls_waiting", "kvasir:fetched_bytes_held", "kvasir:image_bytes")
        check.equal("nothing is kept", sums, (0, 0, 0))
        check.true("fetched", s.metric("kvasir:fetched_bytes_total") > len(PNG))
        check.true("failed", s.metric("kvasir:urls_failed_total") >= 20)
    finally:
        s.stop()


def test_others():
    """Hosts that do not answer stall nobody else; who leaves ends the fetch."""
    store = Store()
    s = start("*:*", "127.0.0.0/8", "--max-images", "64", "--drain-timeout", "1")
    got, ending = [], False
    try:
        want = s.ok(CHAT, body(data_url(PNG)))["choices"]
        threads = [
            threading.Thread(target=lambda: got.append(s.ok(CHAT, body(store.url("blocked")))["choices"]))
            for _ in range(24)
        ]
        for t in threads:
            t.start()
        check.true("as many as are fetched at once", wait_until(lambda: store.waiting == 16))
        check.equal("images", s.ok(CHAT, body(data_url(PNG)))["choices"], want)
        check.true("texts", s.ok("/v1/completions", {"prompt": "a", "max_tokens": 2}))
        check.equal("none is answered yet", got, [])
        store.go_on.set()
        for t in threads:
            t.join()
        check.equal("all are answered", got, [want] * 24)
        store.waiting = 0
        gone = []
        for _ in range(3):
            connection = s.connect()
            connection.request("POST", CHAT, json.dumps(body(*[store.url(f"silent?{i}") for i in range(6)])),
                               {"Content-Type": "application/json"})
            gone.append(connection)
        check.true("they are being fetched", wait_until(lambda: store.waiting == 12))
        for connection in gone:
            connection.close()
        check.true("ended when the client left", wait_until(lambda: store.left == 12, 60))
        connection = s.connect()
        connection.request(
            "POST", CHAT, json.dumps(body(store.url("silent"))), {"Content-Type": "application/json"}
        )
        check.true("one more", wait_until(lambda: store.waiting == 13))
        connection.close()
        check.true("nothing is kept",
                   wait_until(lambda: s.sums("kvasir:urls_waiting", "kvasir:fetched_bytes_held") == (0, 0)))
        many = body(*[store.url(f"silent?{i}") for i in range(64)])
        crowd = [s.connect() for _ in range(16)]
        for connection in crowd:
            connection.request("POST", CHAT, json.dumps(many), {"Content-Type": "application/json"})
        check.true("as many as may wait", wait_until(lambda: s.metric("kvasir:urls_waiting") == 1024))
        status, head, data = s.request("POST", CHAT, body(store.url("good")))
        check.equal("one too many", (status, head.get("retry-after"), json.loads(data)["error"]["code"]),
                    (429, "1", "rate_limit_exceeded"))
        check.equal("images in the request", s.ok(CHAT, body(data_url(PNG)))["choices"], want)
        for connection in crowd:
            connection.close()
        check.true("all have left", wait_until(lambda: s.metric("kvasir:urls_waiting") == 0))
        check.true("then it goes on", s.ok(CHAT, body(store.url("good"))))
        store.waiting = 0
        connection = s.connect()
        connection.request(
            "POST", CHAT, json.dumps(body(store.url("silent"))), {"Content-Type": "application/json"}
        )
        check.true("the last one", wait_until(lambda: store.waiting == 1))
        ending = True
        s.process.terminate()
        answer = connection.getresponse()
        code = json.loads(answer.read())["error"]["code"]
        check.equal("a fetch does not hold up the end", (answer.status, code), (503, "server_draining"))
        check.true("and ends with it", wait_until(lambda: store.left >= 13))
    finally:
        s.stop(send=not ending)


def test_read_once():
    """The request is read before the fetch, and not again after it: what it follows upon may go meanwhile."""
    store = Store()
    s = start("*:*", "127.0.0.0/8")
    got = []
    try:
        ask = {"max_output_tokens": 4, "temperature": 0, "store": True}
        first = s.ok("/v1/responses", {**ask, "input": "one"})["id"]

        def shown(answer):
            return [[item.get("content") for item in answer["output"]], answer["usage"]["input_tokens"]]

        def follow(url):
            parts = [{"type": "input_text", "text": "and?"}, {"type": "input_image", "image_url": url}]
            turn = {**ask, "previous_response_id": first, "input": [{"role": "user", "content": parts}]}
            return s.request("POST", "/v1/responses", turn)

        status, _, data = follow(data_url(PNG))
        want = shown(json.loads(data))
        t = threading.Thread(target=lambda: got.append(follow(store.url("blocked"))))
        t.start()
        check.true("it is being fetched", wait_until(lambda: store.waiting == 1))
        s.request("DELETE", "/v1/responses/" + first)
        store.go_on.set()
        t.join()
        status, _, data = got[0]
        check.equal("answered", status, 200)
        if status == 200:
            check.equal("the same", shown(json.loads(data)), want)
        status, _, data = follow(data_url(PNG))
        check.equal("gone now", json.loads(data)["error"]["code"], "previous_response_not_found")
    finally:
        s.stop()


def test_files():
    with tempfile.TemporaryDirectory() as root:
        folder = os.path.join(root, "images")
        os.makedirs(os.path.join(folder, "a b"))
        for path, data in (("good.png", PNG), ("a b/\u00fc.png", PNG), ("empty.png", b""),
                           ("text.png", b"secret"), ("../secret.png", PNG)):
            with open(os.path.join(folder, path), "wb") as f:
                f.write(data)
        os.symlink("good.png", os.path.join(folder, "inside.png"))
        os.symlink("../secret.png", os.path.join(folder, "outside.png"))
        os.symlink("/etc", os.path.join(folder, "etc"))
        os.mkfifo(os.path.join(folder, "fifo"))
        with open(os.path.join(folder, "large"), "wb") as f:
            f.truncate(21 << 20)
        s = Server(args.binary, args.model, "--kv-memory", "64M", "--allowed-media-dir", folder + "/")
        try:
            want = s.ok(CHAT, body(data_url(PNG)))["choices"]
            for path in ("good.png", "a%20b/%C3%BC.png", "inside.png", "a b/../good.png", "/good.png"):
                for host in ("", "localhost"):
                    check.equal(path, s.ok(CHAT, body(f"file://{host}{folder}/{path}"))["choices"], want)
            for path in ("none.png", "outside.png", "etc/hostname", "fifo", "a b", "../secret.png",
                         "%2e%2e/secret.png"):
                refused(s, path, f"file://{folder}/{path}", "image_file_not_found")
            refused(s, "empty", f"file://{folder}/empty.png", "empty_image_file")
            refused(s, "text", f"file://{folder}/text.png", "unsupported_image_media_type")
            refused(s, "large", f"file://{folder}/large", "image_file_too_large")
            for url in ("file:///etc/passwd", f"file://{root}/secret.png", f"file://{folder}",
                        f"file://{folder}/", f"file://{folder}x/good.png", f"file://evil{folder}/good.png",
                        f"file:{folder}/good.png", f"file://{folder}/good.png%00",
                        f"file://{folder}/good.png%0", "file://", "file:", f"file://{folder}/" + "x" * 5000,
                        f"file://{folder}/a\0"):
                refused(s, url[:70], url, "invalid_image_url")
        finally:
            s.stop()


def test_flags():
    for flags in (["--allow-remote-media", "a,,b"], ["--allow-remote-media", "http://a"],
                  ["--allow-remote-media", "a:0"],
                  ["--allow-remote-media", "a", "--allow-private-media", "10.0.0.0/33"],
                  ["--allow-remote-media", "a", "--allow-private-media", "x"],
                  ["--allow-private-media", "10.0.0.0/8"], ["--allowed-media-dir", "/no/such"]):
        with tempfile.TemporaryFile("w+") as log:
            s = Server(args.binary, args.model, *flags, wait=False, log=log)
            code = s.process.wait(60)
            s.process.stdout.close()
            log.seek(0)
            check.true(f"{flags}: does not start", code == 2 and "media" in log.read(), code)


args = arguments(__doc__, qwen=os.path.join(GOLDEN, "qwen/qwen2_5_vl_f32"))
for test in (test_answers, test_videos, test_refused, test_hostile, test_others, test_read_once, test_files,
             test_flags):
    if not args.only or test.__name__ in args.only:
        check.run(test)
check.end()
