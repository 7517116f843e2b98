"""Malformed and ambiguous requests, as bytes on the wire: the table of test_proxies.py and scripts/attack.py.

An entry is one outer request, which says what it is by X-Request-Id (`o-TAG`). In its body many hide an
inner one, whole and well-formed (`smuggled-TAG`): who takes the body for shorter than it is answers it.
After the outer request comes the marker (`marker-TAG`). TAG is in the table as six @; render() puts in
six characters of the caller's, so no length changes.

`reading` says what a strict server makes of the bytes (RFC 9112), and so which answers may come, in order:
    one     a whole request; the marker's response comes after its response
    two     a whole request, then the inner one as a request of its own, then the marker
    last    a whole request after which the connection ends; the marker is not read
    ends    a response, good or bad, and the connection ends (Transfer-Encoding in HTTP/1.0 counts as faulty)
    refuse  an error response, and the connection ends
    either  the RFC leaves it to the server: as `one`, or one answer and the end
    broken  the head is well, the body's framing is not: an error answer or none, and the connection ends
    waits   the body goes on behind all that is sent: at most an error answer
`named` ones must be answered 400 with `Connection: close` and a JSON error. `inner` is "agreed" where a proxy
may read the bytes so that the inner request stands alone (Transfer-Encoding over Content-Length, a header
that is dropped): then proxy and server must both see it so; else it is "never"."""

import dataclasses

TAG = b"@@@@@@"
INNER = b"GET /v1/models HTTP/1.1\r\nHost: t\r\nX-Request-Id: smuggled-" + TAG + b"\r\n\r\n"
MARKER = (
    b"GET /version?marker="
    + TAG
    + b" HTTP/1.1\r\nHost: t\r\nX-Request-Id: marker-"
    + TAG
    + b"\r\nConnection: close\r\n\r\n"
)
ID = b"X-Request-Id: o-" + TAG
HOST = b"Host: t"
LINE = b"POST /ping HTTP/1.1"
SIZE = b"%d" % len(INNER)
LENGTH = b"Content-Length: " + SIZE
CODING = b"Transfer-Encoding: chunked"
CHUNKED = b"%x\r\n" % len(INNER) + INNER + b"\r\n0\r\n\r\n"  # the inner request is data
ENDED = b"0\r\n\r\n" + INNER  # the inner request stands behind the last chunk
REFUSED = frozenset({400, 405, 411, 413, 414, 417, 421, 426, 431, 501, 505})


@dataclasses.dataclass(frozen=True)
class Entry:
    name: str
    data: bytes
    reading: str
    expect: frozenset = frozenset()  # statuses of the first answer, asked directly; default: by reading
    named: bool = False
    inner: str = "never"

    @property
    def group(self):
        return self.name.split(":")[0]

    def head_only(self):
        """Its answer has no body."""
        return self.data.startswith(b"HEAD ")


def render(data, tag):
    """The bytes with a caller's own ids. tag: six ASCII letters, digits or hyphens."""
    assert len(tag) == len(TAG), tag
    return data.replace(TAG, tag.encode())


def request(*lines, line=LINE, body=b"", end=b"\r\n", host=True, name=True):
    """Request line, Host, id, then the given header lines."""
    return end.join([line] + [HOST] * host + [ID] * name + list(lines) + [b"", b""]) + body


def show(data, most=28):
    """A name for bytes."""
    text = data.decode("latin-1").encode("unicode_escape").decode("ascii")
    return text if len(text) <= most else f"{text[:most - 9]}..({len(data)})"


def corpus():
    """-> list of Entry, names unlike each other."""
    out = []

    def add(group, name, data, reading, expect=(), named=False, inner="never"):
        out.append(Entry(f"{group}: {name}", data, reading, frozenset(expect), named, inner))

    lengths(add)
    codings(add)
    both(add)
    line_ends(add)
    chunks(add)
    trailers(add)
    targets(add)
    methods(add)
    versions(add)
    names_and_values(add)
    hosts(add)
    hop_by_hop(add)
    surroundings(add)
    names = [e.name for e in out]
    assert len(set(names)) == len(names), [n for n in names if names.count(n) > 1]
    return out


def lengths(add):
    n = len(INNER)

    def one(value, reading, named=False, name=None):
        add("length", name or repr(show(value)), request(b"Content-Length:" + value, body=INNER), reading,
            named=named)

    for value in (b" " + SIZE, SIZE, b"\t" + SIZE, b" 0" + SIZE):
        one(value, "one")
    for value in (b"  " + SIZE + b"  ", b" " + SIZE + b"\t"):
        one(value, "either")
    for value in (b" -1", b" +5"):
        one(value, "refuse", named=True)
    one(b" 5, 6", "refuse", named=True)
    one(b" " + SIZE + b", 0", "refuse", named=True)
    one(b" 0, " + SIZE, "refuse", named=True)
    one(b" " + SIZE + b"," + b"%d" % (n + 1), "refuse", named=True)
    for value in (b" -" + SIZE, b" +" + SIZE, b" -0", b"", b" ", b" ,", b" " + SIZE + b",", b" ," + SIZE,
                  b" 0x" + b"%x" % n, b" " + SIZE + b".0", b" 1e2", b" " + SIZE + b";", b' "' + SIZE + b'"',
                  b" " + SIZE + b" x", b" 6 5", b" 6_5", b" " + SIZE + b"\0", b" \0" + SIZE,
                  b" " + SIZE + b"\x0b", b" \x0c" + SIZE, b" \xb2", b" \xef\xbc\x95", b" x", b" None",
                  b" " + SIZE + b"\r", b" 18446744073709551" + b"%d" % (616 + n), b" 99999999999999999999",
                  b" " + b"9" * 30, b" -18446744073709551551"):
        one(value, "refuse")
    # HAProxy 2.6 takes 2^64 for 0, and the inner request for one of its own.
    add("length", "2^64", request(b"Content-Length: 18446744073709551616", body=INNER), "refuse",
        inner="agreed")
    one(b" " + b"0" * 40 + SIZE, "either")
    for value in (b" 4294967296", b" 9223372036854775807", b" 1099511627776"):
        one(value, "waits")
    one(b" " + SIZE + b", " + SIZE, "either")
    for name, lines, reading in (
        ("twice, equal", [LENGTH, LENGTH], "either"),
        ("twice, 0 first", [b"Content-Length: 0", LENGTH], "refuse"),
        ("twice, 0 last", [LENGTH, b"Content-Length: 0"], "refuse"),
        ("twice, other case", [LENGTH, b"content-length: 0"], "refuse"),
        ("three times, the last unlike", [LENGTH, LENGTH, b"CONTENT-LENGTH: 1"], "refuse"),
        ("twice, equal numbers written unlike", [LENGTH, b"Content-Length: 0" + SIZE], "either"),
        ("twice, far apart", [LENGTH] + [b"X-%d: y" % i for i in range(40)] + [b"Content-Length: 2"],
         "refuse"),
        ("twice, one empty", [LENGTH, b"Content-Length:"], "refuse"),
        ("space before the colon", [b"Content-Length : " + SIZE], "refuse"),
        ("tab before the colon", [b"Content-Length\t: " + SIZE], "refuse"),
        ("space before the colon, beside a good one", [LENGTH, b"Content-Length : 0"], "refuse"),
        ("line feed before the colon", [b"Content-Length\n: " + SIZE], "refuse"),
        ("NUL in the name", [b"Content-Length\0: " + SIZE], "refuse"),
        ("NUL before the name", [b"\0Content-Length: " + SIZE], "refuse"),
        ("without a colon", [b"Content-Length " + SIZE], "refuse"),
        ("with = for the colon", [b"Content-Length= " + SIZE], "refuse"),
        ("underscore, beside a good one", [LENGTH, b"Content_Length: 0"], "one"),
        ("dot, beside a good one", [LENGTH, b"Content.Length: 0"], "one"),
        ("lower case", [b"content-length: " + SIZE], "one"),
        ("odd case", [b"cOnTeNt-LeNgTh: " + SIZE], "one"),
    ):
        add("length", name, request(*lines, body=INNER), reading)
    # nginx drops headers whose names it doesn't like: then there is no length.
    add("length", "no-break space in the name", request(b"Content-Length\xa0: " + SIZE, body=INNER), "refuse",
        inner="agreed")
    for name, lines in (("folded", [b"Content-Length:\r\n " + SIZE]),
                        ("folded with a tab", [b"Content-Length:\r\n\t" + SIZE]),
                        ("folded in the number", [b"Content-Length: " + SIZE[:1] + b"\r\n " + SIZE[1:]]),
                        ("folded behind the number", [LENGTH + b"\r\n 0"])):
        add("length", name, request(*lines, body=INNER), "refuse", named=True)
    add("length", "none, a request behind it", request(body=INNER), "two")
    add("length", "0, a request behind it", request(b"Content-Length: 0", body=INNER), "two")
    add("length", "00, a request behind it", request(b"Content-Length: 00", body=INNER), "two")
    for method in (b"GET", b"HEAD", b"OPTIONS"):
        add("length", f"of a {method.decode()}",
            request(LENGTH, line=method + b" /ping HTTP/1.1", body=INNER), "either")


def codings(add):
    def one(value, reading, named=False, body=CHUNKED, expect=()):
        add("coding", repr(show(value)), request(b"Transfer-Encoding:" + value, body=body), reading, expect,
            named=named)

    for value in (b" chunked", b"chunked", b"\tchunked", b" Chunked", b" CHUNKED", b" cHuNkEd"):
        one(value, "one")
    for value in (b" xchunked", b" chunkedx", b" chunke", b" x", b" chunked, chunked", b" chunked,chunked",
                  b" identity", b" identity, chunked", b" chunked, identity", b" gzip, chunked", b" gzip",
                  b" deflate", b" chunked;q=1", b' "chunked"', b" chunked\0", b" \0chunked", b" \x0bchunked",
                  b" chunked\x0c", b" chunked x", b" c hunked", b" trailers", b"", b" ", b" chunked\xa0",
                  b" \xa0chunked", b" chunked\r", b" chunked\x7f", b" chunked,identity,chunked",
                  b" chunk\xe9d", b" 'chunked'", b" chunked\x85"):
        one(value, "refuse")
    for value in (b" chunked \t", b" ,chunked", b" chunked,", b" , chunked , "):
        one(value, "either")
    for name, lines, reading, named in (
        ("chunked then identity", [CODING, b"Transfer-Encoding: identity"], "refuse", True),
        ("identity then chunked", [b"Transfer-Encoding: identity", CODING], "refuse", False),
        ("twice", [CODING, CODING], "refuse", False),
        ("chunked then empty", [CODING, b"Transfer-Encoding:"], "refuse", False),
        ("chunked then x", [CODING, b"transfer-encoding: x"], "refuse", False),
        ("x then chunked", [b"Transfer-Encoding: x", CODING], "refuse", False),
        ("folded", [b"Transfer-Encoding:\r\n chunked"], "refuse", True),
        ("folded with a tab", [b"Transfer-Encoding:\r\n\tchunked"], "refuse", True),
        ("folded, x behind", [CODING + b"\r\n , x"], "refuse", True),
        ("folded inside", [b"Transfer-Encoding: chun\r\n ked"], "refuse", True),
        ("space before the colon", [b"Transfer-Encoding : chunked"], "refuse", False),
        ("tab before the colon", [b"Transfer-Encoding\t: chunked"], "refuse", False),
        ("NUL in the name", [b"Transfer\0-Encoding: chunked"], "refuse", False),
        ("vertical tab in the name", [b"Transfer-Encoding\x0b: chunked"], "refuse", False),
        ("soft hyphen in the name", [b"Transfer\xad-Encoding: chunked"], "refuse", False),
        ("lower case", [b"transfer-encoding: chunked"], "one", False),
        ("odd case", [b"tRaNsFeR-eNcOdInG: chunked"], "one", False),
    ):
        add("coding", name, request(*lines, body=CHUNKED), reading, named=named)
    for method in (b"GET", b"HEAD", b"OPTIONS"):
        add("coding", f"of a {method.decode()}",
            request(CODING, line=method + b" /ping HTTP/1.1", body=CHUNKED), "either")
    add("coding", "of a chat that is refused", request(CODING, line=b"POST /nowhere HTTP/1.1", body=CHUNKED),
        "either")


def both(add):
    """Transfer-Encoding beside Content-Length: once so that who believes the length sees the inner request,
    once so that who believes the chunks does."""
    short = b"Content-Length: %d" % (len(b"%x\r\n" % len(INNER)))
    whole = b"Content-Length: %d" % len(ENDED)
    for name, coding in (("", CODING), (", upper case", b"TRANSFER-ENCODING: CHUNKED"),
                         (", tab", b"Transfer-Encoding:\tchunked"),
                         (", xchunked", b"Transfer-Encoding: xchunked"),
                         (", identity", b"Transfer-Encoding: identity"), (", empty", b"Transfer-Encoding:"),
                         (", chunked, identity", b"Transfer-Encoding: chunked, identity"),
                         (", space before the colon", b"Transfer-Encoding : chunked"),
                         (", vertical tab", b"Transfer-Encoding: \x0bchunked"),
                         (", NUL", b"Transfer-Encoding: chunked\0")):
        add("both", f"short length first{name}", request(short, coding, body=CHUNKED), "refuse")
        add("both", f"length first{name}", request(whole, coding, body=ENDED), "refuse", inner="agreed")
    add("both", "short length last", request(CODING, short, body=CHUNKED), "refuse")
    add("both", "length last", request(CODING, whole, body=ENDED), "refuse", inner="agreed")
    add("both", "length 0", request(CODING, b"Content-Length: 0", body=CHUNKED), "refuse")
    for name, fold in (("", b"Transfer-Encoding:\r\n chunked"),
                       (" with a tab", b"Transfer-Encoding:\r\n\tchunked"),
                       (" before the x", b"Transfer-Encoding: chunked\r\n x")):
        add("both", f"folded coding{name}, length first", request(whole, fold, body=ENDED), "refuse",
            named=True, inner="agreed")
        add("both", f"folded coding{name}, short length last", request(fold, short, body=CHUNKED), "refuse",
            named=True)
    for name, line in (("underscore", b"Transfer_Encoding: chunked"), ("X-", b"X-Transfer-Encoding: chunked"),
                       ("without the g", b"Transfer-Encodin: chunked"),
                       ("in a value", b"X-A: a, Transfer-Encoding: chunked"),
                       ("dash behind", b"Transfer-Encoding-: chunked")):
        add("both", f"no coding: {name}", request(whole, line, body=ENDED), "one")
    add("both", "as a fold of another header",
        request(whole, b"X-A: a\r\n Transfer-Encoding: chunked", body=ENDED), "either")
    add("both", "as a fold of the id", request(b" Transfer-Encoding: chunked", whole, body=ENDED), "either")
    add("both", "length as a fold", request(b"X-A: a\r\n Content-Length: 0", LENGTH, body=INNER), "either")
    add("both", "behind a bare CR", request(whole, b"X-A: a\rTransfer-Encoding: chunked", body=ENDED),
        "refuse")
    add("both", "behind a bare LF", request(whole, b"X-A: a\nTransfer-Encoding: chunked", body=ENDED),
        "refuse", named=True, inner="agreed")
    add("both", "behind a NUL", request(whole, b"X-A: a\0Transfer-Encoding: chunked", body=ENDED), "refuse",
        named=True)
    add("both", "behind CR CR LF", request(whole, b"X-A: a\r\r\nTransfer-Encoding: chunked", body=ENDED),
        "refuse", inner="agreed")
    add("both", "empty name before it", request(whole, b":\r\nTransfer-Encoding: chunked", body=ENDED),
        "refuse", inner="agreed")
    add("both", "colon before it", request(whole, b":Transfer-Encoding: chunked", body=ENDED), "refuse")


def line_ends(add):
    for name, end in (("LF", b"\n"), ("LF CR", b"\n\r"), ("CR CR LF", b"\r\r\n"), ("space CR LF", b" \r\n")):
        add("line end", f"{name} everywhere", request(LENGTH, end=end, body=INNER), "refuse",
            named=end == b"\n")
    for name, end in (("CR", b"\r"), ("VT", b"\x0b"), ("NEL", b"\x85")):
        add("line end", f"{name} everywhere", request(LENGTH, end=end) + b"\r\n\r\n", "refuse")
    whole = request(LENGTH, body=INNER)
    for name, old, new, named in (
        ("LF behind the request line", LINE + b"\r\n", LINE + b"\n", True),
        ("LF behind Host", HOST + b"\r\n", HOST + b"\n", True),
        ("LF behind the last header", LENGTH + b"\r\n", LENGTH + b"\n", True),
        ("LF for the empty line", LENGTH + b"\r\n\r\n", LENGTH + b"\r\n\n", True),
        ("LF LF", LENGTH + b"\r\n\r\n", LENGTH + b"\n\n", True),
        ("LF CR LF", LENGTH + b"\r\n\r\n", LENGTH + b"\n\r\n", True),
        ("CR CR LF behind Host", HOST + b"\r\n", HOST + b"\r\r\n", False),
        ("CR CR LF behind the request line", LINE + b"\r\n", LINE + b"\r\r\n", False),
        ("CR CR LF for the empty line", LENGTH + b"\r\n\r\n", LENGTH + b"\r\n\r\r\n", False),
        ("CR behind Host", HOST + b"\r\n", HOST + b"\r", False),
    ):
        add("line end", name, whole.replace(old, new, 1), "refuse", named=named)
    for name, value in (("LF at the front", b"\nb"), ("LF", b"a\nb: c"), ("LF at the end", b"a\n")):
        add("line end", f"{name} in a value", request(b"X-A: " + value, LENGTH, body=INNER), "refuse",
            named=True)
    for name, value in (("CR", b"a\rb: c"), ("CR at the end", b"a\r"), ("CR at the front", b"\ra")):
        add("line end", f"{name} in a value", request(b"X-A: " + value, LENGTH, body=INNER), "refuse")
    for name, value in (("with a space", b"a\r\n b"), ("with a tab", b"a\r\n\tb"),
                        ("twice", b"a\r\n b\r\n c"), ("onto nothing", b"\r\n b"),
                        ("with spaces alone", b"a\r\n  "), ("with a tab and nothing", b"a\r\n\t"),
                        ("that looks like a header", b"a\r\n X-B: c"),
                        ("that looks like a request", b"a\r\n GET / HTTP/1.1")):
        add("line end", f"a fold {name}", request(b"X-A: " + value, LENGTH, body=INNER), "either")
    add(
        "line end", "a fold of the request line", request(LENGTH, line=LINE + b"\r\n X", body=INNER), "refuse"
    )
    add("line end", "space before the first header", request(LENGTH, line=LINE + b"\r\n X-A: b", body=INNER),
        "refuse")
    add("line end", "a fold that hides the length",
        request(LENGTH, line=LINE + b"\r\n Content-Length: 0", body=INNER), "refuse")


def chunks(add):
    size = b"%x" % len(INNER)

    def one(name, body, reading, inner="never"):
        add("chunk", name, request(CODING, body=body), reading, inner=inner)

    def sized(text, reading, name=None):
        one(name or f"size {show(text)!r}", text + b"\r\n" + INNER + b"\r\n0\r\n\r\n", reading)

    sized(size.upper(), "one", "size in upper case")
    sized(b"000" + size, "one")
    sized(b"0" * 60 + size, "either")
    for text in (b"-1", b"+" + size, b"-" + size, b"0x" + size, b" " + size, b"\t" + size,
                 size[:1] + b" " + size[1:], size[:1] + b"_" + size[1:], b"", b"g", size + b"g", b"\0" + size,
                 size + b"\0", size + b"," + size, size + b".0", b"FFFFFFFFFFFFFFFFF", b"10000000000000000",
                 b"100000000000000" + b"%02x" % len(INNER), b"x", b"\\x41", b'"' + size + b'"',
                 b"\xef\xbc\x95", b"f" * 60, b"\r" + size, b";" + size, b"0" * 16 + b"-" + size, size + b" x",
                 size + b"h"):
        sized(text, "broken")
    for text in (size + b" ", size + b"\t", size + b"   ", size + b" ;a=b", size + b"; a=b", size + b";",
                 size + b";;", size + b";=", size + b";a=", size + b';a="', size + b";a = b",
                 size + b';a="\\"', size + b";\x80", size + b';a=b;c="d;e"', size + b";\xff=\xff"):
        sized(text, "either")
    for text in (size + b";a=b", size + b";a", size + b';a="x;y"', size + b";a=b;c=d"):
        sized(text, "one")
    for text in (size + b";\0", size + b";a\0b", size + b";\x01", size + b";a=\x7f", size + b";a\rb"):
        sized(text, "either" if b"\x7f" in text else "broken")
    for count in (200, 4000, 17_000, 70_000, 100_000, 200_000, 400_000):
        one(f"extension of {count} bytes", size + b";" + b"a" * count + b"\r\n" + INNER + b"\r\n0\r\n\r\n",
            "either")
        one(f"size of {count} zeros", b"0" * count + size + b"\r\n" + INNER + b"\r\n0\r\n\r\n", "either")
    one("2000 extensions", size + b";a=1" * 2000 + b"\r\n" + INNER + b"\r\n0\r\n\r\n", "either")
    one("extension of 100000 bytes behind the last chunk's size",
        b"1\r\nx\r\n0;" + b"a" * 100_000 + b"\r\n\r\n", "either")
    for text in (b"ffffffff", b"fffffff", b"100000000", b"7fffffffffffffff", b"8000000000000000",
                 b"fffffffffffffff0", b"ffffffffffffffff"):
        sized(text, "waits")
    data = b"5\r\nhello"
    for name, body in (("LF behind the size", size + b"\n" + INNER + b"\r\n0\r\n\r\n"),
                       ("CR behind the size", size + b"\r" + INNER + b"\r\n0\r\n\r\n"),
                       ("CR CR LF behind the size", size + b"\r\r\n" + INNER + b"\r\n0\r\n\r\n"),
                       ("LF CR behind the size", size + b"\n\r" + INNER + b"\r\n0\r\n\r\n"),
                       ("LF in an extension", size + b";a\nb\r\n" + INNER + b"\r\n0\r\n\r\n"),
                       ("LF behind an extension", size + b";a\n" + INNER + b"\r\n0\r\n\r\n"),
                       ("no CR LF behind the data", data + b"0\r\n\r\n"),
                       ("more data than its size", data + b"X\r\n0\r\n\r\n"),
                       ("two bytes for CR LF", data + b"XX0\r\n\r\n"),
                       ("one byte less than its size", b"6\r\nhello\r\n0\r\n\r\n"),
                       ("two bytes less than its size", b"7\r\nhello\r\n0\r\n\r\n"),
                       ("LF behind the data", data + b"\n0\r\n\r\n"),
                       ("CR behind the data", data + b"\r0\r\n\r\n"),
                       ("CR CR LF behind the data", data + b"\r\r\n0\r\n\r\n"),
                       ("two CR LF behind the data", data + b"\r\n\r\n0\r\n\r\n"),
                       ("space behind the data", data + b" \r\n0\r\n\r\n"),
                       ("last size then LF", data + b"\r\n0\n\r\n"),
                       ("last size then LF LF", data + b"\r\n0\n\n"),
                       ("last size then CR LF LF", data + b"\r\n0\r\n\n"),
                       ("last size then CR CR LF", data + b"\r\n0\r\r\n\r\n"),
                       ("last size 0x0", data + b"\r\n0x0\r\n\r\n"),
                       ("last size -0", data + b"\r\n-0\r\n\r\n"), ("last size +0", data + b"\r\n+0\r\n\r\n"),
                       ("everything with LF", b"5\nhello\n0\n\n"), ("no size at all", b"hello\r\n\r\n"),
                       ("no last chunk", data + b"\r\n"), ("CR LF first", b"\r\n" + data + b"\r\n0\r\n\r\n")):
        one(name, body, "broken")
    # Who takes a line feed in an extension for the line's end, and who doesn't, sees other chunks.
    hidden = b"%x\r\n" % (len(INNER) + 2) + b"xx" + INNER + b"\r\n0\r\n\r\n"
    one("LF ends an extension for some", b"2;\nxx\r\n" + hidden, "broken")
    one("LF ends a size for some", b"2\nxx\r\n" + hidden, "broken")
    one("CR ends an extension for some", b"2;\rxx\r\n" + hidden, "broken")
    one("a request behind LF for CR LF", data + b"\n0\r\n\r\n" + INNER, "broken", inner="agreed")
    one("last size 00", data + b"\r\n00\r\n\r\n", "one")
    one("last size of 20 zeros", data + b"\r\n" + b"0" * 20 + b"\r\n\r\n", "either")
    one("last size with an extension", data + b"\r\n0;a=b\r\n\r\n", "one")
    one("600 chunks of a byte", b"1\r\nx\r\n" * 600 + b"0\r\n\r\n", "one")
    one("nothing but the last", b"0\r\n\r\n", "one")
    one("a request behind the last", ENDED, "two")


def trailers(add):
    def one(name, lines, reading, line=LINE, body=CHUNKED[:-2]):
        add(
            "trailer", name, request(CODING, b"Trailer: X-T", line=line, body=body + lines + b"\r\n"), reading
        )

    one("one", b"X-T: 1\r\n", "one")
    for name, lines in (("Content-Length", LENGTH + b"\r\n"), ("Content-Length 0", b"Content-Length: 0\r\n"),
                        ("Transfer-Encoding", CODING + b"\r\n"), ("Host", b"Host: x\r\n"),
                        ("another id", b"X-Request-Id: smuggled-" + TAG + b"\r\n"),
                        ("Connection: close", b"Connection: close\r\n"),
                        ("Authorization", b"Authorization: x\r\n"), ("a fold", b"X-T: a\r\n b\r\n"),
                        ("300 of them", b"X-T: a\r\n" * 300),
                        ("100000 bytes", b"X-T: " + b"a" * 100_000 + b"\r\n"), ("a name alone", b"X-T:\r\n")):
        one(name, lines, "either")
    for name, lines in (("space before the colon", b"X-T : 1\r\n"), ("no colon", b"X-T\r\n"),
                        ("no name", b": a\r\n"), ("LF", b"X-T: 1\n"), ("NUL", b"X-T: \0\r\n"),
                        ("CR", b"X-T: a\rb\r\n"), ("a space first", b" X-T: 1\r\n"),
                        ("a request line", b"GET / HTTP/1.1\r\n"),
                        ("high bytes in the name", b"\xff\xfe: 1\r\n"), ("CR CR LF", b"X-T: 1\r\r\n")):
        one(name, lines, "broken")


def targets(add):
    def one(target, reading, expect=(), named=False, method=b"POST", name=None):
        add("target", name or repr(show(target)),
            request(LENGTH, line=method + b" " + target + b" HTTP/1.1", body=INNER), reading, expect, named)

    one(b"/ping\0", "refuse", named=True)
    one(b"/\0ping", "refuse", named=True)
    one(b"/ping?a=\0", "refuse", named=True)
    one(b"/ping\tx", "refuse", named=True)
    for target in (b"/pi ng", b"/ping x", b"/ping?a b", b"/ping\x01", b"/ping\x1b", b"/ping\x7f", b"/ping\r",
                   b"/ping?\x0b", b"/ping\x0c"):
        one(target, "refuse")
    for target in (b"/ping\x80", b"/ping\xff\xfe", b"/ping%00", b"/ping%0d%0a", b"/ping%0d%0aX-A:%20b",
                   b"/ping%zz", b"/ping%", b"/ping%2", b"/%70ing", b"/ping%2f", b"/ping%20", b"/./ping",
                   b"/../ping", b"/a/../ping", b"/..%2fping", b"//ping", b"///", b"/ping#fragment",
                   b"/#/ping", b"/ping?a#b", b"/ping;a=b", b"/ping|", b"/ping`{}<>^", b'/ping"', b"/ping\\",
                   b"\\ping", b"http:///ping", b"http://", b"ftp://t/ping", b"ping", b"?x", b"t:80",
                   b"http://user@t/ping", b"http://t:99999/ping", b"http://t:/ping", b"http://other/ping",
                   b"https://t/ping", b"HTTP://T/ping", b"http://[::1]/ping", b"http://t?x", b"http://t#x",
                   b"http:/ping", b"*", b"**", b"/*", b"/ping?" + b"a=b&" * 1000, b"/ping?%", b"/ping?a=%00",
                   b"/ping??", b"/ping?a=http://x/ y".replace(b" ", b"%20"), b"/" + b"../" * 200 + b"ping",
                   b"/" + b"a" * 9000, b"/ping?" + b"a" * 20_000):
        one(target, "either")
    one(b"http://t/ping", "either")
    one(b"/ping?a=b%26c", "one")
    for count in (70_000, 200_000):
        one(b"/" + b"a" * count, "refuse", name=f"{count} bytes")
    for name, line in (("missing", b"POST HTTP/1.1"), ("missing, two spaces", b"POST  HTTP/1.1"),
                       ("two spaces before it", b"POST  /ping HTTP/1.1"),
                       ("two spaces behind it", b"POST /ping  HTTP/1.1"),
                       ("space behind the version", b"POST /ping HTTP/1.1 "),
                       ("a fourth word", b"POST /ping HTTP/1.1 x"),
                       ("vertical tab for a space", b"POST\x0b/ping HTTP/1.1"),
                       ("form feed for a space", b"POST /ping\x0cHTTP/1.1"),
                       ("no-break space", b"POST\xa0/ping HTTP/1.1"),
                       ("bare CR for a space", b"POST /ping\rHTTP/1.1"),
                       ("two versions", b"POST /ping HTTP/1.1 HTTP/1.1"),
                       ("two versions, 1.0 last", b"POST /ping HTTP/1.1 HTTP/1.0")):
        add("line", name, request(LENGTH, line=line, body=INNER), "refuse")
    for name, line in (("tab for the first space", b"POST\t/ping HTTP/1.1"),
                       ("tab for the second space", b"POST /ping\tHTTP/1.1"),
                       ("tabs for spaces", b"POST\t/ping\tHTTP/1.1"),
                       ("tab behind a space", b"POST \t/ping HTTP/1.1"),
                       ("tab behind the version", b"POST /ping HTTP/1.1\t")):
        add("line", name, request(LENGTH, line=line, body=INNER), "refuse", named=True)


def methods(add):
    def one(method, reading, name=None, target=b"/ping"):
        add("method", name or repr(show(method)),
            request(LENGTH, line=method + b" " + target + b" HTTP/1.1", body=INNER), reading)

    for method in (b"", b"PO\0ST", b"P(OST", b"POST:", b"PO,ST", b"\xc3\x89", b"PO\x7fST", b'"POST"',
                   b"PO\x01ST", b"/POST"):
        one(method, "refuse")
    for method in (b"post", b"M-SEARCH", b"BREW", b"TRACE", b"PATCH", b"DELETE", b"PUT", b"QUERY", b"X" * 100,
                   b"X" * 10_000, b"PRI"):
        one(method, "either")
    add("method", "CONNECT", request(line=b"CONNECT t:80 HTTP/1.1"), "either")
    add("method", "OPTIONS *", request(line=b"OPTIONS * HTTP/1.1"), "either")
    add("method", "HTTP/2's preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "refuse")
    add("method", "a TLS greeting", b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00\r\n\r\n", "refuse")
    add("method", "SSH", b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "refuse")
    add("method", "a PROXY line", b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n" + request(LENGTH, body=INNER),
        "refuse")


def versions(add):
    def one(version, reading, name=None, lines=(LENGTH,), body=INNER, expect=(), host=True):
        add("version", name or repr(show(version)),
            request(*lines, line=b"POST /ping " + version, body=body, host=host), reading, expect)

    for version in (b"HTTP/1.10", b"HTTP/1.01", b"HTTP/01.1", b"HTTP/1.", b"HTTP/.1", b"HTTP/1", b"HTTP/11",
                    b"HTTP/", b"HTTP", b"HTTP /1.1", b"HTTP/ 1.1", b"HTTP/1 .1", b"HTTP/1.1\0", b"HTTP\\1.1",
                    b"HTTPS/1.1", b"XTTP/1.1", b"HTTP/1.1.1", b"HTTP/-1.1", b"HTTP/+1.1", b"HTTP/1,1",
                    b"HTTP/1.x", b"HTTP/x.1", b"HTTP/1.\xb9", b"HTTP/1.1;a", b"ICY", b"RTSP/1.0", b"http/1.1",
                    b"Http/1.1", b"HTTP/4294967297.1"):
        one(version, "refuse")
    for version in (b"HTTP/2.0", b"HTTP/3.0", b"HTTP/9.9", b"HTTP/0.9", b"HTTP/0.0", b"HTTP/2"):
        one(version, "refuse")
    for version in (b"HTTP/1.2", b"HTTP/1.9"):
        one(version, "either")
    one(b"HTTP/1.0", "last", "1.0 with a length")
    one(b"HTTP/1.0", "last", "1.0 without Host", host=False)
    one(b"HTTP/1.0", "either", "1.0 kept alive", lines=(LENGTH, b"Connection: keep-alive"))
    add("version", "1.0, a request behind it", request(line=b"GET /ping HTTP/1.0", body=INNER), "last")
    for name, lines, body, inner in (
        ("chunked", [CODING], CHUNKED, "never"),
        ("chunked, kept alive", [CODING, b"Connection: keep-alive"], CHUNKED, "never"),
        ("chunked and a short length", [CODING, b"Content-Length: 4"], CHUNKED, "never"),
        ("chunked and a length, kept alive",
         [CODING, b"Content-Length: %d" % len(ENDED), b"Connection: keep-alive"], ENDED, "agreed"),
        ("chunked, then data", [CODING, b"Connection: keep-alive"], ENDED, "agreed"),
    ):
        add("version", f"1.0 {name}", request(*lines, line=b"POST /ping HTTP/1.0", body=body), "ends",
            inner=inner)
    add("version", "0.9", b"GET /ping\r\n", "refuse")
    add("version", "0.9 with an empty line", b"GET /ping\r\n\r\n", "refuse")
    add("version", "0.9 with LF", b"GET /ping\n", "refuse")
    add("version", "0.9 with headers", request(line=b"GET /ping"), "refuse")
    add("version", "0.9, POST", request(LENGTH, line=b"POST /ping", body=INNER), "refuse")


def names_and_values(add):
    def one(name, line, reading, named=False):
        add("header", name, request(line, LENGTH, body=INNER), reading, named=named)

    for text in (b"", b" ", b"A B", b"A\tB", b"A ", b"A\t", b"A\0B", b"\0", b"A\x01", b"A\x7f", b"A\x80",
                 b"\xc3\x81", b'A"B', b"A@B", b"A[B]", b"A(B", b"A{B}", b"A/B", b"A\\B", b"A;B", b"A=B",
                 b"A,B", b"A<B>", b"A?B", b"\x0bA", b"A\x0c", b"A\r"):
        one(f"name {show(text)!r}", text + b": x", "refuse")
    one("no colon", b"justtext", "refuse")
    one("no colon, a space", b"just text", "refuse")
    one("name of all odd tokens", b"!#$%&'*+-.^_`|~0: x", "one")
    one("name of 1000 bytes", b"a" * 1000 + b": x", "one")
    for value in (b"a\0b", b"\0", b"a\0"):
        one(f"value {show(value)!r}", b"X-A: " + value, "refuse", named=True)
    for value in (b"\x01", b"a\x07", b"a\x1bb", b"\x0b", b"a\x0c", b"\x7f"):
        one(f"value {show(value)!r}", b"X-A: " + value, "either")
    for value in (b"", b"  ", b"a\tb", b"\xe9\xff\x80", b":", b"::", b"a" * 4000, b'"unfinished', b"a,,,b",
                  b"(((", b"\xef\xbb\xbf"):
        one(f"value {show(value)!r}", b"X-A: " + value, "one")
    for name, line in (("a colon behind the name's colon", b"X-A:: b"), ("two ids", b"X-Request-Id: other"),
                       ("Content-Encoding", b"Content-Encoding: gzip"),
                       ("a method's override", b"X-HTTP-Method-Override: DELETE"),
                       ("forwarded", b'X-Forwarded-For: "><'), ("Cookie", b"Cookie: " + b"a=b; " * 500)):
        one(name, line, "either")
    for count in (60_000, 66_000, 130_000, 300_000):
        one(f"value of {count} bytes", b"X-A: " + b"a" * count, "either" if count < 65_000 else "refuse")
        one(f"name of {count} bytes", b"a" * count + b": x", "either" if count < 65_000 else "refuse")
    for count in (100, 200, 300, 1000, 6000):
        one(f"{count} of them", b"\r\n".join(b"X-%d: a" % i for i in range(count)),
            "one" if count < 101 else "either" if count < 257 else "refuse")
    one("20000 empty ones", b"\r\n".join([b"A:"] * 20_000), "refuse")


def hosts(add):
    for name, lines, reading in (("missing", [], "refuse"), ("two, equal", [HOST, HOST], "refuse"),
                                 ("two, unlike", [HOST, b"Host: u"], "refuse"),
                                 ("two, one empty", [b"Host:", HOST], "refuse"),
                                 ("two, other case", [HOST, b"hOST: t"], "refuse"),
                                 ("space before the colon", [b"Host : t"], "refuse"),
                                 ("NUL", [b"Host: t\0u"], "refuse"), ("empty", [b"Host:"], "either"),
                                 ("space inside", [b"Host: a b"], "either"),
                                 ("slash", [b"Host: a/b"], "either"), ("list", [b"Host: a, b"], "either"),
                                 ("port twice", [b"Host: a:1:2"], "either"),
                                 ("port too large", [b"Host: a:99999"], "either"),
                                 ("port of letters", [b"Host: a:b"], "either"),
                                 ("open bracket", [b"Host: [::1"], "either"),
                                 ("a user", [b"Host: user@t"], "either"),
                                 ("a fold", [b"Host:\r\n t"], "either"),
                                 ("high bytes", [b"Host: \xff"], "either"),
                                 ("5000 bytes", [b"Host: " + b"a" * 5000], "either"),
                                 ("a control", [b"Host: t\x01"], "either")):
        add("host", name, request(*lines, LENGTH, body=INNER, host=False), reading)
    add("host", "another beside an absolute target",
        request(b"Host: other", LENGTH, line=b"POST http://t/ping HTTP/1.1", body=INNER, host=False),
        "either")
    add("host", "missing beside an absolute target",
        request(LENGTH, line=b"POST http://t/ping HTTP/1.1", body=INNER, host=False), "refuse")


def hop_by_hop(add):
    def one(name, lines, reading, body=INNER, framing=LENGTH):
        add("connection", name, request(*lines, framing, body=body), reading)

    for value in (b"close", b"Close", b"CLOSE", b"close, keep-alive", b"keep-alive, close", b"close,close",
                  b" close ", b"x, close", b"\tclose"):
        one(f"{show(value)!r}", [b"Connection: " + value], "last")
    one("close, then keep-alive", [b"Connection: close", b"Connection: keep-alive"], "last")
    one("keep-alive, then close", [b"Connection: keep-alive", b"Connection: close"], "last")
    for value in (b"keep-alive", b"x", b"clos", b"closed", b"", b"Content-Length",
                  b"content-length, keep-alive", b"Host", b"X-Request-Id", b"Transfer-Encoding", b"TE, x",
                  b",", b"close-not"):
        one(f"{show(value)!r}", [b"Connection: " + value], "either")
    one("Transfer-Encoding, and chunked", [b"Connection: Transfer-Encoding"], "either", body=CHUNKED,
        framing=CODING)
    one("Proxy-Connection", [b"Proxy-Connection: close"], "one")
    one("Keep-Alive", [b"Keep-Alive: timeout=0, max=0"], "one")
    one("TE", [b"TE: trailers, chunked;q=0"], "one")
    for value in (b"100-continue", b"100-Continue", b"100-CONTINUE"):
        one(f"Expect {show(value)!r}", [b"Expect: " + value], "one")
    for value in (b"", b"200-ok", b"100-continue, x", b"100-continue;a=b", b"100", b"x" * 3000,
                  b"100-continue, 100-continue"):
        one(f"Expect {show(value)!r}", [b"Expect: " + value], "either")
    one("Expect twice", [b"Expect: 100-continue", b"Expect: 100-continue"], "either")
    one("Expect, chunked", [b"Expect: 100-continue"], "one", body=CHUNKED, framing=CODING)
    add("connection", "Expect without a body", request(b"Expect: 100-continue"), "either")
    add("connection", "Expect of 1.0",
        request(b"Expect: 100-continue", LENGTH, line=b"POST /ping HTTP/1.0", body=INNER), "either")
    h2c = [b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"]
    one("Upgrade h2c", [b"Connection: Upgrade, HTTP2-Settings", *h2c], "either")
    one("Upgrade h2c, not in Connection", h2c, "either")
    one(
        "Upgrade websocket",
        [b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13",
         b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="],
        "either",
    )
    one("Upgrade of everything", [b"Connection: Upgrade", b"Upgrade: a/1, b/2, TLS/1.0, HTTP/2.0"], "either")
    one("Upgrade, chunked", [b"Connection: Upgrade", b"Upgrade: websocket"], "either", body=CHUNKED,
        framing=CODING)
    add("connection", "Upgrade h2c, a request behind it",
        request(b"Connection: Upgrade, HTTP2-Settings", *h2c, line=b"GET /ping HTTP/1.1"), "either")
    add("connection", "close, a request behind it", request(b"Connection: close", body=INNER), "last")


def surroundings(add):
    whole = request(LENGTH, body=INNER)
    for name, before in (("CR LF", b"\r\n"), ("two CR LF", b"\r\n\r\n"), ("1000 CR LF", b"\r\n" * 1000),
                         ("LF", b"\n"), ("two LF", b"\n\n")):
        add("before", name, before + whole, "either")
    for name, before in (("CR", b"\r"), ("CR CR LF", b"\r\r\n"), ("a space", b" "), ("a tab", b"\t"),
                         ("a space and CR LF", b" \r\n"), ("NUL", b"\0"),
                         ("a byte order mark", b"\xef\xbb\xbf"), ("a header", b"X-A: b\r\n"),
                         ("a rest of a chunk", b"0\r\n\r\n"), ("high bytes", b"\xff\xff\xff\xff")):
        add("before", name, before + whole, "refuse")
    add("behind", "CR LF", whole + b"\r\n", "either")
    add("behind", "a whole request", whole + INNER, "two")
    add("behind", "another request chunked", request(CODING, body=CHUNKED) + INNER, "two")
