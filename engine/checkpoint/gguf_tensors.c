/* The tensors of GGUF files as those of a checkpoint. See stf_open_gguf in safetensors.h. */
#include "config/base/checked.h"
#include "engine/checkpoint/gguf_files.h"
#include "engine/checkpoint/safetensors_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ITEMS_MAX 65536u /* tensors in one */

/* Types with their own dtype; all others are blocks. */
static enum stf_dtype dtype_of(uint32_t type)
{
    static const struct {
        uint32_t type;
        enum stf_dtype dtype;
    } plain[] = {{0, STF_F32},  {1, STF_F16},  {30, STF_BF16}, {24, STF_I8},
                 {25, STF_I16}, {26, STF_I32}, {27, STF_I64},  {28, STF_F64}};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (plain[i].type == type) return plain[i].dtype;
    return STF_GGML;
}

/* All of *out except the name. */
static enum status measure(const struct gguf *g, const struct gguf_tensor *t, struct stf_tensor *out,
                           struct err *err)
{
    const struct gguf_type *type = gguf_type(t->type);
    size_t n = 1, bytes;
    if (!type)
        return err_set(err, ST_UNSUPPORTED, "%s: tensor %.*s is of type %u, which is not known", gguf_path(g),
                       (int)t->name.len, t->name.p, t->type);
    *out = (struct stf_tensor){.dtype = dtype_of(t->type), .ggml = t->type, .rank = t->rank};
    bool fits = t->rank == 0 || t->shape[0] % type->block == 0;
    for (uint32_t i = 0; i < t->rank; i++) {
        out->shape[t->rank - 1 - i] = t->shape[i];
        fits = fits && !mul_overflows(n, (size_t)t->shape[i], &n);
    }
    if (!fits || n % type->block || mul_overflows(n / type->block, type->bytes, &bytes))
        return err_set(err, ST_FORMAT, "%s: tensor %.*s has a shape that %s cannot have", gguf_path(g),
                       (int)t->name.len, t->name.p, type->name);
    uint64_t left = gguf_file_bytes(g) - t->offset;
    if (bytes > left)
        return err_set(
            err, ST_FORMAT,
            "%s: tensor %.*s takes %zu bytes, the file has %llu after its start (is it truncated?)",
            gguf_path(g), (int)t->name.len, t->name.p, bytes, (unsigned long long)left);
    out->bytes = bytes;
    out->data = (const char *)gguf_map(g) + t->offset;
    return ST_OK;
}

static enum status add(struct stf_files *f, struct stf_tensor t, const char *name, struct err *err)
{
    char *copy = strdup(name);
    if (!copy) return err_nomem(err, "the list of tensors");
    t.name = copy;
    enum status st = stf__add_tensor(f, &t, err);
    if (st) free(copy);
    return st;
}

/* Rows of q, k and v, concatenated: "x.[ROWS OF Q]_proj". */
static enum status add_qkv(struct stf_files *f, const struct stf_tensor *t, const char *name,
                           const char *path, struct err *err)
{
    const char *open = strchr(name, '['), *close = strchr(name, ']');
    uint64_t all = t->rank ? t->shape[0] : 0, q = strtoull(open + 1, NULL, 10);
    if (!close || q == 0 || q >= all || (all - q) % 2 || t->bytes % all)
        return err_set(err, ST_FORMAT, "%s: the tensor for %s does not hold q, k and v", path, name);
    struct stf_tensor part = *t;
    enum status st = ST_OK;
    for (int i = 0; i < 3 && !st; i++) {
        char own[STF_NAME_MAX + 24];
        part.shape[0] = i ? (all - q) / 2 : q;
        part.bytes = t->bytes / all * part.shape[0];
        snprintf(own, sizeof own, "%.*s%c%s", (int)(open - name), name, "qkv"[i], close + 1);
        st = add(f, part, own, err);
        part.data = (const char *)part.data + part.bytes;
    }
    return st;
}

/* The tensor under its name, or its parts if the name has a '*' or a '['. */
static enum status add_all(struct stf_files *f, const struct stf_tensor *t, const char *name,
                           const char *path, struct err *err)
{
    const char *star = strchr(name, '*');
    if (strchr(name, '[')) return add_qkv(f, t, name, path, err);
    if (!star) return add(f, *t, name, err);
    uint64_t n = t->rank ? t->shape[0] : 0;
    if (t->rank < 2 || n == 0 || n > ITEMS_MAX || t->bytes % n)
        return err_set(err, ST_FORMAT, "%s: the tensor for %s does not hold several", path, name);
    struct stf_tensor item = *t;
    item.rank--;
    memmove(item.shape, item.shape + 1, item.rank * sizeof item.shape[0]);
    item.bytes /= n;
    enum status st = ST_OK;
    for (uint64_t i = 0; i < n && !st; i++) {
        char own[STF_NAME_MAX + 24];
        snprintf(own, sizeof own, "%.*s%llu%s", (int)(star - name), name, (unsigned long long)i, star + 1);
        item.data = (const char *)t->data + i * item.bytes;
        st = add(f, item, own, err);
    }
    return st;
}

/* Adds the file, which is owned from here on, and its tensors. */
static enum status add_file(struct stf_files *f, struct gguf *g, bool tower, const struct stf_naming *naming,
                            struct err *err)
{
    struct mapped *m = &f->files[f->file_count];
    *m = (struct mapped){.name = strdup(gguf_path(g)),
                         .map = (void *)(uintptr_t)gguf_map(g),
                         .len = (size_t)gguf_file_bytes(g),
                         .gguf = g};
    f->file_count++;
    stf__mapping_add(m);
    if (!m->name) return err_nomem(err, NULL);
    (void)madvise(m->map, m->len, MADV_SEQUENTIAL);
    enum status st = ST_OK;
    size_t first = f->count;
    for (size_t i = 0; i < gguf_tensor_count(g) && !st; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        char from[STF_NAME_MAX], name[STF_NAME_MAX];
        struct stf_tensor own;
        snprintf(from, sizeof from, "%.*s", (int)t->name.len, t->name.p);
        st = measure(g, t, &own, err);
        own.file = f->file_count - 1;
        if (!st && naming->name(naming->arg, from, tower, name)) st = add_all(f, &own, name, m->name, err);
    }
    if (!st && f->count > first)
        qsort(f->tensors + first, f->count - first, sizeof *f->tensors, stf__by_address);
    for (size_t i = first + 1; i < f->count && !st; i++) {
        const struct stf_tensor *a = &f->tensors[i - 1], *b = &f->tensors[i];
        if ((const char *)b->data < (const char *)a->data + a->bytes)
            st = err_set(err, ST_FORMAT, "%s: tensors %s and %s overlap", m->name, a->name, b->name);
    }
    return st;
}

static struct stf_tensor *find(struct stf_files *f, const char *name, size_t len)
{
    for (size_t i = 0; i < f->count; i++)
        if (strncmp(f->tensors[i].name, name, len) == 0 && !f->tensors[i].name[len]) return &f->tensors[i];
    return NULL;
}

/* [out, channels, rows, columns] twice -> [out, channels, 2, rows, columns]. */
static enum status join_frames(struct stf_files *f, struct stf_tensor *a, struct stf_tensor *b,
                               struct err *err)
{
    if (f->made || a->rank != 4 || b->rank != 4 || a->dtype != b->dtype || a->dtype == STF_GGML ||
        memcmp(a->shape, b->shape, sizeof a->shape) != 0)
        return err_set(err, ST_FORMAT, "%s: tensors %s and %s are no two frames of a patch",
                       f->files[a->file].name, a->name, b->name);
    size_t planes = (size_t)(a->shape[0] * a->shape[1]), plane = (size_t)a->bytes / planes;
    char *to = f->made = malloc(2 * (size_t)a->bytes);
    if (!to) return err_nomem(err, a->name);
    for (size_t i = 0; i < planes; i++) {
        memcpy(to + 2 * i * plane, (const char *)a->data + i * plane, plane);
        memcpy(to + (2 * i + 1) * plane, (const char *)b->data + i * plane, plane);
    }
    a->rank = 5;
    a->shape[4] = a->shape[3];
    a->shape[3] = a->shape[2];
    a->shape[2] = 2;
    a->bytes *= 2;
    a->data = to;
    return ST_OK;
}

static enum status join_all(struct stf_files *f, struct err *err)
{
    for (size_t i = 0; i < f->count; i++) {
        struct stf_tensor *b = &f->tensors[i];
        size_t len = strlen(b->name);
        if (len < 3 || strcmp(b->name + len - 2, ".1") != 0) continue;
        struct stf_tensor *a = find(f, b->name, len - 2);
        enum status st = a ? join_frames(f, a, b, err) : ST_OK;
        if (st) return st;
        if (!a) continue;
        free((void *)(uintptr_t)b->name);
        *b = f->tensors[--f->count];
        i--;
    }
    return ST_OK;
}

enum status stf_open_gguf(struct gguf_files *g, const struct stf_naming *naming, struct stf_files **out,
                          struct err *err)
{
    struct stf_files *f = calloc(1, sizeof *f);
    if (f) f->files = calloc(g->count + 1, sizeof *f->files);
    enum status st = f && f->files ? ST_OK : err_nomem(err, NULL);
    uint32_t taken = 0; /* naming looks at all parts */
    while (taken < g->count && !st) st = add_file(f, g->parts[taken++], false, naming, err);
    while (taken > 0) g->parts[--taken] = NULL;
    if (!st && g->tower) {
        st = add_file(f, g->tower, true, naming, err);
        g->tower = NULL;
    }
    gguf_files_close(g);
    if (!st) st = join_all(f, err);
    if (!st) st = stf__sort_names(f, err);
    if (st) {
        stf_close(f);
        return st;
    }
    f->norms_plus_one = naming->norms_plus_one;
    *out = f;
    return ST_OK;
}
