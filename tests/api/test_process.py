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
import ssl
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Checks, arguments, end_process, wait_until  # noqa: E402

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


def silent_pipes(top):
    """-> flags of a server that is given a FIFO to which nobody writes, and the FIFO"""
    for flag in ("--api-key-file", "--config", "--chat-template", "--log-file", "--mmproj", "--draft-model"):
        pipe = os.path.join(top, flag.strip("-"))
        os.mkfifo(pipe)
        yield ["--model", DEMO, flag, pipe], pipe
    for flag in ("--tls-cert", "--tls-key"):
        pipe = os.path.join(top, flag.strip("-"))
        files = dict(zip(("--tls-cert", "--tls-key"), tls_files(top)))
        os.mkfifo(pipe)
        files[flag] = pipe
        yield ["--model", DEMO, *(x for pair in files.items() for x in pair)], pipe
    names = "config.json", "tokenizer.json", "model.safetensors", "more.json", "chat_template.jinja"
    for name in ("", *names):
        folder = os.path.join(top, "model-" + name)
        if name:
            os.mkdir(folder)
            for file in os.listdir(DEMO):
                if file != name:
                    os.symlink(os.path.join(os.path.abspath(DEMO), file), os.path.join(folder, file))
        os.mkfifo(os.path.join(folder, name) if name else folder)
        yield ["--model", folder, "--cache-dir", top + "/cache"], os.path.join(folder, name).rstrip("/")


def tls_files(top):
    cert, key = os.path.join(top, "cert.pem"), os.path.join(top, "key.pem")
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=x".split()
    if not os.path.exists(cert):
        subprocess.run([*make, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


def test_silent_pipes():
    """A FIFO to which nobody writes, as any file that is read: the start ends, and says which."""
    with tempfile.TemporaryDirectory() as top:
        started = []
        for flags, pipe in silent_pipes(top):
            log = open(pipe + ".log", "w+", encoding="utf-8")
            command = [BINARY, "serve", "--port", "0", "--log-level", "warn", *flags]
            started.append((pipe, log, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)))
        for pipe, log, p in started:

            def said():
                with open(log.name, encoding="utf-8") as f:
                    return f.read()

            more = pipe.endswith("more.json")  # costs the disk cache only
            wait_until(lambda: p.poll() is not None or (more and pipe in said()))
            names = pipe, os.path.dirname(pipe) + " holds no checkpoint"
            named = any(n in said() for n in names)
            check.true(f"{pipe}: exit {p.poll()}", named and (more or p.poll() in (1, 2)), said())
            end_process(p)
            log.close()


def test_pipes():
    """What the shell's <(command) gives is read, also in pieces; a FIFO that comes later holds up nothing."""
    with tempfile.TemporaryDirectory() as top:
        keys = os.path.join(top, "keys")
        with open(keys, "w", encoding="utf-8") as f:
            f.write("one\n")
        files = {"--chat-template": b"{{ messages[0].content }}", "--config": b"max-queue = 77\n"}
        files |= {f: open(n, "rb").read() for f, n in zip(("--tls-cert", "--tls-key"), tls_files(top))}
        ends, flags = [], ["--api-key-file", keys]
        for flag, data in files.items():
            reader, writer = os.pipe()
            os.write(writer, data[:9])
            ends.append((reader, writer, data[9:]))
            flags += [flag, f"/dev/fd/{reader}"]
        with open(top + "/log", "w", encoding="utf-8") as log:
            pipes = [e[0] for e in ends]
            how = {"pass_fds": pipes, "stdout": subprocess.PIPE, "stderr": log, "text": True}
            p = serve(0, *flags, **how)
        time.sleep(0.2)
        for reader, writer, data in ends:
            os.close(reader)
            os.write(writer, data)
            os.close(writer)
        line = p.stdout.readline()
        check.true("it starts", line.startswith("kvasir: listening on https://"), line)
        port = int(line.rsplit(":", 1)[1])
        context = ssl._create_unverified_context()

        def models(key):
            c = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
            c.request("GET", "/v1/models", headers={"Authorization": "Bearer " + key})
            return c.getresponse().status

        check.equal("its key", [models("one"), models("two")], [200, 401])
        os.unlink(keys)
        os.mkfifo(keys)
        p.send_signal(signal.SIGHUP)
        begin = time.monotonic()
        stay = "the API keys stay as they were"
        check.true("SIGHUP", wait_until(lambda: stay in open(top + "/log").read()))
        check.equal("the key that was", models("one"), 200)
        check.true("at once", time.monotonic() - begin < 8, time.monotonic() - begin)
        end(p, "pipes")
        p.stdout.close()


if __name__ == "__main__":
    args = arguments(__doc__)
    BINARY, DEMO = args.binary, args.demo
    tests = test_unread, test_fails_unread, test_closed, test_silent_pipes, test_pipes, test_address_space
    for test in tests:
        if not args.only or test.__name__ in args.only:
            check.run(test)
    check.end()
