"""The HTML report: one file, no scripts, nothing loaded from anywhere. Made from the data of --json."""
import html

from .plot import STYLE, figure, length, over_load, steps
from .report import percentile, show, sweep_rows, table
from .slo import NAMES

CSS = """body{font:15px/1.5 sans-serif;margin:2em auto;padding:0 1em;max-width:1180px}
body{color:#222;background:#fff}
h1{font-size:1.5em}h2{font-size:1.2em;margin-top:2em;border-top:1px solid #ddd;padding-top:1em}
pre{overflow-x:auto;font-size:12.5px;line-height:1.35}.grid{display:grid;gap:1em;
grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr))}svg{width:100%;height:auto}
table{border-collapse:collapse;display:block;overflow-x:auto}
td,th{padding:.25em .8em;text-align:right;border-bottom:1px solid #ddd;white-space:nowrap}
td:first-child,th:first-child{text-align:left}summary{cursor:pointer}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#16191d}h2,td,th{border-color:#444}}
"""
WINDOWS = 24  # of a plot over time, at most
KEYS = {"ttft": "ttft", "tpot": "per_token", "e2e": "e2e"}  # names of the bounds: names in the records


def document(title, parts):
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return ('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            '<meta name="viewport" content="width=device-width">'
            '<meta name="color-scheme" content="light dark">'
            f"<title>{html.escape(title)}</title><style>{CSS}{STYLE}</style></head>\n<body>\n"
            + "\n".join(parts) + "\n</body></html>\n")


def grid(figures):
    return '<div class="grid">' + "\n".join(figures) + "</div>"


def cells(head, rows):
    """A table; rows hold text and numbers."""
    def one(tag, v):
        return f"<{tag}>{html.escape(v if isinstance(v, str) else show(v, 2))}</{tag}>"

    lines = ["<tr>" + "".join(one("th", h) for h in head) + "</tr>"]
    lines += ["<tr>" + "".join(one("td", v) for v in row) + "</tr>" for row in rows]
    return "<table>" + "\n".join(lines) + "</table>"


def settings(values):
    body = cells(["setting", "value"], [[k, str(v)] for k, v in sorted(values.items())])
    return f"<details><summary>Settings</summary>{body}</details>"


def times(run, key):
    """(start, milliseconds) of the answered requests, the warm-up too."""
    return [(r["start"], r[key] * 1000) for r in run["records"] if "error" not in r and key in r]


def windows(points, end):
    """Lines of p50, p90 and p99 in windows of time."""
    count = max(1, min(WINDOWS, len(points) // 5))
    boxes = [[] for _ in range(count)]
    for x, y in points:
        boxes[min(count - 1, int(x / end * count))].append(y)
    centre = [(end * (i + 0.5) / count, sorted(b)) for i, b in enumerate(boxes) if b]
    return [(f"p{q}", [(x, percentile(b, q / 100)) for x, b in centre], "steps") for q in (50, 90, 99)]


def distributions(named, limits):
    """For each time: which share of the requests took at most so long. named: (name, run)"""
    out = []
    for bound, key in KEYS.items():
        lines = []
        for name, run in named:
            values = sorted(r[key] * 1000 for r in run["records"]
                            if "error" not in r and key in r and r.get("phase") != "warm-up")
            at = sorted({round(i * (len(values) - 1) / 200) for i in range(201)}) if values else []
            points = [(values[i], (i + 1) / len(values) * 100) for i in at]
            lines.append((name, [(points[0][0], 0), *points] if points else [], "steps"))
        mark = ("x", limits[bound]) if bound in limits else None
        title = f"Distribution: {NAMES[bound]}"
        out.append(figure(title, "ms", "% of the requests at most", lines, bound=mark))
    return out


def server_panels(metrics, warm):
    """What /metrics said over time."""
    def line(key, name, factor=1):
        points = [(t, None if v is None else v * factor) for t, v in zip(metrics["t"], metrics[key])]
        return name, points, "steps"

    counts = [line(k, k) for k in ("running", "waiting") if k in metrics]
    names = {"kv_use": "KV use", "hit_rate": "cache hits", "acceptance": "drafts accepted"}
    shares = [line(k, name, 100) for k, name in names.items() if k in metrics]
    out = [figure("Server: requests", "seconds", "", counts, shade=warm)] if counts else []
    return out + ([figure("Server: shares", "seconds", "%", shares, shade=warm)] if shares else [])


def run_panels(run, limits):
    warm, series, out = run["warm_up_s"], run["series"], []
    for bound, key in KEYS.items():
        points = times(run, key)
        lines = [("a request", points, "dots"), *windows(points, length(run))]
        mark = ("y", limits[bound]) if bound in limits else None
        title = f"{NAMES[bound].capitalize()}, by start"
        out.append(figure(title, "seconds", "ms", lines, shade=warm, bound=mark))
    gaps = [(q, steps(series, f"inter_token_{q}_ms"), "steps") for q in ("p50", "p90", "p99")]
    out.append(figure("Between tokens", "seconds", "ms", gaps, shade=warm))
    tokens = [("output tokens/s", steps(series, "output_tokens"), "steps")]
    out.append(figure("Throughput", "seconds", "", tokens, shade=warm))
    rates = ["answered"] + (["good"] if limits else []) + (["failed"] if any(series["failed"]) else [])
    lines = [(k, steps(series, k), "steps") for k in rates]
    title = "Requests and goodput" if limits else "Requests"
    out.append(figure(title, "seconds", "a second", lines, shade=warm))
    return out + (server_panels(run["metrics"], warm) if run["metrics"] else [])


def report(title, result, names, axis):
    """result: what --json writes; names: of its runs"""
    runs = [s for s in result["runs"] if s["ok"]]
    limits = {k: v * 1000 for k, v in (result["settings"].get("slo") or {}).items()}
    parts = [f"<h1>Load test</h1><p>{html.escape(title)}</p>", settings(result["settings"])]
    if len(runs) > 1:
        head, rows = sweep_rows(runs)
        body = cells([axis, *head], [[f"{load:g}", *row] for load, *row in rows])
        parts += ["<h2>All runs</h2>", "<p>Times in ms.</p>", body,
                  grid([figure(*panel) for panel in over_load(runs, axis)])]
    if runs:
        short = [(f"{s['load']:g}", s) for s in runs]
        each = f"<p>One line for each run, by {html.escape(axis)}.</p>" if len(runs) > 1 else ""
        parts += ["<h2>Distributions</h2>" + each, grid(distributions(short, limits))]
    for name, run in zip(names, result["runs"]):
        parts += [f"<h2>{html.escape(name)}</h2>", f"<pre>{html.escape(table('', run).strip(chr(10)))}</pre>"]
        if not run["metrics"]:
            parts.append("<p>The server's /metrics were not read or say nothing that is known.</p>")
        parts.append(grid(run_panels(run, limits)) if run["ok"] else "")
    return document("Load test: " + title, parts)
