"""The requests of a load test: images, text, sessions and bodies. All of it follows from the seed; knows
nothing of connections."""
import base64
import dataclasses
import json
import math
import random
import struct
import zlib

from .wire import Fault

WORDS = ("the a in of and to is it on as at by for with from that this one two three red blue green "
         "white black small large old new first last good long high low open close light dark water fire "
         "stone house street river field tree leaf bird dog cat horse man woman child hand head eye foot "
         "day night year time place name word line page book paper table door window wall road car ship "
         "train city land sea sky sun moon star wind rain snow ice gold iron glass read write speak hear "
         "see walk run stand fall rise turn carry hold give take make find keep show tell ask answer "
         "think know learn").split()
COLORS = ((220, 40, 40), (40, 90, 220), (40, 170, 70), (235, 200, 40), (150, 60, 190), (240, 130, 30),
           (30, 30, 30), (245, 245, 245), (120, 120, 120))
# How many conversations, and bytes of images, are made before the clock starts at most.
SESSIONS_AHEAD, MADE_AHEAD = 2000, 64 << 20


def png(width, height, rows):
    """An 8-bit RGB PNG. rows: `height` byte strings of 3 * width."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    data = zlib.compress(b"".join(b"\0" + row for row in rows), 1)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def draw_image(rng, width, height, kind="shapes"):
    """A PNG of colored discs, boxes and triangles, or of noise. Its last row is random, so that no two are
    equal."""
    if kind == "noise":
        return png(width, height, [rng.randbytes(3 * width) for _ in range(height)])
    ground, *colors = rng.sample(COLORS, 5)
    rows = [bytearray(bytes(ground) * width) for _ in range(height)]
    for color in colors[: rng.randint(1, 4)]:
        r = max(1, rng.randint(min(width, height) // 10, min(width, height) // 4))
        cx, cy, form = rng.randrange(width), rng.randrange(height), rng.choice(("disc", "box", "triangle"))
        for y in range(max(0, cy - r), min(height, cy + r + 1)):
            half = {"disc": math.isqrt(r * r - (y - cy) ** 2), "box": r, "triangle": (y - cy + r) // 2}[form]
            left, right = max(0, cx - half), min(width, cx + half + 1)
            rows[y][3 * left:3 * right] = bytes(color) * (right - left)
    rows[-1] = rng.randbytes(3 * width)
    return png(width, height, rows)


def words(rng, count):
    return " ".join(rng.choices(WORDS, k=max(1, count)))


@dataclasses.dataclass
class Turn:
    text: str
    images: list  # data: URIs
    think: float  # seconds before it is asked
    max_tokens: int | None = None  # of the answer; None: as the options say
    messages: list | None = None  # as they are, in the place of text and images


class Plan:
    """The conversations of one run: plan.session(i) is the same for equal options, whatever was asked before.
    entries: those of a data set, asked in a random order, again from the start when all were."""

    def __init__(self, opts, step, tokenizer, entries=None):
        self.opts, self.seed, self.made, self.entries = opts, f"{opts.seed}/{step}", {}, entries
        self.per_word, self.systems = tokenizer.per_word, [""]
        self.order = {}
        self.mean_turns = sum(len(t) for _, t in entries) / len(entries) if entries else sum(opts.turns) / 2
        if opts.system_tokens and not entries:
            count = opts.system_prompts
            self.systems = [self.system_text(k, opts.system_tokens, tokenizer) for k in range(count)]
        rng = self.rng("pool")
        self.pool = [self.image(rng) for _ in range(opts.image_pool)]

    def rng(self, *what):
        return random.Random("/".join(map(str, (self.seed, *what))))

    def image(self, rng):
        data = draw_image(rng, *self.opts.image_size, self.opts.image_kind)
        return "data:image/png;base64," + base64.b64encode(data).decode()

    def system_text(self, k, tokens, tokenizer):
        """About `tokens` long, and other than every other system prompt from the first words on."""
        rng = self.rng("system", k, tokens)
        text = f"{k} {self.seed}/{tokens} " + words(rng, 6)
        for _ in range(4):
            missing = tokens - tokenizer.count(text)
            if abs(missing) <= 1:
                break
            if missing > 0:
                text += " " + words(rng, round(missing / self.per_word))
            else:
                text = " ".join(text.split(" ")[:min(-1, round(missing / self.per_word))])
        return text

    def question(self, rng):
        return words(rng, round(self.opts.user_tokens.draw(rng) / self.per_word))

    def entry(self, i):
        """Number i of the data set's conversations, with the times and lengths that the options say."""
        turn_over, place = divmod(i, len(self.entries))
        if turn_over not in self.order:
            order = list(range(len(self.entries)))
            self.rng("order", turn_over).shuffle(order)
            self.order = {turn_over: order}
        system, turns = self.entries[self.order[turn_over][place]]
        rng = self.rng("think", i)
        return system, [dataclasses.replace(t, think=rng.uniform(*self.opts.think_time)) for t in turns]

    def session(self, i):
        """-> (system prompt, turns)"""
        ready = self.made.pop(i, None)
        if ready:
            return ready
        system, turns = self.entry(i) if self.entries else self.made_up(i)
        rng = self.rng("answers", i)
        for turn in turns:
            if self.opts.max_tokens or not turn.max_tokens:
                turn.max_tokens = self.opts.answer_length.draw(rng)
        return system, turns

    def made_up(self, i):
        rng = self.rng("session", i)
        turns = []
        for _ in range(rng.randint(*self.opts.turns)):
            turns.append(Turn(self.question(rng), [], rng.uniform(*self.opts.think_time)))
        for n in range(rng.randint(*self.opts.images_per_session)):
            place = turns[0] if n == 0 else rng.choice(turns)  # the first image opens the conversation
            place.images.append(rng.choice(self.pool) if self.pool else self.image(rng))
        return self.systems[rng.randrange(len(self.systems))], turns

    def prepare(self, count):
        """Makes the first ones now rather than while the clock runs, up to MADE_AHEAD bytes of images."""
        room = MADE_AHEAD
        for i in range(min(count, SESSIONS_AHEAD)):
            if room > 0:
                self.made[i] = self.session(i)
                room -= sum(len(p) for turn in self.made[i][1] for p in turn.images)


class Tokenizer:
    """Counts tokens with POST /tokenize where the server has it; else a word is taken for a token."""

    def __init__(self, target, model):
        self.target, self.model, self.per_word = target, model, 1.0
        sample = words(random.Random(0), 300)
        try:
            self.known = True
            self.per_word = max(0.2, self.count(sample) / 300)
        except (Fault, KeyError, TypeError):
            self.known = False

    def count(self, text):
        if not self.known:
            return len(text.split())
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        return int(self.target.json("/tokenize", body, below_v1=False)["count"])


class Conversation:
    """The growing prompt of one session as request bodies. Parts once written are never encoded again."""

    def __init__(self, opts, model, system, seed):
        self.opts, self.kind, self.count, self.seed = opts, opts.completions or "chat", 0, seed
        self.rng = random.Random(f"ids/{seed}")
        fixed = {"model": model, "stream": True, "temperature": opts.temperature}
        if opts.ask_usage:
            fixed["stream_options"] = {"include_usage": True}
        if opts.ignore_eos:
            fixed["ignore_eos"] = True
        if opts.salt:
            fixed["cache_salt"] = opts.salt
        if self.kind == "ids":
            fixed["return_token_ids"] = True
        self.fixed = fixed
        self.parts = []
        if self.kind == "chat" and system:
            self.parts.append(json.dumps({"role": "system", "content": system}))
        elif self.kind == "text" and system:
            self.parts.append(system)
        elif self.kind == "ids" and system:
            self.add_ids(random.Random(system), len(system.split()))

    def add_ids(self, rng, count):
        self.parts += [str(rng.randint(*self.opts.ids)) for _ in range(count)]

    def ask(self, turn):
        """-> the body of the request that asks this turn"""
        fixed = {**self.fixed, "max_tokens": turn.max_tokens or self.opts.answer_length.draw(self.rng)}
        if self.opts.temperature != 0:
            fixed["seed"] = (self.seed * 1000 + self.count) & 0x7FFFFFFF
        head = json.dumps({**fixed, **self.opts.extra})[:-1]
        self.count += 1
        if turn.messages:
            self.parts = [json.dumps(m) for m in turn.messages] if self.kind == "chat" else [turn.text]
        elif self.kind == "chat":
            content = turn.text
            if turn.images:
                content = [{"type": "image_url", "image_url": {"url": p}} for p in turn.images]
                content.append({"type": "text", "text": turn.text})
            self.parts.append(json.dumps({"role": "user", "content": content}))
        if self.kind == "chat":
            return f'{head}, "messages": [{", ".join(self.parts)}]}}'.encode()
        if self.kind == "text":
            if not turn.messages:
                self.parts.append(f"\n\nQuestion: {turn.text}\nAnswer:")
            return f'{head}, "prompt": {json.dumps("".join(self.parts))}}}'.encode()
        self.add_ids(self.rng, len(turn.text.split()))
        return f'{head}, "prompt": [{",".join(self.parts)}]}}'.encode()

    def answered(self, answer):
        text = "".join(answer.text)
        if self.kind == "chat":
            self.parts.append(json.dumps({"role": "assistant", "content": text}))
        elif self.kind == "text":
            self.parts.append(text)
        elif answer.token_ids:
            self.parts += map(str, answer.token_ids)
        else:  # a server that does not return ids: others, which its cache can't know
            self.add_ids(self.rng, len(answer.stamps))
