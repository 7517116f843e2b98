#!/usr/bin/env python3
"""Known bugs put back in, one at a time: a test must notice each.

usage: tests/mutants/run.py [NAME...]       builds and runs these mutants, or all
       tests/mutants/run.py --check         only looks whether each can be put in
       tests/mutants/run.py --binary NAME   builds kvasir with that bug and prints its path

tests/mutants/NAME.mutant says what is wrong, then has lines
  test: [TEST_ONLY=PATTERN] PROGRAM ARGUMENTS...   a test that must notice it; several lines: each must
  file: PATH                                then, line by line: --- old, TEXT, --- new, TEXT, --- end
The old text is in the file exactly once; white space counts as one blank. The changed files are compiled to
build/release/mutants/NAME and linked before the archives of the right ones (Makefile: MUTANTS).

A mutant passes when its tests pass without it and fail with it. A test that hangs has not noticed.
Environment: JOBS (default: the cores). Closing line: "N passed, N failed"."""
import concurrent.futures
import os
import re
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
OUT = "build/release"
JOBS = int(os.environ.get("JOBS") or len(os.sched_getaffinity(0)))
TIMEOUT = 300
# The first assertion that fails ends a program.
ENV = {**os.environ, "KVASIR_TEST_SHORT": "2", "CMOCKA_TEST_ABORT": "1"}


class Bad(Exception):
    pass


def read(name):
    """-> (commands, [(file, old, new)])"""
    path = os.path.join(HERE, name + ".mutant")
    if not os.path.isfile(path):
        raise Bad(f"there is no {path}")
    with open(path) as f:
        text = f.read()
    head, *parts = re.split(r"^file: *(\S+)\n", text, flags=re.M)
    tests = re.findall(r"^test: *(.+)$", head, re.M)
    edits = []
    for file, body in zip(parts[::2], parts[1::2]):
        m = re.fullmatch(r"--- old\n(.*)\n--- new\n(.*)\n--- end\s*", body, re.S)
        if not m or not m[1].split():
            raise Bad(f"{path}: {file} needs --- old, --- new and --- end")
        edits.append((file, m[1], m[2]))
    if not tests or not edits:
        raise Bad(f"{path}: no test, or no file")
    return [t.split() if "=" in t.split()[0] else ["TEST_ONLY=*", *t.split()] for t in tests], edits


def changed(edits):
    """-> {file: text}"""
    texts = {}
    for file, old, new in edits:
        if file not in texts:
            with open(os.path.join(ROOT, file)) as f:
                texts[file] = f.read()
        pattern = r"\s+".join(re.escape(word) for word in old.split())
        found = list(re.finditer(pattern, texts[file]))
        if len(found) != 1:
            raise Bad(f"{file} has {len(found)} times, not once: {' '.join(old.split())}")
        at = found[0]
        texts[file] = texts[file][:at.start()] + new.strip() + texts[file][at.end():]
    return texts


def write(name, texts):
    """Files that another version of the mutant left go; equal ones keep their time, for make."""
    folder = os.path.join(ROOT, OUT, "mutants", name)
    for at, _, files in os.walk(folder):
        for f in files:
            if f.endswith(".c") and os.path.relpath(os.path.join(at, f), folder) not in texts:
                os.remove(os.path.join(at, f))
    for file, text in texts.items():
        path = os.path.join(folder, file)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.exists(path):
            with open(path) as f:
                if f.read() == text:
                    continue
        with open(path, "w") as f:
            f.write(text)


def make(programs, right=()):
    """With the flags of the build that is there: others would compile all of it again."""
    flags = os.path.join(ROOT, OUT, "flags")
    strict = not os.path.exists(flags) or " -Werror" in open(flags).read()
    run = subprocess.run(["make", "--no-print-directory", "-k", f"-j{JOBS}", *["WERROR=1"] * strict,
                          "MUTANTS=" + " ".join(programs), "mutants", *right],
                         cwd=ROOT, capture_output=True, text=True)
    if run.returncode:
        print(run.stderr[-4000:])
    return run.returncode == 0


def fails(folder, only, program, *arguments):
    """-> (whether it failed, the end of what it said)"""
    try:
        run = subprocess.run(["env", only, os.path.join(OUT, folder, program), *arguments], cwd=ROOT, env=ENV,
                             timeout=TIMEOUT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             errors="replace")
    except subprocess.TimeoutExpired:
        return None, f"more than {TIMEOUT} s"
    return run.returncode != 0, run.stdout[-1500:]


def judge(name, command, rights):
    begin = time.monotonic()
    right, said = rights[tuple(command)].result()
    if right is not False:
        return False, f"{name}: {' '.join(command)} fails without the bug:\n{said}"
    noticed, said = fails(f"mutants/{name}", *command)
    text = f"{name}: {' '.join(command)} ({time.monotonic() - begin:.1f} s)"
    return noticed is True, text if noticed else f"{text} does not notice it:\n{said}"


def main():
    names = [a for a in sys.argv[1:] if not a.startswith("--")]
    check, binary = "--check" in sys.argv, "--binary" in sys.argv
    unknown = {a for a in sys.argv[1:] if a.startswith("--")} - {"--check", "--binary"}
    if unknown or (binary and len(names) != 1):
        sys.exit(__doc__)
    names = names or sorted(f[:-7] for f in os.listdir(HERE) if f.endswith(".mutant"))
    mutants, failed = {}, 0
    for name in names:
        try:
            tests, edits = read(name)
            texts = changed(edits)
        except (Bad, OSError) as e:
            failed += 1
            print(f"FAIL {name}: {e}")
            continue
        if not check:
            write(name, texts)
        mutants[name] = tests
    if check or (binary and failed):
        print(f"{len(mutants)} passed, {failed} failed")
        sys.exit(failed > 0)
    if binary:
        if not make([f"{names[0]}/kvasir"]):
            sys.exit(1)
        print(os.path.join(ROOT, OUT, "mutants", names[0], "kvasir"))
        return
    pairs = [(name, command) for name, tests in mutants.items() for command in tests]
    programs = sorted({command[1] for _, command in pairs})
    built = make(sorted({f"{name}/{command[1]}" for name, command in pairs}),
                 [f"{OUT}/tests/{p}" for p in programs])
    passed = 0
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        rights = {tuple(c): None for _, c in pairs}
        rights = {c: pool.submit(fails, "tests", *c) for c in rights}
        for ok, text in pool.map(lambda p: judge(*p, rights), pairs if built else []):
            print(("ok   " if ok else "FAIL ") + text, flush=True)
            passed, failed = passed + ok, failed + (not ok)
    print(f"{passed} passed, {failed + (not built)} failed")
    sys.exit(failed > 0 or not built)


main()
