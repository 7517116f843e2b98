#!/usr/bin/env python3
"""How much any policy can reuse on a trace like "edits and branches" of traces.h, of what full attention
reuses, if saved states may take a quarter of the arena (sizes of Qwen3.5-0.8B): the table of docs/caching.md.

  future      knows the trace: a state whose next use is farthest is evicted
  chances     knows the trace's probabilities and which branches nobody returns to, but not what comes: the
              state whose loss costs the fewest tokens of the next request is evicted
Both save a state at every end of a response, also those that a request passes when it computes a prefix
again."""
import random

SESSIONS, TURNS, SYSTEM, ANSWER = 32, 8, 400, 60
STATE_TOKENS = 20 * 1024 / 12  # whose KV takes as much memory as a state
EDITS = 0.4  # of all turns; they go back to any earlier end with the same chance


def trace(seed):
    """[session, number of turns kept, tokens kept, tokens of the prompt]"""
    r, left, ends, out = random.Random(seed), [TURNS] * SESSIONS, [[] for _ in range(SESSIONS)], []
    while any(left):
        s = r.randrange(SESSIONS)
        if not left[s]:
            continue
        left[s] -= 1
        if ends[s] and r.random() < EDITS:
            del ends[s][r.randrange(len(ends[s])):]
        kept = ends[s][-1] if ends[s] else SYSTEM
        out.append((s, len(ends[s]), kept, kept + 100 + r.randrange(400)))
        ends[s].append(out[-1][3] + ANSWER)
    return out


def loss(path, kept, t):
    """Tokens by which the next request grows, on average, without the state at path[t]."""
    last, low, high = len(path) - 1, t - 1, t + 1
    while path[low] not in kept and low:
        low -= 1
    while high <= last and path[high] not in kept:
        high += 1
    chance = sum(1 - EDITS if u == last else EDITS / last for u in range(t, high))
    return chance, low


def reused(requests, room, future):
    paths, end, kept, total = [[None] for _ in range(SESSIONS)], {None: SYSTEM}, {None}, 0
    uses, start = {}, [[None] for _ in range(SESSIONS)]
    for i, (s, turns, _, _) in enumerate(requests):
        uses.setdefault(start[s][turns], []).append(i)
        start[s] = start[s][:turns + 1] + [i]
    for i, (s, turns, _, prompt) in enumerate(requests):
        path = paths[s] = paths[s][:turns + 1]
        at = max(t for t in range(turns + 1) if path[t] in kept)
        total += end[path[at]] if i else 0
        end[i] = prompt + ANSWER
        path.append(i)
        kept |= set(path[at:])
        while len(kept) > room:
            if future:
                key = {x: -next((u for u in uses.get(x, []) if u > i), len(requests)) for x in kept}
            else:
                key = dict.fromkeys(kept, 0)
                for p in paths:
                    for t in range(1, len(p)):
                        if p[t] in kept:
                            chance, low = loss(p, kept, t)
                            key[p[t]] = chance * (end[p[t]] - end[p[low]])
            key.pop(None)
            kept.remove(min(key, key=key.get))
    return total


for percent in 100, 200, 400, 800:
    shares = []
    for seed in range(1, 6):
        t = trace(seed)
        room = int(sum(n + ANSWER - k for _, _, k, n in t) / STATE_TOKENS * percent / 100 / 4)
        full = sum(k for _, _, k, _ in t[1:])
        shares.append([100 * reused(t, room, known) / full for known in (True, False)])
    print(f"arena {percent} %: {room} states:",
          ", ".join(f"{what} {min(x):.1f} to {max(x):.1f}" for what, x in
                    zip(("future", "chances"), zip(*shares))))
