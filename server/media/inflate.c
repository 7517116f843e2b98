/* zlib inflation, by zlib. Any thread. */
#include "server/media/codec.h"

#include <limits.h>
#include <zlib.h>

struct image_inflated image__inflate(struct image_bytes in, uint8_t *out, size_t cap)
{
    struct image_inflated got = {.fault = true};
    if (in.len > UINT_MAX || cap > UINT_MAX) return got;
    z_stream z = {.next_in = (z_const Bytef *)in.p, .avail_in = (uInt)in.len, .next_out = out, .avail_out = (uInt)cap};
    int end = inflateInit(&z);
    if (end == Z_OK) {
        end = inflate(&z, Z_SYNC_FLUSH);
        got.bytes = z.total_out;
        inflateEnd(&z);
    }
    got.fault = end != Z_STREAM_END && end != Z_BUF_ERROR && end != Z_OK;
    got.no_memory = end == Z_MEM_ERROR;
    return got;
}
