/* Adapters (LoRA): reading one, checking it against the model, packing it. */
#include "engine/internal.h"

#include "config/base/file.h"
#include "config/base/sha256.h"

#include <stdlib.h>
#include <string.h>

struct adapter {
    struct adapter_info info;
};

static void digest_tensors(const struct stf_files *files, struct adapter_info *info)
{
    struct sha256 h;
    sha256_init(&h);
    for (size_t i = 0; i < stf_count(files); i++) {
        const struct stf_tensor *t = stf_at(files, i);
        sha256_add(&h, t->name, strlen(t->name) + 1);
        sha256_add(&h, t->data, (size_t)t->bytes);
        info->bytes += t->bytes;
    }
    sha256_end(&h, info->digest);
}

enum status adapter_open(struct engine *e, const char *path, struct adapter **out, struct err *err)
{
    struct stf_files *files = NULL;
    struct adapter *a = calloc(1, sizeof *a);
    char *name = file_join(path, "adapter_model.safetensors");
    enum status st = a && name ? stf_open_file(name, &files, err) : err_nomem(err, path);
    (void)e;
    if (!st) digest_tensors(files, &a->info);
    stf_close(files);
    free(name);
    if (st) free(a);
    else *out = a;
    return st;
}

const struct adapter_info *adapter_info(const struct adapter *a)
{
    return &a->info;
}

void adapter_free(struct engine *e, struct adapter *a)
{
    (void)e;
    free(a);
}
