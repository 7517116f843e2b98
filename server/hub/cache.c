/* The cache's layout, its list, and removal. See internal.h. */
#include "config/base/assert.h"
#include "config/base/file.h"
#include "server/hub/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER "models--"

char *hub_text(const char *format, ...)
{
    char *text;
    va_list args;
    va_start(args, format);
    if (vasprintf(&text, format, args) < 0) text = NULL;
    va_end(args);
    return text;
}

char *hub_repo_dir(const struct hub *h, const char *repo)
{
    int org = (int)strcspn(repo, "/");
    return repo[org] ? hub_text("%s/" FOLDER "%.*s--%s", h->cache, org, repo, repo + org + 1)
                     : hub_text("%s/" FOLDER "%s", h->cache, repo);
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
    char *path = hub_text("%s/refs/%s", repo_dir, rev), *text = NULL;
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
    ASSERT(hub_is_hash(commit, HUB_COMMIT_LEN));
    char *path = hub_text("%s/refs/%s", repo_dir, rev),
         *temp = hub_text("%s/refs/%s.%d.tmp", repo_dir, rev, (int)getpid());
    enum status st = path && temp ? hub_mkdirs(path, err) : err_nomem(err, repo_dir);
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
    /* Nothing that the hub has said leads out of the repository. */
    ASSERT(hub_path_ok(f->path) && (hub_is_hash(f->hash, HUB_COMMIT_LEN) || hub_is_hash(f->hash, 64)));
    char *path = hub_text("%s/snapshots/%s/%s", repo_dir, commit, f->path);
    enum status st = path ? hub_mkdirs(path, err) : err_nomem(err, f->path);
    for (const char *p = f->path; (p = strchr(p, '/')); p++) strcat(target, "../");
    strcat(strcat(target, "../../blobs/"), f->hash);
    ssize_t n = st ? 0 : readlink(path, old, sizeof old - 1);
    if (n > 0) old[n] = '\0';
    if (!st && !(n > 0 && strcmp(old, target) == 0)) {
        (void)unlink(path);
        if (symlink(target, path) && (errno != EEXIST || (readlink(path, old, 1) < 0 &&
                                                          (errno = EEXIST)))) /* no link of another process */
            st = err_set(err, ST_IO, "can't make the link %s: %s", path, strerror(errno));
    }
    free(path);
    return st;
}

static enum status below(const char *dir, const char *kind, struct hub_files *out, struct err *err)
{
    char *top = file_join(dir, kind);
    enum status st = top ? hub_files_of_dir(top, 100, out, err) : err_nomem(err, dir);
    free(top);
    return st;
}

/* ---- list ---- */

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
    struct hub_files refs = {0};
    char *snapshots = file_join(dir, "snapshots"), name[NAME_MAX + 1], commit[HUB_COMMIT_LEN + 1];
    snprintf(name, sizeof name, "%s", folder + strlen(FOLDER));
    char *dashes = strstr(name, "--");
    if (dashes) {
        *dashes = '/';
        memmove(dashes + 1, dashes + 2, strlen(dashes + 1));
    }
    (void)below(dir, "refs", &refs, NULL); /* what can't be read is not listed */
    int n = snapshots ? scandir(snapshots, &commits, folder_is_commit, alphasort) : 0;
    for (int i = 0; i < n; i++) {
        struct hub_files files = {0};
        char names[200] = "-";
        double mib = 0;
        (void)below(snapshots, commits[i]->d_name, &files, NULL);
        for (size_t k = 0; k < files.count; k++) mib += (double)files.list[k].size / (1 << 20);
        for (size_t k = 0, at = 0; k < refs.count && at < sizeof names; k++)
            if (hub_ref_read(dir, refs.list[k].path, commit) && strcmp(commit, commits[i]->d_name) == 0)
                at +=
                    (size_t)snprintf(names + at, sizeof names - at, "%s%s", at ? "," : "", refs.list[k].path);
        printf("%-48s %-12.12s %-12s %8.1f %s\n", name, commits[i]->d_name, names,
               mib < 1024 ? mib : mib / 1024, mib < 1024 ? "MiB" : "GiB");
        hub_files_free(&files);
        free(commits[i]);
    }
    hub_files_free(&refs);
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

static void drop(const char *dir, const char *kind, const char *name)
{
    char *path = hub_text("%s/%s/%s", dir, kind, name);
    if (path) (void)unlink(path);
    free(path);
}

/* The refs of a commit that is gone, and blobs that no snapshot has. */
static enum status leftovers_drop(const char *dir, const char *gone, struct err *err)
{
    struct hub_files refs = {0}, links = {0}, blobs = {0};
    char commit[HUB_COMMIT_LEN + 1];
    enum status st = below(dir, "refs", &refs, err);
    if (!st) st = below(dir, "snapshots", &links, err);
    if (!st) st = below(dir, "blobs", &blobs, err);
    for (size_t i = 0; !st && i < refs.count; i++)
        if (hub_ref_read(dir, refs.list[i].path, commit) && strcmp(commit, gone) == 0)
            drop(dir, "refs", refs.list[i].path);
    for (size_t i = 0; !st && i < blobs.count; i++) {
        const char *blob = blobs.list[i].path;
        bool keep = !hub_is_hash(blob, HUB_COMMIT_LEN) && !hub_is_hash(blob, 64); /* not whole */
        for (size_t k = 0; k < links.count && !keep; k++) keep = strcmp(links.list[k].hash, blob) == 0;
        if (!keep) drop(dir, "blobs", blob);
    }
    hub_files_free(&refs);
    hub_files_free(&links);
    hub_files_free(&blobs);
    return st;
}

enum status hub_remove(const struct hub *h, const char *name, struct err *err)
{
    struct hub_name n;
    enum status st = hub_name_parse(name, &n, err);
    if (!st && n.file[0])
        st = err_set(err, ST_INVALID, "%.200s: a model is removed as a whole, without \":\"", name);
    if (st) return st;
    char *dir = hub_repo_dir(h, n.repo), *snapshot = NULL, commit[HUB_COMMIT_LEN + 1] = "";
    char *locks = dir ? hub_text("%s/.locks/%s", h->cache, strrchr(dir, '/') + 1) : NULL;
    if (!locks) st = err_nomem(err, name);
    else if (access(dir, F_OK)) st = err_set(err, ST_NOT_FOUND, "%s is not in %s", n.repo, h->cache);
    else if (!strchr(name, '@')) {
        st = tree_remove(dir, err);
        if (!st) st = tree_remove(locks, err);
    } else {
        if (!hub_ref_read(dir, n.rev, commit) && hub_is_hash(n.rev, HUB_COMMIT_LEN)) strcpy(commit, n.rev);
        snapshot = hub_text("%s/snapshots/%s", dir, commit);
        if (!commit[0] || !snapshot || access(snapshot, F_OK))
            st = err_set(err, ST_NOT_FOUND, "%s has no revision %s in %s", n.repo, n.rev, h->cache);
        else st = tree_remove(snapshot, err);
        if (!st) st = leftovers_drop(dir, commit, err);
    }
    free(dir);
    free(locks);
    free(snapshot);
    return st;
}
