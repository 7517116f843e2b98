"""Writes tests/golden/lora: adapters of PEFT for tiny checkpoints of the other folders, and what transformers
answers with each, unmerged, in float32.

    ~/oracle/bin/python scripts/reference/make_lora.py [NAME...]

A folder NAME holds adapter_config.json and adapter_model.safetensors as PEFT saves them (matrices in bf16, B
not zero), and expected.safetensors: prompt_ids, greedy_ids, follow (log-prob of each next token of the
prompt), logprobs [generated, vocab] of the generated tokens. base.json says which checkpoint and which of its
cases. adapter.gguf: the same as llama.cpp's convert_lora_to_gguf.py writes it.
"""
import json
import math
import re
import shutil
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from peft import LoraConfig, get_peft_model
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import load_file, save_file

from make_gguf import permuted

REPO = Path(__file__).resolve().parent.parent.parent
GOLDEN = REPO / "tests" / "golden"
OUT = GOLDEN / "lora"
GENERATED = 6

ATTENTION = {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"], "r": 4, "lora_alpha": 6}
ODD = {"target_modules": "all-linear", "r": 3, "lora_alpha": 5, "use_rslora": True}
BASES = {  # checkpoint, case; what names the tower and the projector
    "llama": ("llama/llama3_f32", 0, None),
    "llama_gguf": ("llama/llama_gguf_f32", 0, None),  # its attention also as a GGUF file
    "gemma3": ("gemma3/vision_f32", 0, r".*(vision_tower|multi_modal_projector).*"),
    "gemma4": ("gemma4/e2b_vision_f32", 0, r".*(vision_tower|embed_vision).*"),
    "paligemma": ("paligemma/pg2_f32", 0, r".*(vision_tower|multi_modal_projector).*"),
    "qwen2_5_vl": ("qwen/qwen2_5_vl_f32", 0, r".*visual.*"),
    "qwen3_vl": ("qwen/qwen3_vl_f32", 0, r".*visual.*"),
    "qwen3_5": ("qwen/qwen3_5_f32", 0, r".*visual.*"),
    "smolvlm": ("tiles/smolvlm_f32", 0, r".*(vision_model|connector).*"),
    "mistral3": ("native/mistral3_f32", 0, r".*(vision_tower|multi_modal_projector).*"),
}


def load(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    vision = hasattr(config, "vision_config")
    kind = transformers.AutoModelForImageTextToText if vision else transformers.AutoModelForCausalLM
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    return model, vision


def inputs_of(folder, case, vision):
    """The processor's inputs of a golden case; the same ids as stored there."""
    with safe_open(folder / "golden.safetensors", "np") as f:
        ids = f.get_tensor(f"case{case}.prompt_ids")
        said = json.loads((folder / "golden.json").read_text())["cases"][case]
        pictures = [Image.fromarray(f.get_tensor(f"case{case}.image{i}.rgb")) for i in range(said["images"])]
    if not vision:
        return {"input_ids": torch.tensor(ids[None].astype(np.int64))}
    processor = transformers.AutoProcessor.from_pretrained(folder)
    kwargs = {"add_special_tokens": False} if said["rendered"].startswith(("<bos>", "<s>")) else {}
    text = said["rendered"]
    if said["rendered"].startswith("<image><bos>"):  # its processor adds these itself
        text = text.replace("<bos>", "").rstrip("\n")
    got = processor(text=[text], images=[pictures], return_tensors="pt", **kwargs)
    if got["input_ids"][0].tolist() != ids.tolist():
        raise SystemExit(f"{folder}: the processor's ids differ")
    return {k: v for k, v in got.items() if k != "attention_mask"}


def fill(model, seed):
    """A and B of such sizes that an adapter changes what is said."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        if ".lora_" not in name:
            continue
        scale = 1 / math.sqrt(p.shape[1]) if ".lora_A." in name else 0.1
        p.data = (torch.randn(p.shape, generator=generator) * scale).bfloat16().float()


def spell(state, how):
    """Keys of other versions."""
    if how == "bare":
        return {k.removeprefix("base_model.model."): v for k, v in state.items()}
    if how == "named":
        return {k.replace(".weight", ".default.weight"): v for k, v in state.items()}
    return state


def write_gguf(out, state, model, alpha):
    """Of a llama: the rows of q and k are permuted, as the base's."""
    names = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"}
    w = gguf.GGUFWriter(out / "adapter.gguf", "llama")
    w.add_type("adapter")
    w.add_string("adapter.type", "lora")
    w.add_float32("adapter.lora.alpha", alpha)
    for key, x in state.items():
        layer, what, half = re.search(r"layers\.(\d+)\.self_attn\.(\w+)\.lora_([AB])", key).groups()
        data = x.float().numpy()
        if half == "B" and what in ("q_proj", "k_proj"):
            c = model.config
            data = permuted(data, c.num_attention_heads if what == "q_proj" else c.num_key_value_heads)
        w.add_tensor(f"blk.{layer}.{names[what]}.weight.lora_{half.lower()}", np.ascontiguousarray(data))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def make(name, base, case, lora, seed, spelling=None, patterns=False):
    folder, out = GOLDEN / base, OUT / name
    model, vision = load(folder)
    inputs = inputs_of(folder, case, vision)
    plain = model(**inputs).logits[0].log_softmax(-1)
    config = LoraConfig(**lora, lora_dropout=0.0, bias="none", base_model_name_or_path=f"tiny/{name}")
    if patterns:  # one layer's products have another rank, another alpha, or both
        config.rank_pattern = {"layers.1.self_attn.q_proj": 7, r".*\.layers\.0\.mlp\.up_proj": 7}
        config.alpha_pattern = {"layers.1.self_attn.q_proj": 2, "down_proj": 9}
    peft = get_peft_model(model, config).eval()
    fill(peft, seed)
    with torch.no_grad():
        logits = peft(**inputs).logits[0].log_softmax(-1)
        said = peft.generate(**inputs, max_new_tokens=GENERATED, min_new_tokens=GENERATED, do_sample=False,
                             output_logits=True, return_dict_in_generate=True)
    ids = inputs["input_ids"][0].tolist()
    greedy = said.sequences[0].tolist()[len(ids):]
    vocab = logits.shape[-1]
    rows = torch.stack([x[0].float().log_softmax(-1) for x in said.logits]).numpy()
    follow = np.array([logits[i, t] if t < vocab else 0 for i, t in enumerate(ids[1:])], np.float32)
    changed = float((logits - plain).abs().max())
    if out.exists():
        shutil.rmtree(out)
    peft.save_pretrained(out)
    (out / "README.md").unlink(missing_ok=True)
    said_config = json.loads((out / "adapter_config.json").read_text())
    said_config["base_model_name_or_path"] = base
    said_config["target_modules"] = sorted(config.target_modules) if isinstance(
        config.target_modules, (set, list)) else config.target_modules
    said_config = {k: v for k, v in said_config.items() if k != "auto_mapping"}
    (out / "adapter_config.json").write_text(json.dumps(said_config, indent=1) + "\n")
    state = {k: v.bfloat16() for k, v in load_file(out / "adapter_model.safetensors").items()}
    save_file(spell(state, spelling), out / "adapter_model.safetensors", metadata={"format": "pt"})
    if name == "llama_gguf_attention":
        write_gguf(out, state, model, lora["lora_alpha"])
    save_numpy({"prompt_ids": np.array(ids, np.int32), "greedy_ids": np.array(greedy, np.int32),
                "follow": follow, "logprobs": rows}, out / "expected.safetensors")
    (out / "base.json").write_text(json.dumps({"base": base, "case": case}, indent=1) + "\n")
    print(f"{name}: {len(state) // 2} products, log-probs differ by up to {changed:.2f} from the base's")
    if changed < 0.2:
        raise SystemExit(f"{name}: the adapter changes nothing")


def main():
    wanted = sys.argv[1:]
    for n, (family, (base, case, tower)) in enumerate(BASES.items()):
        attention = dict(ATTENTION)
        if family == "gemma4":  # its tower's linears are wrapped
            attention["target_modules"] = r".*language_model.*\.[qkvo]_proj"
        kinds = {
            "attention": dict(lora=attention, spelling="bare"),
            "all": dict(lora=ODD, patterns=True),
        }
        if family == "llama_gguf":
            del kinds["all"]
        if tower:
            kinds["tower"] = dict(spelling="named")
        for k, (kind, how) in enumerate(kinds.items()):
            name = f"{family}_{kind}"
            if wanted and name not in wanted and family not in wanted:
                continue
            if kind == "tower":  # everything but the decoder
                model, _ = load(GOLDEN / base)
                inside = [m for m, x in model.named_modules() if isinstance(x, torch.nn.Linear)
                          and re.fullmatch(tower, m)]
                how["lora"] = {"target_modules": inside, "r": 7, "lora_alpha": 7}
            make(name, base, case, seed=1000 + 10 * n + k, **how)


if __name__ == "__main__":
    main()
