/* Parts of the hub's client. Internal to server/hub/. */
#ifndef KVASIR_HUB_INTERNAL_H
#define KVASIR_HUB_INTERNAL_H

#include "config/base/buf.h"
#include "config/base/status.h"
#include "server/hub/hub.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HUB_COMMIT_LEN 40u
#define HUB_PATH_MAX   1024u

struct hub {
    char *cache;    /* the directory of all repositories */
    char *endpoint; /* https://huggingface.co, without a slash at its end */
    char *token;    /* NULL = none */
    bool offline;
    unsigned timeout_s; /* below the floor of speed */
};
enum status hub_open(struct hub *h, struct err *err) KV_MUST_CHECK;
void hub_close(struct hub *h);

/* ---- name.c ---- */
struct hub_name {
    char repo[200], rev[200], file[HUB_PATH_MAX]; /* file: "" = a checkpoint of safetensors */
};
/* "[hf:]ORG/NAME[@REV][:FILE.gguf]", or a quantization's name as file, Q4_K_M */
enum status hub_name_parse(const char *text, struct hub_name *out, struct err *err) KV_MUST_CHECK;
bool hub_path_ok(const char *path); /* relative, and inside the directory it is put in */
bool hub_is_hash(const char *text, size_t len);

/* ---- files.c: what a repository, a snapshot or a directory holds, and what of it is needed ---- */
struct hub_file {
    char *path;
    uint64_t size;
    char hash[65]; /* SHA-256 of a file in LFS, Git's SHA-1 of another; "": not known */
    bool wanted, have;
};
struct hub_files {
    struct hub_file *list;
    size_t count, cap;
};
struct hub_file *hub_file_add(struct hub_files *f, const char *path); /* NULL: out of memory */
struct hub_file *hub_file_find(const struct hub_files *f, const char *path);
void hub_files_free(struct hub_files *f);
/* Marks what is needed: for a GGUF file (n->file becomes its name) that, its other parts and *mmproj
 * (borrowed, or NULL); else the small files and, if they are known by now, the weights. `dir` holds what is
 * there. */
enum status hub_files_choose(struct hub_files *f, struct hub_name *n, const char **mmproj,
                             struct err *err) KV_MUST_CHECK;
enum status hub_files_choose_shards(struct hub_files *f, const char *dir, struct err *err) KV_MUST_CHECK;
/* Whether what is wanted of a snapshot are a model's files at all. */
enum status hub_files_check(const struct hub_files *f, const char *dir, struct err *err) KV_MUST_CHECK;
/* down to `depth` directories below dir; of a link, `hash` is the name of what it leads to */
enum status hub_files_of_dir(const char *dir, int depth, struct hub_files *out,
                             struct err *err) KV_MUST_CHECK;

/* ---- cache.c: DIR/models--ORG--NAME/{blobs,refs,snapshots} ---- */
/* NULL: out of memory */
char *hub_text(const char *format, ...) __attribute__((format(printf, 1, 2)));
char *hub_repo_dir(const struct hub *h, const char *repo);
bool hub_ref_read(const char *repo_dir, const char *rev, char commit[HUB_COMMIT_LEN + 1]);
enum status hub_ref_write(const char *repo_dir, const char *rev, const char *commit,
                          struct err *err) KV_MUST_CHECK;
enum status hub_mkdirs(const char *path, struct err *err) KV_MUST_CHECK; /* of the path's last slash */
/* snapshots/COMMIT/PATH -> ../../blobs/HASH */
enum status hub_link(const char *repo_dir, const char *commit, const struct hub_file *f,
                     struct err *err) KV_MUST_CHECK;
int hub_list(const struct hub *h);
enum status hub_remove(const struct hub *h, const char *name, struct err *err) KV_MUST_CHECK;

/* ---- http.c ---- */
enum hub_what { HUB_BODY, HUB_SIZE_AND_HASH, HUB_BLOB };
/* One thing to be fetched: a body into memory, a file's size and hash from its headers, or a file into the
 * cache. */
struct hub_get {
    enum hub_what what;
    char *url; /* at the endpoint */
    struct buf *body;
    struct hub_file *file;
    char *blob, *part; /* blobs/HASH, and blobs/HASH.incomplete until it is whole */
    char *lock;        /* huggingface_hub's, for other processes */
};
/* Whether its blob has its hash. It is read once: the lock's file, if it can be written, remembers that. */
bool hub_blob_good(const struct hub_get *g, int lock_fd);
/* ST_AGAIN: the hub can't be reached. ST_NOT_FOUND, ST_INVALID (no access): what the hub has said. */
enum status hub_http(const struct hub *h, const struct hub_get *gets, size_t count, const char *repo,
                     struct err *err) KV_MUST_CHECK;

#endif
