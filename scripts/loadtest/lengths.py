"""Lengths of prompts and outputs in tokens, sampled from a distribution. Knows nothing of a server."""
import argparse
import math

LONGEST = 1 << 20  # what a long tail is cut to
FORMS = "N, fixed:N, uniform:LOW:HIGH, lognormal:MEDIAN:SIGMA or file:NAME (one length a line)"


class Lengths:
    """spread: a bare N means uniform from N/2 to 3N/2, not N itself."""

    def __init__(self, text, spread=False):
        self.text, (self.kind, *rest) = text, text.split(":")
        if self.kind.isdecimal():
            n = int(self.kind)
            low, high = (max(1, n // 2), max(1, n * 3 // 2)) if spread else (n, n)
            self.kind, rest = ("uniform", [low, high]) if spread else ("fixed", [n])
        if self.kind == "file":
            with open(text.partition(":")[2], encoding="utf-8") as f:
                lines = [line.split("#")[0].strip() for line in f]
            rest = [int(line) for line in lines if line]
        elif self.kind == "lognormal":
            rest = [float(x) for x in rest]
        else:
            rest = [int(x) for x in rest]
        if {"fixed": 1, "uniform": 2, "lognormal": 2, "file": len(rest) or 1}.get(self.kind) != len(rest):
            raise ValueError
        sizes = rest[:1] if self.kind == "lognormal" else rest
        if not all(1 <= x <= LONGEST for x in sizes) or (self.kind == "uniform" and rest[0] > rest[1]):
            raise ValueError
        if self.kind == "lognormal" and not 0 <= rest[1] <= 10:
            raise ValueError
        self.values = rest

    def draw(self, rng):
        if self.kind == "uniform":
            return rng.randint(*self.values)
        if self.kind == "lognormal":
            drawn = rng.lognormvariate(math.log(self.values[0]), self.values[1])
            return round(min(max(1, drawn), LONGEST))
        return self.values[0] if self.kind == "fixed" else rng.choice(self.values)

    def __str__(self):
        return self.text


def lengths(spread=False):
    """The type of a command-line option."""
    def read(text):
        try:
            return Lengths(text, spread)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text}: {FORMS} is needed, from 1 to {LONGEST:,}") from None
        except OSError as fault:
            raise argparse.ArgumentTypeError(f"{text}: {fault.strerror}") from None
    return read
