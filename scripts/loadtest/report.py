"""Metrics of a run, and the tables for people. Knows nothing of HTTP."""
import collections
import math

from . import slo

# Cached share of a prompt below which a request counts as cold (every chat begins with the same few tokens),
# and from which as warm.
COLD_SHARE, WARM_SHARE = 0.1, 0.5
SECONDS_MOST = 240  # points of a series


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


def cache_group(share):
    if share is None:
        return None
    return "cold" if share < COLD_SHARE else "warm" if share >= WARM_SHARE else "partly"


def group_figures(records):
    prompts = [r.prompt_tokens for r in records if r.prompt_tokens is not None]
    cached = [r.cached_tokens for r in records if r.cached_tokens is not None]
    return {"requests": len(records), "prompt_tokens": sum(prompts) / len(prompts) if prompts else None,
            "cached_tokens": sum(cached) / len(cached) if cached else None,
            "ttft_ms": spread([r.ttft for r in records])}


def ratio(cold, warm, q="p50"):
    if not cold or not warm or warm["ttft_ms"][q] <= 0:
        return None
    return cold["ttft_ms"]["p50"] / warm["ttft_ms"][q]


def summarize(run):
    """What began in the warm-up is in no figure, but for the part of it in the throughput that lies after."""
    counted = [r for r in run.records if r.phase != "warm-up"]
    done = [r for r in counted if not r.error]
    failed = [r for r in counted if r.error and r.error != "aborted"]
    parts = [(r, r.part_after(run.warm)) for r in run.records if not r.error]
    kinds = {}
    for r in failed:
        kind = kinds.setdefault(r.error, {"count": 0, "example": r.message})
        kind["count"] += 1
    wall = max(1e-9, run.wall - run.warm)
    known = [r for r in done if r.cached_tokens is not None]
    known_prompt = sum(r.prompt_tokens or 0 for r in known)
    told = any(r.prompt_tokens is not None for r in done)
    held = [r.held for r in done if r.held is not None]
    out = {"load": run.load, "wall_s": wall, "warm_up_s": run.warm, "sessions": run.sessions,
           "ok": len(done), "failed": len(failed), "aborted": len(counted) - len(done) - len(failed),
           "warm_up_requests": len(run.records) - len(counted), "errors": kinds,
           "images": sum(r.images for r in done), "requests_per_s": sum(w for _, w in parts) / wall,
           "output_tokens_per_s": sum(w * r.output_tokens for r, w in parts) / wall,
           "prompt_tokens_per_s": sum(w * (r.prompt_tokens or 0) for r, w in parts) / wall if told else None,
           "prompt_tokens": sum(r.prompt_tokens or 0 for r in done),
           "output_tokens": sum(r.output_tokens for r in done),
           "output_tokens_counted_by": dict(collections.Counter(r.counted_by for r in done)),
           "cached_share": sum(r.cached_tokens for r in known) / known_prompt if known_prompt else None,
           "requests_with_a_hit": sum(1 for r in known if r.cached_tokens),
           "ttft_ms": spread([r.ttft for r in done]),
           "inter_token_ms": spread([g for r in done for g in r.gaps()]),
           "per_token_ms": spread([t for r in done if (t := r.per_token()) is not None]),
           "end_to_end_ms": spread([r.e2e for r in done]), "held_back_ms": spread(held), "client": run.own,
           "server": run.watch.figures(run.warm)}
    if run.opts.slo:
        out["slo"] = slo.figures([r.public() for r in counted], out["requests_per_s"], run.opts.slo)
    by_cache, by_turn, by_phase = {}, {}, {}
    for r in done:
        by_cache.setdefault(cache_group(r.share()), []).append(r)
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


def series(run):
    """The run in steps of a second (more if it is long), with its warm-up: what the plots over time show."""
    width = max(1.0, math.ceil(run.wall / SECONDS_MOST))
    count = max(1, math.ceil(run.wall / width - 0.01))
    gaps, out = [[] for _ in range(count)], {"width_s": width}
    for name in ("output_tokens", "answered", "good", "failed"):
        out[name] = [0] * count

    def place(t):
        return min(count - 1, max(0, int(t / width)))

    for r in run.records:
        if r.error:
            out["failed"][place(r.start)] += r.error != "aborted"
            continue
        out["answered"][place(r.start + r.e2e)] += 1
        out["good"][place(r.start + r.e2e)] += slo.good(r.public(), run.opts.slo or {})
        for t in r.stamps:
            out["output_tokens"][place(t - run.begin)] += r.output_tokens / len(r.stamps)
        for t, gap in zip(r.stamps[1:], r.gaps()):
            gaps[place(t - run.begin)].append(gap)
    found = [spread(g) for g in gaps]
    for q in ("p50", "p90", "p99"):
        out[f"inter_token_{q}_ms"] = [f[q] if f else None for f in found]
    return out


def whole(run, figures):
    """Everything that is kept of a run: the JSON file and the report are made of this."""
    return {**figures, "series": series(run), "metrics": run.watch.series(),
            "records": [r.public() for r in run.records]}


def show(value, digits=1):
    return "-" if value is None else f"{value:,.{digits}f}"


def row(name, figures):
    if not figures:
        return f"  {name:<22}          -"
    return f"  {name:<22}" + "".join(f"{show(figures[k]):>11}" for k in ("p50", "p90", "p99", "max", "mean"))


def group_row(name, group):
    t = group["ttft_ms"]
    prompt, cached = (show(group[k], 0) for k in ("prompt_tokens", "cached_tokens"))
    times = "".join(f"{show(t[k]):>11}" for k in ("p50", "p90", "p99"))
    return f"  {name:<22}{group['requests']:>9}{prompt:>10}{cached:>10}{times}"


def percent(value):
    return "-" if value is None else f"{value * 100:.1f} %"


def server_line(server):
    """What /metrics said, as text."""
    names = {"running": "running", "waiting": "waiting", "kv_use": "KV use"}
    out = []
    for key, name in names.items():
        if key in server:
            one = percent if key == "kv_use" else show
            out.append(f"{name} {one(server[key]['mean'])} (at most {one(server[key]['max'])})")
    shares = {"hit_rate": "prefix cache hits", "acceptance": "drafts accepted"}
    out += [f"{name} {percent(server[key])}" for key, name in shares.items() if server.get(key) is not None]
    return ", ".join(out)


def slo_lines(s):
    limits = ", ".join(f"{k} {v:g} ms ({percent(s['kept'].get(k))})" for k, v in s["bounds_ms"].items())
    return [f"  goodput               {s['goodput_per_s']:.2f} requests/s: {s['good']} of {s['judged']} "
            f"({percent(s['share'])}) kept all bounds", f"                        each bound: {limits}"]


def groups(s):
    """Time to first token by phase, or by cached share and turn."""
    head = f"  {'time to first token':<22}{'requests':>9}{'prompt':>10}{'cached':>10}"
    lines = ["", head + "".join(f"{k + ' ms':>11}" for k in ("p50", "p90", "p99"))]
    if "phases" in s:
        names = {"cold": "cold, alone", "warm": "warm, one by one", "at once": "warm, all at once"}
        lines += [group_row(names[k], g) for k, g in s["phases"].items()]
        if s["cold_over_warm"]:
            lines += ["", f"  cold / warm = {s['cold_over_warm']:.1f} times (median of the warm; "
                      f"{s['cold_over_slowest_warm']:.1f} times for the slowest of them, "
                      f"{show(s['cold_over_at_once'])} for the median of all at once)"]
            if not s["phases"]["warm"]["cached_tokens"]:
                lines.append("  but the server reported no cached tokens for the warm requests")
            cold = s["phases"]["cold"]
            if (cold["cached_tokens"] or 0) >= COLD_SHARE * (cold["prompt_tokens"] or math.inf):
                lines.append("  but a part of the cold prompt was cached already: take another --seed or "
                             "--salt auto")
        return lines
    names = {"cold": f"under {COLD_SHARE * 100:.0f} % cached", "partly": f"under {WARM_SHARE * 100:.0f} %",
             "warm": f"{WARM_SHARE * 100:.0f} % and more"}
    lines += [group_row(names.get(k, k), g) for k, g in s["by_cache"].items()]
    lines += [group_row(f"turn {k}" + (" and later" if k == "5" else ""), g) for k, g in s["by_turn"].items()]
    if s["cold_over_warm"]:
        lines += ["", f"  cold / warm = {s['cold_over_warm']:.1f} times (medians of {names['cold']} and of "
                  f"{names['warm']}; their prompts' mean lengths: see above)"]
    return lines


def table(title, s):
    """-> the lines people read"""
    left_out = f"; {s['warm_up_requests']} of the warm-up left out" if s["warm_up_requests"] else ""
    rates = [show(s[k]) for k in ("output_tokens_per_s", "prompt_tokens_per_s")]
    requests = f"{s['ok']} answered, {s['failed']} failed, {s['aborted']} aborted"
    requests += f"; {s['sessions']} sessions, {s['images']} images"
    lines = [title, f"  requests              {requests}, {s['wall_s']:.1f} s{left_out}",
             f"  throughput            {show(s['requests_per_s'], 2)} requests/s, "
             f"{rates[0]} output tokens/s, {rates[1]} prompt tokens/s"]
    by_chunks = s["output_tokens_counted_by"].get("chunks")
    if by_chunks:
        lines.append(f"  {'':<22}{by_chunks} answers came without usage: a chunk counts as one token")
    if "slo" in s:
        lines += slo_lines(s["slo"])
    if s["cached_share"] is None:
        lines.append("  cached share          not reported by the server "
                     "(usage.prompt_tokens_details.cached_tokens)")
    else:
        lines.append(f"  cached share          {percent(s['cached_share'])} of {s['prompt_tokens']:,} prompt "
                     f"tokens; {s['requests_with_a_hit']} of {s['ok']} requests had a hit")
    if s["server"]:
        lines.append(f"  server's /metrics     {server_line(s['server'])}")
    if s["ok"]:
        names = {"ttft_ms": "time to first token", "inter_token_ms": "between tokens",
                 "per_token_ms": "per token, a request", "end_to_end_ms": "end to end"}
        if s["held_back_ms"]:
            names["held_back_ms"] = "held back here"
        heads = ("p50", "p90", "p99", "max", "mean")
        lines += ["", "  milliseconds          " + "".join(f"{k:>11}" for k in heads)]
        lines += [row(name, s[key]) for key, name in names.items()] + groups(s)
    if s["errors"]:
        lines += ["", "  errors"]
        for kind, e in sorted(s["errors"].items(), key=lambda x: -x[1]["count"]):
            lines.append(f"  {e['count']:>6}  {kind}{': ' + e['example'][:140] if e['example'] else ''}")
    own = s["client"]
    late = f", arrivals at most {own['latest_arrival_ms']:.1f} ms late" if own["latest_arrival_ms"] else ""
    lines += ["", f"  this client           busy {own['busy_share'] * 100:.1f} % of one core, at most "
              f"{own['longest_busy_ms']:.1f} ms at a stretch, {own['connections']} connections{late}", ""]
    return "\n".join(lines)


SWEEP = ("requests/s", "tokens/s", "ttft p50", "ttft p99", "tpot p50", "tpot p99", "e2e p50", "e2e p99")


def sweep_rows(runs):
    """-> head and rows, as numbers: one row a run"""
    head = list(SWEEP) + (["goodput/s", "good %"] if all("slo" in s for s in runs) else [])
    rows = []
    for s in runs:
        cells = [s["requests_per_s"], s["output_tokens_per_s"]]
        for key in ("ttft_ms", "per_token_ms", "end_to_end_ms"):
            cells += [s[key][q] if s[key] else None for q in ("p50", "p99")]
        if len(head) > len(SWEEP):
            share = s["slo"]["share"]
            cells += [s["slo"]["goodput_per_s"], None if share is None else share * 100]
        rows.append([s["load"], *cells])
    return head, rows


def sweep_table(axis, runs):
    head, rows = sweep_rows(runs)
    lines = [f"sweep over {axis}; times in ms", f"  {axis[:10]:<10}" + "".join(f"{h:>11}" for h in head)]
    for load, *cells in rows:
        texts = [show(c, 2 if "/s" in h else 1) for h, c in zip(head, cells)]
        lines.append(f"  {load:<10g}" + "".join(f"{t:>11}" for t in texts))
    if len(head) > len(SWEEP):
        best = max(runs, key=lambda s: s["slo"]["goodput_per_s"])
        rate = best["slo"]["goodput_per_s"]
        lines.append(f"  most goodput: {rate:.2f} requests/s at {best['load']:g} {axis}")
    return "\n".join(lines + [""])
