"""LoRA adapters as PEFT saves them, for the demo model, written by the standard library alone."""
import array
import json
import os
import random
import struct

TEXT = "base_model.model.model.language_model.layers.{}."
TOWER = "base_model.model.model.vision_tower.encoder.layers.{}."
MODULES = {  # name: (where, inputs, outputs) of models/demo
    "q_proj": ("self_attn", 160, 128), "k_proj": ("self_attn", 160, 64), "v_proj": ("self_attn", 160, 64),
    "o_proj": ("self_attn", 128, 160), "gate_proj": ("mlp", 160, 384), "up_proj": ("mlp", 160, 384),
    "down_proj": ("mlp", 384, 160)}
TOWER_MODULES = {"q_proj": ("self_attn", 128, 128), "fc1": ("mlp", 128, 384)}


def write(path, tensors):
    """tensors: name -> (shape, floats)"""
    head, data = {}, b""
    for name, (shape, values) in tensors.items():
        part = array.array("f", values).tobytes()
        offsets = [len(data), len(data) + len(part)]
        head[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": offsets}
        data += part
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def tensors(modules=("q_proj", "v_proj"), rank=4, seed=1, scale=0.3, tower=False, layers=6):
    out, r = {}, random.Random(seed)
    table, prefix, count = (TOWER_MODULES, TOWER, 4) if tower else (MODULES, TEXT, layers)
    for layer in range(count):
        for m in modules:
            where, inputs, outputs = table[m]
            name = f"{prefix.format(layer)}{where}.{m}.lora_"
            for part, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                values = [r.uniform(-scale, scale) for _ in range(shape[0] * shape[1])]
                out[f"{name}{part}.weight"] = (shape, values)
    return out


def config(rank=4, modules=("q_proj", "v_proj"), **more):
    return {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "demo", "r": rank,
            "lora_alpha": 8, "target_modules": list(modules), "bias": "none", "use_rslora": False,
            "use_dora": False, "modules_to_save": None, "rank_pattern": {}, "alpha_pattern": {}, **more}


def make(directory, weights=None, conf=None, **how):
    os.makedirs(directory, exist_ok=True)
    modules, rank = how.get("modules", ("q_proj", "v_proj")), how.get("rank", 4)
    with open(os.path.join(directory, "adapter_config.json"), "w") as f:
        json.dump(config(rank, modules) if conf is None else conf, f)
    made = tensors(**how) if weights is None else weights
    write(os.path.join(directory, "adapter_model.safetensors"), made)
    return directory
