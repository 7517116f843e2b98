"""Two runs side by side: B / A with a bootstrap interval.

The bootstrap resamples not single requests, since neighbouring ones share a queue, but windows
of time, each with all requests that began in it; a window is at least as long as a typical request. So the
interval says how much a run of this length varies within itself. What changes between runs (another seed, a
busy machine) is not in it: repeat both for that."""
import html
import json
import random

from . import page, plot
from .report import percentile, show
from .slo import good
from .wire import Fault

DRAWS, WINDOWS, FEWEST = 1000, 20, 4
RATES = {"requests/s": lambda r: 1, "output tokens/s": lambda r: r["output_tokens"]}
TIMES = {"time to first token": "ttft", "per token, a request": "per_token", "end to end": "e2e"}
QUANTILES = (50, 90, 99)


def load(path):
    try:
        with open(path, encoding="utf-8") as f:
            out = json.load(f)
        if not all("records" in s and "warm_up_s" in s for s in out["runs"]):
            raise ValueError("not written by --json of this version")
        return out
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise Fault(f"--compare {path}: {getattr(fault, 'strerror', None) or fault}") from None


def part_after(record, warm):
    """As Record.part_after()."""
    if record["start"] >= warm:
        return 1.0
    return min(1.0, max(0.0, (record["start"] + record["e2e"] - warm) / record["e2e"]))


def cut(run, limits):
    """-> for each window {figure: its sum, or its list of milliseconds}"""
    warm, wall = run["warm_up_s"], run["wall_s"]
    done = [r for r in run["records"] if "error" not in r]
    typical = percentile(sorted(r["e2e"] for r in done), 0.5) if done else wall
    count = max(FEWEST, min(WINDOWS, int(wall / max(typical, 1e-9))))
    boxes = [{**{k: 0.0 for k in (*RATES, "good", "judged")}, **{k: [] for k in TIMES}} for _ in range(count)]
    for r in done:
        box = boxes[min(count - 1, max(0, int((r["start"] - warm) / wall * count)))]
        part = part_after(r, warm)
        for name, value in RATES.items():
            box[name] += part * value(r)
        if r.get("phase") == "warm-up":
            continue
        box["judged"] += 1
        box["good"] += good(r, limits)
        for name, key in TIMES.items():
            if key in r:
                box[name].append(r[key] * 1000)
    return boxes


def figures(boxes, width, limits):
    """-> {name: value}; None where nothing was measured. width: seconds of a window"""
    out = {k: sum(b[k] for b in boxes) / (len(boxes) * width) for k in RATES}
    if limits:
        judged = sum(b["judged"] for b in boxes)
        share = sum(b["good"] for b in boxes) / judged if judged else 0.0
        out["goodput/s"] = out["requests/s"] * share
    for name in TIMES:
        values = sorted(v for b in boxes for v in b[name])
        for q in QUANTILES:
            out[f"{name}, p{q}"] = percentile(values, q / 100) if values else None
    return out


def ratios(a, b):
    return {k: b[k] / a[k] if a[k] and b[k] is not None else None for k in a}


def pair(a, b, limits, draws=DRAWS):
    """-> [(figure, A, B, B / A, low, high)]; the ends hold 95 % of the drawn ratios"""
    rng, cuts = random.Random(1), [cut(run, limits) for run in (a, b)]
    widths = [run["wall_s"] / len(boxes) for run, boxes in zip((a, b), cuts)]
    both = [figures(boxes, w, limits) for boxes, w in zip(cuts, widths)]
    drawn = []
    for _ in range(draws):
        again = [figures(rng.choices(boxes, k=len(boxes)), w, limits) for boxes, w in zip(cuts, widths)]
        drawn.append(ratios(*again))
    rows = []
    for name, value in ratios(*both).items():
        some = sorted(d[name] for d in drawn if d[name] is not None)
        ends = [percentile(some, q) for q in (0.025, 0.975)] if len(some) > draws * 0.95 else [None, None]
        rows.append((name, both[0][name], both[1][name], value, *ends))
    return rows


def verdict(name, low, high):
    """better or worse, if the interval leaves out 1"""
    if low is None or low <= 1 <= high:
        return ""
    return "better" if (low > 1) == name.endswith("/s") else "worse"


def pairs(a, b):
    """Runs of the same load; two single runs are a pair whatever their loads are."""
    if len(a["runs"]) == len(b["runs"]) == 1:
        return [(a["runs"][0], b["runs"][0])]
    by_load = {s["load"]: s for s in b["runs"]}
    out = [(s, by_load[s["load"]]) for s in a["runs"] if s["load"] in by_load]
    if not out:
        raise Fault("--compare: no load is in both files")
    return out


def differences(a, b):
    """Of what they were measured with."""
    hidden = ("json", "html", "plot", "compare", "users", "rate", "sweep", "answer_length", "turns_most")
    left, right = ({**x["settings"], "model": x["model"], "server": x["server"]} for x in (a, b))
    return [(k, str(left.get(k)), str(right.get(k))) for k in sorted({*left, *right})
            if k not in hidden and left.get(k) != right.get(k)]


NOTE = ("The interval holds 95 % of the ratios when windows of each run are drawn again; better and worse "
        "are those without 1 in it, one figure of twenty by chance. What changed between the runs, such as "
        "other load on the machine, is not in it: repeat both. Times in ms.")


def over_load(found):
    """Panels of what is in both, over the load."""
    def line(name, side, value):
        return name, [(p[side]["load"], value(p[side])) for p in found], "line"

    out = []
    for title, key in (("Time to first token", "ttft_ms"), ("Per token, a request", "per_token_ms")):
        out.append((title, "load", "ms", [line(f"{n} {q}", i, lambda s: s[key] and s[key][q])
                                          for i, n in enumerate("AB") for q in ("p50", "p99")]))
    rates = [line(n, i, lambda s: s["output_tokens_per_s"]) for i, n in enumerate("AB")]
    return [*out, ("Throughput", "load", "output tokens/s", rates)]


def compare(paths, limits):
    """-> (text, HTML, panels of a plot)"""
    a, b = (load(p) for p in paths)
    limits = limits or a["settings"].get("slo") or {}
    marks = {k: v * 1000 for k, v in limits.items()}
    lines = [f"A: {paths[0]}", f"B: {paths[1]}"]
    parts = ["<h1>Two load tests</h1>", f"<p>A: {html.escape(paths[0])}<br>B: {html.escape(paths[1])}</p>"]
    other = differences(a, b)
    lines += ["", "they differ in"] + [f"  {k}: {x} -> {y}" for k, x, y in other] if other else []
    parts += ["<h2>They differ in</h2>", page.cells(["setting", "A", "B"], other)] if other else []
    found = pairs(a, b)
    if len(found) > 1:
        parts.append(page.grid([plot.figure(*panel) for panel in over_load(found)]))
    for x, y in found:
        name = f"load {x['load']:g}" + (f" and {y['load']:g}" if x["load"] != y["load"] else "")
        rows = pair(x, y, limits)
        lines += ["", f"{name}:", f"  {'':<28}{'A':>11}{'B':>11}{'B / A':>9}{'95 % interval':>19}"]
        texts = []
        for figure, p, q, ratio, low, high in rows:
            ends = "-" if low is None else f"{low:.3f} to {high:.3f}"
            cells = [show(p, 2), show(q, 2), show(ratio, 3), ends, verdict(figure, low, high)]
            numbers = f"{cells[0]:>11}{cells[1]:>11}{cells[2]:>9}{ends:>19}"
            lines.append(f"  {figure:<28}{numbers}  {cells[4]}".rstrip())
            texts.append([figure, *cells])
        parts += [f"<h2>{html.escape(name)}</h2>",
                  page.cells(["figure", "A", "B", "B / A", "95 % interval", ""], texts),
                  page.grid(page.distributions([("A", x), ("B", y)], marks))]
    document = page.document("Two load tests", [*parts, f"<p>{NOTE}</p>"])
    return "\n".join([*lines, "", NOTE]), document, over_load(found)
