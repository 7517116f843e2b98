"""What the page makes of answers and of what a person adds to a message, in a headless Chromium: Markdown, code,
math, folds, tools, probabilities, boxes, text that would like to be more than text; paste, drop, text files, PDF,
removal and zoom. Answers come as events of a stream, since the demo model writes none of this."""
import base64
import json
import os
import sys
import tempfile
import time

import browser
import harness

args = None
root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
check = harness.Checks()
sample = os.path.join(root, "models/demo/sample.png")
LAST = "[...document.querySelectorAll('.turn.assistant .body')].at(-1)"

# Answers the page's requests for a chat with the events in window.events, and keeps the bodies in window.sent.
FAKE = """(() => { const was = window.fetch; window.sent = []; window.events = [];
    window.fetch = (url, options) => { if (!String(url).endsWith('chat/completions')) return was(url, options);
        sent.push(JSON.parse(options.body));
        const text = events.map(e => `data: ${JSON.stringify(e)}\\n\\n`).join('') + 'data: [DONE]\\n\\n';
        return Promise.resolve(new Response(text, {headers: {'Content-Type': 'text/event-stream'}})); }; })()"""


def opened(server, chrome, *size, **how):
    page = browser.Page(chrome, *size, **how)
    page.open(f"http://{server.host}:{server.port}/")
    page.wait("document.querySelector('.composer textarea') !== null")
    page.js(FAKE)
    return page


def submit(page):
    n = page.js("document.querySelectorAll('.turn.assistant').length")
    page.key("Enter")
    page.wait(f"document.querySelectorAll('.turn.assistant:not(.running) .foot button').length && "
              f"document.querySelectorAll('.turn.assistant:not(.running)').length === {n + 1}")


def answer(page, content="", finish="stop", logprobs=None, **delta):
    """Sends a message; the answer is `content` in three parts, and what `delta` has besides."""
    third = len(content) // 3 + 1
    parts = [{"content": content[i:i + third]} for i in range(0, len(content), third)]
    choices = [{"index": 0, "delta": d} for d in [delta] * bool(delta) + parts]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish, **({"logprobs": {"content": logprobs}} if logprobs else {})})
    events = [{"id": "x", "choices": [c]} for c in choices]
    page.js(f"window.events = {json.dumps(events)}")
    page.js("document.querySelector('.composer textarea').focus()")
    page.type("Go on.")
    submit(page)


def shown(page, expression):
    return page.js(f"(a => {expression})({LAST})")


def until(page, expression):
    page.wait(f"Boolean((a => {expression})({LAST}))")


def quiet(what, page):
    check.equal(f"{what}: no errors, no violations", page.complaints(), [])
    outside = [u for u in page.requests() if not u.startswith(("http://127.0.0.1:", "data:", "about:", "blob:"))]
    check.equal(f"{what}: no request to others", outside, [])


def files(page, *paths):
    page.files(".composer input.files", *paths)


NAMES = "[...document.querySelectorAll('.composer .attachments li > button:first-child')].map(b => b.title)"


# ---- answers ----


def test_markdown(server, chrome):
    page = opened(server, chrome)
    answer(page, """# Head
one
two

| a | b |
|:--|--:|
| 1<br>x | **2** |

- one
  - nested
    1. deep
- [x] done
- [ ] open

> quote
> > inner

[link](https://a.example/?x=1&y=2) <https://b.example> [mail](mailto:a@b.example) [by name][n] ![an image](https://c.example/i.png)
~~gone~~ `code` H<sub>2</sub>O

[n]: https://named.example/
""")
    until(page, "a.querySelector('table')")
    for what, expression, want in (
            ("a heading below those of the page", "a.querySelector('h3').textContent", "Head"),
            ("line ends", "a.querySelector('p').innerText", "one\ntwo"),
            ("cells", "[...a.querySelectorAll('th, td')].map(c => c.innerText)", ["a", "b", "1\nx", "2"]),
            ("alignment", "getComputedStyle(a.querySelectorAll('td')[1]).textAlign", "right"),
            ("nested lists", "a.querySelector('ul > li > ul > li > ol > li').textContent.trim()", "deep"),
            ("tasks", "[...a.querySelectorAll('li.has-task > .task')].map(t => t.ariaLabel)", ["Done:", "To do:"]),
            ("quotes", "a.querySelector('blockquote blockquote').textContent.trim()", "inner"),
            ("links", "[...a.querySelectorAll('a')].map(l => l.getAttribute('href'))",
             ["https://a.example/?x=1&y=2", "https://b.example", "mailto:a@b.example", "https://named.example/",
              "https://c.example/i.png"]),
            ("opened apart", "[...a.querySelectorAll('a')].every(l => l.target === '_blank' && l.rel.includes('noopener'))", True),
            ("no image from elsewhere", "a.querySelectorAll('img').length", 0),
            ("the rest", "['del', 'code', 'sub'].map(t => a.querySelector('.markdown ' + t).textContent)", ["gone", "code", "2"])):
        check.equal(what, shown(page, expression), want)
    quiet("Markdown", page)


def test_stream(server, chrome):
    """An answer of 20,000 characters that grows by a few at a time: most of the time is left to the reader, what
    is finished stays the same elements, and at the end it is as if it had come at once."""
    page = opened(server, chrome)
    page.js("import(new URL('page/js/render.js', location)).then(m => { window.render = m; })")
    page.wait("window.render")
    part = "Some *words* and `code`, $x^2$.\n\n- a\n  - b\n\n```c\nint x = 1;\n```\n\n| a |\n|---|\n| 1 |\n\n"
    long = {"mixed": part * 250, "code": "```python\n" + "def f(x):\n    return [i ** 2 for i in range(x)]\n" * 420,
            "list": "- an item with **bold** text and `code`\n" * 500}
    answer(page, part)
    until(page, "a.querySelector('.katex') && a.querySelector('.hljs-keyword, .hljs-built_in')")
    for name, text in long.items():
        got = page.js(f"""(async text => {{
            const node = document.createElement('div'), m = {{id: 'm', role: 'assistant', content: ''}};
            document.body.append(node);
            const part = () => [...node.querySelectorAll('.markdown')].at(-1), begun = performance.now();
            let worked = 0, first;
            const draw = streaming => {{ const t = performance.now(); render.renderAnswer(node, m, {{streaming, images: []}});
                worked += performance.now() - t; }};
            for (let i = 200; i < text.length; i += 100) {{
                m.content = text.slice(0, i);
                draw(true);
                await new Promise(done => setTimeout(done, 2));
                first ||= part().firstChild?.firstChild;
            }}
            const share = worked / (performance.now() - begun);
            m.content = text;
            draw(false);
            const other = document.createElement('div');
            render.renderAnswer(other, m, {{streaming: false, images: []}});
            const all = [...other.querySelectorAll('.markdown')].at(-1);
            return {{share, same: part().isEqualNode(all), kept: first.isConnected, whole: part().textContent === all.textContent}};
        }})({json.dumps(text[:20000])})""")
        check.equal(f"{name}: as if at once", (got["same"], got["whole"], got["kept"]), (True, True, True))
        check.true(f"{name}: the page has time", got["share"] < 0.5, got)
    fences = [("- a\n  ```c\n  int x;\n  y", "int x;\ny"), ("> ```c\n> z", "z"), ("~~~~\n```\nx", "```\nx")]
    for text, want in fences:
        got = page.js(f"""(() => {{ const n = document.createElement('div'); document.body.append(n);
            render.renderAnswer(n, {{id: 'm', role: 'assistant', content: {json.dumps(text)}}}, {{streaming: true}});
            return [...n.querySelectorAll('.code code')].map(c => c.textContent); }})()""")
        check.equal(f"{text!r}: code that has no end yet", got, [want])
    quiet("stream", page)


def test_folds_stay(server, chrome):
    """What a reader opened or selected while the answer grows stays so."""
    page = opened(server, chrome)
    answer(page, "x")  # the libraries are there
    got = page.js(f"""import(new URL('page/js/render.js', location)).then(async ({{renderAnswer}}) => {{
        const node = document.createElement('div'), m = {{id: 'm', role: 'assistant', content: '', reasoning: 'Why'}};
        {LAST}.append(node);
        renderAnswer(node, m, {{streaming: true}});
        node.querySelector('.fold.reasoning summary').click();
        await new Promise(done => setTimeout(done, 100));
        m.content = 'First **words**.\\n\\n- a\\n- b';
        renderAnswer(node, m, {{streaming: false}});
        renderAnswer(node, m, {{streaming: true}});
        const item = node.querySelector('li');
        getSelection().selectAllChildren(item);
        m.reasoning += ' so'; m.content += ' and more\\n- c';
        renderAnswer(node, m, {{streaming: false}});
        const text = getSelection().toString(), opened = node.querySelector('.fold.reasoning').open;
        return [opened, node.querySelector('.fold.reasoning .markdown').textContent.trim(), text, node.querySelectorAll('li').length];
    }})""")
    check.equal("open, with what came since; the selection", got, [True, "Why so", "a", 3])


def test_code(server, chrome):
    page = opened(server, chrome)
    code = 'def f(x):\n    return "<b>" + x  # &amp;\n'
    answer(page, f"```python\n{code}```\n\n1. in a list\n   ```c++\n   int y;\n   ```\n\n```unheard-of\n<i>\n```")
    until(page, "a.querySelector('.hljs-keyword')")
    check.equal("languages", shown(page, "[...a.querySelectorAll('.code .language')].map(l => l.textContent)"),
                ["python", "c++", "unheard-of"])
    check.equal("the text is what it was", shown(page, "[...a.querySelectorAll('.code code')].map(c => c.textContent)"),
                [code.rstrip("\n"), "int y;", "<i>"])
    check.true("highlighted, C++ by its alias, too", shown(page, "a.querySelectorAll('li .code [class^=hljs]').length") > 0)
    colours = shown(page, "new Set([...a.querySelectorAll('.code span[class^=hljs]')].map(s => getComputedStyle(s).color)).size")
    check.true("in colours", colours >= 3, colours)
    page.browser.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"],
                      browserContextId=page.call("Target.getTargetInfo")["targetInfo"]["browserContextId"])
    page.call("Page.bringToFront")
    shown(page, "a.querySelector('button.copy').click()")
    until(page, "a.querySelector('button.copy.copied')")
    check.equal("copied", page.js("navigator.clipboard.readText()"), code.rstrip("\n"))
    page.js("Object.defineProperty(navigator, 'clipboard', {value: undefined}); window.took = null;"
            "document.execCommand = () => { took = document.activeElement.value; }")
    shown(page, "a.querySelectorAll('button.copy')[1].click()")
    page.wait("took === 'int y;'")  # as on a page without TLS
    quiet("code", page)


def test_math(server, chrome):
    page = opened(server, chrome)
    answer(page, r"""Let $e^{i\pi}$, \(a_1\) and $$\sum_i i$$ be; a coffee is $5, a cake is $10, or 7$ a slice.

$$
\frac{a}{b} \\
- c
$$

\[ \int_0^1 x\,dx \]

- in a list: $x_1 * y_1 * z$
- `$code$` and $\unknowncommand{x}$ and \$7

$$
unfinished""")
    until(page, "a.querySelector('.katex')")
    check.equal("formulas", shown(page, "[...a.querySelectorAll('.katex annotation')].map(m => m.textContent.trim())"),
                [r"e^{i\pi}", "a_1", r"\sum_i i", "\\frac{a}{b} \\\\\n- c", r"\int_0^1 x\,dx", "x_1 * y_1 * z"])
    check.equal("on their own lines", shown(page, "a.querySelectorAll('.katex-display').length"), 3)
    text = shown(page, "a.querySelector(':scope > .markdown').innerText")
    check.true("prices are none", "a coffee is $5, a cake is $10, or 7$ a slice." in text, text)
    check.equal("what KaTeX does not know stays as its source", shown(page, "[...a.querySelectorAll('.math.source')].map(m => m.textContent.trim())"),
                [r"\unknowncommand{x}", "unfinished"])
    check.true("code stays code", shown(page, "[...a.querySelectorAll('code')].some(c => c.textContent === '$code$')"))
    page.wait("document.fonts.check('16px KaTeX_Main')")
    quiet("math", page)


def test_reasoning_and_tools(server, chrome):
    page = opened(server, chrome)
    calls = [{"index": i, "id": f"c{i}", "type": "function", "function": {"name": n, "arguments": a}}
             for i, (n, a) in enumerate((("weather", '{"city":"Oslo"}'), ("time", '{"zone":')))]
    answer(page, finish="tool_calls", reasoning_content="Let me **think**.", tool_calls=calls)
    check.equal("folded", shown(page, "[...a.querySelectorAll('details.fold:not([hidden])')].map(d => [d.open, d.querySelector('summary').innerText.replace(/\\s+/g, ' ').trim()])"),
                [[False, "Reasoning"], [False, 'Tool call: weather {"city":"Oslo"}'], [False, 'Tool call: time {"zone":']])
    shown(page, "a.querySelectorAll('details.fold:not([hidden]) > summary').forEach(s => s.click())")
    until(page, "a.querySelectorAll('.call .code').length === 2")
    check.equal("reasoning is Markdown", shown(page, "a.querySelector('.reasoning strong').textContent"), "think")
    check.equal("arguments, indented where they are JSON", shown(page, "[...a.querySelectorAll('.call code')].map(c => c.textContent)"),
                ['{\n  "city": "Oslo"\n}', '{"zone":'])
    page.js("window.events = [{choices: [{index: 0, delta: {content: 'Rain.'}, finish_reason: 'stop'}]}]")
    page.js("""document.querySelectorAll('.tool-result').forEach((f, i) => {
        f.querySelector('textarea').value = ['{"sky":"rain"}', 'noon'][i]; f.requestSubmit(); })""")
    page.wait("document.querySelectorAll('.turn.assistant').length === 2 && " + LAST + ".innerText.includes('Rain.')")
    sent = page.js("sent.at(-1).messages.slice(-3)")
    check.equal("the calls go back with their results", [sent[0].get("tool_calls") and len(sent[0]["tool_calls"]), *sent[1:]],
                [2, {"role": "tool", "tool_call_id": "c0", "content": '{"sky":"rain"}'},
                 {"role": "tool", "tool_call_id": "c1", "content": "noon"}])
    check.equal("the results are shown, folded", page.js("[...document.querySelectorAll('.turn.tool .fold')].map(d => [d.open, d.querySelector('.note').textContent])"),
                [[False, '{"sky":"rain"}'], [False, "noon"]])
    quiet("tools", page)


def test_probabilities(server, chrome):
    page = opened(server, chrome)
    odds = [("The", -.01), (" cat", -.3), (" sat", -.9), (" on", -1.5), (" mats\n", -3)]
    tokens = [{"token": t, "logprob": p, "top_logprobs": [{"token": " best", "logprob": -.2}, {"token": t, "logprob": p}]} for t, p in odds]
    tokens[4]["top_logprobs"].pop()
    answer(page, "The cat sat on mats\n", logprobs=tokens)
    until(page, "a.querySelectorAll('.tokens .tok').length === 5")
    check.equal("from likely to unlikely", shown(page, "[...a.querySelectorAll('.tokens .tok')].map(t => t.className)"), [f"tok p{i}" for i in range(5)])
    backs = shown(page, "new Set([...a.querySelectorAll('.tokens .tok')].map(t => getComputedStyle(t).backgroundColor)).size")
    check.equal("a colour for each", backs, 5)
    where = shown(page, "(r => [r.x + r.width / 2, r.y + r.height / 2])(a.querySelectorAll('.tokens .tok')[1].getBoundingClientRect())")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=where[0], y=where[1])
    until(page, "!a.querySelector('.odds').hidden")
    rows = "[...a.querySelectorAll('.odds tr')].map(r => [r.className, r.innerText.trim()])"
    check.equal("alternatives on hover", shown(page, rows), [["", "best\t81.9 %"], ["chosen", "cat\t74.1 %"]])
    shown(page, "a.querySelector('.tok[tabindex=\"0\"]').focus()")
    for _ in range(4):
        page.key("ArrowRight")
    check.equal("by arrow keys, one that is not in the list", shown(page, "a.querySelector('.odds p').textContent"), "Chosen:  mats⏎, 5.0 %")
    shown(page, "[...a.querySelectorAll('.views button')].find(b => b.textContent === 'Text').click()")
    check.equal("as text again", shown(page, "[a.querySelector('.logprobs').checkVisibility(), a.querySelector(':scope > .markdown').innerText.trim()]"),
                [False, "The cat sat on mats"])
    quiet("probabilities", page)


BOXES = {
    "Qwen3-VL": ("qwen3-vl", '```json\n[{"bbox_2d": [100, 200, 500, 600], "label": "a <b>"}, {"point_2d": [250, 500], "label": "p"}]\n```',
                 [["a <b>", 10, 20, 40, 40], ["p", 25, 50, 0, 0]]),
    "Qwen2.5-VL, pixels": ("qwen2.5-vl", '[{"bbox_2d": [28, 56, 140, 140], "label": "x"}]', None),
    "Qwen2-VL": ("qwen2-vl", "a dog<|box_start|>(100,200),(300,400)<|box_end|>", [["a dog", 10, 20, 20, 20]]),
    "PaliGemma": ("paligemma", "<loc0256><loc0128><loc0512><loc0384> cat ; <loc0000><loc0000><loc1024><loc0512> dog",
                  [["cat", 12.5, 25, 25, 25], ["dog", 0, 0, 50, 100]]),
    "DocTags": ("docling", "<doctag><section_header_level_1><loc_50><loc_100><loc_250><loc_150>A *title*</section_header_level_1>"
                "<otsl><loc_0><loc_200><loc_500><loc_300><ched>k<ched>v<nl><fcel>1<fcel>2<nl></otsl></doctag>",
                [["heading", 10, 20, 40, 10], ["table", 0, 40, 100, 20]]),
}


def test_boxes(server, chrome):
    page = opened(server, chrome)
    page.js("import(new URL('page/js/render.js', location)).then(m => { window.render = m; })")
    page.wait("window.render")
    with open(sample, "rb") as f:
        url = harness.data_url(f.read())
    width, height = page.js(f"(async () => {{ const i = new Image(); i.src = {json.dumps(url)}; await i.decode(); return [i.naturalWidth, i.naturalHeight]; }})()")
    wide, high = round(width / 28) * 28, round(height / 28) * 28
    BOXES["Qwen2.5-VL, pixels"] = BOXES["Qwen2.5-VL, pixels"][:2] + ([["x", 2800 / wide, 5600 / high, 11200 / wide, 8400 / high]],)
    for name, (model, text, want) in BOXES.items():
        page.js(f"""(() => {{ window.node?.remove(); window.node = document.createElement('div'); document.body.append(node);
            render.renderAnswer(node, {{id: 'm', role: 'assistant', content: {json.dumps(text)}, model: {json.dumps(model)}}},
                {{streaming: false, images: [{json.dumps(url)}]}}); }})()""")
        page.wait("node.querySelectorAll('.box').length > 0")
        got = page.js("[...node.querySelectorAll('.box')].map(b => [b.innerText, ...['left', 'top', 'width', 'height'].map(s => parseFloat(b.style[s]))])")
        near = len(got) == len(want) and all(a[0] == b[0] and all(abs(x - y) < .1 for x, y in zip(a[1:], b[1:])) for a, b in zip(got, want))
        check.true(f"{name}: boxes", near, got)
        check.equal(f"{name}: names to point at", page.js("node.querySelectorAll('.names button').length"), len(want))
    check.equal("DocTags can be read", page.js("['h4', 'td'].map(t => [...node.querySelectorAll('.markdown ' + t)].map(e => e.textContent))"), [["A *title*"], ["1", "2"]])
    check.true("the rest is folded", page.js("!node.querySelector('.fold.raw').hidden && !node.querySelector('.fold.raw').open"))
    page.js("node.querySelector('.names button').focus()")
    check.true("one is picked out", page.js("node.querySelectorAll('.box.on').length === 1 && node.querySelector('.layer.dim') !== null"))
    page.js("node.remove(); window.node = document.createElement('div'); document.body.append(node); "
            "render.renderAnswer(node, {id: 'm', role: 'assistant', content: 'f(1,2) is (3,4).', model: 'x'}, {streaming: false, images: [" + json.dumps(url) + "]})")
    page.wait("node.innerText.includes('f(1,2)')")
    check.true("no boxes, no figure", page.js("!node.querySelector('.boxes')?.checkVisibility()"))
    quiet("boxes", page)


HOSTILE = r"""<img src=x onerror="window.bad=1"><script>window.bad=1</script><svg onload="window.bad=1"></svg>
**<b onclick=window.bad=1>bold</b>** `<i>code</i>` <b style="position:fixed">s</b>
[a](javascript:window.bad=1) [b](JaVaScRiPt&#58;window.bad=1) [c](data:text/html,<script>window.bad=1</script>) [d](vbscript:x)
[e](java&Tab;script:alert) [f]( java
script:x) ![g](javascript:window.bad=1) ![h](data:image/svg+xml,<svg/onload=window.bad=1>) ![i](https://o.example/"onerror="window.bad=1)
[j](https://o.example/"onmouseover="window.bad=1) [k](https://o.example 'x" onclick="window.bad=1') <javascript:window.bad=1> [l][evil]

<a href="javascript:window.bad=1">x</a> <a href=//o.example>y</a> <form action=//o.example><input name=q></form>
<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror=window.bad=1&gt;"></math>
<details open ontoggle=window.bad=1><summary>s</summary></details> <iframe src="javascript:parent.bad=1"></iframe> <base href=//o.example>

| <img src=x onerror=window.bad=1> | b |
|---|---|
| <td onmouseover=window.bad=1>x | [m](javascript:window.bad=1) |

- <iframe src="javascript:parent.bad=1">

$\href{javascript:window.bad=1}{x}$ $\url{javascript:window.bad=1}$ $\includegraphics{https://o.example/x.png}$ $\htmlStyle{position:fixed}{x}$ $\htmlData{a=b}{x}$
$<img src=x onerror=window.bad=1>$ $$\text{<script>window.bad=1</script>}$$

```html"onmouseover="window.bad=1
</code></pre><script>window.bad=1</script><img src=x onerror=window.bad=1>
```
```<img/src=x/onerror=window.bad=1>
x
```
</div></main><style>*{display:none}</style><link rel=stylesheet href=//o.example>

[evil]: javascript:window.bad=1
"""

# Elements and attributes that text must not become.
FOUND = """(n => [...n.querySelectorAll('*')].filter(e => ['SCRIPT', 'STYLE', 'IFRAME', 'OBJECT', 'EMBED', 'LINK', 'BASE', 'META',
    'FORM', 'INPUT'].includes(e.tagName) || (e.tagName === 'IMG' && !e.src.startsWith('data:image/png')) ||
    (e.tagName === 'A' && !/^(https?|mailto):/.test(e.getAttribute('href'))) ||
    (e.hasAttribute('style') && !e.closest('.katex')) || [...e.attributes].some(t => /^on/i.test(t.name) ||
    (/^(xlink:)?href$|^src|action$/i.test(t.name) && !/^(https?:|mailto:|data:image\\/png)/.test(t.value))))
    .map(e => e.cloneNode().outerHTML))"""


def test_hostile_answer(server, chrome):
    """Content, reasoning, calls, tokens and the model's name, all at once: text, never more."""
    page = opened(server, chrome)
    page.js("document.querySelectorAll('#model option').forEach(o => { o.value = o.textContent = " + json.dumps(HOSTILE[:60]) + "; })")
    tokens = [{"token": HOSTILE, "logprob": -1, "top_logprobs": [{"token": HOSTILE, "logprob": -1}]}]
    answer(page, HOSTILE, reasoning_content=HOSTILE, logprobs=tokens,
           tool_calls=[{"index": 0, "id": "1", "function": {"name": HOSTILE, "arguments": HOSTILE}}])
    until(page, "a.querySelector('.markdown:not(.plain) .code')")
    shown(page, "a.querySelectorAll('details.fold:not([hidden]) > summary').forEach(s => s.click())")
    shown(page, "a.querySelector('.tok').focus()")
    page.js("new Promise(done => setTimeout(done, 500))")
    check.equal("no element or attribute of it", page.js(f"{FOUND}({LAST})"), [])
    check.equal("nothing of it ran", page.js("window.bad"), None)
    links = shown(page, "[...new Set([...a.querySelectorAll('a')].map(l => new URL(l.href).origin))]")
    check.equal("links lead where they say", links, ["https://o.example"])
    text = shown(page, "a.textContent")
    check.true("it is shown", text.count("onerror=") >= 8 and "<form action=//o.example>" in text and "</main><style>" in text, text)
    check.true("with what is harmless of it", shown(page, "a.querySelectorAll('.markdown strong, .markdown td, .markdown li').length") >= 4)
    check.equal("nor elsewhere on the page", page.js("document.querySelectorAll('script:not([src]), iframe, style').length"), 0)
    quiet("hostile answer", page)


def test_hostile_files(server, chrome):
    """Names of files and their text."""
    page = opened(server, chrome)
    with tempfile.TemporaryDirectory() as folder:
        image = os.path.join(folder, "<img src=x onerror=window.bad=1>.png")
        note = os.path.join(folder, "`<svg onload=window.bad=1>.md")
        picture = os.path.join(folder, "drawn.svg")
        with open(sample, "rb") as f, open(image, "wb") as g:
            g.write(f.read())
        with open(note, "w") as f:
            f.write(HOSTILE)
        with open(picture, "w") as f:
            f.write('<svg xmlns="http://www.w3.org/2000/svg" width="20" height="10" onload="window.bad=1"><script>window.bad=1</script>'
                    '<image href="http://127.0.0.1:1/x.png"/><rect width="20" height="10" fill="red"/></svg>')
        files(page, image, note, picture)
        page.wait("document.querySelectorAll('.composer .attachments li').length === 3")
    check.equal("elements in the box", page.js(f"{FOUND}(document.querySelector('.composer .attachments'))"), [])
    page.js("[...document.querySelectorAll('.composer .attachments li > button:first-child')].forEach(b => b.click())")
    check.equal("enlarged and shown", page.js("[...document.querySelectorAll('dialog')].length"), 3)
    check.equal("elements in the dialogs", page.js(f"[...document.querySelectorAll('dialog')].flatMap({FOUND})"), [])
    page.js("document.querySelectorAll('dialog').forEach(d => d.close())")
    answer(page, "ok")
    check.equal("elements in the message", page.js(f"{FOUND}(document.querySelector('.turn.user .body'))"), [])
    parts = page.js("sent.at(-1).messages.at(-1).content")
    check.equal("SVG is sent as pixels", [p["image_url"]["url"][:22] for p in parts if p["type"] == "image_url"], ["data:image/png;base64,"] * 2)
    check.equal("nothing of it ran", page.js("window.bad"), None)
    quiet("hostile files", page)


# ---- what a person adds ----


DATA = """window.data = (...of) => { const d = new DataTransfer(); of.forEach(([text, name, type]) => d.items.add(new File(
    [type.startsWith('image/png') ? Uint8Array.from(atob(text), c => c.charCodeAt(0)) : text], name, {type}))); return d; };
    window.drag = (kind, d) => document.body.dispatchEvent(new DragEvent(kind, {dataTransfer: d, bubbles: true, cancelable: true}));
    window.paste = d => document.querySelector('.composer textarea').dispatchEvent(
        new ClipboardEvent('paste', {clipboardData: d, bubbles: true, cancelable: true}))"""


def test_paste_and_drop(server, chrome):
    page = opened(server, chrome)
    page.js(DATA)
    with open(sample, "rb") as f:
        png = json.dumps(base64.b64encode(f.read()).decode())
    page.js(f"drag('dragenter', data([{png}, 'dropped.png', 'image/png']))")
    area = page.js("(r => [r.width, r.height])(document.querySelector('.drop-overlay').getBoundingClientRect())")
    check.equal("the whole page says that files can be dropped", area, page.js("[innerWidth, innerHeight]"))
    page.js(f"drag('drop', data([{png}, 'dropped.png', 'image/png'], ['words', 'note.txt', 'text/plain']))")
    page.wait(f"{NAMES}.length === 2")
    check.true("no longer", page.js("document.querySelector('.drop-overlay').hidden"))
    page.js(f"paste(data([{png}, 'pasted.png', 'image/png']))")
    page.wait(f"{NAMES}.length === 3")
    page.js("(d => { d.setData('text/plain', 'cells'); paste(d); })(data(['x', 'a.txt', 'text/plain']))")
    page.js("drag('drop', data(['\\0\\x01', 'what.bin', 'application/octet-stream']))")
    page.wait("document.querySelector('.toasts')?.innerText.includes('what.bin')")
    check.equal("in their order; text that is pasted goes into the field; others are named", page.js(NAMES), ["dropped.png", "note.txt", "pasted.png"])
    answer(page, "ok")
    content = page.js("sent.at(-1).messages.at(-1).content")
    check.equal("what is sent", [p["type"] for p in content], ["image_url", "image_url", "text"])
    check.equal("texts with their names, before what was typed", content[2]["text"], "note.txt:\n```\nwords\n```\n\nGo on.")
    check.equal("none left in the box", page.js(NAMES), [])
    check.equal("they are in the message", page.js("[document.querySelectorAll('.turn.user .thumb').length, document.querySelectorAll('.turn.user .chip').length]"), [2, 1])
    quiet("paste and drop", page)


def test_text_file(server, chrome):
    page = opened(server, chrome)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "notes.md")
        with open(path, "w") as f:
            f.write("# Notes\n```\nfenced ☃\n```\n")
        files(page, path)
        page.wait(f"{NAMES}.length === 1")
        page.js("document.querySelector('.composer .chip').click()")
        check.equal("shown", page.js("document.querySelector('dialog pre').textContent"), "# Notes\n```\nfenced ☃\n```\n")
        page.js("document.querySelector('dialog').close()")
        latin = os.path.join(folder, "latin.txt")
        with open(latin, "wb") as f:
            f.write(b"caf\xe9")
        files(page, latin)
        page.wait("document.querySelector('.toasts')?.innerText.includes('latin.txt')")
    answer(page, "ok")
    check.equal("a fence that its own do not end", page.js("sent.at(-1).messages.at(-1).content"),
                "notes.md:\n````\n# Notes\n```\nfenced ☃\n```\n````\n\nGo on.")
    quiet("text file", page)


def pdf(pages):
    """A PDF whose pages have a number and a rectangle."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [" + b" ".join(b"%d 0 R" % (4 + 2 * i) for i in range(pages))
               + b"] /Count %d >>" % pages, b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    for i in range(pages):
        text = b"BT /F1 60 Tf 60 400 Td (Page %d) Tj ET 0.8 0.2 0.2 rg 60 100 %d 150 re f" % (i + 1, 40 * (i + 1))
        objects.append(b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 400 560] /Contents %d 0 R /Resources << /Font << /F1 3 0 R >> >> >>" % (5 + 2 * i))
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(text), text))
    out, at = b"%PDF-1.4\n", []
    for i, o in enumerate(objects):
        at.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (i + 1, o)
    table = b"xref\n0 %d\n0000000000 65535 f \n" % (len(at) + 1) + b"".join(b"%010d 00000 n \n" % a for a in at)
    return out + table + b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(at) + 1, len(out))


def test_pdf(server, chrome):
    page = opened(server, chrome)
    with tempfile.TemporaryDirectory() as folder:
        path, broken = os.path.join(folder, "five.pdf"), os.path.join(folder, "broken.pdf")
        with open(path, "wb") as f:
            f.write(pdf(5))
        with open(broken, "wb") as f:
            f.write(b"%PDF-1.4 and no more")
        files(page, path)
        page.wait("document.querySelectorAll('dialog .page canvas').length === 5")
        page.js("(f => { f.value = '2-3, 5'; f.dispatchEvent(new Event('input')); })(document.querySelector('dialog input'))")
        page.js("document.querySelector('dialog .page[data-page=\"3\"]').click()")
        check.equal("by clicks and by numbers", page.js("[document.querySelector('dialog input').value, "
                    "[...document.querySelectorAll('dialog .page[aria-pressed=true]')].map(p => +p.dataset.page)]"), ["2, 5", [2, 5]])
        page.js("[...document.querySelectorAll('dialog footer button')].at(-1).click()")
        page.wait(f"{NAMES}.length === 2")
        check.equal("names", page.js(NAMES), ["five.pdf, page 2", "five.pdf, page 5"])
        files(page, path)
        page.wait("document.querySelector('dialog .page') !== null")
        page.key("Escape")
        page.wait("!document.querySelector('dialog')")
        files(page, broken)
        page.wait("document.querySelector('.toasts')?.innerText.includes('broken.pdf')")
        check.equal("nothing more", len(page.js(NAMES)), 2)
    red = """(async url => { const i = new Image(); i.src = url; await i.decode(); const c = document.createElement('canvas');
        c.width = i.width; c.height = i.height; const x = c.getContext('2d'); x.drawImage(i, 0, 0);
        const d = x.getImageData(0, 0, c.width, c.height).data; let n = 0, dark = 0;
        for (let k = 0; k < d.length; k += 4) { n += d[k] > 150 && d[k + 1] < 100; dark += d[k] < 60; }
        return [c.height, n / c.width / c.height, dark > 500]; })"""
    answer(page, "ok")
    got = page.js(f"Promise.all(sent.at(-1).messages.at(-1).content.filter(p => p.image_url).map(p => {red}(p.image_url.url)))")
    for n, (height, part, words) in zip((2, 5), got):
        check.true(f"page {n} as it is, large enough to read", height == 1600 and words and abs(part - 40 * n * 150 / (400 * 560)) < .01, got)
    quiet("PDF", page)


def test_image_in_the_box(server, chrome):
    """Zoom, removal, and a draft that a reload keeps."""
    page = opened(server, chrome)
    files(page, sample, os.path.join(root, "models/demo/sample.png"))
    page.wait(f"{NAMES}.length === 2")
    page.js("document.querySelector('.composer .thumb').click()")
    page.wait("document.querySelector('dialog.zoom img').naturalWidth > 0")
    check.equal("enlarged", page.js("document.querySelector('.zoom figcaption').textContent"), "sample.png (1 of 2)")
    page.key("ArrowRight")
    check.equal("the next", page.js("document.querySelector('.zoom figcaption').textContent"), "sample.png (2 of 2)")
    page.key("Escape")
    page.wait("!document.querySelector('dialog')")
    page.js("document.querySelector('.composer .remove').click()")
    check.equal("removed", len(page.js(NAMES)), 1)
    check.equal("the focus is where one goes on", page.js("document.activeElement.ariaLabel"), "Message")
    page.type("half a thought")
    page.js("new Promise(done => setTimeout(done, 800))")
    page.call("Page.reload")
    page.wait("document.readyState === 'complete' && document.querySelector('.composer textarea')?.value === 'half a thought'")
    page.wait(f"{NAMES}.length === 1")
    photo = page.js("[...document.querySelectorAll('.composer input[capture]')].map(i => [i.accept, i.getAttribute('capture')])")
    check.equal("the camera", photo, [["image/*", "environment"]])
    quiet("images", page)


def test_composer_keys(server, chrome):
    page = opened(server, chrome)
    page.js("document.querySelector('.composer textarea').focus()")
    check.true("nothing to send", page.js("document.querySelector('.composer .send').disabled"))
    page.type("one")
    page.key("Enter", shift=True)
    page.type("two")
    height = page.js("document.querySelector('.composer textarea').clientHeight")
    for _ in range(3):
        page.key("Enter", shift=True)
    check.true("it grows", page.js("document.querySelector('.composer textarea').clientHeight") > height)
    page.js("window.events = [{choices: [{index: 0, delta: {content: 'ok'}, finish_reason: 'stop'}]}]")
    submit(page)
    check.equal("Enter sends", page.js("sent.at(-1).messages.at(-1).content"), "one\ntwo")
    check.equal("the field is empty and has the focus", page.js("[document.activeElement.ariaLabel, document.activeElement.value]"), ["Message", ""])


def main():
    global args
    args = harness.arguments(__doc__)
    chrome = browser.Browser() if browser.found() else None
    if not chrome:
        print("skipped: there is no chromium")
        return
    server = harness.Server(args.binary, args.demo)
    for test in (test_markdown, test_stream, test_folds_stay, test_code, test_math, test_reasoning_and_tools, test_probabilities, test_boxes,
                 test_hostile_answer, test_hostile_files, test_paste_and_drop, test_text_file, test_pdf, test_image_in_the_box,
                 test_composer_keys):
        if not args.only or test.__name__ in args.only:
            begin = time.monotonic()
            check.run(test, server, chrome)
            print(f"{test.__name__}: {time.monotonic() - begin:.1f} s", flush=True)
    chrome.close()
    server.stop()
    check.end()


main()
