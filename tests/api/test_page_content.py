"""What the page makes of answers and of what a person adds to a message, in a headless Chromium: Markdown,
code, math, folds, tools, probabilities, boxes, hostile text; paste, drop, text files, PDF, removal and zoom.
Answers come as events of a stream, since the demo model writes none of this."""
import base64
import json
import os
import tempfile
import time

import browser
import harness

args = None
root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
check = harness.Checks()
sample = os.path.join(root, "models/demo/sample.png")
LAST = "[...document.querySelectorAll('.turn.assistant .body')].at(-1)"
NAMES = "[...document.querySelectorAll('.composer .attachments li > button:first-child')].map(b => b.title)"
SENT = "sent.at(-1).messages.at(-1).content"

# Requests for a chat get the events in window.events; window.sent keeps their bodies.
FAKE = """(() => {
    const was = window.fetch;
    window.sent = [];
    window.events = [];
    window.fetch = (url, options) => {
        if (!String(url).endsWith('chat/completions')) return was(url, options);
        sent.push(JSON.parse(options.body));
        const text = [...events.map(e => JSON.stringify(e)), '[DONE]'].map(e => `data: ${e}\\n\\n`).join('');
        return Promise.resolve(new Response(text, {headers: {'Content-Type': 'text/event-stream'}}));
    };
    import(new URL('page/js/render.js', location)).then(m => { window.render = m; });
    window.settled = async node => {
        while (node.querySelector('[aria-busy]')) await new Promise(done => setTimeout(done, 5));
        return node;
    };
    window.draw = (m, options) => {
        const node = document.createElement('div');
        document.body.append(node);
        render.renderAnswer(node, {id: 'm', role: 'assistant', content: '', ...m}, options);
        return node;
    };
})()"""


def opened(server, chrome):
    page = browser.Page(chrome)
    page.open(f"http://{server.host}:{server.port}/")
    page.wait("document.querySelector('.composer textarea') !== null")
    page.js("import(new URL('page/js/app.js', location.href)).then(() => 0)")  # it shows its conversation
    page.js(FAKE)
    page.wait("window.render !== undefined")
    return page


def submit(page):
    ended = "document.querySelectorAll('.turn.assistant:not(.running)').length"
    n = page.js(ended)
    page.key("Enter")
    page.wait(f"{ended} === {n + 1}")


def answer(page, content="", finish="stop", logprobs=None, **delta):
    """Sends a message; the answer is `content` in three parts, and what `delta` has besides."""
    third = len(content) // 3 + 1
    deltas = [{"content": content[i:i + third]} for i in range(0, len(content), third)]
    choices = [{"index": 0, "delta": d} for d in [delta] * bool(delta) + deltas]
    end = {"index": 0, "delta": {}, "finish_reason": finish}
    if logprobs:
        end["logprobs"] = {"content": logprobs}
    page.js(f"window.events = {json.dumps([{'id': 'x', 'choices': [c]} for c in [*choices, end]])}")
    page.js("document.querySelector('.composer textarea').focus()")
    page.type("Go on.")
    submit(page)


def shown(page, expression):
    """Of `a`, the last answer."""
    return page.js(f"(a => {expression})({LAST})")


def until(page, expression):
    page.wait(f"Boolean((a => {expression})({LAST}))")


def each(page, selector, value="textContent.trim()"):
    return shown(page, f"[...a.querySelectorAll({json.dumps(selector)})].map(e => e.{value})")


def quiet(what, page):
    check.equal(f"{what}: no errors, no violations", page.complaints(), [])
    own = ("http://127.0.0.1:", "data:", "about:", "blob:")
    outside = [u for u in page.requests() if not u.startswith(own)]
    check.equal(f"{what}: no request to others", outside, [])


def files(page, *paths):
    page.files(".composer input.files", *paths)


# ---- answers ----

MARKDOWN = """# Head
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

[link](https://a.example/?x=1&y=2) <https://b.example> [mail](mailto:a@b.example) [by name][n]
![an image](https://c.example/i.png) ~~gone~~ `code` H<sub>2</sub>O

[n]: https://named.example/
"""


def test_markdown(server, chrome):
    page = opened(server, chrome)
    answer(page, MARKDOWN)
    until(page, "a.querySelector('table')")
    check.equal("a heading below those of the page", each(page, "h3"), ["Head"])
    check.equal("line ends", each(page, "p", "innerText")[0], "one\ntwo")
    check.equal("cells", each(page, "th, td", "innerText"), ["a", "b", "1\nx", "2"])
    check.equal("alignment", shown(page, "getComputedStyle(a.querySelectorAll('td')[1]).textAlign"), "right")
    check.equal("nested lists", each(page, "ul > li > ul > li > ol > li"), ["deep"])
    check.equal("tasks", each(page, "li.has-task > .task", "ariaLabel"), ["Done:", "To do:"])
    check.equal("quotes", each(page, "blockquote blockquote"), ["inner"])
    check.equal("links", each(page, "a", "getAttribute('href')"),
                ["https://a.example/?x=1&y=2", "https://b.example", "mailto:a@b.example",
                 "https://named.example/", "https://c.example/i.png"])
    check.equal("opened apart", set(each(page, "a", "target + ' ' + e.rel")), {"_blank noopener noreferrer"})
    check.equal("no image from elsewhere", each(page, "img"), [])
    check.equal("the rest", each(page, "del, code, sub"), ["gone", "code", "2"])
    quiet("Markdown", page)


GROW = """(async text => {
    const m = {content: ''}, node = draw(m, {streaming: true}), begun = performance.now();
    const last = n => [...n.querySelectorAll('.markdown')].at(-1);
    let worked = 0, first;
    const step = streaming => {
        const t = performance.now();
        render.renderAnswer(node, m, {streaming});
        worked += performance.now() - t;
    };
    for (let i = 200; i < text.length; i += 250) {
        m.content = text.slice(0, i);
        step(true);
        await new Promise(done => setTimeout(done, 2));
        first ||= last(node).firstChild?.firstChild;
    }
    const share = worked / (performance.now() - begun);
    m.content = text;
    step(false);
    await settled(node);
    const once = last(await settled(draw(m, {streaming: false}))), limit = performance.now() + 10000;
    while (!last(node).isEqualNode(once) && performance.now() < limit)
        await new Promise(done => setTimeout(done, 50));
    return [share, last(node).isEqualNode(once), once.textContent.length > 6000, first.isConnected];
})"""


# A block of code by three steps, each a while after the one before; is the first line's element still there?
LINES = """(async () => {
    const m = {content: '```python\\nx = [\\n'}, node = await settled(draw(m, {streaming: true}));
    const code = node.querySelector('.code code'), first = code.firstChild;
    for (const more of ['1]\\n', 'y']) {
        m.content += more;
        await new Promise(done => setTimeout(done, 200));
        render.renderAnswer(node, m, {streaming: true});
        await new Promise(done => setTimeout(done, 200));
    }
    return [code.textContent, first.isConnected];
})()"""


def test_stream(server, chrome):
    """An answer of 20,000 characters that grows by a few at a time: most of the time is left to the reader,
    what is finished stays the same elements, and at the end it is as if it had come at once."""
    page = opened(server, chrome)
    part = "Some *words* and `code`, $x^2$.\n\n- a\n  - b\n\n```c\nint x = 1;\n```\n\n| a |\n|---|\n| 1 |\n\n"
    answer(page, part)
    until(page, "a.querySelector('.katex') && a.querySelector('.code [class^=hljs]')")
    for name, text in (("mixed", part * 250), ("list", "- an item with **bold** text and `code`\n" * 600),
                       ("code", "```python\n" + "def f(x):\n    return [i ** 2 for i in range(x)]\n" * 420)):
        (share, *rest), got = page.timed(f"{GROW}({json.dumps(text[:20000])})")
        check.equal(f"{name}: as if at once, and whole; the first element stays", rest, [True, True, True])
        check.true(f"{name}: the page has time", share * got < 0.5, (share, got))
    for text, want in (("- a\n  ```c\n  int x;\n  y", "int x;\ny"), ("> ```c\n> z", "z"),
                       ("~~~~\n```\nx", "```\nx")):
        node = f"(await settled(draw({{content: {json.dumps(text)}}}, {{streaming: true}})))"
        got = page.js(f"(async () => [...{node}.querySelectorAll('.code code')].map(c => c.textContent))()")
        check.equal(f"{text!r}: code that has no end yet", got, [want])
    check.equal("code that grows by lines", page.js(LINES), ["x = [\n1]\ny", True])
    deep = page.js("settled(draw({content: " +
                   f"{json.dumps('> ' * 10000 + 'x')}}}, {{}})).then(n => n.textContent.length)")
    check.true("what is nested too deep is shown as text", deep > 20000, deep)
    quiet("stream", page)


# The longest time in which the page did nothing else, in ms, and how many of the text's characters are shown.
PAUSE = """(async text => {
    let last = performance.now(), worst = 0;
    const tick = setInterval(() => {
        worst = Math.max(worst, performance.now() - last);
        last = performance.now();
    }, 10);
    const node = await settled(draw({content: text}, {}));
    await new Promise(done => setTimeout(done, 700));
    clearInterval(tick);
    node.remove();
    return [worst, [...node.querySelectorAll('.markdown')].at(-1).textContent.length];
})"""
MATH = "$$\n%s\n$$"
TABLE = "|" + "a|" * 1000 + "\n|" + "-|" * 1000 + "\n" + "|1|\n" * 5000
SLOW = {  # text, and the least of it that stays
    "emphasis": ("**a_" * 8000, 1), "emphasis in paragraphs": (("**a_" * 4900 + "\n\n") * 3, .9),
    "stars": ("*a " * 10000, 1), "quotes": ("> " * 16000 + "x", 1),
    "a list in lists": ("".join("  " * i + "- a\n" for i in range(250)), .005),
    "items": ("- a\n" * 40000, .2),
    "paragraphs": ("a *b* c\n\n" * 20000, .5), "headings": ("# a\n" * 25000, .5),
    "a table that is filled up": (TABLE, .9), "lines of a table": ("|1|2|\n|-|-|\n" + "|1|2|\n" * 20000, .9),
    "open elements": ("<b><i><s><u>" + "<p>x" * 12000, .2), "deep elements": ("<div>" * 20000, 0),
    "an array": (MATH % (r"\begin{array}{c}" + "&" * 3300 + r"\end{array}"), .9),
    "fractions": (MATH % (r"\frac{1}{" * 300 + "x" + "}" * 300), .9),
    "accents": (MATH % (r"\hat{" * 30 + "x" + "}^2" * 30), .1),
    "a macro": (MATH % (r"\def\a{a}" + r"\edef\a{\a\a\a\a}" * 12 + r"\a"), .9),
    "many formulas": (30 * (MATH % (r"\begin{matrix}" + (r"1&" * 10 + r"\\") * 15 + r"\end{matrix}") +
                            "\n\n"), .5),
    "much code": ("```python\n" + "x = [1, 2]\n" * 40000 + "```", .9),
    "a long line": ("```perl\n" + "s/" * 45000 + "\n```", .9),
    "blocks of code": ("```js\nx = 1\n```\n\n" * 3000, .5),
    "DocTags": ("<doctag><otsl>" + "<fcel>a" * 3000 + "<nl>" * 5000 + "</otsl>", .5)}


def test_slow_texts(server, chrome):
    """Texts that cost the libraries seconds or forever leave the page its time, and can be read."""
    page = opened(server, chrome)
    answer(page, "$x$ and\n\n```js\n1\n```")
    until(page, "a.querySelector('.katex') && a.querySelector('[class^=hljs]')")
    for name, (text, stays) in SLOW.items():
        (pause, shown_chars), got = page.timed(f"{PAUSE}({json.dumps(text)})")
        # What this finds takes from 2.5 s to forever.
        check.true(f"{name}: no long pause", pause * got < 1000, (pause, got))
        check.true(f"{name}: it is shown", shown_chars >= stays * len(text), (shown_chars, len(text)))
    answer(page, "$y^2$ and\n\n```js\nlet z = 1;\n```")
    until(page, "a.querySelector('.katex') && a.querySelector('[class^=hljs]')")  # the next is as ever
    quiet("slow texts", page)


STAYS = """(async () => {
    const m = {reasoning: 'Why'}, node = draw(m, {streaming: true});
    const fold = node.querySelector('.fold.reasoning');
    await settled(node);
    fold.querySelector('summary').click();
    await new Promise(done => setTimeout(done, 100));
    m.content = 'First **words**.\\n\\n- a\\n- b';
    render.renderAnswer(node, m, {streaming: false});
    await settled(node);
    getSelection().selectAllChildren(node.querySelector('li'));
    m.reasoning += ' so';
    m.content += ' and more\\n- c';
    render.renderAnswer(node, m, {streaming: false});
    await settled(node);
    return [fold.open, fold.querySelector('.markdown').textContent.trim(), getSelection().toString(),
        node.querySelectorAll('li').length];
})()"""


def test_folds_stay(server, chrome):
    """What a reader opened or selected while the answer grows stays so."""
    page = opened(server, chrome)
    answer(page, "x")  # the libraries are there
    check.equal("open, with what came since; the selection", page.js(STAYS), [True, "Why so", "a", 3])


def test_code(server, chrome):
    page = opened(server, chrome)
    code = 'def f(x):\n    return "<b>" + x  # &amp;\n'
    answer(page, f"```python\n{code}```\n\n1. in a list\n   ```c++\n   int y;\n   ```\n\n"
                 "```unheard-of\n<i>\n```")
    until(page, "a.querySelector('.hljs-keyword') && a.querySelector('li [class^=hljs]')")
    check.equal("languages", each(page, ".code .language"), ["python", "c++", "unheard-of"])
    check.equal("the text is what it was", each(page, ".code code"), [code.strip(), "int y;", "<i>"])
    check.true("highlighted, C++ by its alias, too", each(page, "li .code [class^=hljs]"))
    colors = set(each(page, ".code [class^=hljs]", "computedStyleMap().get('color').toString()"))
    check.true("in colors", len(colors) >= 3, colors)
    context = page.call("Target.getTargetInfo")["targetInfo"]["browserContextId"]
    page.browser.call("Browser.grantPermissions", browserContextId=context,
                      permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page.call("Page.bringToFront")
    shown(page, "a.querySelector('button.copy').click()")
    until(page, "a.querySelector('button.copy.copied')")
    check.equal("copied", page.js("navigator.clipboard.readText()"), code.rstrip("\n"))
    page.js("""Object.defineProperty(navigator, 'clipboard', {value: undefined});
        window.took = null;
        document.execCommand = () => { took = document.activeElement.value; }""")
    shown(page, "a.querySelectorAll('button.copy')[1].click()")
    page.wait("took === 'int y;'")  # as on a page without TLS
    quiet("code", page)


def test_math(server, chrome):
    page = opened(server, chrome)
    answer(page, r"""Let $e^{i\pi}$, \(a_1\) and $$\sum_i i$$ be; coffee is $5, cake is $10, or 7$ a slice.

$$
\frac{a}{b} \\
- c
$$

\[ \int_0^1 x\,dx \]

- in a list: $x_1 * y_1 * z$
- `$code$` and $\unknowncommand{x}$ and \$7

$$
unfinished""")
    until(page, "a.querySelectorAll('.katex').length === 6 && a.querySelectorAll('.source').length === 2")
    check.equal("formulas", each(page, ".katex annotation"),
                [r"e^{i\pi}", "a_1", r"\sum_i i", "\\frac{a}{b} \\\\\n- c", r"\int_0^1 x\,dx",
                 "x_1 * y_1 * z"])
    check.equal("on their own lines", len(each(page, ".katex-display")), 3)
    text = shown(page, "a.innerText")
    check.true("prices are none", "coffee is $5, cake is $10, or 7$ a slice." in text, text)
    check.equal("what KaTeX does not know, and what has no end, stay as they are", each(page, ".math.source"),
                [r"\unknowncommand{x}", "unfinished"])
    check.true("code stays code", "$code$" in each(page, "code"))
    page.wait("document.fonts.check('16px KaTeX_Main')")
    quiet("math", page)


def test_reasoning_and_tools(server, chrome):
    page = opened(server, chrome)
    named = (("weather", '{"city":"Oslo"}'), ("time", '{"zone":'))
    calls = [{"index": i, "id": f"c{i}", "type": "function", "function": {"name": name, "arguments": values}}
             for i, (name, values) in enumerate(named)]
    answer(page, finish="tool_calls", reasoning_content="Let me **think**.", tool_calls=calls)
    folds = each(page, "details.fold:not([hidden])", "open + ': ' + e.innerText.replace(/\\s+/g, ' ').trim()")
    check.equal("folded", folds, ["false: Reasoning", 'false: Tool call: weather {"city":"Oslo"}',
                                  'false: Tool call: time {"zone":'])
    each(page, "details.fold:not([hidden]) > summary", "click()")
    until(page, "a.querySelectorAll('.call .code').length === 2")
    check.equal("reasoning is Markdown", each(page, ".reasoning strong"), ["think"])
    check.equal("arguments, indented where they are JSON", each(page, ".call code"),
                ['{\n  "city": "Oslo"\n}', '{"zone":'])
    page.js("events = [{choices: [{index: 0, delta: {content: 'Rain.'}, finish_reason: 'stop'}]}]")
    page.js("""document.querySelectorAll('.tool-result textarea').forEach((field, i) => {
        field.value = ['{"sky":"rain"}', 'noon'][i]; })""")
    page.js("document.querySelector('.tool-result button').click()")
    page.wait(f"sent.length === 2 && {LAST}.innerText.includes('Rain.')")
    called, *results = page.js("sent.at(-1).messages.slice(-3)")
    check.equal("the calls go back", [c["function"] for c in called["tool_calls"]],
                [{"name": name, "arguments": values} for name, values in named])
    check.equal("with their results", results,
                [{"role": "tool", "tool_call_id": "c0", "content": '{"sky":"rain"}'},
                 {"role": "tool", "tool_call_id": "c1", "content": "noon"}])
    notes = page.js("""[...document.querySelectorAll('.turn.tool .fold:not([open]) .note')]
        .map(n => n.textContent)""")
    check.equal("which are shown, folded", notes, ['{"sky":"rain"}', "noon"])
    quiet("tools", page)


def test_probabilities(server, chrome):
    page = opened(server, chrome)
    best = {"token": " best", "logprob": -.2}
    drawn = [{"token": t, "logprob": p} for t, p in
             (("The", -.01), (" cat", -.3), (" sat", -.9), (" on", -1.5), (" mats\n", -3))]
    tokens = [{**t, "top_logprobs": [best, t]} for t in drawn]
    tokens[4]["top_logprobs"] = [best]
    answer(page, "The cat sat on mats\n", logprobs=tokens)
    until(page, "a.querySelectorAll('.tokens .tok').length === 5")
    check.equal("from likely to unlikely", each(page, ".tokens .tok", "className"),
                [f"tok p{i}" for i in range(5)])
    colors = each(page, ".tokens .tok", "computedStyleMap().get('background-color').toString()")
    check.equal("a color for each", len(set(colors)), 5)
    x, y = shown(page, """(r => [r.x + r.width / 2, r.y + r.height / 2])(
        a.querySelectorAll('.tokens .tok')[1].getBoundingClientRect())""")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    until(page, "!a.querySelector('.odds').hidden")
    rows = each(page, ".odds tr", "className + ': ' + e.innerText.trim()")
    check.equal("alternatives on hover", rows, [": best\t81.9 %", "chosen: cat\t74.1 %"])
    each(page, ".tok[tabindex='0']", "focus()")
    for _ in range(4):
        page.key("ArrowRight")
    check.equal("by arrow keys, one that is not in the list", each(page, ".odds p"),
                ["Chosen:  mats⏎, 5.0 %"])
    each(page, ".views [data-view=text]", "click()")
    state = shown(page, "[a.querySelector('.logprobs').checkVisibility(), a.innerText.includes('The cat')]")
    check.equal("as text again", state, [False, True])
    quiet("probabilities", page)


BOXES = {  # model, text, and label, left, top, width, height in percent
    "Qwen3-VL": ("qwen3-vl", """```json
[{"bbox_2d": [100, 200, 500, 600], "label": "a <b>"}, {"point_2d": [250, 500], "label": "p"}]
```""", [["a <b>", 10, 20, 40, 40], ["p", 25, 50, 0, 0]]),
    "Qwen2.5-VL, pixels": ("qwen2.5-vl", '[{"bbox_2d": [28, 56, 140, 140], "label": "x"}]', "pixels"),
    "Gemma, y first": ("gemma-3", '[{"box_2d": [200, 100, 600, 500], "label": "g"}]',
                       [["g", 10, 20, 40, 40]]),
    "Qwen2-VL": ("qwen2-vl", "a dog<|box_start|>(100,200),(300,400)<|box_end|>", [["a dog", 10, 20, 20, 20]]),
    "PaliGemma": ("paligemma", "<loc0256><loc0128><loc0512><loc0384> cat ; "
                  "<loc0000><loc0000><loc1024><loc0512> dog",
                  [["cat", 12.5, 25, 25, 25], ["dog", 0, 0, 50, 100]]),
    "DocTags": ("docling", "<doctag><section_header_level_1><loc_50><loc_100><loc_250><loc_150>A *title*"
                "</section_header_level_1><otsl><loc_0><loc_200><loc_500><loc_300><ched>k<ched>v<nl>"
                "<fcel>1<fcel>2<nl></otsl></doctag>",
                [["heading", 10, 20, 40, 10], ["table", 0, 40, 100, 20]]),
}


def test_boxes(server, chrome):
    page = opened(server, chrome)
    with open(sample, "rb") as f:
        url = json.dumps(harness.data_url(f.read()))

    def drawn(text, model):
        m = json.dumps({"content": text, "model": model})
        page.js(f"window.node?.remove(); window.node = draw({m}, {{streaming: false, images: [{url}]}})")

    width, height = page.js(f"""(async i => {{ i.src = {url}; await i.decode();
        return [i.naturalWidth, i.naturalHeight].map(s => 28 * Math.round(s / 28)); }})(new Image())""")
    for name, (model, text, want) in BOXES.items():
        if want == "pixels":
            want = [["x", 2800 / width, 5600 / height, 11200 / width, 8400 / height]]
        drawn(text, model)
        page.wait("node.querySelectorAll('.box').length > 0")
        got = page.js("""[...node.querySelectorAll('.box')].map(b => [b.innerText,
            ...['left', 'top', 'width', 'height'].map(s => parseFloat(b.style[s]))])""")
        near = len(got) == len(want) and all(
            a[0] == b[0] and all(abs(x - y) < .1 for x, y in zip(a[1:], b[1:])) for a, b in zip(got, want))
        check.true(f"{name}: boxes", near, got)
        names = page.js("[...node.querySelectorAll('.names button')].map(b => b.textContent)")
        check.equal(f"{name}: names to point at", names, [b[0] for b in want])
    read = page.js("['h4', 'td'].map(t => [...node.querySelectorAll(t)].map(e => e.textContent))")
    check.equal("DocTags can be read", read, [["A *title*"], ["1", "2"]])
    folded = page.js("node.querySelector('.fold.raw:not([open], [hidden])') !== null")
    check.true("the rest is folded", folded)
    page.js("node.querySelector('.names button').focus()")
    check.equal("one is picked out", page.js("node.querySelectorAll('.layer.dim .box.on').length"), 1)
    drawn("f(1,2) is (3,4).", "x")
    page.wait("node.innerText.includes('f(1,2)')")
    check.true("no boxes, no figure", page.js("!node.querySelector('.boxes')?.checkVisibility()"))
    quiet("boxes", page)


HOSTILE = r"""<img src=x onerror="window.bad=1"><script>window.bad=1</script><svg onload="window.bad=1"></svg>
**<b onclick=window.bad=1>bold</b>** `<i>code</i>` <b style="position:fixed">s</b>
[a](javascript:window.bad=1) [b](JaVaScRiPt&#58;window.bad=1) [d](vbscript:x) [e](java&Tab;script:alert)
[c](data:text/html,<script>window.bad=1</script>) [f]( java
script:x) ![g](javascript:window.bad=1) ![h](data:image/svg+xml,<svg/onload=window.bad=1>)
![i](https://o.example/"onerror="window.bad=1) [j](https://o.example/"onmouseover="window.bad=1)
[k](https://o.example 'x" onclick="window.bad=1') <javascript:window.bad=1> [l][evil]

<a href="javascript:window.bad=1">x</a> <a href=//o.example>y</a>
<form action=//o.example><input name=q></form>
<math><mtext><table><mglyph><style><!--</style>
<img title="--&gt;&lt;img src=1 onerror=window.bad=1&gt;"></math>
<details open ontoggle=window.bad=1><summary>s</summary></details> <base href=//o.example>
<iframe src="javascript:parent.bad=1"></iframe>

| <img src=x onerror=window.bad=1> | b |
|---|---|
| <td onmouseover=window.bad=1>x | [m](javascript:window.bad=1) |

- <iframe src="javascript:parent.bad=1">

$\href{javascript:window.bad=1}{x}$ $\url{javascript:window.bad=1}$ $\htmlStyle{position:fixed}{x}$
$\includegraphics{https://o.example/x.png}$ $\htmlData{a=b}{x}$ $<img src=x onerror=window.bad=1>$
$$\text{<script>window.bad=1</script>}$$

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
FOUND = r"""(node => {
    const bad = e => e.matches(`script, style, iframe, object, embed, link, base, meta, form, input,
            math:not(.katex *), svg:not(.icon, .katex *)`)
        || (e.hasAttribute('style') && !e.closest('.katex, .odds'))
        || [...e.attributes].some(a => /^on/i.test(a.name) || (/href$|^src|action$/i.test(a.name)
            && !/^(https?:|mailto:|data:image\/png)/.test(a.value)));
    return [...node.querySelectorAll('*')].filter(bad).map(e => e.cloneNode().outerHTML);
})"""


def test_hostile_answer(server, chrome):
    """Content, reasoning, calls, tokens and the model's name, all at once: text, never more."""
    page = opened(server, chrome)
    page.js(f"""document.querySelectorAll('#model option').forEach(o => {{
        o.value = o.textContent = {json.dumps(HOSTILE[:60])}; }})""")
    call = {"index": 0, "id": "1", "function": {"name": HOSTILE, "arguments": HOSTILE}}
    token = {"token": HOSTILE, "logprob": -1}
    answer(page, HOSTILE, reasoning_content=HOSTILE, tool_calls=[call],
           logprobs=[{**token, "top_logprobs": [token]}])
    until(page, "a.querySelector('.markdown:not(.plain) .code')")
    each(page, "details.fold:not([hidden]) > summary", "click()")
    each(page, ".tok[tabindex='0']", "focus()")
    page.js("new Promise(done => setTimeout(done, 500))")
    check.equal("no element or attribute of it", page.js(f"{FOUND}({LAST}.closest('.turn'))"), [])
    check.equal("nothing of it ran", page.js("window.bad"), None)
    check.equal("links lead where they say", set(each(page, "a", "origin")), {"https://o.example"})
    text = shown(page, "a.textContent")
    for part in ("<form action=//o.example>", "</main><style>", "<img src=x onerror=", "{javascript:window"):
        check.true(f"shown: {part}", part in text, text)
    check.equal("with what is harmless of it", set(each(page, ".markdown :is(strong, td, li)", "nodeName")),
                {"STRONG", "TD", "LI"})
    head = page.js(f"{LAST}.closest('.turn').innerText")
    check.true("the model's name, too", "<img src=x onerror" in head, head[:200])
    stray = "document.querySelectorAll('script:not([src]), iframe, style').length"
    check.equal("nor elsewhere on the page", page.js(stray), 0)
    quiet("hostile answer", page)


DRAWING = """<svg xmlns="http://www.w3.org/2000/svg" width="20" height="10" onload="window.bad=1">
<script>window.bad=1</script><image href="http://o.example/x.png"/>
<rect width="20" height="10" fill="red"/></svg>"""


def test_hostile_files(server, chrome):
    """Names of files and their text."""
    page = opened(server, chrome)
    with tempfile.TemporaryDirectory() as folder:
        with open(sample, "rb") as f:
            of = {"<img src=x onerror=window.bad=1>.png": f.read(),
                  "`<svg onload=window.bad=1>.md": HOSTILE.encode(), "drawn.svg": DRAWING.encode()}
        for name, data in of.items():
            with open(os.path.join(folder, name), "wb") as f:
                f.write(data)
        files(page, *(os.path.join(folder, name) for name in of))
        page.wait(f"{NAMES}.length === 3")
    check.equal("names", page.js(NAMES), list(of))
    box = "document.querySelector('.composer .attachments')"
    check.equal("elements in the box", page.js(f"{FOUND}({box})"), [])
    page.js(f"{box}.querySelectorAll('li > button:first-child').forEach(b => b.click())")
    found = page.js(f"[...document.querySelectorAll('dialog')].map({FOUND})")
    check.equal("elements in the three dialogs", found, [[], [], []])
    page.js("document.querySelectorAll('dialog').forEach(d => d.close())")
    answer(page, "ok")
    found = page.js(f"{FOUND}(document.querySelector('.turn.user .body'))")
    check.equal("elements in the message", found, [])
    images = page.js(f"{SENT}.filter(p => p.image_url).map(p => p.image_url.url.slice(0, 22))")
    check.equal("SVG is sent as pixels", images, ["data:image/png;base64,"] * 2)
    check.equal("nothing of it ran", page.js("window.bad"), None)
    quiet("hostile files", page)


# ---- what a person adds ----

DATA = """
    window.data = (...of) => {
        const d = new DataTransfer();
        const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
        for (const [text, name, type] of of)
            d.items.add(new File([type === 'image/png' ? bytes(text) : text], name, {type}));
        return d;
    };
    window.drag = (kind, dataTransfer) =>
        document.body.dispatchEvent(new DragEvent(kind, {dataTransfer, bubbles: true, cancelable: true}));
    window.paste = clipboardData => document.querySelector('.composer textarea').dispatchEvent(
        new ClipboardEvent('paste', {clipboardData, bubbles: true, cancelable: true}))"""


def said(page, text):
    """Waits for a message over the page."""
    page.wait(f"Boolean(document.querySelector('.toasts')?.innerText.includes({json.dumps(text)}))")


def test_paste_and_drop(server, chrome):
    page = opened(server, chrome)
    page.js(DATA)
    with open(sample, "rb") as f:
        page.js(f"window.png = {json.dumps(base64.b64encode(f.read()).decode())}")
    page.js("drag('dragenter', data([png, 'dropped.png', 'image/png']))")
    covers = page.js("""(r => [r.width === innerWidth, r.height === innerHeight])(
        document.querySelector('.drop-overlay').getBoundingClientRect())""")
    check.equal("the whole page says that files can be dropped", covers, [True, True])
    page.js("drag('drop', data([png, 'dropped.png', 'image/png'], ['words', 'note.txt', 'text/plain']))")
    page.wait(f"{NAMES}.length === 2")
    check.true("no longer", page.js("document.querySelector('.drop-overlay').hidden"))
    page.js("paste(data([png, 'pasted.png', 'image/png']))")
    page.wait(f"{NAMES}.length === 3")
    page.js("(d => { d.setData('text/plain', 'cells'); paste(d); })(data(['x', 'a.txt', 'text/plain']))")
    page.js("drag('drop', data(['\\0\\x01', 'what.bin', 'application/octet-stream']))")
    said(page, "what.bin")
    check.equal("in their order; text with a file beside it is pasted as text", page.js(NAMES),
                ["dropped.png", "note.txt", "pasted.png"])
    answer(page, "ok")
    content = page.js(SENT)
    check.equal("what is sent", [p["type"] for p in content], ["image_url", "image_url", "text"])
    check.equal("texts with their names, before what was typed", content[2]["text"],
                "note.txt:\n```\nwords\n```\n\nGo on.")
    check.equal("none left in the box", page.js(NAMES), [])
    shows = page.js("['thumb', 'chip'].map(c => document.querySelectorAll('.turn.user .' + c).length)")
    check.equal("they are in the message", shows, [2, 1])
    quiet("paste and drop", page)


def test_text_file(server, chrome):
    page = opened(server, chrome)
    notes = "# Notes\n```\nfenced ☃\n```\n"
    with tempfile.TemporaryDirectory() as folder:
        path, latin = os.path.join(folder, "notes.md"), os.path.join(folder, "latin.txt")
        with open(path, "w", encoding="utf-8") as f:
            f.write(notes)
        with open(latin, "wb") as f:
            f.write(b"caf\xe9")
        files(page, path)
        page.wait(f"{NAMES}.length === 1")
        page.js("document.querySelector('.composer .chip').click()")
        check.equal("shown", page.js("document.querySelector('dialog pre').textContent"), notes)
        page.js("document.querySelector('dialog').close()")
        files(page, latin)
        said(page, "latin.txt")
    answer(page, "ok")
    check.equal("a fence that its own do not end", page.js(SENT), f"notes.md:\n````\n{notes}````\n\nGo on.")
    quiet("text file", page)


def pdf(pages):
    """A PDF whose pages have a number and a rectangle that grows."""
    kids = b" ".join(b"%d 0 R" % (4 + 2 * i) for i in range(pages))
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>",
               b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, pages),
               b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    for i in range(pages):
        objects.append(b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 400 560] /Contents %d 0 R "
                       b"/Resources << /Font << /F1 3 0 R >> >> >>" % (5 + 2 * i))
        text = b"BT /F1 60 Tf 60 400 Td (Page %d) Tj ET 0.8 0.2 0.2 rg 60 100 %d 150 re f"
        text %= (i + 1, 40 * (i + 1))
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(text), text))
    out, table = b"%PDF-1.4\n", b"0000000000 65535 f \n"
    for i, o in enumerate(objects):
        table += b"%010d 00000 n \n" % len(out)
        out += b"%d 0 obj\n%s\nendobj\n" % (i + 1, o)
    size = len(objects) + 1
    return out + b"xref\n0 %d\n%strailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (
        size, table, size, len(out))


# Height; which part is red; whether there is black.
PIXELS = """(async url => {
    const i = new Image(), c = document.createElement('canvas'), x = c.getContext('2d');
    i.src = url;
    await i.decode();
    [c.width, c.height] = [i.width, i.height];
    x.drawImage(i, 0, 0);
    const d = x.getImageData(0, 0, c.width, c.height).data;
    let red = 0, black = 0;
    for (let k = 0; k < d.length; k += 4) {
        red += d[k] > 150 && d[k + 1] < 100;
        black += d[k] < 60;
    }
    return [c.height, red / c.width / c.height, black > 500];
})"""


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
        page.js("""(f => { f.value = '2-3, 5'; f.dispatchEvent(new Event('input')); })(
            document.querySelector('dialog input'))""")
        page.js("document.querySelector('dialog .page[data-page=\"3\"]').click()")
        chosen = page.js("""[document.querySelector('dialog input').value, ...[...document.querySelectorAll(
            'dialog .page[aria-pressed=true]')].map(p => +p.dataset.page)]""")
        check.equal("by numbers and by clicks", chosen, ["2, 5", 2, 5])
        page.js("[...document.querySelectorAll('dialog footer button')].at(-1).click()")
        page.wait(f"{NAMES}.length === 2")
        check.equal("names", page.js(NAMES), ["five.pdf, page 2", "five.pdf, page 5"])
        files(page, path)
        page.wait("document.querySelector('dialog .page') !== null")
        page.key("Escape")
        page.wait("!document.querySelector('dialog')")
        files(page, broken)
        said(page, "broken.pdf")
        check.equal("nothing more", len(page.js(NAMES)), 2)
    answer(page, "ok")
    got = page.js(f"Promise.all({SENT}.filter(p => p.image_url).map(p => {PIXELS}(p.image_url.url)))")
    for n, (height, red, black) in zip((2, 5), got):
        check.equal(f"page {n}: large enough to read, with its words", (height, black), (1600, True))
        check.true(f"page {n}: as it is", abs(red - 40 * n * 150 / (400 * 560)) < .01, red)
    quiet("PDF", page)


def test_image_in_the_box(server, chrome):
    """Zoom, removal, and a draft that a reload keeps."""
    page = opened(server, chrome)
    with tempfile.TemporaryDirectory() as folder:
        other = os.path.join(folder, "other.png")
        with open(sample, "rb") as f, open(other, "wb") as g:
            g.write(f.read())
        files(page, sample, other)
        page.wait(f"{NAMES}.length === 2")
    page.js("document.querySelector('.composer .thumb').click()")
    page.wait("document.querySelector('dialog.zoom img').naturalWidth > 0")
    caption = "document.querySelector('.zoom figcaption').textContent"
    check.equal("enlarged", page.js(caption), "sample.png (1 of 2)")
    page.key("ArrowRight")
    check.equal("the next", page.js(caption), "other.png (2 of 2)")
    width = "document.querySelector('.zoom img').getBoundingClientRect().width"
    page.js("document.querySelector('.zoom img').click()")
    check.equal("its own size", page.js(width), page.js("document.querySelector('.zoom img').naturalWidth"))
    page.key("Escape")
    page.wait("!document.querySelector('dialog')")
    page.js("document.querySelector('.composer .remove').click()")
    check.equal("removed", page.js(NAMES), ["other.png"])
    check.equal("the focus is where one goes on", page.js("document.activeElement.ariaLabel"), "Message")
    page.type("half a thought")
    page.js("new Promise(done => setTimeout(done, 800))")
    page.call("Page.reload")
    page.wait("document.readyState === 'complete' && "
              "document.querySelector('.composer textarea')?.value === 'half a thought'")
    page.wait(f"{NAMES}[0] === 'other.png'")
    photo = page.js("""[...document.querySelectorAll('.composer input[capture]')]
        .map(i => i.accept + ' ' + i.getAttribute('capture'))""")
    check.equal("the camera", photo, ["image/* environment"])
    quiet("images", page)


def test_composer_keys(server, chrome):
    page = opened(server, chrome)
    field = "document.querySelector('.composer textarea')"
    page.js(f"{field}.focus()")
    check.true("nothing to send", page.js("document.querySelector('.composer .send').disabled"))
    page.type("one")
    page.key("Enter", shift=True)
    page.type("two")
    height = page.js(f"{field}.clientHeight")
    for _ in range(3):
        page.key("Enter", shift=True)
    check.true("it grows", page.js(f"{field}.clientHeight") > height)
    page.js("events = [{choices: [{index: 0, delta: {content: 'ok'}, finish_reason: 'stop'}]}]")
    submit(page)
    check.equal("Enter sends", page.js(SENT), "one\ntwo")
    state = page.js(f"[{field}.value, document.activeElement === {field}]")
    check.equal("the field is empty and has the focus", state, ["", True])
    quiet("keys", page)


def main():
    global args
    args = harness.arguments(__doc__)
    if not browser.found():
        check.skip("the page", "there is no chromium")
        return check.end()
    chrome = browser.Browser()
    server = harness.Server(args.binary, args.demo)
    for test in (test_markdown, test_stream, test_slow_texts, test_folds_stay, test_code, test_math,
                 test_reasoning_and_tools, test_probabilities, test_boxes, test_hostile_answer,
                 test_hostile_files, test_paste_and_drop, test_text_file, test_pdf, test_image_in_the_box,
                 test_composer_keys):
        if not args.only or test.__name__ in args.only:
            begin = time.monotonic()
            check.run(test, server, chrome)
            chrome.close_pages()
            print(f"{test.__name__}: {time.monotonic() - begin:.1f} s", flush=True)
    chrome.close()
    server.stop()
    check.end()


main()
