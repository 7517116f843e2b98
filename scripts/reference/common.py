"""What the golden-file scripts share: a small Gemma-style tokenizer, seeded weights, seeded pictures, and the two ways of running a
model (whole sequence, and with transformers' own cache).

Nothing here knows which variants exist; make_gemma3.py does.
"""
import json
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
REPO = HERE.parent.parent

# ---------------------------------------------------------------------------------------------------------------- tokenizer

VOCAB = 512
NEWLINES = 6  # longest run of newlines that is one piece
SPACES = 8
CHARS = 112
BOI, EOI, SOFT = "<start_of_image>", "<end_of_image>", "<image_soft_token>"

# The semantics of Gemma 3's template in our own words: bos; a system message becomes a prefix of the first turn; user and model
# alternate; string content and text parts are trimmed; an image part is one marker.
CHAT_TEMPLATE = """{{ bos_token }}
{%- set lead = '' -%}
{%- set turns = messages -%}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set lead = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set lead = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set turns = messages[1:] -%}
{%- endif -%}
{%- for turn in turns -%}
    {%- if (turn['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("The roles of a conversation must alternate: user, assistant, user, ...") }}
    {%- endif -%}
    {%- set who = 'model' if turn['role'] == 'assistant' else turn['role'] -%}
    {{ '<start_of_turn>' + who + '\\n' + (lead if loop.first else '') }}
    {%- if turn['content'] is string -%}
        {{ turn['content'] | trim }}
    {%- elif turn['content'] is iterable -%}
        {%- for part in turn['content'] -%}
            {%- if part['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif part['type'] == 'text' -%}
                {{ part['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("The content of a message must be a string or a list of parts") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\\n' }}
{%- endif -%}
"""


def _words(text):
    """Cuts the training text before every space, as SentencePiece does: a piece never holds a space in its middle."""
    words, word = [], ""
    for c in text.replace(" ", "▁"):
        if c == "▁" or c == "\n":
            words.append(word)
            word = c if c == "▁" else ""
        else:
            word += c
    words.append(word)
    return Counter(w for w in words if len(w) > 1)


def train_merges(text, alphabet, count):
    """Plain BPE training; ties go to the pair that sorts first, so that the result depends on the text alone."""
    words = {w: [c for c in w] for w in _words(text)}
    freq = _words(text)
    merges, pieces = [], set(alphabet)
    while len(merges) < count:
        pairs = Counter()
        for w, parts in words.items():
            for a, b in zip(parts, parts[1:]):
                if a in pieces and b in pieces and a + b not in pieces:
                    pairs[a, b] += freq[w]
        (a, b), _ = min(pairs.items(), key=lambda p: (-p[1], p[0]))
        merges.append((a, b))
        pieces.add(a + b)
        for w, parts in words.items():
            out, i = [], 0
            while i < len(parts):
                if i + 1 < len(parts) and parts[i] == a and parts[i + 1] == b:
                    out.append(a + b)
                    i += 2
                else:
                    out.append(parts[i])
                    i += 1
            words[w] = out
    return merges


def build_tokenizer_json():
    """A tokenizer.json in the shape of Gemma 3's: same components, same kinds of pieces in the same order, 512 ids."""
    text = (HERE / "mixed.txt").read_text(encoding="utf-8")
    vocab = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<unused0>", "<unused1>", "<unused2>", "<start_of_turn>", "<end_of_turn>"]
    special = list(vocab)
    vocab += ["\n" * n for n in range(1, NEWLINES + 1)]
    vocab += ["▁" * n for n in range(2, SPACES + 1)]
    tags = ["<table>", "</table>"]  # added tokens that are not special
    vocab += tags
    vocab += [f"<0x{b:02X}>" for b in range(256)]
    merges = []
    for piece, longest in (("\n", NEWLINES), ("▁", SPACES)):
        for n in range(2, longest + 1):
            merges += [(piece * k, piece * (n - k)) for k in range(1, n)]
    counts = Counter(text.replace(" ", "▁").replace("\n", ""))
    counts.update({"▁": 1})
    alphabet = [c for c, _ in sorted(counts.items(), key=lambda p: (-p[1], p[0]))[:CHARS]]
    room = VOCAB - 3 - len(vocab) - len(alphabet)
    learned = train_merges(text, alphabet, room)
    merges += learned
    vocab += [a + b for a, b in learned] + alphabet + [BOI, EOI, SOFT]
    assert len(vocab) == len(set(vocab)) == VOCAB, (len(vocab), len(set(vocab)))
    ids = {t: i for i, t in enumerate(vocab)}

    def added(token, is_special):
        return {"id": ids[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                "special": is_special}

    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added(t, True) for t in special] + [added(t, False) for t in tags] + [added(t, True) for t in (BOI, EOI, SOFT)],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                     {"SpecialToken": {"id": "<bos>", "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [ids["<bos>"]], "tokens": ["<bos>"]}}},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                                      {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": True, "byte_fallback": True, "ignore_merges": False, "vocab": ids, "merges": [list(m) for m in merges]},
    }


TOKENIZER_CONFIG = {
    "tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "add_eos_token": False, "bos_token": "<bos>", "eos_token": "<eos>",
    "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>", "boi_token": BOI, "eoi_token": EOI, "image_token": SOFT,
    "extra_special_tokens": {"boi_token": BOI, "eoi_token": EOI, "image_token": SOFT},
    "clean_up_tokenization_spaces": False, "spaces_between_special_tokens": False, "model_max_length": 4096,
    "processor_class": "Gemma3Processor",
}


def write_tokenizer(folder):
    """Writes tokenizer.json and tokenizer_config.json; returns token -> id."""
    data = build_tokenizer_json()
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG, indent=1) + "\n")
    return data["model"]["vocab"]


# ------------------------------------------------------------------------------------------------------------------ weights


def normal(seed, name, shape, std, mean=0.0):
    """The tensor depends on (seed, name, shape) alone, not on the order in which a class makes its parameters."""
    key = [seed, zlib.crc32(name.encode())]
    return torch.from_numpy(np.random.Generator(np.random.PCG64(key)).normal(mean, std, size=tuple(shape)).astype(np.float32))


@torch.no_grad()
def fill_gemma3(model, seed, head_gain=2.4, qk_gain=1.25, post_gain=1.1, soft_id=None):
    """Weights that make the model react: attention far from uniform (qk_gain), every layer's contribution as large as the embedding
    (post_gain), and log-probs far from flat (head_gain is about the standard deviation of the logits). The final norm's factors have
    random signs: otherwise a tied head answers every token with the token itself."""
    for name, p in model.named_parameters():
        last = name.split(".")[-2] if name.endswith((".weight", ".bias")) else name.split(".")[-1]
        vision = "vision_tower" in name
        if last == "embed_tokens" or last == "lm_head":
            w = normal(seed, name, p.shape, p.shape[1] ** -0.5)
            if last == "embed_tokens" and soft_id is not None and soft_id < p.shape[0]:
                w[soft_id] = w.mean(0)  # as in released checkpoints: an untrained row near the mean
        elif last == "mm_input_projection_weight":
            w = normal(seed, name, p.shape, 1.6 * p.shape[0] ** -0.5)
        elif last == "mm_soft_emb_norm":
            w = normal(seed, name, p.shape, 0.2)
        elif last in ("q_norm", "k_norm"):
            w = normal(seed, name, p.shape, 0.2, qk_gain - 1)
        elif last == "norm":
            sign = torch.sign(normal(seed, name + " sign", p.shape, 1.0))
            w = (head_gain + normal(seed, name, p.shape, 0.15)) * sign - 1
        elif last in ("post_attention_layernorm", "post_feedforward_layernorm") and not vision:
            w = normal(seed, name, p.shape, 0.2, post_gain - 1)
        elif last in ("input_layernorm", "pre_feedforward_layernorm"):
            w = normal(seed, name, p.shape, 0.2, 0.1)
        elif last in ("layer_norm1", "layer_norm2", "post_layernorm"):
            w = normal(seed, name, p.shape, 0.2, 1.0 if name.endswith("weight") else 0.0)
        elif last == "patch_embedding" and name.endswith("weight"):
            w = normal(seed, name, p.shape, 3.0 * p[0].numel() ** -0.5)
        elif last == "position_embedding":
            w = normal(seed, name, p.shape, 0.4)
        elif name.endswith("bias"):
            w = normal(seed, name, p.shape, 0.2)
        elif p.dim() == 2:
            w = normal(seed, name, p.shape, (1.6 if vision else 1.3) * p.shape[1] ** -0.5)
        else:
            raise ValueError(f"no rule for {name} {tuple(p.shape)}")
        p.copy_(w)
    model.tie_weights()


# ----------------------------------------------------------------------------------------------------------------- pictures


def picture(seed, width, height):
    """A gradient with a few discs and bars and a little noise: u8 [height, width, 3]."""
    r = np.random.Generator(np.random.PCG64([7919, seed]))
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    u, v = (x + 0.5) / width, (y + 0.5) / height
    a, b = r.uniform(0, 255, 3), r.uniform(0, 255, 3)
    t = np.clip(u * np.cos(seed) + v * np.sin(seed) + 0.3, 0, 1)[..., None]
    out = a * (1 - t) + b * t
    for _ in range(4):
        cu, cv, s, color = r.uniform(0, 1), r.uniform(0, 1), r.uniform(0.12, 0.35), r.uniform(0, 255, 3)
        inside = (np.abs(u - cu) < s) & (np.abs(v - cv) < s * 0.6) if r.uniform() < 0.5 else (u - cu) ** 2 + (v - cv) ** 2 < s * s
        out[inside] = color
    out += r.normal(0, 6, out.shape)
    return np.clip(np.rint(out), 0, 255).astype(np.uint8)


# ------------------------------------------------------------------------------------------------------------------ running


def model_inputs(ids, types, pixels, dtype):
    inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    if types is not None:
        inputs["token_type_ids"] = torch.tensor([list(types) + [0] * (len(ids) - len(types))])
    if pixels is not None:
        inputs["pixel_values"] = torch.from_numpy(np.stack(pixels)).to(dtype)
    return inputs


@torch.no_grad()
def logprobs(model, ids, types=None, pixels=None, **change):
    """One forward pass over the whole sequence without a cache: log-softmax [len(ids), V]; row t is about token t+1."""
    dtype = next(model.parameters()).dtype
    inputs = model_inputs(ids, types, pixels, dtype)
    inputs.update(change)
    out = model(**inputs, use_cache=False).logits[0]
    return torch.log_softmax(out.to(torch.float64 if dtype == torch.float64 else torch.float32), -1)


def greedy(model, prompt, types, pixels, count):
    """Greedy continuation, the whole sequence run again for every token: the slow and unarguable way."""
    ids, gaps = list(prompt), []
    for _ in range(count):
        two = torch.topk(logprobs(model, ids, types, pixels)[-1], 2)
        ids.append(int(two.indices[0]))
        gaps.append(float(two.values[0] - two.values[1]))
    return ids[len(prompt):], gaps


@torch.no_grad()
def greedy_cached(model, prompt, types, pixels, count):
    """The same through transformers' generate() with its KV cache."""
    inputs = model_inputs(prompt, types, pixels, next(model.parameters()).dtype)
    out = model.generate(**inputs, max_new_tokens=count, min_new_tokens=count, do_sample=False, eos_token_id=[], pad_token_id=0,
                         top_k=None, top_p=None)
    return out[0, len(prompt):].tolist()
