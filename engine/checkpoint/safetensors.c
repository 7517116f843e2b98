/* See safetensors.h. A file is: u64 little-endian header length, that many bytes of JSON, then the tensors'
 * bytes without holes:
 *
 *   | len | {"name": {"dtype": "BF16", "shape": [2,3], "data_offsets": [begin, end]}, ..., "__metadata__":
 * {...}} | bytes 0..end
 * |
 *
 * The reference reader's rules apply: the header is at most 100 MB, tensors sorted by offset follow each
 * other exactly, and the last one ends where the file does. */
#include "engine/checkpoint/safetensors.h"

#include "engine/checkpoint/ggml.h"

#include "config/base/checked.h"
#include "config/base/file.h"
#include "config/base/json.h"
#include "config/base/list.h"
#include "config/gguf/gguf.h"
#include "engine/checkpoint/safetensors_internal.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HEADER_BYTES_MAX 100000000u
#define INDEX_BYTES_MAX  100000000u
#define FILES_MAX        4096u
#define DIM_MAX          (UINT64_C(1) << 48)

static const struct {
    const char *name;
    uint32_t bytes;
} DTYPES[] = {
    [STF_F64] = {"F64", 8},   [STF_F32] = {"F32", 4},         [STF_F16] = {"F16", 2},
    [STF_BF16] = {"BF16", 2}, [STF_I64] = {"I64", 8},         [STF_I32] = {"I32", 4},
    [STF_I16] = {"I16", 2},   [STF_I8] = {"I8", 1},           [STF_U64] = {"U64", 8},
    [STF_U32] = {"U32", 4},   [STF_U16] = {"U16", 2},         [STF_U8] = {"U8", 1},
    [STF_BOOL] = {"BOOL", 1}, [STF_F8_E4M3] = {"F8_E4M3", 1}, [STF_F8_E5M2] = {"F8_E5M2", 1},
};

const char *stf_dtype_name(enum stf_dtype d)
{
    return d == STF_GGML ? "GGUF quants" : DTYPES[d].name;
}

size_t stf_count(const struct stf_files *f)
{
    return f->count;
}

const struct stf_tensor *stf_at(const struct stf_files *f, size_t idx)
{
    return idx < f->count ? &f->tensors[idx] : NULL;
}

const char *stf_file_name(const struct stf_files *f, const struct stf_tensor *t)
{
    return f->files[t->file].name;
}

const struct stf_tensor *stf_find(const struct stf_files *f, const char *name)
{
    size_t lo = 0, hi = f->count;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strcmp(f->tensors[mid].name, name);
        if (c == 0) return &f->tensors[mid];
        if (c < 0) lo = mid + 1;
        else hi = mid;
    }
    return NULL;
}

/* Page-aligned part of a tensor's bytes: rounded outwards to read, inwards to drop (neighbours may still be
 * needed). */
static void advise(const struct stf_files *f, const struct stf_tensor *t, int advice, bool inwards)
{
    const struct mapped *m = &f->files[t->file];
    if ((uintptr_t)t->data - (uintptr_t)m->map >= m->len) return; /* put together in memory */
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t begin = (size_t)((const char *)t->data - (const char *)m->map), end = begin + (size_t)t->bytes;
    begin = inwards ? (begin + page - 1) / page * page : begin / page * page;
    if (inwards) end = end / page * page;
    if (end > begin) (void)madvise((char *)m->map + begin, end - begin, advice);
}

void stf_willneed(const struct stf_files *f, const struct stf_tensor *t)
{
    advise(f, t, MADV_WILLNEED, false);
}

void stf_done(const struct stf_files *f, const struct stf_tensor *t)
{
    advise(f, t, MADV_DONTNEED, true);
}

enum status stf__add_tensor(struct stf_files *f, const struct stf_tensor *t, struct err *err)
{
    if (!LIST_RESERVE(f->tensors, f->cap, f->count + 1)) return err_nomem(err, "the list of tensors");
    f->tensors[f->count++] = *t;
    return ST_OK;
}

/* Reads one entry of the header; `body` is where tensor bytes begin, of which there are body_len. */
static enum status parse_tensor(const struct json_doc *d, uint32_t node, const char *file, const char *body,
                                size_t body_len, struct stf_tensor *t, struct err *err)
{
    uint32_t dtype = json_get(d, node, "dtype"), shape = json_get(d, node, "shape"),
             offsets = json_get(d, node, "data_offsets");
    uint32_t k = 0;
    while (k < sizeof DTYPES / sizeof DTYPES[0] && !json_str_eq(d, dtype, DTYPES[k].name)) k++;
    if (k == sizeof DTYPES / sizeof DTYPES[0])
        return err_set(err, ST_FORMAT, "%s: tensor %s has no known dtype", file, t->name);
    t->dtype = (enum stf_dtype)k;
    if (json_kind(d, shape) != JSON_ARRAY)
        return err_set(err, ST_FORMAT, "%s: tensor %s has no shape", file, t->name);
    if (json_count(d, shape) > STF_RANK_MAX)
        return err_set(err, ST_FORMAT, "%s: tensor %s has %u dimensions, at most %u are read", file, t->name,
                       json_count(d, shape), STF_RANK_MAX);
    size_t bytes = DTYPES[k].bytes;
    t->rank = 0;
    uint32_t at = json_first(d, shape);
    for (uint32_t n = json_count(d, shape); n > 0; n--, at = json_next(d, at)) {
        uint64_t dim;
        if (!json_uint(d, at, &dim) || dim > DIM_MAX || mul_overflows(bytes, (size_t)dim, &bytes))
            return err_set(err, ST_FORMAT, "%s: tensor %s has an impossible shape", file, t->name);
        t->shape[t->rank++] = dim;
    }
    uint64_t begin, end;
    if (json_kind(d, offsets) != JSON_ARRAY || json_count(d, offsets) != 2 ||
        !json_uint(d, json_at(d, offsets, 0), &begin) || !json_uint(d, json_at(d, offsets, 1), &end) ||
        end < begin)
        return err_set(err, ST_FORMAT, "%s: tensor %s has no valid data_offsets", file, t->name);
    if (end > body_len)
        return err_set(err, ST_FORMAT,
                       "%s: tensor %s ends at byte %llu of the data, the file has %zu (is it truncated?)",
                       file, t->name, (unsigned long long)end, body_len);
    if (end - begin != bytes)
        return err_set(err, ST_FORMAT, "%s: tensor %s occupies %llu bytes, its shape and dtype need %zu",
                       file, t->name, (unsigned long long)(end - begin), bytes);
    t->bytes = bytes;
    t->data = body + begin;
    return ST_OK;
}

int stf__by_address(const void *a, const void *b)
{
    const struct stf_tensor *x = a, *y = b;
    if (x->data != y->data) return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct stf_tensor *)a)->name, ((const struct stf_tensor *)b)->name);
}

/* Tensors [first, count) belong to one file: they must tile its data exactly. */
static enum status check_tiling(struct stf_files *f, size_t first, const char *file, const char *body,
                                size_t body_len, struct err *err)
{
    if (f->count > first) qsort(f->tensors + first, f->count - first, sizeof *f->tensors, stf__by_address);
    size_t at = 0;
    for (size_t i = first; i < f->count; i++) {
        const struct stf_tensor *t = &f->tensors[i];
        size_t begin = (size_t)((const char *)t->data - body);
        if (begin != at)
            return err_set(err, ST_FORMAT,
                           "%s: tensor %s begins at byte %zu of the data, the one before it ends at %zu",
                           file, t->name, begin, at);
        at = begin + (size_t)t->bytes;
    }
    if (at != body_len)
        return err_set(err, ST_FORMAT, "%s: tensors end at byte %zu of the data, the file has %zu", file, at,
                       body_len);
    return ST_OK;
}

static enum status parse_header(struct stf_files *f, uint32_t file, struct err *err)
{
    const struct mapped *m = &f->files[file];
    if (m->len < 8)
        return err_set(err, ST_FORMAT, "%s: %zu bytes are too few for a safetensors file", m->name, m->len);
    uint64_t header = 0;
    for (int i = 0; i < 8; i++) header |= (uint64_t)((const uint8_t *)m->map)[i] << (8 * i);
    if (header > HEADER_BYTES_MAX)
        return err_set(err, ST_FORMAT,
                       "%s: header of %llu bytes, at most %u are read (not a safetensors file?)", m->name,
                       (unsigned long long)header, HEADER_BYTES_MAX);
    if (header > m->len - 8)
        return err_set(err, ST_FORMAT, "%s: header of %llu bytes in a file of %zu (is it truncated?)",
                       m->name, (unsigned long long)header, m->len);
    const char *text = (const char *)m->map + 8, *body = text + header;
    size_t body_len = m->len - 8 - (size_t)header, first = f->count;
    struct json_doc d = {0};
    enum status st = json_parse(text, (size_t)header, m->name, &d, err);
    if (st) return st;
    if (json_kind(&d, 0) != JSON_OBJECT)
        st = err_set(err, ST_FORMAT, "%s: the header is not a JSON object", m->name);
    uint32_t key = json_first(&d, 0);
    for (uint32_t n = st ? 0 : json_count(&d, 0); n > 0 && !st; n--) {
        uint32_t value = json_next(&d, key), next = json_next(&d, value);
        if (!json_str_eq(&d, key, "__metadata__")) {
            size_t len;
            struct stf_tensor t = {.file = file};
            char *name = json_str_dup(&d, key, &len);
            if (!name) st = err_nomem(err, m->name);
            else if (strlen(name) != len || len == 0)
                st = err_set(err, ST_FORMAT, "%s: a tensor's name is empty or holds a NUL", m->name);
            t.name = name;
            if (!st) st = parse_tensor(&d, value, m->name, body, body_len, &t, err);
            if (!st) st = stf__add_tensor(f, &t, err);
            if (st) free(name);
        }
        key = next;
    }
    json_free(&d);
    return st ? st : check_tiling(f, first, m->name, body, body_len, err);
}

/* The current mappings, for a signal handler: a fixed table, written and read without a lock. */
static struct {
    atomic_uintptr_t begin; /* 0 = free */
    atomic_size_t len;      /* 0 = being filled in */
    const char *_Atomic name;
} mappings[FILES_MAX];

void stf__mapping_add(const struct mapped *m)
{
    for (uint32_t i = 0; i < FILES_MAX; i++) {
        uintptr_t none = 0;
        if (!atomic_compare_exchange_strong(&mappings[i].begin, &none, (uintptr_t)m->map)) continue;
        atomic_store(&mappings[i].name, m->name);
        atomic_store(&mappings[i].len, m->len);
        return;
    }
}

static void mapping_remove(const struct mapped *m)
{
    for (uint32_t i = 0; i < FILES_MAX; i++) {
        if (atomic_load(&mappings[i].begin) != (uintptr_t)m->map) continue;
        atomic_store(&mappings[i].len, 0);
        atomic_store(&mappings[i].begin, 0);
        return;
    }
}

const char *stf_file_at(const void *address)
{
    for (uint32_t i = 0; i < FILES_MAX; i++) {
        uintptr_t begin = atomic_load(&mappings[i].begin), at = (uintptr_t)address;
        if (begin && at >= begin && at - begin < atomic_load(&mappings[i].len))
            return atomic_load(&mappings[i].name);
    }
    return NULL;
}

/* Maps the file `path` (taken: freed with the files) and reads its header. */
static enum status add_file(struct stf_files *f, char *path, struct err *err)
{
    if (!path) return err_nomem(err, NULL);
    if (!LIST_RESERVE(f->files, f->file_cap, f->file_count + 1)) {
        free(path);
        return err_nomem(err, NULL);
    }
    struct mapped *m = &f->files[f->file_count++];
    *m = (struct mapped){.name = path};
    int fd;
    uint64_t size;
    enum status st = file_open(path, &fd, &size, err);
    if (st) return st;
    if (size) {
        void *p = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            st = file_unmapped(path, size, err);
        } else {
            m->map = p;
            m->len = (size_t)size;
            stf__mapping_add(m);
            (void)madvise(p, m->len, MADV_SEQUENTIAL);
        }
    }
    close(fd);
    return st ? st : parse_header(f, f->file_count - 1, err);
}

/* Sorts all tensors by name; a duplicate is an error that names it and both files. */
enum status stf__sort_names(struct stf_files *f, struct err *err)
{
    if (f->count) qsort(f->tensors, f->count, sizeof *f->tensors, by_name);
    for (size_t i = 0; i < f->count; i++) {
        if (i > 0 && strcmp(f->tensors[i - 1].name, f->tensors[i].name) == 0)
            return err_set(err, ST_FORMAT, "tensor %s is duplicated: in %s and in %s", f->tensors[i].name,
                           stf_file_name(f, &f->tensors[i - 1]), stf_file_name(f, &f->tensors[i]));
    }
    return ST_OK;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The distinct shard names of the index, sorted; each must be a plain file name. On error the names so far
 * are still the caller's. */
static enum status shard_names(const struct json_doc *d, uint32_t map, const char *path, char ***out,
                               uint32_t *count, struct err *err)
{
    uint32_t n = json_count(d, map), key = json_first(d, map);
    if (json_kind(d, map) != JSON_OBJECT || n == 0) return err_set(err, ST_FORMAT, "%s: no weight_map", path);
    char **names = calloc(n, sizeof *names);
    if (!names) return err_nomem(err, path);
    *out = names;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t value = json_next(d, key);
        size_t len;
        char *name = json_str_dup(d, value, &len);
        if (!name) return err_set(err, ST_FORMAT, "%s: a value of weight_map is not a file name", path);
        names[(*count)++] = name;
        if (len == 0 || strlen(name) != len || strchr(name, '/') || strcmp(name, ".") == 0 ||
            strcmp(name, "..") == 0)
            return err_set(err, ST_FORMAT, "%s: \"%s\" is not a plain file name", path, name);
        key = json_next(d, value);
    }
    qsort(names, *count, sizeof *names, by_text);
    uint32_t kept = 1;
    for (uint32_t i = 1; i < *count; i++) {
        if (strcmp(names[i], names[kept - 1]) == 0) free(names[i]);
        else names[kept++] = names[i];
    }
    *count = kept;
    if (kept > FILES_MAX)
        return err_set(err, ST_TOO_LARGE, "%s: %u shards, at most %u are read", path, kept, FILES_MAX);
    return ST_OK;
}

/* Every tensor of the index must be in the shard that the index names. */
static enum status check_index(const struct stf_files *f, const struct json_doc *d, uint32_t map,
                               const char *path, struct err *err)
{
    uint32_t key = json_first(d, map);
    for (uint32_t n = json_count(d, map); n > 0; n--) {
        uint32_t value = json_next(d, key);
        size_t len;
        char *name = json_str_dup(d, key, &len);
        if (!name) return err_nomem(err, path);
        const struct stf_tensor *t = stf_find(f, name);
        const char *base = t ? strrchr(stf_file_name(f, t), '/') : NULL;
        enum status st = ST_OK;
        if (!t) st = err_set(err, ST_FORMAT, "%s: tensor %s is in no shard", path, name);
        else if (!json_str_eq(d, value, base ? base + 1 : stf_file_name(f, t)))
            st = err_set(err, ST_FORMAT, "%s: tensor %s is in %s, not where the index says", path, name,
                         stf_file_name(f, t));
        free(name);
        if (st) return st;
        key = json_next(d, value);
    }
    return ST_OK;
}

static enum status check_shards(const char *dir, const char *path, char *const *names, uint32_t count,
                                struct err *err)
{
    const char *first = NULL;
    uint32_t missing = 0;
    for (uint32_t i = 0; i < count; i++) {
        char *shard = file_join(dir, names[i]);
        if (!shard) return err_nomem(err, path);
        if (access(shard, F_OK)) {
            first = first ? first : names[i];
            missing++;
        }
        free(shard);
    }
    if (!missing) return ST_OK;
    return err_set(err, ST_NOT_FOUND, "%s: %u of its %u shard files are missing, the first is %s", path,
                   missing, count, first);
}

static enum status open_shards(struct stf_files *f, const char *dir, const char *path, struct err *err)
{
    struct json_doc d = {0};
    enum status st = json_doc_load(path, INDEX_BYTES_MAX, &d, err);
    if (st == ST_NOT_FOUND)
        return err_set(err, ST_NOT_FOUND,
                       "%s: neither model.safetensors nor model.safetensors.index.json is there", dir);
    if (st) return st;
    uint32_t map = json_get(&d, 0, "weight_map"), count = 0;
    char **names = NULL;
    st = shard_names(&d, map, path, &names, &count, err);
    if (!st) st = check_shards(dir, path, names, count, err);
    for (uint32_t i = 0; i < count && !st; i++) st = add_file(f, file_join(dir, names[i]), err);
    if (!st) st = stf__sort_names(f, err);
    if (!st) st = check_index(f, &d, map, path, err);
    for (uint32_t i = 0; i < count; i++) free(names[i]);
    free(names);
    json_free(&d);
    return st;
}

enum status stf_open(const char *dir, struct stf_files **out, struct err *err)
{
    struct stf_files *f = calloc(1, sizeof *f);
    char *single = file_join(dir, "model.safetensors"),
         *index = file_join(dir, "model.safetensors.index.json");
    enum status st;
    if (!f || !single || !index) {
        st = err_nomem(err, dir);
    } else if (access(single, F_OK) == 0) {
        st = add_file(f, single, err);
        single = NULL;
        if (!st) st = stf__sort_names(f, err);
    } else {
        st = open_shards(f, dir, index, err);
    }
    free(single);
    free(index);
    if (st) stf_close(f);
    else *out = f;
    return st;
}

enum status stf_open_file(const char *path, struct stf_files **out, struct err *err)
{
    struct stf_files *f = calloc(1, sizeof *f);
    if (!f) return err_nomem(err, path);
    enum status st = add_file(f, strdup(path), err);
    if (!st) st = stf__sort_names(f, err);
    if (st) stf_close(f);
    else *out = f;
    return st;
}

void stf_close(struct stf_files *f)
{
    if (!f) return;
    for (size_t i = 0; i < f->count; i++) free((void *)(uintptr_t)f->tensors[i].name);
    free(f->tensors);
    for (uint32_t i = 0; i < f->file_count; i++) {
        if (f->files[i].map) {
            mapping_remove(&f->files[i]);
            if (f->files[i].gguf) gguf_close(f->files[i].gguf);
            else munmap(f->files[i].map, f->files[i].len);
        }
        free(f->files[i].name);
    }
    free(f->files);
    free(f->made);
    free(f);
}

bool stf_norms_plus_one(const struct stf_files *f)
{
    return f->norms_plus_one;
}

/* ---- values ---- */

bool stf_to_f32(const struct stf_tensor *t, float *dst)
{
    uint32_t id = t->dtype == STF_GGML   ? t->ggml
                  : t->dtype == STF_F32  ? GGML_F32
                  : t->dtype == STF_F16  ? GGML_F16
                  : t->dtype == STF_BF16 ? GGML_BF16
                                         : UINT32_MAX;
    const struct ggml_type *type = ggml_type_of(id);
    if (type) ggml_to_f32(type, t->data, (size_t)(t->bytes / type->bytes * type->block), dst);
    return type != NULL;
}
