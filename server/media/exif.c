/* The orientation of an image from its metadata. The input is untrusted: every offset is checked, and none
 * is followed twice. Any thread. */
#include "server/media/codec.h"

#include <string.h>

enum { TAG_ORIENTATION = 0x0112, TYPE_SHORT = 3, TYPE_LONG = 4 };

/* The number at the offset, 0 if there is none or the block is malformed. */
static int exif_orientation(struct image_bytes in)
{
    static const uint8_t prefix[6] = "Exif\0";
    /* Some writers add the JPEG segment's prefix in other containers too, sometimes twice. */
    for (int i = 0; i < 2 && in.len >= sizeof prefix && memcmp(in.p, prefix, sizeof prefix) == 0; i++) {
        in.p += sizeof prefix;
        in.len -= sizeof prefix;
    }
    if (in.len < 8) return 0;
    bool little;
    if (memcmp(in.p, "II*\0", 4) == 0) little = true;
    else if (memcmp(in.p, "MM\0*", 4) == 0) little = false;
    else return 0;
    size_t at = little ? image__le32(in.p + 4) : image__be32(in.p + 4);
    if (at > in.len || in.len - at < 2) return 0;
    uint32_t count = little ? image__le16(in.p + at) : image__be16(in.p + at);
    int found = 0;
    at += 2;
    for (uint32_t i = 0; i < count && in.len - at >= 12; i++, at += 12) {
        const uint8_t *e = in.p + at;
        uint32_t tag = little ? image__le16(e) : image__be16(e),
                 type = little ? image__le16(e + 2) : image__be16(e + 2);
        if (tag != TAG_ORIENTATION || (type != TYPE_SHORT && type != TYPE_LONG)) continue;
        /* The first of the values, which are in the entry if they fit. */
        uint64_t values = little ? image__le32(e + 4) : image__be32(e + 4),
                 bytes = values * (type == TYPE_SHORT ? 2 : 4);
        const uint8_t *first = e + 8;
        if (bytes > 4) {
            size_t offset = little ? image__le32(first) : image__be32(first);
            if (offset > in.len || in.len - offset < bytes) continue;
            first = in.p + offset;
        }
        if (!values) continue;
        uint32_t v;
        if (type == TYPE_SHORT) v = little ? image__le16(first) : image__be16(first);
        else v = little ? image__le32(first) : image__be32(first);
        found = v >= 1 && v <= 8 ? (int)v : 1;
    }
    return found;
}

/* The first tiff:Orientation="6" or <tiff:Orientation>6. */
static int xmp_orientation(struct image_bytes in)
{
    static const char name[] = "tiff:Orientation";
    enum { NAME = sizeof name - 1 };
    const uint8_t *p = in.p, *end = in.p + in.len;
    while (p && (p = memmem(p, (size_t)(end - p), name, NAME)) != NULL) {
        p += NAME;
        size_t skip = end - p >= 2 && p[0] == '=' && p[1] == '"' ? 2 : end - p >= 1 && p[0] == '>' ? 1 : 0;
        if (skip && (size_t)(end - p) > skip && p[skip] >= '0' && p[skip] <= '9')
            return p[skip] >= '1' && p[skip] <= '8' ? p[skip] - '0' : 1;
    }
    return 0;
}

int image__orientation(struct image_bytes exif, struct image_bytes xmp)
{
    int o = exif.len ? exif_orientation(exif) : 0;
    if (!o && xmp.len) o = xmp_orientation(xmp);
    return o ? o : 1;
}
