"""Hostile clients alongside ordinary ones, in short:
python3 test_attack.py [--binary B] [--model DIR] [--seconds N] [KIND...]
The long form and the description are in scripts/attack.py."""

import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts"))
import attack  # noqa: E402
from harness import Checks, arguments  # noqa: E402

check = Checks()


def short(args):
    flags = [
        "--binary",
        args.binary,
        "--model",
        args.model,
        "--minutes",
        str(args.seconds / 60),
        "--seed",
        str(args.seed),
    ]
    flags += ["--attackers", "10", "--clients", "4", "--warm", "3", "--rounds", "6"]
    flags += ["--health-ms", "5000"]  # as the machine may be busy; a hung server is found all the same
    if args.only:
        flags += ["--only", ",".join(args.only)]
    for what, kept, words in attack.run(attack.options(flags)):
        check.true(what, kept, words)


if __name__ == "__main__":
    args = arguments(__doc__, seconds=20.0, seed=1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    check.run(short, args)
    check.end()
