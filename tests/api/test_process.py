"""The environment of a process: pipes that nobody reads, descriptors that are closed, little memory.
python3 test_process.py [--binary B] [--demo DIR] [test ...]"""

import fcntl
import http.client
import os
import pty
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Checks, arguments, wait_until  # noqa: E402

check = Checks()
PAGE = 4096


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


def get(port, path="/health", timeout=20):
    try:
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        c.request("GET", path)
        return c.getresponse().status
    except OSError:
        return None


def serve(port, *flags, **how):
    command = [BINARY, "serve", "--model", DEMO, "--port", str(port), "--shutdown-delay", "0", *flags]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, **how)


def drain(fd):
    data = b""
    while select.select([fd], [], [], 1)[0]:
        piece = os.read(fd, 65536)
        if not piece:
            break
        data += piece
    return data


def end(p, what):
    p.send_signal(signal.SIGTERM)
    try:
        check.equal(f"{what}: it ends", p.wait(30), 0)
    except subprocess.TimeoutExpired:
        p.kill()
        p.wait()
        check.true(f"{what}: it ends", False)


def fill(fd):
    """Until nothing more fits; a terminal hands on what it has in pieces, and takes more then."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    for piece in (b"x" * PAGE, b"x") * 3:
        try:
            while True:
                os.write(fd, piece)
        except BlockingIOError:
            time.sleep(0.05)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags)


def unread(kind):
    """-> (where the server writes, where the test reads)"""
    if kind == "pipe":
        reader, writer = os.pipe()
        return writer, reader
    if kind == "socket":
        a, b = socket.socketpair()
        return a.detach(), b.detach()
    reader, writer = pty.openpty()
    return writer, reader


def test_unread():
    """Nobody reads what it says: it starts, serves and ends all the same, and counts what was lost."""
    for kind in ("pipe", "socket", "terminal"):
        writer, reader = unread(kind)
        fill(writer)
        port = free_port()
        p = serve(port, "--log-level", "debug", stdout=writer, stderr=writer)
        try:
            ready = wait_until(lambda: get(port) == 200, 30)
            check.true(f"{kind}: it serves", ready)
            answers = [get(port, "/v1/models") for _ in range(300)] if ready else []
            check.equal(f"{kind}: all are answered", set(answers), {200})
            said = drain(reader)
            check.equal(f"{kind}: and again", get(port, "/v1/models"), 200)
            said += drain(reader)
            said = said.lstrip(b"x").replace(b"\r\n", b"\n").decode()
            note = re.findall(r"Z warn (\d+) lines of the log were dropped: nobody read it\n", said)
            lost, said_of = sum(map(int, note)), said.count("path=/v1/models") + said.count("path=/health")
            check.true(
                f"{kind}: the lost lines are counted", lost and lost + said_of >= 301, (note, said[-900:])
            )
            check.equal(f"{kind}: the line of the start is said then", said.count("kvasir: listening on"), 1)
            blocking = not fcntl.fcntl(writer, fcntl.F_GETFL) & os.O_NONBLOCK
            check.true(f"{kind}: what others share with it still waits", blocking)
            fill(writer)
        finally:
            end(p, kind)
            os.close(reader)
            os.close(writer)


def test_fails_unread():
    """An error at the start ends it, whoever reads."""
    reader, writer = os.pipe()
    fill(writer)
    with tempfile.TemporaryDirectory() as folder:  # at the flags, and while it loads
        shutil.copy(os.path.join(DEMO, "config.json"), folder)
        for model in ("/nowhere", folder):
            p = subprocess.Popen(
                [BINARY, "serve", "--port", "0", "--model", model], stdout=writer, stderr=writer
            )
            try:
                check.equal(f"{model}", p.wait(30), 1)
            except subprocess.TimeoutExpired:
                p.kill()
                check.true(f"{model}: it ends", False)
    os.close(reader)
    os.close(writer)


def test_closed():
    """Without descriptors 0 to 2: they are /dev/null, and no connection gets their numbers."""
    port = free_port()

    def close():
        os.closerange(0, 3)

    p = serve(port, preexec_fn=close)
    try:
        check.true("it serves", wait_until(lambda: get(port) == 200, 30))
        names = [os.readlink(f"/proc/{p.pid}/fd/{fd}") for fd in range(3)]
        check.equal("descriptors", names, ["/dev/null"] * 3)
        check.equal("it answers", [get(port, "/v1/models") for _ in range(20)], [200] * 20)
    finally:
        end(p, "closed")


def test_address_space():
    """ulimit -v from nothing to enough: one clear line and an exit code, or it serves; never a signal."""
    lines = address_space(range(32, 4096, 24))
    check.true(
        "threads that can't be started are named", any("threads" in x and "ulimit" in x for x in lines), lines
    )
    if "--kv-events" in subprocess.run([BINARY, "serve", "--help"], capture_output=True, text=True).stdout:
        address_space(range(240, 4096, 3), "--kv-events", f"tcp://127.0.0.1:{free_port()}")


def address_space(sizes, *flags):
    served, lines = 0, set()
    for mib in sizes:
        size = mib << 20

        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (size, size))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        p = serve(
            0,
            "--threads",
            "2",
            "--kv-memory",
            "1M",
            *flags,
            preexec_fn=limit,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = p.stdout.readline()
        if line:
            served += 1
            p.terminate()
        out, err = p.communicate(timeout=60)
        if line:
            check.equal(f"{mib} MiB: end", p.returncode, 0)
            if served == 12:  # with little more it could get further, and fail there
                break
            continue
        said = [x for x in err.splitlines() if " info " not in x and " warn " not in x]
        check.true(f"{mib} MiB: {p.returncode}", p.returncode in (1, 127) and len(said) == 1, err)
        lines.update(x for x in said if "kvasir:" in x[:8])
    check.equal("with enough it serves", served, 12)
    return lines


if __name__ == "__main__":
    args = arguments(__doc__)
    BINARY, DEMO = args.binary, args.demo
    for test in (test_unread, test_fails_unread, test_closed, test_address_space):
        if not args.only or test.__name__ in args.only:
            check.run(test)
    check.end()
