/* Models by name: downloads from the Hugging Face hub into its own cache, which huggingface_hub reads and
 * writes as well (blobs, refs, snapshots). Settings are its environment variables: HF_HOME, HF_HUB_CACHE,
 * HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE. Before the server starts; one thread. */
#ifndef KVASIR_HUB_H
#define KVASIR_HUB_H

#include "config/base/status.h"
#include "config/options.h"

#include <stdbool.h>

#define HUB_PREFIX "hf:" /* of a model's name: hf:ORG/NAME[@REV][:FILE.gguf] */

/* What a name stands for, after a download of what is missing. Strings are owned. */
struct hub_model {
    char *path;   /* the snapshot's directory, or a GGUF file in it */
    char *mmproj; /* the repository's vision tower for a GGUF file, or NULL */
    char *repo;   /* ORG/NAME */
};
enum status hub_get(const char *name, struct hub_model *out, struct err *err) KV_MUST_CHECK;
void hub_model_free(struct hub_model *m);

/* Why a path given as a model is not one, as far as its files tell: a name of the hub, a Git LFS pointer,
 * weights of another kind, or none, unless `bare`: then a config.json is enough. ST_OK: nothing is known
 * against it. */
enum status hub_path_check(const char *path, bool bare, struct err *err) KV_MUST_CHECK;

/* kvasir pull, list, rm: the exit code. argv[0] is the command. */
int hub_main(int argc, char **argv);

/* The directory or GGUF file of --model, or the demo model next to the sources or the installed program;
 * `bare`: also one without weights. Of a model of the hub, o gets paths and name. malloc'd; NULL with err
 * set. */
char *model_find(struct options *o, bool bare, struct err *err);
/* Its name in the API, if it is given none: the directory's, or the file's without .gguf. NULL: no memory. */
char *model_dir_name(const char *dir);

#endif
