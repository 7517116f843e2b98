"""The variants of make_qwen.py: what each checkpoint is odd in, and its prompts. Plain data.

A variant: `family` (model_type), `text` and `vision` (arguments of the config classes), `cases`, and where they differ from the usual
`spelling` ("flat": the first releases' config.json, tensor names and preprocessor_config.json; "nested": as save_pretrained writes),
`drop` (keys that config.json leaves to the class defaults), `dtype`, `gains` (of make_qwen_parts.fill), `size` (least and largest area
of a picture in pixels), `mean_std`, `experts` (storage of the experts), `margin`, `distinct`.
"""
from make_qwen_parts import TEMPLATE_3, TEMPLATE_TEXT2, TEMPLATE_VL2, VOCAB

CLIP = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
HALF = ([0.5] * 3, [0.5] * 3)
LONG = ("The ferry left the harbour a little after six, when the fog was still lying on the water. A woman in a yellow coat counted "
        "the gulls, lost the count at nineteen, and began again.")


def image(k):
    return {"type": "image", "index": k}


def video(k):
    return {"type": "video", "index": k}


def text(t):
    return {"type": "text", "text": t}


def chat(*messages, pictures=(), films=(), note="", **template):
    """pictures: (seed, width, height); films: (seed, width, height, frames, frames per second)."""
    roles = {"u": "user", "a": "assistant", "s": "system", "t": "tool"}
    return {"kind": "chat", "note": note, "pictures": list(pictures), "films": list(films), "template": template,
            "messages": [{"role": roles[r], "content": c} for r, c in messages]}


def raw(prompt, pictures=(), note=""):
    return {"kind": "raw", "note": note, "pictures": list(pictures), "films": [], "template": {}, "prompt": prompt}


def text_cfg(**over):
    cfg = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=36, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2,
               max_position_embeddings=2048, rms_norm_eps=1e-6, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None)
    cfg.update(over)
    return cfg


def mrope(theta, *sections, **more):
    return {"rope_theta": theta, "rope_type": "default", "mrope_section": list(sections)} | more


def vision2(**over):
    return dict(depth=2, embed_dim=16, num_heads=2, mlp_ratio=2, patch_size=4) | over


def vision25(**over):
    return dict(depth=3, hidden_size=16, num_heads=2, intermediate_size=28, patch_size=4, window_size=16, fullatt_block_indexes=[1],
                tokens_per_second=2) | over


def vision3(**over):
    return dict(depth=3, hidden_size=16, num_heads=2, intermediate_size=28, patch_size=4, num_position_embeddings=49,
                deepstack_visual_indexes=[0, 2]) | over


SMALL = (256, 2560)  # 4 to 40 tokens of 8 x 8 pixels
HELLO = ("u", "What is the count?")

VL2 = dict(family="qwen2_vl", template=TEMPLATE_VL2, size=SMALL, mean_std=CLIP)
VL25 = dict(family="qwen2_5_vl", template=TEMPLATE_VL2, size=SMALL, mean_std=CLIP)
VL3 = dict(family="qwen3_vl", template=TEMPLATE_3, size=SMALL, mean_std=HALF)

VARIANTS = {
    "qwen2_vl_f32": VL2 | dict(
        seed=101, spelling="flat", text=text_cfg(rope_parameters=mrope(200.0, 2, 3, 3)), vision=vision2(),
        cases=[chat(("u", [image(0), text("What is it?")]), pictures=[(1, 33, 47)], note="one image; default system turn"),
               chat(("s", "Be brief."), ("u", [text("One"), image(0), text("two"), image(1), image(2)]), ("a", "Yes."),
                    ("u", [image(3), text("and?")]), pictures=[(2, 30, 20), (3, 16, 50), (4, 41, 17), (5, 24, 24)],
                    note="four images of four grids in two turns"),
               chat(("u", [video(0), text("Now?")]), films=[(6, 30, 22, 4, 2.0)], note="a video of two frame groups; time advances by 1")]),
    "qwen2_vl_onekv_f32": VL2 | dict(
        seed=212, text=text_cfg(hidden_size=48, num_key_value_heads=1, tie_word_embeddings=False, num_hidden_layers=2, rms_norm_eps=1e-5,
                                rope_parameters=mrope(500.0, 4, 4, 4, rope_type="yarn", factor=4.0, original_max_position_embeddings=32)),
        vision=vision2(embed_dim=20, num_heads=1, patch_size=5, mlp_ratio=3),
        cases=[raw("<|image_pad|>is the first and the last is<|image_pad|>", pictures=[(7, 29, 37), (8, 52, 22)],
                   note="picture tokens at both ends of the prompt; head size 24, one KV head, YaRN, patches of 5"),
               chat(("u", [image(0), image(1), text("Same?"), image(2)]), pictures=[(9, 31, 31), (9, 31, 31), (10, 31, 31)],
                    note="two identical images and one other of that grid")]),
    "qwen2_vl_bf16": VL2 | dict(
        seed=302, spelling="flat", dtype="bfloat16", distinct=6, margin=0.03, gains=dict(head=1.6, qk=0.8, mix=0.4, seen=1.0),
        size=(3136, 12845056), text=text_cfg(num_hidden_layers=2, rope_parameters=mrope(1e6, 3, 3, 2), rms_norm_eps=1e-5),
        vision=dict(depth=2, embed_dim=16, num_heads=2),
        drop=["rms_norm_eps", "rope_theta", "use_sliding_window", "sliding_window", "max_window_layers", "hidden_act", "vision_config.mlp_ratio",
              "vision_config.patch_size", "vision_config.in_channels", "vision_config.spatial_merge_size", "vision_config.temporal_patch_size",
              "vision_config.hidden_act"],
        cases=[chat(("u", [text("See"), image(0), text("this?")]), pictures=[(11, 50, 80)], note="patch 14, eps, theta, MLP ratio by absence"),
               chat(HELLO, note="text only on a vision checkpoint")]),
    "qwen2_5_vl_f32": VL25 | dict(
        seed=401, spelling="flat", text=text_cfg(num_attention_heads=4, num_key_value_heads=2, rope_parameters=mrope(100.0, 2, 1, 1)),
        vision=vision25(out_hidden_size=32),
        cases=[chat(("u", [image(0), text("What?")]), pictures=[(12, 25, 40)],
                    note="windows of 2 x 2 tokens in a grid of 5 x 3: partial ones at the right and the bottom"),
               chat(("u", [text("Two:"), image(0), image(1)]), ("a", "Ok."), ("u", [text("last"), image(2)]),
                    pictures=[(13, 24, 24), (14, 56, 17), (15, 16, 16)], note="grids of 3 x 3, 2 x 7 and 2 x 2 (one window)")]),
    "qwen2_5_vl_nested_f32": VL25 | dict(
        seed=501, text=text_cfg(tie_word_embeddings=False, num_hidden_layers=2, rope_parameters=mrope(100.0, 4, 2, 2)),
        vision=vision25(hidden_size=20, num_heads=1, window_size=24, depth=2, fullatt_block_indexes=[0], intermediate_size=30, out_hidden_size=32),
        cases=[chat(("u", [image(0), text("or"), image(1), image(2)]), pictures=[(16, 40, 31), (17, 31, 40), (17, 31, 40)],
                    note="head size 20 in the tower; windows of 3 x 3; two identical images"),
               chat(("u", [video(0), text("go")]), films=[(18, 40, 24, 7, 2.857142857142857)],
                    note="seven frames (the last one twice), 0.7 s a pair, 2 positions a second: times 0, 1, 2, 4")]),
    "qwen2_5_vl_bf16": VL25 | dict(
        seed=613, spelling="flat", dtype="bfloat16", distinct=5, margin=0.03, gains=dict(head=1.6, qk=0.7, mix=0.3, seen=0.7),
        size=(19600, 12845056), text=text_cfg(num_hidden_layers=2, rope_parameters=mrope(1e6, 3, 3, 2), rms_norm_eps=1e-5),
        vision=dict(depth=2, hidden_size=16, num_heads=2, intermediate_size=24, out_hidden_size=32, fullatt_block_indexes=[1]),
        drop=["rms_norm_eps", "rope_theta", "use_sliding_window", "sliding_window", "max_window_layers", "hidden_act",
              "vision_config.patch_size", "vision_config.in_channels", "vision_config.spatial_merge_size", "vision_config.temporal_patch_size",
              "vision_config.window_size", "vision_config.tokens_per_second", "vision_config.hidden_act"],
        cases=[chat(("u", [image(0), text("Hm?")]), pictures=[(19, 48, 52)], note="patch 14, windows of 112 pixels, grid of 6 x 5: by absence"),
               chat(HELLO, note="text only on a vision checkpoint")]),
    "qwen3_vl_f32": VL3 | dict(
        seed=700, text=text_cfg(num_key_value_heads=1, head_dim=16, rope_parameters=mrope(300.0, 4, 2, 2, mrope_interleaved=True)),
        vision=vision3(depth=4, intermediate_size=20, deepstack_visual_indexes=[1, 3], out_hidden_size=32),
        cases=[chat(("u", [image(0), text("What is it?")]), pictures=[(20, 33, 47)], note="one image"),
               chat(("s", "Be brief."), ("u", [text("One"), image(0), image(1), text("two")]), ("a", "Yes."), ("u", [image(2), image(3)]),
                    pictures=[(21, 24, 40), (22, 24, 40), (23, 50, 16), (24, 24, 24)], note="four images, two of one grid, in two turns"),
               chat(HELLO, note="text only on a vision checkpoint")]),
    "qwen3_vl_odd_f32": VL3 | dict(
        seed=800, text=text_cfg(num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, head_dim=24, tie_word_embeddings=False, attention_bias=True,
                                rope_parameters=mrope(500.0, 4, 4, 4, mrope_interleaved=True)),
        vision=vision3(depth=2, deepstack_visual_indexes=[0, 1], hidden_size=12, num_heads=1, num_position_embeddings=25, out_hidden_size=32, patch_size=5),
        cases=[raw("<|image_pad|>comes first, last<|image_pad|>", pictures=[(25, 50, 39), (26, 20, 60)],
                   note="picture tokens at both ends; 3 heads of 24 beside a width of 32; biases; patches of 5; 5 x 5 position rows"),
               chat(("u", [image(0), image(1), text("Same?"), image(2)]), pictures=[(27, 31, 31), (27, 31, 31), (28, 31, 31)],
                    note="two identical images and one other of that grid")]),
    "qwen3_vl_moe_f32": VL3 | dict(
        family="qwen3_vl_moe", seed=934, experts="released",
        text=text_cfg(head_dim=16, num_hidden_layers=4, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=12, mlp_only_layers=[2],
                      decoder_sparse_step=1, rope_parameters=mrope(300.0, 4, 2, 2, mrope_interleaved=True)),
        vision=vision3(out_hidden_size=32, depth=2, deepstack_visual_indexes=[0, 1]),
        cases=[chat(("u", [image(0), text("What?"), image(1)]), pictures=[(29, 33, 20), (30, 17, 40)],
                    note="layers 0, 1 and 3 have 6 experts of which 2 are used; layer 2 is dense; experts as released: [E, H, 2I], [E, I, H]"),
               chat(HELLO, note="text only")]),
    "qwen3_vl_moe_saved_f32": VL3 | dict(
        family="qwen3_vl_moe", seed=950,
        text=text_cfg(num_key_value_heads=1, num_hidden_layers=2, num_experts=4, num_experts_per_tok=1, moe_intermediate_size=16,
                      decoder_sparse_step=2, tie_word_embeddings=False, head_dim=24,
                      rope_parameters=mrope(300.0, 4, 4, 4, mrope_interleaved=True)),
        vision=vision3(out_hidden_size=32, depth=2, deepstack_visual_indexes=[1]),
        cases=[chat(("u", [text("a"), image(0), text("b")]), pictures=[(35, 33, 20)],
                    note="as save_pretrained writes it: experts [E, 2I, H], [E, H, I] (here 2I = H), num_local_experts; one expert of four; layer 0 dense")]),
    "qwen3_vl_bf16": VL3 | dict(
        seed=1001, dtype="bfloat16", distinct=6, margin=0.03, gains=dict(head=1.6, qk=0.9, mix=0.4, seen=1.0), size=(65536 // 16, 16777216),
        text=text_cfg(num_key_value_heads=1, head_dim=128, num_hidden_layers=2, rope_parameters=mrope(500000.0, 24, 20, 20, mrope_interleaved=True)),
        vision=dict(depth=2, hidden_size=16, num_heads=2, intermediate_size=28, out_hidden_size=32, num_position_embeddings=36,
                    deepstack_visual_indexes=[0]),
        drop=["text_config.head_dim", "text_config.rope_parameters", "text_config.rms_norm_eps", "text_config.attention_bias", "text_config.hidden_act",
              "vision_config.patch_size", "vision_config.in_channels", "vision_config.spatial_merge_size", "vision_config.temporal_patch_size",
              "vision_config.hidden_act"],
        cases=[chat(("u", [text("See"), image(0), text("this?")]), pictures=[(31, 50, 66)],
                    note="head size 128, sections 24 20 20, theta 500000, patch 16: by absence"),
               chat(HELLO, note="text only on a vision checkpoint")]),
    "qwen3_vl_video_f32": VL3 | dict(
        seed=1101, text=text_cfg(num_key_value_heads=1, head_dim=16, num_hidden_layers=2,
                                 rope_parameters=mrope(300.0, 4, 2, 2, mrope_interleaved=True)),
        vision=vision3(out_hidden_size=32, depth=2, deepstack_visual_indexes=[1]),
        cases=[chat(("u", [video(0), text("Now?")]), films=[(32, 24, 30, 5, 2.0)], note="five frames at 2 per second: three groups with stamps"),
               chat(("u", [text("Both"), image(0), video(0)]), pictures=[(33, 22, 37)], films=[(34, 17, 33, 4, 1.5)], note="an image and a video")]),
    "qwen2_f32": dict(
        family="qwen2", template=TEMPLATE_TEXT2, seed=1201, spelling="flat",
        text=text_cfg(num_attention_heads=4, num_key_value_heads=2, rope_parameters={"rope_theta": 1e6, "rope_type": "default"}),
        cases=[raw(LONG[:110], note="tied head, biases"),
               chat(("u", "Tell me."), ("a", "No."), ("u", "x\n\t日本 🙃 ü e\u0301"), note="default system turn; bytes; a decomposed letter (NFC)")]),
    "qwen3_f32": dict(
        family="qwen3", template=TEMPLATE_3, seed=1304, spelling="flat",
        text=text_cfg(vocab_size=VOCAB + 7, num_key_value_heads=1, head_dim=24, tie_word_embeddings=False, rope_parameters={"rope_theta": 1e4, "rope_type": "default"}),
        cases=[raw(LONG[:110], note="head size 24 beside a width of 32, norms of queries and keys, a head of its own, 7 ids more than the tokenizer has"),
               chat(("s", "You count."), ("u", "How many?"), note="no thinking", enable_thinking=False)]),
    "qwen2_yarn_f32": dict(
        family="qwen2", template=TEMPLATE_TEXT2, seed=1400, spelling="flat",
        text=text_cfg(num_attention_heads=1, num_key_value_heads=1, num_hidden_layers=2, tie_word_embeddings=False,
                      rope_parameters={"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
        cases=[raw(LONG, note="YaRN of factor 4 over 64 positions"), chat(HELLO)]),
    "qwen3_window_f32": dict(
        family="qwen3", template=TEMPLATE_3, seed=1504,
        text=text_cfg(num_attention_heads=4, num_key_value_heads=2, head_dim=16, use_sliding_window=True, sliding_window=12, max_window_layers=1,
                      attention_bias=True, rope_parameters={"rope_theta": 1e4, "rope_type": "default"}),
        cases=[raw(LONG[:130], note="layer 0 full, layers 1 and 2 with a window of 12; biases"), chat(HELLO)]),
    "qwen2_moe_f32": dict(
        family="qwen2_moe", template=TEMPLATE_TEXT2, seed=2314, spelling="flat",
        text=text_cfg(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=12,
                      shared_expert_intermediate_size=20, norm_topk_prob=False, tie_word_embeddings=False,
                      rope_parameters={"rope_theta": 1e4, "rope_type": "default"}),
        cases=[raw(LONG[:110], note="experts one by one, not renormalised; a shared expert with its gate"),
               chat(HELLO)]),
    "qwen2_moe_odd_f32": dict(
        family="qwen2_moe", template=TEMPLATE_TEXT2, seed=2402,
        text=text_cfg(num_attention_heads=4, num_key_value_heads=1, num_experts=3, num_experts_per_tok=1,
                      moe_intermediate_size=12, shared_expert_intermediate_size=8, norm_topk_prob=True,
                      qkv_bias=False, use_sliding_window=True, sliding_window=12, max_window_layers=3,
                      rope_parameters={"rope_theta": 1e4, "rope_type": "default"}),
        cases=[raw(LONG[:90], note="as save_pretrained writes it; one expert of three; no biases; "
                                   "layers 0 and 2 have a window of 12"), chat(HELLO)]),
    "qwen3_moe_f32": dict(
        family="qwen3_moe", template=TEMPLATE_3, seed=1608, spelling="flat",
        text=text_cfg(head_dim=16, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=12, norm_topk_prob=True, mlp_only_layers=[0],
                      rope_parameters={"rope_theta": 1e4, "rope_type": "default"}),
        cases=[raw(LONG[:110], note="experts one by one, renormalised; layer 0 dense"), chat(HELLO)]),
    "qwen3_moe_fused_f32": dict(
        family="qwen3_moe", template=TEMPLATE_3, seed=1735, experts="fused",
        text=text_cfg(head_dim=16, num_hidden_layers=4, num_experts=5, num_experts_per_tok=3, moe_intermediate_size=12, norm_topk_prob=False,
                      decoder_sparse_step=2, tie_word_embeddings=False, rope_parameters={"rope_theta": 1e4, "rope_type": "default"}),
        cases=[raw(LONG[:110], note="experts in one tensor [E, 2I, H], [E, H, I]; not renormalised; layers 1 and 3"), chat(HELLO)]),
    "qwen2_bf16": dict(
        family="qwen2", template=TEMPLATE_TEXT2, seed=1809, spelling="flat", dtype="bfloat16", distinct=6, margin=0.03,
        gains=dict(head=1.6, qk=0.8, mix=0.4),
        text=text_cfg(num_attention_heads=4, num_key_value_heads=2, rope_parameters={"rope_theta": 1e6, "rope_type": "default"}),
        cases=[raw(LONG[:110]), chat(HELLO)]),
    "qwen3_moe_bf16": dict(
        family="qwen3_moe", template=TEMPLATE_3, seed=1907, spelling="flat", dtype="bfloat16", distinct=6, margin=0.03,
        gains=dict(head=1.6, qk=0.9, mix=0.4, router=1.5),
        text=text_cfg(head_dim=16, num_hidden_layers=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True,
                      mlp_only_layers=[0], rope_parameters={"rope_theta": 1e4, "rope_type": "default"}),
        cases=[chat(HELLO, note="no routing near a tie")]),
}
