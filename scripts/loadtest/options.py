"""The command line of load_test.py."""
import argparse
import json
import math
import os

from .lengths import FORMS, Lengths, lengths
from .slo import bounds


def number(kind, low):
    def read(text):
        value = kind(text)
        if not low <= value < math.inf:
            raise argparse.ArgumentTypeError(f"{text}: at least {low} is needed")
        return value
    read.__name__ = kind.__name__
    return read


def span(kind, low):
    """'A' or 'A:B'"""
    def read(text):
        ends = [number(kind, low)(t) for t in text.split(":")]
        if len(ends) > 2 or ends[0] > ends[-1]:
            raise argparse.ArgumentTypeError(f"{text}: N or MIN:MAX is needed")
        return ends[0], ends[-1]
    read.__name__ = "range"
    return read


def several(kind, low):
    def read(text):
        return [number(kind, low)(t) for t in text.split(",")]
    read.__name__ = "list"
    return read


def size(text):
    width, _, height = text.partition("x")
    out = number(int, 1)(width), number(int, 1)(height or width)
    if max(out) > 8192:
        raise argparse.ArgumentTypeError(f"{text}: at most 8192")
    return out


def json_object(text):
    value = json.loads(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("a JSON object is needed")
    return value


def make_parser(description):
    what, _, rest = description.partition("\n\n")
    examples, _, notes = rest.partition("\n\n")
    parser = argparse.ArgumentParser(prog="load_test.py", description=what,
                                     epilog=f"examples:\n{examples}\n\n{notes}",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument_group("server").add_argument
    add("--url", default="http://127.0.0.1:8000", help="with or without /v1 [%(default)s]")
    add("--model", help="[the first that /v1/models names]")
    add("--api-key", help="sent as Authorization: Bearer")
    add("--timeout", type=number(float, 0.001), default=300.0, metavar="S",
        help="a request without its whole answer after so long has failed [%(default)g]")
    add("--metrics-interval", type=number(float, 0), default=1.0, metavar="S",
        help="how often the server's /metrics is read, where there is one; 0: never [%(default)g]")
    add = parser.add_argument_group("load").add_argument
    add("--mode", choices=("open", "closed"), help="[open if there is a --rate, else closed]")
    add("--users", type=several(int, 1), metavar="N[,N...]",
        help="closed loop: users at once; several: one run each [4]")
    add("--rate", type=several(float, 1e-6), metavar="R[,R...]",
        help="open loop: requests a second (sessions arrive at R / mean turns); several: one run each")
    add("--sweep", type=several(float, 1e-6), metavar="X[,X...]",
        help="one run each: the same as --users X,X, or with --mode open as --rate X,X")
    add("--burstiness", type=number(float, 0.01), default=1.0, metavar="B",
        help="open loop: the shape of the gamma distribution of pauses between arrivals; 1: Poisson, less: "
        "more bursts, more: more even [%(default)g]")
    add("--max-concurrency", type=number(int, 1), metavar="N",
        help="open loop: at most N requests at once; others wait here, and their times count from when they "
        "were due")
    add("--duration", type=number(float, 0.001), metavar="S",
        help="no request starts later than this [30, if there is no --sessions]")
    add("--sessions", type=number(int, 1), metavar="N", help="end after so many conversations")
    add("--warm-up", type=number(float, 0), default=0.0, metavar="S",
        help="the first S seconds of a run are in no figure [%(default)g]")
    add("--shared-prefix", type=number(int, 1), metavar="TOKENS",
        help="instead: one cold request, then users 2 to N with the same system prompt of so many tokens, "
        "one by one and then all at once (--system-prompts K: the whole K times)")
    add("--min-ratio", type=number(float, 0), metavar="X",
        help="with --shared-prefix: exit status 1 if cold / warm is less")
    add("--calibrate", action="store_true",
        help="instead: measure this tool against its stub server (--users, --max-tokens)")
    add("--stub-interval", type=number(float, 0.0001), default=0.02, metavar="S",
        help="with --calibrate: time between the events of a stream [%(default)g]")
    add("--compare", nargs=2, metavar=("A.json", "B.json"),
        help="instead: two files of --json side by side, B / A with intervals; --html and --plot too")
    add = parser.add_argument_group("conversations").add_argument
    add("--turns", type=span(int, 1), metavar="MIN:MAX", help="[1:4; of a data set: all]")
    add("--system-tokens", type=number(int, 0), default=200, metavar="N",
        help="length of a system prompt, 0: none; counted with /tokenize if the server has it, else words "
        "[%(default)s]")
    add("--system-prompts", type=number(int, 1), default=1, metavar="K",
        help="how many different ones [%(default)s]")
    add("--user-tokens", type=lengths(spread=True), default=Lengths("24", spread=True), metavar="LENGTH",
        help=f"of a question: {FORMS}; N alone: uniform from N/2 to 3N/2 [%(default)s]")
    add("--max-tokens", type=lengths(), metavar="LENGTH",
        help="of an answer, in the same forms; N alone: N [64, or as a data set says]")
    add("--images-per-session", type=span(int, 0), default=(0, 0), metavar="MIN:MAX",
        help="the first in the first turn, the others in any [0]")
    add("--image-size", type=size, default=(224, 224), metavar="N|WxH", help="[224]")
    add("--image-kind", choices=("shapes", "noise"), default="shapes",
        help="shapes: about 2 KB; noise: 3 bytes a pixel [%(default)s]")
    add("--image-pool", type=number(int, 0), default=0, metavar="N",
        help="sessions share N images; 0: each image is new [0]")
    add("--think-time", type=span(float, 0), default=(0.0, 0.0), metavar="S|MIN:MAX",
        help="pause before a later turn, uniform [0]")
    add("--completions", nargs="?", const="text", choices=("text", "ids"),
        help="/v1/completions with text or token-id prompts (no images) instead of chat [text]")
    add("--ids", type=span(int, 0), default=(300, 800), metavar="LOW:HIGH",
        help="token ids that --completions ids draws from [300:800]")
    add("--dataset", metavar="FILE", help="ask what is in this file instead")
    add("--dataset-format", choices=("jsonl", "sharegpt"), default="jsonl",
        help="jsonl: one request a line, {\"messages\": [...]} or {\"prompt\": ...}; sharegpt: conversations "
        "[%(default)s]")
    add = parser.add_argument_group("requests").add_argument
    add("--seed", type=int, default=1, help="[%(default)s]")
    add("--salt", help="sent as cache_salt: what the server cached for other salts stays unused; 'auto': a "
        "new one each run")
    add("--temperature", type=number(float, 0), default=0.0, metavar="T", help="[%(default)g]")
    add("--ignore-eos", action="store_true",
        help="send ignore_eos, so that each answer has --max-tokens tokens")
    add("--extra", type=json_object, default={}, metavar="JSON",
        help="fields added to each request, e.g. '{\"top_p\": 0.9}'")
    add = parser.add_argument_group("output").add_argument
    add("--slo", type=bounds, metavar="NAME=TIME,...",
        help="goodput: count the requests that keep these bounds, e.g. ttft=500ms,tpot=50ms,e2e=10s")
    add("--json", metavar="FILE",
        help="figures and every request; times of requests in seconds, figures in ms")
    add("--html", metavar="FILE", help="a report with plots, in one file that loads nothing")
    add("--plot", metavar="FILE.svg",
        help="latency over time, and over the rate or the users if there are several")
    return parser


def options(description, arguments):
    parser = make_parser(description)
    opts = parser.parse_args(arguments)
    if opts.sweep:
        if opts.users or opts.rate:
            parser.error("--sweep takes the place of --users and --rate")
        if opts.mode == "open":
            opts.rate = opts.sweep
        elif all(x == int(x) for x in opts.sweep):
            opts.users = [int(x) for x in opts.sweep]
        else:
            parser.error("--sweep without --mode open counts users: whole numbers are needed")
    if opts.rate and opts.mode == "closed" or opts.mode == "open" and not opts.rate:
        parser.error("--mode open needs --rate, --mode closed has none")
    if not opts.rate and (opts.max_concurrency or opts.burstiness != 1):
        parser.error("--max-concurrency and --burstiness need --rate")
    opts.users = opts.users or [4]
    opts.mode = opts.mode or ("open" if opts.rate else "closed")
    if opts.completions and opts.images_per_session[1]:
        parser.error("--completions has no images")
    if opts.shared_prefix:
        if opts.rate or opts.dataset or opts.warm_up or len(opts.users) > 1 or opts.users[0] < 2:
            parser.error("--shared-prefix needs one --users of at least 2; no --rate, --dataset or --warm-up")
        opts.system_tokens = opts.shared_prefix
    elif not opts.duration and not opts.sessions:
        opts.duration = 30.0
    if opts.duration and opts.warm_up >= opts.duration:
        parser.error("--warm-up needs to be shorter than --duration")
    if opts.dataset and opts.completions == "ids":
        parser.error("--dataset has texts: take --completions text")
    opts.turns_most = opts.turns[1] if opts.turns else None  # of a data set's conversation
    opts.turns = opts.turns or (1, 4)
    opts.answer_length = opts.max_tokens or Lengths("64")
    opts.ask_usage = True  # until the server refuses
    if opts.salt == "auto":
        opts.salt = f"load-test-{os.urandom(6).hex()}"
    return opts
