"""What variants and cases make_gemma4.py makes."""

from make_gemma4_parts import VOCAB

S, F = "sliding_attention", "full_attention"
LONG = "The ferry left the harbour a little after six, when the fog was still lying on the water."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "tide", "description": "Height of the tide",
            "parameters": {
                "type": "object", "required": ["port"],
                "properties": {"port": {"type": "string", "description": "Where"},
                               "unit": {"type": "string", "enum": ["m", "ft"]},
                               "days": {"type": "array", "items": {"type": "integer"}, "nullable": True}}}}}]


def image(k):
    return {"type": "image", "index": k}


def video(k):
    return {"type": "video", "index": k}


def text(t):
    return {"type": "text", "text": t}


def call(name, **arguments):
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


def chat(*messages, pictures=(), films=(), note="", **template):
    roles = {"u": "user", "a": "assistant", "s": "system"}
    shaped = [m if isinstance(m, dict) else {"role": roles[m[0]], "content": m[1]} for m in messages]
    return {"kind": "chat", "note": note, "pictures": list(pictures), "films": list(films),
            "messages": shaped, "template": template}


def raw(prompt, note=""):
    return {"kind": "raw", "note": note, "pictures": [], "films": [], "prompt": prompt, "template": {}}


def rope(partial=0.25, theta=5e3, **more):
    return {S: {"rope_type": "default", "rope_theta": 1e3},
            F: {"rope_type": "proportional", "partial_rotary_factor": partial, "rope_theta": theta} | more}


def cfg(**over):
    base = (
        dict(vocab_size=VOCAB, vocab_size_per_layer_input=VOCAB, hidden_size=32, intermediate_size=40,
             num_attention_heads=2, num_key_value_heads=1, head_dim=12, global_head_dim=24, sliding_window=11,
             layer_types=[S, S, F], hidden_size_per_layer_input=0, final_logit_softcapping=12.0,
             max_position_embeddings=2048, rope_parameters=rope())
        | over)
    if base["layer_types"]:
        base["num_hidden_layers"] = len(base["layer_types"])
    return base


def e2b(**over):
    return cfg(
        **dict(hidden_size_per_layer_input=6, num_kv_shared_layers=3, use_double_wide_mlp=True,
               intermediate_size=28, layer_types=[S, S, F, S, S, F])
        | over)


def moe(**over):
    return cfg(
        **dict(enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=10,
               intermediate_size=24, attention_k_eq_v=True, num_attention_heads=4, num_key_value_heads=2,
               num_global_key_value_heads=1, layer_types=[S, F])
        | over)


def unified(**over):
    out = cfg(
        **dict(attention_k_eq_v=True, num_attention_heads=4, num_key_value_heads=2,
               num_global_key_value_heads=1, use_bidirectional_attention="vision", sliding_window=25,
               layer_types=[S, F])
        | over)
    for key in ("hidden_size_per_layer_input", "vocab_size_per_layer_input"):
        out.pop(key)
    return out


def tower(**over):
    return (
        dict(hidden_size=24, intermediate_size=28, num_hidden_layers=2, num_attention_heads=2,
             num_key_value_heads=2, head_dim=12, patch_size=2, pooling_kernel_size=3,
             position_embedding_size=144)
        | over)


GENTLE = dict(head=1.5, scores=0.9, mix=0.35)
ASKED = chat(("s", "Be brief. "), ("u", "How high?"),
             dict(role="assistant", content="", tool_calls=[call("tide", port="Oban", days=[1, 2])]),
             dict(role="tool", tool_call_id="c1", content="2.5"), tools=TOOLS,
             note="a declaration, a call and its result: the model goes on in its turn")

VARIANTS = {
    "dense_f32": dict(
        family="gemma4", seed=100, template="small", text=cfg(num_attention_heads=3, hidden_size=34),
        cases=[
            raw(
                LONG, "longer than the window of 11; 3 heads of 12 and 24, one KV head, 3 of 12 pairs rotate"
            ),
            chat(("u", " Who counted? "), ("a", "<|channel>thought\nshe<channel|>She did.\n"),
                 ("u", "Ten?\n\n\nTwo?"), note="a thought in history is cut out"),
            raw("  x\n\t日本 🙃 ü", "byte fallback, runs of spaces")]),
    "untied_f32": dict(
        family="gemma4", seed=200, template="large", spelling="released",
        text=cfg(tie_word_embeddings=False, hidden_size=28, num_key_value_heads=2,
                 final_logit_softcapping=None, attention_bias=True, rms_norm_eps=1e-5, layer_types=[F, S, F],
                 rope_parameters=rope(0.5, factor=4.0)),
        cases=[raw(LONG[:50], "lm_head of its own, biases, no cap, proportional factor 4, layer 0 full"),
               chat(("u", "Who?"), note="thinking off: an empty thought opens the answer")]),
    "e2b_f32": dict(
        family="gemma4", seed=300, template="small", text=e2b(), distinct=5, gains=dict(scores=1.2, mix=0.5),
        cases=[
            raw(LONG,
                "per-layer embeddings of 6, layers 3 to 5 take the keys of 1 and 2, their MLPs are double"),
            ASKED, chat(("u", "Why?"), enable_thinking=True, note="thinking: a system turn of its own")]),
    "e4b_released_f32": dict(
        family="gemma4", seed=400, template="small", spelling="released", distinct=5,
        gains=dict(scores=1.1, mix=0.5),
        text=e2b(use_double_wide_mlp=False, num_attention_heads=4, num_key_value_heads=2, head_dim=10,
                 global_head_dim=20, hidden_size_per_layer_input=5, num_kv_shared_layers=2, hidden_size=30,
                 layer_types=[S, F, S, F, S, F], intermediate_size=36),
        cases=[raw(LONG[:70], "2 KV heads of 10 and 20; layer 4 takes the keys of 2, layer 5 those of 3"),
               chat(("s", [text("One."), text("Two.")]), ("u", "Go on"), enable_thinking=True)]),
    "moe_f32": dict(
        family="gemma4", seed=500, template="large", text=moe(), distinct=5,
        cases=[raw(LONG, "6 experts of 10, two of them a token; keys are values in the full layer"), ASKED]),
    "moe_released_f32": dict(
        family="gemma4", seed=600, template="large", spelling="released", distinct=5,
        text=moe(num_experts=5, top_k_experts=3, moe_intermediate_size=7, head_dim=10, global_head_dim=20,
                 hidden_size=30, num_attention_heads=6, num_key_value_heads=3, num_global_key_value_heads=2,
                 layer_types=[S, S, F]),
        cases=[raw(LONG[:60], "three of five experts of 7; 3 KV heads of 10, 2 of 20"), chat(("u", "Why?"))]),
    "keqv_f32": dict(
        family="gemma4", seed=700, template="large", spelling="released",
        text=cfg(attention_k_eq_v=True, num_attention_heads=6, num_key_value_heads=3,
                 num_global_key_value_heads=2, head_dim=10, global_head_dim=28, hidden_size=30,
                 sliding_window=7),
        cases=[
            raw(LONG, "window 7; in full layers keys are values, 2 KV heads of 28, 3 of 14 pairs rotate"),
            ASKED,
            chat(
                ("u", "Why?"), ("a", "So."), ("a", "And so."), ("u", "Yes?"), note="two answers share a turn"
            )]),
    "missing_keys_f32": dict(
        family="gemma4",
        seed=800,
        template="small",
        spelling="released",
        text=cfg(
            hidden_size=12,
            head_dim=256,
            global_head_dim=512,
            layer_types=None,
            num_hidden_layers=2,
            rope_parameters=None,
            final_logit_softcapping=None,
            sliding_window=9,
        ),
        drop=[
            "head_dim",
            "global_head_dim",
            "num_global_key_value_heads",
            "layer_types",
            "rope_parameters",
            "hidden_activation",
            "rms_norm_eps",
            "attention_bias",
            "attention_k_eq_v",
            "num_kv_shared_layers",
            "use_double_wide_mlp",
            "enable_moe_block",
            "num_experts",
            "top_k_experts",
            "moe_intermediate_size",
            "final_logit_softcapping",
            "use_bidirectional_attention",
            "pad_token_id",
            "bos_token_id",
            "max_position_embeddings",
            "tie_word_embeddings",
            "vocab_size_per_layer_input",
        ],
        cases=[
            raw(LONG[:60], "head sizes 256 and 512, rotary, S F (the last is always full), eps: by absence")
        ],
    ),
    "text_bf16": dict(
        family="gemma4", seed=900, dtype="bfloat16", distinct=5, template="large", gains=GENTLE, margin=0.01,
        text=cfg(attention_k_eq_v=True, num_attention_heads=4, num_key_value_heads=2,
                 num_global_key_value_heads=1, hidden_size=40, layer_types=[S, F]),
        cases=[raw(LONG[:60], "sqrt(40) is not exact in bf16"), chat(("u", "Why?"))]),
    "e2b_bf16": dict(
        family="gemma4", seed=1000, dtype="bfloat16", distinct=5, template="small", gains=GENTLE, margin=0.01,
        text=e2b(layer_types=[S, F, S, F], num_kv_shared_layers=2),
        cases=[raw(LONG[:60], "sqrt(32) and sqrt(6) are not exact in bf16"), chat(("u", "Why?"))]),
    "e2b_vision_f32": dict(
        family="gemma4", seed=1100, template="small", budget=70, distinct=5,
        gains=dict(unclamped=["layers.0.mlp.up"], scores=1.2, mix=0.5),
        text=e2b(layer_types=[S, F, S, F], num_kv_shared_layers=2), vision=tower(use_clipped_linears=True),
        cases=[
            chat(("u", [image(0), text("What is it?")]), pictures=[(1, 37, 53)],
                 note="clipped linears (one without bounds); causal everywhere; 63 tokens, window 11"),
            chat(("s", "Look."), ("u", [text("One"), image(0), text("two"), image(1)]), enable_thinking=True,
                 pictures=[(2, 90, 21), (3, 48, 48)], note="two pictures of different sizes, thinking"),
            chat(("u", [video(0), text("Where?")]), films=[(4, 40, 30, 2, 0.5)],
                 note="two frames, 0 and 2 seconds")]),
    "e2b_vision_released_f32": dict(
        family="gemma4", seed=1200, template="small", spelling="released", budget=70, distinct=5,
        text=e2b(layer_types=[S, S, F], num_kv_shared_layers=0, use_double_wide_mlp=False, hidden_size=30),
        vision=tower(patch_size=3, pooling_kernel_size=2, num_attention_heads=3, num_key_value_heads=3,
                     head_dim=8, num_hidden_layers=1),
        cases=[chat(("u", [text("What"), image(0)]), pictures=[(5, 20, 300)], note="a picture of one column"),
               raw("No picture at all.", "text on a checkpoint with a tower")]),
    "31b_vision_f32": dict(
        family="gemma4", seed=1300, template="large", spelling="released", budget=70, distinct=5,
        text=cfg(attention_k_eq_v=True, num_attention_heads=4, num_key_value_heads=2,
                 num_global_key_value_heads=1, use_bidirectional_attention="vision", sliding_window=20),
        vision=tower(standardize=True),
        cases=[
            chat(("u", [image(0), text("Which?")]), pictures=[(6, 61, 24)],
                 note="63 tokens in a window of 20: bidirectional in sliding layers, cut by the window"),
            chat(("u", [text("One"), image(0)]), ("a", "Yes."), ("u", [image(1), image(2), text("two?")]),
                 pictures=[(7, 33, 33), (8, 24, 70), (9, 52, 39)],
                 note="three pictures in two turns, two adjacent")]),
    "26b_vision_f32": dict(
        family="gemma4", seed=1400, template="large", budget=140, distinct=5,
        text=moe(use_bidirectional_attention="vision", sliding_window=200),
        vision=tower(standardize=True, patch_size=3, pooling_kernel_size=2, num_hidden_layers=1,
                     hidden_size=32, num_key_value_heads=2, head_dim=16),
        cases=[
            chat(("u", [text("Look "), image(0), text("why?")]), pictures=[(10, 45, 45)],
                 note="budget 140, window 200: pictures are bidirectional, experts beside the MLP")]),
    "12b_f32": dict(
        family="gemma4_unified", seed=1500, template="large", budget=70, distinct=5, text=unified(),
        vision=dict(
            patch_size=2, pooling_kernel_size=3, mm_embed_dim=28, mm_posemb_size=72, output_proj_dims=28),
        cases=[
            chat(("u", [image(0), text("What is it?")]), pictures=[(11, 37, 53)],
                 note="no tower: patches of 6 x 6; window 25 smaller than the picture"),
            chat(("u", [text("One"), image(0), image(1)]), enable_thinking=True,
                 pictures=[(12, 24, 70), (13, 48, 48)],
                 note="two adjacent pictures of different sizes, thinking"),
            chat(("u", [text("Where?"), video(0)]), films=[(14, 40, 30, 2, 0.5)])]),
    "12b_released_f32": dict(
        family="gemma4_unified", seed=1600, template="large", spelling="released", budget=70, distinct=5,
        text=unified(
            hidden_size=30, head_dim=10, global_head_dim=20, sliding_window=90, layer_types=[S, S, F]),
        vision=dict(
            patch_size=3, pooling_kernel_size=2, mm_embed_dim=20, mm_posemb_size=72, output_proj_dims=20),
        cases=[
            chat(("u", [image(0), text("Why?")]), pictures=[(15, 30, 20)],
                 note="tensor names of the release; window 90 larger than the picture")]),
    "31b_vision_bf16": dict(
        family="gemma4", seed=1700, dtype="bfloat16", template="large", budget=70, distinct=4, gains=GENTLE,
        margin=0.005,
        text=cfg(attention_k_eq_v=True, num_attention_heads=4, num_key_value_heads=2,
                 num_global_key_value_heads=1, use_bidirectional_attention="vision", sliding_window=20,
                 hidden_size=40, layer_types=[S, F]),
        vision=tower(standardize=True, num_hidden_layers=1),
        cases=[chat(("u", [image(0), text("Which?")]), pictures=[(16, 61, 24)])])}
