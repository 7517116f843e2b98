/* PNG: the chunks are walked here, stb_image reads the pixels, and the conversion to RGB is Pillow's (16-bit
 * gray is clipped, other 16-bit samples lose their low byte, transparency of any kind is ignored, or blended
 * over white if image_limits sets it). stb_image gets only IHDR and the pixel data: palettes and transparency
 * are applied here. Any thread. */
#include "server/media/codec.h"

#include "config/base/hex.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include <zlib.h>

enum {
    SIGNATURE = 8,
    HEAD = SIGNATURE + 25, /* with IHDR */
    AROUND = 12,           /* of a chunk: length, type, CRC */
    GRAY = 0,
    RGB = 2,
    PALETTE = 3,
    GRAY_ALPHA = 4,
    RGB_ALPHA = 6,
    TEXT_MAX = 1 << 20,   /* inflated bytes of a compressed text chunk that may hold the orientation */
    TEXTS_MAX = 16,       /* such chunks: a kilobyte of file may inflate to a megabyte */
    SPARE = 64 << 10,     /* ignored bytes of pixel data after the last row */
    BLOCK = 32 << 10,     /* bytes inflated at a time; a stored block has at most 65,535 */
    DEFLATE_RATIO = 1032, /* no deflate stream inflates to more than this many times its size */
};

struct png {
    struct image_bytes in;
    const struct image_limits *limits;
    struct err *err;
    uint32_t width, height, channels;
    uint8_t depth, color;
    uint8_t palette[256 * 3]; /* black beyond its end */
    /* the tRNS chunk: alpha of palette entries, or the samples that are transparent */
    struct image_bytes trns;
    struct image_bytes idat; /* the consecutive IDAT chunks */
    struct image_bytes exif, xmp;
    uint8_t *exif_text, *xmp_text; /* owned: decoded text that exif or xmp point into */
    uint32_t texts;                /* looked at so far */
    bool no_memory;                /* for one of these texts */
};

struct chunk {
    char type[5];
    struct image_bytes data;
};

static enum image_error bad(struct png *p, const char *what)
{
    return image__fail(p->err, IMAGE_BAD_DATA, "not a valid PNG file: %s", what);
}

/* Reads the chunk at *at and advances *at past it. */
static enum image_error next_chunk(struct png *p, size_t *at, struct chunk *c)
{
    const uint8_t *h = p->in.p + *at;
    size_t left = p->in.len - *at, len = left >= AROUND ? image__be32(h) : 0;
    if (left < AROUND || len > left - AROUND) return bad(p, "truncated");
    if (crc32(0, h + 4, (uInt)len + 4) != image__be32(h + 8 + len))
        return bad(p, "the checksum of a chunk is wrong");
    memcpy(c->type, h + 4, 4);
    c->type[4] = '\0';
    c->data = (struct image_bytes){.p = h + 8, .len = len};
    *at += len + AROUND;
    return IMAGE_OK;
}

static enum image_error read_ihdr(struct png *p, const struct chunk *c)
{
    static const uint8_t channels[] = {1, 0, 3, 1, 2, 0, 4};
    const uint8_t *h = c->data.p;
    if (c->data.len != 13) return bad(p, "IHDR has another length than 13");
    p->width = image__be32(h);
    p->height = image__be32(h + 4);
    p->depth = h[8];
    p->color = h[9];
    p->channels = p->color < sizeof channels ? channels[p->color] : 0;
    bool few = p->color == GRAY || p->color == PALETTE;
    bool known = p->depth == 8 || (p->depth == 16 && p->color != PALETTE) ||
                 (few && (p->depth == 1 || p->depth == 2 || p->depth == 4));
    if (!p->channels || !known) return bad(p, "unknown combination of bit depth and color type");
    return image__check_size(p->width, p->height, p->limits, p->err);
}

static enum image_error read_palette(struct png *p, const struct chunk *c)
{
    if (p->color != PALETTE) return IMAGE_OK; /* only a suggestion */
    if (c->data.len > sizeof p->palette) return bad(p, "the palette has more than 256 colors");
    memcpy(p->palette, c->data.p, c->data.len / 3 * 3);
    return IMAGE_OK;
}

/* Decodes a hex dump; other characters are skipped. */
static size_t unhex(const uint8_t *in, size_t len, uint8_t *out)
{
    size_t n = 0;
    int high = -1;
    for (size_t i = 0; i < len; i++) {
        int v = hex_digit((char)in[i]);
        if (v < 0) continue;
        if (high < 0) {
            high = v;
        } else {
            out[n++] = (uint8_t)(high << 4 | v);
            high = -1;
        }
    }
    return n;
}

/* Text, plain or inflated, in memory that the caller frees. len 0: nothing usable. */
static struct image_bytes take_text(struct png *p, struct image_bytes text, bool compressed, uint8_t **owned)
{
    struct image_bytes out = {0};
    uLongf bytes = TEXT_MAX;
    int end = Z_OK;
    *owned = calloc(1, compressed ? TEXT_MAX + 1 : text.len + 1);
    if (*owned && compressed) {
        end = uncompress(*owned, &bytes, text.p, text.len);
        out.len = end == Z_OK ? bytes : 0;
    } else if (*owned && text.len) {
        memcpy(*owned, text.p, out.len = text.len);
    }
    p->no_memory = p->no_memory || !*owned || end == Z_MEM_ERROR;
    out.p = *owned;
    return out;
}

/* "\nexif\n 40\n<hex>": written by ImageMagick instead of an eXIf chunk. */
static void read_raw_profile(struct png *p, struct image_bytes text, bool compressed)
{
    uint8_t *owned;
    struct image_bytes t = take_text(p, text, compressed, &owned);
    size_t at = 0;
    for (int newlines = 0; newlines < 3 && at < t.len; at++) newlines += t.p[at] == '\n';
    free(p->exif_text);
    p->exif_text = owned;
    if (t.len) t.len = unhex(t.p + at, t.len - at, owned);
    p->exif = t;
}

/* tEXt, zTXt and iTXt: only two keys matter. Others are not even inflated. */
static void read_text(struct png *p, const struct chunk *c)
{
    static const char raw[] = "Raw profile type exif", xmp[] = "XML:com.adobe.xmp";
    struct image_bytes t = c->data;
    const uint8_t *nul = memchr(t.p, 0, t.len < 80 ? t.len : 80);
    if (!nul) return;
    size_t key = (size_t)(nul - t.p);
    bool is_raw = key == sizeof raw - 1 && memcmp(t.p, raw, key) == 0;
    bool is_xmp = key == sizeof xmp - 1 && memcmp(t.p, xmp, key) == 0;
    if ((!is_raw && !is_xmp) || (is_raw && p->exif.len && !p->exif_text)) return; /* an eXIf chunk wins */
    if (++p->texts > TEXTS_MAX) return;                                           /* refused */
    t.p += key + 1;
    t.len -= key + 1;
    bool compressed = c->type[0] == 'z';
    if (c->type[0] == 'i') { /* flag, method, language NUL, translated key NUL */
        if (t.len < 2) return;
        compressed = t.p[0] != 0;
        t.p += 2;
        t.len -= 2;
        for (int i = 0; i < 2; i++) {
            const uint8_t *end = memchr(t.p, 0, t.len);
            if (!end) return;
            t.len -= (size_t)(end + 1 - t.p);
            t.p = end + 1;
        }
    } else if (compressed) {
        if (!t.len) return;
        t.p++; /* method */
        t.len--;
    }
    if (is_raw) {
        read_raw_profile(p, t, compressed);
    } else {
        free(p->xmp_text);
        p->xmp = take_text(p, t, compressed, &p->xmp_text);
    }
}

static void read_metadata(struct png *p, const struct chunk *c)
{
    if (strcmp(c->type, "eXIf") == 0) {
        free(p->exif_text);
        p->exif_text = NULL;
        p->exif = c->data;
    } else if (strcmp(c->type, "tEXt") == 0 || strcmp(c->type, "zTXt") == 0 || strcmp(c->type, "iTXt") == 0) {
        read_text(p, c);
    }
}

/* Of an animation the first frame is used, which must cover the canvas. */
static bool covers(const struct png *p, const struct chunk *c)
{
    const uint8_t *b = c->data.p;
    return c->data.len >= 26 && image__be32(b + 4) == p->width && image__be32(b + 8) == p->height &&
           !image__be32(b + 12) && !image__be32(b + 16);
}

/* All chunks, up to IEND. Metadata may come after the pixels, but not after the start of an animation's next
 * frame. */
static enum image_error read_chunks(struct png *p)
{
    bool before = true, more = true; /* pixels come; metadata may come */
    for (size_t at = SIGNATURE;;) {
        struct chunk c;
        bool first = at == SIGNATURE;
        enum image_error f = next_chunk(p, &at, &c);
        if (f && !before) { /* whole pixels are enough, as for Pillow; they are checked later */
            p->err->msg[0] = '\0';
            return IMAGE_OK;
        }
        if (f) return f;
        if ((strcmp(c.type, "IHDR") == 0) != first) return bad(p, "IHDR must come first, once");
        if (strcmp(c.type, "IEND") == 0) return before ? bad(p, "no pixel data") : IMAGE_OK;
        if (strcmp(c.type, "IDAT") == 0) {
            const uint8_t *start = c.data.p - 8, *end = p->in.p + at;
            if (!before && start != p->idat.p + p->idat.len)
                return bad(p, "other chunks between the pixel data");
            if (before) p->idat.p = start;
            p->idat.len = (size_t)(end - p->idat.p);
            before = false;
        } else if (strcmp(c.type, "fcTL") == 0) {
            if (before && !covers(p, &c))
                return bad(p, "the first frame of the animation does not cover the image");
            more = more && before;
        } else if (first) {
            f = read_ihdr(p, &c);
        } else if (before && strcmp(c.type, "PLTE") == 0) {
            f = read_palette(p, &c);
        } else if (before && strcmp(c.type, "tRNS") == 0) {
            p->trns = c.data;
        } else if (more) {
            read_metadata(p, &c);
        }
        if (f) return f;
        if (p->no_memory) return image__nomem(p->err);
        if (p->texts > TEXTS_MAX) return bad(p, "too many texts with EXIF or XMP");
    }
}

/* The colors of stb_image's gray values and palette indices: low bit depths are scaled to 0..255. */
static void make_colors(const struct png *p, uint8_t colors[256][3])
{
    const struct image_bytes *t = &p->trns;
    bool on_white = p->limits->on_white, key = on_white && p->color == GRAY && t->len >= 2;
    uint32_t step = p->depth < 8 ? 255 / ((1u << p->depth) - 1) : 1;
    /* Like Pillow, compares the key with scaled values, so that for 2 and 4 bits only 0 can match, and uses
     * the key's low byte, also for 16 bits. */
    uint32_t clear = key ? image__be16(t->p) : 0;
    clear = p->depth == 1 && clear ? 255 : clear & 255;
    for (uint32_t v = 0; v < 256; v++) {
        uint32_t i = v / step;
        if (p->color == PALETTE) memcpy(colors[v], p->palette + 3 * i, 3);
        else memset(colors[v], key && v == clear ? 255 : (int)v, 3);
        for (int c = 0; on_white && p->color == PALETTE && i < t->len && c < 3; c++)
            colors[v][c] = image__over_white(colors[v][c], t->p[i]);
    }
}

/* Pixels as stored, 8 bits per channel (gray of 16: as it is), to RGB. from and to may be the same when there
 * are 3 or 4. */
static void to_rgb(const struct png *p, const void *from, uint8_t *to)
{
    uint8_t colors[256][3], key[3] = {0};
    const uint8_t *in = from;
    const uint16_t *wide = from;
    size_t n = p->channels;
    bool one = n == 1, mix = p->limits->on_white && n % 2 == 0,
         keyed = p->limits->on_white && n == 3 && p->trns.len >= 6;
    if (one) make_colors(p, colors);
    for (size_t c = 0; keyed && c < 3; c++) key[c] = p->trns.p[2 * c + 1]; /* as above */
    for (size_t i = 0; i < (size_t)p->width * p->height; i++, in += n, to += 3) {
        if (one) {
            memcpy(to, colors[p->depth < 16 ? *in : wide[i] < 255 ? wide[i] : 255], 3);
            continue;
        }
        uint8_t alpha = mix ? in[n - 1] : 255;
        for (size_t c = 0; c < 3; c++)
            to[c] = mix ? image__over_white(in[n > 2 ? c : 0], alpha) : in[n > 2 ? c : 0];
        if (keyed && memcmp(to, key, 3) == 0) memset(to, 255, 3);
    }
}

/* The file that stb_image reads: IHDR, the inflated pixel data in IDAT chunks of one stored block each, IEND.
 * So zlib alone inflates, and checks. */
struct pixel_file {
    struct png *p;
    z_stream z;
    size_t at;        /* in p->idat: the next chunk */
    size_t bytes_max; /* limit on the inflated size */
    int end;          /* of inflate */
    bool complete;
    struct image_bytes ready; /* in buffer */
    uint8_t buffer[HEAD + AROUND + 2 + 5 + BLOCK];
};

/* Inflates the next block to `to`; returns its bytes, 0 at the end of the data or at an error. */
static size_t inflate_block(struct pixel_file *f, uint8_t *to)
{
    const struct image_bytes *idat = &f->p->idat;
    f->z.next_out = to;
    f->z.avail_out = BLOCK;
    while (f->end == Z_OK && f->z.avail_out && f->z.total_out <= f->bytes_max) {
        if (!f->z.avail_in && f->at < idat->len) {
            f->z.next_in = (z_const Bytef *)idat->p + f->at + 8;
            f->z.avail_in = image__be32(idat->p + f->at);
            f->at += f->z.avail_in + (size_t)AROUND;
            continue;
        }
        if (!f->z.avail_in) break;
        f->end = inflate(&f->z, Z_NO_FLUSH);
        if (f->end == Z_BUF_ERROR) f->end = Z_OK; /* only the end of a chunk */
    }
    return f->z.total_out <= f->bytes_max ? BLOCK - f->z.avail_out : 0;
}

static void put_be32(uint8_t *p, size_t v)
{
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> (24 - 8 * i));
}

/* One IDAT chunk, with the stream's header before the first block; its checksum is not looked at. */
static void next_part(struct pixel_file *f)
{
    static const uint8_t end[AROUND] = "\0\0\0\0IEND\xAE\x42\x60\x82";
    bool first = !f->z.total_out;
    uint8_t *chunk = f->buffer, *block;
    if (first) {
        memcpy(chunk, f->p->in.p, HEAD);
        if (f->p->color == PALETTE) chunk[SIGNATURE + 17] = GRAY;
        chunk += HEAD;
    }
    block = chunk + 8 + 2 * first;
    size_t n = inflate_block(f, block + 5);
    if (!n && f->end != Z_STREAM_END) return;
    memcpy(chunk + 4, "IDAT\x78\x01", 6);
    put_be32(chunk, (size_t)(block - chunk) - 8 + 5 + n);
    block[0] = !n; /* the last block is empty */
    block[1] = (uint8_t)n;
    block[2] = (uint8_t)(n >> 8);
    block[3] = (uint8_t)~block[1];
    block[4] = (uint8_t)~block[2];
    uint8_t *after = block + 5 + n + 4;
    if (!n) {
        memcpy(after, end, sizeof end);
        after += sizeof end;
        f->complete = true;
    }
    f->ready = (struct image_bytes){.p = f->buffer, .len = (size_t)(after - f->buffer)};
}

static size_t read_pixels(void *user, uint8_t *to, size_t n)
{
    struct pixel_file *f = user;
    size_t done = 0;
    while (done < n) {
        if (!f->ready.len && !f->complete) next_part(f);
        if (!f->ready.len) break;
        done += image__read_bytes(&f->ready, to + done, n - done);
    }
    return done;
}

static enum image_error read_stored(struct png *p, size_t bytes_max, void **stored)
{
    int channels;
    struct pixel_file *f = malloc(sizeof *f);
    if (!f) return image__nomem(p->err);
    *f = (struct pixel_file){.p = p, .bytes_max = bytes_max};
    f->end = inflateInit(&f->z);
    enum image_error st =
        image__stb(read_pixels, f, 0, p->color == GRAY && p->depth == 16, stored, &channels);
    inflateEnd(&f->z);
    if (st == IMAGE_NOMEM || f->end == Z_MEM_ERROR) st = image__nomem(p->err);
    else if (f->z.total_out > bytes_max) st = bad(p, "there is more pixel data than the image has pixels");
    else if (f->end != Z_STREAM_END) st = bad(p, "the pixel data is truncated or corrupt");
    else if (st) st = bad(p, "the pixel data is too short, or has an unknown filter");
    if (st) free(*stored); /* the rows may be whole */
    free(f);
    return st;
}

static enum image_error decode(struct png *p, struct image_u8 *out)
{
    size_t row = ((size_t)p->width * p->channels * p->depth + 7) / 8;
    if (row * p->height / DEFLATE_RATIO > p->idat.len)
        return bad(p, "the pixel data is too short for the size of the image");
    void *stored;
    /* Interlaced, 8 rows become 15, each with a filter byte and up to 7 padding bits. */
    enum image_error f = read_stored(p, (row + 4) * p->height + SPARE, &stored);
    if (f) return f;
    struct image_u8 img = {.width = p->width, .height = p->height, .rgb = stored};
    if (p->channels < 3) f = image__new(p->width, p->height, false, &img, p->err);
    if (!f) to_rgb(p, stored, img.rgb);
    if (p->channels < 3) free(stored);
    if (!f) *out = img;
    return f;
}

enum image_error image__png(struct image_bytes in, const struct image_limits *limits, struct image_u8 *out,
                            int *orientation, struct err *err)
{
    if (in.len > INT_MAX) return image__fail(err, IMAGE_TOO_MANY_BYTES, "the PNG file is too large");
    struct png p = {.in = in, .limits = limits, .err = err};
    enum image_error f = read_chunks(&p);
    if (!f) f = decode(&p, out);
    if (!f) *orientation = image__orientation(p.exif, p.xmp);
    free(p.exif_text);
    free(p.xmp_text);
    return f;
}
