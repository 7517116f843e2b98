"""What only Kvasir's page shows: python3 test_page_cache.py [--binary B] [test ...]
GET and POST /cache_tree with the tier below memory; then, in a headless Chromium where there is one:
statistics of responses (cold, cached, with draft tokens), the Cache tab (1,000 nodes, thumbnails, messages,
the disk after a restart, live), the determinism check (equal, and with faults in what it gets).
--screenshots writes docs/page-*.png instead."""

import json
import os
import random
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import browser
import harness

SHOTS = "--screenshots" in sys.argv
sys.argv = [a for a in sys.argv if a != "--screenshots"]
args = harness.arguments(__doc__)
root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
check = harness.Checks()
sample = os.path.join(root, "models/demo/sample.png")
CHAT = "/v1/chat/completions"
IDLE = "!document.querySelector('.turn.running')"


def chat(server, text, **extra):
    return server.ok(
        CHAT, {"messages": [{"role": "user", "content": text}], "max_tokens": 4, "temperature": 0, **extra}
    )


def tree_of(server, path="/cache_tree"):
    status, _, data = server.request("GET", path)
    check.equal("status", status, 200)
    return json.loads(data)


class Proxy:
    """An address that stays while its server changes; `change(path, bytes)` is what it does wrong."""

    def __init__(self, server):
        proxy = self
        self.server, self.change = server, None

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def pass_on(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
                keep = {
                    k: v for k, v in self.headers.items() if k in ("Content-Type", "Accept", "Authorization")
                }
                try:
                    status, head, data = proxy.server.request(self.command, self.path, body, keep)
                    if proxy.change:
                        data = proxy.change(self.path, data)
                    self.send_response(status)
                    for k, v in head.items():
                        if k in ("content-type", "content-security-policy", "etag"):
                            self.send_header(k, v)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:  # the page has gone, or the server
                    self.close_connection = True

            do_GET = do_POST = pass_on

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.handle_error = lambda *_: None  # a page that has gone
        self.host, self.port = "127.0.0.1", self.http.server_port
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()


# ---- without a browser ----


def test_tree(server, chrome):
    """Lengths and branches of what was asked, nothing else."""
    server.request("POST", "/reset_prefix_cache")
    check.equal("an empty cache", tree_of(server)["nodes"], [])
    first = chat(server, "What is a red circle?")["usage"]["prompt_tokens"]
    second = chat(server, "What is a red square?", return_cache_info=True)
    got = tree_of(server)
    reused, nodes = second["cache_info"]["reused_tokens"], got["nodes"]
    tops = [n for n in nodes if n["parent"] is None]
    check.equal("one beginning", [(n["start"], n["end"], n["children"]) for n in tops], [(0, reused, 2)])
    check.equal("two continuations", sum(n["parent"] == 0 for n in nodes), 2)
    check.true("each begins where its parent ends",
               all(n["start"] == nodes[n["parent"]]["end"] for n in nodes if n["parent"] is not None), nodes)
    check.true("ends of prompts", first in [n["end"] for n in nodes], nodes)
    check.equal("as many as there are", got["total_nodes"], len(nodes))
    check.equal("the total", got["total_tokens"], sum(n["end"] - n["start"] for n in nodes))
    check.equal("fields", sorted(nodes[0]),
                ["children", "end", "id", "images", "parent", "running", "start", "tier", "uses_ago"])
    check.equal("ids differ", len({n["id"] for n in nodes}), len(nodes))
    check.equal("all in memory", {n["tier"] for n in nodes}, {"memory"})
    chat(server, "What is a red square?", cache_salt="mine")
    salted = tree_of(server)
    check.equal("nodes of a salt are not listed", len(salted["nodes"]), len(nodes))
    check.true("they are in the total", salted["total_tokens"] > got["total_tokens"])
    waiting = []
    server.pause()  # all of them come at once, and some have gone by then
    for i in range(60):
        s = socket.create_connection((server.host, server.port), timeout=60)
        s.sendall(b"GET /cache_tree HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        waiting.append(s) if i % 3 else s.close()
    server.resume()
    check.true("many at once", all(b'"nodes":[{' in harness.read_all(s) for s in waiting))
    check.equal("HEAD", server.request("HEAD", "/cache_tree")[::2], (200, b""))
    check.equal("DELETE", server.request("DELETE", "/cache_tree")[0], 405)


def with_image(text):
    with open(sample, "rb") as f:
        url = harness.data_url(f.read())
    return [
        {"role": "user",
         "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]}
    ]


def test_find(server, chrome):
    """POST: the nodes of a chat's prompt, and what its tokens are."""
    server.request("POST", "/reset_prefix_cache")
    messages = with_image("What is in this picture?")
    answer = server.ok(CHAT, {"messages": messages, "max_tokens": 20, "temperature": 0})
    for text in ("What is a red circle?", "Who are you?"):
        chat(server, text)
    messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
    got = server.ok("/cache_tree", {"messages": messages, "add_generation_prompt": False})
    nodes = {n["id"]: n for n in tree_of(server)["nodes"]}
    path = [nodes[i] for i in got["nodes"]]
    check.equal("a path from the start", [n["start"] for n in path], [0] + [n["end"] for n in path[:-1]])
    usage = answer["usage"]
    check.equal(
        "all that was computed", path[-1]["end"], usage["prompt_tokens"] + usage["completion_tokens"] - 1
    )
    check.equal("its image", sum(n["images"] for n in path), 1)
    places = got["places"]
    image = next(i for i, p in enumerate(places) if p["kind"] == "image")
    check.equal("the image's message",
                (places[image]["message"], places[image]["part"], places[image]["role"]), (0, 0, "user"))
    check.true(
        "its tokens",
        places[image + 1]["token"] - places[image]["token"] >= usage["prompt_tokens_details"]["image_tokens"],
        places,
    )
    check.equal("the response", [(p["message"], p["role"]) for p in places if p["kind"] == "text"][-1],
                (1, "assistant"))
    check.equal("so far", got["equal_tokens"], path[-1]["end"])
    changed = [messages[0], {"role": "assistant", "content": messages[1]["content"][:12]}]
    cut = server.ok("/cache_tree", {"messages": changed, "add_generation_prompt": False})
    check.equal("a response that was cut: the same path", cut["nodes"], got["nodes"])
    check.true("less of it", usage["prompt_tokens"] < cut["equal_tokens"] < got["equal_tokens"], (cut, got))
    other = [{"role": "user", "content": messages[0]["content"][1:]}]
    got = server.ok("/cache_tree", {"messages": other})
    check.true(
        "without the image: only the template", all(nodes[i]["images"] == 0 for i in got["nodes"]), got
    )
    got = server.ok("/cache_tree", {"messages": messages, "cache_salt": "another"})
    check.equal("with another salt: nothing", got["nodes"], [])
    for body, code in (({"messages": 3}, "invalid_type"),
                       ({"messages": other, "model": "x"}, "model_not_found")):
        status, error = server.post("/cache_tree", body)
        check.true(f"{body}", status in (400, 404) and error["error"]["code"] == code, error)


def test_tiers(server, chrome):
    """After a restart the tree is that of the disk; what is loaded is in memory, the rest branches off."""
    with Disk() as disk:
        one = disk.start()
        for text in ("What is a red circle?", "What is a blue square?", "Who are you?"):
            chat(one, text, max_tokens=8, ignore_eos=True)
        before = tree_of(one)["nodes"]
        tips = sorted(n["end"] for n in before if not n["children"])
        again = disk.restart()
        harness.wait_until(lambda: len(tree_of(again)["nodes"]) == 3)  # records are listed after the start
        got = tree_of(again)
        check.equal("nothing in memory", got["total_nodes"], 0)
        check.equal("all on the disk", {n["tier"] for n in got["nodes"]}, {"disk"})
        check.equal("the same ends", sorted(n["end"] for n in got["nodes"] if not n["children"]), tips)
        found = again.ok(
            "/cache_tree",
            {"messages": [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": ""}]},
        )
        check.true("places without nodes", found["places"] and isinstance(found["nodes"], list), found)
        answer = chat(again, "What is a red circle?", max_tokens=8, ignore_eos=True, return_cache_info=True)
        check.equal("loaded", answer["cache_info"]["tier"], "disk")
        nodes = tree_of(again)["nodes"]
        memory = [n for n in nodes if n["tier"] == "memory"]
        below = [n for n in nodes if n["tier"] == "disk"]
        check.equal(
            "one prompt is in memory",
            max(n["end"] for n in memory),
            (
                tips[-1]
                if len(set(tips)) == 1
                else answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"] - 1
            ),
        )
        check.equal("the others are on the disk, once each", len([n for n in below if not n["children"]]), 2)
        check.true(
            "they branch off what is in memory",
            all(
                n["parent"] is not None
                and nodes[n["parent"]]["tier"] == "memory"
                and nodes[n["parent"]]["start"] <= n["start"] <= nodes[n["parent"]]["end"]
                for n in below
            ),
            nodes,
        )
        again.request("POST", "/reset_prefix_cache")
        check.equal("a reset drops both", tree_of(again)["nodes"], [])


class Disk:
    """A server with a cache directory, behind an address that outlives it."""

    def __enter__(self):
        self.path, self.server = tempfile.mkdtemp(prefix="kvasir-test-"), None
        return self

    def start(self):
        self.server = harness.Server(
            args.binary, args.demo, "--enable-admin", "on", "--cache-dir", self.path, "--cache-load", "always"
        )
        return self.server

    def restart(self):
        self.server.stop()
        return self.start()

    def __exit__(self, *_):
        self.server.stop()
        shutil.rmtree(self.path)


# ---- in a browser ----


def opened(server, chrome, *size, **how):
    page = browser.Page(chrome, *size, **how)
    page.open(f"http://{server.host}:{server.port}/")
    page.wait("document.querySelector('#model-name').textContent !== ''")
    page.js("import(new URL('page/js/app.js', location.href)).then(() => 0)")  # it shows its conversation
    return page


def say(page, text, image=None):
    n = page.js("document.querySelectorAll('.turn').length")
    if image:
        page.files("input[type=file]", image)
        page.wait("document.querySelectorAll('.composer-box img').length > 0")
    page.js("document.querySelector('.composer-box textarea').focus()")
    page.type(text)
    page.key("Enter")
    page.wait(f"document.querySelectorAll('.turn').length === {n + 2} && {IDLE}")
    page.wait(
        "document.querySelectorAll('.turn')[document.querySelectorAll('.turn').length - 1]"
        ".querySelectorAll('.foot button').length > 0"
    )


STORE = """(async () => { const store = await import('./page/js/store.js');
  const c = await store.get(location.hash.slice(1)); %s })()"""


def stored(page):
    """The last message of the open conversation, as the browser keeps it."""
    for _ in range(100):
        m = page.js(STORE % "return c && c.messages[c.head]")
        if m and m.get("usage"):
            return m
        time.sleep(0.05)
    raise AssertionError(f"not kept: {m}")


def press(page, label):
    page.js(
        f"""[...document.querySelectorAll('.turn')].at(-1).querySelector('[aria-label="{label}"]').click()"""
    )
    page.wait("!!document.querySelector('.float:popover-open')")


def panel(page):
    press(page, "Statistics of this response")
    text = page.js("document.querySelector('.float').innerText")
    rows = dict(page.js("""[...document.querySelectorAll('.stat-rows dt')].map(
        t => [t.innerText, t.nextSibling.innerText])"""))
    big = page.js("[...document.querySelectorAll('.stat-big dd')].map(e => e.innerText)")
    page.key("Escape")
    page.wait("!document.querySelector('.float')")
    return text, rows, big


def number(text):
    return float(re.sub(r"[^\d.]", "", text))


def quiet(what, page):
    check.equal(f"{what}: no errors, no violations", page.complaints(), [])


def agrees(what, page):
    """The panel says what the server counted and timed; -> the message."""
    m, (text, rows, big) = stored(page), panel(page)
    u, t = m["usage"], m["timings"]
    check.equal(f"{what}: timed tokens", t["predicted_n"], u["completion_tokens"])
    check.equal(f"{what}: prompt", number(rows["Prompt"].split("token")[0]), u["prompt_tokens"])
    check.equal(f"{what}: cached", number(rows["From the cache"].split("token")[0]),
                u["prompt_tokens_details"]["cached_tokens"])
    check.equal(f"{what}: generated", number(rows["Generated"].split("token")[0]), u["completion_tokens"])
    check.true(f"{what}: to the first token", big[0].endswith((" ms", " s")), big)
    if big[0].endswith(" ms"):
        check.true(f"{what}: the server's time", abs(number(big[0]) - t["prompt_ms"]) <= 0.5, (big, t))
    if u["completion_tokens"] > 1:
        check.true(
            f"{what}: the server's rate", abs(number(big[1]) - t["predicted_per_second"]) <= 0.5, (big, t)
        )
        check.true(
            f"{what}: which is tokens in time",
            abs(t["predicted_per_second"] - (u["completion_tokens"] - 1) * 1e3 / t["predicted_ms"])
            <= 0.01 * t["predicted_per_second"],
            t,
        )
    else:
        check.equal(f"{what}: no rate of one token", big[1], "–")
    share = 100 * u["prompt_tokens_details"]["cached_tokens"] / u["prompt_tokens"]
    check.true(f"{what}: share", abs(number(big[2]) - share) <= 0.5, (big, u))
    return m, text, rows


def test_stats(server, chrome):
    server.request("POST", "/reset_prefix_cache")
    page = opened(server, chrome)
    say(page, "What is in this picture?", sample)
    m, text, rows = agrees("cold", page)
    check.equal("cold: nothing cached", m["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
    check.true("cold: images", re.search(r"16 of images", rows["Prompt"]), rows)
    check.true("cold: why", "Nothing was cached yet." in text, text)
    page.js("[...document.querySelectorAll('[aria-label=Regenerate]')].at(-1).click()")
    page.wait("!!document.querySelector('.versions')")
    page.wait(IDLE)
    m, text, rows = agrees("cached", page)
    check.equal("cached: all but the last token", m["usage"]["prompt_tokens_details"]["cached_tokens"],
                m["usage"]["prompt_tokens"] - 1)
    check.true("cached: why", "The whole prompt was cached" in text, text)
    say(page, "And now?")
    m, text, rows = agrees("second turn", page)
    end = m["cache_info"]["reuse_ends_at"]
    press(page, "Statistics of this response")
    page.js("document.querySelector('.stat-node').click()")
    page.wait("!!document.querySelector('.node.selected')")
    side = page.js("document.querySelector('.node-details').innerText")
    check.true("its node", m["content"][:30] in side and "Response" in side, (m["content"], side))
    check.true("second turn: where", f"Token {end['token']}, " in text and "message" in text, text)
    quiet("stats", page)


def put_chat(page, message, question="What is it?"):
    """Keeps a conversation whose response is `message`, and opens it."""
    page.js(f"""(async () => {{ const store = await import('./page/js/store.js');
      const c = store.newConversation(), q = store.newId(), a = store.newId();
      c.title = {json.dumps(question)}; c.root = q; c.head = a;
      c.messages[q] = {{id: q, parent: null, role: 'user', created: 1, attachments: [],
        content: {json.dumps(question)}}};
      c.messages[a] = {{id: a, parent: q, role: 'assistant', created: 2, params: {{}},
        ...{json.dumps(message)}}};
      await store.put(c); location.hash = c.id; }})()""")
    page.wait("document.querySelectorAll('.turn').length === 2")
    page.wait("!!document.querySelector('.turn.assistant .foot button')")


def kept(answer, **more):
    """A response as the page keeps it."""
    return {"content": answer["choices"][0]["message"]["content"], "usage": answer["usage"],
            "timings": answer["timings"], "cache_info": answer["cache_info"], "finish_reason": "stop", **more}


def test_rates(server, chrome):
    """Draft tokens, and a response of one token, which has no rate."""
    fields = {"return_cache_info": True, "timings_per_token": True}
    schema = {"type": "object", "properties": {"description_of_the_image": {"enum": ["circle"]}},
              "required": ["description_of_the_image"], "additionalProperties": False}
    drafted = chat(
        server,
        "Describe it.",
        max_tokens=64,
        **fields,
        response_format={"type": "json_schema",
                         "json_schema": {"name": "x", "schema": schema, "strict": True}},
    )
    details = drafted["usage"]["completion_tokens_details"]
    accepted, all_ = details["accepted_prediction_tokens"], sum(
        details[k] for k in ("accepted_prediction_tokens", "rejected_prediction_tokens")
    )
    check.true("tokens were drafted", all_ > 0, details)
    page = opened(server, chrome)
    put_chat(page, kept(drafted))
    m, text, rows = agrees("drafts", page)
    shown = rows["Draft tokens accepted"]
    check.true(
        "drafts: counts and rate",
        shown.startswith(f"{accepted} of {all_}")
        and abs(number(shown.split("rate")[1]) - 100 * accepted / all_) <= 0.5,
        (shown, details),
    )
    single = chat(server, "One token?", max_tokens=1, **fields)
    put_chat(page, kept(single))
    agrees("one token", page)
    quiet("rates", page)


def cache_tab(page):
    page.js("location.hash = 'cache'")
    page.wait("/^Live/.test(document.querySelector('.live-state').textContent)")


SEEN = "[...document.querySelectorAll('.diagram .node:not(.stub)')]"


def press_button(page, name):
    page.js(
        f"""[...document.querySelectorAll('#cache-view button')].find(
            b => (b.ariaLabel || b.innerText) === '{name}').click()"""
    )


def test_many_nodes(server, chrome):
    """1,000 nodes: few are drawn at first; all on request; found again by what a message says."""
    server.request("POST", "/reset_prefix_cache")
    page = opened(server, chrome)
    say(page, "What is in this picture?", sample)
    say(page, "How many zebras are there?")
    chat_id = page.js("location.hash.slice(1)")
    rng = random.Random(5)
    words = "red blue circle square triangle green small large image shape how what many who the".split()
    for _ in range(600):
        chat(server, " ".join(rng.choices(words, k=8)), max_tokens=3, ignore_eos=True)
        if len(tree_of(server)["nodes"]) >= 1010:
            break
    cache_tab(page)
    nodes = len(tree_of(server)["nodes"])
    check.true("there are 1,000", nodes >= 1000, nodes)
    check.true("it says so", f"{nodes:,} of " in page.js("document.querySelector('.live-state').textContent"))
    few = page.js(SEEN + ".length")
    check.true("some of them are drawn", 30 < few < 400, few)
    check.true(
        "the others are counted",
        page.js("document.querySelectorAll('.stub').length") > 0
        and page.js(f"""{SEEN}.length + [...document.querySelectorAll('.stub')].reduce((n, e) =>
                   n + Number(e.innerText.replace(/\\D/g, '')), 0) +
                   [...document.querySelectorAll('.fold')].reduce(
                   (n, e) => n + Number(e.innerText.replace(/[^0-9]/g, '')), 0)""")
        == nodes,
    )
    own = page.js(SEEN + ".filter(e => e.matches('.own')).map(e => e.ariaLabel)")
    check.true("this browser's chat is among them", any("zebras" in n for n in own), own)
    page.js("document.querySelector('.stub').click()")
    check.true("a stub opens", page.js(SEEN + ".length") > few)
    press_button(page, "Expand all")
    check.equal("all of them", page.js(SEEN + ".length"), nodes)
    over = page.js("""(() => { const at = new Set(); let twice = 0;
        for (const e of document.querySelectorAll('.diagram .node')) {
          const key = `${e.style.left} ${e.style.top}`; twice += at.has(key); at.add(key); }
        return twice; })()""")
    check.equal("none lies on another", over, 0)
    press_button(page, "Collapse all")
    check.true("and few again", page.js(SEEN + ".length") < 10)
    zoom = "document.querySelector('#cache-view output').textContent"
    first = page.js(zoom)
    press_button(page, "Zoom in")
    check.true("zoom", number(page.js(zoom)) > number(first), (first, page.js(zoom)))
    press_button(page, "Expand all")
    press_button(page, "Fit")
    check.true(
        "fit",
        page.js("""(() => { const d = document.querySelector('.diagram').getBoundingClientRect();
        return [...document.querySelectorAll('.diagram .node')].every(e => {
          const b = e.getBoundingClientRect();
          return b.right <= d.right && b.left >= d.left && b.top >= d.top; }); })()"""),
    )
    press_button(page, "Collapse all")
    pose = page.js("document.querySelector('.paper').style.transform")
    box = page.js("(b => [b.x + 300, b.y + 300])(document.querySelector('.diagram').getBoundingClientRect())")
    for kind, dx in (("mousePressed", 0), ("mouseMoved", 40), ("mouseMoved", 80), ("mouseReleased", 80)):
        page.call("Input.dispatchMouseEvent", type=kind, x=box[0] + dx, y=box[1], button="left", buttons=1,
                  clickCount=1)
    check.true("pan", page.js("document.querySelector('.paper').style.transform") != pose)

    page.js("document.querySelector('#cache-view input').focus()")
    page.type("zebras")
    page.wait("!!document.querySelector('.node.hit')")
    check.true(
        "found", re.fullmatch(r"\d+ match(es)?", page.js("document.querySelector('.matches').textContent"))
    )
    page.key("Enter")
    page.wait("!!document.querySelector('.node.selected') && !document.querySelector('.node-details').hidden")
    side = page.js("document.querySelector('.node-details').innerText")
    check.true("the message is named", "How many zebras are there?" in side and "You" in side, side)
    inside = """(() => { const a = document.querySelector('.node.selected').getBoundingClientRect(),
        d = document.querySelector('.diagram').getBoundingClientRect();
        return a.top >= d.top && a.bottom <= d.bottom && a.left >= d.left - 1; })()"""
    check.true("it is in sight", page.js(inside))
    page.js("[...document.querySelectorAll('.quote')].find(e => e.innerText.includes('zebras')).click()")
    page.wait(f"location.hash === '#{chat_id}' && document.querySelectorAll('.turn').length === 4")
    quiet("many nodes", page)


def test_keys(server, chrome):
    """The tree is a tree for those who use the keyboard or listen."""
    server.request("POST", "/reset_prefix_cache")
    for text in ("What is a red circle?", "What is a red square?", "Who are you?"):
        chat(server, text)
    page = opened(server, chrome)
    cache_tab(page)
    check.equal("one node can be tabbed to",
                page.js("document.querySelectorAll('.diagram [tabindex=\"0\"]').length"), 1)
    page.js("document.querySelector('.diagram [tabindex=\"0\"]').focus()")
    where = "document.activeElement.dataset.id"
    first = page.js(where)
    page.key("ArrowRight")
    second = page.js(where)
    check.true("right", first != second)
    page.key("ArrowLeft")
    check.equal(
        "left closes", (page.js(where), page.js("document.activeElement.ariaExpanded")), (second, "false")
    )
    page.key("ArrowRight")
    check.equal("right opens", page.js("document.activeElement.ariaExpanded"), "true")
    page.key("ArrowLeft")
    page.key("ArrowLeft")
    check.equal("then it goes up", page.js(where), first)
    page.key("Enter")
    check.true("Enter selects", page.js("!document.querySelector('.node-details').hidden"))
    check.equal("others' node", page.js("document.querySelector('.node-details h3').innerText"),
                "In no chat of this browser")
    nameless = [c for c in page.controls() if not c[1].strip()]
    check.equal("each control has a name", nameless, [])
    quiet("keys", page)


def test_live(server, chrome):
    """It follows the server while it is seen, and asks nothing when it is not."""
    server.request("POST", "/reset_prefix_cache")
    page = opened(server, chrome)
    cache_tab(page)
    page.wait("document.querySelector('.cache-empty').checkVisibility()")
    chat(server, "What is a red circle?")
    page.wait(SEEN + ".length > 0")
    check.true("the empty screen goes", page.js("!document.querySelector('.cache-empty').checkVisibility()"))
    page.js("location.hash = ''")
    page.wait("document.querySelector('#cache-view').hidden")
    page.js("new Promise(done => setTimeout(done, 300))")
    asked = sum("cache_tree" in u for u in page.requests())
    page.js("new Promise(done => setTimeout(done, 2500))")
    check.equal("hidden: no requests", sum("cache_tree" in u for u in page.requests()), asked)
    quiet("live", page)


def test_disk(server, chrome):
    """Thumbnails of a chat; after a restart its nodes are on the disk, and still its."""
    with Disk() as disk:
        proxy = Proxy(disk.start())
        page = opened(proxy, chrome)
        say(page, "What is in this picture?", sample)
        cache_tab(page)
        page.wait("!!document.querySelector('.node.own img')")
        check.true(
            "a thumbnail of the chat's image",
            page.js(
                "(e => e.src.startsWith('data:image/') && e.naturalWidth > 0)("
                "document.querySelector('.node.own img'))"
            ),
        )
        check.true("the legend has no disk", page.js("!document.querySelector('.of-disk').checkVisibility()"))
        proxy.server = disk.restart()
        page.wait("!!document.querySelector('.node.disk')")
        page.wait("!!document.querySelector('.node.disk.own img')")
        check.true("nothing is in memory", page.js("!document.querySelector('.node.memory')"))
        check.true("the legend has the disk", page.js("document.querySelector('.of-disk').checkVisibility()"))
        page.js("document.querySelector('.node.disk.own').click()")
        side = page.js("document.querySelector('.node-details').innerText")
        check.true("its details", "on disk" in side and "What is in this picture?" in side, side)
        page.js("document.querySelector('#tab-chat').click()")
        page.wait("document.querySelector('#chat-view').checkVisibility()")
        page.js("document.querySelector('.conversations a').click()")
        page.wait("document.querySelectorAll('.turn').length === 2")
        page.js("[...document.querySelectorAll('[aria-label=Regenerate]')].at(-1).click()")
        page.wait("!!document.querySelector('.versions')")
        page.wait(IDLE)
        m, text, rows = agrees("from the disk", page)
        check.true(
            "the panel names the disk",
            m["cache_info"]["tier"] == "disk"
            and "loaded from disk" in text
            and f"{m['cache_info']['loaded_tokens']} from disk" in rows["From the cache"],
            (rows, text),
        )
        proxy.close()


def proof(page):
    press(page, "Determinism check")
    page.wait("!!document.querySelector('.verdict')")
    out = page.js("""({good: document.querySelector('.verdict').matches('.good'),
        text: document.querySelector('.float').innerText,
        rows: document.querySelectorAll('.proof-runs > li').length,
        equal: document.querySelectorAll('.proof-runs > .equal').length,
        sums: [...document.querySelectorAll('.proof-run code')].map(e => e.innerText)})""")
    page.key("Escape")
    page.wait("!document.querySelector('.float')")
    return out


def test_determinism(server, chrome):
    server.request("POST", "/reset_prefix_cache")
    proxy = Proxy(server)
    page = opened(proxy, chrome)
    say(page, "What is in this picture?", sample)
    m = stored(page)
    n = m["usage"]["completion_tokens"]
    bodies, ran = [], []

    def watch(path, data):
        if path == CHAT and data.startswith(b"{"):
            bodies.append(json.loads(data))
        elif path == "/metrics":
            ran.append(
                max(float(x) for x in re.findall(rb"^vllm:num_requests_running(?:\{.*\})? (\d+)", data, re.M))
            )
        return data

    proxy.change = watch
    got = proof(page)
    check.true("equal", got["good"] and "Equal bits" in got["text"], got["text"])
    check.true("how much was compared", f"5 runs of {n} token" in got["text"], got["text"])
    check.equal("five runs, all equal", (got["rows"], got["equal"], len(set(got["sums"]))), (5, 5, 1))
    check.true("others ran", max(ran) >= 4, ran)
    mine = [b for b in bodies if b.get("prompt_token_ids") and b["choices"][0].get("token_ids")]
    check.true("each run asked for ids and log-probs",
               len(mine) >= 5 and all(len(b["choices"][0]["logprobs"]["content"]) == n for b in mine),
               len(mine))
    cached = [b["usage"]["prompt_tokens_details"]["cached_tokens"] for b in mine]
    check.true("cold and cached", 0 in cached and max(cached) > 0, cached)

    def fault(which, pattern, by):
        count = [0]

        def change(path, data):
            if path != CHAT or b'"prompt_token_ids"' not in data:
                return data
            count[0] += 1
            if count[0] != which:
                return data
            out = re.sub(pattern, by, data, count=1)
            check.true("the fault is in", out != data)
            return out

        proxy.change = change
        got = proof(page)
        check.true(f"{pattern} in response {which}: seen", not got["good"] and "Different" in got["text"],
                   got["text"])
        return got

    def last_digit(m):
        return m[1] + str((int(m[2]) + 1) % 10 or 2).encode() + m[3]

    got = fault(3, rb'("logprob":-\d+\.\d*)(\d)(,)', last_digit)
    check.true("which token", "Token 1 differs" in got["text"], got["text"])
    fault(4, rb'("token_ids":\[\d*)(\d)(,)', last_digit)
    fault(5, rb'("top_logprobs":\[\{[^]]*?"logprob":-\d+\.\d*)(\d)(,)', last_digit)
    proxy.change = None
    page.js(STORE % "c.messages[c.head].content = 'Something else.'; await store.put(c); location.hash = ''")
    page.wait("!document.querySelector('.turn')")
    page.js("document.querySelector('.conversations a').click()")
    page.wait("document.querySelector('#chat-view').innerText.includes('Something else.')")
    got = proof(page)
    check.true(
        "another text on the page", not got["good"] and "not that of the response" in got["text"], got["text"]
    )
    quiet("determinism", page)
    proxy.close()


def write(name, page):
    import io
    from PIL import Image

    out = io.BytesIO()
    page.js("document.activeElement.blur(); new Promise(done => setTimeout(done, 400))")
    Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(256).save(out, "PNG", optimize=True)
    with open(os.path.join(root, "docs", name), "wb") as f:
        f.write(out.getvalue())
    print(f"docs/{name}: {len(out.getvalue())} bytes")


def screenshots(server, chrome):
    cool = "store.setting('settings', {temperature: '0', logprobs: %s})"

    def begin(at, *size, probabilities="false", **how):
        page = opened(at, chrome, *size, **how)
        page.js(
            "(async () => { const store = await import('./page/js/store.js'); "
            + cool % probabilities
            + "; })()"
        )
        page.open(f"http://{at.host}:{at.port}/")
        page.wait("document.querySelector('#model-name').textContent !== ''")
        return page

    page = begin(server, 1200, 880)
    for text in ("Who are you?", "What shapes do you know?"):
        say(page, text)
        page.js("document.querySelector('#new').click()")
        page.wait("!document.querySelector('.turn')")
    say(page, "What is in this picture?", sample)
    say(page, "How many shapes are there?")
    write("page-light.png", page)
    server.request("POST", "/reset_prefix_cache")
    page = begin(server, 1200, 800, dark=True)
    say(page, "What is in this picture?", sample)
    say(page, "What color is the circle?")
    press(page, "Statistics of this response")
    write("page-dark.png", page)
    page = begin(server, 390, 760, dark=True, probabilities="true")
    page.size(390, 760, 2)
    say(page, "What is in this picture?", sample)
    write("page-phone.png", page)
    with Disk() as disk:
        proxy = Proxy(disk.start())
        page = begin(proxy, 1200, 800)
        say(page, "What shapes do you know?")
        say(page, "Which is your favourite?")
        rng, words = (random.Random(1),
                      "red blue circle square green small large what how many which is the".split())
        for n in range(90):
            chat(disk.server, " ".join(rng.choices(words, k=rng.randrange(3, 40))),
                 max_tokens=rng.randrange(3, 60), ignore_eos=True)
            if n == 45:
                proxy.server = disk.restart()
        page.js("document.querySelector('#new').click()")
        page.wait("!document.querySelector('.turn')")
        say(page, "What is in this picture?", sample)
        say(page, "How many shapes are there?")
        cache_tab(page)
        page.wait("!!document.querySelector('.node.own img')")
        page.js("document.querySelector('.node.own img').closest('.node').click()")
        write("page-cache.png", page)
        proxy.close()


def main():
    server = harness.Server(args.binary, args.demo, "--enable-admin", "on")
    chrome = browser.Browser() if browser.found() else None
    if not chrome:
        check.skip("the page itself", "there is no chromium")
    tests = [test_tree, test_find, test_tiers] + (
        [test_stats, test_rates, test_many_nodes, test_keys, test_live, test_disk, test_determinism]
        if chrome
        else []
    )
    if SHOTS:
        args.only, tests = None, []
        screenshots(server, chrome)
    for test in tests:
        if not args.only or test.__name__ in args.only:
            begin = time.monotonic()
            check.run(test, server, chrome)
            if chrome:
                chrome.close_pages()
            print(f"{test.__name__}: {time.monotonic() - begin:.1f} s", flush=True)
    if chrome:
        chrome.close()
    server.stop()
    if not SHOTS:
        check.end()


main()
