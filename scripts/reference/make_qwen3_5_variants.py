"""The Qwen3.5 variants of make_qwen.py. Plain data; make_qwen_variants.py says what a variant is."""
from make_qwen_parts import TEMPLATE_35
from make_qwen_variants import HALF, HELLO, LONG, SMALL, chat, image, mrope, raw, text, text_cfg, video


def layers(kinds):
    """l: recurrent; f: full attention."""
    return [{"l": "linear_attention", "f": "full_attention"}[k] for k in kinds]


def text35(kinds, keys, values, key_dim, value_dim, **over):
    cfg = text_cfg(num_hidden_layers=len(kinds), layer_types=layers(kinds), head_dim=16,
                   num_key_value_heads=1, linear_num_key_heads=keys, linear_num_value_heads=values,
                   linear_key_head_dim=key_dim, linear_value_head_dim=value_dim)
    return cfg | over


def plain(partial):
    return {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": partial}


def axes(theta, partial, *sections):
    return mrope(theta, *sections, mrope_interleaved=True, partial_rotary_factor=partial)


def tower(**over):
    cfg = dict(depth=2, hidden_size=16, num_heads=2, intermediate_size=28, patch_size=4,
               num_position_embeddings=49, out_hidden_size=32)
    return cfg | over


VL = dict(family="qwen3_5", template=TEMPLATE_35, size=SMALL, mean_std=HALF)

VARIANTS = {
    "qwen3_5_text_f32": dict(
        family="qwen3_5_text", template=TEMPLATE_35, seed=2001, gains=dict(head=2.0, mix=0.8),
        text=text35("llf", 2, 4, 16, 16, rope_parameters=plain(0.5)),
        cases=[raw(LONG, note="two key heads for four value heads; half of a head rotates; tied"),
               chat(HELLO, note="thinking"), chat(HELLO, enable_thinking=False, note="no thinking")]),
    "qwen3_5_f32": VL | dict(
        seed=2101, gains=dict(head=2.2, qk=1.5), mtp=True,
        text=text35("flff", 1, 2, 12, 20, head_dim=32, rope_parameters=axes(100.0, 0.5, 4, 2, 2)),
        vision=tower(),
        cases=[chat(("u", [image(0), text("What is it?")]), pictures=[(20, 33, 47)], note="one image"),
               chat(("s", "Be brief."), ("u", [text("One"), image(0), image(1)]), ("a", "Yes."),
                    ("u", [image(2), text("and?")]), pictures=[(21, 24, 40), (22, 24, 40), (23, 50, 16)],
                    enable_thinking=False, note="three images in two turns"),
               chat(("u", [video(0), text("Now?")]), films=[(32, 24, 30, 5, 2.0)],
                    note="a video with time stamps; a drafter (mtp.*)"),
               chat(HELLO, note="text only on a vision checkpoint")]),
    "qwen3_5_odd_f32": VL | dict(
        seed=2206, gains=dict(head=2.2, qk=1.5),
        text=text35("lfll", 2, 6, 24, 10, linear_conv_kernel_dim=3, head_dim=24, num_attention_heads=3,
                    tie_word_embeddings=False, attention_bias=True,
                    rope_parameters=axes(500.0, 1.0, 4, 4, 4)),
        vision=tower(hidden_size=12, num_heads=1, patch_size=5, num_position_embeddings=25),
        cases=[raw("<|image_pad|>comes first, last<|image_pad|>", pictures=[(25, 50, 39), (26, 20, 60)],
                   note="a convolution of 3; the last layer is recurrent; heads rotate whole; biases; "
                        "untied; image tokens at both ends")]),
    "qwen3_5_moe_f32": VL | dict(
        family="qwen3_5_moe", seed=2301, gains=dict(head=2.0, mix=0.4, qk=1.5), mtp=True,
        text=text35("lflf", 2, 4, 16, 8, head_dim=32, num_experts=6, num_experts_per_tok=2,
                    moe_intermediate_size=12, shared_expert_intermediate_size=20, tie_word_embeddings=False,
                    rope_parameters=axes(100.0, 0.5, 4, 2, 2)),
        vision=tower(),
        cases=[chat(("u", [image(0), text("What?"), image(1)]), pictures=[(29, 33, 20), (30, 17, 40)],
                    note="two of six experts and a shared one"),
               chat(HELLO, note="text only")]),
    "qwen3_5_moe_text_f32": dict(
        family="qwen3_5_moe_text", template=TEMPLATE_35, seed=2401, gains=dict(head=2.0, mix=0.7),
        text=text35("flll", 1, 3, 8, 16, linear_conv_kernel_dim=2, num_experts=4, num_experts_per_tok=1,
                    moe_intermediate_size=16, shared_expert_intermediate_size=12,
                    rope_parameters=plain(0.25)),
        cases=[raw(LONG[:110],
                   note="a convolution of 2; the last three layers are recurrent; one of four experts"),
               chat(HELLO)]),
    "qwen3_5_bf16": VL | dict(
        seed=2501, dtype="bfloat16", distinct=6, margin=0.03,
        gains=dict(head=1.4, qk=0.8, mix=0.25, seen=1.0), size=(4096, 16777216),
        text=text35("lllf", 1, 2, 128, 128, head_dim=256, num_attention_heads=1,
                    rope_parameters=axes(1e7, 0.25, 11, 11, 10)),
        vision=dict(depth=2, hidden_size=16, num_heads=2, intermediate_size=28, out_hidden_size=32,
                    num_position_embeddings=36),
        drop=["text_config." + key for key in
              ("head_dim", "layer_types", "linear_conv_kernel_dim", "linear_key_head_dim",
               "linear_value_head_dim", "rms_norm_eps", "attention_bias", "hidden_act",
               "rope_parameters.partial_rotary_factor", "rope_parameters.mrope_section")] +
             ["vision_config." + key for key in
              ("patch_size", "in_channels", "spatial_merge_size", "temporal_patch_size", "hidden_act")],
        cases=[chat(("u", [text("See"), image(0), text("this?")]), pictures=[(31, 50, 66)],
                    note="head sizes, convolution of 4, every fourth layer full, a quarter of a head "
                         "rotates, sections 11 11 10: by absence"),
               chat(HELLO, note="text only on a vision checkpoint")]),
}
