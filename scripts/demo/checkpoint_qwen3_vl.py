"""What the Qwen3-VL demo checkpoint consists of besides trained numbers: tokenizer, chat template, processors, configuration, saving,
and the start from the Gemma 3 demo model."""

import json
import math
import os
import shutil

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (GenerationConfig, Qwen2Tokenizer, Qwen2VLImageProcessor, Qwen3VLConfig, Qwen3VLForConditionalGeneration,
                          Qwen3VLProcessor, Qwen3VLTextConfig, Qwen3VLVideoProcessor, Qwen3VLVisionConfig)

import checkpoint
import data_qwen3_vl as data
import shapes

WORDS = 800
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", data.START, data.END, data.PAD, "<|video_pad|>"]
KEPT = ["<tool_call>", "</tool_call>", "<think>", "</think>"]  # added tokens that stay in decoded text
# How Qwen's tokenizers cut text into words: part of their format, digits one by one.
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WHO = shapes.WHO.replace("Gemma 3", "Qwen3-VL")

CHAT_TEMPLATE = """{%- set seen = namespace(images=0, videos=0) %}
{%- macro body(content) %}
    {%- if content is string %}
        {{- content }}
    {%- else %}
        {%- for part in content %}
            {%- if part.type == 'image' or 'image' in part or 'image_url' in part %}
                {%- set seen.images = seen.images + 1 %}
                {%- if add_vision_id is defined and add_vision_id %}
                    {{- 'Picture ' ~ seen.images ~ ': ' }}
                {%- endif %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif part.type == 'video' or 'video' in part %}
                {%- set seen.videos = seen.videos + 1 %}
                {%- if add_vision_id is defined and add_vision_id %}
                    {{- 'Video ' ~ seen.videos ~ ': ' }}
                {%- endif %}
                {{- '<|vision_start|><|video_pad|><|vision_end|>' }}
            {%- elif 'text' in part %}
                {{- part.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- body(messages[0].content) ~ '\\n\\n' }}
    {%- endif %}
    {{- '# Tools\\n\\nThese functions can be called to help with the request. Each line is one function:\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' ~ (tool | tojson) }}
    {%- endfor %}
    {{- '\\n</tools>\\n\\nTo call one, answer with its name and arguments as JSON:\\n<tool_call>\\n{"name": NAME, "arguments": {...}}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' ~ body(messages[0].content) ~ '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<|im_start|>user\\n' ~ body(message.content) ~ '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set said = body(message.content) if message.content else '' %}
        {{- '<|im_start|>assistant\\n' ~ said }}
        {%- if message.tool_calls %}
            {%- for entry in message.tool_calls %}
                {%- set call = entry.function if entry.function else entry %}
                {%- if said or not loop.first %}
                    {{- '\\n' }}
                {%- endif %}
                {{- '<tool_call>\\n{"name": "' ~ call.name ~ '", "arguments": ' }}
                {{- call.arguments if call.arguments is string else call.arguments | tojson }}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' ~ body(message.content) ~ '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def build_tokenizer():
    """Byte-level BPE in the way of Qwen's tokenizers; the control tokens come last."""
    learner = Tokenizer(models.BPE())
    cut = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"),
                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    learner.pre_tokenizer = cut
    lines = [line.replace(shapes.WHO, WHO) for line in checkpoint.corpus()] + ["system", "user", "assistant"] * 100
    learner.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=WORDS, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                                                           show_progress=False, min_frequency=20))
    learnt = json.loads(learner.to_str())["model"]
    tokenizer = Qwen2Tokenizer(vocab=learnt["vocab"], merges=[tuple(m) for m in learnt["merges"]], model_max_length=4096,
                               eos_token="<|im_end|>", additional_special_tokens=CONTROL[1:])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in KEPT])
    return tokenizer


def build_processor(tokenizer):
    size = {"shortest_edge": data.AREA[0], "longest_edge": data.AREA[1]}
    same = {"patch_size": data.PATCH, "temporal_patch_size": 2, "merge_size": data.MERGE, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    return Qwen3VLProcessor(image_processor=Qwen2VLImageProcessor(size=size, **same), tokenizer=tokenizer,
                            video_processor=Qwen3VLVideoProcessor(size={"shortest_edge": 4 * data.AREA[0], "longest_edge": 64 * data.AREA[1]},
                                                                  **same), chat_template=CHAT_TEMPLATE)


def build_model(tokenizer):
    """A freshly initialised model; the random numbers come from torch's global generator."""
    ids = tokenizer.convert_tokens_to_ids
    text = Qwen3VLTextConfig(
        vocab_size=(len(tokenizer) + 63) // 64 * 64, hidden_size=160, intermediate_size=384, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=4096, bos_token_id=ids("<|endoftext|>"), eos_token_id=ids("<|im_end|>"),
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0, "mrope_section": [6, 5, 5], "mrope_interleaved": True})
    vision = Qwen3VLVisionConfig(
        depth=4, hidden_size=128, intermediate_size=384, num_heads=4, patch_size=data.PATCH, spatial_merge_size=data.MERGE,
        temporal_patch_size=2, out_hidden_size=160, num_position_embeddings=64, deepstack_visual_indexes=[0, 1, 2])
    config = Qwen3VLConfig(
        text_config=text, vision_config=vision, image_token_id=ids(data.PAD), video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids(data.START), vision_end_token_id=ids(data.END), tie_word_embeddings=True)
    model = Qwen3VLForConditionalGeneration(config)
    for name, p in model.named_parameters():
        if p.dim() >= 2 and "embed" not in name:
            torch.nn.init.normal_(p, std=0.06)
        elif name.endswith("embed_tokens.weight"):
            torch.nn.init.normal_(p, std=0.25)
    return model


def save(model, processor, folder):
    """Writes the checkpoint in bf16 in the released layout, file by file, so that no reader meets half a file."""
    copy = Qwen3VLForConditionalGeneration(model.config)
    copy.load_state_dict(model.state_dict())
    copy = copy.to(torch.bfloat16)
    copy.config.dtype = copy.config.text_config.dtype = copy.config.vision_config.dtype = "bfloat16"
    ids = processor.tokenizer.convert_tokens_to_ids
    copy.generation_config = GenerationConfig(do_sample=False, pad_token_id=ids("<|endoftext|>"), bos_token_id=ids("<|endoftext|>"),
                                              eos_token_id=[ids("<|im_end|>"), ids("<|endoftext|>")])
    new = folder.rstrip("/") + ".new"
    shutil.rmtree(new, ignore_errors=True)
    copy.save_pretrained(new)
    processor.save_pretrained(new)
    # In the released layout the picture settings have files of their own; transformers reads both forms.
    processor.image_processor.save_pretrained(new)
    processor.video_processor.save_pretrained(new)
    os.remove(os.path.join(new, "processor_config.json"))
    os.chmod(os.path.join(new, "model.safetensors"), 0o644)
    os.makedirs(folder, exist_ok=True)
    for name in sorted(os.listdir(new), key=lambda n: n.endswith(".safetensors")):
        os.replace(os.path.join(new, name), os.path.join(folder, name))
    os.rmdir(new)


# ---------------------------------------------------------------- the start from the Gemma 3 demo model

LOUDNESS = 0.5  # the residual stream is made quieter by this factor (louder here); norms hide it, and one learning rate fits all matrices


def _balance(first, second):
    """Moves a factor from one matrix to the next one behind it, so that both have entries of the same size."""
    ratio = (first.std() / second.std()).sqrt()
    first.div_(ratio)
    second.mul_(ratio)


def _turned(attention, heads):
    """Query and key rows of a SigLIP layer with the head's dimensions re-mixed so that the scores stay what they are, and so that those
    which matter least stand where the two-part rotation turns fastest. Returns weights and biases of q and k."""
    rows = {}
    out = [torch.empty_like(attention.q_proj.weight), torch.empty_like(attention.q_proj.bias),
           torch.empty_like(attention.k_proj.weight), torch.empty_like(attention.k_proj.bias)]
    size = attention.q_proj.weight.shape[0] // heads
    quarter = size // 4
    # Place j and j + size / 2 turn together; j = 0 (rows) and size / 4 (columns) turn fastest.
    order = [j for k in range(quarter) for j in (k, quarter + k, 2 * quarter + k, 3 * quarter + k)]
    for h in range(heads):
        part = slice(h * size, (h + 1) * size)
        q = torch.cat([attention.q_proj.weight[part], attention.q_proj.bias[part, None]], 1)
        k = torch.cat([attention.k_proj.weight[part], attention.k_proj.bias[part, None]], 1)
        u, s, v = torch.linalg.svd(q.T @ k)
        for rank, place in zip(range(size - 1, -1, -1), order):
            rows["q"], rows["k"] = u[:, rank] * s[rank].sqrt(), v[rank] * s[rank].sqrt()
            out[0][h * size + place], out[1][h * size + place] = rows["q"][:-1], rows["q"][-1]
            out[2][h * size + place], out[3][h * size + place] = rows["k"][:-1], rows["k"][-1]
    return out


def _loudness_of_parts(old, conversations):
    """For every layer the factors that stand best for the Gemma norms behind attention and MLP, over some token batches."""
    sums, hooks = {}, []
    for i, layer in enumerate(old.model.language_model.layers):
        for name in ("post_attention_layernorm", "post_feedforward_layernorm"):
            def look(module, inputs, key=(i, name)):
                rms = inputs[0].float().square().mean(-1).sqrt().flatten()
                one, two = sums.get(key, (0.0, 0.0))
                sums[key] = one + rms.sum().item(), two + rms.square().sum().item()
            hooks.append(getattr(layer, name).register_forward_pre_hook(look))
    hooks.append(old.model.multi_modal_projector.mm_soft_emb_norm.register_forward_pre_hook(
        lambda module, inputs: look(module, inputs, "pool")))
    with torch.no_grad():
        for inputs in conversations:
            old(**inputs)
    for hook in hooks:
        hook.remove()
    return {key: one / two for key, (one, two) in sums.items()}


@torch.no_grad()
def start_from_gemma(model, tokenizer, old, old_tokenizer, conversations):
    """Copies what fits from the Gemma 3 demo model: the tower (its blocks have the same form; the rotation is new), the pooling as a merger,
    and the text layers without their outer norms. conversations: inputs of the old model, to see how loud its layers are.
    What comes out is not the old model but close enough to save most of the training."""
    tower, visual = old.model.vision_tower, model.model.visual
    tower = getattr(tower, "vision_model", tower)
    patch = tower.embeddings.patch_embedding.weight / 2
    visual.patch_embed.proj.weight.copy_(torch.stack([patch, patch], 2))
    visual.patch_embed.proj.bias.copy_(tower.embeddings.patch_embedding.bias)
    visual.pos_embed.weight.copy_(tower.embeddings.position_embedding.weight)
    for new, was in zip(visual.blocks, tower.encoder.layers):
        for to, source in ((new.norm1, was.layer_norm1), (new.norm2, was.layer_norm2), (new.mlp.linear_fc1, was.mlp.fc1),
                           (new.mlp.linear_fc2, was.mlp.fc2), (new.attn.proj, was.self_attn.out_proj)):
            to.weight.copy_(source.weight)
            to.bias.copy_(source.bias)
        qw, qb, kw, kb = _turned(was.self_attn, model.config.vision_config.num_heads)
        new.attn.qkv.weight.copy_(torch.cat([qw, kw, was.self_attn.v_proj.weight]))
        new.attn.qkv.bias.copy_(torch.cat([qb, kb, was.self_attn.v_proj.bias]))
    # The merger as average and projection: gelu(z) - gelu(-z) = z.
    pool = old.model.multi_modal_projector
    loud = _loudness_of_parts(old, conversations)
    norm_in, scale = tower.post_layernorm, 3.0
    visual.merger.norm.weight.copy_(norm_in.weight)
    visual.merger.norm.bias.copy_(norm_in.bias)
    mixed = (pool.mm_input_projection_weight * (1 + pool.mm_soft_emb_norm.weight)[:, None]).T  # [160, 128]
    wide = mixed.repeat(1, 4) / 4 * scale
    width = mixed.shape[0]
    fc1, fc2 = visual.merger.linear_fc1, visual.merger.linear_fc2
    fc1.weight[:width], fc1.weight[width:2 * width] = wide, -wide
    fc1.bias.zero_()
    fc2.weight.zero_()
    fc2.weight[:, :width], fc2.weight[:, width:2 * width] = torch.eye(width), -torch.eye(width)
    fc2.weight.mul_(loud["pool"] / scale / LOUDNESS)
    fc2.bias.zero_()
    for tap in visual.deepstack_merger_list:
        tap.linear_fc2.weight.mul_(0.1)
        tap.linear_fc2.bias.zero_()
    text, before = model.model.language_model, old.model.language_model
    for i, (new, was) in enumerate(zip(text.layers, before.layers)):
        a, b = new.self_attn, was.self_attn
        for to, source in ((a.q_proj, b.q_proj), (a.k_proj, b.k_proj), (a.v_proj, b.v_proj)):
            to.weight.copy_(source.weight)
        for to, source in ((a.q_norm, b.q_norm), (a.k_norm, b.k_norm), (new.input_layernorm, was.input_layernorm),
                           (new.post_attention_layernorm, was.pre_feedforward_layernorm)):
            to.weight.copy_(1 + source.weight)
        outer = (1 + was.post_attention_layernorm.weight) * loud[i, "post_attention_layernorm"] / LOUDNESS
        a.o_proj.weight.copy_(outer[:, None] * b.o_proj.weight)
        outer = (1 + was.post_feedforward_layernorm.weight) * loud[i, "post_feedforward_layernorm"] / LOUDNESS
        steep = 1.702  # gelu(x) is close to silu(1.702 x) / 1.702
        new.mlp.gate_proj.weight.copy_(was.mlp.gate_proj.weight * steep)
        new.mlp.up_proj.weight.copy_(was.mlp.up_proj.weight / steep)
        new.mlp.down_proj.weight.copy_(outer[:, None] * was.mlp.down_proj.weight)
        _balance(a.v_proj.weight, a.o_proj.weight)
        _balance(new.mlp.up_proj.weight, new.mlp.down_proj.weight)
    factor = math.sqrt(before.config.hidden_size) / LOUDNESS
    text.norm.weight.copy_((1 + before.norm.weight) / factor)
    table, known = before.embed_tokens.weight * factor, old_tokenizer.get_vocab()
    names = {"<|im_start|>": "<start_of_turn>", "<|im_end|>": "<end_of_turn>", data.START: "<start_of_image>", data.END: "<end_of_image>",
             data.PAD: "<image_soft_token>", "<|endoftext|>": "<eos>", "assistant": "model"}
    for token, number in tokenizer.get_vocab().items():
        if token in names:
            parts = [known[names[token]]]
        elif token in KEPT or token in CONTROL:
            parts = []
        else:
            written = tokenizer.decode([number])
            own = written.replace(" ", "▁")
            parts = [known[own]] if own in known else old_tokenizer(written, add_special_tokens=False)["input_ids"]
        if parts:
            text.embed_tokens.weight[number] = table[parts].mean(0)
