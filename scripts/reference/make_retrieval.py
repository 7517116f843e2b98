#!/usr/bin/env python3
"""Writes tests/golden/retrieval/: what transformers answers for models that embed and score images.

  qwen3_vl*  Qwen3-VL-Embedding and -Reranker: a golden checkpoint of tests/golden/qwen, with the prompts of
             the models' own scripts; beside golden.json the files that lie over those of `source`
  colpali*   ColPaliForRetrieval around a golden checkpoint of tests/golden/paligemma
  colqwen2*  ColQwen2ForRetrieval around one of tests/golden/qwen

Inputs in golden.json are what a request has. All runs are of one input: no padding."""
import base64
import io
import json
import pathlib
import shutil
import tempfile

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (AutoConfig, AutoImageProcessor, AutoModelForImageTextToText, AutoProcessor,
                          AutoTokenizer, ColPaliConfig, ColPaliForRetrieval, ColPaliProcessor, ColQwen2Config,
                          ColQwen2ForRetrieval, ColQwen2Processor)

from common import picture

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"
OUT = GOLDEN / "retrieval"
JUDGE = ('Judge whether the Document meets the requirements based on the Query and the Instruct provided. '
         'Note that the answer can only be "yes" or "no".')


def uri(image):
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def fresh(name):
    out = OUT / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    return out


def images(*sizes):
    return [Image.fromarray(picture(s, w, h)) for s, w, h in sizes]


def in_request(item):
    return {k: uri(v) if k == "image" else v for k, v in item.items()} if isinstance(item, dict) else item


def parts(item):
    item = {"text": item} if isinstance(item, str) else item
    return ([{"type": "image", "image": item["image"]}] if "image" in item else []) + \
        ([{"type": "text", "text": item["text"]}] if "text" in item else [])


def ends_with(text, token):
    """tokenizer.json with one more token at the end of each text."""
    t = json.loads(text)
    end = next(a["id"] for a in t["added_tokens"] if a["content"] == token)
    own, template = t.get("post_processor"), {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": token, "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [end], "tokens": [token]}}}
    t["post_processor"] = {"type": "Sequence", "processors": ([own] if own else []) + [template]}
    return json.dumps(t, ensure_ascii=False)


@torch.no_grad()
def qwen3_vl(name, source, end, yes, no):
    folder, out = GOLDEN / source, fresh(name)
    work = pathlib.Path(tempfile.mkdtemp()) / name
    shutil.copytree(folder, work)
    if end:
        text = ends_with((folder / "tokenizer.json").read_text(), "<|endoftext|>")
        for at in work, out:
            (at / "tokenizer.json").write_text(text)
    (out / "1_LogitScore").mkdir()
    ids = {"true_token_id": yes, "false_token_id": no}
    (out / "1_LogitScore" / "config.json").write_text(json.dumps(ids))
    kind = "sentence_transformers.base.modules.transformer.Transformer"
    (out / "modules.json").write_text(json.dumps([
        {"idx": 0, "name": "0", "path": "", "type": kind},
        {"idx": 1, "name": "1", "path": "1_LogitScore",
         "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]))
    model = AutoModelForImageTextToText.from_pretrained(work, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(work)

    def run(conversation):
        text = processor.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
        shown = [p["image"] for m in conversation for p in m["content"] if p["type"] == "image"]
        inputs = processor(text=[text], images=shown or None, return_tensors="pt")
        hidden = model.model(**inputs).last_hidden_state[0, -1]
        return hidden, inputs["input_ids"].shape[1]

    a, b, c = images((1, 40, 30), (2, 26, 57), (3, 64, 64))
    inputs = ["The cat sat.", {"image": a}, {"text": "Zwei Wörter", "image": b}, {"image": c, "text": "x"},
              {"text": "a", "instruction": " Find it "}, "Zahlen: 1 2 3"]
    vectors, tokens = [], []
    for item in inputs:
        own = item.get("instruction", "").strip() if isinstance(item, dict) else ""
        system = (own if own[-1:] in ".!?" else own + ".") if own else "Represent the user's input."
        v, n = run([{"role": "system", "content": [{"type": "text", "text": system}]},
                    {"role": "user", "content": parts(item)}])
        vectors.append(torch.nn.functional.normalize(v, dim=0).tolist())
        tokens.append(n)
    shutil.rmtree(work.parent)
    query = {"text": "where is it", "image": a}
    documents = ["on the mat", {"image": b}, {"text": "12", "image": a}]
    weight, scores = model.lm_head.weight[yes] - model.lm_head.weight[no], []
    for d in documents:
        instruct = "Given a search query, retrieve relevant candidates that answer the query."
        v, _ = run([{"role": "system", "content": [{"type": "text", "text": JUDGE}]},
                    {"role": "user", "content": [{"type": "text", "text": "<Instruct>: " + instruct},
                                                 {"type": "text", "text": "<Query>:"}, *parts(query),
                                                 {"type": "text", "text": "\n<Document>:"}, *parts(d)]}])
        scores.append(torch.sigmoid(v @ weight).item())
    (out / "golden.json").write_text(json.dumps(
        {"source": source, "inputs": [in_request(i) for i in inputs], "tokens": tokens, "vectors": vectors,
         "query": in_request(query), "documents": [in_request(d) for d in documents], "scores": scores},
        ensure_ascii=False))


@torch.no_grad()
def late(name, source, width, old_names, queries, pages):
    folder, out = GOLDEN / source, fresh(name)
    inner = AutoConfig.from_pretrained(folder)
    qwen = inner.model_type.startswith("qwen")
    config = (ColQwen2Config if qwen else ColPaliConfig)(vlm_config=inner, embedding_dim=width)
    model = (ColQwen2ForRetrieval if qwen else ColPaliForRetrieval)(config).eval()
    model.vlm.load_state_dict(
        AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).model.state_dict())
    torch.manual_seed(width)
    torch.nn.init.normal_(model.embedding_proj_layer.weight, 0, 0.3)
    torch.nn.init.normal_(model.embedding_proj_layer.bias, 0, 0.1)
    model.save_pretrained(out)
    for f in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / f, out / f)
    make = ColQwen2Processor if qwen else ColPaliProcessor
    processor = make(AutoImageProcessor.from_pretrained(folder), AutoTokenizer.from_pretrained(out))
    processor.save_pretrained(out)
    for f in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / f, out / f)
    for f in out.glob("*.jinja"):
        f.unlink()
    if old_names:  # as the first releases have them
        at = out / "model.safetensors"
        save_file({old_names(k): t for k, t in load_file(at).items()}, at, metadata={"format": "pt"})
        again = type(model).from_pretrained(out, dtype=torch.float32)
        for (k, p), (_, q) in zip(model.named_parameters(), again.named_parameters()):
            assert torch.equal(p, q), k
    inputs = [processor.process_queries(text=[q]) for q in queries]
    inputs += [processor.process_images(images=[p]) for p in pages]
    for i in inputs:
        i.pop("labels", None)
    vectors = [model(**i).embeddings[0] for i in inputs]
    found = [[processor.score_retrieval([q], [p]).item() for p in vectors] for q in vectors[:len(queries)]]
    (out / "golden.json").write_text(json.dumps(
        {"queries": queries, "pages": [uri(p) for p in pages],
         "ids": [i["input_ids"][0].tolist() for i in inputs], "vectors": [v.tolist() for v in vectors],
         "scores": found}, ensure_ascii=False))


def colqwen_old(name):
    return name.replace("vlm.", "vlm.model.")


if __name__ == "__main__":
    qwen3_vl("qwen3_vl_f32", "qwen/qwen3_vl_f32", True, 65, 70)
    qwen3_vl("qwen3_vl_odd_f32", "qwen/qwen3_vl_odd_f32", False, 80, 66)
    words = ["where is the cat", "12 bars?", "Zwei Wörter"]
    late("colpali_f32", "paligemma/pg1_f32", 12, None, words, images((4, 30, 41), (5, 24, 24)))
    late("colpali_odd_f32", "paligemma/pg2_odd_f32", 5, None, words[1:], images((6, 20, 90), (7, 75, 31)))
    late("colqwen2_f32", "qwen/qwen2_vl_f32", 16, None, words, images((8, 33, 47), (9, 60, 20)))
    late("colqwen2_odd_f32", "qwen/qwen2_5_vl_nested_f32", 9, colqwen_old, words[:2],
         images((10, 40, 31), (11, 56, 56)))
