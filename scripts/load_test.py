#!/usr/bin/env python3
"""Load test for an OpenAI-compatible server: conversations of several turns with shared system prompts and
images, or a data set, streamed. Python 3.11, standard library only.

  load_test.py --url http://127.0.0.1:8000 --users 8 --duration 30
      closed loop: 8 users, each sends a request when its last one is complete
  load_test.py --rate 1,2,4,8 --duration 30 --slo ttft=500ms,tpot=50ms --html report.html
      open loop: Poisson arrivals at 1, 2, 4 and 8 requests a second, one run each; goodput; a report
  load_test.py --dataset chats.json --dataset-format sharegpt --sweep 1,2,4,8 --warm-up 5 --json a.json
      conversations of a file, at 1, 2, 4 and 8 users
  load_test.py --compare a.json b.json --html compared.html
      two such files, metric by metric, with intervals
  load_test.py --shared-prefix 2000 --users 32
      one cold request, then 31 that share its system prompt: cold / warm
  load_test.py --completions --shared-prefix 2000 --users 32
      the same for a base model, which has no chat template
  load_test.py --calibrate --users 256
      the tool's own error, against a stub server that stamps each event

Prints requests/s, tokens/s, time to first token (TTFT), inter-token times, what share of the prompts the
server had cached, and errors by kind; --json FILE keeps every request, --html and --plot draw them. The same
--seed asks the same things in the same order; a server that caches prompts answers a second run with the same
seed warm: take another --seed, or --salt auto where the server knows `cache_salt`.
Exit status: 0, or 1 if any request failed, 2 for wrong flags, 130 after Ctrl-C (which still prints what there
is).

All in one thread on an asyncio loop: an event is stamped when the system call that announced it returned, not
when its turn to be parsed came.
"""
import asyncio
import json
import math
import os
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from loadtest import compare, dataset, page, plot, report  # noqa: E402
from loadtest.options import options  # noqa: E402
from loadtest.run import Run  # noqa: E402
from loadtest.wire import Answer, Client, Fault, StampedSelector, Target  # noqa: E402
from loadtest.work import Plan, Tokenizer  # noqa: E402


async def calibrate(opts, clock):
    """Streams from a stub that writes the time into each event; both processes read the same monotonic
    clock."""
    stub = os.path.join(os.path.dirname(os.path.abspath(__file__)), "loadtest", "stub.py")
    command = [sys.executable, stub, "--interval", str(opts.stub_interval), "--spread"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        target = Target(process.stdout.readline().split()[-1], None)
        client, delays = Client(target, clock, opts.timeout), []
        body = {"stream": True, "max_tokens": opts.answer_length.draw(random.Random(opts.seed))}
        failed = 0

        async def one(i, count):
            nonlocal failed
            for n in range(count):
                answer = Answer()
                answer.delays = delays
                asked = {**body, "messages": [{"role": "user", "content": f"stream {i} {n}"}]}
                await client.post("/chat/completions", json.dumps(asked).encode(), answer)
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
    print(f"{opts.users[0]} streams at once, an event every {opts.stub_interval * 1000:g} ms in each: "
          f"{len(delays):,} events, {len(delays) / wall:,.0f} a second, {failed} failed")
    print("from written by the stub to stamped here, ms: "
          + ", ".join(f"{k} {s[k]:.3f}" for k in ("p50", "p90", "p99", "max")))
    print(f"this client: busy {own['busy_share'] * 100:.1f} % of one core, at most "
          f"{own['longest_busy_ms']:.2f} ms at a stretch")
    return 1 if failed else 0


def describe(opts, load):
    if opts.shared_prefix:
        return f"{load} users share a system prompt of {opts.shared_prefix} tokens"
    return f"open loop, {load:g} requests/s" if opts.mode == "open" else f"closed loop, {load} users"


def sessions_ahead(opts, plan, load):
    """How many sessions a run is likely to begin."""
    if opts.shared_prefix:
        return 0
    if opts.mode == "open" and opts.duration:
        return opts.sessions or math.ceil(load / plan.mean_turns * opts.duration * 1.2)
    return opts.sessions or load * 4


async def perform(opts, target, clock, model, plans, runs):
    """Runs one load after the other, and adds what is known of each to `runs`; SIGINT or SIGTERM ends the
    current one and the rest. -> interrupted?"""
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
        plan.prepare(sessions_ahead(opts, plan, load))
        client = Client(target, clock, opts.timeout)
        run = Run(opts, client, model, plan, load)
        task = asyncio.create_task(run.go())
        try:
            await task
        except asyncio.CancelledError:
            pass
        client.close()
        if run.wall:
            runs.append(report.whole(run, report.summarize(run)))
            print(report.table(describe(opts, load), runs[-1]), flush=True)
        if interrupted:
            break
    return interrupted


def write(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def more_files():
    """A connection for each stream: as many open files as the system lets us have."""
    try:
        import resource
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ImportError, ValueError, OSError):
        pass


def keep(opts, title, result):
    """Writes the files that were asked for."""
    runs, axis = result["runs"], "requests/s offered" if opts.mode == "open" else "users"
    if len(runs) > 1:
        print(report.sweep_table(axis, runs))
    if opts.json:
        write(opts.json, json.dumps(result, indent=1))
    if opts.html:
        write(opts.html, page.report(title, result, [describe(opts, s["load"]) for s in runs], axis))
    if opts.plot and runs:
        plot.write_plot(opts.plot, title, runs, axis)


def measure(opts, loop, clock):
    target, runs = Target(opts.url, opts.api_key), []
    model = opts.model or target.first_model()
    tokenizer, entries = Tokenizer(target, model), None
    if opts.dataset:
        entries = dataset.read(opts.dataset, opts.dataset_format, opts, tokenizer)
    # Each run asks different things: none is warm from another.
    loads = enumerate(opts.rate or opts.users)
    plans = [(load, Plan(opts, step, tokenizer, entries)) for step, load in loads]
    what = f"/v1/completions with {opts.completions}" if opts.completions else "chat"
    if opts.dataset:
        what += f", {len(entries)} conversations of {os.path.basename(opts.dataset)}"
    title = f"{target.root}, model {model}, {what}, seed {opts.seed}"
    print(f"load test: {title}\n", flush=True)
    interrupted = loop.run_until_complete(perform(opts, target, clock, model, plans, runs))
    settings = {k: v if isinstance(v, (int, float, list, tuple, dict, type(None))) else str(v)
                for k, v in vars(opts).items() if k != "api_key"}
    keep(opts, title, {"server": target.root, "model": model, "settings": settings,
                       "interrupted": interrupted, "runs": runs})
    if interrupted:
        return 130
    short = opts.min_ratio and any((s["cold_over_warm"] or 0) < opts.min_ratio for s in runs)
    if short:
        print(f"load_test: cold / warm is below {opts.min_ratio:g}", file=sys.stderr)
    return 1 if short or any(s["failed"] for s in runs) else 0


def main(arguments=None):
    opts = options(__doc__, arguments)
    more_files()
    clock = StampedSelector()
    loop = asyncio.SelectorEventLoop(clock)
    try:
        if opts.compare:
            text, document, panels = compare.compare(opts.compare, opts.slo)
            print(text)
            if opts.plot:
                a, b = map(os.path.basename, opts.compare)
                plot.write_panels(opts.plot, f"A: {a}, B: {b}", panels, 3)
            if opts.html:
                write(opts.html, document)
            return 0
        if opts.calibrate:
            return loop.run_until_complete(calibrate(opts, clock))
        return measure(opts, loop, clock)
    except Fault as fault:
        print(f"load_test: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        loop.close()


if __name__ == "__main__":
    sys.exit(main())
