"""The page at `/`: its headers, what other clients get, and GET /cache_tree; then the page itself in a
headless Chromium, where there is one: streaming, images, keys, settings, log-probs, the tree, untrusted
text, keyboard, names of controls, a phone's width. --screenshots writes docs/page-light.png and
docs/page-phone-dark.png instead."""
import base64
import hashlib
import http.server
import json
import os
import re
import socket
import sys
import tempfile
import threading
import time

import browser
import harness

args = None
root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
check = harness.Checks()
sample = os.path.join(root, "models/demo/sample.png")
IDLE = "running === null"


def chat(server, text, **extra):
    return server.ok("/v1/chat/completions", {"messages": [{"role": "user", "content": text}],
                                              "max_tokens": 4, "temperature": 0, **extra})


# ---- without a browser ----


def test_headers(server, chrome):
    for method in ("GET", "HEAD"):
        status, head, html = server.request(method, "/", headers={"Accept": "text/html,*/*;q=0.8"})
        check.equal(f"{method} /", (status, head["content-type"]), (200, "text/html; charset=utf-8"))
        for name, value in (("x-content-type-options", "nosniff"), ("referrer-policy", "no-referrer"),
                            ("vary", "Accept, Origin"), ("cache-control", "no-cache")):
            check.equal(f"{method} / {name}", head.get(name), value)
        policy = dict(p.split(" ", 1) for p in head["content-security-policy"].split("; "))
        check.equal("nothing but what is named", policy["default-src"], "'none'")
        check.equal("no frames", policy["frame-ancestors"], "'none'")
        check.equal("length", int(head["content-length"]) if method == "HEAD" else len(html),
                    os.path.getsize(os.path.join(root, "server/page/page.html")))
    html = server.request("GET", "/", headers={"Accept": "text/html"})[2].decode()
    for tag, part in (("script", "script-src"), ("style", "style-src")):
        inner = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.S)
        digest = base64.b64encode(hashlib.sha256(inner[0].encode()).digest()).decode()
        check.equal(f"one {tag}, with its hash", (len(inner), policy[part]), (1, f"'sha256-{digest}'"))
    for wrong in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "https:", "cookie"):
        check.true(f"the page has no {wrong}", wrong not in html)
    for accept in (None, "*/*", "application/json"):
        status, head, body = server.request("GET", "/", headers={"Accept": accept})
        check.equal(f"Accept: {accept}", (status, head["content-type"], body),
                    (200, "application/json", b'{"status":"ok"}'))
    check.equal("POST /", server.request("POST", "/", b"{}")[0], 405)


def test_tree(server, chrome):
    """Lengths and branches of what was asked, nothing else."""
    server.request("POST", "/reset_prefix_cache")

    def tree():
        status, _, data = server.request("GET", "/cache_tree")
        check.equal("status", status, 200)
        return json.loads(data)

    check.equal("an empty cache", tree()["nodes"], [])
    first = chat(server, "What is a red circle?")["usage"]["prompt_tokens"]
    second = chat(server, "What is a red square?", return_cache_info=True)
    got = tree()
    reused, nodes = second["cache_info"]["reused_tokens"], got["nodes"]
    tops = [n for n in nodes if n["parent"] is None]
    check.equal("one beginning", [(n["start"], n["end"], n["children"]) for n in tops], [(0, reused, 2)])
    check.equal("two ways on", sum(n["parent"] == 0 for n in nodes), 2)
    check.true("each begins where its parent ends",
               all(n["start"] == nodes[n["parent"]]["end"] for n in nodes if n["parent"] is not None), nodes)
    check.true("ends of prompts", first in [n["end"] for n in nodes], nodes)
    check.equal("the total", got["total_tokens"], sum(n["end"] - n["start"] for n in nodes))
    check.equal("fields", sorted(nodes[0]),
                ["children", "end", "images", "parent", "running", "start", "uses_ago"])
    chat(server, "What is a red square?", cache_salt="mine")
    salted = tree()
    check.equal("a salt's pieces are not listed", len(salted["nodes"]), len(nodes))
    check.true("they are in the total", salted["total_tokens"] > got["total_tokens"])
    with open(sample, "rb") as f:
        url = harness.data_url(f.read())
    server.ok("/v1/chat/completions", {"max_tokens": 4, "messages": [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}},
                                     {"type": "text", "text": "What is it?"}]}]})
    check.true("an image", any(n["images"] == 1 for n in tree()["nodes"]))
    waiting = []
    server.pause()  # all of them come at once, and some have gone by then
    for i in range(60):
        s = socket.create_connection((server.host, server.port), timeout=60)
        s.sendall(b"GET /cache_tree HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        waiting.append(s) if i % 3 else s.close()
    server.resume()
    check.true("many at once", all(b'"nodes":[{' in harness.read_all(s) for s in waiting))
    status, head, data = server.request("HEAD", "/cache_tree")
    check.equal("HEAD", (status, data), (200, b""))
    check.equal("POST", server.request("POST", "/cache_tree", b"{}")[0], 405)


# ---- in a browser ----


def opened(server, chrome, *size, **how):
    page = browser.Page(chrome, *size, **how)
    page.open(f"http://{server.host}:{server.port}/")
    page.wait("document.querySelectorAll('#model option').length > 0")
    return page


def say(page, text, answers=None):
    """Types and sends a message; waits for the answer's end; -> its text."""
    n = page.js("turns.length")
    page.js("$('message').focus()")
    page.type(text)
    page.key("Enter")
    page.wait(f"turns.length === {n + 2} && {IDLE}")
    return page.js("turns.at(-1).view.text.innerText")


def quiet(what, page):
    check.equal(f"{what}: no errors, no violations", page.complaints(), [])
    outside = [u for u in page.requests() if not u.startswith(("http://127.0.0.1:", "data:", "about:"))]
    check.equal(f"{what}: no request to others", outside, [])


def test_chat(server, chrome):
    page = opened(server, chrome)
    page.js("$('temperature').value = 0")
    page.files("#files", sample)
    page.wait("document.querySelectorAll('#images img').length === 1")
    text = say(page, "What is in this picture?")
    check.true("the image was seen", "red circle" in text and "blue square" in text, text)
    check.equal("it stands in the turn", page.js("document.querySelectorAll('.turn.user img').length"), 1)
    check.equal("and no longer in the box", page.js("document.querySelectorAll('#images img').length"), 0)
    check.equal("told to those who listen", page.js("$('live').innerText.trim()"), text)
    meta = page.js("turns.at(-1).view.meta.innerText")
    usage = r"9 tokens · [\d,.]+ per second .* prompt 34 \(16 of images\)"
    check.true("usage", re.search(usage, meta), meta)
    again = say(page, "How many shapes are there?")
    check.true("a second turn", "two" in again, again)
    meta = page.js("turns.at(-1).view.meta.innerText")
    reuse = r"Reused 4\d of 58 prompt tokens, up to token 4\d, after message 2: .+"
    check.true("reuse", re.search(reuse, meta), meta)
    info = "reused_tokens: 40, equal_tokens: 40, prompt_tokens: 58, stop: 'none', loaded_tokens: 32"
    loaded = page.js(f"reuse({{{info}, tier: 'disk'}})[1].textContent")
    check.true("what was loaded", loaded.startswith("Reused 40 of 58 prompt tokens (32 from disk): "), loaded)
    page.js("turns.at(-1).view.acts.firstChild.click()")
    page.wait(f"turns.length === 4 && {IDLE}")
    check.equal("regenerated", page.js("turns.at(-1).text"), again)
    check.equal("all of it was cached", page.js("turns.at(-1).cache.stop"), "none")
    page.js("turns[2].view.acts.firstChild.click()")
    page.js("document.activeElement.value = 'Is there a star?'")
    page.js("document.activeElement.form.querySelector('button.main').click()")
    page.wait(f"turns.length === 4 && {IDLE} && turns[2].text === 'Is there a star?'")
    check.true("an edited turn gets another answer", page.js("turns.at(-1).text") not in ("", again))
    page.js("$('new').click()")
    check.equal("a new chat", page.js("[turns.length, document.querySelectorAll('.turn').length]"), [0, 0])
    quiet("chat", page)


def test_stream(server, chrome):
    """Text appears while it comes; Stop ends it, and what came stays."""
    server = harness.Server(args.binary, harness.endless(args.demo))
    page = opened(server, chrome)
    long = {"ignore_eos": True, "skip_special_tokens": False, "max_tokens": harness.ENDLESS}
    page.js(f"$('extra').value = {json.dumps(json.dumps(long))}")
    page.js("$('message').focus()")
    page.type("Tell me everything.")
    page.key("Enter")
    page.wait("turns.length === 2 && turns[1].text.length > 200 && running !== null")
    shown = page.js("turns[1].view.text.innerText.length")
    page.wait(f"turns[1].view.text.innerText.length > {shown}")
    check.true("it runs in the tree", server.metric("vllm:num_requests_running") == 1)
    page.wait("document.querySelectorAll('#tree .running').length === 1")
    page.js("$('stop').click()")
    page.wait(IDLE)
    length = page.js("turns[1].text.length")
    check.true("what came stays", length > shown)
    check.true("it says so", "stopped" in page.js("turns[1].view.meta.innerText"))
    check.true("the server has stopped, too",
               harness.wait_until(lambda: server.metric("vllm:num_requests_running") == 0))
    quiet("stream", page)
    server.stop()


def test_images(server, chrome):
    """Dropped and pasted ones; what is none; taking one out again."""
    page = opened(server, chrome)
    with open(sample, "rb") as f:
        data = base64.b64encode(f.read()).decode()
    page.js(f"""window.file = (name, type) => {{ const d = new DataTransfer();
        const bytes = Uint8Array.from(atob('{data}'), c => c.charCodeAt(0));
        d.items.add(new File([bytes], name, {{type}})); return d; }}""")
    page.js("""const drop = (...of) => document.dispatchEvent(
            new DragEvent('drop', {dataTransfer: file(...of)}));
        const paste = (...of) => document.dispatchEvent(
            new ClipboardEvent('paste', {clipboardData: file(...of)}))""")
    page.js("drop('dropped.png', 'image/png'); paste('pasted.png', 'image/png')")
    page.wait("document.querySelectorAll('#images img').length === 2")
    names = "[...document.querySelectorAll('#images img')].map(i => i.alt).sort()"
    check.equal("dropped and pasted", page.js(names), ["dropped.png", "pasted.png"])
    page.js("drop('a.txt', 'text/plain')")
    page.wait("!$('notice').hidden")
    check.true("others are refused", "Only images" in page.js("$('notice').innerText"))
    page.js("""document.querySelector('#images button[aria-label="Remove pasted.png"]').click()""")
    check.equal("one is taken out", page.js(names), ["dropped.png"])
    page.js("$('temperature').value = 0")
    check.true("without a word", "red circle" in say(page, ""), page.js("turns.at(-1).text"))
    quiet("images", page)


def test_broken(server, chrome):
    """The server dies while it answers: the page says so, keeps what came, and finds it again."""
    server = harness.Server(args.binary, harness.endless(args.demo))
    page = opened(server, chrome)
    long = {"ignore_eos": True, "skip_special_tokens": False, "max_tokens": harness.ENDLESS}
    page.js(f"$('extra').value = {json.dumps(json.dumps(long))}; $('message').value = 'Hello!'; send()")
    page.wait("turns.length === 2 && turns[1].text.length > 100")
    server.process.kill()
    page.wait(IDLE)
    check.true("it says so", "connection closed" in page.js("turns[1].view.meta.innerText"))
    check.true("what came stays", page.js("turns[1].text.length > 100"))
    page.wait("$('state').innerText === 'The server cannot be reached.'")
    again = harness.Server(args.binary, args.demo, "--port", str(server.port))
    page.wait("$('state').innerText === ''")
    page.js("$('extra').value = ''")
    page.js("$('new').click()")
    check.true("and goes on", len(say(page, "Hello!")) > 0)
    again.stop()
    server.stop(expect=-9)


def test_settings(server, chrome):
    page = opened(server, chrome)
    page.js("""(() => { const was = window.fetch; window.sent = '';
        window.fetch = (u, o) => { sent = o.body || sent; return was(u, o); }; })()""")
    for name, value in (("temperature", "0.5"), ("top_p", "0.9"), ("top_k", "20"), ("max_tokens", "7"),
                        ("seed", "3"), ("system", "Be brief."),
                        ("extra", '{"min_tokens": 7, "stop": ["zz"]}')):
        page.js(f"$('{name}').value = {json.dumps(value)}")
    page.js("$('logprobs').click()")
    say(page, "Hello!")
    body = json.loads(page.js("sent"))
    want = {"temperature": 0.5, "top_p": 0.9, "top_k": 20, "max_tokens": 7, "seed": 3, "min_tokens": 7,
            "stop": ["zz"], "logprobs": True, "stream": True, "model": "demo"}
    check.equal("what was asked", {k: body.get(k) for k in want}, want)
    check.equal("messages", body["messages"], [{"role": "system", "content": "Be brief."},
                                               {"role": "user", "content": "Hello!"}])
    check.equal("a button for each token", page.js("document.querySelectorAll('.tok').length"), 7)
    page.js("document.querySelector('.tok').focus()")
    one = page.js("document.querySelector('.odds').innerText")
    page.key("ArrowRight")
    two = page.js("document.querySelector('.odds').innerText")
    check.true("alternatives", "alternatives:" in one and one.count("%") == 6, one)
    check.true("arrow keys go on", one != two, two)
    check.true("the limit is named", "max_tokens reached" in page.js("turns.at(-1).view.meta.innerText"))
    page.js("$('extra').value = '{'")
    page.js("$('message').value = 'x'; send()")
    check.equal("a wrong field sends nothing", page.js("[turns.length, $('message').value]"),
                [2, "x"])
    check.true("and says why", "JSON" in page.js("$('notice').innerText"))
    page.js("$('extra').value = '{\"top_k\": -7}'; send()")
    page.wait(f"turns.length === 4 && {IDLE}")
    problem = page.js("turns.at(-1).view.meta.innerText")
    check.true("an error in words", "top_k" in problem and "{" not in problem, problem)
    page.js("$('extra').value = ''")
    say(page, "Hello again!")
    check.equal("what failed is not sent", [m["role"] for m in json.loads(page.js("sent"))["messages"]],
                ["system", "user", "assistant", "user"])
    check.true("an answer", page.js("turns.at(-1).problem === undefined"))


HOSTILE = """<img src=x onerror="window.bad=1"><script>window.bad=1</script><svg onload="window.bad=1">
**<b onclick=1>bold</b>** `<i>code</i>` [a](javascript:window.bad=1)
- <iframe src="javascript:parent.bad=1">
```html
</code></pre><script>window.bad=1</script>
```
</div></main><style>*{display:none}</style>"""


def test_hostile(server, chrome):
    """Text of a prompt, of an image's name and of an answer is never more than text."""
    page = opened(server, chrome)
    with tempfile.TemporaryDirectory() as folder:
        evil = os.path.join(folder, "<img src=x onerror=window.bad=1>.png")
        with open(sample, "rb") as f, open(evil, "wb") as g:
            g.write(f.read())
        page.files("#files", evil)
        page.wait("document.querySelectorAll('#images img').length === 1")
    elements = """document.querySelectorAll(
        'img, script, style, iframe, a, [onerror], [onload], [onclick]').length"""
    say(page, HOSTILE)
    before = page.js(elements)
    event = {"choices": [{"index": 0, "delta": {
        "content": HOSTILE, "reasoning_content": HOSTILE,
        "tool_calls": [{"index": 0, "id": "1", "function": {"name": HOSTILE, "arguments": HOSTILE}}]},
        "logprobs": {"content": [{"token": HOSTILE, "logprob": -1, "top_logprobs": [
            {"token": HOSTILE, "logprob": -1}]}]}, "finish_reason": HOSTILE}],
        "cache_info": {"stop": HOSTILE, "reused_tokens": 1, "equal_tokens": 1, "prompt_tokens": 2,
                       "reuse_ends_at": {"token": 1, "kind": HOSTILE, "message": 0, "role": HOSTILE}}}
    page.js(f"take(turns.at(-1), {json.dumps(event)}); draw(turns.at(-1)); speak(turns.at(-1), true)")
    page.js("document.querySelector('.tok').focus()")
    page.js("new Promise(r => setTimeout(r, 200))")
    check.equal("nothing of it became an element", page.js(elements), before)
    check.equal("nothing of it ran", page.js("window.bad"), None)
    shown = page.js("turns.at(-1).view.root.textContent")
    check.true("it is shown", shown.count("onerror=") >= 5 and "</main><style>" in shown, shown)
    rich = page.js("turns.at(-1).view.text.querySelectorAll('strong, code, li').length")
    check.true("Markdown, too", rich >= 3, rich)
    quiet("hostile text", page)


def test_markdown(server, chrome):
    page = opened(server, chrome)
    cases = {
        "a\nb\n\nc": "<p>a\nb</p><p>c</p>",
        "# Head\ntext": "<p><strong>Head</strong></p><p>text</p>",
        "- a\n- **b**\n1. c\n2) d": '<ul><li>a</li><li><strong>b</strong></li></ul>'
                                   '<ol start="1"><li>c</li><li>d</li></ol>',
        "```c\nint a; **x**\n\n  b\n```\nend":
            '<pre tabindex="0"><code>int a; **x**\n\n  b</code></pre><p>end</p>',
        "```\nopen": '<pre tabindex="0"><code>open</code></pre>',
        "2 * 3 * 4, a `*b*` *c*": "<p>2 * 3 * 4, a <code>*b*</code> <em>c</em></p>",
        "**": "<p>**</p>", "#": "<p>#</p>", "-": "<p>-</p>", "": "", "\n\n": "",
        "#x\n####### y": "<p>#x\n####### y</p>",
        "5. five\n7. seven": '<ol start="5"><li>five</li><li>seven</li></ol>',
    }
    for text, want in cases.items():
        got = page.js(f"(() => {{ const e = el('div'); e.append(...markdown({json.dumps(text)})); "
                      "return e.innerHTML; })()")
        check.equal(f"{text!r}", got, want)
    for part in ("*", "`a", "**a", "- ", "#", "```", "a. ", "**`*", "- a\n", "1. \n"):
        long = part * (40000 // len(part))
        ms = page.js(f"(() => {{ const t = performance.now(); markdown({json.dumps(long)}); "
                     "return performance.now() - t; })()")
        check.true(f"{part!r} again and again", ms < 5000, ms)


def test_key(server, chrome):
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("the-key\n")
        keys.flush()
        closed = harness.Server(args.binary, args.demo, "--api-key-file", keys.name)
        check.equal("the tree needs the key", closed.request("GET", "/cache_tree")[0], 401)
        page = browser.Page(chrome)
        page.open(f"http://{closed.host}:{closed.port}/")
        page.wait("!$('key-form').hidden")
        check.equal("it is asked for", page.js("document.activeElement.id"), "key")
        page.type("wrong")
        page.key("Enter")
        page.wait("$('key').value === '' && performance.getEntriesByType('resource')"
                  ".filter(e => e.name.endsWith('/v1/models')).length === 2")
        check.true("a wrong one is refused", not page.js("$('key-form').hidden"))
        page.js("$('key').focus()")
        page.type("the-key")
        page.key("Enter")
        page.wait("$('key-form').hidden")
        check.true("then it answers", len(say(page, "Hello!")) > 0)
        page.call("Page.reload")
        page.wait("document.readyState === 'complete' && document.querySelector('#model option') !== null")
        check.true("a reload keeps it", page.js("$('key-form').hidden"))
        check.equal("in this tab alone", page.js("[localStorage.length, document.cookie]"), [0, ""])
        page.js("$('forget').click()")
        page.wait("!$('key-form').hidden")
        other = [c for c in page.complaints() if "401" not in c]
        check.equal("no other complaints", other, [])
        closed.stop()


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
        check.true("its own page answers", len(say(page, "Hello!")) > 0)
        site.shutdown()
    guarded.stop()


def test_tools(server, chrome):
    """What a stream with reasoning and calls becomes: by events, since the demo model knows neither."""
    page = opened(server, chrome)
    say(page, "Hello!")
    for delta in ({"reasoning_content": "Let me "}, {"reasoning": "think."},
                  {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "weather"}}]},
                  {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]},
                  {"tool_calls": [{"index": 0, "function": {"arguments": '"Oslo"}'}}]}):
        page.js(f"take(turns.at(-1), {json.dumps({'choices': [{'index': 0, 'delta': delta}]})})")
    page.js("turns.at(-1).finish = 'tool_calls'; draw(turns.at(-1))")
    folds = page.js("""[...turns.at(-1).view.root.querySelectorAll('details')].map(
        d => [d.open, d.textContent])""")
    check.equal("folded", folds, [[False, "ReasoningLet me think."],
                                  [False, 'Tool call: weather{"city":"Oslo"}']])
    page.js("document.querySelector('.results textarea').value = 'rain'")
    page.js("""window.body = null;
        window.fetch = (u, o) => { body = o.body || body; return new Promise(() => {}); }""")
    page.js("document.querySelector('.results button').click()")
    sent = json.loads(page.js("body"))["messages"]
    check.equal("the call goes back", (sent[1]["tool_calls"][0]["function"], sent[2]),
                ({"name": "weather", "arguments": '{"city":"Oslo"}'},
                 {"role": "tool", "tool_call_id": "c1", "content": "rain"}))


def test_keyboard(server, chrome):
    """Everything can be reached and used without a mouse, and has a name."""
    page = opened(server, chrome)
    check.equal("the message has the focus", page.js("document.activeElement.id"), "message")
    page.type("Hello!")
    page.key("Enter", shift=True)
    page.type("Who are you?")
    page.key("Enter")
    page.wait(f"turns.length === 2 && {IDLE}")
    check.equal("Shift+Enter begins a line", page.js("turns[0].text"), "Hello!\nWho are you?")
    page.js("$('model').focus()")
    seen = ["model"]
    for _ in range(40):
        page.key("Tab")
        seen.append(page.js("""(() => { const a = document.activeElement; return a === document.body ? null :
            a.id || a.getAttribute('aria-label') || a.textContent.trim(); })()"""))
        if seen[-1] is None:
            break
    for name in ("model", "new", "panel-button", "scroll", "Edit turn 1", "Regenerate, turn 2", "files",
                 "message", "send", "tree", "system", "temperature", "logprobs", "extra"):
        check.true(f"Tab reaches {name}", name in seen, seen)
    outline = page.js("getComputedStyle($('extra')).outlineStyle")
    page.js("document.querySelector('.acts button').focus()")
    page.key("Enter")
    page.wait("document.activeElement.tagName === 'TEXTAREA' && document.activeElement.id === ''")
    page.key("Escape")
    check.equal("Escape leaves the edited turn", page.js("document.activeElement.textContent"), "Edit")
    focus = page.js("getComputedStyle(document.activeElement).outlineStyle")
    check.true("the focus is seen", outline == "none" and focus == "solid", (outline, focus))
    nameless = [c for c in page.controls() if not c[1].strip() and c[0] != "MenuListPopup"]
    check.equal("each control has a name", nameless, [])
    check.equal("live region", page.js("$('live').getAttribute('aria-live')"), "polite")
    check.equal("a language", page.js("document.documentElement.lang"), "en")
    quiet("keyboard", page)


CONTRAST = """(() => {
  const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(v => (v /= 255) <= .03928 ? v / 12.92 :
    ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
  const back = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!/, 0\\)$/.test(c)) return c; } return 'rgb(255, 255, 255)'; };
  const bad = [];
  for (const e of document.querySelectorAll('body *')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || e.closest('svg, script, style') ||
        !e.getClientRects().length || e.disabled) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(back(e))].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05);
    if (ratio < 4.5) bad.push([e.tagName, e.className, e.textContent.slice(0, 20), ratio]);
  }
  return bad; })()"""


def test_sizes(server, chrome):
    """Light and dark, desk and phone: readable, and no wider than the window."""
    for width, height, dark in ((1280, 860, False), (1280, 860, True), (360, 740, False), (360, 740, True)):
        what = f"{width} wide, {'dark' if dark else 'light'}"
        page = opened(server, chrome, width, height, dark=dark)
        page.js("$('logprobs').checked = true")
        page.files("#files", sample)
        page.wait("document.querySelectorAll('#images img').length === 1")
        say(page, "What is this? " + "longword" * 30)
        fits = """document.scrollingElement.scrollWidth <= innerWidth &&
            [...document.querySelectorAll('main, #scroll, header, aside')].every(
                e => e.scrollWidth <= e.clientWidth + 1)"""
        check.true(f"{what}: nothing is cut off", page.js(fits))
        check.equal(f"{what}: contrast", page.js(CONTRAST), [])
        page.js("$('panel-button').click()")
        page.js("new Promise(r => setTimeout(r, 100))")
        check.true(f"{what}: nor with the panel", page.js(fits))
        check.equal(f"{what}: contrast of the panel", page.js(CONTRAST), [])
        back = page.js("getComputedStyle(document.body).backgroundColor")
        check.equal(f"{what}: its colours", sum(map(int, re.findall(r"\d+", back))) < 384, dark)
        if width < 500 and not page.js("$('panel').hidden"):
            check.true(f"{what}: the panel covers the chat", page.js("document.querySelector('main').inert"))
        quiet(what, page)


def test_tree_shown(server, chrome):
    """The panel draws the server's tree and marks what the last response reused."""
    server.request("POST", "/reset_prefix_cache")
    page = opened(server, chrome)
    page.js("$('temperature').value = 0")
    say(page, "What is a red circle?")
    page.wait("document.querySelectorAll('#tree rect.computed').length > 0")
    page.js("$('new').click()")
    say(page, "What is a blue circle?")
    page.wait("document.querySelectorAll('#tree rect.reused').length === 1")
    kinds = page.js("""['computed', 'made', 'other'].map(
        k => document.querySelectorAll('#tree rect.' + k).length)""")
    check.true("kinds", kinds[0] == 1 and kinds[1] == 1 and kinds[2] >= 2, kinds)
    title = page.js("document.querySelector('#tree rect.reused title').textContent")
    reused = page.js("turns.at(-1).cache.reused_tokens")
    check.equal("a title", title, f"{reused} tokens from 0 on, reused by the last response")
    page.js("document.querySelector('#outline summary').click()")
    page.wait(f"$('outline-list').innerText.includes('{title}')")
    check.true("in words", page.js("document.querySelectorAll('#outline-list ul ul').length") >= 1)
    check.true("the numbers", "%" in page.js("$('nums').innerText"))
    quiet("tree", page)


def test_second_model(server, chrome):
    other = harness.Server(args.binary, os.path.join(root, "models/demo-qwen3-vl"))
    page = opened(other, chrome)
    page.js("$('temperature').value = 0")
    page.files("#files", sample)
    page.wait("document.querySelectorAll('#images img').length === 1")
    text = say(page, "What is in this picture?")
    check.true("another family sees it", "circle" in text and "square" in text, text)
    quiet("another family", page)
    other.stop()


def screenshots(server, chrome):
    server.request("POST", "/reset_prefix_cache")
    for text in ("How many shapes are there?", "Hello! Who are you?", "What shapes do you know?"):
        chat(server, text)
    page = opened(server, chrome, 1200, 1000)
    page.js("$('temperature').value = 0")
    page.files("#files", sample)
    page.wait("document.querySelectorAll('#images img').length === 1")
    say(page, "What is in this picture?")
    say(page, "How many shapes are there?")
    page.wait("document.querySelectorAll('#tree rect.reused').length > 0")
    write("page-light.png", page.screenshot())
    page = opened(server, chrome, 390, 760, dark=True)
    page.size(390, 760, 2)
    page.js("$('temperature').value = 0; $('logprobs').checked = true")
    say(page, "Name three colours.")
    page.js("(document.querySelector('.tok.p2') || document.querySelector('.tok')).focus()")
    page.js("$('scroll').scrollTop = 1e6")
    write("page-phone-dark.png", page.screenshot())


def write(name, data):
    import io
    from PIL import Image
    out = io.BytesIO()
    Image.open(io.BytesIO(data)).convert("RGB").quantize(128).save(out, "PNG", optimize=True)
    with open(os.path.join(root, "docs", name), "wb") as f:
        f.write(out.getvalue())
    print(f"docs/{name}: {len(out.getvalue())} bytes")


def main():
    global args
    shots = "--screenshots" in sys.argv
    sys.argv = [a for a in sys.argv if a != "--screenshots"]
    args = harness.arguments(__doc__)
    server = harness.Server(args.binary, args.demo, "--enable-admin", "on")
    with_browser = [test_chat, test_stream, test_images, test_broken, test_settings, test_hostile,
                    test_markdown, test_key, test_other_pages, test_tools, test_keyboard, test_sizes,
                    test_tree_shown, test_second_model]
    chrome = browser.Browser() if browser.found() else None
    if not chrome:
        print("skipped: there is no chromium; the page itself is not tested")
    tests = [test_headers, test_tree] + (with_browser if chrome else [])
    if shots:
        tests = [screenshots]
    for test in tests:
        if not args.only or test.__name__ in args.only:
            begin = time.monotonic()
            check.run(test, server, chrome)
            print(f"{test.__name__}: {time.monotonic() - begin:.1f} s", flush=True)
    if chrome:
        chrome.close()
    server.stop()
    check.end()


main()
