"""What the demo checkpoint consists of besides trained numbers: tokenizer, chat template, processor, configuration, saving."""

import json
import os
import random

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (Gemma3Config, Gemma3ForConditionalGeneration, Gemma3ImageProcessor, Gemma3Processor, Gemma3TextConfig,
                          GenerationConfig, PreTrainedTokenizerFast, SiglipVisionConfig)

import shapes

IMAGE_SIZE = 96
PATCH_SIZE = 12
SOFT_TOKENS = 16
WINDOW = 12
WORDS = 600
CONTROL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"]
IMAGE_TOKENS = ["<start_of_image>", "<end_of_image>", "<image_soft_token>"]

CHAT_TEMPLATE = """{{- bos_token -}}
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
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') -}}
    {%- endif -%}
    {{- '<start_of_turn>' + ('model' if turn['role'] == 'assistant' else turn['role']) + '\\n' -}}
    {%- if loop.first -%}{{- lead -}}{%- endif -%}
    {%- if turn['content'] is string -%}
        {{- turn['content'] | trim -}}
    {%- elif turn['content'] is iterable -%}
        {%- for part in turn['content'] -%}
            {%- if part['type'] == 'image' -%}
                {{- '<start_of_image>' -}}
            {%- elif part['type'] == 'text' -%}
                {{- part['text'] | trim -}}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{- raise_exception('Invalid content type') -}}
    {%- endif -%}
    {{- '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<start_of_turn>model\\n' -}}
{%- endif -%}
"""


def corpus():
    """The text that the vocabulary is learnt from: questions and answers of the generator, and the fixed sentences."""
    rng = random.Random("corpus")
    lines = []
    for _ in range(6000):
        a, b = shapes.make_scene(rng, rng.choice((1, 2, 3))), shapes.make_scene(rng, 1)
        for _, question, answer in shapes.single_questions(rng, a) + shapes.pair_questions(rng, a, b, rng.random() < 0.5):
            lines += [question, answer]
        lines.append(shapes.ordinal_questions(rng, (a, b), rng.randrange(2))[1])
    for questions, answer in shapes.SMALL_TALK:
        lines += (list(questions) + [q.lower() for q in questions] + [answer]) * 30
    lines += list(shapes.SYSTEMS) * 30 + [shapes.NO_PICTURE] * 30 + ["user", "model"] * 100
    return lines


def build_tokenizer():
    """BPE with byte fallback in the way of the Gemma tokenizer: spaces become "▁", runs of newlines are words."""
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split("▁", "merged_with_next"), pre_tokenizers.Split(Regex(r"[^\p{L}▁]"), "isolated")])
    alphabet = [chr(c) for c in range(33, 127)] + ["▁"]
    learner.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=WORDS, initial_alphabet=alphabet, show_progress=False,
                                                               min_frequency=20))
    learnt = json.loads(learner.to_str())["model"]
    newlines = ["\n" * n for n in range(1, 5)]
    tokens = CONTROL + newlines + [f"<0x{b:02X}>" for b in range(256)]
    tokens += [t for t, _ in sorted(learnt["vocab"].items(), key=lambda item: item[1])] + IMAGE_TOKENS
    assert len(tokens) == len(set(tokens))
    merges = [("\n", "\n"), ("\n\n", "\n\n"), ("\n\n", "\n"), ("\n", "\n\n")]
    merges += [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in learnt["merges"]]
    vocab = {t: i for i, t in enumerate(tokens)}
    core = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    core.normalizer = normalizers.Replace(" ", "▁")
    core.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    core.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in CONTROL + IMAGE_TOKENS])
    from tokenizers.processors import TemplateProcessing
    core.post_processor = TemplateProcessing(single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", vocab["<bos>"])])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>", mask_token="<mask>",
        padding_side="left", model_max_length=4096, clean_up_tokenization_spaces=False,
        extra_special_tokens={"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"})


def build_processor(tokenizer):
    image_processor = Gemma3ImageProcessor(size={"height": IMAGE_SIZE, "width": IMAGE_SIZE}, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    return Gemma3Processor(image_processor=image_processor, tokenizer=tokenizer, chat_template=CHAT_TEMPLATE,
                           image_seq_length=SOFT_TOKENS)


def build_model(tokenizer):
    """A freshly initialised model; the random numbers come from torch's global generator."""
    ids = tokenizer.convert_tokens_to_ids
    vocab_size = (len(tokenizer) + 63) // 64 * 64
    text = Gemma3TextConfig(
        vocab_size=vocab_size, hidden_size=160, intermediate_size=384, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, query_pre_attn_scalar=32, sliding_window=WINDOW, max_position_embeddings=4096,
        layer_types=["sliding_attention", "full_attention"] * 3, pad_token_id=0, eos_token_id=1, bos_token_id=2,
        rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 100000.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}})
    vision = SiglipVisionConfig(hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
                                image_size=IMAGE_SIZE, patch_size=PATCH_SIZE, vision_use_head=False)
    config = Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=SOFT_TOKENS, boi_token_index=ids("<start_of_image>"),
        eoi_token_index=ids("<end_of_image>"), image_token_index=ids("<image_soft_token>"), eos_token_id=[1, ids("<end_of_turn>")])
    model = Gemma3ForConditionalGeneration(config)
    for name, p in model.named_parameters():
        if name.endswith("mm_input_projection_weight") or (p.dim() == 2 and "embed" not in name and "position" not in name):
            torch.nn.init.normal_(p, std=0.06)
    with torch.no_grad():  # let the tokens be louder than the layers at first: a small model finds its way much sooner
        for name, p in model.named_parameters():
            if name.endswith("embed_tokens.weight"):
                p.mul_(4)
            elif "post_attention_layernorm" in name or "post_feedforward_layernorm" in name:
                p.fill_(-0.75)
    return model


def save(model, processor, folder):
    """Writes the checkpoint in bf16 in the released layout; the model in memory stays as it is."""
    os.makedirs(folder, exist_ok=True)
    copy = Gemma3ForConditionalGeneration(model.config)
    copy.load_state_dict(model.state_dict())
    copy = copy.to(torch.bfloat16)
    copy.config.dtype = "bfloat16"
    stop = processor.tokenizer.convert_tokens_to_ids("<end_of_turn>")
    copy.generation_config = GenerationConfig(do_sample=False, pad_token_id=0, bos_token_id=2, eos_token_id=[1, stop])
    copy.save_pretrained(folder)
    processor.save_pretrained(folder)
