#!/usr/bin/env python3
"""Writes tests/golden/embeddings/: small checkpoints as embedding models release them, with the vectors that
transformers computes. Needs tests/golden/qwen/qwen3_f32 and qwen2_f32, whose weights it takes.
  last   Qwen3-Embedding's shape: names without a prefix, no head though untied, a tokenizer that ends with
         <|endoftext|>, the last token's vector of length 1, prompts by name
  mean   the mean over all tokens, not scaled
  encoder  EmbeddingGemma's shape: Gemma 3 that attends in both directions, with windows; the mean, two dense
         layers, length 1
  plain  the same with what GGUF files can hold: every sixth layer full, two layers without a bias
scores.json: shares of "yes" for qwen3_f32, whose vocabulary gets no such tokens: of two other ids."""
import json
import pathlib
import shutil

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, Gemma3TextConfig, Gemma3TextModel

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"
OUT = GOLDEN / "embeddings"
TEXTS = ["a", "The cat sat on the mat.", "Zwei Wörter, 3 Zahlen: 1 2 3", "x" * 70,
         "one two three four five " * 9]


def checkpoint(name, source, pooling, normalize, end):
    out = OUT / name
    shutil.rmtree(out, ignore_errors=True)
    (out / "1_Pooling").mkdir(parents=True)
    for f in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(GOLDEN / "qwen" / source / f, out / f)
    tensors = load_file(GOLDEN / "qwen" / source / "model.safetensors")
    save_file({k.removeprefix("model."): v for k, v in tensors.items() if not k.startswith("lm_head")},
              out / "model.safetensors", metadata={"format": "pt"})
    if end:
        t = json.loads((out / "tokenizer.json").read_text())
        eos = next(a for a in t["added_tokens"] if a["content"] == "<|endoftext|>")
        t["post_processor"] = {
            "type": "Sequence",
            "processors": [
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
                {"type": "TemplateProcessing",
                 "single": [{"Sequence": {"id": "A", "type_id": 0}},
                            {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}],
                 "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                          {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
                          {"Sequence": {"id": "B", "type_id": 0}},
                          {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}],
                 "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [eos["id"]],
                                                      "tokens": ["<|endoftext|>"]}}}]}
        (out / "tokenizer.json").write_text(json.dumps(t, ensure_ascii=False))
    prompts = {"query": "Instruct: find\nQuery:", "document": ""} if end else {}
    finish(out, pooling, normalize, prompts)


def dense(out, path, wide, to, bias, activation):
    (out / path).mkdir()
    (out / path / "config.json").write_text(json.dumps(
        {"in_features": wide, "out_features": to, "bias": bias,
         "activation_function": f"torch.nn.modules.{activation}"}, indent=2))
    layer = torch.nn.Linear(wide, to, bias=bias)
    save_file({f"linear.{k}": v for k, v in layer.state_dict().items()}, out / path / "model.safetensors")
    end = torch.nn.Tanh() if activation.endswith("Tanh") else torch.nn.Identity()
    return torch.nn.Sequential(layer, end)


def encoder(name, plain=False):
    out = OUT / name
    shutil.rmtree(out, ignore_errors=True)
    (out / "1_Pooling").mkdir(parents=True)
    for f in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(GOLDEN / "gemma3" / "text_f32" / f, out / f)
    torch.manual_seed(1)
    s, f = "sliding_attention", "full_attention"
    types = [s, s, s, s, s, f, s] if plain else [s, s, f, s]
    model = Gemma3TextModel(Gemma3TextConfig(
        vocab_size=512, hidden_size=48, intermediate_size=40, head_dim=16, num_attention_heads=3,
        num_key_value_heads=1, num_hidden_layers=len(types), layer_types=types,
        sliding_window=13 if plain else 18,
        query_pre_attn_scalar=16,
        max_position_embeddings=2048, use_bidirectional_attention=True, initializer_range=0.2))
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p.normal_(0, 0.2)
    model.save_pretrained(out)
    layers = [dense(out, "2_Dense", 48, 72, False, "linear.Identity"),
              dense(out, "3_Dense", 72, 24, not plain, "linear.Identity" if plain else "activation.Tanh")]
    prompts = {"query": "task: search | query: ", "document": "title: none | text: "}
    finish(out, "mean", True, {} if plain else prompts, layers)


def finish(out, pooling, normalize, prompts, layers=()):
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    modules += [(f"{i + 2}_Dense", "Dense") for i in range(len(layers))]
    modules += [(f"{len(modules)}_Normalize", "Normalize")] if normalize else []
    (out / "modules.json").write_text(json.dumps(
        [{"idx": i, "name": str(i), "path": p, "type": f"sentence_transformers.models.{t}"}
         for i, (p, t) in enumerate(modules)], indent=2))
    (out / "1_Pooling" / "config.json").write_text(json.dumps(
        {"word_embedding_dimension": 32, "pooling_mode_cls_token": False,
         "pooling_mode_mean_tokens": pooling == "mean",
         "pooling_mode_lasttoken": pooling == "last"}, indent=2))
    (out / "config_sentence_transformers.json").write_text(json.dumps(
        {"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": "cosine"}, indent=2))
    model, tok = AutoModel.from_pretrained(out, dtype=torch.float32), AutoTokenizer.from_pretrained(out)
    cases = []
    for prompt in [None, "query"] if prompts else [None]:
        for text in TEXTS:
            ids = tok((prompts[prompt] if prompt else "") + text, return_tensors="pt")["input_ids"]
            with torch.no_grad():
                h = model(ids).last_hidden_state[0]
                v = h.mean(0) if pooling == "mean" else h[-1]
                for layer in layers:
                    v = layer(v)
            v = torch.nn.functional.normalize(v, dim=0) if normalize else v
            cases.append({"input": text, "prompt_name": prompt, "ids": ids[0].tolist(), "vector": v.tolist()})
    (out / "golden.json").write_text(json.dumps(cases, ensure_ascii=False))


def scores():
    source = GOLDEN / "qwen" / "qwen3_f32"
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    tok = AutoTokenizer.from_pretrained(source)
    prefix = ("<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
              "the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n"
              "<|im_start|>user\n")
    suffix = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    instruction = "Given a web search query, retrieve relevant passages that answer the query"
    query, documents, yes, no = "where is the cat", ["on the mat", "12 bars", "Zwei Wörter"], 65, 70
    out = []
    for d in documents:
        ids = tok(f"{prefix}<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {d}{suffix}",
                  add_special_tokens=False, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = model(ids).logits[0, -1]
        out.append(torch.softmax(logits[[no, yes]], 0)[1].item())
    (OUT / "scores.json").write_text(json.dumps(
        {"query": query, "documents": documents, "true_token_id": yes, "false_token_id": no, "scores": out},
        ensure_ascii=False, indent=1))


if __name__ == "__main__":
    checkpoint("last_f32", "qwen3_f32", "last", True, True)
    checkpoint("mean_f32", "qwen3_window_f32", "mean", False, False)
    encoder("encoder_f32")
    encoder("plain_f32", True)
    scores()
