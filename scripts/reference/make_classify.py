#!/usr/bin/env python3
"""Writes tests/golden/classify/: checkpoints with a classification head, as transformers' classes save them
and as people convert generating ones, with what those classes answer.

Each has the weights of a golden checkpoint (`source` in golden.json), which the index names base.safetensors;
its own files lie over that one's. `saved` is a whole checkpoint by save_pretrained. Qwen-VL has no such
class in transformers: it gets GenericForSequenceClassification, from which the others are made.
Needs the goldens of make_qwen.py, make_llama.py, make_gemma3.py. All runs are of one input: no padding."""
import json
import pathlib
import shutil
import tempfile

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import (AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText,
                          AutoModelForSequenceClassification, AutoProcessor, AutoTokenizer, LlamaConfig,
                          LlamaForSequenceClassification)
from transformers.modeling_layers import GenericForSequenceClassification
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLPreTrainedModel
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLPreTrainedModel
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLPreTrainedModel

from make_retrieval import GOLDEN, images, uri

OUT = GOLDEN / "classify"
TEXTS = ["a", "The cat sat on the mat.", "Zwei Wörter, 3 Zahlen: 1 2 3", "one two three four five " * 9]
PAIRS = [("where is it", "on the mat"), ("where is it", "12"), ("", "x" * 40)]
SCORE_TEMPLATE = ("{%- for m in messages if m.role in ['query', 'document'] -%}<{{ m.role }}>{{ m.content }}"
                  "{%- endfor -%}{{ instruction | default('') }}")

LIST_TEMPLATE = ("{%- for m in messages if m.role in ['query', 'document'] -%}<{{ m.role }}>"
                 "{%- for c in m.content -%}{%- if c.type == 'image' -%}"
                 "<|vision_start|><|image_pad|><|vision_end|>{%- else -%}{{ c.text }}{%- endif -%}"
                 "{%- endfor -%}{%- endfor -%}{{ instruction | default('') }}")


class Qwen2VLForSequenceClassification(GenericForSequenceClassification, Qwen2VLPreTrainedModel):
    pass


class Qwen2_5_VLForSequenceClassification(GenericForSequenceClassification, Qwen2_5_VLPreTrainedModel):
    pass


class Qwen3VLForSequenceClassification(GenericForSequenceClassification, Qwen3VLPreTrainedModel):
    pass


VARIANTS = {
    # a reranker as sentence-transformers notes it, on a base whose own head is neither tied nor saved
    "qwen3_f32": dict(source="qwen/qwen3_f32", labels=["LABEL_0"], more={
        "problem_type": "regression", "sentence_transformers": {"version": "4.1.0", "activation_fn":
                                                                "torch.nn.modules.activation.Sigmoid"}}),
    "qwen2_bf16": dict(source="qwen/qwen2_bf16", labels=["bad", "so so", "good"]),
    # by num_labels alone, scores as they are; padding is a token that texts may end with
    "mistral_f32": dict(source="llama/mistral_f32", labels=1, more={
        "pad_token_id": 9, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
        template=SCORE_TEMPLATE),
    "llama3_f32": dict(source="llama/llama3_f32", labels=["toxic", "rude", "\u00fcble", "spam"], bias=True,
                       more={"problem_type": "multi_label_classification"}),
    # neither id2label nor num_labels: two; the class's pad_token_id is 0
    "gemma3_text_f32": dict(source="gemma3/text_f32", labels=None, drop=["pad_token_id"]),
    "gemma3_f32": dict(source="gemma3/vision_f32", labels=["no", "yes"]),
    "qwen2_vl_f32": dict(source="qwen/qwen2_vl_f32", labels=["x"], cls=Qwen2VLForSequenceClassification),
    "qwen2_vl_pairs_f32": dict(source="qwen/qwen2_vl_f32", labels=["x"], cls=Qwen2VLForSequenceClassification,
                               template=LIST_TEMPLATE),
    "qwen2_5_vl_f32": dict(source="qwen/qwen2_5_vl_f32", labels=["cat", "dog", "sea"],
                           cls=Qwen2_5_VLForSequenceClassification),
    "qwen3_vl_f32": dict(source="qwen/qwen3_vl_f32", labels=["x"], cls=Qwen3VLForSequenceClassification),
    "qwen3_5_f32": dict(source="qwen/qwen3_5_f32", labels=["a", "b", "c"]),
}


def configure(folder, out, v):
    c = json.loads((folder / "config.json").read_text())
    if isinstance(v["labels"], list):
        c["id2label"] = {str(i): name for i, name in enumerate(v["labels"])}
        c["label2id"] = {name: i for i, name in enumerate(v["labels"])}
    elif v["labels"]:
        c["num_labels"] = v["labels"]
    for key in v.get("drop", []):
        c.pop(key)
    c |= v.get("more", {})
    base = c["architectures"][0]
    c["architectures"] = [base.split("For")[0] + "ForSequenceClassification"]
    if c["model_type"] == "gemma3_text":
        c["architectures"] = ["Gemma3TextForSequenceClassification"]
    (out / "config.json").write_text(json.dumps(c, indent=1, ensure_ascii=False))
    return len(v["labels"]) if isinstance(v["labels"], list) else v["labels"] or 2


def expected(model, inputs, problem):
    logits = model(**inputs).logits[0].float()
    probs = logits if problem == "regression" else \
        torch.sigmoid(logits) if problem == "multi_label_classification" or len(logits) == 1 else \
        torch.softmax(logits, 0)
    return {"logits": logits.tolist(), "probs": probs.tolist(), "tokens": inputs["input_ids"].shape[1]}


@torch.no_grad()
def variant(name, v):
    folder, out = GOLDEN / v["source"], OUT / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    count = configure(folder, out, v)
    if v.get("template"):
        (out / "chat_template.jinja").write_text(v["template"])
    with tempfile.TemporaryDirectory() as work:
        for place in folder, out:
            for f in place.iterdir():
                shutil.copy(f, work)
        config = AutoConfig.from_pretrained(work)
        assert config.num_labels == count
        vision = hasattr(config, "vision_config")
        load = AutoModelForImageTextToText if vision else AutoModelForCausalLM
        base = load.from_pretrained(folder, dtype=torch.float32)
        model = v["cls"](config) if "cls" in v else \
            AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
        assert type(model).__name__ == config.architectures[0]
        model.model.load_state_dict(base.model.state_dict())
        model.eval()
        tokenizer = AutoTokenizer.from_pretrained(work)
        processor = AutoProcessor.from_pretrained(work) if vision else None
        problem = config.problem_type
    torch.manual_seed(len(name))
    pad = config.get_text_config().pad_token_id
    pad = 7 if pad is None else pad
    torch.nn.init.normal_(model.score.weight, 0, 0.4)
    head = {"score.weight": model.score.weight.data}
    if v.get("bias"):
        model.score.bias = torch.nn.Parameter(torch.randn(count))
        head["score.bias"] = model.score.bias.data
    if name.endswith("bf16"):
        model.score.weight.data = model.score.weight.data.bfloat16().float()
        head["score.weight"] = model.score.weight.data.bfloat16()
    save_file(head, out / "head.safetensors", metadata={"format": "pt"})
    with safe_open(folder / "model.safetensors", "pt") as f:
        where = {k: "base.safetensors" for k in f.keys()} | {k: "head.safetensors" for k in head}
    (out / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": where}, separators=(",", ":")))

    def of(inputs):
        return expected(model, inputs, problem)

    texts = [of(tokenizer(t, return_tensors="pt")) for t in TEXTS]
    ids = [[5, 6, 7], [5, 6, 7] + [pad] * 3, [pad] * 2]
    by_ids = [of({"input_ids": torch.tensor([i])}) for i in ids]
    names = v["labels"] if isinstance(v["labels"], list) else [f"LABEL_{i}" for i in range(count)]
    golden = {"source": v["source"], "labels": names, "inputs": TEXTS, "texts": texts, "ids": ids,
              "by_ids": by_ids}
    if v.get("template"):
        shown = lambda q, d: f"<query>{q}<document>{d}"  # noqa: E731
        golden["own_pairs"] = True
    else:
        shown = lambda q, d: q + d  # noqa: E731
    golden["pairs"] = PAIRS
    golden["by_pairs"] = [of(tokenizer(shown(q, d), return_tensors="pt")) for q, d in PAIRS]
    if vision and v.get("template"):
        a, b = images((3, 40, 30), (4, 57, 26))
        mark = "<|vision_start|><|image_pad|><|vision_end|>"
        golden["image_pairs"] = {"query": {"image": uri(a), "text": "q"},
                                 "documents": ["on the mat", {"image": uri(b)}]}
        golden["by_image_pairs"] = [of(processor(text=[shown(mark + "q", d)], images=i, return_tensors="pt"))
                                    for d, i in (("on the mat", [a]), (mark, [a, b]))]
    elif vision:
        a, b = images((1, 40, 30), (2, 57, 26))
        chats = [[{"role": "user", "content": [{"type": "image", "image": i}, {"type": "text", "text": t}]}]
                 for i, t in ((a, "what is this"), (b, "x"))]
        golden["chats"] = [[{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": uri(p["image"])}} if p["type"] == "image" else p
            for p in m["content"]]} for m in chat] for chat in chats]
        golden["by_chats"] = []
        for chat in chats:
            text = processor.apply_chat_template(chat, tokenize=False)
            shown = [chat[0]["content"][0]["image"]]
            golden["by_chats"].append(of(processor(text=[text], images=shown, add_special_tokens=False,
                                                   return_tensors="pt")))
    (out / "golden.json").write_text(json.dumps(golden, ensure_ascii=False))
    spread = {round(r["logits"][0], 3) for r in texts + by_ids + golden["by_pairs"]}
    assert len(spread) >= len(texts) + 1, (name, spread)
    print(name, problem, sorted(spread))


@torch.no_grad()
def saved():
    out, source = OUT / "saved", GOLDEN / "llama" / "llama3_f32"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    torch.manual_seed(4)
    names = ["neutral", "positive", "negative"]
    model = LlamaForSequenceClassification(LlamaConfig(
        vocab_size=AutoConfig.from_pretrained(source).vocab_size, hidden_size=16, intermediate_size=24,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, initializer_range=0.5,
        pad_token_id=6,
        id2label=dict(enumerate(names)), label2id={n: i for i, n in enumerate(names)})).eval()
    model.save_pretrained(out)
    for f in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / f, out / f)
    model = AutoModelForSequenceClassification.from_pretrained(out).eval()
    tokenizer = AutoTokenizer.from_pretrained(out)
    ids = [[5, 7], [5, 7, 6, 6]]
    (out / "golden.json").write_text(json.dumps(
        {"source": None, "labels": names, "inputs": TEXTS,
         "texts": [expected(model, tokenizer(t, return_tensors="pt"), None) for t in TEXTS], "ids": ids,
         "by_ids": [expected(model, {"input_ids": torch.tensor([i])}, None) for i in ids], "pairs": []},
        ensure_ascii=False))


if __name__ == "__main__":
    for key, value in VARIANTS.items():
        variant(key, value)
    saved()
