/* What a checkpoint contains, as a hash of all its files: cached KV on disk belongs to these weights,
 * wherever they lie. Files that are known by their inode, size and times are not read again. Any thread. */
#ifndef KVASIR_CHECKPOINT_ID_H
#define KVASIR_CHECKPOINT_ID_H

#include "config/base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* paths: of count checkpoints, each a directory or a file; NULL: none. memo: the file that remembers hashes;
 * made if it is missing. */
enum status checkpoint_id(const char *const *paths, uint32_t count, const char *memo, uint8_t out[32],
                          struct err *err) KV_MUST_CHECK;
/* The same of the one that this process serves, made at the first call, which may take seconds: others wait.
 * cache_dir: where it is remembered; NULL: in the user's cache directory. */
enum status checkpoint_id_known(const char *model, const char *mmproj, const char *cache_dir, uint8_t out[32],
                                struct err *err) KV_MUST_CHECK;

#endif
