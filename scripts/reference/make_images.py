"""Makes tests/golden/images/: small encoded pictures of every kind that is accepted or refused, with what Pillow makes of each; and the
checksums of torchvision's and Pillow's resizes and of Gemma 3's pixel_values.

    python scripts/reference/make_images.py            needs numpy, Pillow, torch, torchvision, transformers

Files:
    files/*            encoded pictures
    expected.json      per file: size and SHA-256 of the RGB bytes after exif_transpose and convert("RGB"), or null where Pillow refuses it;
                       "white": that of the picture over white, where this is another one
    resize.json        [source width, height, width, height, PIL filter, crc32 by torchvision, crc32 by Pillow]; the source is `noise`
    prep.json          settings, source sizes, and the crc32 of each pixel_values [3, S, S] float32 that Gemma3ImageProcessor makes

Names: bad_* are refused, ours_* differ from Pillow on purpose ("ours" says why), all others have Pillow's pixels.
"""
import hashlib
import io
import json
import random
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

OUT = Path(__file__).resolve().parent.parent.parent / "tests" / "golden" / "images"


def noise(width, height):
    """Rows of RGB bytes from a linear congruential generator, the same as in tests/unit/engine/test_image.c."""
    n = width * height * 3
    x, out = 1, bytearray(n)
    for i in range(n):
        x = (1664525 * x + 1013904223) & 0xFFFFFFFF
        out[i] = x >> 24
    return np.frombuffer(bytes(out), np.uint8).reshape(height, width, 3)


def picture(width, height, seed=0):
    """Smooth colors with an edge: compresses well, and shows wrong rows, columns and channels."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    r = np.random.default_rng(seed)
    a = np.stack([128 + 100 * np.sin(x / 5 + y / 9 + k + r.random()) + 25 * ((x + y) % 11 > 5) for k in range(3)], -1)
    return np.clip(a, 0, 255).astype(np.uint8)


# ------------------------------------------------------------------------------------------------------------------ PNG by hand

ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def filtered(row, prior, kind, bpp):
    out = bytearray(row)
    for i in range(len(row)):
        a = row[i - bpp] if i >= bpp else 0
        b = prior[i] if prior else 0
        c = prior[i - bpp] if prior and i >= bpp else 0
        p = a + b - c
        nearest = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
        out[i] = (row[i] - (0, a, b, (a + b) // 2, nearest)[kind]) & 255
    return bytes([kind]) + bytes(out)


def png_rows(samples, depth, filters):
    """samples [h, w, channels] ints -> filtered rows."""
    h, w, ch = samples.shape
    rows, prior = b"", None
    for y in range(h):
        bits = "".join(format(int(v), f"0{depth}b") for v in samples[y].reshape(-1))
        bits += "0" * (-len(bits) % 8)
        row = int(bits, 2).to_bytes(len(bits) // 8, "big") if bits else b""
        rows += filtered(row, prior, filters[y % len(filters)], max(1, depth * ch // 8))
        prior = row
    return rows


def png(samples, depth, color, interlace=False, filters=(0, 1, 2, 3, 4), before=b"", after=b"", palette=None, idat=None, level=9):
    h, w, _ = samples.shape
    raw = b""
    if interlace:
        for x0, y0, dx, dy in ADAM7:
            part = samples[y0::dy, x0::dx]
            if part.shape[0] and part.shape[1]:
                raw += png_rows(part, depth, filters)
    else:
        raw = png_rows(samples, depth, filters)
    data = zlib.compress(raw, level)
    cut = idat or len(data)
    out = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, depth, color, 0, 0, int(interlace)))
    if palette is not None:
        out += chunk(b"PLTE", palette)
    out += before
    for i in range(0, len(data), cut):
        out += chunk(b"IDAT", data[i:i + cut])
    return out + after + chunk(b"IEND", b"")


def tiff(orientation, little=True, kind=3, count=1, extra=b""):
    e = "<" if little else ">"
    value = struct.pack(e + ("H2x" if kind == 3 else "I"), orientation)
    other = struct.pack(e + "HHI4s", 0x010F, 2, 4, b"abc\0")
    return ((b"II*\0" if little else b"MM\0*") + struct.pack(e + "I", 8) + struct.pack(e + "H", 2) + other +
            struct.pack(e + "HHI", 0x0112, kind, count) + value + struct.pack(e + "I", 0) + extra)


def xmp(orientation, attribute=True):
    tag = f'tiff:Orientation="{orientation}"' if attribute else ""
    body = "" if attribute else f"<tiff:Orientation>{orientation}</tiff:Orientation>"
    return (f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF><rdf:Description {tag}>{body}</rdf:Description></rdf:RDF></x:xmpmeta>').encode()


def png_files(files):
    w, h = 21, 13
    r = np.random.default_rng(7)
    kinds = {"gray1": (1, 0, 1), "gray2": (2, 0, 1), "gray4": (4, 0, 1), "gray8": (8, 0, 1), "gray16": (16, 0, 1), "rgb8": (8, 2, 3),
             "rgb16": (16, 2, 3), "pal1": (1, 3, 1), "pal2": (2, 3, 1), "pal4": (4, 3, 1), "pal8": (8, 3, 1), "graya8": (8, 4, 2),
             "graya16": (16, 4, 2), "rgba8": (8, 6, 4), "rgba16": (16, 6, 4)}
    for name, (depth, color, ch) in kinds.items():
        s = r.integers(0, 1 << depth, (h, w, ch))
        if name == "gray16":
            s[::2] = r.integers(0, 300, s[::2].shape)
        palette = bytes(r.integers(0, 256, 3 << depth if depth <= 8 else 768, dtype=np.uint8)) if color == 3 else None
        trns = {0: b"\0\x01", 2: b"\0\x01\0\x02\0\x03", 3: bytes([0, 128])}.get(color)
        for interlace in (False, True):
            files[f"png_{name}{'_adam7' if interlace else ''}.png"] = png(s, depth, color, interlace, palette=palette)
        if trns:
            files[f"png_{name}_trns.png"] = png(s, depth, color, palette=palette, before=chunk(b"tRNS", trns))
        if color in (0, 2):  # the key is a pixel's value, which two pixels have; as it stands, and its high bytes
            s[7, 5] = s[3, 4]
            for what, key in (("key", s[3, 4]), ("key_high", s[3, 4] >> (depth - 8 if depth > 8 else 0))):
                if what == "key" or depth > 8:
                    files[f"png_{name}_{what}.png"] = png(s, depth, color, before=chunk(b"tRNS", b"".join(struct.pack(">H", v) for v in key)))
            wide = s.copy()  # a key of more bits than the samples have: its low byte counts
            if depth > 8:
                wide[3, 4] = 7 if color == 0 else 0x0742
            key = [0x1207] * ch if depth > 8 else s[3, 4] | 0x0500
            files[f"png_{name}_key_wide.png"] = png(wide, depth, color, before=chunk(b"tRNS", b"".join(struct.pack(">H", v) for v in key)))
    pix = picture(17, 9).astype(int)
    one = np.array([[[200, 100, 50]]])
    files["png_1x1.png"] = png(one, 8, 2)
    files["png_1x1_adam7.png"] = png(one, 8, 2, True)
    for i, (iw, ih) in enumerate([(1, 9), (9, 1), (2, 2), (5, 5), (3, 8)]):
        files[f"png_tiny{i}_adam7.png"] = png(picture(iw, ih).astype(int), 8, 2, True)
    files["png_short_palette.png"] = png(r.integers(0, 16, (5, 9, 1)), 4, 3, palette=bytes(range(12)))
    files["png_no_palette.png"] = png(r.integers(0, 16, (5, 9, 1)), 4, 3)
    files["bad_png_long_palette.png"] = png(r.integers(0, 16, (5, 9, 1)), 8, 3, palette=bytes(3 * 257))
    files["png_rgb_with_palette.png"] = png(pix, 8, 2, palette=bytes(range(30)))
    files["png_split_idat.png"] = png(pix, 8, 2, idat=7)
    files["png_stored.png"] = png(pix, 8, 2, level=0)
    files["png_ancillary.png"] = png(pix, 8, 2, before=chunk(b"gAMA", struct.pack(">I", 45455)) + chunk(b"tEXt", b"Comment\0hello") +
                                     chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"x" * 999)), after=chunk(b"tIME", bytes(7)))
    files["png_exif6.png"] = png(pix, 8, 2, before=chunk(b"eXIf", tiff(6)))
    files["png_exif3_after.png"] = png(pix, 8, 2, after=chunk(b"eXIf", tiff(3, little=False)))
    files["png_exif8_prefixed.png"] = png(pix, 8, 2, before=chunk(b"eXIf", b"Exif\0\0" + tiff(8)))
    raw = b"\nexif\n%8d\n" % (len(tiff(5)) + 6) + (b"Exif\0\0" + tiff(5)).hex().encode() + b"\n"
    files["png_raw_profile5.png"] = png(pix, 8, 2, before=chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(raw)))
    files["png_raw_profile5_text.png"] = png(pix, 8, 2, after=chunk(b"tEXt", b"Raw profile type exif\0" + raw))
    for name, flag, text in (("", b"\0\0", xmp(7)), ("_zip", b"\1\0", zlib.compress(xmp(7, False)))):
        files[f"png_xmp7{name}.png"] = png(pix, 8, 2, before=chunk(b"iTXt", b"XML:com.adobe.xmp\0" + flag + b"\0\0" + text))
    files["png_exif1_beats_xmp.png"] = png(pix, 8, 2, before=chunk(b"eXIf", tiff(1)) +
                                           chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp(6)))
    frames = [Image.fromarray(picture(17, 9, s)) for s in range(3)]
    b = io.BytesIO()
    frames[0].save(b, "PNG", save_all=True, append_images=frames[1:], duration=50)
    files["png_animated.png"] = b.getvalue()
    b = io.BytesIO()
    frames[0].save(b, "PNG", save_all=True, append_images=frames[1:], default_image=True, duration=50)
    files["png_animated_default.png"] = b.getvalue()
    good = files["png_rgb8.png"]
    files["bad_png_cut_half.png"] = good[:len(good) // 2]
    files["bad_png_cut_header.png"] = good[:20]
    files["png_cut_iend.png"] = good[:-12]
    files["png_cut_iend_crc.png"] = good[:-3]
    files["bad_png_ihdr_crc.png"] = good[:29] + bytes([good[29] ^ 1]) + good[30:]
    files["png_idat_crc.png"] = good[:-16] + bytes([good[-16] ^ 1]) + good[-15:]
    data = zlib.compress(bytes([9]) + bytes(27) + bytes(28))
    head = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 9, 2, 8, 2, 0, 0, 0))
    files["bad_png_filter.png"] = head + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    files["ours_png_one_row.png"] = head + chunk(b"IDAT", zlib.compress(bytes(28))) + chunk(b"IEND", b"")
    files["png_more_rows.png"] = head + chunk(b"IDAT", zlib.compress(bytes(range(28)) * 2 + bytes(28 * 90))) + chunk(b"IEND", b"")
    # Small files that inflate to 32 MB: as text (a megabyte is all that is looked at), as pixels of a small picture.
    bomb = zlib.compress(bytes(32 << 20), 9)
    files["ours_png_text_bomb.png"] = png(pix, 8, 2, before=chunk(b"zTXt", b"Raw profile type exif\0\0" + bomb))
    files["png_data_bomb.png"] = head + chunk(b"IDAT", bomb) + chunk(b"IEND", b"")
    files["bad_png_no_data.png"] = head + chunk(b"IEND", b"")
    files["bad_png_depth.png"] = good[:16] + struct.pack(">IIBBBBB", w, h, 3, 2, 0, 0, 0) + b"\0\0\0\0" + good[33:]


# ------------------------------------------------------------------------------------------------------------------ the others


def save(img, kind, **options):
    b = io.BytesIO()
    img.save(b, kind, **options)
    return b.getvalue()


def segment(marker, data):
    return b"\xff" + bytes([marker]) + struct.pack(">H", len(data) + 2) + data


def jpeg_files(files):
    for w, h in ((33, 21), (16, 16), (1, 1), (7, 40)):
        img = Image.fromarray(picture(w, h))
        for sub in ("4:4:4", "4:2:2", "4:2:0", "4:1:1", "4:4:0"):
            tag = f"jpeg_{sub.replace(':', '')}_{w}x{h}"
            try:
                files[tag + ".jpg"] = save(img, "JPEG", quality=85, subsampling=sub)
                files[tag + "_prog.jpg"] = save(img, "JPEG", quality=70, subsampling=sub, progressive=True)
            except (ValueError, TypeError):
                if sub not in ("4:4:0",):
                    raise
    img = Image.fromarray(picture(45, 37))
    base = save(img, "JPEG", quality=90, subsampling="4:2:2")
    at = base.index(b"\xff\xc0")  # sampling of the first component 2x1 -> 1x2: same number of blocks, another picture
    turned = bytearray(base)
    turned[at + 11] = 0x12
    files["jpeg_440.jpg"] = bytes(turned)
    files["jpeg_gray.jpg"] = save(img.convert("L"), "JPEG")
    files["jpeg_gray_prog.jpg"] = save(img.convert("L"), "JPEG", progressive=True)
    files["jpeg_restart.jpg"] = save(img, "JPEG", restart_marker_rows=1)
    files["jpeg_restart_blocks.jpg"] = save(img, "JPEG", restart_marker_blocks=2)
    files["jpeg_adobe_rgb.jpg"] = save(img, "JPEG", keep_rgb=True)
    files["jpeg_optimized_q30.jpg"] = save(img, "JPEG", quality=30, optimize=True)
    cmyk = np.concatenate([picture(31, 23, 3), picture(31, 23, 4)[..., :1]], -1)
    files["jpeg_cmyk.jpg"] = save(Image.fromarray(cmyk, "CMYK"), "JPEG", quality=95)
    c = bytearray(files["jpeg_cmyk.jpg"])
    adobe = c.index(b"Adobe")
    c[adobe + 11] = 2
    files["jpeg_ycck.jpg"] = bytes(c)
    files["jpeg_cmyk_no_adobe.jpg"] = bytes(c[:adobe - 4] + c[adobe + 12:])
    for o in range(0, 10):
        files[f"jpeg_exif{o}.jpg"] = save(Image.fromarray(picture(11, 5)), "JPEG", exif=b"Exif\0\0" + tiff(o, o % 2 == 0))
    small = save(Image.fromarray(picture(11, 5)), "JPEG")
    xap = b"http://ns.adobe.com/xap/1.0/\0"
    with_segments = {
        "jpeg_exif_long6": [(0xE1, b"Exif\0\0" + tiff(6, kind=4))],
        "jpeg_exif_count2": [(0xE1, b"Exif\0\0" + tiff(6, count=2))],
        "jpeg_exif_in_app2": [(0xE2, b"Exif\0\0" + tiff(6))],
        "jpeg_exif_other_app1": [(0xE1, b"something else"), (0xE1, b"Exif\0\0" + tiff(6))],
        "jpeg_xmp6": [(0xE1, xap + xmp(6))], "jpeg_xmp6_element": [(0xE1, xap + xmp(6, False))],
        "jpeg_xmp_two": [(0xE1, xap + xmp(6)), (0xE1, xap + xmp(8))],
        "jpeg_exif3_xmp6": [(0xE1, xap + xmp(6)), (0xE1, b"Exif\0\0" + tiff(3))],
        "jpeg_exif_no_tag_xmp8": [(0xE1, xap + xmp(8)), (0xE1, b"Exif\0\0" + b"II*\0\x08\0\0\0\0\0\0\0\0\0")],
        "jpeg_comment": [(0xFE, b"hello"), (0xE5, b"\xff\xda\xff\xd8")],
        "ours_jpeg_exif_bad_magic": [(0xE1, b"Exif\0\0" + b"XX" + tiff(6)[2:])],
        "jpeg_exif_offset": [(0xE1, b"Exif\0\0" + b"II*\0\xff\xff\xff\x7f")],
        "jpeg_exif_cut": [(0xE1, b"Exif\0\0" + tiff(6)[:30])]}
    for name, segments in with_segments.items():
        files[name + ".jpg"] = small[:2] + b"".join(segment(m, d) for m, d in segments) + small[2:]
    files["jpeg_junk_between.jpg"] = small[:20] + b"\xff\xff\xff" + small[20:]
    files["jpeg_trailing.jpg"] = small + b"trailing bytes"
    big = files["jpeg_420_33x21.jpg"]
    files["bad_jpeg_cut_half.jpg"] = big[:len(big) // 2 + 150]
    files["bad_jpeg_cut_header.jpg"] = big[:100]
    files["bad_jpeg_no_eoi.jpg"] = big[:-2]
    prog = files["jpeg_420_33x21_prog.jpg"]
    files["bad_jpeg_prog_cut.jpg"] = prog[:-40]
    files["bad_jpeg_prog_no_eoi.jpg"] = prog[:-2]
    sof = big.index(b"\xff\xc0")
    files["bad_jpeg_12bit.jpg"] = big[:sof + 4] + b"\x0c" + big[sof + 5:]
    files["bad_jpeg_2_components.jpg"] = big[:sof + 9] + b"\x02" + big[sof + 10:]
    files["bad_jpeg_zero_height.jpg"] = big[:sof + 5] + b"\0\0" + big[sof + 7:]
    files["bad_jpeg_soi_only.jpg"] = b"\xff\xd8\xff\xd9"
    files["bad_jpeg_lossless.jpg"] = big[:sof + 1] + b"\xc3" + big[sof + 2:]
    files["jpeg_corrupt_scan.jpg"] = big[:-60] + bytes(255 - v if v not in (0, 255) else v for v in big[-60:-40]) + big[-40:]


def webp_files(files):
    rgb, other = picture(37, 25), picture(20, 11, 5)
    alpha = np.concatenate([rgb, (np.arange(37 * 25) % 256).astype(np.uint8).reshape(25, 37, 1)], -1)
    img, rgba = Image.fromarray(rgb), Image.fromarray(alpha, "RGBA")
    files["webp_lossy.webp"] = save(img, "WEBP", quality=80)
    files["webp_lossy_q20.webp"] = save(img, "WEBP", quality=20)
    files["webp_lossless.webp"] = save(img, "WEBP", lossless=True)
    files["webp_lossy_alpha.webp"] = save(rgba, "WEBP", quality=80)
    files["webp_lossless_alpha.webp"] = save(rgba, "WEBP", lossless=True)
    files["webp_lossless_alpha_exact.webp"] = save(rgba, "WEBP", lossless=True, exact=True)
    files["webp_1x1.webp"] = save(img.crop((0, 0, 1, 1)), "WEBP")
    files["webp_exif6.webp"] = save(img, "WEBP", exif=tiff(6))
    files["webp_exif5_prefixed.webp"] = save(img, "WEBP", lossless=True, exif=b"Exif\0\0" + tiff(5))
    files["webp_xmp8.webp"] = save(img, "WEBP", xmp=xmp(8))
    files["webp_exif2_xmp8.webp"] = save(img, "WEBP", exif=tiff(2), xmp=xmp(8))
    frames = [rgba, Image.fromarray(picture(37, 25, 9)).convert("RGBA")]
    files["webp_animated.webp"] = save(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    files["webp_animated_lossy.webp"] = save(frames[1], "WEBP", save_all=True, append_images=frames[:1], quality=60)
    # A first frame that covers a part of the canvas only.
    for name, lossless in (("lossless", True), ("lossy", False)):
        part = save(Image.fromarray(other), "WEBP", lossless=lossless)[12:]
        u24 = lambda v: struct.pack("<I", v)[:3]
        anmf = u24(4) + u24(3) + u24(20 - 1) + u24(11 - 1) + u24(40) + b"\0" + part
        body = b"VP8X" + struct.pack("<I", 10) + b"\x02\0\0\0" + u24(40 - 1) + u24(30 - 1)
        body += b"ANIM" + struct.pack("<I", 6) + b"\xff\x80\x40\xff\0\0" + b"ANMF" + struct.pack("<I", len(anmf)) + anmf
        files[f"webp_animated_part_{name}.webp"] = b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body
    good = files["webp_lossy.webp"]
    files["bad_webp_cut.webp"] = good[:len(good) // 2]
    files["bad_webp_header.webp"] = good[:24]
    good = files["webp_lossless.webp"]
    files["bad_webp_lossless_cut.webp"] = good[:len(good) // 2]
    files["bad_webp_unknown.webp"] = good[:12] + b"VP8Q" + good[16:]


def gif(canvas, frames, palette=None, trailer=True, background=0):
    """frames: (x, y, indices [h, w], local palette, transparent index or None, interlaced)."""
    def packed(p):
        bits = max(1, (len(p) // 3 - 1).bit_length())
        return bits, p + bytes((3 << bits) - len(p))
    out = b"GIF89a" + struct.pack("<HH", *canvas)
    if palette is not None:
        bits, p = packed(palette)
        out += bytes([0x80 | (bits - 1), background, 0]) + p
    else:
        out += bytes([0, background, 0])
    for x, y, idx, local, transparent, interlaced in frames:
        if transparent is not None:
            out += b"\x21\xf9\x04" + bytes([1, 5, 0, transparent]) + b"\0"
        h, w = idx.shape
        flags = 0x40 if interlaced else 0
        if local is not None:
            bits, p = packed(local)
            flags |= 0x80 | (bits - 1)
        out += b"," + struct.pack("<HHHHB", x, y, w, h, flags) + (p if local is not None else b"")
        if interlaced:
            idx = np.concatenate([idx[0::8], idx[4::8], idx[2::4], idx[1::2]])
        size = max(2, int(idx.max()).bit_length())
        out += bytes([size])
        data = lzw(idx.reshape(-1).tolist(), size)
        for i in range(0, len(data), 255):
            out += bytes([len(data[i:i + 255])]) + data[i:i + 255]
        out += b"\0"
    return out + (b";" if trailer else b"")


def lzw(values, size):
    clear, end = 1 << size, (1 << size) + 1
    bits, count, out = 0, 0, bytearray()
    def put(code, width):
        nonlocal bits, count
        bits |= code << count
        count += width
        while count >= 8:
            out.append(bits & 255)
            bits >>= 8
            count -= 8
    table, width, nxt, cur = {(i,): i for i in range(clear)}, size + 1, clear + 2, ()
    put(clear, width)
    for v in values:
        if cur + (v,) in table:
            cur += (v,)
            continue
        put(table[cur], width)
        if nxt < 4096:
            table[cur + (v,)] = nxt
            if nxt == 1 << width and width < 12:
                width += 1
            nxt += 1
        else:
            put(clear, width)
            table, width, nxt = {(i,): i for i in range(clear)}, size + 1, clear + 2
        cur = (v,)
    put(table[cur], width)
    put(end, width)
    if count:
        out.append(bits & 255)
    return bytes(out)


def gif_files(files):
    r = np.random.default_rng(3)
    pal = bytes(r.integers(0, 256, 48, dtype=np.uint8))
    other = bytes(r.integers(0, 256, 24, dtype=np.uint8))
    idx = r.integers(0, 16, (19, 23))
    full = [(0, 0, idx, None, None, False)]
    gray = bytes(v for i in range(256) for v in (i, i, i))
    files["gif_plain.gif"] = gif((23, 19), full, pal)
    files["gif_interlaced.gif"] = gif((23, 19), [(0, 0, idx, None, None, True)], pal)
    for h in (1, 2, 3, 5, 8):
        files[f"gif_interlaced_{h}.gif"] = gif((23, h), [(0, 0, idx[:h], None, None, True)], pal)
    files["gif_local_palette.gif"] = gif((23, 19), [(0, 0, idx % 8, other, None, False)], pal)
    files["gif_only_local.gif"] = gif((23, 19), [(0, 0, idx % 8, other, None, False)])
    files["gif_transparent.gif"] = gif((23, 19), [(0, 0, idx, None, 3, False)], pal)
    files["gif_part.gif"] = gif((30, 25), [(4, 3, idx, None, None, False)], pal, background=5)
    files["gif_part_transparent.gif"] = gif((30, 25), [(4, 3, idx, None, 7, False)], pal, background=5)
    files["gif_part_local.gif"] = gif((30, 25), [(4, 3, idx % 8, other, 2, False)], pal, background=5)
    files["gif_outside.gif"] = gif((10, 10), [(4, 3, idx, None, None, False)], pal)
    files["gif_no_palette.gif"] = gif((23, 19), full)
    files["gif_gray.gif"] = gif((23, 19), [(0, 0, idx * 15, None, None, False)], gray)
    files["gif_gray_short.gif"] = gif((23, 19), full, gray[:24])
    files["ours_gif_gray_local.gif"] = gif((23, 19), [(0, 0, idx, gray[:48], None, False)], pal)
    files["gif_gray_only_local.gif"] = gif((23, 19), [(0, 0, idx, gray[:48], None, False)])
    files["gif_short_palette.gif"] = gif((23, 19), full, pal[:24])
    files["gif_animated.gif"] = gif((23, 19), full + [(2, 2, idx[:5, :5], None, 1, False)], pal)
    long = r.integers(0, 256, (70, 110))
    files["gif_long.gif"] = gif((110, 70), [(0, 0, long, None, None, False)], bytes(r.integers(0, 256, 768, dtype=np.uint8)))
    files["gif_runs.gif"] = gif((110, 70), [(0, 0, long * 0 + 1, None, None, False)], pal)
    files["gif_by_pillow.gif"] = save(Image.fromarray(picture(40, 30)).quantize(32), "GIF")
    files["gif_no_trailer.gif"] = gif((23, 19), full, pal, trailer=False)
    good = files["gif_plain.gif"]
    files["bad_gif_cut.gif"] = good[:len(good) * 2 // 3]
    files["bad_gif_no_frame.gif"] = gif((23, 19), [], pal)
    files["bad_gif_header.gif"] = good[:11]
    files["bad_gif_too_few.gif"] = gif((23, 19), [(0, 0, idx[:10], None, None, False)], pal).replace(
        struct.pack("<HHHHB", 0, 0, 23, 10, 0), struct.pack("<HHHHB", 0, 0, 23, 19, 0))


def bmp(w, h, bits, rows, compression=0, palette=None, header=40, masks=b"", colors=0, offset=None, entry=4):
    if header == 12:
        info = struct.pack("<IHHHH", 12, w, h, 1, bits)
    else:
        info = struct.pack("<IiiHHIIiiII", header, w, h, 1, bits, compression, len(rows), 2835, 2835, colors, 0)
        info += (masks + bytes(header))[:header - 40] if header > 40 else b""
    body = info + (masks if header == 40 else b"") + (palette or b"")
    at = 14 + len(body) if offset is None else offset
    return b"BM" + struct.pack("<IHHI", 14 + len(body) + len(rows), 0, 0, at) + body + rows


def bmp_files(files):
    r = np.random.default_rng(11)
    w, h = 19, 7
    for bits in (1, 4, 8, 16, 24, 32):
        stride = (w * bits + 31) // 32 * 4
        rows = bytes(r.integers(0, 256, stride * h, dtype=np.uint8))
        pal = bytes(r.integers(0, 256, 4 << bits, dtype=np.uint8)) if bits <= 8 else None
        files[f"bmp_{bits}.bmp"] = bmp(w, h, bits, rows, palette=pal)
        files[f"bmp_{bits}_down.bmp"] = bmp(w, -h, bits, rows, palette=pal)
        for size in (52, 56, 64, 108, 124):
            if bits in (8, 24) and size != 108:
                files[f"bmp_{bits}_v{size}.bmp"] = bmp(w, h, bits, rows, palette=pal, header=size)
        if bits <= 8:
            pal3 = bytes(r.integers(0, 256, 3 << bits, dtype=np.uint8))
            files[f"bmp_{bits}_os2.bmp"] = bmp(w, h, bits, rows, palette=pal3, header=12, entry=3)
        if bits == 24:
            files["bmp_24_os2.bmp"] = bmp(w, h, bits, rows, header=12)
            files["bmp_24_fields.bmp"] = bmp(w, h, 24, rows, 3, masks=struct.pack("<III", 0xFF0000, 0xFF00, 0xFF))
            files["bad_bmp_24_cut.bmp"] = files["bmp_24.bmp"][:-40]
            files["bmp_24_cut_padding.bmp"] = files["bmp_24.bmp"][:-(stride - w * 3)]
            files["bad_bmp_fields.bmp"] = bmp(w, h, 24, rows, 3, masks=struct.pack("<III", 0xFF, 0xFF00, 0xFF0000))
            files["bad_bmp_header.bmp"] = files["bmp_24.bmp"][:30]
            files["bad_bmp_zero.bmp"] = bmp(0, h, 24, b"")
            files["bad_bmp_jpeg.bmp"] = bmp(w, h, 24, rows, 4)
        if bits == 16:
            files["bmp_565.bmp"] = bmp(w, h, 16, rows, 3, masks=struct.pack("<III", 0xF800, 0x7E0, 0x1F))
            files["bmp_555.bmp"] = bmp(w, h, 16, rows, 3, masks=struct.pack("<III", 0x7C00, 0x3E0, 0x1F))
        if bits == 32:
            for i, m in enumerate([(0xFF0000, 0xFF00, 0xFF, 0), (0xFF000000, 0xFF0000, 0xFF00, 0), (0xFF000000, 0xFF00, 0xFF, 0),
                                   (0xFF000000, 0xFF0000, 0xFF00, 0xFF), (0xFF, 0xFF00, 0xFF0000, 0xFF000000),
                                   (0xFF0000, 0xFF00, 0xFF, 0xFF000000), (0xFF000000, 0xFF00, 0xFF, 0xFF0000), (0, 0, 0, 0)]):
                files[f"bmp_32_fields{i}.bmp"] = bmp(w, h, 32, rows, 3, header=108, masks=struct.pack("<IIII", *m))
            files["bmp_32_fields_v40.bmp"] = bmp(w, h, 32, rows, 3, masks=struct.pack("<III", 0xFF0000, 0xFF00, 0xFF))
    stride = (w * 8 + 31) // 32 * 4
    low = bytes(r.integers(0, 20, stride * h, dtype=np.uint8))
    short = bytes(r.integers(0, 256, 40, dtype=np.uint8))
    files["bmp_8_short_palette.bmp"] = bmp(w, h, 8, low, palette=short, colors=10)
    files["bmp_8_offset_at_palette.bmp"] = bmp(w, h, 8, low, palette=short, colors=10, offset=54)
    files["bmp_8_offset0.bmp"] = bmp(w, h, 8, low, palette=short, colors=10, offset=0)
    gray = bytes(v for i in range(256) for v in (i, i, i, 0))

    def row(nibbles):  # the same pixels in three bytes each, padded to 4 bytes
        values = [v for b in nibbles for v in (b >> 4, b & 15)][:w]
        return bytes(v for v in values for _ in range(3)) + bytes(-3 * w % 4)

    files["bmp_8_gray.bmp"] = bmp(w, h, 8, low, palette=gray)
    files["ours_bmp_4_gray.bmp"] = bmp(w, h, 4, low[:12 * h], palette=gray[:64])
    files["bmp_4_gray_as_24.bmp"] = bmp(w, h, 24, b"".join(row(low[12 * y:12 * y + 12]) for y in range(h)))
    files["bmp_1_black_white.bmp"] = bmp(w, h, 1, low[:4 * h], palette=bytes([0, 0, 0, 0, 255, 255, 255, 0]))
    pal = bytes(r.integers(0, 256, 1024, dtype=np.uint8))
    rle8 = b"".join(bytes([5, y, 3, y + 1]) + bytes([0, 5]) + bytes([1, 2, 3, 4, 5, 0]) + bytes([6, 9]) + b"\0\0" for y in range(h)) + b"\0\1"
    files["bmp_rle8.bmp"] = bmp(w, h, 8, rle8, 1, palette=pal)
    rle4 = b"".join(bytes([7, 0x12, 0, 5]) + bytes([0x34, 0x56, 0x70, 0]) + bytes([7, 0x9A]) + b"\0\0" for y in range(h)) + b"\0\1"
    files["bmp_rle4.bmp"] = bmp(w, h, 4, rle4, 2, palette=pal[:64])
    files["bmp_rle8_delta.bmp"] = bmp(w, h, 8, bytes([4, 7, 0, 2, 3, 2, 12, 9, 0, 0]) + bytes([30, 5, 0, 0]) * 6 + b"\0\1", 1, palette=pal)
    files["bmp_rle8_short_rows.bmp"] = bmp(w, h, 8, bytes([4, 7, 0, 0]) * h + b"\0\1", 1, palette=pal)
    files["bad_bmp_rle8_early_end.bmp"] = bmp(w, h, 8, bytes([4, 7, 0, 1]), 1, palette=pal)
    files["bmp_by_pillow.bmp"] = save(Image.fromarray(picture(20, 10)), "BMP")


def reference(data):
    """What HF's load_image does. None when Pillow refuses."""
    try:
        img = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    except Exception as e:
        return None, f"{type(e).__name__}: {e}"
    return img, ""


def on_white(data):
    """What HF's processors make of a picture that Pillow gives them (transformers.image_transforms.convert_to_rgb), where transparency shows."""
    img = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if "A" not in img.getbands() and img.info.get("transparency") is None:
        return None
    return Image.alpha_composite(Image.new("RGBA", img.size, (255, 255, 255, 255)), img.convert("RGBA")).convert("RGB")


# Where we differ from Pillow on purpose: name -> (another file whose pixels are expected, or None for a refusal; why).
OURS = {
    "ours_jpeg_exif_bad_magic.jpg": ("jpeg_exif0.jpg", "broken EXIF is ignored; Pillow raises SyntaxError"),
    "ours_gif_gray_local.gif": ("gif_gray_only_local.gif", "Pillow shows the frame's gray palette in the colors of the global one"),
    "ours_bmp_4_gray.bmp": ("bmp_4_gray_as_24.bmp", "Pillow takes 16 shades of gray for bytes: an error, or the shades of other pixels"),
    "ours_png_one_row.png": (None, "Pillow leaves the missing rows black when the stream ends at a row's end"),
    "ours_png_text_bomb.png": ("png_split_idat.png", "text without a meaning for us is not inflated; Pillow raises ValueError"),
}

# What Pillow reads and we refuse: why -> names.
REFUSED = {
    "16-bit BMP is not taken":
        "bmp_16.bmp bmp_16_down.bmp bmp_555.bmp bmp_565.bmp",
    "run-length BMP is not taken":
        "bmp_rle4.bmp bmp_rle8.bmp bmp_rle8_delta.bmp bmp_rle8_short_rows.bmp",
    "OS/2's BMP is not taken":
        "bmp_1_os2.bmp bmp_4_os2.bmp bmp_8_os2.bmp bmp_24_os2.bmp",
    "a BMP header that next to nobody writes":
        "bmp_8_v52.bmp bmp_8_v56.bmp bmp_8_v64.bmp bmp_24_v52.bmp bmp_24_v56.bmp bmp_24_v64.bmp",
    "bit fields that next to nobody writes":
        "bmp_24_fields.bmp bmp_32_fields7.bmp",
    "the header points elsewhere than to the pixels":
        "bmp_8_offset0.bmp bmp_8_offset_at_palette.bmp",
    "pixels have colors that the palette lacks; black for Pillow":
        "bmp_8_short_palette.bmp",
    "a wrong checksum, which Pillow does not look at here":
        "png_idat_crc.png",
    "inflates to far more than the picture needs; Pillow stops there":
        "png_data_bomb.png",
}


def make_files():
    files = {}
    for f in (png_files, jpeg_files, webp_files, gif_files, bmp_files):
        f(files)
    for why, names in REFUSED.items():
        for name in names.split():
            files["ours_" + name] = files.pop(name)
            OURS["ours_" + name] = (None, why)
    files["bad_text.bin"] = b"this is not a picture\n"
    return files


def write_files():
    files, expected = make_files(), []
    folder = OUT / "files"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for name in sorted(files):
        (folder / name).write_bytes(files[name])
        entry = {"file": name}
        if name.startswith("ours_"):
            same_as, entry["ours"] = OURS[name]
            data = files[same_as] if same_as else None
            img = reference(data)[0] if same_as else None
        else:
            data = files[name]
            img, why = reference(data)
            assert (img is None) == name.startswith("bad_"), (name, why)
        if img is None:
            entry["sha256"] = None
        else:
            entry |= {"width": img.width, "height": img.height, "sha256": hashlib.sha256(img.tobytes()).hexdigest()}
            white = on_white(data)
            if white and white.tobytes() != img.tobytes():
                entry["white"] = hashlib.sha256(white.tobytes()).hexdigest()
        expected.append(entry)
    dump("expected.json", expected)
    return len(expected), sum(len(v) for v in files.values())


def dump(name, rows):
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / name).write_text("[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]\n")


# ------------------------------------------------------------------------------------------------------------------ resize, prep


def write_resize():
    import torch
    from torchvision.transforms.v2 import functional as tv
    rnd, rows = random.Random(4), []
    sizes = [(217, 123, 84, 56), (217, 123, 224, 224), (217, 123, 100, 123), (217, 123, 217, 300), (7, 900, 28, 28), (900, 7, 28, 28), (2, 2, 9, 5),
             (5, 3, 3, 2), (33, 33, 33, 33), (64, 48, 1, 2), (40, 30, 896, 896), (50, 200, 300, 100), (300, 100, 50, 200)]
    for _ in range(60):
        sizes.append(tuple(rnd.randint(2, rnd.choice((8, 60, 200))) for _ in range(4)))
    for w, h, ow, oh in sizes:
        a = noise(w, h)
        t = torch.from_numpy(a.copy()).permute(2, 0, 1).contiguous()
        for code, mode in ((1, tv.InterpolationMode.LANCZOS), (2, tv.InterpolationMode.BILINEAR),
                           (3, tv.InterpolationMode.BICUBIC)):
            by_torch = tv.resize(t, [oh, ow], interpolation=mode, antialias=True).permute(1, 2, 0).contiguous().numpy()
            by_pil = np.asarray(Image.fromarray(a).resize((ow, oh), code))
            rows.append([w, h, ow, oh, code, zlib.crc32(by_torch.tobytes()), zlib.crc32(by_pil.tobytes())])
    dump("resize.json", rows)
    return len(rows)


def write_prep():
    from transformers import Gemma3ImageProcessor
    pan = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 32, "pan_and_scan_max_num_crops": 4,
           "pan_and_scan_min_ratio_to_activate": 1.2}
    cases = [({}, [(30, 20)]),
             ({"size": {"height": 48, "width": 32}}, [(70, 31), (32, 48)]),
             ({"size": {"height": 28, "width": 28}, "resample": 3, "image_mean": [0.48145466, 0.4578275, 0.40821073],
               "image_std": [0.26862954, 0.26130258, 0.27577711]}, [(61, 45)]),
             ({"size": {"height": 28, "width": 28}, "do_normalize": False}, [(33, 50)]),
             ({"size": {"height": 28, "width": 28}, "do_rescale": False}, [(33, 50)]),
             ({"size": {"height": 28, "width": 28}, "do_rescale": False, "do_normalize": False}, [(33, 50)]),
             ({"size": {"height": 28, "width": 28}, "rescale_factor": 0.00784313725490196}, [(33, 50)]),
             ({"size": {"height": 32, "width": 32}, **pan},
              [(100, 100), (119, 100), (120, 100), (200, 80), (80, 200), (400, 70), (50, 500), (331, 90), (90, 33), (101, 34), (64, 32)])]
    rows = []
    for settings, sizes in cases:
        p = Gemma3ImageProcessor(**settings)
        for w, h in sizes:
            out = p(Image.fromarray(noise(w, h)), return_tensors="np")["pixel_values"].astype("<f4")
            rows.append({"settings": settings, "width": w, "height": h, "crc32": [zlib.crc32(v.tobytes()) for v in out]})
    dump("prep.json", rows)
    return len(rows)


if __name__ == "__main__":
    print("files", *write_files(), "resizes", write_resize(), "prepared", write_prep())
