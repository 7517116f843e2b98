/* Images from file: URLs, below the folder of --allowed-media-dir. Any thread; blocks on the disk. */
#ifndef KVASIR_FETCH_LOCAL_H
#define KVASIR_FETCH_LOCAL_H

#include "config/base/status.h"
#include "server/media/image_decode.h"

struct local_dir;
enum status local_dir_open(const char *path, struct local_dir **out, struct err *err) KV_MUST_CHECK;
void local_dir_close(struct local_dir *d); /* NULL is fine */

/* file:///path or file://localhost/path -> the regular file there. Symbolic links are followed if they end
 * below the folder. *bytes is malloc'd, set with IMAGE_OK. */
enum image_error local_read(const struct local_dir *d, const char *url, size_t url_len, size_t bytes_max,
                            uint8_t **bytes, size_t *len, struct err *err);

#endif
