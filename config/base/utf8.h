/* UTF-8 as Unicode defines it: no overlong forms, no surrogates, nothing above U+10FFFF. Pure. */
#ifndef KVASIR_UTF8_H
#define KVASIR_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UTF8_REPLACEMENT 0xFFFDu
#define UTF8_BAD         0xFFFFFFFEu /* not UTF-8 */
#define UTF8_SHORT       0xFFFFFFFFu /* the text ends inside a sequence */

/* Of the sequence at text: its length, 1 to 4, and in *cp its code point. Where there is none, *cp is
 * UTF8_BAD or UTF8_SHORT (>= UTF8_BAD), and the length that of the maximal subpart (Unicode, 3.9), which one
 * U+FFFD replaces. 0 at the end of the text. */
size_t utf8_decode(const void *text, size_t len, uint32_t *cp);
/* Returns the length. A surrogate and what is above U+10FFFF become U+FFFD. */
size_t utf8_encode(uint32_t cp, void *out); /* 4 bytes at least */
bool utf8_valid(const void *text, size_t len);
/* Code points of a valid text. */
size_t utf8_count(const char *text, size_t len);

#endif
