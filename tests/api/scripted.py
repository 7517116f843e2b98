"""A checkpoint with scripted output: a chain over tokens, for tests of how the server handles a model's text.

Embeddings are random signs, attention and MLP add nothing, and the row of the head of token B is the embedding of the token A that B follows:
so the greedy successor of A is B, whatever came before. Texts are cut into tokens that occur nowhere else; a text is chosen by the last token
of the prompt, "<<NAME>>", which the template writes from chat_template_kwargs.script. Standard library only."""
import json
import os
import random
import struct

HIDDEN = 256
ENDS = 8  # end tokens: a row of the head that many chains end in would be no clear winner for any

# The form of Qwen's templates: tools in the system turn, Hermes calls, results as a user turn, reasoning of the last answer kept.
TEMPLATE = """{%- if tools %}{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- 'You may call functions.\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\\n</tools>\\nWrite a call as\\n<tool_call>\\n{"name": <name>, "arguments": <object>}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- for m in messages %}
{%- if m.role == 'user' %}{{- '<|im_start|>user\\n' + m.content + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}{{- '<|im_start|>assistant\\n' }}
{%- if m.reasoning_content %}{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}
{{- m.content }}
{%- for call in m.tool_calls %}
{%- if not loop.first or m.content %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
{%- if script == 'inside' %}{{- '<think>' }}{%- elif script %}{{- '<<' + script + '>>' }}{%- endif %}
{%- if enable_thinking is defined %}{{- '[thinking ' ~ enable_thinking ~ ']' }}{%- endif %}"""

# The same with a tag for every parameter, as Qwen3-Coder's template has it.
TAGS_TEMPLATE = TEMPLATE.replace('{"name": <name>, "arguments": <object>}', "<function=name>\\n<parameter=name>\\nvalue\\n</parameter>\\n</function>").replace(
    """{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}""",
    """{{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}
{%- for name, value in call.function.arguments | items %}
{{- '<parameter=' + name + '>\\n' }}{{- value | tojson if value is mapping or (value is sequence and value is not string) else value | string }}{{- '\\n</parameter>\\n' }}
{%- endfor %}{{- '</function>\\n</tool_call>' }}""")
assert "<parameter=' + name" in TAGS_TEMPLATE and "</parameter>\\n</function>" in TAGS_TEMPLATE


def byte_names():
    """The printable stand-ins of byte-level BPE for the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names, extra = {}, 0
    for b in range(256):
        if b in plain:
            names[b] = chr(b)
        else:
            names[b] = chr(256 + extra)
            extra += 1
    return names


def cut(text, used, rng):
    """text as tokens of a few bytes, also within characters, none of which is in `used`."""
    data, tokens, at = text.encode(), [], 0
    while at < len(data):
        n = rng.randrange(2, 7)
        while at + n < len(data) and data[at:at + n] in used:
            n += 1
        if len(data) - at - n < 8:  # the rest must be new too
            n = len(data) - at
        piece = data[at:at + n]
        while piece in used:  # an end that another text has too
            piece = tokens.pop() + piece
        used.add(piece)
        tokens.append(piece)
        at += n
    return tokens


def write(folder, scripts, tags_special=False, template=TEMPLATE):
    """scripts: name -> text, or the list of its tokens. A text may hold "{TAG}" for the one-token <tool_call> (one script of all), "inside" begins behind a <think> of the prompt."""
    rng, names = random.Random(7), byte_names()
    vocab = {names[b]: b for b in range(256)}
    used = {bytes([b]) for b in range(256)}
    added = [("<pad>", True), ("<|im_start|>", True), ("<|im_end|>", True), ("<tool_call>", tags_special), ("</tool_call>", tags_special),
             ("<think>", tags_special), ("</think>", tags_special)] + [(f"<|end_{k}|>", True) for k in range(ENDS)] + [(f"<<{name}>>", False) for name in scripts if name != "inside"]
    used |= {content.encode() for content, _ in added}
    chains = []
    for name, text in scripts.items():
        start = "<think>" if name == "inside" else f"<<{name}>>"
        chain = [start]
        if isinstance(text, list):
            assert used.isdisjoint(t.encode() for t in text)
            used |= {t.encode() for t in text}
            chain += [t.encode() for t in text]
        else:
            for i, part in enumerate(text.split("{TAG}")):
                chain += (["<tool_call>"] if i else []) + cut(part, used, rng)
        chains.append(chain + [f"<|end_{len(chains) % ENDS}|>"])
    for chain in chains:
        for piece in chain:
            if isinstance(piece, bytes):
                vocab["".join(names[b] for b in piece)] = len(vocab)
    ids = {content: len(vocab) + i for i, (content, _) in enumerate(added)}
    size = len(vocab) + len(added)
    after = {}
    for chain in chains:
        chain = [ids[p] if isinstance(p, str) else vocab["".join(names[b] for b in p)] for p in chain]
        for a, b in zip(chain, chain[1:]):
            assert a not in after
            after[a] = b
    os.makedirs(folder, exist_ok=True)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    dump(folder, "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [{"id": ids[c], "content": c, **flags, "special": s} for c, s in added],
        "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
                  "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": []}})
    dump(folder, "tokenizer_config.json", {"eos_token": "<|im_end|>", "pad_token": "<pad>", "chat_template": template})
    end = [ids["<|im_end|>"]] + [ids[f"<|end_{k}|>"] for k in range(ENDS)]
    dump(folder, "config.json", {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "dtype": "float32", "vocab_size": size, "hidden_size": HIDDEN,
        "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "query_pre_attn_scalar": 16,
        "layer_types": ["full_attention"], "sliding_window": 512, "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False, "tie_word_embeddings": False, "pad_token_id": ids["<pad>"], "bos_token_id": None, "eos_token_id": end,
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6}, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}})
    dump(folder, "generation_config.json", {"eos_token_id": end, "do_sample": False})
    rows = [[1.0 if rng.getrandbits(1) else -1.0 for _ in range(HIDDEN)] for _ in range(size)]
    head = [[0.0] * HIDDEN for _ in range(size)]
    for a, b in after.items():
        head[b] = [x + y for x, y in zip(head[b], rows[a])]
    layer = "model.layers.0."
    shapes = {layer + "self_attn.q_proj.weight": (32, HIDDEN), layer + "self_attn.k_proj.weight": (16, HIDDEN), layer + "self_attn.v_proj.weight": (16, HIDDEN),
              layer + "self_attn.o_proj.weight": (HIDDEN, 32), layer + "mlp.gate_proj.weight": (32, HIDDEN), layer + "mlp.up_proj.weight": (32, HIDDEN),
              layer + "mlp.down_proj.weight": (HIDDEN, 32), layer + "self_attn.q_norm.weight": (16,), layer + "self_attn.k_norm.weight": (16,)}
    for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
        shapes[layer + norm + "_layernorm.weight"] = (HIDDEN,)
    shapes["model.norm.weight"] = (HIDDEN,)
    tensors = {"model.embed_tokens.weight": ((size, HIDDEN), pack(rows)), "lm_head.weight": ((size, HIDDEN), pack(head))}
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        tensors[name] = (shape, bytes(4 * count))  # zeros: a norm's weight w stands for 1 + w
    header, at = {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values()))
    return ids


def dump(folder, name, value):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        json.dump(value, f)


def pack(rows):
    return b"".join(struct.pack(f"<{len(r)}f", *r) for r in rows)
