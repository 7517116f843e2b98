"""One setting of a load test: who asks when (open loop, closed loop, shared prefix), and a record of each
request."""
import array
import asyncio
import contextlib
import dataclasses
import gc
import math
import time

from .metrics import Watch
from .wire import Answer, Fault
from .work import Conversation, Turn, words


@dataclasses.dataclass
class Record:
    """One request. Times in seconds; start, when it was due, counts from the start of the run; ttft and e2e
    count from there, with the time that --max-concurrency held it back (held)."""
    session: int
    turn: int
    images: int
    start: float
    phase: str = ""  # "warm-up": is in no figure
    held: float | None = None
    ttft: float | None = None
    e2e: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int = 0
    counted_by: str | None = None  # what output_tokens come from: the server's usage, or chunks of the stream
    finish: str | None = None
    error: str | None = None
    message: str = ""
    stamps: array.array = dataclasses.field(default=None, repr=False)

    def share(self):
        if self.cached_tokens is None or not self.prompt_tokens:
            return None
        return self.cached_tokens / self.prompt_tokens

    def gaps(self):
        return [b - a for a, b in zip(self.stamps, self.stamps[1:])]

    def per_token(self):
        if self.output_tokens < 2 or len(self.stamps) < 2:
            return None
        return (self.stamps[-1] - self.stamps[0]) / (self.output_tokens - 1)

    def part_after(self, warm):
        """Which part of its time lies after `warm` seconds of the run."""
        if self.start >= warm or not self.e2e:
            return 1.0 if self.start >= warm else 0.0
        return min(1.0, max(0.0, (self.start + self.e2e - warm) / self.e2e))

    def public(self):
        out = {k: v for k, v in vars(self).items() if k != "stamps" and v not in ("", None)}
        return {**out, **({"per_token": self.per_token()} if self.per_token() is not None else {})}


class Run:
    """One setting: its requests, and the records of what came back."""

    def __init__(self, opts, client, model, plan, load):
        self.opts, self.client, self.model, self.plan, self.load = opts, client, model, plan, load
        self.records, self.sessions, self.late, self.begin, self.wall = [], 0, 0.0, 0.0, 0.0
        self.warm, self.watch = opts.warm_up, Watch(client.target, opts.metrics_interval)
        most = opts.max_concurrency
        self.gate = asyncio.Semaphore(most) if most else contextlib.nullcontext()
        self.deadline = math.inf

    async def ask(self, talk, session, turn_number, turn, phase=""):
        body, path = talk.ask(turn), "/completions" if self.opts.completions else "/chat/completions"
        answer, start = Answer(), time.perf_counter()
        record = Record(session, turn_number, len(turn.images), start - self.begin, phase)
        if self.begin and record.start < self.warm:
            record.phase = "warm-up"
        self.records.append(record)
        try:
            async with self.gate:
                if self.opts.max_concurrency:
                    record.held = time.perf_counter() - start
                await self.client.post(path, body, answer)
        except asyncio.CancelledError:
            answer.fail("aborted")
            raise
        finally:
            self.note(record, answer, start)
        if not record.error:
            talk.answered(answer)
        return record

    def note(self, record, answer, start):
        record.stamps, record.finish = answer.stamps, answer.finish
        record.error, record.message = answer.error, answer.message
        usage = answer.usage if isinstance(answer.usage, dict) else {}
        record.prompt_tokens = usage.get("prompt_tokens")
        details = usage.get("prompt_tokens_details")
        record.cached_tokens = details.get("cached_tokens") if isinstance(details, dict) else None
        record.output_tokens = usage.get("completion_tokens") or len(answer.stamps)
        record.counted_by = "usage" if usage.get("completion_tokens") else "chunks"
        if answer.stamps:
            record.ttft = answer.stamps[0] - start
        if answer.done:
            record.e2e = answer.done - start

    async def session(self, i):
        self.sessions += 1
        system, turns = self.plan.session(i)
        talk = Conversation(self.opts, self.model, system, i)
        for number, turn in enumerate(turns):
            if number:  # the first turn was due in time, even if the client came to it late
                if turn.think:
                    await asyncio.sleep(turn.think)
                if time.perf_counter() >= self.deadline:
                    return
            if (await self.ask(talk, i, number + 1, turn)).error:
                return  # there is nothing to go on from

    async def closed(self, users):
        numbers = iter(range(self.opts.sessions)) if self.opts.sessions else iter(range(1 << 62))

        async def user():
            for i in numbers:
                if time.perf_counter() >= self.deadline:
                    return
                await self.session(i)

        await asyncio.gather(*(user() for _ in range(users)))

    async def arrivals(self, rate):
        """Sessions come at a rate that gives `rate` requests a second once their later turns have set in,
        with pauses of a gamma distribution whose shape is --burstiness; 1 is the Poisson process."""
        rng, at, tasks, shape = self.plan.rng("arrivals"), 0.0, [], self.opts.burstiness
        sessions_a_second = rate / self.plan.mean_turns
        try:
            for i in range(self.opts.sessions or 1 << 62):
                at += (rng.expovariate(sessions_a_second) if shape == 1 else
                       rng.gammavariate(shape, 1 / (shape * sessions_a_second)))
                if self.begin + at >= self.deadline:
                    break
                await asyncio.sleep(max(0.0, self.begin + at - time.perf_counter()))
                self.late = max(self.late, time.perf_counter() - self.begin - at)
                tasks.append(asyncio.create_task(self.session(i)))
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def shared_prefix(self, users):
        """For each system prompt: one cold request alone; then the other users one after another; then as
        many again all at once."""
        async def one(k, user, phase):
            self.sessions += 1
            number = k * users + user
            talk = Conversation(self.opts, self.model, self.plan.systems[k], number)
            turn = Turn(self.plan.question(self.plan.rng(phase, k, user)), [], 0)
            return await self.ask(talk, number, 1, turn, phase)

        for k in range(len(self.plan.systems)):
            if (await one(k, 0, "cold")).error:
                return
            for user in range(1, users):
                await one(k, user, "warm")
            await asyncio.gather(*(one(k, user, "at once") for user in range(1, users)))

    async def warm_up(self):
        """One small unrelated request, so that the first that counts doesn't pay for what happens once in a
        server's life. Shows too whether the server knows stream_options."""
        turn = Turn("warm up " + words(self.plan.rng("warm-up"), 8), [], 0)
        record = await self.ask(Conversation(self.opts, self.model, "", 0), -1, 0, turn)
        if (record.error or "").startswith("HTTP 4") and "stream_options" in record.message:
            self.opts.ask_usage = False
            record = await self.ask(Conversation(self.opts, self.model, "", 0), -1, 0, turn)
        self.records = []
        if record.error:
            raise Fault(f"the first request failed: {record.error} {record.message}".rstrip())

    async def go(self):
        await self.warm_up()
        gc.collect()
        gc.freeze()
        self.client.clock.restart()
        self.begin = time.perf_counter()
        self.deadline = self.begin + self.opts.duration if self.opts.duration else math.inf
        watching = asyncio.create_task(self.watch.go(self.begin)) if self.opts.metrics_interval else None
        try:
            if self.opts.shared_prefix:
                await self.shared_prefix(self.load)
            elif self.opts.mode == "open":
                await self.arrivals(self.load)
            else:
                await self.closed(self.load)
        finally:
            self.wall = time.perf_counter() - self.begin
            self.own = {**self.client.clock.figures(), "connections": self.client.opened,
                        "latest_arrival_ms": self.late * 1000}
            if watching:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                if self.watch.readings:
                    await self.watch.read(self.begin)
