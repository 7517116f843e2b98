/* See files.h. */
#include "engine/checkpoint/files.h"

#include "config/base/file.h"
#include "config/base/json.h"
#include "engine/checkpoint/gguf_files.h"
#include "engine/checkpoint/gguf_tokenizer.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/families/from_gguf.h"

#include <stdio.h>
#include <stdlib.h>

char *checkpoint_where(const char *model, const char *name)
{
    char *text;
    int n = gguf_is(model) ? asprintf(&text, "%s", model) : asprintf(&text, "%s/%s", model, name);
    return n < 0 ? NULL : text;
}

enum status checkpoint_pair_text(const char *model, const char *mmproj, const char *name, size_t max,
                                 char **text, size_t *len, struct err *err)
{
    struct gguf_files f;
    if (!gguf_is(model)) {
        char *path;
        if (mmproj)
            return err_set(err, ST_INVALID, "%s: only a GGUF file has its tower in a file of its own", model);
        if (asprintf(&path, "%s/%s", model, name) < 0)
            return err_set(err, ST_NOMEM, "%s: out of memory", model);
        enum status st = file_text(path, max, text, len, err);
        free(path);
        return st;
    }
    enum status st = gguf_files_open(model, mmproj, &f, err);
    if (st) return st;
    /* The tokenizer first: it is read whatever the model around it is. */
    st = gguf_side_text(f.parts[0], f.tower != NULL, name, text, len, err);
    if (st == ST_NOT_FOUND) st = gguf_config_text(&f, name, text, len, err);
    else if (st) err_prefix(err, st, "%s", model);
    gguf_files_close(&f);
    return st;
}

enum status checkpoint_text(const char *model, const char *name, size_t max, char **text, size_t *len,
                            struct err *err)
{
    return checkpoint_pair_text(model, NULL, name, max, text, len, err);
}

enum status checkpoint_json(const char *model, const char *mmproj, const char *name, size_t max,
                            struct json_doc *out, struct err *err)
{
    char *text, *where;
    size_t len;
    enum status st = checkpoint_pair_text(model, mmproj, name, max, &text, &len, err);
    if (st) return st;
    where = checkpoint_where(model, name);
    if (where) st = json_parse_owned(text, len, where, out, err);
    else {
        free(text);
        st = err_set(err, ST_NOMEM, "%s: out of memory", model);
    }
    free(where);
    return st;
}

enum status checkpoint_open(const char *model, const char *mmproj, struct stf_files **out, struct err *err)
{
    struct gguf_files f;
    if (!gguf_is(model)) return stf_open(model, out, err);
    enum status st = gguf_files_open(model, mmproj, &f, err);
    return st ? st : gguf_open_tensors(&f, out, err);
}
