#!/usr/bin/env python3
"""Load test for an OpenAI-compatible server: conversations of several turns with shared system prompts and pictures, streamed.
Python 3.11, standard library only.

  load_test.py --url http://127.0.0.1:8000 --users 8 --duration 30           closed loop: 8 users, each asks when its last answer is there
  load_test.py --rate 1,2,4,8 --duration 30 --plot load.svg                  open loop: Poisson arrivals at 1, 2, 4 and 8 requests a second, one run each
  load_test.py --shared-prefix 2000 --users 32                               one cold request, then 31 that share its system prompt: cold / warm
  load_test.py --completions --shared-prefix 2000 --users 32                 the same for a base model, which has no chat template
  load_test.py --calibrate --users 256                                       the tool's own error, against a stub server that stamps each event

Prints requests/s, tokens/s, time to first token (TTFT), inter-token times, what share of the prompts the server had cached, and errors by kind;
--json FILE keeps every request, --plot FILE.svg draws them. The same --seed asks the same things in the same order; a server that caches prompts
answers a second run with the same seed warm: take another --seed, or --salt auto where the server knows `cache_salt`.
Exit status: 0, or 1 if any request failed, 2 for wrong flags, 130 after Ctrl-C (which still prints what there is).

All in one thread on an asyncio loop: an event is stamped when the system call that announced it returned, not when its turn to be parsed came.
"""
import argparse
import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from loadtest import report  # noqa: E402
from loadtest.run import Run  # noqa: E402
from loadtest.wire import Answer, Client, Fault, StampedSelector, Target  # noqa: E402
from loadtest.work import Plan, Tokenizer  # noqa: E402


async def calibrate(opts, clock):
    """Streams from a stub that writes the time into each event; both processes read the same monotonic clock."""
    stub = os.path.join(os.path.dirname(os.path.abspath(__file__)), "loadtest", "stub.py")
    process = subprocess.Popen([sys.executable, stub, "--interval", str(opts.stub_interval), "--spread"], stdout=subprocess.PIPE, text=True)
    try:
        target = Target(process.stdout.readline().split()[-1], None)
        client, delays, body = Client(target, clock, opts.timeout), [], {"stream": True, "max_tokens": opts.max_tokens}
        failed = 0

        async def one(i, count):
            nonlocal failed
            for n in range(count):
                answer = Answer()
                answer.delays = delays
                await client.post("/chat/completions", json.dumps({**body, "messages": [{"role": "user", "content": f"stream {i} {n}"}]}).encode(), answer)
                failed += bool(answer.error)

        await asyncio.gather(*(one(i, 1) for i in range(opts.users[0])))
        delays.clear()
        clock.restart()
        begin = time.perf_counter()
        await asyncio.gather(*(one(i, 3) for i in range(opts.users[0])))
        wall, own = time.perf_counter() - begin, clock.figures()
        client.close()
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
    s = report.spread(delays)
    print(f"{opts.users[0]} streams at once, an event every {opts.stub_interval * 1000:g} ms in each: {len(delays):,} events, {len(delays) / wall:,.0f} a second, {failed} failed")
    print("from written by the stub to stamped here, ms: " + ", ".join(f"{k} {s[k]:.3f}" for k in ("p50", "p90", "p99", "max")))
    print(f"this client: busy {own['busy_share'] * 100:.1f} % of one core, at most {own['longest_busy_ms']:.2f} ms at a stretch")
    return 1 if failed else 0


# ---- command line ----

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


def options(arguments):
    what, _, rest = __doc__.partition("\n\n")
    examples, _, notes = rest.partition("\n\n")
    parser = argparse.ArgumentParser(prog="load_test.py", description=what, epilog=f"examples:\n{examples}\n\n{notes}", formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument_group("server").add_argument
    add("--url", default="http://127.0.0.1:8000", help="with or without /v1 [%(default)s]")
    add("--model", help="[the first that /v1/models names]")
    add("--api-key", help="sent as Authorization: Bearer")
    add("--timeout", type=number(float, 0.001), default=300.0, metavar="S", help="a request without its whole answer after so long has failed [%(default)g]")
    add = parser.add_argument_group("load").add_argument
    add("--mode", choices=("open", "closed"), help="[open if there is a --rate, else closed]")
    add("--users", type=several(int, 1), default=[4], metavar="N[,N...]", help="closed loop: users at once; several: one run each [4]")
    add("--rate", type=several(float, 1e-6), metavar="R[,R...]", help="open loop: requests a second (sessions arrive at R / mean turns); several: one run each")
    add("--duration", type=number(float, 0.001), metavar="S", help="no request starts later than this [30, if there is no --sessions]")
    add("--sessions", type=number(int, 1), metavar="N", help="end after so many conversations")
    add("--shared-prefix", type=number(int, 1), metavar="TOKENS", help="instead: one cold request, then users 2 to N with the same system prompt of so many tokens, one by one and then "
        "all at once (--system-prompts K: the whole K times)")
    add("--min-ratio", type=number(float, 0), metavar="X", help="with --shared-prefix: exit status 1 if cold / warm is less")
    add("--calibrate", action="store_true", help="instead: measure this tool against its stub server (--users, --max-tokens)")
    add("--stub-interval", type=number(float, 0.0001), default=0.02, metavar="S", help="with --calibrate: time between the events of a stream [%(default)g]")
    add = parser.add_argument_group("conversations").add_argument
    add("--turns", type=span(int, 1), default=(1, 4), metavar="MIN:MAX", help="[1:4]")
    add("--system-tokens", type=number(int, 0), default=200, metavar="N", help="length of a system prompt, 0: none; counted with /tokenize if the server has it, else words [%(default)s]")
    add("--system-prompts", type=number(int, 1), default=1, metavar="K", help="how many different ones [%(default)s]")
    add("--user-tokens", type=number(int, 1), default=24, metavar="N", help="mean length of a question [%(default)s]")
    add("--images-per-session", type=span(int, 0), default=(0, 0), metavar="MIN:MAX", help="the first in the first turn, the others in any [0]")
    add("--image-size", type=size, default=(224, 224), metavar="N|WxH", help="[224]")
    add("--image-kind", choices=("shapes", "noise"), default="shapes", help="shapes: about 2 KB; noise: 3 bytes a pixel [%(default)s]")
    add("--picture-pool", type=number(int, 0), default=0, metavar="N", help="sessions share N pictures; 0: each picture is new [0]")
    add("--max-tokens", type=number(int, 1), default=64, metavar="N", help="of an answer [%(default)s]")
    add("--think-time", type=span(float, 0), default=(0.0, 0.0), metavar="S|MIN:MAX", help="pause before a later turn, uniform [0]")
    add("--completions", nargs="?", const="text", choices=("text", "ids"), help="/v1/completions with text or token-id prompts (no pictures) instead of chat [text]")
    add("--ids", type=span(int, 0), default=(300, 800), metavar="LOW:HIGH", help="token ids that --completions ids draws from [300:800]")
    add = parser.add_argument_group("requests").add_argument
    add("--seed", type=int, default=1, help="[%(default)s]")
    add("--salt", help="sent as cache_salt: what the server cached for other salts stays unused; 'auto': a new one each run")
    add("--temperature", type=number(float, 0), default=0.0, metavar="T", help="[%(default)g]")
    add("--ignore-eos", action="store_true", help="send ignore_eos, so that each answer has --max-tokens tokens")
    add("--extra", type=json_object, default={}, metavar="JSON", help="fields added to each request, e.g. '{\"top_p\": 0.9}'")
    add = parser.add_argument_group("output").add_argument
    add("--json", metavar="FILE", help="figures and every request; times of requests in seconds, figures in ms")
    add("--plot", metavar="FILE.svg", help="latency over time, and over the rate or the users if there are several")
    opts = parser.parse_args(arguments)
    if opts.rate and opts.mode == "closed" or opts.mode == "open" and not opts.rate:
        parser.error("--mode open needs --rate, --mode closed has none")
    opts.mode = opts.mode or ("open" if opts.rate else "closed")
    if opts.completions and opts.images_per_session[1]:
        parser.error("--completions has no pictures")
    if opts.shared_prefix:
        if opts.rate or len(opts.users) > 1 or opts.users[0] < 2:
            parser.error("--shared-prefix needs one --users of at least 2 and no --rate")
        opts.system_tokens = opts.shared_prefix
    elif not opts.duration and not opts.sessions:
        opts.duration = 30.0
    if opts.salt == "auto":
        opts.salt = f"load-test-{os.urandom(6).hex()}"
    return opts


def describe(opts, load):
    if opts.shared_prefix:
        return f"{load} users share a system prompt of {opts.shared_prefix} tokens"
    return f"open loop, {load:g} requests/s" if opts.mode == "open" else f"closed loop, {load} users"


def sessions_ahead(opts, load):
    """How many sessions a run is likely to begin."""
    if opts.shared_prefix:
        return 0
    guess = load * 2 / sum(opts.turns) * opts.duration * 1.2 if opts.mode == "open" and opts.duration else load * 4
    return opts.sessions or math.ceil(guess)


async def perform(opts, target, clock, model, plans, runs):
    """Runs one load after the other; SIGINT or SIGTERM ends the current one and the rest. -> interrupted?"""
    interrupted, task = False, None

    def stop():
        nonlocal interrupted
        if interrupted:
            os._exit(130)
        interrupted = True
        task.cancel()

    for name in ("SIGINT", "SIGTERM"):
        try:
            asyncio.get_running_loop().add_signal_handler(getattr(signal, name), stop)
        except (NotImplementedError, AttributeError):
            pass  # a system without it: KeyboardInterrupt ends the tool without a table
    for load, plan in plans:
        plan.prepare(sessions_ahead(opts, load))
        client = Client(target, clock, opts.timeout)
        run = Run(opts, client, model, plan, load)
        task = asyncio.create_task(run.go())
        try:
            await task
        except asyncio.CancelledError:
            pass
        client.close()
        if run.wall:
            runs.append(run)
            print(report.table(f"{describe(opts, load)}", report.summarize(run)), flush=True)
        if interrupted:
            break
    return interrupted


def main(arguments=None):
    opts = options(arguments)
    try:
        import resource
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a connection for each stream
    except (ImportError, ValueError, OSError):
        pass
    clock, runs = StampedSelector(), []
    loop = asyncio.SelectorEventLoop(clock)
    try:
        if opts.calibrate:
            return loop.run_until_complete(calibrate(opts, clock))
        target = Target(opts.url, opts.api_key)
        model = opts.model or target.first_model()
        tokenizer = Tokenizer(target, model)
        plans = [(load, Plan(opts, step, tokenizer)) for step, load in enumerate(opts.rate or opts.users)]  # each asks different things: no run is warm from another
        title = f"{target.root}, model {model}, " + (f"/v1/completions with {opts.completions}" if opts.completions else "chat") + f", seed {opts.seed}"
        print(f"load test: {title}\n", flush=True)
        interrupted = loop.run_until_complete(perform(opts, target, clock, model, plans, runs))
    except Fault as fault:
        print(f"load_test: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        loop.close()
    figures = [report.summarize(run) for run in runs]
    if opts.json:
        settings = {k: v for k, v in vars(opts).items() if k != "api_key"}
        with open(opts.json, "w", encoding="utf-8") as f:
            json.dump({"server": target.root, "model": model, "settings": settings, "interrupted": interrupted,
                       "runs": [{**s, "records": [r.public() for r in run.records]} for s, run in zip(figures, runs)]}, f, indent=1)
    if opts.plot and runs:
        report.write_plot(opts.plot, title, runs, figures, "requests/s offered" if opts.mode == "open" else "users")
    if interrupted:
        return 130
    short = opts.min_ratio and any((s["cold_over_warm"] or 0) < opts.min_ratio for s in figures)
    if short:
        print(f"load_test: cold / warm is below {opts.min_ratio:g}", file=sys.stderr)
    return 1 if short or any(s["failed"] for s in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
