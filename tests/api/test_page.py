"""The page at `/`: how it is served, and the page itself in a headless Chromium, where there is one:
conversations, edits, versions, stop, settings, key, theme, phone, path prefix, files, keyboard, axe-core,
first paint. Answers and attachments: test_page_content.py; cache, statistics: test_page_cache.py."""
import glob
import gzip
import http.server
import json
import os
import re
import tempfile
import threading
import time

import browser
import harness

args = None
root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
check = harness.Checks()
sample = os.path.join(root, "models/demo/sample.png")
TURNS = """[...document.querySelectorAll('.turn')].map(
    t => t.querySelector('.said, .body > .markdown')?.innerText.trim())"""
TITLES = "[...document.querySelectorAll('.conversations .title')].map(t => t.textContent)"
IDLE = """!document.querySelector('.turn.running') &&
    document.querySelector('.turn.assistant:last-child .foot button')"""
LONG = {"ignore_eos": True, "skip_special_tokens": False, "max_tokens": harness.ENDLESS}

# ---- without a browser ----


def test_headers(server, chrome):
    """Each file of the page: compressed or not, its hash, its policy."""
    html = server.request("GET", "/", headers={"Accept": "text/html"})[2].decode()
    names = [
        os.path.relpath(f, os.path.join(root, "server/page"))
        for f in glob.glob(os.path.join(root, "server/page/js/*.js"))
    ]
    for path in ["/"] + ["/page/" + n for n in names + ["style.css", "sample.png"]]:
        accept = {"Accept": "text/html,*/*;q=0.8"}
        status, head, plain = server.request("GET", path, headers=accept)
        kind = {
            "/": "text/html; charset=utf-8",
            "js": "text/javascript; charset=utf-8",
            "css": "text/css; charset=utf-8",
            "png": "image/png"
        }[path if path == "/" else path.split(".")[-1]]
        check.equal(f"GET {path}", (status, head["content-type"]), (200, kind))
        for name, value in (("x-content-type-options", "nosniff"), ("referrer-policy", "no-referrer"),
                            ("vary", "Accept, Accept-Encoding, Origin"), ("cache-control", "no-cache")):
            check.equal(f"GET {path} {name}", head.get(name), value)
        _, packed_head, packed = server.request("GET",
                                                path,
                                                headers={
                                                    **accept, "Accept-Encoding": "br, gzip"
                                                })
        check.equal(f"{path} compressed", (packed_head["content-encoding"], gzip.decompress(packed)),
                    ("gzip", plain))
        check.true(f"{path}: a hash for each", packed_head["etag"] != head["etag"])
        refused = server.request("GET", path, headers={**accept, "Accept-Encoding": "gzip;q=0"})
        check.equal(f"{path} to who refuses gzip", refused[2], plain)
        again = server.request("GET", path, headers={**accept, "If-None-Match": f'"other", {head["etag"]}'})
        check.equal(f"{path} again", (again[0], again[2], again[1]["etag"]), (304, b"", head["etag"]))
        status, same, nothing = server.request("HEAD", path, headers=accept)
        check.equal(f"HEAD {path}", (status, nothing, same["content-length"]), (200, b"", str(len(plain))))
        if path.startswith("/page/js"):
            with open(os.path.join(root, "server", path[1:]), "rb") as f:
                check.true(f"{path} is the file", f.read() == plain)
    policy = dict(p.split(" ", 1) for p in head["content-security-policy"].split("; "))
    check.equal("nothing but what is named", (policy["default-src"], policy["frame-ancestors"]),
                ("'none'", "'none'"))
    check.true("nothing inline, nothing evaluated", "unsafe" not in head["content-security-policy"])
    check.equal("scripts and requests", (policy["script-src"], policy["connect-src"]), ("'self'", "'self'"))
    check.true("no script and no style in the HTML", not re.search(r"<style|<script>|style=|\son\w+=", html))
    check.true("relative addresses", not re.search(r"(?:src|href)=.(?:/|https?:)", html), html)
    for name in names:
        with open(os.path.join(root, "server/page", name), encoding="utf-8") as f:
            text = f.read()
        for wrong in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "cookie"):
            check.true(f"{name} has no {wrong}", wrong not in text)
    for accept in (None, "*/*", "application/json"):
        status, head, body = server.request("GET", "/", headers={"Accept": accept})
        check.equal(f"Accept: {accept}", (status, head["content-type"], body),
                    (200, "application/json", b'{"status":"ok"}'))
    check.equal("POST /", server.request("POST", "/", b"{}")[0], 405)
    for path in ("/page/", "/page/none.js", "/page/../page/style.css", "/page/js%2fapp.js"):
        status, _, body = server.request("GET", path)
        check.equal(f"GET {path}", (status, json.loads(body)["error"]["code"]), (404, "unknown_url"))


def test_size(server, chrome):
    """All that the page can ever load, compressed."""
    with open(os.path.join(os.path.dirname(args.binary), "page/page_assets.inc"), encoding="utf-8") as f:
        names = re.findall(r'^ASSET\(\d+, "([^"]+)"', f.read(), re.M)
    sizes = {
        n: len(server.request("GET", "/page/" + n, headers={"Accept-Encoding": "gzip"})[2])
        for n in names
    }
    check.true("at most 1.5 MB", 0 < sum(sizes.values()) <= 1_500_000, sizes)
    own = sum(size for n, size in sizes.items() if not n.startswith("lib/"))
    check.true("its own part", own < 120_000, sizes)


# ---- in a browser ----


def begun(page):
    """Waits until the page shows what its address says; then tests see the module `store`."""
    page.js("import(new URL('page/js/app.js', location.href)).then(() => import(new URL('page/js/store.js',"
            " location.href))).then(s => { window.store = s; })")


def opened(server, chrome, *size, path="/", **how):
    page = browser.Page(chrome, *size, **how)
    page.open(f"http://{server.host}:{server.port}{path}")
    page.wait("document.querySelector('.composer textarea') && document.querySelector('#model option')")
    begun(page)
    return page


def click(page, selector, text=None):
    """The last visible one that matches, and has this label or text; waits until there is one."""
    label = json.dumps(text)
    found = f"""[...document.querySelectorAll({json.dumps(selector)})].filter(e =>
        e.getClientRects().length && {label} === null ||
        [e.ariaLabel, e.textContent.trim()].includes({label}))"""
    page.wait(f"{found}.length")
    page.js(f"{found}.at(-1).click()")


def put(page, selector, value):
    """What a person types into a field, when it is there."""
    page.wait(f"document.querySelector({json.dumps(selector)})")
    page.js(
        f"""(e => {{ e.focus(); e.value = {json.dumps(value)}; 
        e.dispatchEvent(new Event('input', {{bubbles: true}}));
        e.dispatchEvent(new Event('change', {{bubbles: true}}));
        }})(document.querySelector({json.dumps(selector)}))"""
    )


def send(page, text):
    page.js("document.querySelector('.composer textarea').focus()")
    page.type(text)
    page.key("Enter")


def say(page, text):
    """Sends a message; waits for the answer's end; -> its text."""
    n = page.js("document.querySelectorAll('.turn').length")
    send(page, text)
    page.wait(f"document.querySelectorAll('.turn').length === {n + 2} && {IDLE}")
    return page.js(TURNS)[-1]


def reload(page):
    page.js("window.store?.get('').then(() => 0)")  # after what is being stored: the end of an answer
    page.call("Page.reload")
    page.wait("document.readyState === 'complete' && document.querySelector('#model option')")
    begun(page)


def configure(page, **values):
    """Settings, as the sheet stores them; they count from the next load on."""
    page.js(f"localStorage.setItem('kvasir-settings', {json.dumps(json.dumps(values))})")
    reload(page)


def spy(page):
    page.js("""(() => { const was = window.fetch; window.sent = [];
        window.fetch = (u, o) => { if (o?.body) sent.push(JSON.parse(o.body)); return was(u, o); }; })()""")


def quiet(what, page):
    check.equal(f"{what}: no errors, no violations", page.complaints(), [])
    outside = [
        u for u in page.requests() if not u.startswith(("http://127.0.0.1:", "data:", "about:", "blob:"))
    ]
    check.equal(f"{what}: no request to others", outside, [])


def test_start(server, chrome):
    """The empty screen, its sample image and prompts; a first answer; all of it after a reload."""
    paints = []
    while not paints or (min(paints) > 300 and len(paints) < 40):  # others use this machine, too
        page = opened(server, chrome)
        paints.append(page.js("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
    check.true("first paint within 300 ms", min(paints) <= 300, paints)
    configure(page, temperature="0")
    check.equal("three prompts", page.js("document.querySelectorAll('.prompts button').length"), 3)
    check.true("the sample", page.js("document.querySelector('.sample img').naturalWidth") > 0)
    click(page, ".prompts button", "What is in this picture?")
    page.wait(IDLE)
    turns = page.js(TURNS)
    check.true("the image was seen", "red circle" in turns[1] and "blue square" in turns[1], turns)
    check.equal("who speaks", page.js("document.querySelector('.turn.assistant h2').innerText"), "demo")
    again = say(page, "How many shapes are there?")
    check.true("a second turn", "two" in again, again)
    before = page.js(TURNS)
    reload(page)
    page.wait("document.querySelectorAll('.turn').length === 4")
    check.equal("after a reload", page.js(TURNS), before)
    check.equal("the image, too", page.js("document.querySelectorAll('.turn.user img').length"), 1)
    check.equal("its title", page.js(TITLES), ["What is in this picture?"])
    click(page, "#new")
    page.wait(
        "!document.querySelector('.turn') && document.querySelector('.welcome').getClientRects().length")
    check.equal("a new one is listed when it has a message", len(page.js(TITLES)), 1)
    quiet("start", page)


def test_history(server, chrome):
    """Several conversations: order, search, rename, delete, undo, the browser's Back."""
    page = opened(server, chrome)
    for text in ("Hello!", "What is a red circle?", "Name three colors."):
        click(page, "#new")
        page.wait("!document.querySelector('.turn')")
        say(page, text)
    page.wait(f"{TITLES}[0] === 'Name three colors.'")
    check.equal("newest first", page.js(TITLES), ["Name three colors.", "What is a red circle?", "Hello!"])
    page.js("[...document.querySelectorAll('.conversations a')].at(-1).click()")
    page.wait(f"{TURNS}[0] === 'Hello!'")
    page.js("history.back()")
    page.wait(f"{TURNS}[0] === 'Name three colors.'")
    put(page, ".search input", "RED circ")
    page.wait(f"{TITLES}.length === 1")
    check.true("found by its text", "red circle"
               in page.js("document.querySelector('.conversations .found').innerText"))
    put(page, ".search input", "no such text")
    page.wait("document.querySelector('.conversations').innerText === 'Nothing found.'")
    put(page, ".search input", "")
    page.wait(f"{TITLES}.length === 3")
    more = "document.querySelector('.conversations li .icon-button')"
    page.js(more + ".click()")
    check.true("a menu as wide as its items", page.js("document.querySelector('.menu').offsetWidth") < 300)
    page.key("Escape")
    page.js(f"{more}.click()")
    check.equal("a menu", page.js("[...document.querySelectorAll('[role=menuitem]')].map(i => i.innerText)"),
                ["Rename", "Export as JSON", "Export as Markdown", "Delete"])
    check.equal("in which one is", page.js("document.activeElement.innerText"), "Rename")
    page.key("Escape")
    check.true("Escape leaves it",
               page.js(f"document.activeElement === {more} && !document.querySelector('[role=menu]')"))
    page.js(f"{more}.click()")
    click(page, "[role=menuitem]", "Rename")
    page.type("Colors <b>of</b> the day")
    page.key("Enter")
    page.wait(f"{TITLES}[0] === 'Colors <b>of</b> the day' && document.activeElement === {more}")
    check.equal("the window has the title", page.js("document.title"), "Colors <b>of</b> the day – Kvasir")
    page.js(f"{more}.click()")
    click(page, "[role=menuitem]", "Delete")
    page.wait(f"{TITLES}.length === 2")
    page.wait("!document.querySelector('.turn')")
    click(page, ".toast button", "Undo")
    page.wait(f"{TITLES}.length === 3")
    reload(page)
    page.wait(f"{TITLES}.length === 3")
    check.equal("kept", page.js(TITLES)[0], "Colors <b>of</b> the day")
    click(page, ".side-foot button")
    click(page, "[role=menuitem]", "Delete all")
    click(page, "dialog footer button", "Delete all")
    page.wait(f"{TITLES}.length === 0")
    quiet("history", page)


def test_versions(server, chrome):
    """Edit, regenerate, switch between versions, branch; what is sent follows what is shown."""
    page = opened(server, chrome)
    spy(page)
    first = say(page, "Hello!")
    click(page, ".turn.assistant button", "Regenerate")
    page.wait(f"document.querySelector('.turn.assistant .versions')?.innerText.trim() === '2/2' && {IDLE}")
    click(page, ".turn.assistant button", "Previous version")
    page.wait("document.querySelector('.versions').innerText.trim() === '1/2'")
    check.equal("the first is kept", page.js(TURNS)[1], first)
    say(page, "What is a red circle?")
    click(page, ".turn.user button", "Edit")
    check.equal("what is edited", page.js("document.activeElement.value"), "What is a red circle?")
    page.key("Escape")
    check.equal("Escape leaves it as it was", page.js("document.querySelectorAll('.edit-form').length"), 0)
    click(page, ".turn.user button", "Edit")
    page.js("document.activeElement.select()")
    page.type("Is there a star?")
    page.key("Enter")
    page.wait(f"{TURNS}[2] === 'Is there a star?' && {IDLE}")
    check.equal("sent with what is shown", [m["content"] for m in page.js("sent.at(-1).messages")],
                ["Hello!", first, "Is there a star?"])
    check.equal(
        "two branches",
        page.js("[...document.querySelectorAll('.turn')][2].querySelector('.versions').innerText.trim()"),
        "2/2")
    before = page.js(TURNS)
    reload(page)
    page.wait("document.querySelectorAll('.turn').length === 4")
    check.equal("after a reload", page.js(TURNS), before)
    page.js(
        "document.querySelectorAll('.turn')[2].querySelector('[aria-label=\"Previous version\"]').click()"
    )
    page.wait(f"{TURNS}[2] === 'What is a red circle?'")
    page.js(
        "document.querySelectorAll('.turn')[1].querySelector('[aria-label^=Branch]').click()"
    )
    page.wait("document.querySelectorAll('.turn').length === 2")
    check.equal("a chat of its own", page.js(TURNS), ["Hello!", first])
    say(page, "And a blue one?")
    page.wait(f"{TITLES}.length === 2")
    page.js("document.querySelectorAll('.conversations a')[1].click()")
    page.wait(f"{TURNS}[2] === 'What is a red circle?'")
    check.equal("which is as it was", page.js(f"{TURNS}.length"), 4)
    page.js("navigator.clipboard.writeText = async text => { window.copied = text; }")
    click(page, ".turn.assistant:last-child button", "Copy")
    check.equal("copied", page.js("window.copied"), page.js(TURNS)[3])
    quiet("versions", page)


def test_stop(server, chrome):
    """Text appears while it comes; the button and Escape end it; a reload keeps what had come; the rest of
    the page goes on meanwhile."""
    server = harness.Server(args.binary, harness.endless(args.demo))
    page = opened(server, chrome)
    configure(page, extra=json.dumps(LONG))
    length = "(document.querySelector('.turn.assistant:last-child .body')?.innerText.length || 0)"
    send(page, "Tell me everything.")
    page.wait(f"{length} > 200 && document.querySelector('.turn.running')")
    shown = page.js(length)
    page.wait(f"{length} > {shown}")
    check.equal("one request runs", server.metric("vllm:num_requests_running"), 1)
    said = page.js("document.querySelector('[aria-live=polite]').textContent.length")
    click(page, "#new")
    page.wait("!document.querySelector('.turn')")
    check.equal("it runs on beside a new chat",
                page.js("document.querySelectorAll('.conversations li.running').length"), 1)
    page.js("document.querySelector('.conversations a').click()")
    page.wait(f"{length} > {shown} && document.querySelector('.turn.running')")
    check.true("told to those who listen", said > 0)
    click(page, ".composer .send", "Stop")
    page.wait(IDLE)
    check.true("what came stays", page.js(length) > shown)
    check.equal("it says so", page.js("document.querySelector('.turn.assistant:last-child .hint').innerText"),
                "Stopped")
    check.true("the server has stopped, too",
               harness.wait_until(lambda: server.metric("vllm:num_requests_running") == 0))
    click(page, ".turn.assistant button", "Regenerate")
    page.wait(f"{length} > 50 && document.querySelector('.turn.running')")
    page.key("Escape")
    page.wait(IDLE)
    check.equal("two versions", page.js("document.querySelector('.versions').innerText.trim()"), "2/2")
    click(page, ".turn.assistant button", "Regenerate")
    page.wait(f"{length} > 50 && document.querySelector('.turn.running')")
    page.js("""(async () => { const [{id}] = await store.listConversations();
        for (let c; (c = await store.get(id)).messages[c.head].content.length < 60;)
            await new Promise(done => setTimeout(done, 50)); })()""")
    reload(page)
    page.wait(f"{length} > 50")
    check.true("a reload keeps what had come", page.js("!document.querySelector('.turn.running')"))
    check.true("and says that it is not all",
               page.js("document.querySelector('.turn.assistant .hint').innerText").startswith("Incomplete"))
    check.true("and stops the server",
               harness.wait_until(lambda: server.metric("vllm:num_requests_running") == 0))
    quiet("stop", page)
    server.stop()


def test_sent_early(server, chrome):
    """A message that is sent while the empty chat still opens stays in view."""
    page = opened(server, chrome)
    page.js("(() => { const t = document.querySelector('.composer textarea'); "
            "document.querySelector('#new').click(); t.value = 'Hello!'; "
            "t.dispatchEvent(new Event('input', {bubbles: true})); "
            "t.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true, cancelable: true}));"
            " })()")
    page.wait(f"document.querySelectorAll('.turn').length === 2 && {IDLE}", 10)
    check.equal("its text", page.js(TURNS)[0], "Hello!")
    quiet("sent early", page)


def test_tabs(server, chrome):
    """Two tabs with one conversation: neither loses what the other has added."""
    page = opened(server, chrome)
    say(page, "Hello!")
    other = opened(server, chrome, path="/" + page.js("location.hash"), beside=page)
    other.wait("document.querySelectorAll('.turn').length === 2")
    say(other, "What can you do?")
    page.wait("document.querySelectorAll('.turn').length === 4")
    say(page, "How many shapes are there?")
    page.wait(f"{TURNS}[3]")
    other.wait("document.querySelectorAll('.turn').length === 6")
    check.equal("the same in both", other.js(TURNS), page.js(TURNS))
    click(other, "#new")
    other.wait("!document.querySelector('.turn')")
    say(other, "Hi")
    page.wait(f"{TITLES}.length === 2")
    page.js("(async () => { const c = await store.get(location.hash.slice(1));"
            " window.stale = structuredClone(c); delete stale.messages[c.head].finish_reason;"
            " stale.messages[c.head].content = ''; c.messages.late = {id: 'late', parent: c.head,"
            " role: 'user', content: 'late', created: 1}; await store.put(c); await store.put(stale); })()")
    kept = page.js("store.get(location.hash.slice(1)).then(c => [c.messages.late.content,"
                   " c.messages[c.head].content])")
    check.equal("a stale copy takes nothing away", kept, ["late", page.js(TURNS)[5]])
    quiet("tabs", page)
    quiet("tabs", other)


def test_hostile_import(server, chrome):
    """Files whose parts have wrong types, or names that JavaScript's objects have."""
    page = opened(server, chrome)
    user = {"id": "u", "role": "user", "parent": None, "content": "hi"}
    odd = {"tool_calls": [{}, 5], "finish_reason": "tool_calls", "logprobs": [{"token": 5}], "usage": "x",
           "timings": 7, "cache_info": {"reuse_ends_at": 5}, "params": [], "reasoning": {}, "error": 5,
           "model": {}, "request": {"model": "other"}}
    for i, more in enumerate((odd, {"tool_calls": "boo", "logprobs": "boo"}, {})):
        file = {"conversations": [{"id": "cache", "title": {}, "messages": {
            "u": user,
            "a": {"id": "a", "role": "assistant", "parent": "u", "content": "an answer", **more}}}]}
        page.js(f"store.importText({json.dumps(json.dumps(file))}).then(([id]) => {{ location.hash = id; }})")
        page.wait("location.hash.length > 9 && document.querySelectorAll('.turn').length === 2")
        check.equal(f"file {i}", page.js(TURNS), ["hi", "an answer"])
        check.true("no request of the file's own", not page.js(
            "document.querySelector('.foot button[aria-label^=Determinism]')"))
        click(page, "#new")
        page.wait("!document.querySelector('.turn')")
    for name in ("__proto__", "constructor"):
        file = '{"conversations": [{"id": "x", "messages": {"%s": {"role": "user", "content": "x"}}}]}' % name
        check.equal(f"a message named {name}", page.js(
            f"store.importText({json.dumps(file)}).then(() => 'taken', e => e.message.slice(0, 15))"),
                    "This is not a f")
    quiet("files", page)


def test_broken(server, chrome):
    """The server dies while it answers: the page says so, keeps what came, and finds it again."""
    server = harness.Server(args.binary, harness.endless(args.demo))
    page = opened(server, chrome)
    configure(page, extra=json.dumps(LONG))
    send(page, "Hello!")
    page.wait("document.querySelector('.turn.assistant .body')?.innerText.length > 100")
    server.process.kill()
    page.wait(IDLE)
    check.true("it says so", "connection closed"
               in page.js("document.querySelector('.turn .problem').innerText"))
    check.true("what came stays",
               page.js("document.querySelector('.turn.assistant .body').innerText.length > 100"))
    click(page, ".turn .problem button", "Try again")
    page.wait("document.querySelector('.turn .problem')?.innerText.includes('cannot be reached')")
    again = harness.Server(args.binary, args.demo, "--port", str(server.port))
    configure(page)
    page.wait("document.querySelector('.turn .problem')")
    check.equal("a failed answer is kept as one", page.js("document.querySelectorAll('.turn').length"), 2)
    click(page, ".turn .problem button", "Try again")
    page.wait(f"!document.querySelector('.turn .problem') && {IDLE}")
    check.true("and it answers", page.js(TURNS)[1] != "")
    again.stop()
    server.stop(expect=-9)


def test_settings(server, chrome):
    page = opened(server, chrome)
    click(page, "#settings")
    page.wait("document.querySelector('dialog.sheet')")
    values = {
        "system": "Be brief.",
        "temperature": "0.5",
        "top_p": "0.9",
        "top_k": "20",
        "min_p": "0.01",
        "repetition_penalty": "1.1",
        "presence_penalty": "0.2",
        "frequency_penalty": "-0.1",
        "max_tokens": "7",
        "seed": "3",
        "stop": "zz\n\\n\\n",
        "extra": '{"min_tokens": 7}',
        "reasoning": "off"
    }
    for name, value in values.items():
        put(page, f"dialog [name={name}]", value)
    page.js("document.querySelector('dialog [name=logprobs]').click()")
    put(page, "dialog form input", "Mine")
    page.js("document.querySelector('dialog form').requestSubmit()")
    put(page, ".presets select", "Precise")
    check.equal("a preset",
                page.js("['temperature', 'top_k'].map(n => document.querySelector(`[name=${n}]`).value)"),
                ["0", ""])
    reload(page)
    click(page, "#settings")
    put(page, ".presets select", "Mine")
    check.equal(
        "its own, after a reload",
        page.js(f"{json.dumps(list(values))}.map(n => document.querySelector(`[name=${{n}}]`).value)"),
        list(values.values()))
    page.key("Escape")
    page.wait("!document.querySelector('dialog')")
    spy(page)
    say(page, "Hello!")
    body = page.js("sent[0]")
    want = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": -0.1,
        "max_tokens": 7,
        "seed": 3,
        "min_tokens": 7,
        "stop": ["zz", "\n\n"],
        "logprobs": True,
        "stream": True,
        "model": "demo",
        "enable_thinking": False,
        "return_cache_info": True
    }
    check.equal("what was asked", {k: body.get(k) for k in want}, want)
    check.equal("messages", body["messages"], [{
        "role": "system",
        "content": "Be brief."
    }, {
        "role": "user",
        "content": "Hello!"
    }])
    check.equal("the limit is named", page.js("document.querySelector('.turn .hint').innerText"),
                "Stopped: max tokens reached")
    for name, value, word in (("extra", "{", "not JSON"), ("schema", "[1]", "not a JSON object")):
        click(page, "#settings")
        put(page, f"dialog [name={name}]", value)
        page.key("Escape")
        page.wait("!document.querySelector('dialog')")
        send(page, "x")
        page.wait("document.querySelector('dialog.sheet')")
        check.equal(
            "a wrong field sends nothing, and is shown",
            page.js("(a => [a.name, a.ariaInvalid, document.querySelectorAll('.turn').length])"
                    "(document.activeElement)"),
            [name, "true", 2])
        said = page.js("document.activeElement.parentNode.querySelector('.problem').innerText")
        check.true("and it says why", word in said, said)
        put(page, f"dialog [name={name}]", "")
        page.key("Escape")
        page.js("document.querySelector('.composer textarea').value = ''")
    configure(page,
              schema='{"type": "object", "properties": {"n": {"const": 4}}, "required": ["n"]}',
              temperature="0")
    got = say(page, "How many?")
    check.equal("structured output", json.loads(re.sub(r"^json|\s", "", got)), {"n": 4})
    configure(page, extra='{"top_k": -7}')
    send(page, "Hello?")
    page.wait("document.querySelector('.turn .problem')")
    problem = page.js("document.querySelector('.turn .problem span').innerText")
    check.true("an error in words", "top_k" in problem and "{" not in problem, problem)
    configure(page)
    spy(page)
    say(page, "Hello again!")
    check.equal("what failed is not sent", [m["role"] for m in page.js("sent.at(-1).messages")],
                ["user", "assistant", "user", "assistant", "user"])


def exported(page, label):
    """The text of the file that the menu of the first conversation gives."""
    page.js(
        """window.saved = null; 
        URL.createObjectURL = blob => { blob.text().then(t => { saved = t; }); return 'data:,'; };
        HTMLAnchorElement.prototype.click = function() { window.name_of_file = this.download; }""")
    page.wait("document.querySelector('.conversations li .icon-button')")
    page.js("document.querySelector('.conversations li .icon-button').click()")
    click(page, "[role=menuitem]", label)
    page.wait("saved")
    return page.js("name_of_file"), page.js("saved")


def test_files(server, chrome):
    """JSON and Markdown out of one browser and into another; files that are none, or were made to do harm."""
    page = opened(server, chrome)
    configure(page, temperature="0")
    click(page, ".prompts button", "What is in this picture?")
    page.wait(IDLE)
    say(page, "How many shapes are there?")
    turns = page.js(TURNS)
    name, text = exported(page, "Export as JSON")
    name_md, text_md = exported(page, "Export as Markdown")
    stem = "What is in this picture?".replace(" ", "-").rstrip("?")
    check.equal("names", (name, name_md), (stem + ".json", stem + ".md"))
    check.true("Markdown",
               text_md.startswith("# What is in this picture?\n") and "\n## demo\n" in text_md, text_md[:200])
    for kind, file in (("JSON", text), ("Markdown", text_md)):
        other = opened(server, chrome)
        ids = other.js(f"store.importText({json.dumps(file)})")
        other.js(f"location.hash = {json.dumps(ids[0])}")
        other.wait("document.querySelectorAll('.turn').length === 4")
        check.equal(f"{kind}: the same turns", other.js(TURNS), turns)
        check.equal(f"{kind}: the image", other.js("document.querySelector('.turn.user img').naturalWidth"),
                    320)
        check.true(f"{kind}: it goes on", len(say(other, "Is there a star?")) > 0)
        quiet(kind, other)
    other.js("import(new URL('page/js/dom.js', location.href)).then(d => { window.dom = d; })")
    other.js(f"store.importText({json.dumps(text)})")
    reload(other)
    other.wait(f"{TITLES}.length === 2")
    refused = "This is not a file of conversations that this page has exported (JSON or Markdown)."
    for wrong in ("", "{}", "[1]", "hello",
                  '{"conversations": [{"id": "a", "messages": {"x": {"role": "boss"}}}]}',
                  '{"conversations": [{"id": "a", "messages": {"x": {"role": "user", "parent": "x"}}}]}'):
        check.equal(f"{wrong!r}", other.js(f"store.importText({json.dumps(wrong)}).catch(e => e.message)"),
                    refused)
    evil = "<img src=x onerror=window.bad=1>"
    harm = {
        "conversations": [{
            "id": evil,
            "title": evil,
            "head": "a",
            "messages": {
                "a": {
                    "role":
                    "user",
                    "content":
                    evil,
                    "parent":
                    None,
                    "attachments": [{
                        "kind": "image",
                        "name": evil,
                        "data": "https://evil.example/a.png"
                    }, {
                        "kind": "image",
                        "name": evil,
                        "data": "data:image/svg+xml,<svg onload='window.bad=1'/>"
                    }]
                }
            }
        }]
    }
    other.js(f"store.importText({json.dumps(json.dumps(harm))}).then(ids => {{ location.hash = ids[0]; }})")
    other.wait(f"{TURNS}.length === 1")
    other.js("new Promise(done => setTimeout(done, 100))")
    check.equal("text stays text", (other.js(TURNS), other.js("window.bad")), ([evil], None))
    check.equal("no image from elsewhere", other.js("document.querySelectorAll('.turn img').length"), 1)
    quiet("a harmful file", other)


def test_key(server, chrome):
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("the-key\n")
        keys.flush()
        closed = harness.Server(args.binary, args.demo, "--api-key-file", keys.name)
        check.equal("the tree needs the key", closed.request("GET", "/cache_tree")[0], 401)
        check.equal("the page does not", closed.request("GET", "/page/style.css")[0], 200)
        page = browser.Page(chrome)
        shown = "document.querySelector('#key-form').getClientRects().length > 0"
        page.open(f"http://{closed.host}:{closed.port}/")
        page.wait(shown)
        check.equal(
            "it is asked for, and nothing is called wrong",
            page.js("[document.activeElement.name, document.querySelector('#key-problem').innerText]"),
            ["key", ""])
        page.type("wrong")
        page.key("Enter")
        page.wait(
            "document.querySelector('#key-problem').innerText === 'The server does not accept this key.'")
        page.js("document.querySelector('[name=key]').focus()")
        page.type("the-key")
        page.key("Enter")
        page.wait(f"!({shown})")
        check.true("then it answers", len(say(page, "Hello!")) > 0)
        reload(page)
        check.true("a reload keeps it", not page.js(shown))
        check.equal("in this tab alone", page.js("[localStorage.getItem('kvasir-key'), document.cookie]"),
                    [None, ""])
        click(page, "#settings")
        click(page, "dialog button", "Forget the key")
        page.wait(shown)
        page.js(
            "document.querySelector('[name=remember]').click(); document.querySelector('[name=key]').focus()")
        page.type("the-key")
        page.key("Enter")
        page.wait(f"!({shown})")
        check.equal("or for good", page.js("localStorage.getItem('kvasir-key')"), "the-key")
        other = [c for c in page.complaints() if "401" not in c]
        check.equal("no other complaints", other, [])
        closed.stop()


def test_theme(server, chrome):
    page = opened(server, chrome, dark=True)
    dark = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every(v => v < 60)"
    check.true("the system's", page.js(dark))
    click(page, "#settings")
    for label, want in (("Light", False), ("Dark", True), ("System", True), ("Light", False)):
        click(page, ".segments label", label)
        check.equal(label, page.js(dark), want)
    page.call("Page.reload")
    page.wait("document.readyState === 'complete'")
    check.true("it stays, from the first paint on", not page.js(dark))
    quiet("theme", page)


FITS = """document.scrollingElement.scrollWidth <= innerWidth && [...document.querySelectorAll(
    'main, .scroll, header, .turn, .dialog-content')].every(e => e.scrollWidth <= e.clientWidth + 1)"""


def test_phone(server, chrome):
    """Nothing is wider than a small phone, nothing covers the chat unless it is asked for."""
    page = opened(server, chrome, 360, 640, dark=True)
    page.js("window.was = document.body.className; document.body.className = ''")
    check.true("before the scripts have come, too", page.js("!document.querySelector('#side').offsetWidth"))
    page.js("document.body.className = was")
    check.true("the empty screen fits", page.js(FITS))
    check.true(
        "so do its prompts",
        page.js("[...document.querySelectorAll('.prompts button')].every(b => "
                "b.getBoundingClientRect().right <= innerWidth)"))
    say(page, "What is this? " + "longword" * 30)
    check.true("a chat fits", page.js(FITS))
    over = "document.elementsFromPoint(180, 250)[0].closest('#main') !== null"
    check.true("the chat is not covered", page.js(over))
    click(page, "#side-button")
    check.true("the list lies over it when asked for",
               page.js(f"!({over}) && document.querySelector('#main').inert"))
    page.key("Escape")
    check.true("and goes away", page.js(f"{over} && !document.querySelector('#main').inert"))
    click(page, "#side-button")
    page.js("document.querySelector('.conversations a').click()")
    check.true("a choice closes it, too", page.js(over))
    click(page, "#settings")
    page.js("new Promise(done => setTimeout(done, 250))")
    check.true("settings fit",
               page.js(f"{FITS} && document.querySelector('dialog').offsetWidth === innerWidth"))
    click(page, "dialog button", "Close")
    small = page.js(
        "[...document.querySelectorAll('#main :is(button, a)')].filter(b => b.getClientRects().length && "
        "!b.matches('.turn *') && b.getBoundingClientRect().height < 28).map(b => b.outerHTML)")
    check.equal("what one taps is large enough", small, [])
    quiet("phone", page)


def test_prefix(server, chrome):
    """Below a path of its own, behind a proxy that strips it or does not."""
    prefixed = harness.Server(args.binary, args.demo, "--root-path", "/llm/a")
    page = opened(prefixed, chrome, path="/llm/a/")
    check.true("it answers", len(say(page, "Hello!")) > 0)
    page.js("location.hash = 'cache'")
    page.wait("document.querySelector('#cache-view').innerText.length > 20")
    other = [u for u in page.requests() if f":{prefixed.port}/" in u and "/llm/a/" not in u]
    check.equal("all below the path", other, [])
    quiet("prefix", page)
    prefixed.stop()


def test_keyboard(server, chrome):
    """Everything can be reached and used without a mouse, and has a name."""
    page = opened(server, chrome)
    page.wait("document.activeElement.ariaLabel === 'Message'")
    page.type("Hello!")
    page.key("Enter", shift=True)
    page.type("Who are you?")
    page.key("Enter")
    page.wait(IDLE)
    check.equal("Shift+Enter begins a line", page.js(TURNS)[0], "Hello!\nWho are you?")
    page.wait("document.querySelector('.conversations a')")
    page.js("document.querySelector('.conversations a').focus()")
    page.js("document.querySelector('.turn [aria-label=Regenerate]').click()")
    page.wait(f"document.querySelector('.versions') && {IDLE}")
    page.js("new Promise(done => setTimeout(done, 100))")
    check.equal("the list keeps the focus", page.js("document.activeElement.innerText"), "Hello!")
    page.js("document.querySelector('.brand').focus()")
    seen = []
    for _ in range(40):
        page.key("Tab")
        seen.append(
            page.js("""(() => { const a = document.activeElement; return a === document.body ? null :
            a.ariaLabel || a.textContent.trim(); })()"""))
        if seen[-1] is None:
            break
    for name in ("New chat", "Search conversations", "Hello!", "More about Hello!", "Import and export",
                 "Chat", "Cache", "Settings", "Conversation", "Edit", "Copy", "Regenerate",
                 "Branch into a new chat", "Message"):
        check.true(f"Tab reaches {name}", name in seen, seen)
    page.js("document.querySelector('#settings').focus()")
    page.key("Enter")
    page.wait("document.querySelector('dialog').contains(document.activeElement)")
    page.key("Escape")
    page.wait("document.activeElement.id === 'settings'")
    focus = page.js("getComputedStyle(document.activeElement).outlineStyle")
    check.equal("the focus is seen", focus, "solid")
    nameless = [c for c in page.controls() if not c[1].strip() and c[0] != "MenuListPopup"]
    check.equal("each control has a name", nameless, [])
    check.equal("a language", page.js("document.documentElement.lang"), "en")
    quiet("keyboard", page)


def test_axe(server, chrome):
    """axe-core finds no serious fault: light, dark, phone; chat, list, settings, cache, key screen."""
    import axe_core_python
    with open(os.path.join(os.path.dirname(axe_core_python.__file__), "axe.min.js"), encoding="utf-8") as f:
        axe = f.read()

    def faults(page, what):
        page.js("window.axe ? 0 : (() => {" + axe + "})()")
        found = page.js("""axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.filter(v =>
            ['serious', 'critical'].includes(v.impact)).map(
            v => [v.id, v.nodes.map(n => n.html.slice(0, 200))]))""")
        check.equal(f"axe, {what}", found, [])

    markdown = ("# Head\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> quote\n\n- [x] done\n\n"
                "```python\nx = 1  # one\n```\n\n$x^2$")
    for width, height, dark in ((1280, 860, False), (1280, 860, True), (390, 844, False)):
        what = f"{width} wide, {'dark' if dark else 'light'}"
        page = opened(server, chrome, width, height, dark=dark)
        if width > 500 and not dark:
            faults(page, f"{what}, empty")
        click(page, ".prompts button", "What is in this picture?")
        page.wait(IDLE)
        page.js(
            f"""(async () => {{ const s = store, [c] = await s.listConversations(), whole = await s.get(c.id);
            Object.assign(whole.messages[whole.head],
                {{content: {json.dumps(markdown)}, reasoning: 'Hm.', error: 'It failed.'}});
            await s.put(whole); }})()""")
        reload(page)
        page.wait("document.querySelector('.turn .katex')")
        faults(page, f"{what}, chat")
        if width < 500:
            click(page, "#side-button")
            faults(page, f"{what}, list")
            page.key("Escape")
        else:
            click(page, "#settings")
            page.js("new Promise(done => setTimeout(done, 250))")
            faults(page, f"{what}, settings")
            page.key("Escape")
        page.js("location.hash = 'cache'")
        page.wait("document.querySelector('#cache-view').innerText.includes('cached tokens')")
        faults(page, f"{what}, cache")
    page.js("dispatchEvent(new Event('kvasir-key'))")
    faults(page, f"{what}, key")


EVIL = """</title><img src=x onerror="window.bad=1"><script>window.bad=1</script>"""


def test_hostile_names(server, chrome):
    """The model's name is never more than text."""
    named = harness.Server(args.binary, args.demo, "--served-model-name", EVIL)
    page = opened(named, chrome)
    check.equal("in the head", page.js("document.querySelector('#model-name').textContent"), EVIL)
    say(page, EVIL)
    check.equal("as who speaks", page.js("document.querySelector('.turn.assistant h2').textContent"), EVIL)
    page.js("location.hash = 'cache'")
    page.js("new Promise(done => setTimeout(done, 300))")
    check.equal(
        "none of it became an element",
        page.js("[document.querySelectorAll('[onerror], script:not([src]), img[src=x]').length, window.bad]"),
        [0, None])
    quiet("a hostile name", page)
    named.stop()


def test_without_libraries(server, chrome):
    """Where the build has no libraries, an answer is plain text."""
    page = browser.Page(chrome)
    page.call("Network.setBlockedURLs", urls=["*/page/lib/*"])
    page.open(f"http://{server.host}:{server.port}/")
    page.wait("document.querySelector('.composer textarea') && document.querySelector('#model option')")
    page.js("import(new URL('page/js/store.js', location.href)).then(s => { window.store = s; })")
    say(page, "Hello!")
    text = "**bold** <b>x</b>\n\n```c\nint x;\n```\n\n$x^2$"
    page.js(f"""(async () => {{ const [c] = await store.listConversations(), whole = await store.get(c.id);
        whole.messages[whole.head].content = {json.dumps(text)}; await store.put(whole); }})()""")
    page.call("Page.reload")
    page.wait(
        "document.readyState === 'complete' && "
        "document.querySelector('.turn.assistant .body')?.innerText.includes('bold')"
    )
    page.js("new Promise(done => setTimeout(done, 100))")
    shown = page.js("document.querySelector('.turn.assistant .body').innerText")
    check.true("as it was written", "**bold** <b>x</b>" in shown and "$x^2$" in shown and "int x;" in shown,
               shown)


def test_no_storage(server, chrome):
    """A browser that keeps nothing: the page works until it is closed."""
    page = browser.Page(chrome)
    page.call("Page.addScriptToEvaluateOnNewDocument", source="""
        Object.defineProperty(window, 'indexedDB', {get() { throw new Error('forbidden'); }});
        for (const name of ['localStorage', 'sessionStorage'])
            Object.defineProperty(window, name, {get() { throw new Error('forbidden'); }});""")
    page.open(f"http://{server.host}:{server.port}/")
    page.wait("document.querySelector('#model option')")
    first = say(page, "Hello!")
    click(page, "#new")
    page.wait("!document.querySelector('.turn')")
    say(page, "Name three colors.")
    page.js("document.querySelectorAll('.conversations a')[1].click()")
    page.wait(f"{TURNS}[1] === {json.dumps(first)}")
    check.equal("both are listed", page.js(TITLES), ["Name three colors.", "Hello!"])
    quiet("no storage", page)


def test_text_model(server, chrome):
    """A model without images: other prompts, and an image that is added is named, not sent."""
    page = browser.Page(chrome)
    page.call("Page.addScriptToEvaluateOnNewDocument", source="""const asked = window.fetch;
        window.fetch = async (u, o) => !`${u}`.endsWith('/props') ? asked(u, o)
            : Response.json({modalities: {vision: false}});""")
    page.open(f"http://{server.host}:{server.port}/")
    page.wait("document.querySelector('.sample img')?.hidden")
    page.files(".composer .files", sample)
    page.wait("document.querySelector('.toast')")
    check.equal("it says so", page.js("document.querySelector('.toast span').textContent"),
                "This model reads no images.")
    check.true("above where one writes", page.js("""[document.querySelector('.composer'),
        document.querySelector('.toasts')].map(e => e.getBoundingClientRect())
        .every((r, i, all) => !i || r.bottom < all[0].top)"""))
    check.equal("nothing is added", page.js("document.querySelectorAll('.composer .thumb').length"), 0)
    quiet("text", page)


def test_base_model(server, chrome):
    """Without a chat template there is nothing to suggest; the demo says what it knows."""
    with tempfile.TemporaryDirectory() as folder:
        base = os.path.join(folder, "base")
        os.mkdir(base)
        for name in os.listdir(args.demo):
            if name not in ("chat_template.jinja", "tokenizer_config.json"):
                os.symlink(os.path.join(os.path.abspath(args.demo), name), os.path.join(base, name))
        other = harness.Server(args.binary, base)
        page = browser.Page(chrome)
        page.open(f"http://{other.host}:{other.port}/")
        page.wait("document.querySelector('.welcome h1')?.innerText === 'This model cannot chat'")
        state = page.js("""[document.querySelectorAll('.prompts button').length,
            document.querySelector('.sample img').hidden,
            document.querySelector('.welcome .hint').innerText]""")
        check.equal("no suggestions", state[:2], [0, True])
        check.true("what it can, and not what the demo knows",
                   "/v1/completions" in state[2] and "demo" not in state[2], state[2])
        quiet("base model", page)
        other.stop()
    page = opened(server, chrome)
    page.wait("document.querySelector('.welcome .hint').innerText.includes('circles, squares')")
    check.true("with suggestions", page.js("document.querySelectorAll('.prompts button').length > 0"))


def test_values_in_force(server, chrome):
    """Empty settings show what the server does; the speed stands beside an answer."""
    with tempfile.TemporaryDirectory() as folder:
        for name in os.listdir(args.demo):
            if name != "generation_config.json":
                os.symlink(os.path.join(os.path.abspath(args.demo), name), os.path.join(folder, name))
        given = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.05,
                 "repetition_penalty": 1.1, "eos_token_id": [1, 106]}
        with open(os.path.join(folder, "generation_config.json"), "w", encoding="utf-8") as f:
            json.dump(given, f)
        want = {"temperature": "0.7", "top_p": "0.8", "top_k": "20", "min_p": "0.05", "seed": "random",
                "repetition_penalty": "1.1", "presence_penalty": "0", "frequency_penalty": "0"}
        openai = {**want, "temperature": "1", "top_p": "1", "top_k": "all", "min_p": "0",
                  "repetition_penalty": "1"}
        for flags, shows in (((), {**want, "max_tokens": "up to 4096"}),
                             (("--generation-config", "ignore", "--default-max-tokens", "99"),
                              {**openai, "max_tokens": "99"})):
            other = harness.Server(args.binary, folder, *flags)
            page = opened(other, chrome)
            page.wait("document.querySelector('#state').hidden")
            click(page, "#settings")
            got = page.js("""Object.fromEntries([...document.querySelectorAll('.settings input[type=number]')]
                .map(i => [i.name, i.placeholder]))""")
            check.equal(f"values in force, {flags}", got, shows)
            other.stop()
    page = opened(server, chrome, 360, 640)
    configure(page, temperature="0")
    click(page, ".prompts button", "What is in this picture?")
    page.wait(IDLE)
    check.true("tokens per second", re.fullmatch(r"[\d.,]+ tokens/s", page.js(
        "document.querySelector('.turn.assistant .speed').innerText")))
    bare = page.js("""[...document.querySelectorAll('#main :is(.foot, header) :is(button, a)')]
        .filter(b => b.checkVisibility() && !b.innerText.trim() &&
            ['none', 'normal'].includes(getComputedStyle(b, '::after').content)).map(b => b.ariaLabel)""")
    check.equal("words below the icons of a phone", bare, [])
    check.true("they fit", page.js(FITS))


def test_second_model(server, chrome):
    other = harness.Server(args.binary, os.path.join(root, "models/demo-qwen3-vl"))
    page = opened(other, chrome)
    configure(page, temperature="0")
    click(page, ".prompts button", "What is in this picture?")
    page.wait(IDLE)
    text = page.js(TURNS)[1]
    check.true("another family sees it", "circle" in text and "square" in text, text)
    quiet("another family", page)
    other.stop()


def test_other_pages(server, chrome):
    """What pages of other origins get of a server on this machine, by a real browser: names below .example
    resolve to 127.0.0.1 here."""

    class Other(http.server.BaseHTTPRequestHandler):

        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<p>another page")

        def log_message(self, *_):
            pass

    guarded = harness.Server(args.binary, args.demo, "--allowed-hosts", "auto")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        url, body = f"http://127.0.0.1:{guarded.port}", json.dumps({"prompt": "a", "max_tokens": 2})
        ask = (f"fetch('{url}/v1/completions', {{method: 'POST', headers: {{'Content-Type': "
               f"'application/json'}}, body: {json.dumps(body)}}}).then(r => r.status, () => 'refused')")
        for host, want in (("localhost", 200), ("127.0.0.1", 200), ("evil.example", "refused")):
            page = browser.Page(chrome)
            page.open(f"http://{host}:{site.server_port}/")
            check.equal(f"a page of {host}", page.js(ask), want)
        check.equal("a page without an origin", browser.Page(chrome).js(ask), "refused")
        page = browser.Page(chrome)
        page.open(f"http://rebound.example:{guarded.port}/")
        shown = page.js("document.body.innerText")
        check.true("a name that was made to lead here", "--allowed-hosts" in shown, shown)
        check.equal("is of no use", page.js("fetch('/v1/models').then(r => r.status)"), 421)
        page.open(f"{url}/")
        page.wait("document.querySelector('#model option')")
        check.true("its own page answers", len(say(page, "Hello!")) > 0)
        site.shutdown()
    guarded.stop()


def main():
    global args
    args = harness.arguments(__doc__)
    server = harness.Server(args.binary, args.demo, "--enable-admin", "on")
    chrome = browser.Browser() if browser.found() else None
    with_browser = [
        test_start, test_history, test_versions, test_stop, test_sent_early, test_tabs, test_broken,
        test_settings, test_files, test_key, test_theme, test_phone, test_prefix, test_keyboard, test_axe,
        test_hostile_names, test_hostile_import, test_without_libraries, test_no_storage, test_text_model,
        test_base_model, test_values_in_force,
        test_other_pages, test_second_model
    ]
    if not chrome:
        check.skip("the page itself", "there is no chromium")
    for test in [test_headers, test_size] + (with_browser if chrome else []):
        if not args.only or test.__name__ in args.only:
            begin = time.monotonic()
            check.run(test, server, chrome)
            if chrome:
                chrome.close_pages()
            print(f"{test.__name__}: {time.monotonic() - begin:.1f} s", flush=True)
    if chrome:
        chrome.close()
    server.stop()
    check.end()


main()
