/* A checkpoint's configuration and what its family makes of it. See families.h. */
#include "engine/families/families.h"

#include "config/hf/reader.h"
#include "engine/checkpoint/files.h"

#include <stdlib.h>

static enum status load_text(const char *model, const char *mmproj, char **where, char **text, size_t *len,
                             struct err *err)
{
    *text = NULL;
    *where = checkpoint_where(model, "config.json");
    if (!*where) return err_set(err, ST_NOMEM, "%s: out of memory", model);
    return checkpoint_pair_text(model, mmproj, "config.json", HF_FILE_BYTES_MAX, text, len, err);
}

enum status family_load(const char *model, const char *mmproj, struct hf_config *c, struct model_desc *d,
                        struct err *err)
{
    char *where, *text;
    size_t len;
    *d = (struct model_desc){0};
    enum status st = load_text(model, mmproj, &where, &text, &len, err);
    if (!st) st = family_parse(text, len, where, c, d, err);
    free(text);
    free(where);
    return st;
}

enum status family_prompt_load(const char *model, const struct family_prompt **out, struct err *err)
{
    char *where, *text;
    size_t len;
    *out = NULL;
    enum status st = load_text(model, NULL, &where, &text, &len, err);
    if (!st) st = family_parse_prompt(text, len, where, out, err);
    free(text);
    free(where);
    return st;
}
