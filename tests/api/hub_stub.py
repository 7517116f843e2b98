"""A small Hugging Face hub for test_hub.py: the endpoint on 127.0.0.1 (API and small files), large files by a
redirect to a second server on 127.0.0.2, as the real one sends them to its CDN. A repository may have faults,
by name: FAULTS says what each does."""

import hashlib
import http.server
import json
import re
import threading
import time
import urllib.parse

FAULTS = {"dropped": "each connection of the CDN ends after a megabyte",
          "dropped_always": "a connection of the CDN ends before the first byte",
          "stalls": "the CDN sends a megabyte, then nothing, once",
          "busy_again": "a connection of the CDN ends in the middle, and the next gets 503 with a text",
          "drips": "the CDN sends five bytes a second",
          "drips_and_drops": "and ends each connection after the first", "list_drips": "and so does the list",
          "wrong_hash": "a large file has other bytes", "wrong_small": "a small file has other bytes",
          "truncated": "the CDN's file is shorter than the list has it",
          "longer": "the CDN sends more, without a length",
          "pointer": "a Git LFS pointer instead of a large file",
          "busy_once": "503 with Retry-After, once for each path", "busy": "503",
          "limited": "429 with Retry-After: 3600",
          "limited_as_the_hub": "429 with RateLimit, as huggingface.co answers",
          "escape": "a file with a terminal's escape sequence in its name",
          "long_list": "a list of more than 64 MiB",
          "unsized": "no sizes in the list, and none of large files before the redirect",
          "gated": "401 GatedRepo without a token, 403 with one",
          "forbidden": "403 with a message, which is not about a gated repository",
          "private": "401 without a token", "missing": "404", "up": "a file named ../../../evil in the list",
          "absolute": "a file named /tmp/evil in the list", "no_ranges": "the CDN ignores Range",
          "no_ranges_dropped": "the CDN ignores Range, and ends each connection in the middle",
          "loop": "the redirect leads to itself", "expires": "the first URL of the CDN has expired: 403",
          "portal": "an HTML page instead of the list", "no_commit": "a list without sha",
          "no_hashes": "a list without sizes and hashes: they are in the headers of each file",
          "no_etag": "and not there either", "huge": "the list has a file of an exabyte",
          "renamed": "relative redirects to another name"}


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Repo:
    def __init__(self, files, fault=None, lfs=(".safetensors", ".gguf", ".bin"), commit=None):
        self.files, self.fault, self.commit = (
            files,
            fault,
            commit or hashlib.sha1(repr(sorted(files)).encode()).hexdigest(),
        )
        self.large = {p for p in files if p.endswith(lfs)}
        self.hash = {
            p: hashlib.sha256(d).hexdigest() if p in self.large else git_sha1(d) for p, d in files.items()
        }
        self.seen = {}  # (what, path) -> count
        self.sent = 0  # bytes of large files
        self.lock = threading.Lock()
        self.meet = threading.Barrier(8)  # "meets": requests of the CDN wait for each other
        self.now = self.most = 0

    def count(self, *key):
        with self.lock:
            self.seen[key] = self.seen.get(key, 0) + 1
            return self.seen[key]

    def listing(self):
        out = []
        for path, data in self.files.items():
            one = {"rfilename": path, "size": len(data), "blobId": git_sha1(data)}
            if self.fault == "huge" and path in self.large:
                one["size"] = 1 << 60
            if path in self.large:
                one["lfs"] = {"sha256": self.hash[path], "size": one["size"], "pointerSize": 134}
            if self.fault in ("no_hashes", "no_etag", "unsized"):
                one = {"rfilename": path}
            out.append(one)
        names = {"up": "../../../evil", "absolute": "/tmp/evil", "escape": "a\x1b]0;evil\x07\x9b2J"}
        if self.fault in names:
            out.append({"rfilename": names[self.fault], "size": 1, "blobId": git_sha1(b"x")})
        return out


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        try:
            self.respond()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True


class Endpoint(Handler):
    def respond(self):
        hub, url = self.server.hub, urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path)
        hub.tokens.append(self.headers.get("Authorization"))
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/(.+)", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        name = (match or file)[1] if match or file else None
        repo = hub.repos.get(name)
        token = self.headers.get("Authorization") == "Bearer hf_good"
        if self.headers.get("Authorization") == "Bearer hf_bad":
            return self.answer(401, b"{}", X_Error_Message="Invalid credentials in Authorization header")
        if not repo or repo.fault == "missing" or (repo.fault == "private" and not token):
            known = {"X_Error_Code": "RepoNotFound", "X_Error_Message": "Repository not found"}
            return self.answer(404 if token else 401, b"{}", **known)
        if repo.fault == "busy" or (repo.fault == "busy_once" and repo.count("busy", path) == 1):
            return self.answer(503, b"", **({"Retry_After": 1} if repo.fault == "busy_once" else {}))
        if repo.fault == "limited":
            return self.answer(429, b"", Retry_After=3600)
        if repo.fault == "limited_as_the_hub":
            return self.answer(429, b"", RateLimit='"api";r=0;t=290')
        if repo.fault == "forbidden":
            return self.answer(403, b"{}", X_Error_Message="This token may not read it")
        if repo.fault == "gated":
            return self.answer(403 if token else 401, b"{}", X_Error_Code="GatedRepo",
                               X_Error_Message="Access to model is restricted.")
        if repo.fault == "renamed" and not name.startswith("new/"):
            return self.answer(307, b"", Location=self.path.replace("org/", "new/", 1))
        if match:
            return self.api(repo, name, match[2], match[3], url.query)
        return self.file(repo, name, file[2], file[3])

    def api(self, repo, name, kind, rev, query):
        if rev not in ("main", "v1", "refs/pr/1", repo.commit):
            return self.answer(
                404, b"{}", X_Error_Code="RevisionNotFound", X_Error_Message="Invalid rev id: " + rev
            )
        if repo.fault == "long_list":
            return self.answer(200, b" " * (65 << 20), Content_Type="application/json")
        if repo.fault == "list_drips":
            self.send_response(200)
            self.end_headers()
            return drip(self, b" " * 1000)
        if repo.fault == "portal":
            return self.answer(200, b"<html>Log in to this network</html>", Content_Type="text/html")
        listing = repo.listing()
        if kind == "tree":
            tree = [
                {"type": "file", "path": f["rfilename"], "size": f["size"], "oid": f["blobId"],
                 **({"lfs": {"oid": f["lfs"]["sha256"], **f["lfs"]}} if "lfs" in f else {})}
                for f in listing
            ]
            return self.answer(200, json.dumps(tree).encode(), Content_Type="application/json")
        if "blobs=" not in query:
            listing = [{"rfilename": f["rfilename"]} for f in listing]
        info = {"id": name, "sha": repo.commit, "siblings": listing, "private": False, "tags": [],
                "downloads": 0}
        if repo.fault == "no_commit":
            del info["sha"]
        self.answer(200, json.dumps(info).encode(), Content_Type="application/json")

    def file(self, repo, name, rev, path):
        data = repo.files.get(path)
        if data is None or rev not in (repo.commit, "main"):
            return self.answer(404, b"", X_Error_Code="EntryNotFound", X_Repo_Commit=repo.commit)
        about = {"X_Repo_Commit": repo.commit}
        if path in repo.large:
            if repo.fault != "no_etag":
                about |= {"X_Linked_ETag": f'"{repo.hash[path]}"', "ETag": '"x"'}
                if repo.fault != "unsized":
                    about["X_Linked_Size"] = len(data)
            where = f"http://127.0.0.2:{self.server.hub.cdn.server_port}/{name}/{repo.hash[path]}"
            if repo.fault == "loop":
                where = self.path
            if repo.fault == "expires":
                where += f"?until={repo.count('signed')}"
            return self.answer(302, b"", Location=where, **about)
        if repo.fault == "wrong_small" and path == "config.json":
            data = b"#" + data[1:]
        if repo.fault != "no_etag":
            about["ETag"] = f'W/"{repo.hash[path]}"' if repo.fault == "no_hashes" else f'"{repo.hash[path]}"'
        ranged(self, data, about)


class Cdn(Handler):
    def respond(self):
        hub, url = self.server.hub, urllib.parse.urlsplit(self.path)
        hub.cdn_tokens.append(self.headers.get("Authorization"))
        org, name, digest = url.path.strip("/").split("/")
        repo = hub.repos[f"{org}/{name}"]
        data = next(d for p, d in repo.files.items() if repo.hash[p] == digest)
        key, fault = self.headers.get("Range"), repo.fault
        if fault == "wrong_hash":
            data = data[:-1] + bytes([data[-1] ^ 1])
        if fault == "truncated":
            data = data[:-100]
        if fault == "pointer":
            data = (
                b"version https://git-lfs.github.com/spec/v1\noid sha256:" + digest.encode() + b"\nsize 1\n"
            )
            return self.answer(206, data)
        if fault == "meets":
            self.meets(repo)
        if fault == "busy_again" and repo.count("request") == 2:
            return self.answer(503, b"busy")
        if fault == "expires" and repo.count("used") == 1:
            return self.answer(403, b"<Error>Request has expired</Error>")
        stop = None
        if fault == "dropped_always":
            stop = 0
        once = fault in ("stalls", "busy_again") and repo.count("s") == 1
        if once or fault in ("dropped", "slow", "no_ranges_dropped"):
            stop = 1000_000
        ranged(self, data, {}, repo, stop, fault)

    def meets(self, repo):
        with repo.lock:
            repo.now += 1
            repo.most = max(repo.most, repo.now)
        try:
            repo.meet.wait(8)  # and none does when one has not come
        finally:
            with repo.lock:
                repo.now -= 1


def drip(handler, data):
    try:
        for byte in data:
            handler.wfile.write(bytes([byte]))
            handler.wfile.flush()
            time.sleep(0.2)
    except OSError:  # the client has gone
        pass


def ranged(handler, data, headers, repo=None, stop=None, fault=None):
    want = re.fullmatch(r"bytes=(\d+)-(\d*)", handler.headers.get("Range") or "")
    part, status = data, 200
    if want and fault not in ("no_ranges", "no_ranges_dropped"):
        first, last = int(want[1]), int(want[2] or len(data) - 1)
        part, status = data[first : last + 1], 206
        headers = {**headers, "Content_Range": f"bytes {first}-{first + len(part) - 1}/{len(data)}"}
    if fault == "longer":
        handler.send_response(status)
        handler.end_headers()
        handler.close_connection = True
        handler.wfile.write(part + b"more")
        return
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), str(value))
    handler.send_header("Content-Length", str(len(part)))
    handler.end_headers()
    if handler.command == "HEAD":
        return
    view = memoryview(part)[:stop]
    if fault in ("drips", "drips_and_drops"):
        handler.close_connection = True
        return drip(handler, part[: 1 if fault == "drips_and_drops" else None])
    if repo:
        repo.sent += len(view)
    handler.wfile.write(view)
    if stop is not None and stop < len(part):
        handler.wfile.flush()
        if fault == "stalls":
            time.sleep(10)
        if fault == "slow":  # until the client is gone
            repo.slow.wait(30)
        handler.close_connection = True


class Hub:
    def __init__(self):
        self.repos, self.tokens, self.cdn_tokens = {}, [], []
        self.endpoint = self.serve("127.0.0.1", Endpoint)
        self.cdn = self.serve("127.0.0.2", Cdn)
        self.url = f"http://127.0.0.1:{self.endpoint.server_port}"

    def serve(self, host, handler):
        server = http.server.ThreadingHTTPServer((host, 0), handler)
        server.daemon_threads, server.hub, server.handle_error = True, self, lambda *_: None
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server

    def add(self, name, files, fault=None, **how):
        repo = self.repos[name] = Repo(files, fault, **how)
        repo.slow = threading.Event()
        if fault == "renamed":
            self.repos["new/" + name.split("/")[1]] = repo
        return repo
