/* Images from clients: every file of tests/golden/images against Pillow, data: URIs, limits, bombs, content
 * keys, and seeded mutations of all files and URIs. KVASIR_FUZZ_SEED and KVASIR_FUZZ_ROUNDS (default 20000)
 * steer the mutations. */
#include "config/base/json.h"
#include "server/media/image_decode.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <cmocka.h>
#include <zlib.h>
#include <sodium.h>

/* Most memory that refusing and surviving bombs may take. A sanitizer's shadow multiplies what the process
 * holds (thread: by 4 and more). */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define PEAK_MAX ((size_t)2 << 30)
#else
#define PEAK_MAX ((size_t)256 << 20)
#endif

#define GOLDEN "tests/golden/images/"

struct file {
    char name[64];
    uint8_t *bytes;
    size_t len;
    uint32_t width, height; /* of the expected image */
    char sha256[65];        /* "" when it must be refused */
    char white[65];         /* of the image over white */
};
static struct file *files;
static size_t file_count;

static const struct image_limits limits = IMAGE_LIMITS_DEFAULT;

static const struct file *find(const char *name)
{
    for (size_t i = 0; i < file_count; i++)
        if (strcmp(files[i].name, name) == 0) return &files[i];
    fail_msg("no file %s", name);
    return NULL;
}

static void hex_of(const struct image_u8 *img, char out[65])
{
    uint8_t h[32];
    crypto_hash_sha256(h, img->rgb, (unsigned long long)img->width * img->height * 3);
    for (int i = 0; i < 32; i++) snprintf(out + 2 * i, 3, "%02x", h[i]);
}

/* Decodes from a block of exactly len bytes, so that the address sanitizer sees every read beyond it. */
static enum image_error decode(const uint8_t *bytes, size_t len, const struct image_limits *l,
                               struct image_u8 *out, struct err *err)
{
    uint8_t *exact = malloc(len ? len : 1);
    assert_non_null(exact);
    if (len) memcpy(exact, bytes, len);
    *out = (struct image_u8){0};
    err->msg[0] = '\0';
    enum image_error f = image_decode(exact, len, l, out, err);
    free(exact);
    assert_true((f == IMAGE_OK) == (out->rgb != NULL));
    assert_true((f == IMAGE_OK) == (err->msg[0] == '\0'));
    if (f == IMAGE_OK) {
        assert_in_range(out->width, 1, l->side_max);
        assert_in_range(out->height, 1, l->side_max);
        assert_true((uint64_t)out->width * out->height <= l->pixels_max);
    }
    return f;
}

static int load_files(void **state)
{
    (void)state;
    struct json_doc d;
    struct err err = {.msg = ""};
    if (json_doc_load(GOLDEN "expected.json", 1 << 20, &d, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return -1;
    }
    file_count = json_count(&d, 0);
    files = calloc(file_count, sizeof *files);
    uint32_t node = json_first(&d, 0);
    for (size_t i = 0; i < file_count; i++, node = json_next(&d, node)) {
        struct file *f = &files[i];
        size_t n = 0;
        uint64_t w = 0, h = 0;
        char path[160];
        if (!json_str_copy(&d, json_get(&d, node, "file"), f->name, sizeof f->name - 1, &n)) return -1;
        json_str_copy(&d, json_get(&d, node, "sha256"), f->sha256, 64, &n);
        memcpy(f->white, f->sha256, sizeof f->white);
        if (json_get(&d, node, "white") != JSON_NONE)
            json_str_copy(&d, json_get(&d, node, "white"), f->white, 64, &n);
        json_uint(&d, json_get(&d, node, "width"), &w);
        json_uint(&d, json_get(&d, node, "height"), &h);
        f->width = (uint32_t)w;
        f->height = (uint32_t)h;
        snprintf(path, sizeof path, GOLDEN "files/%s", f->name);
        FILE *in = fopen(path, "rb");
        f->bytes = malloc(1 << 17);
        if (!in || !f->bytes) return -1;
        f->len = fread(f->bytes, 1, 1 << 17, in);
        fclose(in);
    }
    json_free(&d);
    return 0;
}

static int free_files(void **state)
{
    (void)state;
    for (size_t i = 0; i < file_count; i++) free(files[i].bytes);
    free(files);
    return 0;
}

static void check_golden(bool on_white, size_t *transparent)
{
    struct image_limits l = limits;
    size_t taken = 0, wrong = 0;
    l.on_white = on_white;
    *transparent = 0;
    for (size_t i = 0; i < file_count; i++) {
        const struct file *f = &files[i];
        struct image_u8 img;
        struct err err;
        enum image_error error = decode(f->bytes, f->len, &l, &img, &err);
        char got[65] = "";
        if (!error) hex_of(&img, got);
        *transparent += strcmp(f->sha256, f->white) != 0;
        bool ok = strcmp(got, on_white ? f->white : f->sha256) == 0 &&
                  (error || (img.width == f->width && img.height == f->height));
        if (!ok)
            print_error("%s: %s, %u x %u\n", f->name, error ? err.msg : "other pixels", img.width,
                        img.height);
        if (error && strcmp(f->name, "bad_text.bin") != 0) ok = ok && error == IMAGE_BAD_DATA;
        wrong += !ok;
        taken += !error;
        image_u8_free(&img);
    }
    assert_int_equal(wrong, 0);
    assert_true(taken > 180 && file_count - taken > 30);
    assert_true(file_count > 250);
}

static void test_golden(void **state)
{
    (void)state;
    size_t transparent;
    check_golden(false, &transparent);
}

static void test_golden_on_white(void **state)
{
    (void)state;
    size_t transparent;
    check_golden(true, &transparent);
    assert_true(transparent > 25);
}

static void test_type_by_content(void **state)
{
    (void)state;
    struct image_u8 img;
    struct err err;
    static const char *const unknown[] = {"%PDF-1.7",
                                          "<svg xmlns='http://www.w3.org/2000/svg'/>",
                                          "II*\0aaaaaaaa",
                                          "RIFF0000WAVE",
                                          "\0\0\0\x20"
                                          "ftypavif",
                                          "\xFF\xD8",
                                          "GIF88a",
                                          "\x89PNG",
                                          "B"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        assert_int_equal(decode((const uint8_t *)unknown[i], strlen(unknown[i]) ? strlen(unknown[i]) : 12,
                                &limits, &img, &err),
                         IMAGE_BAD_TYPE);
    assert_int_equal(decode(NULL, 0, &limits, &img, &err), IMAGE_EMPTY);
    for (int f = IMAGE_BAD_URL; f <= IMAGE_NOMEM; f++)
        assert_true(image_error_code((enum image_error)f)[0] != '\0');
    assert_string_equal(image_error_code(IMAGE_BAD_DATA), "image_parse_error");
}

/* Every prefix of some files: refused, or the whole image; nothing between. */
static void test_truncated(void **state)
{
    (void)state;
    static const char *const names[] = {"png_rgb8.png",       "png_pal4_adam7.png",
                                        "jpeg_420_33x21.jpg", "jpeg_420_33x21_prog.jpg",
                                        "webp_lossy.webp",    "webp_lossless_alpha.webp",
                                        "webp_animated.webp", "gif_part_local.gif",
                                        "bmp_24.bmp",         "bmp_8.bmp",
                                        "jpeg_exif6.jpg"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct file *f = find(names[i]);
        for (size_t n = 1; n < f->len; n++) {
            struct image_u8 img;
            struct err err;
            enum image_error error = decode(f->bytes, n, &limits, &img, &err);
            if (error) {
                assert_true(error == IMAGE_BAD_DATA || error == IMAGE_BAD_TYPE);
                continue;
            }
            char got[65];
            hex_of(&img, got);
            if (strcmp(got, f->sha256) != 0)
                fail_msg("%s cut to %zu of %zu bytes gives other pixels", f->name, n, f->len);
            image_u8_free(&img);
        }
    }
}

/* The pixels are there: what comes after them, also IEND, may be missing or damaged. */
static void test_without_end(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        const struct file *f = find(i ? "png_pal4_adam7.png" : "png_rgb8.png");
        for (size_t cut = 0; cut < 12; cut++) {
            struct image_u8 img;
            struct err err;
            char got[65];
            if (decode(f->bytes, f->len - 12 + cut, &limits, &img, &err))
                fail_msg("%s: %s", f->name, err.msg);
            hex_of(&img, got);
            assert_string_equal(got, f->sha256);
            image_u8_free(&img);
        }
    }
}

static uint32_t crc32_of(const uint8_t *p, size_t len)
{
    uint32_t crc = ~0u;
    for (size_t i = 0; i < len; i++) {
        crc ^= p[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

static void put_be(uint8_t *p, uint32_t v, int bytes)
{
    for (int i = 0; i < bytes; i++) p[i] = (uint8_t)(v >> 8 * (bytes - 1 - i));
}

static void put_le(uint8_t *p, uint32_t v, int bytes)
{
    for (int i = 0; i < bytes; i++) p[i] = (uint8_t)(v >> 8 * i);
}

/* Peak memory of the process so far, in bytes. */
static size_t peak(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (size_t)u.ru_maxrss * 1024;
}

/* Copies a file and writes another size into its header. */
static uint8_t *with_size(const struct file *f, uint32_t w, uint32_t h)
{
    uint8_t *b = malloc(f->len);
    memcpy(b, f->bytes, f->len);
    if (b[0] == 0x89) {
        put_be(b + 16, w, 4);
        put_be(b + 20, h, 4);
        put_be(b + 29, crc32_of(b + 12, 17), 4);
    } else if (b[0] == 'G') {
        put_le(b + 6, w, 2);
        put_le(b + 8, h, 2);
    } else if (b[0] == 'B') {
        put_le(b + 18, w, 4);
        put_le(b + 22, h, 4);
    } else if (b[0] == 'R') { /* VP8X: canvas, less one */
        put_le(b + 24, w - 1, 3);
        put_le(b + 27, h - 1, 3);
    } else {
        uint8_t *sof = memmem(b, f->len, "\xFF\xC0\x00\x11", 4);
        assert_non_null(sof);
        put_be(sof + 5, h, 2);
        put_be(sof + 7, w, 2);
    }
    return b;
}

static void test_limits(void **state)
{
    (void)state;
    static const char *const names[] = {"png_rgb8.png", "jpeg_420_33x21.jpg", "webp_animated.webp",
                                        "gif_plain.gif", "bmp_24.bmp"};
    struct image_u8 img;
    struct err err;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct file *f = find(names[i]);
        static const uint32_t sizes[][2] = {{60000, 60000}, {32769, 1}, {1, 32769}, {8001, 8000}};
        size_t before = peak();
        for (size_t k = 0; k < 4; k++) {
            if (f->bytes[0] == 'R' && sizes[k][0] == 32769 && k == 1)
                continue; /* its frame is higher than that: refused as corrupt */
            uint8_t *b = with_size(f, sizes[k][0], sizes[k][1]);
            enum image_error error = decode(b, f->len, &limits, &img, &err);
            if (error != IMAGE_TOO_MANY_PIXELS && !(f->bytes[0] == 'R' && error == IMAGE_BAD_DATA) &&
                !(f->bytes[0] == 'G' && k < 3))
                fail_msg("%s as %u x %u: error %d: %s", f->name, sizes[k][0], sizes[k][1], error, err.msg);
            assert_int_not_equal(error, IMAGE_OK);
            free(b);
        }
        assert_true(peak() - before < 32u << 20);
        struct image_limits small = limits;
        small.pixels_max = (uint64_t)f->width * f->height;
        assert_int_equal(decode(f->bytes, f->len, &small, &img, &err), IMAGE_OK);
        image_u8_free(&img);
        small.pixels_max--;
        assert_int_equal(decode(f->bytes, f->len, &small, &img, &err), IMAGE_TOO_MANY_PIXELS);
        small = limits;
        small.side_max = (f->width > f->height ? f->width : f->height) - 1;
        assert_int_equal(decode(f->bytes, f->len, &small, &img, &err), IMAGE_TOO_MANY_PIXELS);
        small = limits;
        small.encoded_bytes_max = f->len - 1;
        assert_int_equal(decode(f->bytes, f->len, &small, &img, &err), IMAGE_TOO_MANY_BYTES);
    }
    /* A size within the limits with next to no data must not cost the memory of its pixels either. */
    const struct file *f = find("png_rgb8.png");
    size_t before = peak();
    uint8_t *b = with_size(f, 8000, 8000);
    assert_int_equal(decode(b, f->len, &limits, &img, &err), IMAGE_BAD_DATA);
    free(b);
    assert_true(peak() - before < 32u << 20);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The file with so many texts after its header, each with a megabyte of EXIF data in a kilobyte. */
static uint8_t *png_with_texts(const struct file *f, size_t count, size_t *len)
{
    enum { HEAD = 8 + 25, PLAIN = 1 << 20 };
    static const char key[] = "Raw profile type exif"; /* its NUL and the method follow */
    uint8_t *plain = calloc(1, PLAIN), *chunk = calloc(1, 4096);
    uLongf n = 4000;
    memcpy(chunk + 4, "zTXt", 4);
    memcpy(chunk + 8, key, sizeof key);
    assert_int_equal(compress(chunk + 9 + sizeof key, &n, plain, PLAIN), Z_OK);
    size_t data = sizeof key + 1 + n, each = data + 12;
    for (int i = 0; i < 4; i++) chunk[i] = (uint8_t)(data >> (24 - 8 * i));
    uLong crc = crc32(0, chunk + 4, (uInt)data + 4);
    for (int i = 0; i < 4; i++) chunk[8 + data + (size_t)i] = (uint8_t)(crc >> (24 - 8 * i));
    uint8_t *b = malloc(*len = f->len + count * each);
    memcpy(b, f->bytes, HEAD);
    for (size_t i = 0; i < count; i++) memcpy(b + HEAD + i * each, chunk, each);
    memcpy(b + HEAD + count * each, f->bytes + HEAD, f->len - HEAD);
    free(plain);
    free(chunk);
    return b;
}

/* 8 by 8 pixels and more bytes of data than are ignored: in their last block, and before it. */
static void test_surplus(void **state)
{
    (void)state;
    static const uint8_t head[] =
        "\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x08\0\0\0\x08\x08\x02\0\0\0\x4b\x6d\x29\xdc";
    static const uint8_t end[] = "\0\0\0\0IEND\xAE\x42\x60\x82";
    static const size_t sizes[] = {200 + (64 << 10), 65800, 65 << 11};
    for (size_t i = 0; i < 3; i++) {
        uint8_t *plain = calloc(1, sizes[i]), file[1024];
        uLongf n = sizeof file / 2;
        size_t at = sizeof head - 1;
        memcpy(file, head, at);
        assert_int_equal(compress(file + at + 8, &n, plain, sizes[i]), Z_OK);
        memcpy(file + at, "\0\0\0\0IDAT", 8);
        file[at + 2] = (uint8_t)(n >> 8);
        file[at + 3] = (uint8_t)n;
        uLong crc = crc32(0, file + at + 4, (uInt)n + 4);
        at += 8 + n;
        for (int k = 0; k < 4; k++) file[at++] = (uint8_t)(crc >> (24 - 8 * k));
        memcpy(file + at, end, sizeof end - 1);
        struct image_u8 img;
        struct err err;
        enum image_error got = decode(file, at + sizeof end - 1, &limits, &img, &err);
        assert_int_equal(got, i ? IMAGE_BAD_DATA : IMAGE_OK);
        if (i) assert_non_null(strstr(err.msg, "more pixel data"));
        else free(img.rgb);
        free(plain);
    }
}

static void test_bombs(void **state)
{
    (void)state;
    struct image_u8 img;
    struct err err;
    size_t before = peak();
    /* The last scan of a progressive JPEG, 10,000 times. */
    const struct file *f = find("jpeg_420_33x21_prog.jpg");
    size_t sos = f->len - 2;
    while (!(f->bytes[sos] == 0xFF && f->bytes[sos + 1] == 0xDA)) sos--;
    size_t scan = f->len - 2 - sos, len = sos + 10000 * scan + 2;
    uint8_t *b = malloc(len);
    memcpy(b, f->bytes, sos);
    for (size_t i = 0; i < 10000; i++) memcpy(b + sos + i * scan, f->bytes + sos, scan);
    memcpy(b + len - 2, "\xFF\xD9", 2);
    double t = seconds();
    assert_int_equal(decode(b, len, &limits, &img, &err), IMAGE_BAD_DATA);
    assert_non_null(strstr(err.msg, "scans"));
    free(b);
    /* Fewer scans of a larger image, whose size is written over the first one's: some milliseconds each. */
    len = sos + 60 * scan + 2;
    b = malloc(len);
    memcpy(b, f->bytes, sos);
    for (size_t i = 0; i < 60; i++) memcpy(b + sos + i * scan, f->bytes + sos, scan);
    memcpy(b + len - 2, "\xFF\xD9", 2);
    uint8_t *sof = memmem(b, sos, "\xFF\xC2", 2);
    assert_non_null(sof);
    memcpy(sof + 5, "\x08\x00\x08\x00", 4);
    assert_int_equal(decode(b, len, &limits, &img, &err), IMAGE_BAD_DATA);
    assert_non_null(strstr(err.msg, "scans"));
    free(b);
    /* A GIF with 100,000 frames: only the first one is looked at. */
    f = find("gif_plain.gif");
    const size_t head = 13 + 48, frame = f->len - head - 1;
    len = head + 100000 * frame;
    b = malloc(len);
    memcpy(b, f->bytes, head);
    for (size_t i = 0; i < 100000; i++) memcpy(b + head + i * frame, f->bytes + head, frame);
    struct image_limits wide = limits;
    wide.encoded_bytes_max = len;
    assert_int_equal(decode(b, len, &wide, &img, &err), IMAGE_OK);
    char got[65];
    hex_of(&img, got);
    assert_string_equal(got, f->sha256);
    image_u8_free(&img);
    free(b);
    /* 32 MB in 32 KB: as text, which is not looked at, and as pixels of a small image, which is refused. */
    f = find("ours_png_text_bomb.png");
    assert_int_equal(decode(f->bytes, f->len, &limits, &img, &err), IMAGE_OK);
    image_u8_free(&img);
    f = find("ours_png_data_bomb.png");
    assert_int_equal(decode(f->bytes, f->len, &limits, &img, &err), IMAGE_BAD_DATA);
    b = png_with_texts(find("ours_png_text_bomb.png"), 2000, &len);
    assert_int_equal(decode(b, len, &limits, &img, &err), IMAGE_BAD_DATA);
    assert_non_null(strstr(err.msg, "too many texts"));
    free(b);
    assert_true(peak() - before < PEAK_MAX);
    assert_true(seconds() - t <
                20.0); /* far beyond what it takes under a sanitizer; without the ceilings it is minutes */
}

static enum image_error uri(const char *url, size_t len, const struct image_limits *l, uint8_t **bytes,
                            size_t *n, struct err *err)
{
    char *exact = malloc(len ? len : 1);
    memcpy(exact, url, len);
    *bytes = NULL;
    *n = 0;
    err->msg[0] = '\0';
    enum image_error f = image_decode_data_uri(exact, len, l, bytes, n, err);
    free(exact);
    assert_true((f == IMAGE_OK) == (*bytes != NULL));
    assert_true((f == IMAGE_OK) == (err->msg[0] == '\0'));
    return f;
}

static void test_uri(void **state)
{
    (void)state;
    static const struct {
        const char *url;
        enum image_error want;
        const char *bytes;
    } cases[] = {
        {"data:image/png;base64,aGVsbG8=", IMAGE_OK, "hello"},
        {"DATA:IMAGE/PNG;BASE64,aGVsbG8=", IMAGE_OK, "hello"},
        {"data:;base64,aGVsbG8=", IMAGE_OK, "hello"},
        {"data:image/png;charset=utf-8;x=y;base64,aGVsbG8=", IMAGE_OK, "hello"},
        {"data:image/png; base64,aGVsbG8=", IMAGE_OK, "hello"},
        {"data:image/png ;  BASE64 ,aGVsbG8=", IMAGE_OK, "hello"},
        {"data:image/png; bas e64,aGVsbG8=", IMAGE_BAD_URL, NULL},
        {"data:text/plain;base64,aGVsbG8=", IMAGE_OK, "hello"},
        {"data:image/png;base64,aGVsbG8", IMAGE_OK, "hello"},
        {"data:image/png;base64, aGVs\r\n\tbG8= \n", IMAGE_OK, "hello"},
        {"data:image/png;base64,aGVsbG8%3D", IMAGE_OK, "hello"},
        {"data:image/png;base64,aGV%73bG8%3d%0a", IMAGE_OK, "hello"},
        {"data:image/png;base64,aGVsbG8h", IMAGE_OK, "hello!"},
        {"data:image/png;base64,aGVsbA==", IMAGE_OK, "hell"},
        {"data:image/png;base64,aA", IMAGE_OK, "h"},
        {"data:image/png;base64,++//", IMAGE_OK, "\xfb\xef\xff"},
        {"data:image/png;base64,--__", IMAGE_OK, "\xfb\xef\xff"},
        {"data:image/png;base64,%2B%2b%2F/", IMAGE_OK, "\xfb\xef\xff"},
        {"data:image/png;base64,+-//", IMAGE_BAD_BASE64, NULL},
        {"data:image/png;base64,aGVsbG8==", IMAGE_BAD_BASE64, NULL},
        {"data:image/png;base64,aGVsbA=", IMAGE_BAD_BASE64, NULL},
        {"data:image/png;base64,aGVsbG8h=", IMAGE_BAD_BASE64, NULL},
        {"data:image/png;base64,aGVsb", IMAGE_BAD_BASE64, NULL},
        {"data:image/png;base64,aGVs=bG8", IMAGE_BAD_BASE64, NULL},
        {"data:image/png;base64,aGVsbG9=", IMAGE_BAD_BASE64, NULL},
        {"data:image/png;base64,aB", IMAGE_BAD_BASE64, NULL},
        {"data:image/png;base64,aGVs\\/bG8", IMAGE_BAD_BASE64, NULL},
        {"data:image/png;base64,aGVs*bG8", IMAGE_BAD_BASE64, NULL},
        {"data:image/png;base64,aGVs%4", IMAGE_BAD_BASE64, NULL},
        {"data:image/png;base64,aGVs%xxbG8", IMAGE_BAD_BASE64, NULL},
        {"data:image/png;base64,aGVs,bG8", IMAGE_BAD_BASE64, NULL},
        {"data:image/png;base64,", IMAGE_EMPTY, NULL},
        {"data:image/png;base64, \n", IMAGE_EMPTY, NULL},
        {"data:image/png,abc", IMAGE_BAD_URL, NULL},
        {"data:image/png;base64", IMAGE_BAD_URL, NULL},
        {"data:base64,aGVs", IMAGE_BAD_URL, NULL},
        {"data:", IMAGE_BAD_URL, NULL},
        {"", IMAGE_BAD_URL, NULL},
        {"aGVsbG8=", IMAGE_BAD_URL, NULL},
        {"ftp://example.com/a.png", IMAGE_BAD_URL, NULL},
        {"http://127.0.0.1/x", IMAGE_REMOTE, NULL},
        {"HTTPS://example.com/x", IMAGE_REMOTE, NULL},
        {"file:///etc/passwd", IMAGE_REMOTE, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t *bytes;
        size_t n;
        struct err err;
        enum image_error f = uri(cases[i].url, strlen(cases[i].url), &limits, &bytes, &n, &err);
        if (f != cases[i].want)
            fail_msg("%s: error %d (%s), want %d", cases[i].url, f, err.msg, cases[i].want);
        if (f == IMAGE_OK) {
            assert_int_equal(n, strlen(cases[i].bytes));
            assert_memory_equal(bytes, cases[i].bytes, n);
        }
        free(bytes);
    }
}

static uint32_t next_random(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33);
}

/* Random bytes, written as base64 in every allowed manner. */
static void test_uri_round_trip(void **state)
{
    (void)state;
    uint64_t s = 99;
    for (int round = 0; round < 500; round++) {
        uint8_t in[300];
        size_t n = 1 + next_random(&s) % sizeof in;
        for (size_t i = 0; i < n; i++) in[i] = (uint8_t)next_random(&s);
        int variant = next_random(&s) % 2 ? sodium_base64_VARIANT_ORIGINAL : sodium_base64_VARIANT_URLSAFE;
        if (next_random(&s) % 2) variant |= 2; /* no padding */
        char text[512], url[4096];
        sodium_bin2base64(text, sizeof text, in, n, variant);
        int at = snprintf(url, sizeof url, "data:image/x;base64,");
        uint32_t odd = next_random(&s) % 3;
        for (size_t i = 0; text[i]; i++) {
            uint32_t r = odd ? next_random(&s) % 12 : 9;
            if (r == 0) url[at++] = " \t\r\n"[next_random(&s) % 4];
            if (r == 1) at += snprintf(url + at, 4, "%%%02x", (unsigned)text[i]);
            else url[at++] = text[i];
        }
        uint8_t *bytes;
        size_t len;
        struct err err;
        struct image_limits exact = limits;
        exact.encoded_bytes_max = n;
        if (uri(url, (size_t)at, &exact, &bytes, &len, &err)) fail_msg("%.*s: %s", at, url, err.msg);
        assert_int_equal(len, n);
        assert_memory_equal(bytes, in, n);
        free(bytes);
        exact.encoded_bytes_max = n - 1;
        assert_int_equal(uri(url, (size_t)at, &exact, &bytes, &len, &err), IMAGE_TOO_MANY_BYTES);
    }
    /* 30 MB are refused before anything is allocated for them. */
    size_t len = 40u << 20;
    char *url = malloc(len);
    memset(url, 'A', len);
    memcpy(url, "data:;base64,", 13);
    size_t before = peak();
    uint8_t *bytes = NULL;
    struct err err;
    assert_int_equal(image_decode_data_uri(url, len, &limits, &bytes, &len, &err), IMAGE_TOO_MANY_BYTES);
    assert_null(bytes);
    assert_true(peak() - before < 4u << 20);
    free(url);
}

static const struct prompt_grid no_grid;

static void key_of(const char *name, const struct image_config *cfg, uint8_t key[32])
{
    const struct file *f = find(name);
    struct image_u8 img;
    struct err err;
    assert_int_equal(decode(f->bytes, f->len, &limits, &img, &err), IMAGE_OK);
    image_content_key(&img, cfg, "gemma3", &no_grid, key);
    image_u8_free(&img);
}

static void test_key(void **state)
{
    (void)state;
    const struct image_config base = {.width = 896,
                                      .height = 896,
                                      .filter = IMAGE_BILINEAR,
                                      .mode = IMAGE_TORCH_U8,
                                      .do_resize = true,
                                      .do_rescale = true,
                                      .do_normalize = true,
                                      .rescale_factor = 1.0 / 255.0,
                                      .mean = {0.5f, 0.5f, 0.5f},
                                      .std = {0.5f, 0.5f, 0.5f},
                                      .pan_min_crop = 256,
                                      .pan_max_crops = 4,
                                      .pan_min_ratio = 1.2};
    uint8_t rgb[24], first[32], keys[40][32];
    for (int i = 0; i < 24; i++) rgb[i] = (uint8_t)i;
    struct image_u8 img = {.width = 4, .height = 2, .rgb = rgb},
                    turned = {.width = 2, .height = 4, .rgb = rgb};
    image_content_key(&img, &base, "gemma3", &no_grid, first);
    /* The record's layout is part of what other caches may rely on: a change must be meant. */
    char hex[65];
    for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", first[i]);
    assert_string_equal(hex, "191e2a2bd95f13a632be362b60a488fa9e74dfbc637513644971cf319bcea4f4");
    size_t n = 0;
    image_content_key(&turned, &base, "gemma3", &no_grid, keys[n++]);
    image_content_key(&img, &base, "gemma4", &no_grid, keys[n++]);
    struct image_config c;
#define CHANGED(change)                                                                                      \
    do {                                                                                                     \
        c = base;                                                                                            \
        change;                                                                                              \
        image_content_key(&img, &c, "gemma3", &no_grid, keys[n++]);                                          \
    } while (0)
    CHANGED(c.width = 448);
    CHANGED(c.height = 448);
    CHANGED(c.filter = IMAGE_BICUBIC);
    CHANGED(c.mode = IMAGE_PIL);
    CHANGED(c.do_resize = false);
    CHANGED(c.do_rescale = false);
    CHANGED(c.do_normalize = false);
    CHANGED(c.rescale_factor = 1.0 / 127.5);
    CHANGED(c.mean[0] = 0.25f);
    CHANGED(c.mean[2] = 0.25f);
    CHANGED(c.std[1] = 0.25f);
    CHANGED(c.pan_and_scan = true);
    CHANGED(c.pan_min_crop = 128);
    CHANGED(c.pan_max_crops = 3);
    CHANGED(c.pan_min_ratio = 1.5);
    CHANGED(c.dynamic = true);
    CHANGED(c.patch = 14);
    CHANGED(c.merge = 2);
    CHANGED(c.depth = 2);
    CHANGED(rgb[23] ^= 1);
#undef CHANGED
    rgb[23] ^= 1;
    /* Where the tokens lie; and the same bytes as frames. */
    struct image_u8 frames = {.width = 4, .height = 1, .frames = 2, .rgb = rgb};
    const struct prompt_grid grids[] = {{1, 2, 4, 0, false}, {1, 4, 2, 0, false}, {2, 2, 2, 0, false},
                                        {2, 2, 2, 1, false}, {2, 2, 2, 2, false}, {1, 2, 4, 0, true}};
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++)
        image_content_key(&img, &base, "gemma3", &grids[i], keys[n++]);
    image_content_key(&frames, &base, "gemma3", &no_grid, keys[n++]);
    assert_true(n <= sizeof keys / sizeof *keys);
    /* What was allowed does not count, only what became of it. */
    c = base;
    c.area_min = 5;
    c.area_max = 7;
    uint8_t same[32];
    image_content_key(&img, &c, "gemma3", &no_grid, same);
    assert_memory_equal(same, first, 32);
    for (size_t i = 0; i < n; i++) {
        assert_memory_not_equal(keys[i], first, 32);
        for (size_t k = 0; k < i; k++) assert_memory_not_equal(keys[i], keys[k], 32);
    }
    /* The same image in other wrapping is the same. */
    key_of("png_rgb8.png", &base, keys[0]);
    key_of("png_rgb8_adam7.png", &base, keys[1]);
    key_of("png_gray8.png", &base, keys[2]);
    assert_memory_equal(keys[0], keys[1], 32);
    assert_memory_not_equal(keys[0], keys[2], 32);
}

/* Makes the checksums of a PNG's chunks right, so that what is behind them is reached. */
static void seal(uint8_t *b, size_t len)
{
    for (size_t at = 8; at + 12 <= len;) {
        size_t n = (size_t)b[at] << 24 | (size_t)b[at + 1] << 16 | (size_t)b[at + 2] << 8 | b[at + 3];
        if (n > len - at - 12) put_be(b + at, (uint32_t)(n = len - at - 12), 4);
        put_be(b + at + 8 + n, crc32_of(b + at + 4, n + 4), 4);
        at += n + 12;
    }
}

static size_t mutate(uint8_t *b, size_t len, size_t cap, uint64_t *s)
{
    uint32_t edits = 1 + next_random(s) % 4;
    for (uint32_t e = 0; e < edits && len; e++) {
        bool anywhere = next_random(s) % 2 || len < 80; /* else in the header */
        size_t at = next_random(s) % (anywhere ? len : 80), n = 1 + next_random(s) % 16;
        switch (next_random(s) % 6) {
        case 0: b[at] = (uint8_t)next_random(s); break;
        case 1: b[at] = (uint8_t)(b[at] ^ 1u << next_random(s) % 8); break;
        case 2: b[at] = (uint8_t[]){0, 1, 127, 128, 255}[next_random(s) % 5]; break;
        case 3:
            if (n > len - at) n = len - at;
            memmove(b + at, b + at + n, len - at - n);
            len -= n;
            break;
        case 4:
            if (len + n > cap) break;
            memmove(b + at + n, b + at, len - at);
            for (size_t i = 0; i < n; i++) b[at + i] = (uint8_t)next_random(s);
            len += n;
            break;
        default: len = at;
        }
    }
    if (len && b[0] == 0x89 && next_random(s) % 4) seal(b, len);
    return len;
}

static void test_mutations(void **state)
{
    (void)state;
    const char *seed = getenv("KVASIR_FUZZ_SEED"), *rounds_text = getenv("KVASIR_FUZZ_ROUNDS");
    uint64_t s = seed ? strtoull(seed, NULL, 10) : 1;
    unsigned long rounds = rounds_text ? strtoul(rounds_text, NULL, 10) : 20000, taken = 0;
    struct image_limits small = limits;
    small.pixels_max = 1000000;
    enum { CAP = 1 << 18 };
    uint8_t *b = malloc(CAP);
    size_t before = peak();
    for (unsigned long i = 0; i < rounds; i++) {
        const struct file *f = &files[next_random(&s) % file_count];
        if (f->len > 20000 && i % 50) continue; /* the bombs take longer */
        memcpy(b, f->bytes, f->len);
        size_t len = mutate(b, f->len, CAP, &s);
        struct image_u8 img;
        struct err err;
        double t = seconds();
        enum image_error error = decode(b, len, &small, &img, &err);
        if (seconds() - t > 5.0)
            fail_msg("round %lu: a mutation of %s took %.1f s", i, f->name, seconds() - t);
        if (error == IMAGE_OK) {
            /* The pixels come from the file alone, not from what the memory held before. */
            struct image_u8 again;
            (void)mallopt(M_PERTURB, (int)(i % 255) + 1);
            assert_int_equal(decode(b, len, &small, &again, &err), IMAGE_OK);
            (void)mallopt(M_PERTURB, 0);
            assert_true(img.width == again.width && img.height == again.height);
            if (memcmp(img.rgb, again.rgb, (size_t)img.width * img.height * 3) != 0)
                fail_msg("round %lu: a mutation of %s gives other pixels the second time", i, f->name);
            image_u8_free(&again);
            taken++;
        }
        image_u8_free(&img);
    }
    print_message("%lu of %lu mutations were still images\n", taken, rounds);
    assert_true(taken > rounds / 20 && taken < rounds);
    assert_true(peak() - before < 512u << 20);
    static const char alphabet[] = "AQgw+/-_=% \n\\,;xF3\xff";
    for (unsigned long i = 0; i < rounds; i++) {
        char url[128] = "data:image/png;base64,";
        size_t len = 22, n = next_random(&s) % 100;
        for (size_t k = 0; k < n; k++) url[len++] = alphabet[next_random(&s) % (i % 2 ? 4 : sizeof alphabet)];
        if (i % 5 == 0) len = mutate((uint8_t *)url, len, sizeof url, &s);
        uint8_t *bytes;
        size_t out;
        struct err err;
        (void)uri(url, len, &small, &bytes, &out, &err);
        free(bytes);
    }
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_golden_on_white),
        cmocka_unit_test(test_type_by_content),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_without_end),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_surplus),
        cmocka_unit_test(test_bombs),
        cmocka_unit_test(test_uri),
        cmocka_unit_test(test_uri_round_trip),
        cmocka_unit_test(test_key),
        cmocka_unit_test(test_mutations),
    };
    return cmocka_run_group_tests(tests, load_files, free_files);
}
