/* UTF-8 as Unicode defines it: no overlong forms, no surrogates, nothing above U+10FFFF. Pure. */
#ifndef KVASIR_UTF8_H
#define KVASIR_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UTF8_REPLACEMENT 0xFFFDu
#define UTF8_BAD         0xFFFFFFFEu /* not UTF-8 */
#define UTF8_SHORT       0xFFFFFFFFu /* the text ends inside a sequence */

/* Decodes one sequence: returns its length, 1 to 4, and sets *cp to its code point. If it is ill-formed, *cp
 * is UTF8_BAD or UTF8_SHORT (>= UTF8_BAD), and the length is that of the maximal subpart (Unicode, 3.9),
 * which one U+FFFD replaces. 0 at the end of the text. */
size_t utf8_decode(const void *text, size_t len, uint32_t *cp);
/* Returns the length. Surrogates and values above U+10FFFF become U+FFFD. */
size_t utf8_encode(uint32_t cp, void *out); /* at least 4 bytes */
bool utf8_valid(const void *text, size_t len);
/* Number of code points in valid UTF-8. */
size_t utf8_count(const char *text, size_t len);

#endif
