/* String formats as regular expressions, from the RFCs that JSON Schema names. */
#include "config/base/assert.h"
#include "server/grammar/json/schema.h"
#include "server/grammar/regex_parse.h"

#include <stdio.h>
#include <string.h>

#define LEAP "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
#define DATE                                                                                                 \
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"    \
    "02-(?:0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define PART   "(?:\\.[0-9]+)?"
#define HOUR   "(?:[01][0-9]|2[0-3])"
#define OFFSET HOUR ":[0-5][0-9]"
#define TIME   "(?:" OFFSET ":[0-5][0-9]" PART "(?:[zZ]|[+-]" OFFSET ")|23:59:60" PART "[zZ])"
#define OCTET  "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define IPV4   OCTET "(?:\\." OCTET "){3}"
#define H      "[0-9A-Fa-f]{1,4}"
#define LABEL  "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HOST   LABEL "(?:\\." LABEL ")*"

/* RFC 3986; more: additional characters of RFC 3987. */
#define UNI         "\\u00A0-\\uD7FF\\uF900-\\uFDCF\\uFDF0-\\uFFEF\\u{10000}-\\u{EFFFD}"
#define PC(more, c) "(?:[A-Za-z0-9._~!$&'()*+,;=@" c "" more "-]|%[0-9A-Fa-f]{2})"
#define AUTH(more)                                                                                           \
    "(?:(?:[A-Za-z0-9._~!$&'()*+,;=:" more "-]|%[0-9A-Fa-f]{2})*@)?(?:\\[(?:" IPV6                           \
    "|[vV][0-9A-Fa-f]+\\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\\]|(?:[A-Za-z0-9._~!$&'()*+,;=" more                  \
    "-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?"
#define REST(more)     "(?:\\?" PC(more, ":/?") "*)?(?:#" PC(more, ":/?") "*)?"
#define PATH(more)     "(?:/" PC(more, ":") "*)*"
#define ROOTED(more)   "//" AUTH(more) PATH(more) "|/(?:" PC(more, ":") "+" PATH(more) ")?"
#define LOCATED(more)  "(?:" ROOTED(more) "|" PC(more, ":") "+" PATH(more) "|)"
#define ABSOLUTE(more) "[A-Za-z][A-Za-z0-9+.-]*:" LOCATED(more) REST(more)
#define REFERENCE(more)                                                                                      \
    "(?:" ABSOLUTE(more) "|(?:" ROOTED(more) "|" PC(more, "") "+" PATH(more) "|)" REST(more) ")"
#define VARCHAR "(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})"
#define VAR     VARCHAR "(?:\\.?" VARCHAR ")*(?::[1-9][0-9]{0,3}|\\*)?"
#define IPV6                                                                                                 \
    "(?:(?:" H ":){7}" H "|(?:" H ":){1,7}:|(?:" H ":){1,6}:" H "|(?:" H ":){1,5}(?::" H "){1,2}|(?:" H      \
    ":){1,4}(?::" H "){1,3}|(?:" H ":){1,3}(?::" H "){1,4}|(?:" H ":){1,2}(?::" H "){1,5}|" H ":(?::" H      \
    "){1,6}|:(?:(?::" H "){1,7}|:)|(?:" H ":){6}" IPV4 "|::(?:" H ":){0,5}" IPV4 "|(?:" H ":){1,5}:" IPV4    \
    ")"

/* Regular expressions, nested as deep as GROUP is expanded; the syntax shared by all dialects. */
#define SHARED "\\\\[dDwWsSbBtnrfv\\\\^$.*+?()\\[\\]{}|/-]"
#define RANGE                                                                                                \
    "(?:a-[b-z]|[a-y]-z|A-[B-Z]|[A-Y]-Z|0-[1-9]|[0-8]-9|[^\\\\\\[\\]-]|\\\\[dDwWsStnrfv\\\\^$.*+?()\\[\\]{}" \
    "|/-])"
#define SET "\\[\\^?-?" RANGE "+-?\\]"
#define COUNTS                                                                                               \
    "[0-9]{1,3},?|[01],[1-9]|2,[2-9]|3,[3-9]|4,[4-9]|5,[5-9]|[0-9],[1-9][0-9]|[0-9]{1,2},[1-9][0-9]{2}"
#define TIMES    "(?:(?:[*+?]|\\{(?:" COUNTS ")\\})[?]?)?"
#define ATOM     "[^\\\\^$.|?*+()\\[\\]{}]|\\.|" SHARED "|" SET
#define MANY(x)  "(?:[\\^$]|(?:" x ")" TIMES ")*"
#define GROUP(x) ATOM "|\\((?:\\?:|\\?=|\\?!)?" MANY(x) "(?:\\|" MANY(x) ")*\\)"

static const char *const formats[FORMATS_MAX][2] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "[tT]" TIME},
    {"duration", "P(?:[0-9]+W|(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
                 "(?:T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))?|"
                 "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))"},
    {"email",
     "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@(?:" HOST "|\\[" IPV4 "\\])"},
    {"hostname", HOST},
    {"ipv4", IPV4},
    {"ipv6", IPV6},
    {"uri", ABSOLUTE("")},
    {"uri-reference", REFERENCE("")},
    {"iri", ABSOLUTE(UNI)},
    {"iri-reference", REFERENCE(UNI)},
    {"uri-template", "(?:[!#$&()*+,\\-./0-9:;=?@A-Z\\[\\]_a-z~" UNI "]|%[0-9A-Fa-f]{2}|\\{[+#./;?&=,!@|]?" VAR
                     "(?:," VAR ")*\\})*"},
    {"json-pointer", "(?:/(?:[^~/]|~[01])*)*"},
    {"relative-json-pointer", "(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^~/]|~[01])*)*)"},
    {"regex", MANY(GROUP(GROUP(ATOM))) "(?:\\|" MANY(GROUP(GROUP(ATOM))) ")*"},
    {"uuid", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"},
};

/* Leap seconds of other zones, which are 23:59:60 UTC: the hours fit each other, and so do the minutes. */
static rx leap_seconds(struct schema_maker *m, const char *before)
{
    char text[16384];
    struct grammar_error error;
    rx out;
    int n = snprintf(text, sizeof text, "^%s(?=", before), size = (int)sizeof text;
    for (int h = 0; h < 24; h++)
        n += snprintf(text + n, (size_t)(size - n),
                      "%02d:..:60" PART "(?:-%02d:|\\+%02d:(?:0[1-9]|[1-9])|\\+%02d:00)|", h, 23 - h, h,
                      (h + 1) % 24);
    ASSERT(n > 0 && n < size);
    text[n - 1] = ')'; /* not the last | */
    n += snprintf(text + n, (size_t)(size - n), "[0-9]{2}:(?:");
    for (int k = 0; k < 60; k++)
        n += snprintf(text + n, (size_t)(size - n), "%02d:60" PART "(?:-" HOUR ":%02d|\\+" HOUR ":%02d)|", k,
                      59 - k, (k + 1) % 60);
    n += snprintf(text + n - 1, (size_t)(size - n + 1), ")$") - 1;
    return regex_parse_json(m->p, text, (size_t)n, &out, &error) ? RX_NONE : out;
}

rx schema_format(struct schema_maker *m, const char *name)
{
    char text[16384];
    struct grammar_error error;
    rx out = RX_NONE;
    for (size_t i = 0; i < FORMATS_MAX; i++) {
        if (strcmp(formats[i][0], name) != 0) continue;
        if (m->formats[i]) return m->formats[i];
        int n = snprintf(text, sizeof text, "^(?:%s)$", formats[i][1]);
        ASSERT(n > 0 && n < (int)sizeof text);
        if (regex_parse_json(m->p, text, (size_t)n, &out, &error)) return RX_NONE;
        if (i == 1 || i == 2) out = rx_alt(m->p, out, leap_seconds(m, i == 2 ? DATE "[tT]" : ""));
        return m->formats[i] = out;
    }
    return RX_NONE;
}
