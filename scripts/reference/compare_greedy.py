#!/usr/bin/env python3
"""Do real text checkpoints answer as in transformers? 20 prompts, 48 greedy tokens each, in bf16 and float32.

    compare_greedy.py MODEL_DIR... [--binary build/release/kvasir] [--tokens 48]

Prompts are chats where the folder has a template (ids must be those of apply_chat_template), else text. Each
answer of the server is run through transformers in one pass, so that each of its tokens has the row that
transformers would have chosen from:
- float32 (--dtype f32): each token must be transformers' most likely one, log-probs within 1e-3;
- bf16: where a token isn't the most likely one of transformers' bf16 run, the two are a tie within that run's
  own rounding: their float32 log-probs are nearer than twice its largest difference to float32 over all
  answers (of two tokens, each may be off);
- bf16: mean |log-prob - that of float32| of the server, at most 1.25 times that of transformers' bf16 run."""

import argparse
import os
import sys
from pathlib import Path

from served import Server

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = [
    "What is the capital of France?",
    "Write a haiku about autumn rain.",
    "Explain what a mutex is in two sentences.",
    "def fibonacci(n):",
    "Translate to German: The cat sleeps on the warm roof.",
    "List three uses of copper.",
    "Once upon a time, in a village by the sea,",
    "What is 17 * 23? Think step by step.",
    "Kurz: Warum ist der Himmel blau?",
    "请用一句话介绍长城。",
    "Write a SQL query that counts orders per customer.",
    "The quick brown fox",
    "Summarize: Water boils at 100 °C at sea level, and at lower temperatures on mountains.",
    "Name a famous painter and one work.",
    "#include <stdio.h>\n\nint main(void)\n{\n",
    "Give me a JSON object with a name and an age.",
    "Who wrote Hamlet, and when?",
    "  Leading blanks,\n\n\ttabs and    runs of them.",
    "Что такое фотосинтез?",
    "Why do cats purr? 🐈",
]
SYSTEM = "You are a helpful assistant. Be brief."


def prompts(folder):
    """(what to send, ids) of each; every second chat has a system message"""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    for k, text in enumerate(PROMPTS):
        if not tokenizer.chat_template:
            yield {"prompt": text}, tokenizer(text)["input_ids"]
            continue
        messages = ([{"role": "system", "content": SYSTEM}] if k % 2 else []) + [
            {"role": "user", "content": text}
        ]
        yield {"messages": messages}, tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )


def ask(server, what, count):
    """(prompt ids, output ids, log-probs)"""
    chat = "messages" in what
    answer = server.post(
        "/v1/chat/completions" if chat else "/v1/completions",
        {
            **what,
            "max_tokens": count,
            "temperature": 0,
            "repetition_penalty": 1,
            "ignore_eos": True,
            "return_token_ids": True,
            "logprobs": True if chat else 0,
        },
    )
    choice = answer["choices"][0]
    scores = (
        [e["logprob"] for e in choice["logprobs"]["content"]]
        if chat
        else choice["logprobs"]["token_logprobs"]
    )
    return choice.get("prompt_token_ids") or answer["prompt_token_ids"], choice["token_ids"], scores


def rows(model, ids, begin):
    """log-probs behind ids[:begin], ids[:begin + 1], ..."""
    import torch

    with torch.no_grad():
        return torch.log_softmax(
            model(torch.tensor([ids]), use_cache=False).logits[0, begin - 1 : -1].double(), -1
        )


def of(table, tokens):
    return [float(row[t]) for row, t in zip(table, tokens)]


def compare(folder, args):
    import torch
    from transformers import AutoModelForCausalLM

    asked, faults = list(prompts(folder)), []
    answers = {}
    for dtype in ("bf16", "f32"):
        with Server(args.binary, folder, "--dtype", dtype, "--generation-config", "ignore") as server:
            answers[dtype] = [ask(server, what, args.tokens) for what, _ in asked]
    f32, bf16 = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=t, attn_implementation="eager").eval()
        for t in (torch.float32, torch.bfloat16)
    )
    worst, same, same_bf16, ours, theirs, gaps = 0.0, 0, 0, [], [], []
    for k, (_, ids) in enumerate(asked):
        got, tokens, scores = answers["f32"][k]
        if got != ids:
            faults.append(f"prompt {k}: {got} for {ids}")
            continue
        exact = rows(f32, ids + tokens, len(ids))
        worst = max(worst, max(abs(a - b) for a, b in zip(scores, of(exact, tokens))))
        same += sum(t == int(row.argmax()) for row, t in zip(exact, tokens))
        _, tokens, scores = answers["bf16"][k]
        exact, rounded = rows(f32, ids + tokens, len(ids)), rows(bf16, ids + tokens, len(ids))
        want = of(exact, tokens)
        ours += [abs(a - b) for a, b in zip(scores, want)]
        theirs += [abs(a - b) for a, b in zip(of(rounded, tokens), want)]
        for i, token in enumerate(tokens):
            other = int(rounded[i].argmax())
            same_bf16 += token == other
            if token != other:
                gaps.append((k, i, abs(float(exact[i, token] - exact[i, other]))))
    count = len(asked) * args.tokens
    mean, own = sum(ours) / len(ours), sum(theirs) / len(theirs)
    faults += [
        f"prompt {k}, token {at}: tokens {gap:.3f} apart in float32, transformers' bf16 off by at most "
        f"{max(theirs):.3f}"
        for k, at, gap in gaps
        if gap > 2 * max(theirs)
    ]
    if same < count or worst > 1e-3:
        faults.append("float32 differs")
    if mean > 1.25 * own:
        faults.append("bf16 is farther from float32 than transformers' own")
    print(
        f"| {folder.name} | {same} of {count} | {worst:.1e} | {same_bf16} of {count} | "
        f"{max((g for _, _, g in gaps), default=0):.3f} | {max(theirs):.3f} | {mean:.4f} | {own:.4f} |",
        flush=True,
    )
    for f in faults:
        print(f"  {f}")
    return not faults


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folders", nargs="+", type=Path)
    p.add_argument("--binary", default=str(ROOT / "build/release/kvasir"))
    p.add_argument("--tokens", type=int, default=48)
    args = p.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    print(
        "| checkpoint | f32: same | largest difference | bf16: same | largest tie "
        "| transformers' bf16 off at most | ours, mean | its, mean |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    sys.exit(0 if all([compare(f.resolve(), args) for f in args.folders]) else 1)


if __name__ == "__main__":
    main()
