"""Kvasir, an inference server: `kvasir serve`, or `python -m kvasir serve`."""
import os
import sys

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "kvasir")


def main():
    os.execv(PROGRAM, [PROGRAM, *sys.argv[1:]])
