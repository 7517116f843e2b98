/* The cache's layout, its list, and removal. See internal.h. */
#include "config/base/file.h"
#include "server/hub/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER "models--"

char *hub_repo_dir(const struct hub *h, const char *repo)
{
    char *dir;
    const char *slash = strchr(repo, '/');
    int n = slash ? asprintf(&dir, "%s/" FOLDER "%.*s--%s", h->cache, (int)(slash - repo), repo, slash + 1)
                  : asprintf(&dir, "%s/" FOLDER "%s", h->cache, repo);
    return n < 0 ? NULL : dir;
}

char *hub_cache_path(const char *repo_dir, const char *kind, const char *name, const char *more)
{
    char *path;
    return asprintf(&path, "%s/%s/%s%s", repo_dir, kind, name, more) < 0 ? NULL : path;
}

enum status hub_mkdirs(const char *path, struct err *err)
{
    char *dir = strdup(path);
    if (!dir) return err_nomem(err, path);
    enum status st = ST_OK;
    for (char *p = dir; !st && (p = strchr(p + 1, '/'));) {
        *p = '\0';
        if (mkdir(dir, 0777) && errno != EEXIST)
            st = err_set(err, ST_IO, "can't make %s: %s", dir, strerror(errno));
        *p = '/';
    }
    free(dir);
    return st;
}

bool hub_ref_read(const char *repo_dir, const char *rev, char commit[HUB_COMMIT_LEN + 1])
{
    char *path = hub_cache_path(repo_dir, "refs", rev, ""), *text = NULL;
    size_t len = 0;
    bool ok = path && !file_text(path, 256, &text, &len, NULL);
    if (ok) {
        text[strcspn(text, " \r\n")] = '\0';
        ok = hub_is_hash(text, HUB_COMMIT_LEN);
        if (ok) memcpy(commit, text, HUB_COMMIT_LEN + 1);
        free(text);
    }
    free(path);
    return ok;
}

enum status hub_ref_write(const char *repo_dir, const char *rev, const char *commit, struct err *err)
{
    char *path = hub_cache_path(repo_dir, "refs", rev, ""), *temp = NULL;
    if (!path || asprintf(&temp, "%s.%d.tmp", path, (int)getpid()) < 0) {
        free(path);
        return err_nomem(err, repo_dir);
    }
    enum status st = hub_mkdirs(path, err);
    FILE *f = st ? NULL : fopen(temp, "w");
    bool ok = f && fputs(commit, f) >= 0;
    ok = f && !fclose(f) && ok && !rename(temp, path);
    if (!st && !ok) st = err_set(err, ST_IO, "can't write %s: %s", path, strerror(errno));
    free(path);
    free(temp);
    return st;
}

enum status hub_link(const char *repo_dir, const char *commit, const struct hub_file *f, struct err *err)
{
    char target[3 * HUB_PATH_MAX] = "", old[3 * HUB_PATH_MAX];
    char *dir = hub_cache_path(repo_dir, "snapshots", commit, "/"),
         *path = dir ? file_join(dir, f->path) : NULL;
    enum status st = path ? hub_mkdirs(path, err) : err_nomem(err, f->path);
    for (const char *p = f->path; (p = strchr(p, '/')); p++) strcat(target, "../");
    strcat(strcat(target, "../../blobs/"), f->hash);
    ssize_t n = st ? 0 : readlink(path, old, sizeof old - 1);
    if (n > 0) old[n] = '\0';
    if (!st && !(n > 0 && strcmp(old, target) == 0)) {
        (void)unlink(path);
        if (symlink(target, path) && errno != EEXIST) /* by another process */
            st = err_set(err, ST_IO, "can't make the link %s: %s", path, strerror(errno));
    }
    free(dir);
    free(path);
    return st;
}

/* Calls each(arg, path) for every file or link below dir/kind; the path is relative to that. */
static void each_below(const char *dir, const char *kind, void (*each)(void *arg, const char *path),
                       void *arg)
{
    char *top = file_join(dir, kind);
    char *const tops[] = {top, NULL};
    FTS *walk = top ? fts_open(tops, FTS_PHYSICAL | FTS_NOCHDIR, NULL) : NULL;
    size_t skip = top ? strlen(top) + 1 : 0;
    for (FTSENT *e; walk && (e = fts_read(walk));)
        if (e->fts_info == FTS_F || e->fts_info == FTS_SL || e->fts_info == FTS_SLNONE)
            each(arg, e->fts_path + skip);
    if (walk) fts_close(walk);
    free(top);
}

/* ---- list ---- */

static uint64_t bytes_of(const char *dir)
{
    struct hub_files files = {0};
    uint64_t sum = 0;
    if (!hub_files_of_dir(dir, &files, NULL))
        for (size_t i = 0; i < files.count; i++) sum += files.list[i].size;
    hub_files_free(&files);
    return sum;
}

struct ref_names {
    const char *dir, *commit;
    char text[200];
};

static void ref_name(void *arg, const char *rev)
{
    struct ref_names *r = arg;
    char commit[HUB_COMMIT_LEN + 1];
    size_t n = strlen(r->text);
    if (hub_ref_read(r->dir, rev, commit) && strcmp(commit, r->commit) == 0)
        snprintf(r->text + n, sizeof r->text - n, "%s%s", n ? "," : "", rev);
}

static int folder_is_model(const struct dirent *e)
{
    return strncmp(e->d_name, FOLDER, strlen(FOLDER)) == 0;
}

static int folder_is_commit(const struct dirent *e)
{
    return hub_is_hash(e->d_name, HUB_COMMIT_LEN);
}

static void list_repo(const char *dir, const char *folder)
{
    struct dirent **commits = NULL;
    char *snapshots = file_join(dir, "snapshots"), name[NAME_MAX + 1];
    snprintf(name, sizeof name, "%s", folder + strlen(FOLDER));
    char *dashes = strstr(name, "--");
    if (dashes) {
        *dashes = '/';
        memmove(dashes + 1, dashes + 2, strlen(dashes + 1));
    }
    int n = snapshots ? scandir(snapshots, &commits, folder_is_commit, alphasort) : 0;
    for (int i = 0; i < n; i++) {
        char *path = file_join(snapshots, commits[i]->d_name);
        struct ref_names refs = {.dir = dir, .commit = commits[i]->d_name};
        each_below(dir, "refs", ref_name, &refs);
        double mib = path ? (double)bytes_of(path) / (1 << 20) : 0;
        printf("%-48s %-12.12s %-12s %8.1f %s\n", name, commits[i]->d_name, refs.text[0] ? refs.text : "-",
               mib < 1024 ? mib : mib / 1024, mib < 1024 ? "MiB" : "GiB");
        free(path);
        free(commits[i]);
    }
    free(commits);
    free(snapshots);
}

int hub_list(const struct hub *h)
{
    struct dirent **repos = NULL;
    int n = scandir(h->cache, &repos, folder_is_model, alphasort);
    if (n > 0) printf("%-48s %-12s %-12s %8s\n", "MODEL", "COMMIT", "REVISION", "SIZE");
    for (int i = 0; i < n; i++) {
        char *dir = file_join(h->cache, repos[i]->d_name);
        if (dir) list_repo(dir, repos[i]->d_name);
        free(dir);
        free(repos[i]);
    }
    free(repos);
    if (n <= 0) fprintf(stderr, "kvasir: no models in %s\n", h->cache);
    return fflush(stdout) ? 1 : 0;
}

/* ---- rm ---- */

static enum status tree_remove(const char *dir, struct err *err)
{
    char *const tops[] = {(char *)(uintptr_t)dir, NULL};
    enum status st = ST_OK;
    FTS *walk = fts_open(tops, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    for (FTSENT *e; walk && (e = fts_read(walk));)
        if (e->fts_info != FTS_D && remove(e->fts_accpath) && errno != ENOENT)
            st = err_set(err, ST_IO, "can't remove %s: %s", e->fts_path, strerror(errno));
    if (walk) fts_close(walk);
    return st;
}

struct cleanup {
    const char *dir, *commit;
    struct hub_files blobs; /* that links of snapshots name */
    bool no_memory;         /* some of these are missing */
};

static void ref_drop(void *arg, const char *rev)
{
    struct cleanup *c = arg;
    char commit[HUB_COMMIT_LEN + 1], *path = hub_cache_path(c->dir, "refs", rev, "");
    if (path && hub_ref_read(c->dir, rev, commit) && strcmp(commit, c->commit) == 0) (void)unlink(path);
    free(path);
}

static void blob_keep(void *arg, const char *link)
{
    struct cleanup *c = arg;
    char target[3 * HUB_PATH_MAX], *path = hub_cache_path(c->dir, "snapshots", link, "");
    ssize_t n = path ? readlink(path, target, sizeof target - 1) : -1;
    target[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(target, '/');
    c->no_memory |= !slash || !hub_file_add(&c->blobs, slash + 1);
    free(path);
}

static void blob_drop(void *arg, const char *blob)
{
    struct cleanup *c = arg;
    char *path = hub_cache_path(c->dir, "blobs", blob, "");
    bool whole = hub_is_hash(blob, HUB_COMMIT_LEN) || hub_is_hash(blob, 64);
    if (path && whole && !c->no_memory && !hub_file_find(&c->blobs, blob)) (void)unlink(path);
    free(path);
}

enum status hub_remove(const struct hub *h, const char *name, struct err *err)
{
    struct hub_name n;
    enum status st = hub_name_parse(name, &n, err);
    if (!st && n.file[0])
        st = err_set(err, ST_INVALID, "%.200s: a model is removed as a whole, without \":\"", name);
    if (st) return st;
    char *dir = hub_repo_dir(h, n.repo), *locks = NULL, *snapshot = NULL, commit[HUB_COMMIT_LEN + 1] = "";
    if (!dir || asprintf(&locks, "%s/.locks/%s", h->cache, strrchr(dir, '/') + 1) < 0)
        st = err_nomem(err, name);
    else if (access(dir, F_OK)) st = err_set(err, ST_NOT_FOUND, "%s is not in %s", n.repo, h->cache);
    else if (!strchr(name, '@')) {
        st = tree_remove(dir, err);
        if (!st) st = tree_remove(locks, err);
    } else {
        if (!hub_ref_read(dir, n.rev, commit) && hub_is_hash(n.rev, HUB_COMMIT_LEN)) strcpy(commit, n.rev);
        snapshot = hub_cache_path(dir, "snapshots", commit, "");
        if (!commit[0] || !snapshot || access(snapshot, F_OK))
            st = err_set(err, ST_NOT_FOUND, "%s has no revision %s in %s", n.repo, n.rev, h->cache);
        else st = tree_remove(snapshot, err);
        struct cleanup c = {.dir = dir, .commit = commit};
        if (!st) {
            each_below(dir, "refs", ref_drop, &c);
            each_below(dir, "snapshots", blob_keep, &c);
            each_below(dir, "blobs", blob_drop, &c);
        }
        hub_files_free(&c.blobs);
    }
    free(dir);
    free(locks);
    free(snapshot);
    return st;
}
