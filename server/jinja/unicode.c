/* Characters for the template interpreter: UTF-8 and the classes that Python's str methods use. Case mapping
 * is per character. Pure. */
#include "config/base/assert.h"
#include "config/base/utf8.h"
#include "server/jinja/internal.h"

#include <utf8proc.h>

uint32_t jn_decode(const char *p, const char *end, const char **next)
{
    uint32_t cp;
    size_t n = utf8_decode(p, (size_t)(end - p), &cp);
    *next = p + (cp < UTF8_BAD ? n : 1);
    return cp < UTF8_BAD ? cp : UTF8_REPLACEMENT;
}

/* Counts as jn_decode steps, so invalid text can't make indexes and lengths disagree. */
size_t jn_count_chars(const char *p, size_t len)
{
    size_t n = 0;
    const char *end = p + len;
    while (p < end) {
        if ((unsigned char)*p < 0x80) p++;
        else jn_decode(p, end, &p);
        n++;
    }
    return n;
}

bool jn_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x20) || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f ||
           cp == 0x3000;
}

bool jn_is_line_break(uint32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
}

static utf8proc_category_t category(uint32_t cp)
{
    return utf8proc_category((utf8proc_int32_t)cp);
}

bool jn_is_printable(uint32_t cp)
{
    if (cp < 0x7f) return cp >= 0x20;
    switch (category(cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}

bool jn_is_alpha(uint32_t cp)
{
    utf8proc_category_t k = category(cp);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_LO;
}

bool jn_is_decimal(uint32_t cp)
{
    return category(cp) == UTF8PROC_CATEGORY_ND;
}

bool jn_is_word(uint32_t cp)
{
    utf8proc_category_t k = category(cp);
    return cp == '_' || jn_is_alpha(cp) || k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL ||
           k == UTF8PROC_CATEGORY_NO;
}

bool jn_is_ident(uint32_t cp, bool start)
{
    if (cp < 0x80)
        return cp == '_' || (cp >= 'a' && cp <= 'z') || (cp >= 'A' && cp <= 'Z') ||
               (!start && cp >= '0' && cp <= '9');
    utf8proc_category_t k = category(cp);
    if (jn_is_alpha(cp) || k == UTF8PROC_CATEGORY_NL) return true;
    return !start && (k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_ND ||
                      k == UTF8PROC_CATEGORY_PC);
}

int jn_case_of(uint32_t cp)
{
    switch (category(cp)) {
    case UTF8PROC_CATEGORY_LL: return 1;
    case UTF8PROC_CATEGORY_LU: return 2;
    case UTF8PROC_CATEGORY_LT: return 3;
    default: return 0;
    }
}

uint32_t jn_to_lower(uint32_t cp)
{
    if (cp < 0x80) return cp >= 'A' && cp <= 'Z' ? cp + 32 : cp;
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
}

uint32_t jn_to_upper(uint32_t cp)
{
    if (cp < 0x80) return cp >= 'a' && cp <= 'z' ? cp - 32 : cp;
    return (uint32_t)utf8proc_toupper((utf8proc_int32_t)cp);
}

uint32_t jn_to_title(uint32_t cp)
{
    if (cp < 0x80) return jn_to_upper(cp);
    return (uint32_t)utf8proc_totitle((utf8proc_int32_t)cp);
}

const char *jinja_trim(const char *text, size_t *len, int sides)
{
    const char *a = text, *b = text + *len, *next;
    ASSERT(sides >= 1 && sides <= 3);
    while ((sides & 1) && a < b && jn_is_space(jn_decode(a, b, &next))) a = next;
    while ((sides & 2) && a < b) {
        const char *q = b - 1;
        while (q > a && ((unsigned char)*q & 0xc0) == 0x80) q--;
        if (!jn_is_space(jn_decode(q, b, &next)) || next != b) break;
        b = q;
    }
    *len = (size_t)(b - a);
    return a;
}
