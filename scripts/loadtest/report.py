"""Figures of a run, the table that people read, and an SVG plot. Knows nothing of HTTP."""
import collections
import math
from xml.sax.saxutils import escape

COLD_SHARE, WARM_SHARE = 0.1, 0.5  # cached share of a prompt below which a request counts as cold (every chat begins with the same few tokens), and from which as warm


def percentile(values, q):
    """Linear between the two nearest ranks. values: sorted, not empty."""
    place = (len(values) - 1) * q
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def spread(values):
    """Figures of a list of seconds, in milliseconds."""
    values = sorted(values)
    if not values:
        return None
    out = {"count": len(values), "mean": sum(values) / len(values) * 1000, "max": values[-1] * 1000}
    return {**out, **{f"p{q}": percentile(values, q / 100) * 1000 for q in (50, 90, 99)}}


def cache_group(record):
    share = record.share()
    return None if share is None else "cold" if share < COLD_SHARE else "warm" if share >= WARM_SHARE else "partly"


def group_figures(records):
    prompts = [r.prompt_tokens for r in records if r.prompt_tokens is not None]
    cached = [r.cached_tokens for r in records if r.cached_tokens is not None]
    return {"requests": len(records), "prompt_tokens": sum(prompts) / len(prompts) if prompts else None,
            "cached_tokens": sum(cached) / len(cached) if cached else None, "ttft_ms": spread([r.ttft for r in records])}


def ratio(cold, warm, q="p50"):
    return cold["ttft_ms"]["p50"] / warm["ttft_ms"][q] if cold and warm and warm["ttft_ms"][q] > 0 else None


def summarize(run):
    done = [r for r in run.records if not r.error]
    failed = [r for r in run.records if r.error and r.error != "aborted"]
    kinds = {}
    for r in failed:
        kind = kinds.setdefault(r.error, {"count": 0, "example": r.message})
        kind["count"] += 1
    wall = max(1e-9, run.wall)
    prompt = sum(r.prompt_tokens or 0 for r in done)
    known = [r for r in done if r.cached_tokens is not None]
    known_prompt = sum(r.prompt_tokens or 0 for r in known)
    output = sum(r.output_tokens for r in done)
    out = {"load": run.load, "wall_s": wall, "sessions": run.sessions, "ok": len(done), "failed": len(failed),
           "aborted": len(run.records) - len(done) - len(failed), "errors": kinds, "pictures": sum(r.pictures for r in done),
           "requests_per_s": len(done) / wall, "output_tokens_per_s": output / wall, "prompt_tokens_per_s": prompt / wall,
           "prompt_tokens": prompt, "output_tokens": output,
           "cached_share": sum(r.cached_tokens for r in known) / known_prompt if known_prompt else None,
           "requests_with_a_hit": sum(1 for r in known if r.cached_tokens),
           "ttft_ms": spread([r.ttft for r in done]), "inter_token_ms": spread([g for r in done for g in r.gaps()]),
           "per_token_ms": spread([t for r in done if (t := r.per_token()) is not None]), "end_to_end_ms": spread([r.e2e for r in done]), "client": run.own}
    by_cache, by_turn, by_phase = {}, {}, {}
    for r in done:
        by_cache.setdefault(cache_group(r), []).append(r)
        by_turn.setdefault(min(r.turn, 5), []).append(r)
        by_phase.setdefault(r.phase, []).append(r)
    out["by_cache"] = {k: group_figures(by_cache[k]) for k in ("cold", "partly", "warm") if k in by_cache}
    out["by_turn"] = {str(k): group_figures(by_turn[k]) for k in sorted(by_turn)}
    out["cold_over_warm"] = ratio(out["by_cache"].get("cold"), out["by_cache"].get("warm"))
    if run.opts.shared_prefix:
        out["phases"] = {k: group_figures(by_phase[k]) for k in ("cold", "warm", "at once") if k in by_phase}
        cold, warm, burst = (out["phases"].get(k) for k in ("cold", "warm", "at once"))
        out["cold_over_warm"] = ratio(cold, warm)
        out["cold_over_slowest_warm"] = ratio(cold, warm, "max")
        out["cold_over_at_once"] = ratio(cold, burst)
    return out


def show(value, digits=1):
    return "-" if value is None else f"{value:,.{digits}f}"


def row(name, figures):
    return f"  {name:<22}" + "".join(f"{show(figures[k]):>11}" for k in ("p50", "p90", "p99", "max", "mean")) if figures else f"  {name:<22}          -"


def group_row(name, group):
    t = group["ttft_ms"]
    return f"  {name:<22}{group['requests']:>9}{show(group['prompt_tokens'], 0):>10}{show(group['cached_tokens'], 0):>10}" + "".join(f"{show(t[k]):>11}" for k in ("p50", "p90", "p99"))


def table(title, s):
    """-> the lines people read"""
    lines = [title, f"  requests              {s['ok']} answered, {s['failed']} failed, {s['aborted']} aborted; {s['sessions']} sessions, {s['pictures']} pictures, {s['wall_s']:.1f} s",
             f"  throughput            {show(s['requests_per_s'], 2)} requests/s, {show(s['output_tokens_per_s'])} output tokens/s, {show(s['prompt_tokens_per_s'])} prompt tokens/s"]
    if s["cached_share"] is None:
        lines.append("  cached share          not reported by the server (usage.prompt_tokens_details.cached_tokens)")
    else:
        lines.append(f"  cached share          {s['cached_share'] * 100:.1f} % of {s['prompt_tokens']:,} prompt tokens; {s['requests_with_a_hit']} of {s['ok']} requests had a hit")
    if s["ok"]:
        lines += ["", "  milliseconds          " + "".join(f"{k:>11}" for k in ("p50", "p90", "p99", "max", "mean")), row("time to first token", s["ttft_ms"]),
                  row("between tokens", s["inter_token_ms"]), row("per token, a request", s["per_token_ms"]), row("end to end", s["end_to_end_ms"])]
        lines += ["", f"  {'time to first token':<22}{'requests':>9}{'prompt':>10}{'cached':>10}" + "".join(f"{k + ' ms':>11}" for k in ("p50", "p90", "p99"))]
    if "phases" in s:
        names = {"cold": "cold, alone", "warm": "warm, one by one", "at once": "warm, all at once"}
        lines += [group_row(names[k], g) for k, g in s["phases"].items()]
        if s["cold_over_warm"]:
            lines += ["", f"  cold / warm = {s['cold_over_warm']:.1f} times (median of the warm; {s['cold_over_slowest_warm']:.1f} times for the slowest of them, "
                      f"{show(s['cold_over_at_once'])} for the median of all at once)"]
            if not s["phases"]["warm"]["cached_tokens"]:
                lines.append("  but the server reported no cached tokens for the warm requests")
            if (s["phases"]["cold"]["cached_tokens"] or 0) >= COLD_SHARE * (s["phases"]["cold"]["prompt_tokens"] or math.inf):
                lines.append("  but a part of the cold prompt was cached already: take another --seed or --salt auto")
    elif s["ok"]:
        names = {"cold": f"under {COLD_SHARE * 100:.0f} % cached", "partly": f"under {WARM_SHARE * 100:.0f} %", "warm": f"{WARM_SHARE * 100:.0f} % and more"}
        lines += [group_row(names[k], g) for k, g in s["by_cache"].items()]
        lines += [group_row(f"turn {k}" + (" and later" if k == "5" else ""), g) for k, g in s["by_turn"].items()]
        if s["cold_over_warm"]:
            lines += ["", f"  cold / warm = {s['cold_over_warm']:.1f} times (medians of under {COLD_SHARE * 100:.0f} % and of {WARM_SHARE * 100:.0f} % and more cached; their prompts' mean lengths: see above)"]
    if s["errors"]:
        lines += ["", "  errors"] + [f"  {e['count']:>6}  {kind}{': ' + e['example'][:140] if e['example'] else ''}" for kind, e in sorted(s["errors"].items(), key=lambda x: -x[1]["count"])]
    own = s["client"]
    late = f", arrivals at most {own['latest_arrival_ms']:.1f} ms late" if own["latest_arrival_ms"] else ""
    lines += ["", f"  this client           busy {own['busy_share'] * 100:.1f} % of one core, at most {own['longest_busy_ms']:.1f} ms at a stretch, {own['connections']} connections{late}", ""]
    return "\n".join(lines)


# ---- plot ----

SERIES = ("#c0392b", "#2471a3", "#229954", "#b7950b", "#7d3c98")


def ticks(high):
    """Round numbers from 0 to beyond `high`."""
    unit = 10 ** math.floor(math.log10(high / 4)) if high > 0 else 0.25
    step = next(unit * k for k in (1, 2, 2.5, 5, 10) if unit * k * 4 >= high * 0.999)
    return [step * i for i in range(math.ceil(high / step * 0.999) + 1)] if high > 0 else [0, 1]


def chart(left, top, width, height, title, xlabel, ylabel, series):
    """One panel. series: (name, [(x, y)], 'dots' or 'line')."""
    points = [p for _, data, _ in series for p in data]
    xs, ys = ticks(max((p[0] for p in points), default=1)), ticks(max((p[1] for p in points), default=1))
    x_at, y_at = (lambda v: left + v / xs[-1] * width), (lambda v: top + height - v / ys[-1] * height)
    out = [f'<text x="{left}" y="{top - 22}" class="t">{escape(title)}</text>', f'<text x="{left + width / 2:.0f}" y="{top + height + 34}" class="m">{escape(xlabel)}</text>',
           f'<text x="{left}" y="{top - 7}">{escape(ylabel)}</text>']
    for v in xs:
        out.append(f'<text x="{x_at(v):.1f}" y="{top + height + 17}" class="m">{v:g}</text>')
    for v in ys:
        out.append(f'<path d="M{left} {y_at(v):.1f}h{width}" class="g"/><text x="{left - 6}" y="{y_at(v) + 4:.1f}" class="e">{v:g}</text>')
    for k, (name, data, kind) in enumerate(series):
        colour, key = SERIES[k % len(SERIES)], left + width - 120 * (len(series) - k)
        out.append(f'<rect x="{key}" y="{top - 16}" width="10" height="10" fill="{colour}"/><text x="{key + 14}" y="{top - 7}">{escape(name)}</text>')
        if kind == "dots":
            every = max(1, len(data) // 4000)
            out += [f'<circle cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="2" fill="{colour}" fill-opacity="0.6"/>' for x, y in data[::every]]
        elif data:
            out.append(f'<polyline points="{" ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in data)}" fill="none" stroke="{colour}" stroke-width="2"/>')
            out += [f'<circle cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="3" fill="{colour}"/>' for x, y in data]
    return out


def over_time(runs):
    """Requests and gaps of all runs, one run after the other on the time axis."""
    groups, failed, gaps, offset = {"cold": [], "partly cached": [], "warm": []}, [], [], 0.0
    arrived, names = [], {None: "cold", "cold": "cold", "partly": "partly cached", "warm": "warm"}
    for run in runs:
        for r in run.records:
            if r.error:
                failed.append((offset + r.start, 0.0))
                continue
            groups[names[cache_group(r)]].append((offset + r.start, r.ttft * 1000))
            gaps += [(offset + b - run.begin, (b - a) * 1000) for a, b in zip(r.stamps, r.stamps[1:])]
            arrived += [offset + t - run.begin for t in r.stamps]
        offset += run.wall
    width, windows = max(offset / 40, 1e-9), {}
    tokens = collections.Counter(min(39, int(t / width)) for t in arrived)
    for at, gap in gaps:
        windows.setdefault(int(at / width), []).append(gap)
    centre = [(width * (w + 0.5), sorted(v)) for w, v in sorted(windows.items())]
    rate = [(width * (w + 0.5), tokens[w] / width) for w in range(min(40, max(tokens, default=-1) + 1))]
    return groups, failed, [[(x, percentile(v, q)) for x, v in centre] for q in (0.5, 0.99)], rate


def write_plot(path, title, runs, figures, axis):
    groups, failed, (median, slow), tokens = over_time(runs)
    first = [(name, data, "dots") for name, data in groups.items() if data] + ([("failed", failed, "dots")] if failed else [])
    panels = [("Time to first token, each request", "seconds", "ms", first),
              ("Between tokens", "seconds", "ms", [("p50", median, "line"), ("p99", slow, "line")]), ("Output", "seconds", "tokens/s", [("tokens/s", tokens, "line")])]
    swept = [s for s in figures if s["ok"]]
    if len(swept) > 1:
        def line(key, q):
            return (q, [(s["load"], s[key][q]) for s in swept if s[key]], "line")

        panels += [(f"Time to first token over {axis}", axis, "ms", [line("ttft_ms", q) for q in ("p50", "p90", "p99")]),
                   (f"Between tokens over {axis}", axis, "ms", [line("inter_token_ms", q) for q in ("p50", "p90", "p99")]),
                   (f"Answered over {axis}", axis, "requests/s", [("requests/s", [(s["load"], s["requests_per_s"]) for s in swept], "line")])]
    across, width, height = 3 if len(panels) > 3 else 1, 420 if len(panels) > 3 else 880, 220
    down = math.ceil(len(panels) / across)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{across * (width + 90) + 20}" height="{down * (height + 90) + 50}" font-family="sans-serif" font-size="12">',
           "<style>.t{font-size:15px;font-weight:bold}.m{text-anchor:middle}.e{text-anchor:end}.g{stroke:#ddd}</style>",
           '<rect width="100%" height="100%" fill="white"/>', f'<text x="20" y="24" class="t">{escape(title)}</text>']
    for k, panel in enumerate(panels):
        out += chart(70 + k % across * (width + 90), 80 + k // across * (height + 90), width, height, *panel)
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(out + ["</svg>", ""]))
