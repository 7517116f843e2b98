/* Character classes of the tokenizer's regular expressions, added-token rules and NFC, as the `tokenizers`
 * library has them. The data is frozen here so that the ids don't depend on the installed Unicode libraries.
 * Read only after uni_init. */
#ifndef KVASIR_TOKENIZER_UNICODE_H
#define KVASIR_TOKENIZER_UNICODE_H

#include "config/base/utf8.h"

#include <stdint.h>

/* \p{L} without the last two, \p{N}, \p{M}; \s without and with only CR and LF; \p{Lu} and \p{Lt}, \p{Ll};
 * everything else. */
enum uni_class {
    UNI_OTHER = 0,
    UNI_LETTER,
    UNI_NUMBER,
    UNI_MARK,
    UNI_SPACE,
    UNI_NEWLINE,
    UNI_UPPER,
    UNI_LOWER
};
enum {
    UNI_CLASS_MASK = 7,
    UNI_WORD = 8, /* \w of the single_word rule */
    UNI_NFC = 16, /* NFC may change it or what precedes it: not "quick check yes", or combining class not 0 */
    UNI_PAGES_MAX = 256,
};

extern uint8_t uni_page_of[0x1100];
extern uint8_t uni_pages[UNI_PAGES_MAX][256];

/* Fills the tables once; any thread. Every tokenizer's load calls it. */
void uni_init(void);

/* Class and flags of a code point below 0x110000. */
static inline unsigned uni_props(uint32_t cp)
{
    return uni_pages[uni_page_of[cp >> 8]][cp & 255];
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
