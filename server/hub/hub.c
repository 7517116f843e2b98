/* See hub.h. */
#include "config/base/file.h"
#include "config/base/json.h"
#include "config/base/log.h"
#include "server/hub/internal.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define LIST_MAX (64u << 20)

/* A model that is being got. */
struct pull {
    struct hub hub;
    struct hub_name name;
    char *dir; /* of the repository, in the cache */
    char commit[HUB_COMMIT_LEN + 1];
    char *snapshot;
    struct hub_files files;
    const char *mmproj;
};

/* Its slashes stay, or not. */
static char *url_escape(const char *text, bool slashes)
{
    char *out = calloc(3, strlen(text) + 1), *to = out;
    for (; out && *text; text++) {
        bool plain = strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-~", *text) ||
                     (slashes && *text == '/');
        to += plain ? sprintf(to, "%c", *text) : sprintf(to, "%%%02X", (unsigned char)*text);
    }
    return out;
}

static char *file_url(const struct pull *p, const char *path)
{
    char *part = url_escape(path, true);
    char *url = part ? hub_text("%s/%s/resolve/%s/%s", p->hub.endpoint, p->name.repo, p->commit, part) : NULL;
    free(part);
    return url;
}

/* ---- what the hub has ---- */

static enum status list_read(struct pull *p, const char *text, size_t len, struct err *err)
{
    struct json_doc d;
    enum status st = json_parse(text, len, "the hub's list of files", &d, err);
    if (st) return st;
    size_t n = 0;
    uint32_t all = json_get(&d, 0, "siblings"), at = json_first(&d, all);
    bool ok = json_str_copy(&d, json_get(&d, 0, "sha"), p->commit, HUB_COMMIT_LEN, &n) &&
              n == HUB_COMMIT_LEN && hub_is_hash(p->commit, HUB_COMMIT_LEN) &&
              json_kind(&d, all) == JSON_ARRAY;
    if (!ok) st = err_set(err, ST_FORMAT, "%s is no hub: its list of files has no commit", p->hub.endpoint);
    for (uint32_t i = ok ? json_count(&d, all) : 0; i && !st; i--, at = json_next(&d, at)) {
        uint32_t lfs = json_get_live(&d, at, "lfs"), hash = json_get(&d, lfs, "sha256");
        if (hash == JSON_NONE) hash = json_get(&d, at, "blobId");
        char *path = json_str_dup(&d, json_get(&d, at, "rfilename"), &n);
        if (!path || strlen(path) != n || !hub_path_ok(path)) { /* never written anywhere */
            st =
                err_set(err, ST_FORMAT, "%s: the hub's list has the file name '%.100s', which is not allowed",
                        p->name.repo, path ? path : "");
        } else {
            struct hub_file *f = hub_file_add(&p->files, path);
            if (!f) st = err_nomem(err, "the list of files");
            else if (!json_uint(&d, json_get(&d, lfs == JSON_NONE ? at : lfs, "size"), &f->size) ||
                     !json_str_copy(&d, hash, f->hash, sizeof f->hash - 1, &n) ||
                     !(hub_is_hash(f->hash, HUB_COMMIT_LEN) || hub_is_hash(f->hash, 64)))
                memset(f->hash, 0, sizeof f->hash);
        }
        free(path);
    }
    json_free(&d);
    return st;
}

static enum status list_fetch(struct pull *p, struct err *err)
{
    struct buf body;
    char *rev = url_escape(p->name.rev, false);
    char *url =
        rev ? hub_text("%s/api/models/%s/revision/%s?blobs=true", p->hub.endpoint, p->name.repo, rev) : NULL;
    buf_init(&body, LIST_MAX);
    struct hub_get get = {.what = HUB_BODY, .url = url, .body = &body};
    enum status st = url ? hub_http(&p->hub, &get, 1, p->name.repo, err) : err_nomem(err, "a URL");
    if (!st) st = list_read(p, body.data ? body.data : "", body.len, err);
    buf_fini(&body);
    free(rev);
    free(url);
    return st;
}

/* ---- downloads ---- */

static enum status space_check(const struct pull *p, const struct hub_get *gets, size_t count,
                               struct err *err)
{
    struct statvfs fs;
    struct stat sb;
    double need = 0; /* sizes are the hub's word */
    for (const struct hub_get *g = gets; g < gets + count; g++)
        if (stat(g->blob, &sb)) /* else it is there, or its place is */
            need += fmax((double)g->file->size - (stat(g->part, &sb) ? 0 : (double)sb.st_size), 0);
    double has = statvfs(p->dir, &fs) ? need : (double)fs.f_bavail * (double)fs.f_frsize;
    if (need <= has) return ST_OK;
    return err_set(
        err, ST_TOO_LARGE,
        "%s needs %.2f GiB more, and %s has %.2f GiB free: make room, or set HF_HOME to a larger disk",
        p->name.repo, need / (1 << 30), p->hub.cache, has / (1 << 30));
}

static void gets_free(struct hub_get *gets, size_t count)
{
    for (size_t i = 0; gets && i < count; i++) {
        free(gets[i].url);
        free(gets[i].blob);
        free(gets[i].part);
        free(gets[i].lock);
    }
    free(gets);
}

/* Files that are wanted and not there, as far as `what` applies to them: then *gets is what to fetch. */
static enum status gets_make(struct pull *p, enum hub_what what, struct hub_get **gets, size_t *count,
                             struct err *err)
{
    *gets = calloc(p->files.count + 1, sizeof **gets);
    *count = 0;
    for (size_t i = 0; *gets && i < p->files.count; i++) {
        struct hub_file *f = &p->files.list[i];
        if (!f->wanted || f->have || (what == HUB_SIZE_AND_HASH && f->hash[0])) continue;
        size_t same = 0; /* equal files are one blob */
        while (what == HUB_BLOB && same < *count && strcmp((*gets)[same].file->hash, f->hash) != 0) same++;
        if (what == HUB_BLOB && same < *count) continue;
        struct hub_get *g = &(*gets)[(*count)++];
        *g = (struct hub_get){
            .what = what,
            .url = file_url(p, f->path),
            .file = f,
            .blob = hub_text("%s/blobs/%s", p->dir, f->hash),
            .part = hub_text("%s/blobs/%s.incomplete", p->dir, f->hash),
            .lock = hub_text("%s/.locks/%s/%s.lock", p->hub.cache, strrchr(p->dir, '/') + 1, f->hash)};
        if (g->url && g->blob && g->part && g->lock) continue;
        gets_free(*gets, *count);
        *gets = NULL;
    }
    return *gets ? ST_OK : err_nomem(err, "transfers");
}

static enum status fetch_all(struct pull *p, enum hub_what what, struct err *err)
{
    struct hub_get *gets;
    size_t count;
    enum status st = gets_make(p, what, &gets, &count, err);
    if (!st && what == HUB_BLOB) st = space_check(p, gets, count, err);
    if (!st && count) st = hub_http(&p->hub, gets, count, p->name.repo, err);
    gets_free(gets, count);
    return st;
}

/* Brings what is wanted into the snapshot. */
static enum status wanted_get(struct pull *p, struct err *err)
{
    char *probe = file_join(p->dir, "blobs/");
    enum status st = probe ? hub_mkdirs(probe, err) : err_nomem(err, p->dir);
    free(probe);
    if (!st) st = fetch_all(p, HUB_SIZE_AND_HASH, err);
    if (!st) st = fetch_all(p, HUB_BLOB, err);
    for (size_t i = 0; !st && i < p->files.count; i++) {
        if (p->files.list[i].wanted) st = hub_link(p->dir, p->commit, &p->files.list[i], err);
        p->files.list[i].have = p->files.list[i].wanted;
    }
    return st;
}

/* ---- a model ---- */

static enum status snapshot_name(struct pull *p, struct err *err)
{
    free(p->snapshot);
    p->snapshot = hub_text("%s/snapshots/%s", p->dir, p->commit);
    return p->snapshot ? ST_OK : err_nomem(err, p->dir);
}

static enum status from_hub(struct pull *p, struct err *err)
{
    enum status st = list_fetch(p, err);
    if (!st) st = snapshot_name(p, err);
    if (!st) st = hub_files_choose(&p->files, &p->name, &p->mmproj, err);
    if (!st) st = wanted_get(p, err);
    if (!st && !p->name.file[0]) {
        st = hub_files_choose_shards(&p->files, p->snapshot, err);
        if (!st) st = wanted_get(p, err);
    }
    if (!st) st = hub_files_check(&p->files, p->snapshot, err);
    /* Last: a revision whose ref is there is whole, unless huggingface_hub has begun it. */
    if (!st && !hub_is_hash(p->name.rev, HUB_COMMIT_LEN))
        st = hub_ref_write(p->dir, p->name.rev, p->commit, err);
    return st;
}

/* Blobs of the cache have the hash that is their name. A cache that can't be written is taken as it is. */
static enum status blobs_check(struct pull *p, struct err *err)
{
    struct hub_get *gets;
    size_t count;
    for (size_t i = 0; i < p->files.count; i++)
        if (hub_is_hash(p->files.list[i].hash, HUB_COMMIT_LEN) || hub_is_hash(p->files.list[i].hash, 64))
            p->files.list[i].have = false;
    enum status st = gets_make(p, HUB_BLOB, &gets, &count, err);
    for (size_t i = 0; !st && i < count; i++) {
        int fd = hub_mkdirs(gets[i].lock, NULL) ? -1 : open(gets[i].lock, O_RDWR | O_CREAT | O_CLOEXEC, 0664);
        if (fd >= 0 && !hub_blob_good(&gets[i], fd)) st = err_set(err, ST_FORMAT, "%s", gets[i].blob);
        if (fd >= 0) close(fd);
    }
    gets_free(gets, count);
    return st;
}

/* ST_NOT_FOUND: not all of it is there. */
static enum status from_cache(struct pull *p, struct err *err)
{
    hub_files_free(&p->files);
    if (hub_is_hash(p->name.rev, HUB_COMMIT_LEN)) strcpy(p->commit, p->name.rev);
    else if (!hub_ref_read(p->dir, p->name.rev, p->commit))
        return err_set(err, ST_NOT_FOUND, "%s@%s is not in %s", p->name.repo, p->name.rev, p->hub.cache);
    enum status st = snapshot_name(p, err);
    if (!st && access(p->snapshot, F_OK)) st = ST_NOT_FOUND;
    if (!st) st = hub_files_of_dir(p->snapshot, 100, &p->files, err);
    if (!st) st = hub_files_choose(&p->files, &p->name, &p->mmproj, err);
    if (!st && !p->name.file[0]) st = hub_files_choose_shards(&p->files, p->snapshot, err);
    if (!st) st = blobs_check(p, err);
    if (!st) st = hub_files_check(&p->files, p->snapshot, err);
    return st ? err_set(err, ST_NOT_FOUND, "%s@%s is not, or not wholly, in %s", p->name.repo, p->name.rev,
                        p->hub.cache)
              : ST_OK;
}

static enum status pull_run(struct pull *p, struct err *err)
{
    struct err cached;
    p->dir = hub_repo_dir(&p->hub, p->name.repo);
    if (!p->dir) return err_nomem(err, p->name.repo);
    if (p->hub.offline || hub_is_hash(p->name.rev, HUB_COMMIT_LEN)) { /* a commit never changes */
        enum status st = from_cache(p, &cached);
        if (!st) return ST_OK;
        if (p->hub.offline) return err_set(err, st, "%s, and HF_HUB_OFFLINE is set", cached.msg);
        hub_files_free(&p->files);
    }
    enum status st = from_hub(p, err);
    if (st == ST_AGAIN && !from_cache(p, &cached)) {
        log_warn("%s: %s of the cache is used", err->msg, p->commit);
        return ST_OK;
    }
    return st;
}

enum status hub_get(const char *name, struct hub_model *out, struct err *err)
{
    struct pull p = {0};
    *out = (struct hub_model){0};
    enum status st = hub_name_parse(name, &p.name, err);
    if (!st) st = hub_open(&p.hub, err);
    if (!st) st = pull_run(&p, err);
    if (!st) {
        out->path = p.name.file[0] ? file_join(p.snapshot, p.name.file) : strdup(p.snapshot);
        out->mmproj = p.mmproj ? file_join(p.snapshot, p.mmproj) : NULL;
        out->repo = strdup(p.name.repo);
        if (!out->path || !out->repo || (p.mmproj && !out->mmproj)) {
            hub_model_free(out);
            st = err_nomem(err, name);
        }
    }
    free(p.dir);
    free(p.snapshot);
    hub_files_free(&p.files);
    hub_close(&p.hub);
    return st;
}

void hub_model_free(struct hub_model *m)
{
    free(m->path);
    free(m->mmproj);
    free(m->repo);
    *m = (struct hub_model){0};
}

int hub_main(int argc, char **argv)
{
    const char *command = argv[0];
    bool list = strcmp(command, "list") == 0, pull = strcmp(command, "pull") == 0;
    if (list ? argc > 1 : argc < 2 || argv[1][0] == '-') {
        bool help = argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
        fprintf(help ? stdout : stderr, "usage: kvasir %s%s\n", command,
                list   ? ""
                : pull ? " ORG/NAME[@REVISION][:FILE.gguf|:QUANTIZATION] ..."
                       : " ORG/NAME[@REVISION] ...");
        return help ? 0 : 2;
    }
    struct hub hub;
    struct err err = {0};
    enum status st = hub_open(&hub, &err);
    if (!st && list) {
        int rc = hub_list(&hub);
        hub_close(&hub);
        return rc;
    }
    for (int i = 1; !st && i < argc; i++) {
        struct hub_model m = {0};
        st = pull ? hub_get(argv[i], &m, &err) : hub_remove(&hub, argv[i], &err);
        if (!st && pull) puts(m.path);
        hub_model_free(&m);
    }
    hub_close(&hub);
    if (!st) return fflush(stdout) ? 1 : 0;
    fprintf(stderr, "kvasir: %s\n", err.msg);
    return 1;
}
