"""The server's metrics during a run: /metrics (Prometheus text) read at an interval, if there is one.
The names of several servers are known; a metric that a server lacks is left out. They cover the whole
server, including requests of others."""
import asyncio
import math
import ssl
import time

GAUGES = {  # the first name that is there
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing",
                "tgi_batch_current_size"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred",
                "tgi_queue_size"),
    "kv_use": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage",
               "llamacpp:kv_cache_usage_ratio"),
}
SHARES = {  # (part, whole) of counters
    "hit_rate": (("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
                 ("vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total"),
                 ("sglang:cached_tokens_total", "sglang:prompt_tokens_total")),
    "acceptance": (("vllm:spec_decode_num_accepted_tokens_total",
                    "vllm:spec_decode_num_draft_tokens_total"),),
}
AVERAGED = ("kv_use",)  # over engines; the others are summed


def parse(text):
    """-> {name: [value of each series]}"""
    out = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition("{")
            if rest:
                rest = rest.rpartition("}")[2]
            else:
                name, _, rest = line.partition(" ")
            try:
                value = float(rest.split()[0])
            except (ValueError, IndexError):
                continue
            if math.isfinite(value):
                out.setdefault(name, []).append(value)
    return out


def pick(values):
    """-> {figure: gauge, or (part, whole)} of one reading"""
    out = {}
    for figure, names in GAUGES.items():
        name = next((n for n in names if n in values), None)
        if name:
            total = sum(values[name])
            out[figure] = total / len(values[name]) if figure in AVERAGED else total
    for figure, pairs in SHARES.items():
        pair = next((p for p in pairs if p[0] in values and p[1] in values), None)
        if pair:
            out[figure] = sum(values[pair[0]]), sum(values[pair[1]])
    return out


def change(before, after):
    """The share between two readings of (part, whole); None if nothing was counted."""
    whole = after[1] - before[1]
    return (after[0] - before[0]) / whole if whole > 0 else None


class Watch:
    """Reads until it is cancelled."""

    def __init__(self, target, interval, timeout=5.0):
        self.target, self.interval, self.timeout = target, interval, timeout
        self.readings, self.fault = [], None  # [(seconds since the begin, pick())]

    async def fetch(self):
        t = self.target
        key = f"Authorization: Bearer {t.key}\r\n" if t.key else ""
        tls = ssl.create_default_context() if t.secure else None
        reader, writer = await asyncio.open_connection(t.host, t.port, ssl=tls, limit=1 << 24)
        try:  # HTTP/1.0: the answer is not chunked and ends with the connection
            path = t.base[:-3] + "/metrics"
            writer.write(f"GET {path} HTTP/1.0\r\nHost: {t.at}\r\n{key}Connection: close\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            if head.split(b" ")[1:2] != [b"200"]:
                raise OSError(head.split(b"\r\n")[0].decode("latin-1"))
            return (await reader.read(-1)).decode("utf-8", "replace")
        finally:
            writer.close()

    async def read(self, begin):
        """-> whether there is anything to read"""
        try:
            async with asyncio.timeout(self.timeout):
                found = pick(parse(await self.fetch()))
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as fault:
            self.fault = str(fault) or type(fault).__name__
            return bool(self.readings)  # a server that answered once may be busy
        if found:
            self.readings.append((time.perf_counter() - begin, found))
        return bool(found)

    async def go(self, begin):
        while await self.read(begin):
            passed = time.perf_counter() - begin
            await asyncio.sleep(self.interval - passed % self.interval)

    def series(self):
        """-> {"t": [...], figure: [...]}; shares are those since the reading before; None: nothing known"""
        if not self.readings:
            return None
        out = {"t": [t for t, _ in self.readings]}
        for figure in GAUGES:
            if any(figure in r for _, r in self.readings):
                out[figure] = [r.get(figure) for _, r in self.readings]
        for figure in SHARES:
            pairs = [r.get(figure) for _, r in self.readings]
            if any(pairs):
                out[figure] = [None] + [change(a, b) if a and b else None for a, b in zip(pairs, pairs[1:])]
        return out

    def figures(self, warm):
        """Of the readings from `warm` seconds on."""
        late = [r for t, r in self.readings if t >= warm]
        if not late:
            return None
        out = {}
        for figure in GAUGES:
            values = [r[figure] for r in late if figure in r]
            if values:
                out[figure] = {"mean": sum(values) / len(values), "max": max(values)}
        for figure in SHARES:
            pairs = [r[figure] for r in late if figure in r]
            if len(pairs) > 1:
                out[figure] = change(pairs[0], pairs[-1])
        return out
