/* A checkpoint, whatever it is: a directory, or GGUF files. See families.h. */
#include "engine/families/families.h"

#include "config/base/file.h"
#include "config/gguf/gguf.h"
#include "config/hf/reader.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/families/from_gguf.h"

#include <stdlib.h>

/* The text of DIR/NAME, and that path; both the caller's, after a fault as well. */
static enum status load_text(const char *dir, const char *name, char **path, char **text, size_t *len,
                             struct err *err)
{
    *text = NULL;
    *path = file_join(dir, name);
    if (!*path) return err_set(err, ST_NOMEM, "%s: out of memory", dir);
    return file_text(*path, HF_FILE_BYTES_MAX, text, len, err);
}

static enum status no_tower(const char *dir, const char *mmproj, struct err *err)
{
    if (!mmproj) return ST_OK;
    return err_set(err, ST_INVALID, "%s: only a GGUF file has its tower in a file of its own", dir);
}

enum status family_load(const char *model, const char *mmproj, struct hf_config *c, struct model_desc *d,
                        struct err *err)
{
    char *path = NULL, *text = NULL;
    size_t len;
    *d = (struct model_desc){0};
    if (gguf_is(model)) return gguf_config(model, mmproj, c, d, err);
    enum status st = no_tower(model, mmproj, err);
    if (!st) st = load_text(model, "config.json", &path, &text, &len, err);
    if (!st) st = family_parse(text, len, path, c, d, err);
    free(text);
    free(path);
    return st;
}

enum status family_load_generation(const char *model, struct hf_generation *g, struct err *err)
{
    char *path, *text;
    size_t len;
    if (gguf_is(model)) return gguf_generation(model, g, err);
    *g = (struct hf_generation){0};
    enum status st = load_text(model, "generation_config.json", &path, &text, &len, err);
    if (!st) st = hf_generation_parse(text, len, path, g, err);
    free(text);
    free(path);
    return st == ST_NOT_FOUND ? ST_OK : st;
}

enum status family_load_prompt(const char *model, const struct family_prompt **out, struct err *err)
{
    char *path, *text;
    size_t len;
    *out = NULL;
    if (gguf_is(model)) return gguf_prompt(model, out, err);
    enum status st = load_text(model, "config.json", &path, &text, &len, err);
    if (!st) st = family_parse_prompt(text, len, path, out, err);
    free(text);
    free(path);
    return st;
}

enum status family_open(const char *model, const char *mmproj, struct stf_files **out, struct err *err)
{
    if (gguf_is(model)) return gguf_open_tensors(model, mmproj, out, err);
    enum status st = no_tower(model, mmproj, err);
    return st ? st : stf_open(model, out, err);
}
