"""What make_qwen.py builds with: a small byte-level tokenizer in Qwen's style, chat templates, seeded weights, seeded videos.

Nothing here knows which variants exist; make_qwen.py does.
"""
import json

import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from common import HERE, normal, picture

VOCAB = 320
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>",
           "<|video_pad|>"]
MARKS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]  # added, not special
IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

# Qwen2-VL and Qwen2.5-VL in our own words: every role is rendered alike; a default system turn; no tools; pictures may be numbered.
TEMPLATE_VL2 = """{%- set seen = namespace(images=0, videos=0) -%}
{%- if messages[0]['role'] != 'system' -%}
    {{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif -%}
{%- for turn in messages -%}
    {{ '<|im_start|>' + turn['role'] + '\\n' }}
    {%- if turn['content'] is string -%}
        {{ turn['content'] }}
    {%- else -%}
        {%- for part in turn['content'] -%}
            {%- if part['type'] == 'image' or 'image' in part or 'image_url' in part -%}
                {%- set seen.images = seen.images + 1 -%}
                {%- if add_vision_id -%}{{ 'Picture ' ~ seen.images ~ ': ' }}{%- endif -%}
                {{ '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif part['type'] == 'video' or 'video' in part -%}
                {%- set seen.videos = seen.videos + 1 -%}
                {%- if add_vision_id -%}{{ 'Video ' ~ seen.videos ~ ': ' }}{%- endif -%}
                {{ '<|vision_start|><|video_pad|><|vision_end|>' }}
            {%- elif 'text' in part -%}
                {{ part['text'] }}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<|im_start|>assistant\\n' }}
{%- endif -%}
"""

# Qwen3-VL (and, with content that is a string, the text models): no default system turn unless `default_system` is filled in below;
# tools in the system turn; calls and results between marks; results of consecutive tool messages share one user turn.
_TEMPLATE_3 = """{%- macro show(content) -%}
    {%- if content is string -%}
        {{ content }}
    {%- else -%}
        {%- for part in content -%}
            {%- if part['type'] == 'image' or 'image' in part or 'image_url' in part -%}
                {{ '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif part['type'] == 'video' or 'video' in part -%}
                {{ '<|vision_start|><|video_pad|><|vision_end|>' }}
            {%- elif 'text' in part -%}
                {{ part['text'] }}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- set lead = '@DEFAULT@' -%}
{%- if messages[0]['role'] == 'system' -%}
    {%- set lead = show(messages[0]['content']) -%}
{%- endif -%}
{%- if tools -%}
    {{ '<|im_start|>system\\n' }}
    {%- if lead -%}{{ lead + '\\n\\n' }}{%- endif -%}
    {{ '# Tools\\n\\nFunctions, one JSON object per line:\\n<tools>' }}
    {%- for tool in tools -%}{{ '\\n' + (tool | tojson) }}{%- endfor -%}
    {{ '\\n</tools>\\n\\nCall one like this:\\n<tool_call>\\n{"name": NAME, "arguments": OBJECT}\\n</tool_call><|im_end|>\\n' }}
{%- elif lead -%}
    {{ '<|im_start|>system\\n' + lead + '<|im_end|>\\n' }}
{%- endif -%}
{%- for turn in messages -%}
    {%- if turn['role'] == 'user' -%}
        {{ '<|im_start|>user\\n' + show(turn['content']) + '<|im_end|>\\n' }}
    {%- elif turn['role'] == 'assistant' -%}
        {{ '<|im_start|>assistant\\n' }}
        {%- if turn['content'] -%}{{ show(turn['content']) }}{%- endif -%}
        {%- for call in turn['tool_calls'] or [] -%}
            {%- set call = call['function'] or call -%}
            {%- if turn['content'] or not loop.first -%}{{ '\\n' }}{%- endif -%}
            {{ '<tool_call>\\n{"name": "' + call['name'] + '", "arguments": ' }}
            {{- call['arguments'] if call['arguments'] is string else (call['arguments'] | tojson) }}
            {{- '}\\n</tool_call>' }}
        {%- endfor -%}
        {{ '<|im_end|>\\n' }}
    {%- elif turn['role'] == 'tool' -%}
        {%- if loop.first or messages[loop.index0 - 1]['role'] != 'tool' -%}{{ '<|im_start|>user' }}{%- endif -%}
        {{ '\\n<tool_response>\\n' + show(turn['content']) + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1]['role'] != 'tool' -%}{{ '<|im_end|>\\n' }}{%- endif -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false -%}
        {{ '<think>\\n\\n</think>\\n\\n' }}
    {%- endif -%}
{%- endif -%}
"""
TEMPLATE_3 = _TEMPLATE_3.replace("@DEFAULT@", "")
TEMPLATE_TEXT2 = _TEMPLATE_3.replace("@DEFAULT@", "You help.")


# Qwen3.5: a turn is thought over first unless `enable_thinking` is false; tools are called in XML; thoughts of
# earlier turns are left out.
TEMPLATE_35 = """{%- macro show(content) -%}
    {%- if content is string -%}
        {{ content }}
    {%- else -%}
        {%- for part in content -%}
            {%- if part['type'] == 'image' or 'image' in part or 'image_url' in part -%}
                {{ '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif part['type'] == 'video' or 'video' in part -%}
                {{ '<|vision_start|><|video_pad|><|vision_end|>' }}
            {%- elif 'text' in part -%}
                {{ part['text'] }}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- set lead = show(messages[0]['content']) if messages[0]['role'] == 'system' else '' -%}
{%- if tools -%}
    {{ '<|im_start|>system\\n# Tools\\n\\n<tools>' }}
    {%- for tool in tools -%}{{ '\\n' + (tool | tojson) }}{%- endfor -%}
    {{ '\\n</tools>\\n\\nCall one like this:\\n<tool_call>\\n<function=NAME>\\n<parameter=KEY>\\nVALUE' }}
    {{- '\\n</parameter>\\n</function>\\n</tool_call>' }}
    {%- if lead -%}{{ '\\n\\n' + lead }}{%- endif -%}
    {{ '<|im_end|>\\n' }}
{%- elif lead -%}
    {{ '<|im_start|>system\\n' + lead + '<|im_end|>\\n' }}
{%- endif -%}
{%- for turn in messages -%}
    {%- if turn['role'] == 'user' -%}
        {{ '<|im_start|>user\\n' + show(turn['content']) + '<|im_end|>\\n' }}
    {%- elif turn['role'] == 'assistant' -%}
        {{ '<|im_start|>assistant\\n' + show(turn['content'] or '').split('</think>')[-1].lstrip('\\n') }}
        {%- for call in turn['tool_calls'] or [] -%}
            {%- set call = call['function'] or call -%}
            {{ '\\n<tool_call>\\n<function=' + call['name'] + '>\\n' }}
            {%- for key, value in call['arguments'] | items -%}
                {{ '<parameter=' + key + '>\\n' + (value if value is string else value | tojson) }}
                {{- '\\n</parameter>\\n' }}
            {%- endfor -%}
            {{ '</function>\\n</tool_call>' }}
        {%- endfor -%}
        {{ '<|im_end|>\\n' }}
    {%- elif turn['role'] == 'tool' -%}
        {%- if loop.first or messages[loop.index0 - 1]['role'] != 'tool' -%}
            {{ '<|im_start|>user' }}
        {%- endif -%}
        {{ '\\n<tool_response>\\n' + show(turn['content']) + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1]['role'] != 'tool' -%}{{ '<|im_end|>\\n' }}{%- endif -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<|im_start|>assistant\\n<think>\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false -%}{{ '\\n</think>\\n\\n' }}{%- endif -%}
{%- endif -%}
"""


def tokenizer_json():
    """Byte-level BPE with the components of Qwen's: NFC, its split pattern, 256 bytes, merges learnt from mixed.txt, added tokens last."""
    bpe = Tokenizer(models.BPE(continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False, byte_fallback=False))
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated", False),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB - len(SPECIAL) - len(MARKS), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    bpe.train_from_iterator([(HERE / "mixed.txt").read_text(encoding="utf-8")], trainer)
    bpe.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    bpe.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKS])
    assert bpe.get_vocab_size() == VOCAB
    return bpe.to_str()


_text = []


def tokenizer_text():
    if not _text:
        _text.append(json.dumps(json.loads(tokenizer_json()), ensure_ascii=False, separators=(",", ":")))
    return _text[0]


TOKENIZER_CONFIG = {
    "tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": False, "bos_token": None, "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>", "unk_token": None, "clean_up_tokenization_spaces": False, "errors": "replace", "model_max_length": 4096,
    "split_special_tokens": False,
}


def write_tokenizer(folder, own=None):
    """own: another tokenizer.json, which transformers reads as it is."""
    config = TOKENIZER_CONFIG
    if own:
        config = config | {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[0]}
    (folder / "tokenizer.json").write_text(own or tokenizer_text(), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


@torch.no_grad()
def fill(model, seed, head=2.6, qk=1.3, mix=1.0, seen=1.6, router=2.5, pos=1.0, behind=None):
    """Weights that make the model react. The residual stream starts at the size of an embedding row, width^-0.5 per element (so that a
    tied head gives logits of about `head`), and every block adds about `mix` times that. `qk` is the size of a query's and a key's
    elements, so qk^2 that of the scores; `seen` the size of picture rows and DeepStack taps beside an embedding row; `router` the
    spread of the experts' scores; `pos` the size of position rows beside patch rows. The final norm's factors have random signs:
    otherwise a tied head answers every token with the token itself."""
    width = model.config.get_text_config().hidden_size
    unit = width ** -0.5
    plus = 1.0 if "qwen3_5" in model.config.model_type else 0.0  # its norms multiply by 1 + w
    for name, p in model.named_parameters():
        part = name.split(".")
        last = part[-2] if part[-1] in ("weight", "bias") else part[-1]
        visual, bias = "visual" in part, name.endswith("bias")
        fan = p.shape[-1] ** -0.5
        if "conv" in part and last in ("conv", "in_proj", "out_proj"):  # LFM2
            gain = {"conv": 1.5, "in_proj": 1.4, "out_proj": 2.0 * mix * unit}[last]
            w = normal(seed, name, p.shape, gain * fan)
        elif "linear_attn" in part:
            w = fill_recurrent(seed, name, p, last, mix * unit * fan)
        elif bias:
            w = normal(seed, name, p.shape, 0.3 if last in ("q_proj", "k_proj", "v_proj", "qkv") else 0.2)
            if visual and (last == "linear_fc2" and "mlp" not in part or part[-3:-1] == ["mlp", "2"]):
                w *= unit
        elif last == "embed_tokens" or last == "lm_head":
            w = normal(seed, name, p.shape, unit)
        elif last in ("q_norm", "k_norm", "q_layernorm", "k_layernorm"):
            w = normal(seed, name, p.shape, 0.2, qk) - plus
        elif name.endswith("norm.weight") and not visual and last in ("norm", "embedding_norm"):
            sign = torch.sign(normal(seed, name + " sign", p.shape, 1.0))
            w = (head + normal(seed, name, p.shape, 0.15)) * sign - plus
        elif behind and last in ("post_attention_layernorm", "post_feedforward_layernorm"):
            w = normal(seed, name, p.shape, 0.2 * behind, behind)
        elif "norm" in last or last == "ln_q":
            w = normal(seed, name, p.shape, 0.2, 1.0 if visual else 1.0 - plus)
        elif last == "pos_embed":
            w = normal(seed, name, p.shape, pos)
        elif visual:
            if p.dim() == 5:
                w = normal(seed, name, p.shape, 2.0 * p[0].numel() ** -0.5)
            elif part[-3:-1] == ["mlp", "2"] or (last == "linear_fc2" and "mlp" not in part):
                # the merger's last: rows as large as embeddings
                w = normal(seed, name, p.shape, 2.0 * seen * unit * fan)
            elif last == "qkv":
                w = normal(seed, name, p.shape, 1.3 * fan)
            else:
                w = normal(seed, name, p.shape, 1.6 * fan)
        elif part[-2:] == ["gate", "weight"]:
            w = normal(seed, name, p.shape, router * fan)
        elif last in ("o_proj", "out_proj", "down_proj", "w2", "output_linear"):
            gain = 1.5 if last in ("o_proj", "out_proj") else 2.2
            w = normal(seed, name, p.shape, gain * mix * unit * fan)
        elif last == "shared_expert_gate":
            w = normal(seed, name, p.shape, 2.0 * fan)
        elif last in ("q_proj", "k_proj"):
            w = normal(seed, name, p.shape, qk * fan)
        elif last in ("v_proj", "gate_proj", "up_proj", "gate_up_proj", "w1", "w3", "input_linear"):
            w = normal(seed, name, p.shape, 1.2 * fan)
        else:
            raise ValueError(f"no rule for {name} {tuple(p.shape)}")
        p.copy_(w)
    model.tie_weights()


def drafter(tensors, seed):
    """mtp.*, which transformers leaves unread: a copy of the last layer with attention; its inputs add up.
    Its experts are in one tensor each, also where the model's are not, as in quantized releases."""
    layers = [k for k in tensors if ".self_attn.q_proj.weight" in k and "visual" not in k]
    last = max(layers, key=lambda k: int(k.split(".self_attn")[0].split(".")[-1])).split("self_attn")[0]
    out = {"mtp.layers.0." + k[len(last):]: t.clone() for k, t in tensors.items() if k.startswith(last)}
    experts = {}
    for name in [k for k in out if ".experts." in k]:
        head, _, number, part, _ = name.rsplit(".", 4)
        experts.setdefault(head + ".experts.", {}).setdefault(int(number), {})[part] = out.pop(name)
    for head, each in experts.items():
        each = [each[i] for i in range(len(each))]
        out[head + "gate_up_proj"] = torch.stack([torch.cat([e["gate_proj"], e["up_proj"]]) for e in each])
        out[head + "down_proj"] = torch.stack([e["down_proj"] for e in each])
    norm = next(t for k, t in tensors.items() if k.endswith("language_model.norm.weight"))
    width = len(norm)
    eye = torch.eye(width)
    out["mtp.fc.weight"] = torch.cat([0.6 * eye, eye], 1) + normal(seed, "fc", (width, 2 * width), 0.02)
    out["mtp.norm.weight"] = norm.clone()
    for name in ("embedding", "hidden"):
        out[f"mtp.pre_fc_norm_{name}.weight"] = normal(seed, name, (width,), 0.2) + width ** -0.5 - 1
    return {k: t.to(norm.dtype) for k, t in out.items()}


def fill_recurrent(seed, name, p, last, out):
    """Decays from almost none to almost all of a state in a token."""
    if last == "A_log":
        return normal(seed, name, p.shape, 1.2, -2.5)
    if last == "dt_bias":
        return normal(seed, name, p.shape, 0.5)
    if last == "norm":
        return normal(seed, name, p.shape, 0.2, 1.0)
    if last == "conv1d":
        return normal(seed, name, p.shape, 1.2 * p.shape[-1] ** -0.5)
    if last == "out_proj":
        return normal(seed, name, p.shape, 2.0 * out)
    return normal(seed, name, p.shape, 1.3 * p.shape[-1] ** -0.5)


def film(seed, width, height, frames):
    """u8 [frames, height, width, 3]: a picture that scrolls and darkens."""
    first = picture(seed, width, height).astype(np.float64)
    out = [np.roll(first, (3 * k, 5 * k), (0, 1)) * (1 - 0.12 * k) for k in range(frames)]
    return np.clip(np.rint(np.stack(out)), 0, 255).astype(np.uint8)
