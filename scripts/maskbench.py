#!/usr/bin/env python3
"""Schemas and their instances through our grammars and those of llguidance and XGrammar, one table.

The files are MaskBench's (github.com/guidance-ai/jsonschemabench, maskbench/data): {"schema": ...,
"tests": [{"valid": bool, "data": ...}]}. All engines see the same files, tokens and texts; white space is
free in all of them, and they run one after the other. A schema that an engine refuses, or does not come
to an end with in --seconds, or crashes at, counts as not compiled.

    make tests && python3 scripts/maskbench.py --model CHECKPOINT --every 20 maskbench/data
Needs llguidance, xgrammar, torch, tokenizers and transformers in the Python that runs it; what is missing is
left out of the table."""
import argparse
import json
import multiprocessing
import os
import re
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BENCH = os.path.join(ROOT, "build/release/tests/bench_grammar")


class Llguidance:
    def __init__(self, folder):
        import llguidance
        import llguidance.numpy
        from llguidance.hf import from_tokenizer
        from transformers import AutoTokenizer

        self.lib, self.numpy = llguidance, llguidance.numpy
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.vocabulary = from_tokenizer(self.tokenizer)
        self.bits = self.numpy.allocate_token_bitmask(1, self.vocabulary.vocab_size)

    def compile(self, schema):
        grammar = self.lib.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        self.matcher = self.lib.LLMatcher(self.vocabulary, grammar)
        if self.matcher.is_error():
            raise ValueError(self.matcher.get_error())

    def start(self):
        self.matcher.reset()

    def mask(self):
        self.numpy.fill_next_token_bitmask(self.matcher, self.bits)

    def step(self, token):
        return self.matcher.try_consume_tokens([token]) == 1

    def complete(self):
        return self.matcher.is_accepting()


class Xgrammar:
    def __init__(self, folder):
        import xgrammar
        from transformers import AutoConfig, AutoTokenizer

        self.lib = xgrammar
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        config = AutoConfig.from_pretrained(folder)
        self.end = self.tokenizer.eos_token_id
        info = xgrammar.TokenizerInfo.from_huggingface(
            self.tokenizer, vocab_size=config.get_text_config().vocab_size, stop_token_ids=[self.end]
        )
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.bits = xgrammar.allocate_token_bitmask(1, info.vocab_size)

    def compile(self, schema):
        text = json.dumps(schema)
        self.grammar = self.compiler.compile_json_schema(text, any_whitespace=True, strict_mode=False)

    def start(self):
        self.matcher = self.lib.GrammarMatcher(self.grammar)

    def mask(self):
        self.matcher.fill_next_token_bitmask(self.bits)

    def step(self, token):
        return self.matcher.accept_token(token)

    def complete(self):
        return self.matcher.accept_token(self.end)


def one(engine, path):
    """None if the schema is refused; else [valid refused], [invalid accepted], first mask and masks in us."""
    with open(path) as f:
        test = json.load(f)
    begin = time.perf_counter()
    try:
        engine.compile(test["schema"])
    except Exception:  # each library has its own
        return None
    compiled = time.perf_counter() - begin
    refused, accepted, first, masks = 0, 0, [], []
    for instance in test["tests"]:
        text = json.dumps(instance["data"], ensure_ascii=False)
        tokens = engine.tokenizer.encode(text, add_special_tokens=False)
        engine.start()
        good = True
        times = []
        for token in tokens:
            begin = time.perf_counter()
            engine.mask()
            times.append(time.perf_counter() - begin)
            good = engine.step(token)
            if not good:
                break
        good = good and engine.complete()
        refused += instance["valid"] and not good
        accepted += good and not instance["valid"]
        if instance["valid"] and good and times:
            if not masks:
                first.append((compiled + times[0]) * 1e6)
            masks += [t * 1e6 for t in times]
    return refused, accepted, first, masks


def work(kind, folder, pipe):
    engine = kind(folder)
    pipe.send("ready")
    while path := pipe.recv():
        pipe.send(one(engine, path))


def run(kind, folder, paths, seconds):
    """Results of one() in a process of its own, which is replaced after a crash or when it takes too long."""
    process, results = None, []
    for path in paths:
        if not process:
            pipe, theirs = multiprocessing.Pipe()
            process = multiprocessing.Process(target=work, args=(kind, folder, theirs), daemon=True)
            process.start()
            theirs.close()
            try:
                pipe.recv()
            except EOFError:
                return None
        result, ended = None, False
        try:
            pipe.send(path)
            ended = pipe.poll(seconds)
            result = pipe.recv() if ended else None
        except (EOFError, BrokenPipeError):
            ended = False
        results.append(result)
        if not ended:
            process.kill()
            process = None
    if process:
        process.kill()
    return results


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


def row(name, files, compiled, wrong, refused, accepted, first, masks):
    return (f"| {name} | {compiled} ({100 * compiled / files:.1f} %) | {wrong} | {refused} | {accepted} | "
            f"{first[0] / 1e3:.2f} / {first[1] / 1e3:.1f} ms | {masks[0]:.1f} / {masks[1]:.0f} us |")


def ours(name, folder, paths, *flags):
    command = [BENCH, "--model", folder, *flags, *paths]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    number = re.findall(r"[\d.]+", "".join(out.stdout.splitlines(True)[-2:]))
    schemas, compiled, _, wrong, _, refused, accepted = (float(x) for x in number[:7])
    first, masks = re.search(r"first mask.*", out.stdout).group().split(";", 1)
    first = [float(x) for x in re.findall(r"(?:median|p99) ([\d.]+)", first)]
    masks = [float(x) for x in re.findall(r"(?:median|p99) ([\d.]+)", masks)]
    return row(name, int(schemas), int(compiled), int(wrong), int(refused), int(accepted), first, masks)


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--model", required=True, help="folder of a checkpoint, for its tokenizer")
    parse.add_argument("--every", type=int, default=1, help="take every Nth file")
    parse.add_argument("--seconds", type=float, default=30, help="that a schema and its instances may take")
    parse.add_argument("folder", help="maskbench/data")
    args = parse.parse_args()
    paths = sorted(os.path.join(args.folder, n) for n in os.listdir(args.folder) if n.endswith(".json"))
    paths = paths[:: args.every]
    print(f"{len(paths)} files, {args.model}")
    print("| | schemas compiled | of these judge wrongly | valid refused | invalid accepted | first mask, "
          "median / p99 | masks, median / p99 |\n|---|---|---|---|---|---|---|")
    print(ours("Kvasir, `strict: false`", args.model, paths), flush=True)
    print(ours("Kvasir", args.model, paths, "--ordered"), flush=True)
    for kind in (Llguidance, Xgrammar):
        results = run(kind, args.model, paths, args.seconds)
        if results is None:
            print(f"{kind.__name__} is not here", file=sys.stderr)
            continue
        good = [r for r in results if r]
        first, masks = ([x for r in good for x in r[k]] for k in (2, 3))
        print(row(kind.__name__.lower(), len(paths), len(good), sum(1 for r in good if r[0] or r[1]),
                  sum(r[0] for r in good), sum(r[1] for r in good),
                  (percentile(first, 0.5), percentile(first, 0.99)),
                  (percentile(masks, 0.5), percentile(masks, 0.99))), flush=True)


if __name__ == "__main__":
    main()
