"""SVG charts. They carry their colors as classes, for light and dark."""
import math
from xml.sax.saxutils import escape

from .report import cache_group

LIGHT = ("#c0392b", "#2471a3", "#229954", "#b7950b", "#7d3c98", "#ca6f1e", "#148f77", "#5d6d7e")
DARK = ("#ff7b6b", "#6cb6ff", "#5fd38a", "#f2cc60", "#c297ff", "#f0a35e", "#4fd1b5", "#a9b7c6")


def palette(colors, ink, grid, ground):
    each = "".join(f".f{i}{{fill:{c}}}.s{i}{{stroke:{c}}}" for i, c in enumerate(colors))
    return f"svg text{{fill:{ink}}}.g,.b{{stroke:{grid}}}.p{{fill:{ground}}}.w{{fill:{grid}}}{each}"


STYLE = (".t{font-size:15px;font-weight:bold}.m{text-anchor:middle}.e{text-anchor:end}"
         ".l{fill:none;stroke-width:2}.b{stroke-width:2;stroke-dasharray:6 4}"
         ".w{fill-opacity:.4}.o{fill-opacity:.5}"
         + palette(LIGHT, "#222", "#ddd", "#fff")
         + "@media(prefers-color-scheme:dark){" + palette(DARK, "#ddd", "#444", "#16191d") + "}")


def ticks(high):
    """Round numbers from 0 to beyond `high`."""
    unit = 10 ** math.floor(math.log10(high / 4)) if high > 0 else 0.25
    step = next(unit * k for k in (1, 2, 2.5, 5, 10) if unit * k * 4 >= high * 0.999)
    return [step * i for i in range(math.ceil(high / step * 0.999) + 1)] if high > 0 else [0, 1]


def chart(left, top, width, height, title, xlabel, ylabel, series, shade=0, bound=None):
    """One panel. series: (name, [(x, y)], 'dots', 'line' or 'steps'); a y of None is left out. shade: what is
    left of this x was the warm-up. bound: (axis, value) of a dashed line."""
    series = [(name, [p for p in data if p[1] is not None], kind) for name, data, kind in series]
    points = [p for _, data, _ in series for p in data]
    xs, ys = ticks(max((p[0] for p in points), default=1)), ticks(max((p[1] for p in points), default=1))

    def at(x, y):
        return left + x / xs[-1] * width, top + height - y / ys[-1] * height

    out = [f'<text x="{left}" y="{top - 22}" class="t">{escape(title)}</text>',
           f'<text x="{left + width / 2:.0f}" y="{top + height + 34}" class="m">{escape(xlabel)}</text>',
           f'<text x="{left}" y="{top - 7}">{escape(ylabel)}</text>']
    if shade:
        wide = min(width, at(shade, 0)[0] - left)
        out.append(f'<rect x="{left}" y="{top}" width="{wide:.1f}" height="{height}" class="w">'
                   '<title>warm-up</title></rect>')
    for v in xs:
        out.append(f'<text x="{at(v, 0)[0]:.1f}" y="{top + height + 17}" class="m">{v:g}</text>')
    for v in ys:
        y = at(0, v)[1]
        out.append(f'<path d="M{left} {y:.1f}h{width}" class="g"/>'
                   f'<text x="{left - 6}" y="{y + 4:.1f}" class="e">{v:g}</text>')
    if bound and bound[1] <= {"x": xs, "y": ys}[bound[0]][-1]:
        x, y = at(bound[1], bound[1])
        path = f"M{x:.1f} {top}v{height}" if bound[0] == "x" else f"M{left} {y:.1f}h{width}"
        out.append(f'<path d="{path}" class="b"><title>bound: {bound[1]:g}</title></path>')
    apart = min(120, (width - 70) / max(1, len(series)))
    for k, (name, data, kind) in enumerate(series):
        key, c = left + width - apart * (len(series) - k), k % len(LIGHT)
        out.append(f'<rect x="{key:.0f}" y="{top - 16}" width="10" height="10" class="f{c}"/>'
                   f'<text x="{key + 14:.0f}" y="{top - 7}">{escape(name)}</text>')
        where = [at(*p) for p in data]
        if kind == "dots":
            every = max(1, len(data) // 4000)
            out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" class="f{c} o"/>' for x, y in where[::every]]
        elif data:
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in where)
            out.append(f'<polyline points="{points}" class="l s{c}"/>')
        if kind == "line":
            for (x, y), (u, v) in zip(where, data):
                tip = f"<title>{escape(name)}: {u:g}, {v:.4g}</title>"
                out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" class="f{c}">{tip}</circle>')
    return out


def figure(*panel, **more):
    """One panel as an SVG of its own, to stand in HTML."""
    title = escape(panel[0], {'"': "&quot;"})
    return (f'<svg viewBox="0 0 560 300" role="img" aria-label="{title}" font-family="sans-serif" '
            'font-size="12">' + "\n".join(chart(60, 50, 480, 200, *panel, **more)) + "</svg>")


def share(record):
    cached, prompt = record.get("cached_tokens"), record.get("prompt_tokens")
    return cached / prompt if cached is not None and prompt else None


def length(run):
    return run["wall_s"] + run["warm_up_s"]


def over_time(runs):
    """Panels of all runs, one run after the other on the time axis."""
    dots, lines, offset = {"cold": [], "partly cached": [], "warm": [], "failed": []}, {}, 0.0
    names = {None: "cold", "cold": "cold", "partly": "partly cached", "warm": "warm"}
    for run in runs:
        for r in run["records"]:
            if "error" in r:
                dots["failed"].append((offset + r["start"], 0.0))
            else:
                dots[names[cache_group(share(r))]].append((offset + r["start"], r["ttft"] * 1000))
        for key in ("inter_token_p50_ms", "inter_token_p99_ms", "output_tokens"):
            lines.setdefault(key, []).extend((offset + x, y) for x, y in steps(run["series"], key))
        offset += length(run)
    first = [(name, data, "dots") for name, data in dots.items() if data]
    gaps = [(q, lines[f"inter_token_{q}_ms"], "line") for q in ("p50", "p99")]
    return [("Time to first token, each request", "seconds", "ms", first),
            ("Between tokens", "seconds", "ms", gaps),
            ("Output", "seconds", "tokens/s", [("tokens/s", lines["output_tokens"], "line")])]


def steps(series, key):
    """The points of a series over time; counts become rates."""
    width = series["width_s"]
    rate = 1 if key.startswith("inter") else 1 / width
    return [(width * (i + 0.5), None if v is None else v * rate) for i, v in enumerate(series[key])]


def over_load(runs, axis):
    """Panels of a sweep."""
    runs = [s for s in runs if s["ok"]]

    def line(key, q):
        return q, [(s["load"], s[key][q]) for s in runs if s[key]], "line"

    quantiles = ("p50", "p90", "p99")
    rates = [("answered", [(s["load"], s["requests_per_s"]) for s in runs], "line")]
    if all("slo" in s for s in runs):
        rates.append(("goodput", [(s["load"], s["slo"]["goodput_per_s"]) for s in runs], "line"))
    return [(f"Time to first token over {axis}", axis, "ms", [line("ttft_ms", q) for q in quantiles]),
            (f"Between tokens over {axis}", axis, "ms", [line("inter_token_ms", q) for q in quantiles]),
            (f"Answered over {axis}", axis, "requests/s", rates)]


def write_plot(path, title, runs, axis):
    panels = over_time(runs)
    if sum(1 for s in runs if s["ok"]) > 1:
        panels += over_load(runs, axis)
    write_panels(path, title, panels, 3 if len(panels) > 3 else 1)


def write_panels(path, title, panels, across):
    width, height = 420 if across > 1 else 880, 220
    down = math.ceil(len(panels) / across)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{across * (width + 90) + 20}" '
           f'height="{down * (height + 90) + 50}" font-family="sans-serif" font-size="12">',
           f"<style>{STYLE}</style>", '<rect width="100%" height="100%" class="p"/>',
           f'<text x="20" y="24" class="t">{escape(title)}</text>']
    for k, panel in enumerate(panels):
        out += chart(70 + k % across * (width + 90), 80 + k // across * (height + 90), width, height, *panel)
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(out + ["</svg>", ""]))
