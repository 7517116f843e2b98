"""What make_gemma4.py and make_gemma4_mtp.py build with: Gemma 4's tokens, chat template and seeded weights.
Nothing here knows which variants exist."""

import torch

import golden_parts as parts
from common import normal

HEAD = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>",
        "<|tool_response>", "<tool_response|>", '<|"|>', "<|think|>", "<|channel>", "<channel|>", "<|turn>",
        "<turn|>"]
TAIL = ["<|image>", "<|audio>", "<|image|>", "<|audio|>", "<image|>", "<audio|>", "<|video|>"]
MARKS = {"boi_token": "<|image>", "boa_token": "<|audio>", "image_token": "<|image|>",
         "audio_token": "<|audio|>", "eoi_token": "<image|>", "eoa_token": "<audio|>"}
VOCAB = 360

# The semantics of the newest public template of the release in our own words. Who writes one: bos; a system
# turn if there is a system message, a tool or thinking, `<|think|>\n` first, then its text, then a
# declaration a tool; user and model turns; text is trimmed, thoughts are cut out of what the model said; a
# picture is one token with nothing around it; reasoning is put back only behind the last user message; calls
# are followed by the results of the tool messages behind them, in the same model turn, and by a bare
# <|tool_response> if there are none; consecutive assistant messages share a turn. The larger releases (12B,
# 26B, 31B) open the answer with an empty thought when thinking is off, the smaller ones (E2B, E4B) do not:
# @STUB@. Not in here: `preserve_thinking`, tool messages with pictures, results that stand in the
# assistant's own message (`tool_responses`), a declared `response` of a function.
_TEMPLATE = """{%- macro value(v) -%}
    {%- if v is none -%}null
    {%- elif v is string -%}{{ '<|"|>' + v + '<|"|>' }}
    {%- elif v is boolean -%}{{ 'true' if v else 'false' }}
    {%- elif v is mapping -%}
        {{ '{' }}
        {%- for key, item in v | dictsort -%}
            {{- (',' if not loop.first else '') + key + ':' + value(item) -}}
        {%- endfor -%}
        {{ '}' }}
    {%- elif v is sequence -%}
        {{ '[' }}
        {%- for item in v -%}{{ (',' if not loop.first else '') + value(item) }}{%- endfor -%}
        {{ ']' }}
    {%- else -%}{{ v }}
    {%- endif -%}
{%- endmacro -%}
{%- macro element(e) -%}
    {%- for key, item in e | dictsort -%}
        {%- if item is not none -%}
            {{- ',' if not loop.first else '' -}}
            {%- if key == 'properties' -%}{{ 'properties:{' + fields(item) + '}' }}
            {%- elif key == 'type' -%}{{ 'type:' + value(item | upper) }}
            {%- else -%}{{ key + ':' + value(item) }}
            {%- endif -%}
        {%- endif -%}
    {%- endfor -%}
{%- endmacro -%}
{%- macro fields(all) -%}
    {%- for name, f in all | dictsort -%}
        {%- set kind = f['type'] | upper -%}
        {{- (',' if not loop.first else '') + name + ':{' -}}
        {%- if f['description'] -%}{{ 'description:' + value(f['description']) + ',' }}{%- endif -%}
        {%- if kind == 'STRING' and f['enum'] -%}{{ 'enum:' + value(f['enum']) + ',' }}{%- endif -%}
        {%- if kind == 'ARRAY' and f['items'] -%}{{ 'items:{' + element(f['items']) + '},' }}{%- endif -%}
        {%- if f['nullable'] -%}{{ 'nullable:true,' }}{%- endif -%}
        {%- if kind == 'OBJECT' and f['properties'] -%}
            {{- 'properties:{' + fields(f['properties']) + '},' -}}
            {%- if f['required'] -%}{{ 'required:' + value(f['required']) + ',' }}{%- endif -%}
        {%- endif -%}
        {{- 'type:' + value(kind) + '}' -}}
    {%- endfor -%}
{%- endmacro -%}
{%- macro said(text, own) -%}
    {%- if own -%}
        {%- set kept = namespace(text='') -%}
        {%- for piece in text.split('<channel|>') -%}
            {%- set kept.text = kept.text + piece.split('<|channel>')[0] -%}
        {%- endfor -%}
        {{- kept.text | trim -}}
    {%- else -%}
        {{- text | trim -}}
    {%- endif -%}
{%- endmacro -%}
{%- set thinking = enable_thinking | default(false) -%}
{%- set turns = messages -%}
{{- bos_token -}}
{%- if thinking or tools or messages[0]['role'] in ['system', 'developer'] -%}
    {{- '<|turn>system\\n' -}}
    {%- if thinking -%}{{ '<|think|>\\n' }}{%- endif -%}
    {%- if messages[0]['role'] in ['system', 'developer'] -%}
        {%- if messages[0]['content'] is string -%}
            {{- messages[0]['content'] | trim -}}
        {%- else -%}
            {%- for part in messages[0]['content'] -%}{{ part['text'] | trim + ' ' }}{%- endfor -%}
        {%- endif -%}
        {%- set turns = messages[1:] -%}
    {%- endif -%}
    {%- for tool in tools or [] -%}
        {%- set f = tool['function'] -%}
        {{- '<|tool>declaration:' + f['name'] + '{description:' + value(f['description']) -}}
        {%- if f['parameters'] -%}
            {{- ',parameters:{' -}}
            {%- if f['parameters']['properties'] -%}
                {{- 'properties:{' + fields(f['parameters']['properties']) + '},' -}}
            {%- endif -%}
            {%- if f['parameters']['required'] -%}
                {{- 'required:' + value(f['parameters']['required']) + ',' -}}
            {%- endif -%}
            {{- 'type:' + value(f['parameters']['type'] | upper) + '}' -}}
        {%- endif -%}
        {{- '}<tool|>' -}}
    {%- endfor -%}
    {{- '<turn|>\\n' -}}
{%- endif -%}
{%- set at = namespace(user=-1, before='', last='') -%}
{%- for turn in turns -%}
    {%- if turn['role'] == 'user' -%}{%- set at.user = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for turn in turns -%}
    {%- if turn['role'] != 'tool' -%}
        {%- set own = turn['role'] == 'assistant' -%}
        {%- set here = loop.index0 -%}
        {%- set calls = turn['tool_calls'] or [] -%}
        {%- set at.last = 'text' -%}
        {%- if not (own and at.before == 'assistant') -%}
            {{- '<|turn>' + ('model' if own else turn['role']) + '\\n' -}}
        {%- endif -%}
        {%- set thought = turn['reasoning'] or turn['reasoning_content'] -%}
        {%- if thought and here > at.user -%}
            {{- '<|channel>thought\\n' + thought + '\\n<channel|>' -}}
        {%- endif -%}
        {%- for call in calls -%}
            {%- set at.last = 'call' -%}
            {%- if call['function']['arguments'] is mapping -%}
                {{- '<|tool_call>call:' + call['function']['name'] + value(call['function']['arguments']) -}}
            {%- else -%}
                {{- '<|tool_call>call:' + call['function']['name'] + '{' -}}
                {{- call['function']['arguments'] or '' -}}
                {{- '}' -}}
            {%- endif -%}
            {{- '<tool_call|>' -}}
        {%- endfor -%}
        {%- set next = namespace(role='', stopped=false) -%}
        {%- for other in turns[here + 1:] -%}
            {%- if other['role'] != 'tool' -%}
                {%- if not next.role -%}{%- set next.role = other['role'] -%}{%- endif -%}
                {%- set next.stopped = true -%}
            {%- elif calls and not next.stopped -%}
                {%- set name = namespace(of=other['name'] or 'unknown') -%}
                {%- for call in calls -%}
                    {%- if call['id'] == other['tool_call_id'] -%}
                        {%- set name.of = call['function']['name'] -%}
                    {%- endif -%}
                {%- endfor -%}
                {{- '<|tool_response>response:' + name.of -}}
                {%- if other['content'] is mapping -%}
                    {{- value(other['content']) -}}
                {%- elif other['content'] is string -%}
                    {{- '{value:' + value(other['content']) + '}' -}}
                {%- else -%}
                    {%- set all = namespace(text='') -%}
                    {%- for part in other['content'] -%}
                        {%- set all.text = all.text + part['text'] -%}
                    {%- endfor -%}
                    {{- '{value:' + value(all.text) + '}' -}}
                {%- endif -%}
                {{- '<tool_response|>' -}}
                {%- set at.last = 'response' -%}
            {%- endif -%}
        {%- endfor -%}
        {%- set has = namespace(text=false) -%}
        {%- if turn['content'] is string -%}
            {%- if said(turn['content'], own) -%}{%- set has.text = true -%}{%- endif -%}
            {{- said(turn['content'], own) -}}
        {%- else -%}
            {%- for part in turn['content'] or [] -%}
                {%- set has.text = true -%}
                {%- if part['type'] == 'text' -%}{{ said(part['text'], own) }}
                {%- elif part['type'] in ['image', 'image_url'] -%}{{ '<|image|>' }}
                {%- elif part['type'] == 'video' -%}{{ '<|video|>' }}
                {%- elif part['type'] in ['audio', 'input_audio'] -%}{{ '<|audio|>' }}
                {%- endif -%}
            {%- endfor -%}
        {%- endif -%}
        {%- if at.last == 'call' -%}
            {{- '<|tool_response>' -}}
        {%- elif own and next.role == 'assistant' -%}
        {%- elif not (at.last == 'response' and not has.text and not next.role) -%}
            {{- '<turn|>\\n' -}}
        {%- endif -%}
        {%- set at.before = turn['role'] -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {%- if at.last not in ['call', 'response'] -%}
        {{- '<|turn>model\\n' -}}
        {%- if not thinking -%}{{ '@STUB@' }}{%- endif -%}
    {%- elif at.last == 'response' and thinking -%}
        {{- '<|channel>thought\\n' -}}
    {%- endif -%}
{%- endif -%}
"""
TEMPLATES = {"small": _TEMPLATE.replace("@STUB@", ""),
             "large": _TEMPLATE.replace("@STUB@", "<|channel>thought\\n<channel|>")}

TOKENIZER_CONFIG = {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "add_eos_token": False,
                    "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>",
                    "mask_token": "<mask>", "clean_up_tokenization_spaces": False,
                    "spaces_between_special_tokens": False, "model_max_length": 4096,
                    "extra_special_tokens": MARKS, "processor_class": "Gemma4Processor", **MARKS}

_data = []


def tokenizer_data():
    if not _data:
        _data.append(parts.tokenizer_json(HEAD, TAIL, {}, VOCAB, chars=44))
    return _data[0]


def token_ids():
    return tokenizer_data()["model"]["vocab"]


def write_tokenizer(folder):
    parts.write_tokenizer(folder, tokenizer_data(), TOKENIZER_CONFIG)


@torch.no_grad()
def fill(model, seed, head=2.6, scores=1.4, mix=0.65, router=2.2, clamp=1.3, unclamped=()):
    """Weights that make the model react. There is no 1+w in any norm and no scale in the scores, so that
    `scores` (their spread) decides the sizes of q_norm and k_norm; every block adds `mix` times a unit
    vector to the stream; `router` is the spread of the experts' scores; `clamp` the bound of clipped
    linears, which bites. layer_scalar and the standardizer are far from neutral. The final norm's factors
    have random signs: otherwise a tied head answers every token with the token itself."""
    tensors = dict(model.named_parameters())
    tensors |= {k: t for k, t in model.named_buffers() if k in model.state_dict()}
    for name, p in tensors.items():
        part = name.split(".")
        last = part[-2] if part[-1] in ("weight", "bias") else part[-1]
        if last == "linear":
            last = part[-3]
        fan = p.shape[-1] ** -0.5 if p.dim() else 1.0
        if name.endswith("bias") and last != "std_bias":
            w = normal(seed, name, p.shape, 0.2)
        elif last in ("embed_tokens", "lm_head", "embed_tokens_per_layer"):
            width = (
                p.shape[1] if last != "embed_tokens_per_layer"
                else model.config.get_text_config().hidden_size_per_layer_input)
            w = normal(seed, name, p.shape, width**-0.5)
        elif last in ("q_norm", "k_norm"):
            size = (scores * p.shape[0] ** -0.5) ** 0.5
            w = normal(seed, name, p.shape, 0.2 * size, size)
        elif last == "norm":
            w = (head + normal(seed, name, p.shape, 0.15)) * torch.sign(
                normal(seed, name + " sign", p.shape, 1.0))
        elif last.startswith("post_") and "norm" in last:
            w = normal(seed, name, p.shape, 0.2, mix)
        elif "norm" in last or last in ("patch_ln1", "patch_ln2"):
            w = normal(seed, name, p.shape, 0.2, 1.0)
        elif last == "layer_scalar":
            w = normal(seed, name, p.shape, 0.15, 0.8)
        elif last in ("std_bias", "std_scale"):
            w = normal(seed, name, p.shape, 0.5, 0.4 if last == "std_bias" else 1.0)
        elif last in ("input_min", "input_max", "output_min", "output_max"):
            w = torch.full(
                p.shape, (-1 if last.endswith("min") else 1) * (clamp + normal(seed, name, (1,), 0.2).item()))
            if any(u in name for u in unclamped):
                w = w.sign() * float("inf")
        elif last in ("scale", "per_expert_scale"):
            w = normal(seed, name, p.shape, 0.3, 1.0)
        elif part[-3:-1] == ["router", "proj"]:
            w = normal(seed, name, p.shape, router)
        elif last == "per_layer_model_projection":
            w = normal(seed, name, p.shape, 1.0)
        elif last in ("position_embedding_table", "pos_embedding"):
            w = normal(seed, name, p.shape, 0.6)
        elif last in ("input_proj", "patch_dense", "embedding_projection", "pre_projection",
                      "post_projection"):
            w = normal(seed, name, p.shape, 1.8 * fan)
        elif last in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
                      "gate_up_proj", "per_layer_input_gate", "per_layer_projection", "centroids"):
            w = normal(seed, name, p.shape, 1.4 * fan)
        elif last == "token_ordering":
            w = torch.randperm(p.shape[0], generator=torch.Generator().manual_seed(seed))
        else:
            raise ValueError(f"no rule for {name} {tuple(p.shape)}")
        p.copy_(w)
    model.tie_weights()
