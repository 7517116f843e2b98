/* Character classes of the tokenizer's regular expressions, added-token rules and NFC, as the `tokenizers`
 * library has them. The data is frozen here so that the ids don't depend on the installed Unicode libraries.
 * Pure. */
#ifndef KVASIR_TOKENIZER_UNICODE_H
#define KVASIR_TOKENIZER_UNICODE_H

#include "config/base/utf8.h"

#include <stdint.h>

/* \p{L}, \p{N}, \p{M}; \s without and with only CR and LF; everything else. */
enum uni_class { UNI_OTHER = 0, UNI_LETTER, UNI_NUMBER, UNI_MARK, UNI_SPACE, UNI_NEWLINE };
enum {
    UNI_CLASS_MASK = 7,
    UNI_WORD = 8, /* \w of the single_word rule */
    UNI_NFC = 16, /* NFC may change it or what precedes it: not "quick check yes", or combining class not 0 */
    UNI_BLOCK = 32,
    UNI_GROUP = 64,
};

extern const uint8_t uni_groups[544];
extern const uint16_t uni_blocks[];
extern const uint8_t uni_leaves[];

/* Class and flags of a code point below 0x110000. */
static inline unsigned uni_props(uint32_t cp)
{
    unsigned block =
        uni_blocks[uni_groups[cp / (UNI_BLOCK * UNI_GROUP)] * UNI_GROUP + cp / UNI_BLOCK % UNI_GROUP];
    return uni_leaves[block * UNI_BLOCK + cp % UNI_BLOCK];
}

static inline unsigned uni_class(uint32_t cp)
{
    return uni_props(cp) & UNI_CLASS_MASK;
}

/* Decodes the code point at s, which must be valid UTF-8; returns its length in bytes. */
static inline unsigned uni_decode(const uint8_t *s, uint32_t *cp)
{
    *cp = s[0];
    return s[0] < 0x80 ? 1 : (unsigned)utf8_decode(s, 4, cp);
}

#endif
