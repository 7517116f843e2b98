"""Service level objectives: which requests keep them, and the rate of those (goodput). A request is what
Record.public() makes of it and a JSON file holds."""
import argparse

NAMES = {"ttft": "time to first token", "tpot": "per token, a request", "e2e": "end to end"}


def bounds(text):
    """'ttft=500ms,tpot=50ms,e2e=10s' -> {"ttft": 0.5, ...} in seconds"""
    out = {}
    for piece in text.split(","):
        name, _, value = piece.strip().partition("=")
        unit = 0.001 if value.endswith("ms") else 1.0
        try:
            seconds = float(value.removesuffix("ms").removesuffix("s")) * unit
        except ValueError:
            seconds = 0
        if name not in NAMES or name in out or not value.endswith("s") or not 0 < seconds < 1e6:
            raise argparse.ArgumentTypeError(f"{piece}: ttft=, tpot= or e2e= with ms or s is needed")
        out[name] = seconds
    return out


def times(record):
    return {"ttft": record.get("ttft"), "tpot": record.get("per_token"), "e2e": record.get("e2e")}


def kept(record, limits):
    """-> {name: bool}. An answer of one token has no time per token and keeps that bound; a failure keeps
    none."""
    got = times(record)
    return {k: "error" not in record and (got[k] is None or got[k] <= v) for k, v in limits.items()}


def good(record, limits):
    return "error" not in record and all(kept(record, limits).values())


def figures(counted, answered_per_s, limits):
    """counted: the requests that are judged. Goodput is the share of the answered that is good, of their
    rate."""
    judged = [r for r in counted if r.get("error") != "aborted"]
    count = sum(good(r, limits) for r in judged)
    answered = sum("error" not in r for r in judged)
    share = {k: sum(kept(r, limits)[k] for r in judged) / len(judged) for k in limits} if judged else {}
    return {"bounds_ms": {k: v * 1000 for k, v in limits.items()}, "good": count, "judged": len(judged),
            "share": count / len(judged) if judged else None, "kept": share,
            "goodput_per_s": answered_per_s * count / answered if answered else 0.0}
