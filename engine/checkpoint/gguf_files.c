/* See gguf_files.h. */
#include "engine/checkpoint/gguf_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number before ".gguf" and the one before that: "-00001-of-00003.gguf". */
static bool split_name(const char *path, size_t *stem, uint32_t *number, uint32_t *count)
{
    static const size_t tail = sizeof "-00001-of-00003.gguf" - 1;
    size_t len = strlen(path);
    int used = 0;
    if (len <= tail) return false;
    *stem = len - tail;
    return sscanf(path + *stem, "-%5u-of-%5u.gguf%n", number, count, &used) == 2 && (size_t)used == tail;
}

static enum status open_parts(const char *model, uint32_t count, struct gguf_files *f, struct err *err)
{
    size_t stem;
    uint32_t number = 0, of = 0, no = 0;
    if (!split_name(model, &stem, &number, &of) || of != count)
        return err_set(err, ST_FORMAT,
                       "%s: one of %u files, which must be named NAME-00001-of-%05u.gguf and so on", model,
                       count, count);
    if (number != 1 || (gguf_u32(gguf_get(f->parts[0], "split.no"), &no) && no != 0))
        return err_set(err, ST_INVALID, "%s: the first of the %u files is the one to name", model, count);
    if (count > GGUF_PARTS_MAX)
        return err_set(err, ST_TOO_LARGE, "%s: %u files, at most %u are read", model, count, GGUF_PARTS_MAX);
    enum status st = ST_OK;
    while (f->count < count && !st) {
        char *path;
        if (asprintf(&path, "%.*s-%05u-of-%05u.gguf", (int)stem, model, f->count + 1, count) < 0)
            return err_nomem(err, model);
        st = gguf_open(path, &f->parts[f->count], err);
        if (!st) f->count++;
        free(path);
    }
    return st;
}

enum status gguf_files_open(const char *model, const char *mmproj, struct gguf_files *out, struct err *err)
{
    struct gguf_files f = {.count = 0};
    uint32_t count = 1;
    enum status st = gguf_open(model, &f.parts[0], err);
    if (!st) {
        f.count = 1;
        if (gguf_u32(gguf_get(f.parts[0], "split.count"), &count) && count > 1)
            st = open_parts(model, count, &f, err);
    }
    if (!st && mmproj) st = gguf_open(mmproj, &f.tower, err);
    if (st) gguf_files_close(&f);
    else *out = f;
    return st;
}

void gguf_files_close(struct gguf_files *f)
{
    for (uint32_t i = 0; i < f->count; i++) gguf_close(f->parts[i]);
    gguf_close(f->tower);
    *f = (struct gguf_files){.count = 0};
}

const struct gguf_tensor *gguf_files_find(const struct gguf_files *f, const char *name,
                                          const struct gguf **in)
{
    for (uint32_t i = 0; i < f->count; i++) {
        const struct gguf_tensor *t = gguf_find(f->parts[i], name);
        if (!t) continue;
        if (in) *in = f->parts[i];
        return t;
    }
    return NULL;
}
