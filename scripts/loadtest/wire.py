"""HTTP/1.1 with event streams on asyncio, made for exact times at small cost: one protocol object for a connection, stamps from the selector."""
import array
import asyncio
import json
import selectors
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request


class Fault(Exception):
    """Something that ends the whole run; its text is for the user."""


class StampedSelector(selectors.DefaultSelector):
    """Notes when the wait for events ended, and the longest time that the loop was away between two waits."""

    def __init__(self):
        super().__init__()
        self.inbox = memoryview(bytearray(1 << 16))  # what a socket holds is read into this and copied at once
        self.restart()

    def select(self, timeout=None):
        self.longest = max(self.longest, time.perf_counter() - self.now)
        ready = super().select(timeout)
        self.now = time.perf_counter()
        return ready

    def restart(self):
        self.now = self.begun = time.perf_counter()
        self.cpu, self.longest = time.process_time(), 0.0

    def figures(self):
        wall = max(1e-9, time.perf_counter() - self.begun)
        return {"busy_share": (time.process_time() - self.cpu) / wall, "longest_busy_ms": self.longest * 1000}


class Target:
    """Where the server is, and plain requests to it before the run."""

    def __init__(self, url, key):
        parts = urllib.parse.urlsplit(url if "//" in url else "http://" + url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Fault(f"--url {url}: not an http or https address")
        self.host, self.secure, self.key = parts.hostname, parts.scheme == "https", key
        try:
            self.port = parts.port or (443 if self.secure else 80)
        except ValueError as fault:
            raise Fault(f"--url {url}: {fault}") from None
        path = parts.path.rstrip("/")
        self.base = path if path.endswith("/v1") else path + "/v1"
        self.at = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        self.root = f"{parts.scheme}://{self.at}"

    def head(self, path, length):
        key = f"Authorization: Bearer {self.key}\r\n" if self.key else ""
        return (f"POST {self.base}{path} HTTP/1.1\r\nHost: {self.at}\r\nContent-Type: application/json\r\nAccept: text/event-stream\r\n"
                f"{key}Content-Length: {length}\r\n\r\n").encode()

    def json(self, path, body=None, below_v1=True):
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {self.key}"} if self.key else {})}
        url = self.root + (self.base if below_v1 else self.base[:-3]) + path
        request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(request, timeout=30) as answer:
                return json.load(answer)
        except (OSError, ValueError) as fault:
            raise Fault(f"{url}: {getattr(fault, 'reason', None) or fault}") from None

    def first_model(self):
        try:
            return self.json("/models")["data"][0]["id"]
        except (KeyError, IndexError, TypeError):
            raise Fault(f"{self.root}{self.base}/models names no model; give --model") from None


class Answer:
    """What came back for one request. Times are perf_counter seconds; stamps: one per event that carried a token."""

    def __init__(self):
        self.status = self.finish = self.usage = self.error = self.done = None
        self.message, self.text, self.token_ids, self.stamps = "", [], [], array.array("d")
        self.tail, self.data, self.plain = b"", [], b""
        self.future = asyncio.get_running_loop().create_future()
        self.untouched = True  # no byte came yet
        self.delays = None  # --calibrate: list of (stamp here - stamp of the server)

    def fail(self, kind, message=""):
        if not self.error:
            self.error, self.message = kind, message[:500]

    def feed(self, data, now):
        if self.status != 200:
            self.plain = (self.plain + data)[:65536]
            return
        *lines, self.tail = (self.tail + data).split(b"\n")
        for line in lines:
            if line.endswith(b"\r"):
                line = line[:-1]
            if line.startswith(b"data:"):
                self.data.append(line[5:])
            elif not line and self.data:
                event, self.data = self.data[0] if len(self.data) == 1 else b"\n".join(self.data), []
                try:
                    self.event(event, now)
                except (ValueError, TypeError, AttributeError, KeyError):
                    self.fail("malformed event", event[:200].decode("utf-8", "replace"))

    def event(self, event, now):
        if event == b" [DONE]" or event.strip() == b"[DONE]":
            self.done = now
            return
        chunk = json.loads(event.decode())  # bytes would have their encoding detected
        if chunk.get("error"):
            error = chunk["error"]
            self.fail(f"in the stream: {error.get('code') or error.get('type') or 'error'}", str(error.get("message", "")))
            return
        if self.delays is not None and "sent" in chunk:
            self.delays.append(now - chunk["sent"])
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk.get("choices") or ():
            finish, delta = choice.get("finish_reason"), choice.get("delta")
            if delta is None:
                text = choice.get("text")
                token = bool(text) or (text is not None and not finish)
            else:  # a role chunk is no token; a chunk with empty text may be one (part of a character, a skipped control token)
                text = delta.get("content")
                token = bool(text or delta.get("reasoning_content") or delta.get("reasoning") or delta.get("tool_calls")) or (
                    text is not None and "role" not in delta and not finish)
            if token:
                self.stamps.append(now)
                self.text.append(text or "")
            if choice.get("token_ids"):
                self.token_ids += choice["token_ids"]
            if finish:
                self.finish = finish
                if not self.stamps:
                    self.stamps.append(now)  # an answer without any text: its end is the first thing that can be seen

    def close(self, whole):
        """The HTTP answer ended, as announced or not."""
        if self.status != 200:
            self.fail(f"HTTP {self.status}" if self.status else "connection closed before an answer")
            try:
                error = json.loads(self.plain)["error"]
                self.error, self.message = f"HTTP {self.status} {error.get('code') or error.get('type')}", str(error.get("message"))[:500]
            except (ValueError, KeyError, TypeError, AttributeError):
                self.message = self.message or self.plain[:200].decode("utf-8", "replace")
        elif not whole:
            self.fail("stream cut off")
        elif self.done is None:
            self.fail("stream without [DONE]")
        elif not self.stamps:
            self.fail("stream without a token")
        if not self.future.done():
            self.future.set_result(None)


class Link(asyncio.BufferedProtocol):
    """One connection, one request at a time. Reads heads, and bodies of every framing HTTP/1.1 has."""

    def __init__(self, clock):
        self.clock, self.buffer, self.answer, self.open = clock, bytearray(), None, True
        self.step, self.left, self.keep = self.read_head, 0, True

    def connection_made(self, transport):
        self.transport = transport

    def send(self, data, answer):
        self.answer, self.step = answer, self.read_head
        self.transport.write(data)

    def get_buffer(self, hint):
        return self.clock.inbox

    def buffer_updated(self, count):
        if not self.answer:  # nobody asked: not a connection to go on with
            self.open = False
            self.transport.abort()
            return
        data = bytes(self.clock.inbox[:count])
        self.answer.untouched = False
        self.buffer += self.whole_chunks(data) if self.step == self.read_size and not self.buffer else data
        try:
            while self.answer and self.step():
                pass
        except ValueError as fault:
            self.answer.fail("malformed HTTP", str(fault))
            self.end(False)

    def connection_lost(self, fault):
        self.open = False
        if self.answer:
            self.end(self.step == self.read_rest and not fault)

    def end(self, whole):
        answer, self.answer = self.answer, None
        if not whole or not self.keep or self.buffer:
            self.open = False
            self.transport.abort()
        answer.close(whole)

    def line(self):
        end = self.buffer.find(b"\r\n")
        if end < 0:
            if len(self.buffer) > 65536:
                raise ValueError("a line beyond 64 KiB")
            return None
        line = bytes(self.buffer[:end])
        del self.buffer[:end + 2]
        return line

    def read_head(self):
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self.buffer) > 65536:
                raise ValueError("a head beyond 64 KiB")
            return False
        first, *lines = bytes(self.buffer[:end]).decode("latin-1").split("\r\n")
        del self.buffer[:end + 4]
        version, status = (first.split(" ") + ["", ""])[:2]
        if not version.startswith("HTTP/1.") or not status.isdigit():
            raise ValueError(f"not an HTTP answer: {first[:80]}")
        if status.startswith("1"):
            return True  # 100 Continue and the like: another head follows
        fields = {k.strip().lower(): v.strip() for k, _, v in (x.partition(":") for x in lines)}
        self.answer.status = int(status)
        self.keep = version == "HTTP/1.1" and fields.get("connection", "").lower() != "close"
        if "chunked" in fields.get("transfer-encoding", "").lower():
            self.step = self.read_size
        elif "content-length" in fields:
            self.left = self.length(fields["content-length"], 10)
            self.step = self.read_counted
        else:
            self.keep, self.step = False, self.read_rest
        return True

    def length(self, text, base):
        value = int(text, base)
        if value < 0:
            raise ValueError(f"a length of {text}")
        return value

    def take(self, count):
        piece = bytes(self.buffer[:count])
        del self.buffer[:count]
        self.answer.feed(piece, self.clock.now)
        return len(piece)

    def read_counted(self):
        self.left -= self.take(self.left)
        if self.left == 0:
            self.end(True)
        return False

    def read_rest(self):
        self.take(len(self.buffer))
        return False

    def read_size(self):
        line = self.line()
        if line is None:
            return False
        self.left = self.length(line.split(b";")[0].decode("latin-1"), 16)
        self.step = self.read_chunk if self.left else self.read_trailer
        return True

    def whole_chunks(self, data):
        """The usual case in one go: chunks that came in one piece. -> what is left of the data"""
        at = 0
        while True:
            end = data.find(b"\r\n", at, at + 12)
            try:
                stop = end + 2 + int(data[at:end], 16)
            except ValueError:
                break
            if end < 0 or stop <= end + 2 or data[stop:stop + 2] != b"\r\n":
                break
            self.answer.feed(data[end + 2:stop], self.clock.now)
            at = stop + 2
        return data[at:]

    def read_chunk(self):
        if self.left:
            self.left -= self.take(self.left)
        if self.left or len(self.buffer) < 2:
            return False
        if self.buffer[:2] != b"\r\n":
            raise ValueError("a chunk without its end of line")
        del self.buffer[:2]
        self.step = self.read_size
        return True

    def read_trailer(self):
        line = self.line()
        if line == b"":
            self.end(True)
        return bool(line)


class Client:
    """Requests over kept connections, as many as are needed at once."""

    def __init__(self, target, clock, timeout):
        self.target, self.clock, self.timeout, self.idle, self.opened = target, clock, timeout, [], 0
        self.tls = ssl.create_default_context() if target.secure else None

    async def link(self):
        while self.idle:
            link = self.idle.pop()
            if link.open:
                return link, True
        self.opened += 1
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(lambda: Link(self.clock), self.target.host, self.target.port, ssl=self.tls))[1], False

    async def post(self, path, body, answer):
        """Fills the answer; never raises but for cancellation."""
        data, link = self.target.head(path, len(body)) + body, None
        try:
            async with asyncio.timeout(self.timeout):
                while True:
                    link, used = await self.link()
                    link.send(data, answer)
                    await answer.future
                    if answer.error and used and answer.untouched:  # a kept connection that the server had closed meanwhile: again
                        answer.error, answer.message, answer.future = None, "", asyncio.get_running_loop().create_future()
                        continue
                    break
        except TimeoutError:
            answer.fail("timeout")
        except OSError as fault:
            answer.fail(f"connection: {fault.strerror or type(fault).__name__}", str(fault))
        finally:
            if link and link.answer:  # left before its end: the server must see that
                link.answer, link.open = None, False
                link.transport.abort()
        if link and link.open:
            self.idle.append(link)

    def close(self):
        for link in self.idle:
            link.transport.close()
