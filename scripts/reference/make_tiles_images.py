"""Writes tests/golden/images/tiles.json: how transformers' image processors cut images into tiles.

    python scripts/reference/make_tiles_images.py       needs numpy, Pillow, torch, torchvision, transformers

Each row: family, its settings, [width, height, rows, columns, tiles and the whole, the last one's width and
height, crc32 of each one's bytes, ...]; the sources are `noise`. Of images over 60 x 60 pixels, up to
1 x 4,000, only the grid is compared.
"""

import random
import zlib

import numpy as np
import torch
from PIL import Image
from transformers.models.got_ocr2 import GotOcr2ImageProcessor
from transformers.models.idefics3 import Idefics3ImageProcessor
from transformers.models.lfm2_vl import Lfm2VlImageProcessor
from transformers.models.granite_docling import GraniteDoclingImageProcessor
from transformers.models.minicpmv4_6 import MiniCPMV4_6ImageProcessor
from transformers.utils import logging

from make_images import dump, noise

logging.set_verbosity_error()
SIZES = [(40, 30), (30, 40), (1, 1), (2, 2), (60, 60), (59, 17), (1, 60), (60, 1), (24, 24), (25, 24),
         (48, 33)]
LARGE = [(4000, 1), (1, 4000), (1600, 1200), (1200, 1600), (333, 2000), (1000, 1000), (512, 512), (513, 512)]


def bytes_of(a, p):
    """The resized bytes: pixel values back through mean and deviation."""
    mean, std = (torch.tensor(x).view(3, 1, 1) * 255 for x in (p.image_mean, p.image_std))
    back = (a * std + mean).double()
    assert (back - back.round()).abs().max() < 1e-2
    return back.round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy()


def idefics3(p, image):
    out = p(image, return_tensors="pt", return_row_col_info=True)
    rows, columns = out["rows"][0][0], out["cols"][0][0]
    return rows or 1, columns or 1, list(out["pixel_values"][0])


def internvl(p, image):
    out = p(image, return_tensors="pt", crop_to_patches=True)
    n = len(out["pixel_values"])
    height, width = image.size[1], image.size[0]
    from transformers.models.got_ocr2.image_processing_got_ocr2 import get_optimal_tiled_canvas as canvas

    columns, rows = canvas((height, width), (p.size.height, p.size.width), p.min_patches, p.max_patches)
    assert n == rows * columns + (rows * columns > 1)
    return rows, columns, list(out["pixel_values"])


def lfm2_vl(p, image):
    out = p(image, return_tensors="pt", return_row_col_info=True)
    side, tiles = p.encoder_patch_size, []
    for a, (h, w) in zip(out["pixel_values"], out["spatial_shapes"].tolist()):
        a = a[: h * w].reshape(h, w, side, side, 3).permute(4, 0, 2, 1, 3)
        tiles.append(a.reshape(3, h * side, w * side))
    return int(out["image_rows"][0]), int(out["image_cols"][0]), tiles


def docling(p, image):
    out = p([[image]], return_tensors="pt")
    return out["rows"][0][0], out["cols"][0][0], list(out["pixel_values"][0])


def minicpm(p, image):
    out = p(image, return_tensors="pt")
    side, at, tiles = p.patch_size, 0, []
    for h, w in out["target_sizes"].tolist():
        a = out["pixel_values"][0, :, :, at : at + h * w * side].reshape(3, side, h, w, side)
        tiles.append(a.permute(0, 2, 1, 3, 4).reshape(3, h * side, w * side))
        at += h * w * side
    rows, columns = out["grids"][0]
    return rows or 1, columns or 1, tiles


SMALL_LFM2 = {"min_image_tokens": 4, "max_image_tokens": 12, "tile_size": 32, "encoder_patch_size": 4}
CASES = [
    ("idefics3", Idefics3ImageProcessor,
     {"max_image_size": {"longest_edge": 16}, "size": {"longest_edge": 60}}, SIZES),
    ("smolvlm", Idefics3ImageProcessor,
     {"max_image_size": {"longest_edge": 20}, "size": {"longest_edge": 33}, "do_image_splitting": False},
     SIZES),
    (
        "idefics3", Idefics3ImageProcessor,
        {"max_image_size": {"longest_edge": 20}, "size": {"longest_edge": 33}, "do_resize": False,
         "resample": 3},
        SIZES),
    ("smolvlm", Idefics3ImageProcessor,
     {"max_image_size": {"longest_edge": 512}, "size": {"longest_edge": 2048}}, LARGE),
    ("internvl", GotOcr2ImageProcessor, {"size": {"height": 16, "width": 16}}, SIZES),
    ("internvl", GotOcr2ImageProcessor,
     {"size": {"height": 20, "width": 20}, "min_patches": 3, "max_patches": 7, "resample": 2}, SIZES),
    ("internvl", GotOcr2ImageProcessor, {"size": {"height": 448, "width": 448}}, LARGE),
    ("lfm2_vl", Lfm2VlImageProcessor, SMALL_LFM2, SIZES),
    ("lfm2_vl", Lfm2VlImageProcessor,
     SMALL_LFM2 | {"use_thumbnail": False, "max_pixels_tolerance": 0.5, "max_tiles": 5}, SIZES),
    ("lfm2_vl", Lfm2VlImageProcessor, SMALL_LFM2 | {"do_image_splitting": False}, SIZES),
    ("lfm2_vl", Lfm2VlImageProcessor, {"encoder_patch_size": 16}, LARGE)]
CASES += [
    ("granite_docling", GraniteDoclingImageProcessor, {"size": {"height": 12, "width": 12}}, SIZES),
    ("granite_docling", GraniteDoclingImageProcessor, {}, LARGE),
    ("minicpmv4_6", MiniCPMV4_6ImageProcessor, {"scale_resolution": 20, "patch_size": 2}, SIZES),
    ("minicpmv4_6", MiniCPMV4_6ImageProcessor, {"scale_resolution": 32, "patch_size": 4, "max_slice_nums": 4},
     SIZES),
    ("minicpmv4_6", MiniCPMV4_6ImageProcessor, {"scale_resolution": 16, "patch_size": 2, "slice_mode": False},
     SIZES),
    ("minicpmv4_6", MiniCPMV4_6ImageProcessor, {"patch_size": 14}, LARGE)]
CUT = {"idefics3": idefics3, "smolvlm": idefics3, "internvl": internvl, "lfm2_vl": lfm2_vl,
       "granite_docling": docling, "minicpmv4_6": minicpm}


def main():
    rows, rnd = [], random.Random(9)
    for family, cls, settings, sizes in CASES:
        p, large, images = cls(**settings), sizes is LARGE, []
        more = [] if large else [(rnd.randint(1, 60), rnd.randint(1, 60)) for _ in range(12)]
        for w, h in sizes + more:
            a = np.zeros((h, w, 3), np.uint8) if large else noise(w, h)
            r, c, tiles = CUT[family](p, Image.fromarray(a))
            sums = [] if large else [zlib.crc32(bytes_of(t, p).tobytes()) for t in tiles]
            images.append([w, h, r, c, len(tiles), tiles[-1].shape[2], tiles[-1].shape[1], *sums])
        rows.append({"family": family, "settings": settings, "images": images})
    dump("tiles.json", rows)
    print(sum(len(r["images"]) for r in rows))


if __name__ == "__main__":
    main()
