"""A headless Chromium, driven over its DevTools protocol by a pair of pipes; the standard library only."""
import json
import os
import select
import shutil
import subprocess
import tempfile
import time


def found():
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    def __init__(self):
        self.folder = tempfile.mkdtemp()
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()

        def pipes():  # it reads from 3 and writes to 4
            a, b = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen(
            [found(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-first-run", "--disable-background-networking", "--disable-component-update",
             "--host-resolver-rules=MAP *.example 127.0.0.1", "--hide-scrollbars",
             "--remote-debugging-pipe", "--user-data-dir=" + self.folder, "about:blank"],
            preexec_fn=pipes, pass_fds=(3, 4), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self.ours_in, self.ours_out = ours_in, ours_out
        self.rest, self.number, self.events, self.contexts = b"", 0, [], []

    def receive(self, seconds):
        """The next message, or None."""
        limit = time.monotonic() + seconds
        while b"\0" not in self.rest:
            left = limit - time.monotonic()
            if left <= 0 or not select.select([self.ours_in], [], [], left)[0]:
                return None
            piece = os.read(self.ours_in, 1 << 20)
            if not piece:
                raise RuntimeError("the browser has ended")
            self.rest += piece
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def call(self, method, session=None, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.ours_out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive(120)
            if answer is None:
                raise RuntimeError(f"no answer to {method}")
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def close_pages(self):
        """Those so far: a tab that is left open goes on asking its server."""
        for context in self.contexts:
            self.call("Target.disposeBrowserContext", browserContextId=context)
        self.contexts, self.events = [], []

    def close(self):
        try:
            self.call("Browser.close")
            self.process.wait(20)
        except (RuntimeError, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Page:
    """A tab in a profile of its own, or in that of another tab."""

    def __init__(self, browser, width=1280, height=860, dark=False, beside=None):
        self.browser = browser
        if not beside:
            browser.contexts.append(browser.call("Target.createBrowserContext")["browserContextId"])
        self.context = beside.context if beside else browser.contexts[-1]
        target = browser.call("Target.createTarget", url="about:blank",
                              browserContextId=self.context)["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility", "DOM", "Performance"):
            self.call(domain + ".enable")
        self.size(width, height)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
                            {"name": "prefers-reduced-motion", "value": "reduce"}])

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def size(self, width, height, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
                  mobile=width < 500)

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def js(self, expression):
        got = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in got:
            raise RuntimeError(f"{expression}: {got['exceptionDetails']['exception'].get('description')}")
        return got["result"].get("value")

    def timed(self, expression):
        """Its value, and the share of a processor that the page's main thread got in its tasks meanwhile:
        times of the page are multiplied with it to become those of an idle machine."""
        def spent():
            m = {x["name"]: x["value"] for x in self.call("Performance.getMetrics")["metrics"]}
            return m["TaskDuration"], m["ThreadTime"]

        tasks, processor = spent()
        value = self.js(expression)
        end = spent()
        return value, min(1, (end[1] - processor) / (end[0] - tasks))

    def wait(self, expression, seconds=60):
        limit = time.monotonic() + seconds
        while not self.js(f"Boolean({expression})"):
            if time.monotonic() > limit:
                shown = self.js("document.body.innerText")[-800:]
                raise RuntimeError(f"it never came: {expression}\n{shown}")
            time.sleep(0.03)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def key(self, name, shift=False):
        codes = {"Enter": 13, "Tab": 9, "Escape": 27, " ": 32, "ArrowRight": 39, "ArrowLeft": 37}
        text = {"Enter": "\r", " ": " "}.get(name)
        key = {"key": name, "code": "Space" if name == " " else name, "modifiers": 8 if shift else 0,
               "windowsVirtualKeyCode": codes[name]}
        self.call("Input.dispatchKeyEvent", type="keyDown", **key, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **key)

    def files(self, selector, *paths):
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[os.path.abspath(p) for p in paths])

    def screenshot(self):
        import base64
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def events(self, *methods):
        """Those of this tab so far, as (method, params)."""
        self.js("0")
        return [(e["method"], e["params"]) for e in self.browser.events
                if e.get("sessionId") == self.session and e.get("method") in methods]

    def complaints(self):
        """Errors and warnings of the console, violations of the policy among them."""
        out = []
        for method, p in self.events("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            if method == "Runtime.exceptionThrown":
                out.append(str(p["exceptionDetails"].get("exception", p)))
            elif method == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
                out.append(p["entry"]["text"] + " " + p["entry"].get("url", ""))
            elif method == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning", "assert"):
                out.append(str(p["args"]))
        return out

    def requests(self):
        return [p["request"]["url"] for _, p in self.events("Network.requestWillBeSent")]

    def controls(self):
        """Roles and names of what can be operated, as the accessibility tree has them."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        roles = ("button", "textbox", "combobox", "checkbox", "spinbutton", "link", "DisclosureTriangle",
                 "MenuListPopup", "image", "region", "slider", "listbox")
        return [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes
                if not n.get("ignored") and n.get("role", {}).get("value") in roles]
