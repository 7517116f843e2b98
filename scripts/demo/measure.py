"""Held-out accuracy of a saved checkpoint with transformers (greedy, in the dtype of the file), through its own processor.

python scripts/demo/measure.py [--model models/demo|models/demo-qwen3-vl] [--single 500] [--pairs 200] [--turns 200] [--seed 1]
"""

import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

import eval_http


def main():
    p = eval_http.arguments(__doc__.splitlines()[0])
    p.add_argument("--model", default="models/demo")
    p.add_argument("--dtype", default="auto", help="auto: that of the file")
    p.add_argument("--threads", type=int, default=1)
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    processor = AutoProcessor.from_pretrained(args.model)
    model = AutoModelForImageTextToText.from_pretrained(args.model, dtype=args.dtype)
    model.eval()

    def answer(messages):
        pictures, turns = [], []
        for m in messages:
            parts = m["content"] if isinstance(m["content"], list) else [{"type": "text", "text": m["content"]}]
            pictures += [part["picture"] for part in parts if part["type"] == "picture"]
            turns.append({"role": m["role"], "content": [{"type": "image"} if part["type"] == "picture" else part for part in parts]})
        text = processor.apply_chat_template(turns, add_generation_prompt=True)
        inputs = processor(text=text, images=[pictures] if pictures else None, add_special_tokens=False, return_tensors="pt")
        with torch.inference_mode():
            out = model.generate(**inputs, max_new_tokens=80, do_sample=False)
        return processor.tokenizer.decode(out[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True)

    sys.exit(eval_http.evaluate(args, lambda all_messages: map(answer, all_messages)))


if __name__ == "__main__":
    main()
