/* See gguf.h. Layout of a file, little-endian; "text" is a u64 length and that many bytes:
 *
 *   "GGUF" | u32 version | u64 tensors | u64 pairs
 *   per pair:    text key | u32 kind | value           an array: u32 kind of items | u64 count | items
 *   per tensor:  text name | u32 rank | u64 shape[rank], innermost first | u32 type | u64 offset
 *   padding to a multiple of general.alignment (32)
 *   data; tensor offsets count from here
 */
#include "config/gguf/gguf.h"

#include "config/base/checked.h"
#include "config/base/file.h"
#include "config/base/floats.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_BYTES     24u
#define PAIR_BYTES_MIN   13u /* an empty key, a kind, one byte */
#define TENSOR_BYTES_MIN 24u /* an empty name, no shape */
#define KEY_BYTES_MAX    65535u
#define NAME_BYTES_MAX   255u
#define DIM_MAX          (UINT64_C(1) << 48)
#define ALIGNMENT_MAX    (1u << 20)

struct gguf {
    char *path;
    uint8_t *map;
    size_t len;
    struct gguf_value *values; /* sorted by key */
    size_t value_count;
    struct gguf_tensor *tensors;
    size_t tensor_count;
};

/* A read cursor. */
struct cursor {
    const struct gguf *g;
    size_t at;
    struct err *err;
};

static const uint8_t KIND_BYTES[] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2,  [GGUF_I16] = 2,    [GGUF_U32] = 4,
    [GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_STRING] = 0, [GGUF_ARRAY] = 0,
    [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};
#define KIND_COUNT (sizeof KIND_BYTES)

static uint64_t load(const void *p, size_t bytes)
{
    const uint8_t *b = p;
    uint64_t x = 0;
    for (size_t i = 0; i < bytes; i++) x |= (uint64_t)b[i] << (8 * i);
    return x;
}

/* ---- reading ---- */

static enum status too_short(const struct cursor *c)
{
    return err_set(
        c->err, ST_FORMAT,
        "%s: the metadata entry at byte %zu runs past the end of the file (%zu bytes); is it truncated?",
        c->g->path, c->at, c->g->len);
}

static enum status take_number(struct cursor *c, size_t bytes, uint64_t *out)
{
    if (c->g->len - c->at < bytes) return too_short(c);
    *out = load(c->g->map + c->at, bytes);
    c->at += bytes;
    return ST_OK;
}

static enum status take_text(struct cursor *c, struct gguf_text *out)
{
    uint64_t len = 0;
    enum status st = take_number(c, 8, &len);
    if (st) return st;
    if (len > c->g->len - c->at) return too_short(c);
    *out = (struct gguf_text){(const char *)c->g->map + c->at, (size_t)len};
    c->at += (size_t)len;
    return ST_OK;
}

/* A name: not empty, not long, printable. */
static enum status take_name(struct cursor *c, const char *what, size_t max, struct gguf_text *out)
{
    size_t at = c->at;
    enum status st = take_text(c, out);
    bool fine = !st && out->len > 0 && out->len <= max;
    for (size_t i = 0; fine && i < out->len; i++) fine = (uint8_t)out->p[i] >= ' ' && out->p[i] != 0x7f;
    if (!st && !fine)
        return err_set(c->err, ST_FORMAT, "%s: byte %zu: a %s is empty, too long or not printable",
                       c->g->path, at, what);
    return st;
}

/* `count` values of a non-array kind. */
static enum status take_items(struct cursor *c, enum gguf_kind kind, uint64_t count)
{
    size_t left = c->g->len - c->at, bytes;
    if (kind != GGUF_STRING) {
        if (count > left || mul_overflows((size_t)count, KIND_BYTES[kind], &bytes) || bytes > left)
            return too_short(c);
        c->at += bytes;
        return ST_OK;
    }
    enum status st = count > left / 8 ? too_short(c) : ST_OK;
    struct gguf_text skipped;
    for (uint64_t i = 0; i < count && !st; i++) st = take_text(c, &skipped);
    return st;
}

static enum status take_pair(struct cursor *c, struct gguf_value *v)
{
    uint64_t kind = 0, item;
    enum status st = take_name(c, "key", KEY_BYTES_MAX, &v->key);
    if (!st) st = take_number(c, 4, &kind);
    if (st) return st;
    item = kind;
    v->count = 1;
    if (kind == GGUF_ARRAY) {
        st = take_number(c, 4, &item);
        if (!st) st = take_number(c, 8, &v->count);
        if (st) return st;
    }
    if (item == GGUF_ARRAY)
        return err_set(c->err, ST_UNSUPPORTED, "%s: key %.*s: an array of arrays is not read", c->g->path,
                       (int)v->key.len, v->key.p);
    if (item >= KIND_COUNT)
        return err_set(c->err, ST_FORMAT, "%s: key %.*s: no kind has the number %llu", c->g->path,
                       (int)v->key.len, v->key.p, (unsigned long long)item);
    v->kind = (enum gguf_kind)kind;
    v->item = (enum gguf_kind)item;
    v->data = c->g->map + c->at;
    size_t begin = c->at;
    st = take_items(c, v->item, v->count);
    v->bytes = c->at - begin;
    return st;
}

static enum status take_tensor(struct cursor *c, struct gguf_tensor *t)
{
    uint64_t rank = 0, type = 0;
    enum status st = take_name(c, "tensor's name", NAME_BYTES_MAX, &t->name);
    if (!st) st = take_number(c, 4, &rank);
    if (!st && rank > GGUF_RANK_MAX)
        return err_set(c->err, ST_FORMAT, "%s: tensor %.*s has %llu dimensions, at most %u are read",
                       c->g->path, (int)t->name.len, t->name.p, (unsigned long long)rank, GGUF_RANK_MAX);
    t->rank = (uint32_t)rank;
    for (uint32_t i = 0; i < t->rank && !st; i++) {
        st = take_number(c, 8, &t->shape[i]);
        if (!st && (t->shape[i] == 0 || t->shape[i] > DIM_MAX))
            st = err_set(c->err, ST_FORMAT, "%s: tensor %.*s has an impossible shape", c->g->path,
                         (int)t->name.len, t->name.p);
    }
    if (!st) st = take_number(c, 4, &type);
    if (!st) st = take_number(c, 8, &t->offset);
    t->type = (uint32_t)type;
    return st;
}

static int compare_text(struct gguf_text a, struct gguf_text b)
{
    int c = memcmp(a.p, b.p, a.len < b.len ? a.len : b.len);
    return c ? c : (a.len > b.len) - (a.len < b.len);
}

static int by_key(const void *a, const void *b)
{
    return compare_text(((const struct gguf_value *)a)->key, ((const struct gguf_value *)b)->key);
}

/* A count is trusted only if the rest of the file could hold that many. */
static enum status take_count(struct cursor *c, const char *what, size_t bytes_min, size_t *out)
{
    uint64_t n = 0;
    enum status st = take_number(c, 8, &n);
    if (st) return st;
    if (n > c->g->len / bytes_min)
        return err_set(c->err, ST_FORMAT, "%s: %llu %s in a file of %zu bytes (is it truncated?)", c->g->path,
                       (unsigned long long)n, what, c->g->len);
    *out = (size_t)n;
    return ST_OK;
}

static enum status check_version(struct cursor *c)
{
    uint64_t version = 0;
    if (memcmp(c->g->map, "GGUF", 4) != 0)
        return err_set(c->err, ST_FORMAT, "%s: does not begin with GGUF", c->g->path);
    c->at = 4;
    enum status st = take_number(c, 4, &version);
    if (st || version == 2 || version == 3) return st;
    return err_set(c->err, ST_UNSUPPORTED, "%s: %s; GGUF of versions 2 and 3, little-endian, is read",
                   c->g->path,
                   version == 1     ? "version 1 of GGUF"
                   : version & 0xff ? "an unknown version of GGUF"
                                    : "a big-endian file");
}

static enum status read_pairs(struct gguf *g, struct cursor *c)
{
    enum status st = ST_OK;
    for (size_t i = 0; i < g->value_count && !st; i++) st = take_pair(c, &g->values[i]);
    if (st || g->value_count == 0) return st;
    qsort(g->values, g->value_count, sizeof *g->values, by_key);
    for (size_t i = 1; i < g->value_count; i++)
        if (by_key(&g->values[i - 1], &g->values[i]) == 0)
            return err_set(c->err, ST_FORMAT, "%s: the key %.*s is duplicated", g->path,
                           (int)g->values[i].key.len, g->values[i].key.p);
    return ST_OK;
}

/* Converts offsets within the data to offsets within the file. */
static enum status place_tensors(struct gguf *g, struct cursor *c)
{
    uint32_t align = 32;
    const struct gguf_value *v = gguf_get(g, "general.alignment");
    if (v && (!gguf_u32(v, &align) || align == 0 || align > ALIGNMENT_MAX || (align & (align - 1))))
        return err_set(c->err, ST_FORMAT, "%s: general.alignment must be a power of two up to %u", g->path,
                       ALIGNMENT_MAX);
    size_t begin = (c->at + align - 1) / align * align; /* far from overflow: c->at is within a file */
    for (size_t i = 0; i < g->tensor_count; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        if (t->offset % align)
            return err_set(c->err, ST_FORMAT,
                           "%s: tensor %.*s begins at byte %llu of the data, no multiple of %u", g->path,
                           (int)t->name.len, t->name.p, (unsigned long long)t->offset, align);
        if (begin > g->len || t->offset > g->len - begin)
            return err_set(c->err, ST_FORMAT,
                           "%s: tensor %.*s begins at byte %llu of the data, past the end of the file (is it "
                           "truncated?)",
                           g->path, (int)t->name.len, t->name.p, (unsigned long long)t->offset);
        t->offset += begin;
    }
    return ST_OK;
}

static enum status read_all(struct gguf *g, struct err *err)
{
    struct cursor c = {.g = g, .err = err};
    enum status st = check_version(&c);
    if (!st) st = take_count(&c, "tensors", TENSOR_BYTES_MIN, &g->tensor_count);
    if (!st) st = take_count(&c, "pairs of metadata", PAIR_BYTES_MIN, &g->value_count);
    if (st) return st;
    g->values = calloc(g->value_count + 1, sizeof *g->values);
    g->tensors = calloc(g->tensor_count + 1, sizeof *g->tensors);
    if (!g->values || !g->tensors)
        return err_set(err, ST_NOMEM, "%s: out of memory for its metadata", g->path);
    st = read_pairs(g, &c);
    for (size_t i = 0; i < g->tensor_count && !st; i++) st = take_tensor(&c, &g->tensors[i]);
    return st ? st : place_tensors(g, &c);
}

static enum status map_file(struct gguf *g, struct err *err)
{
    int fd;
    uint64_t size;
    enum status st = file_open(g->path, &fd, &size, err);
    if (st) return st;
    if (size < HEADER_BYTES)
        st = err_set(err, ST_FORMAT, "%s: %llu bytes are too few for a GGUF file", g->path,
                     (unsigned long long)size);
    if (!st) {
        void *p = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            st = file_unmapped(g->path, size, err);
        } else {
            g->map = p;
            g->len = (size_t)size;
        }
    }
    close(fd);
    return st;
}

bool gguf_is(const char *path)
{
    struct stat sb;
    char magic[4];
    if (stat(path, &sb) != 0 || !S_ISREG(sb.st_mode)) return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return false;
    ssize_t n = read(fd, magic, sizeof magic);
    close(fd);
    return n == (ssize_t)sizeof magic && memcmp(magic, "GGUF", 4) == 0;
}

enum status gguf_open(const char *path, struct gguf **out, struct err *err)
{
    struct gguf *g = calloc(1, sizeof *g);
    if (g) g->path = strdup(path);
    if (!g || !g->path) {
        gguf_close(g);
        return err_nomem(err, path);
    }
    enum status st = map_file(g, err);
    if (!st) st = read_all(g, err);
    if (st) gguf_close(g);
    else *out = g;
    return st;
}

void gguf_close(struct gguf *g)
{
    if (!g) return;
    if (g->map) munmap(g->map, g->len);
    free(g->values);
    free(g->tensors);
    free(g->path);
    free(g);
}

/* ---- values ---- */

const struct gguf_value *gguf_get(const struct gguf *g, const char *key)
{
    struct gguf_value want = {.key = {key, strlen(key)}};
    if (g->value_count == 0) return NULL;
    return bsearch(&want, g->values, g->value_count, sizeof want, by_key);
}

static bool is_signed(enum gguf_kind k)
{
    return k == GGUF_I8 || k == GGUF_I16 || k == GGUF_I32 || k == GGUF_I64;
}

static int64_t load_signed(const void *p, size_t bytes)
{
    uint64_t x = load(p, bytes), sign = UINT64_C(1) << (8 * bytes - 1);
    return (int64_t)((x ^ sign) - sign);
}

bool gguf_u32(const struct gguf_value *v, uint32_t *out)
{
    if (!v || KIND_BYTES[v->kind] == 0 || v->kind == GGUF_F32 || v->kind == GGUF_F64 || v->kind == GGUF_BOOL)
        return false;
    size_t bytes = KIND_BYTES[v->kind];
    if (is_signed(v->kind) && load_signed(v->data, bytes) < 0) return false;
    uint64_t x = load(v->data, bytes);
    if (x > UINT32_MAX) return false;
    *out = (uint32_t)x;
    return true;
}

bool gguf_f64(const struct gguf_value *v, double *out)
{
    if (!v || KIND_BYTES[v->kind] == 0 || v->kind == GGUF_BOOL) return false;
    *out = gguf_item(v, 0);
    return true;
}

bool gguf_bool(const struct gguf_value *v, bool *out)
{
    if (!v || v->kind != GGUF_BOOL) return false;
    *out = load(v->data, 1) != 0;
    return true;
}

bool gguf_string(const struct gguf_value *v, struct gguf_text *out)
{
    if (!v || v->kind != GGUF_STRING) return false;
    *out = (struct gguf_text){(const char *)v->data + 8, (size_t)load(v->data, 8)};
    return true;
}

double gguf_item(const struct gguf_value *v, uint64_t i)
{
    size_t bytes = KIND_BYTES[v->item];
    if (i >= v->count || bytes == 0) return 0;
    const uint8_t *p = (const uint8_t *)v->data + (size_t)i * bytes;
    if (is_signed(v->item)) return (double)load_signed(p, bytes);
    uint64_t x = load(p, bytes);
    double d;
    if (v->item == GGUF_F64) {
        memcpy(&d, &x, sizeof d);
        return d;
    }
    if (v->item == GGUF_F32) return (double)float_of((uint32_t)x);
    return (double)x;
}

bool gguf_next_string(const struct gguf_value *v, const void **at, struct gguf_text *out)
{
    if (!v || v->item != GGUF_STRING) return false;
    const uint8_t *p = *at, *end = (const uint8_t *)v->data + v->bytes;
    p = p ? p + 8 + (size_t)load(p, 8) : v->data;
    if (p >= end) return false;
    *at = p;
    *out = (struct gguf_text){(const char *)p + 8, (size_t)load(p, 8)};
    return true;
}

bool gguf_text_is(struct gguf_text t, const char *s)
{
    return strlen(s) == t.len && memcmp(s, t.p, t.len) == 0;
}

/* ---- tensors, the file ---- */

/* ggml.h and gguf/constants.py; the gaps are removed types. */
static const struct gguf_type TYPES[] = {
    [0] = {"F32", 1, 4},         [1] = {"F16", 1, 2},         [2] = {"Q4_0", 32, 18},
    [3] = {"Q4_1", 32, 20},      [6] = {"Q5_0", 32, 22},      [7] = {"Q5_1", 32, 24},
    [8] = {"Q8_0", 32, 34},      [9] = {"Q8_1", 32, 36},      [10] = {"Q2_K", 256, 84},
    [11] = {"Q3_K", 256, 110},   [12] = {"Q4_K", 256, 144},   [13] = {"Q5_K", 256, 176},
    [14] = {"Q6_K", 256, 210},   [15] = {"Q8_K", 256, 292},   [16] = {"IQ2_XXS", 256, 66},
    [17] = {"IQ2_XS", 256, 74},  [18] = {"IQ3_XXS", 256, 98}, [19] = {"IQ1_S", 256, 50},
    [20] = {"IQ4_NL", 32, 18},   [21] = {"IQ3_S", 256, 110},  [22] = {"IQ2_S", 256, 82},
    [23] = {"IQ4_XS", 256, 136}, [24] = {"I8", 1, 1},         [25] = {"I16", 1, 2},
    [26] = {"I32", 1, 4},        [27] = {"I64", 1, 8},        [28] = {"F64", 1, 8},
    [29] = {"IQ1_M", 256, 56},   [30] = {"BF16", 1, 2},       [34] = {"TQ1_0", 256, 54},
    [35] = {"TQ2_0", 256, 66},   [39] = {"MXFP4", 32, 17},
};

const struct gguf_type *gguf_type(uint32_t id)
{
    return id < sizeof TYPES / sizeof *TYPES && TYPES[id].name ? &TYPES[id] : NULL;
}

const struct gguf_tensor *gguf_find(const struct gguf *g, const char *name)
{
    for (size_t i = 0; i < g->tensor_count; i++)
        if (gguf_text_is(g->tensors[i].name, name)) return &g->tensors[i];
    return NULL;
}

size_t gguf_tensor_count(const struct gguf *g)
{
    return g->tensor_count;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t idx)
{
    return idx < g->tensor_count ? &g->tensors[idx] : NULL;
}

const char *gguf_path(const struct gguf *g)
{
    return g->path;
}

const void *gguf_map(const struct gguf *g)
{
    return g->map;
}

uint64_t gguf_file_bytes(const struct gguf *g)
{
    return g->len;
}
