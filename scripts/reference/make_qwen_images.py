"""Makes tests/golden/images/qwen_*.json and tests/golden/images/videos/: what transformers' Qwen-VL processors make of pictures and videos.

    python scripts/reference/make_qwen_images.py       needs numpy, Pillow, torch, torchvision, transformers, and tests/golden/qwen (make_qwen.py)

Files:
    qwen_sizes.json    [rule, factor, depth, frames, min, max, height, width, new height, new width]; 0, 0 where
                       it is refused. rule: "image" (smart_resize of Qwen2-VL, also each frame of its videos),
                       "volume" (Qwen3-VL's videos),
                       "pair" (GLM-V: areas of two frames), "sides" (PaddleOCR-VL) or "longest" (Pixtral; max: the
                       longest side)
    qwen_frames.json   [rule, total, fps, count, crc32 of the indices as little-endian 32-bit words] of
                       sample_frames at 2 frames per second; count 0 where it is refused
    qwen_prep.json     settings, source size, frames -> new size, crc32 of pixel_values [patches, values] float32; sources are `noise`
    videos/*           animations made by Pillow
    qwen_videos.json   per animation: size, duration, crc32 of each frame as Pillow shows it
    qwen_prompts.json  per checkpoint folder: text, pictures, videos -> ids, grids, and for prompts without videos the rope delta
"""
import random
import types
import zlib

import numpy as np
from PIL import Image, ImageSequence
from transformers import AutoConfig, AutoProcessor, Qwen2VLImageProcessor, Qwen2VLVideoProcessor, Qwen3VLVideoProcessor
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.glm4v.image_processing_glm4v import smart_resize as smart_resize_pair
from transformers.models.paddleocr_vl.image_processing_paddleocr_vl import smart_resize as smart_resize_sides
from transformers.models.pixtral.image_processing_pixtral import get_resize_output_image_size
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as smart_resize_volume
from transformers.utils import logging
from transformers.video_utils import VideoMetadata

from make_images import OUT, dump, noise, picture

logging.set_verbosity_error()
QWEN = OUT.parent / "qwen"
RULES = {"image": Qwen2VLVideoProcessor(), "volume": Qwen3VLVideoProcessor()}


# --------------------------------------------------------------------------------------------------------------- sizes and frames


def write_sizes():
    rnd, rows = random.Random(5), []

    def add(rule, factor, frames, lo, hi, h, w):
        try:
            if rule == "image":
                to = smart_resize(h, w, factor=factor, min_pixels=lo, max_pixels=hi)
            elif rule == "pair":
                to = smart_resize_pair(2, h, w, factor=factor, min_pixels=lo, max_pixels=hi)
            elif rule == "sides":
                to = smart_resize_sides(h, w, factor=factor, min_pixels=lo, max_pixels=hi)
            elif rule == "longest":
                blank = np.broadcast_to(np.uint8(0), (h, w, 3))
                to = get_resize_output_image_size(blank, hi, factor, "channels_last")
                to = to if min(to) > 0 else (0, 0)  # resized to nothing: torchvision refuses
            else:
                to = smart_resize_volume(frames, h, w, temporal_factor=2, factor=factor, min_pixels=lo, max_pixels=hi)
        except ValueError:
            to = (0, 0)
        rows.append([rule, factor, 2, frames, lo, hi, h, w, *to])

    q2, q3 = (28, 3136, 12845056), (32, 65536, 16777216)
    for h, w in [(480, 640), (1080, 1920), (70, 98), (14, 14), (4000, 6000), (30, 3000), (1, 1), (1, 200), (1, 201), (200, 1), (5, 1001),
                 (42, 42), (28, 28), (27, 29), (65535, 65535), (65535, 328), (65535, 327), (12544, 1024)]:
        add("image", q2[0], 0, *q2[1:], h, w)
    for h, w in [(480, 640), (1080, 1920), (272, 512), (1, 1), (6000, 8000), (16, 3000), (48, 48), (80, 80), (3, 600)]:
        add("image", q3[0], 0, *q3[1:], h, w)
    for _ in range(1500):
        f = rnd.choice((28, 32, 8))
        lo = rnd.choice((1, 3136, 65536, f * f * rnd.randint(1, 400)))
        hi = max(lo, rnd.choice((1003520, 12845056, 16777216, f * f * rnd.randint(1, 2000))))
        top = rnd.choice((40, 300, 3000, 65535))
        h = rnd.randint(1, top)
        w = rnd.randint(1, top) if rnd.random() < 0.7 else max(1, min(65535, round(h * rnd.uniform(0.9, 1.1))))
        if rnd.random() < 0.25:  # on the borders between two rounded sizes
            h, w = f * rnd.randint(1, 60) + f // 2, f * rnd.randint(1, 60) + f // 2
        add("image", f, 0, lo, hi, h, w)
        t = rnd.choice((1, 2, 3, 4, 5, 9, 64, 767, 768))
        add("volume", f, t, lo, max(lo, hi * rnd.choice((1, 4))), h, w)
    for h, w in [(480, 640), (1080, 1920), (1, 1), (2, 2), (1, 4000), (4000, 1), (27, 5600), (5600, 28),
                 (28, 28), (6000, 8000), (13, 2700), (1, 1540), (1541, 1)]:
        add("pair", 28, 0, 12544, 9633792, h, w)
        add("sides", 28, 0, 147384, 2822400, h, w)
        add("longest", 28, 0, 1, 1540, h, w)
        add("longest", 16, 0, 1, 1024, h, w)
    for _ in range(400):
        f, lo = rnd.choice((28, 32, 10)), rnd.choice((1, 3136, 12544, 147384))
        h, w = (rnd.randint(1, rnd.choice((3, 40, 300, 3000))) for _ in range(2))
        hi = max(lo, rnd.choice((100000, 2822400, 9633792)))
        add("pair", f, 0, lo, hi, h, w)
        add("sides", f, 0, lo, hi, h, w)
        add("longest", f, 0, 1, rnd.choice((100, 512, 1024, 1540)), h, w)
    dump("qwen_sizes.json", rows)
    return len(rows)


def write_frames():
    rnd, rows = random.Random(6), []
    cases = [(n, f) for n in (1, 2, 3, 4, 5, 7, 8, 9, 49) for f in (1.0, 2.0, 4.0, 10.0, 24.0, 29.97)]
    cases += [(rnd.randint(1, 4096), round(rnd.uniform(0.05, 60), 3)) for _ in range(300)]
    for total, fps in cases:
        for rule, p in RULES.items():
            try:
                got = p.sample_frames(metadata=VideoMetadata(total_num_frames=total, fps=fps), fps=2)
                got = [int(v) for v in got if v < total]  # rounding sometimes gives it one more, behind the end
            except (ValueError, ZeroDivisionError, RuntimeError):
                got = []
            rows.append([rule, total, fps, len(got), zlib.crc32(np.asarray(got, dtype="<u4").tobytes())])
    dump("qwen_frames.json", rows)
    return len(rows)


# --------------------------------------------------------------------------------------------------------------------- pixels


def moving(width, height, frames):
    return np.stack([noise(width, height + i)[i:] for i in range(frames)])  # frame i begins i rows further down in the noise


def write_prep():
    half = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    cases = []
    for settings, sizes in [({}, [(100, 60), (64, 48), (301, 17), (1500, 900)]),
                            ({"min_pixels": 784, "max_pixels": 12544}, [(56, 84), (57, 200), (9, 3), (640, 480), (1, 200)]),
                            ({"patch_size": 16, **half, "size": {"shortest_edge": 65536, "longest_edge": 131072}}, [(33, 33), (512, 272), (700, 700)]),
                            ({"patch_size": 4, **half, "size": {"shortest_edge": 256, "longest_edge": 2560}}, [(40, 30), (8, 8), (31, 77)])]:
        p = Qwen2VLImageProcessor(**settings)
        for w, h in sizes:
            out = p(Image.fromarray(noise(w, h)), return_tensors="np")
            cases.append(("qwen2_vl", settings, 0, w, h, out["pixel_values"], out["image_grid_thw"][0], p.patch_size))
    small = {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 2560}}
    for family, cls, settings, sizes in [
            ("qwen2_vl", Qwen2VLVideoProcessor, small, [(40, 30, 4), (40, 30, 5), (90, 33, 1), (16, 16, 2)]),
            ("qwen2_vl", Qwen2VLVideoProcessor, {**small, "cap_pixels_per_frame": True, "max_video_tokens": 40}, [(40, 30, 4), (40, 30, 20)]),
            ("qwen3_vl", Qwen3VLVideoProcessor, small, [(40, 30, 4), (40, 30, 5), (90, 33, 2), (5, 9, 3), (16, 16, 7)]),
            ("qwen3_vl", Qwen3VLVideoProcessor, {**small, "cap_pixels_per_frame": True, "max_video_tokens": 4}, [(40, 30, 4), (40, 30, 9)])]:
        p = cls(**settings)
        for w, h, t in sizes:
            out = p(videos=[moving(w, h, t).transpose(0, 3, 1, 2)], do_sample_frames=False, return_tensors="np")
            cases.append((family, settings, t, w, h, out["pixel_values_videos"], out["video_grid_thw"][0], p.patch_size))
    rows = [{"family": f, "settings": s, "frames": t, "width": w, "height": h, "to_width": int(g[2]) * ps, "to_height": int(g[1]) * ps,
             "groups": int(g[0]), "crc32": zlib.crc32(np.asarray(v, dtype="<f4").tobytes())} for f, s, t, w, h, v, g, ps in cases]
    dump("qwen_prep.json", rows)
    return len(rows)


# --------------------------------------------------------------------------------------------------------------------- videos


def scene(width, height, i, colors=None):
    a = picture(width, height, 3).copy()
    x, y = 3 * i % (width - 8), 2 * i % (height - 6)
    a[y:y + 6, x:x + 8] = (255, 20 * i % 256, 0)
    img = Image.fromarray(a)
    return img.quantize(colors) if colors else img


def make_videos():
    folder = OUT / "videos"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    still = [scene(48, 36, i, 64) for i in range(9)]
    still[0].save(folder / "delta.gif", save_all=True, append_images=still[1:], duration=250, loop=0, optimize=False)
    uneven = [scene(33, 21, i, 16) for i in range(5)]
    uneven[0].save(folder / "uneven.gif", save_all=True, append_images=uneven[1:], duration=[100, 900, 0, 500, 500], disposal=1)
    back = [scene(40, 24, i, 32) for i in range(6)]
    back[0].save(folder / "previous.gif", save_all=True, append_images=back[1:], duration=500, disposal=3)
    back[0].save(folder / "background.gif", save_all=True, append_images=back[1:], duration=500, disposal=2, background=3)
    clear = [f.copy() for f in back]
    for f in clear:
        f.paste(7, (4, 4, 20, 12))
    clear[0].save(folder / "transparent.gif", save_all=True, append_images=clear[1:], duration=[200, 300] * 3, disposal=[1, 2, 1, 3, 2, 1],
                  transparency=7)
    color = [scene(50, 40, i) for i in range(7)]
    color[0].save(folder / "lossless.webp", save_all=True, append_images=color[1:], duration=200, lossless=True)
    color[0].save(folder / "lossy.webp", save_all=True, append_images=color[1:], duration=[120, 400, 250, 250, 300, 80, 600], quality=70)
    one = scene(30, 30, 0, 32)
    one.save(folder / "single.gif")
    rows = []
    for path in sorted(folder.iterdir()):
        frames, ms = frames_of(path.name)
        rows.append({"file": path.name, "width": frames[0].shape[1], "height": frames[0].shape[0], "frames": len(frames), "milliseconds": ms,
                     "crc32": [zlib.crc32(f.tobytes()) for f in frames]})
    dump("qwen_videos.json", rows)
    return len(rows)


def frames_of(name):
    """As Pillow shows them, and how long they last together."""
    with Image.open(OUT / "videos" / name) as im:
        frames, ms = [], 0
        for f in ImageSequence.Iterator(im):
            frames.append(np.asarray(f.convert("RGB")).copy())
            ms += f.info.get("duration", 0) or 100  # known once the frame is read
    return frames, int(ms)


def video_of(name):
    frames, ms = frames_of(name)
    return np.stack(frames).transpose(0, 3, 1, 2), VideoMetadata(total_num_frames=len(frames), fps=len(frames) * 1000 / ms)


# --------------------------------------------------------------------------------------------------------------------- prompts

I, V = "<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|><|video_pad|><|vision_end|>"
PROMPTS = [
    ("one picture", f"<|im_start|>user\n{I}what is it?<|im_end|>\n<|im_start|>assistant\n", [(40, 30)], []),
    ("first and last", "<|image_pad|>middle<|image_pad|>", [(40, 30), (31, 77)], []),
    ("neighbours", "a<|image_pad|><|image_pad|><|image_pad|>b", [(40, 30), (40, 30), (64, 9)], []),
    ("two turns", f"<|im_start|>user\n{I}one{I}two<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n<|im_start|>user\n{I}three<|im_end|>\n",
     [(80, 20), (20, 80), (200, 100)], []),
    ("a video", f"<|im_start|>user\n{V}what moves?<|im_end|>\n", [], ["delta.gif"]),
    ("both", f"<|im_start|>user\n{I}{V}and {V}{I}<|im_end|>\n", [(40, 30), (100, 100)], ["lossless.webp", "uneven.gif"]),
]


def rope_delta(model_dir, ids, kinds, grid):
    """Of the stills: the image part of get_rope_index is the same in all families."""
    config = AutoConfig.from_pretrained(model_dir)
    vision = types.SimpleNamespace(spatial_merge_size=config.vision_config.spatial_merge_size,
                                   tokens_per_second=getattr(config.vision_config, "tokens_per_second", 1))
    fake = types.SimpleNamespace(config=types.SimpleNamespace(vision_config=vision))
    fake.get_vision_position_ids = types.MethodType(Qwen2_5_VLModel.get_vision_position_ids, fake)
    _, delta = Qwen2_5_VLModel.get_rope_index(fake, ids, kinds, image_grid_thw=grid)
    return int(delta[0, 0])


def write_prompts():
    rows = []
    for folder in ("qwen2_vl_f32", "qwen2_5_vl_f32", "qwen3_vl_f32"):
        processor = AutoProcessor.from_pretrained(QWEN / folder)
        for name, text, sizes, names in PROMPTS:
            images = [Image.fromarray(noise(w, h)) for w, h in sizes]
            videos = [video_of(n) for n in names]
            out = processor(text=[text], images=images or None, videos=[v for v, _ in videos] or None, return_tensors="pt",
                            **({"video_metadata": [m for _, m in videos], "do_sample_frames": True, "fps": 2} if videos else {}))
            row = {"folder": folder, "name": name, "text": text, "images": sizes, "videos": names, "ids": out["input_ids"][0].tolist()}
            row["grids"] = out["image_grid_thw"].tolist() if images else []
            row["video_grids"] = out["video_grid_thw"].tolist() if videos else []
            seconds = out["second_per_grid_ts"] if "second_per_grid_ts" in out else []
            row["seconds"] = [float(s) for s in seconds]
            if not videos:
                row["delta"] = rope_delta(QWEN / folder, out["input_ids"], out["mm_token_type_ids"], out["image_grid_thw"]) \
                    if name != "neighbours" else None  # get_rope_index takes neighbours for one picture
            rows.append(row)
    dump("qwen_prompts.json", rows)
    return len(rows)


if __name__ == "__main__":
    print("sizes", write_sizes(), "frames", write_frames(), "prepared", write_prep(), "videos", make_videos(), "prompts", write_prompts())
