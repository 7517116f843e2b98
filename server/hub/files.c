/* Which files of a repository are needed. See internal.h. */
#include "config/base/file.h"
#include "config/base/json.h"
#include "config/base/list.h"
#include "server/hub/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define ADAPTER_CONFIG "adapter_config.json"
#define ADAPTER        "adapter_model.safetensors"
#define INDEX          "model.safetensors.index.json"

/* What config/ and engine/ read of a checkpoint, besides weights. */
static const char *const small_files[] = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    INDEX,
    "additional_chat_templates/tool_use.jinja",
    "modules.json",
    "config_sentence_transformers.json",
    "video_preprocessor_config.json",
};

struct hub_file *hub_file_add(struct hub_files *f, const char *path)
{
    char *own = strdup(path);
    if (!own || !LIST_RESERVE(f->list, f->cap, f->count + 1)) {
        free(own);
        return NULL;
    }
    f->list[f->count] = (struct hub_file){.path = own};
    return &f->list[f->count++];
}

struct hub_file *hub_file_find(const struct hub_files *f, const char *path)
{
    for (size_t i = 0; i < f->count; i++)
        if (strcmp(f->list[i].path, path) == 0) return &f->list[i];
    return NULL;
}

void hub_files_free(struct hub_files *f)
{
    for (size_t i = 0; i < f->count; i++) free(f->list[i].path);
    free(f->list);
    *f = (struct hub_files){0};
}

enum status hub_files_of_dir(const char *dir, int depth, struct hub_files *out, struct err *err)
{
    char *const top[] = {(char *)(uintptr_t)dir, NULL};
    size_t len = strlen(dir), skip = len + (len && dir[len - 1] != '/');
    FTS *walk = fts_open(top, FTS_LOGICAL | FTS_NOCHDIR, NULL);
    if (!walk) return err_set(err, ST_IO, "%s: %s", dir, strerror(errno));
    for (FTSENT *e; (e = fts_read(walk));) {
        if (e->fts_info == FTS_D && e->fts_level > depth) (void)fts_set(walk, e, FTS_SKIP);
        if (e->fts_info != FTS_F) continue; /* a link to a blob that is gone is FTS_SLNONE */
        struct hub_file *f = hub_file_add(out, e->fts_path + skip);
        if (!f) {
            fts_close(walk);
            return err_nomem(err, dir);
        }
        char target[3 * HUB_PATH_MAX];
        ssize_t n = readlink(e->fts_path, target, sizeof target - 1);
        target[n > 0 ? n : 0] = '\0';
        char *name = strrchr(target, '/');
        if (name) snprintf(f->hash, sizeof f->hash, "%.64s", name + 1);
        f->size = (uint64_t)e->fts_statp->st_size;
        f->have = true;
    }
    fts_close(walk);
    return ST_OK;
}

static bool ends(const char *text, const char *tail)
{
    size_t n = strlen(text), m = strlen(tail);
    return n >= m && strcmp(text + n - m, tail) == 0;
}

static bool is_mmproj(const char *path)
{
    return ends(path, ".gguf") && strcasestr(path, "mmproj");
}

static bool any(const struct hub_files *f, const char *begin, const char *tail)
{
    for (size_t i = 0; i < f->count; i++)
        if (strncmp(f->list[i].path, begin, strlen(begin)) == 0 && ends(f->list[i].path, tail)) return true;
    return false;
}

/* A LoRA adapter, as PEFT saves it, and no model. */
static bool is_adapter(const struct hub_files *f)
{
    return hub_file_find(f, ADAPTER_CONFIG) && hub_file_find(f, ADAPTER) &&
           !hub_file_find(f, "model.safetensors") && !hub_file_find(f, INDEX);
}

/* The repository or directory holds no checkpoint that is read: which, and what to do. */
static enum status refuse(const struct hub_files *f, const char *what, struct err *err)
{
    char list[280] = "";
    size_t n = 0, left = 0;
    for (size_t i = 0; i < f->count; i++) {
        const char *path = f->list[i].path;
        if (!ends(path, ".gguf") || is_mmproj(path)) continue;
        if (n + strlen(path) + 2 < sizeof list - 24) n += (size_t)sprintf(list + n, " %s", path);
        else left++;
    }
    if (left) sprintf(list + n, " and %zu more", left);
    if (n) return err_set(err, ST_INVALID, "%.160s: choose one of its GGUF files:%s", what, list);
    static const struct {
        const char *file, *tail, *text;
    } known[] = {
        {"adapter_config", ".json",
         "is a LoRA adapter (adapter_config.json), not a model: serve its base model, with --lora NAME=DIR"},
        {"pytorch_model", "",
         "has its weights in pytorch_model.bin only: serve a revision with safetensors, or convert them with "
         "save_pretrained(DIR) of transformers"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (any(f, known[i].file, known[i].tail))
            return err_set(err, ST_UNSUPPORTED, "%.160s %s", what, known[i].text);
    return err_set(
        err, ST_INVALID,
        "%.160s holds no checkpoint: one has config.json, tokenizer.json and model.safetensors, or "
        "is a GGUF file",
        what);
}

/* Parts of a split file: NAME-00001-of-00003.gguf. */
static void choose_parts(struct hub_files *f, const char *first)
{
    static const size_t tail = sizeof "00001-of-00003.gguf" - 1;
    size_t n = strlen(first);
    if (n <= tail || strncmp(first + n - tail + 5, "-of-", 4) != 0) return;
    for (size_t i = 0; i < f->count; i++) {
        const char *p = f->list[i].path;
        if (strlen(p) == n && strncmp(p, first, n - tail) == 0 &&
            strcmp(p + n - tail + 5, first + n - tail + 5) == 0)
            f->list[i].wanted = true;
    }
}

/* Of several vision towers: F16, then BF16, then any. */
static struct hub_file *mmproj_of(const struct hub_files *f)
{
    static const char *const types[] = {"-f16", "bf16", "f32", ""};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t i = 0; i < f->count; i++)
            if (is_mmproj(f->list[i].path) && strcasestr(f->list[i].path, types[t])) return &f->list[i];
    return NULL;
}

/* The file of that name; or of that quantization: NAME-Q4_K_M.gguf, or its first part. */
static struct hub_file *gguf_find(const struct hub_files *f, const char *name)
{
    size_t len = strlen(name);
    struct hub_file *file = hub_file_find(f, name);
    for (size_t i = 0; !file && i < f->count; i++) {
        const char *path = f->list[i].path, *part = strstr(path, "-00001-of-");
        if (!ends(path, ".gguf") || is_mmproj(path)) continue;
        size_t end = part ? (size_t)(part - path) : strlen(path) - strlen(".gguf");
        if (end > len && strncasecmp(path + end - len, name, len) == 0 && strchr("-./", path[end - len - 1]))
            file = &f->list[i];
    }
    return file;
}

enum status hub_files_choose(struct hub_files *f, struct hub_name *n, const char **mmproj, struct err *err)
{
    *mmproj = NULL;
    if (n->file[0]) {
        struct hub_file *model = gguf_find(f, n->file), *tower = mmproj_of(f);
        if (!model && !any(f, "", ".gguf"))
            return err_set(err, ST_NOT_FOUND, "%s has no GGUF files: leave out \":%.200s\"", n->repo,
                           n->file);
        if (!model) {
            char what[300];
            snprintf(what, sizeof what, "%.100s has no %.140s", n->repo, n->file);
            return refuse(f, what, err);
        }
        model->wanted = true;
        snprintf(n->file, sizeof n->file, "%s", model->path);
        choose_parts(f, n->file);
        if (tower && tower != model) {
            tower->wanted = true;
            *mmproj = tower->path;
        }
        return ST_OK;
    }
    bool one = hub_file_find(f, "model.safetensors") != NULL;
    if (is_adapter(f)) {
        hub_file_find(f, ADAPTER_CONFIG)->wanted = hub_file_find(f, ADAPTER)->wanted = true;
        return ST_OK;
    }
    if (!hub_file_find(f, "config.json") || !(one || hub_file_find(f, INDEX))) return refuse(f, n->repo, err);
    for (struct hub_file *x = f->list; x < f->list + f->count; x++) {
        for (size_t i = 0; i < sizeof small_files / sizeof *small_files; i++)
            x->wanted |= strcmp(x->path, small_files[i]) == 0;
        x->wanted |= !hub_file_find(f, "tokenizer.json") &&
                     (strcmp(x->path, "vocab.json") == 0 || strcmp(x->path, "merges.txt") == 0);
        x->wanted |= x->path[0] >= '0' && x->path[0] <= '9' && /* 1_Pooling/, 2_Dense/ */
                     (ends(x->path, "/config.json") || ends(x->path, "_Dense/model.safetensors"));
    }
    return ST_OK;
}

enum status hub_files_choose_shards(struct hub_files *f, const char *dir, struct err *err)
{
    struct json_doc doc;
    char *path = NULL, name[HUB_PATH_MAX];
    struct hub_file *one = hub_file_find(f, "model.safetensors");
    if (!hub_file_find(f, INDEX)) {
        if (one) one->wanted = true;
        return ST_OK;
    }
    enum status st = json_load(dir, INDEX, 100u << 20, &doc, &path, err);
    if (!st) {
        uint32_t map = json_get(&doc, 0, "weight_map"), at = json_first(&doc, map);
        if (json_kind(&doc, map) != JSON_OBJECT)
            st = err_set(err, ST_FORMAT, "%s: there is no weight_map in it", path);
        for (uint32_t i = json_kind(&doc, map) == JSON_OBJECT ? json_count(&doc, map) : 0; i && !st; i--) {
            uint32_t value = json_next(&doc, at);
            size_t len = 0;
            bool ok = json_str_copy(&doc, value, name, sizeof name - 1, &len);
            name[ok ? len : 0] = '\0';
            struct hub_file *shard = hub_file_find(f, name);
            if (shard) shard->wanted = true;
            else st = err_set(err, ST_NOT_FOUND, "%s names '%.100s', which is not there", path, name);
            at = json_next(&doc, value);
        }
        json_free(&doc);
    }
    free(path);
    return st;
}

/* The beginning of a file of weights. */
static bool weights_begin(const char *path)
{
    struct {
        uint64_t size; /* of safetensors: of the JSON that follows */
        char json;
    } head = {0};
    uint64_t size;
    int fd;
    if (file_open(path, &fd, &size, NULL)) return false;
    bool read = pread(fd, &head, sizeof head, 0) >= 9;
    close(fd);
    return read && (memcmp(&head, "GGUF", 4) == 0 || (head.json == '{' && head.size <= size - 8));
}

enum status hub_files_check(const struct hub_files *f, const char *dir, struct err *err)
{
    bool gguf = any(f, "", ".gguf");
    enum status st = ST_OK;
    for (const struct hub_file *x = f->list; !st && x < f->list + f->count; x++) {
        struct json_doc doc = {0};
        char *path = file_join(dir, x->path);
        if (!path) return err_nomem(err, dir);
        if (x->wanted && ends(x->path, ".json")) st = json_doc_load(path, 100u << 20, &doc, err);
        if (x->wanted && !st &&
            ((strcmp(x->path, "config.json") == 0 && json_kind(&doc, 0) != JSON_OBJECT) ||
             ((ends(x->path, ".safetensors") || ends(x->path, ".gguf")) && !weights_begin(path))))
            st = err_set(err, ST_FORMAT, "%s is not what its name says: no model that can be served", path);
        json_free(&doc);
        free(path);
    }
    if (st || gguf || is_adapter(f) || hub_file_find(f, "tokenizer.json") || hub_file_find(f, "vocab.json"))
        return st;
    return err_set(err, ST_UNSUPPORTED, "%s has no tokenizer.json: save a fast tokenizer there", dir);
}

static bool is_lfs_pointer(const char *path)
{
    static const char mark[] = "version https://git-lfs.github.com/spec/v1";
    char *text;
    size_t len;
    if (file_text(path, 1024, &text, &len, NULL)) return false;
    bool yes = strncmp(text, mark, sizeof mark - 1) == 0;
    free(text);
    return yes;
}

enum status hub_path_check(const char *path, bool bare, struct err *err)
{
    struct stat sb;
    struct hub_name name;
    struct hub_files f = {0};
    if (stat(path, &sb)) {
        const char *why = strerror(errno);
        if (path[0] == '/' || path[0] == '.' || !strchr(path, '/') || hub_name_parse(path, &name, NULL))
            return err_set(err, ST_NOT_FOUND, "--model %.200s: %s", path, why);
        return err_set(err, ST_NOT_FOUND,
                       "--model %.100s: %s; for a model on the Hugging Face hub use --model " HUB_PREFIX
                       "%.100s",
                       path, why, path);
    }
    enum status st = S_ISDIR(sb.st_mode) ? hub_files_of_dir(path, 2, &f, err) : ST_OK;
    for (size_t i = 0; !st && i < f.count + !f.count; i++) {
        const char *file = f.count ? f.list[i].path : NULL;
        bool read =
            file && (ends(file, ".json") || (strncmp(file, "model", 5) == 0 && ends(file, ".safetensors")));
        char *one = !file ? strdup(path) : read ? file_join(path, file) : NULL;
        if (one && is_lfs_pointer(one))
            st = err_set(err, ST_FORMAT,
                         "%.250s is a Git LFS pointer, not the file itself: run `git lfs pull` there, or "
                         "download the model by name (--model " HUB_PREFIX "ORG/NAME)",
                         one);
        free(one);
    }
    if (!st && S_ISDIR(sb.st_mode) &&
        (!hub_file_find(&f, "config.json") ||
         !(bare || any(&f, "", ".safetensors") || hub_file_find(&f, INDEX))))
        st = refuse(&f, path, err);
    hub_files_free(&f);
    return st;
}
