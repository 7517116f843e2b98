/* What the front reads of a body: the model at its top level, and Ollama's keep_alive. Pure; any thread. */
#include "server/front/internal.h"

#include "config/base/json_text.h"
#include "config/base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* A string's bytes, unescaped; "" if they don't fit: no name of ours. */
static void text_of(const struct json_lexer *x, char *to, size_t cap)
{
    size_t n = 0;
    for (size_t at = x->from; at < x->to && n + 5 < cap;) {
        uint32_t cp = 0;
        size_t used = x->text[at] == '\\' ? json_unescape(x->text + at, x->to - at, &cp) : 0;
        if (used) n += utf8_encode(cp, to + n);
        else to[n++] = x->text[at];
        at += used ? used : 1;
    }
    to[n + 5 < cap ? n : 0] = '\0';
}

/* Ollama's durations: 300, "5m", "1h30m", "-1". */
static bool seconds(const char *s, double *out)
{
    static const struct {
        const char *unit;
        double seconds;
    } units[] = {{"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {"h", 3600}, {"m", 60}, {"s", 1}, {"", 1}};
    double sum = 0;
    bool minus = *s == '-';
    s += minus;
    if (!*s) return false;
    while (*s) {
        char *end;
        if ((*s < '0' || *s > '9') && *s != '.') return false;
        double v = strtod(s, &end);
        size_t i = 0;
        while (i < 6 && strncmp(end, units[i].unit, strlen(units[i].unit)) != 0) i++;
        if (i == 6 && *end) return false;
        sum += v * units[i].seconds;
        s = end + strlen(units[i].unit);
    }
    *out = minus ? -sum : sum;
    return true;
}

void front_ask_read(const char *text, size_t len, bool all, struct front_ask *out)
{
    struct json_lexer x = {.text = text, .len = len, .depth_max = JSON_LEX_DEPTH};
    enum json_token t;
    char key[16], value[64];
    *out = (struct front_ask){.empty = true};
    while ((t = json_lex(&x)) != JSON_LEX_ERROR && t != JSON_LEX_DEEP && t != JSON_LEX_END) {
        if (t != JSON_LEX_KEY || x.depth != 1) continue;
        text_of(&x, key, sizeof key);
        t = json_lex(&x);
        bool model = strcmp(key, "model") == 0, named = model || (all && strcmp(key, "name") == 0);
        if (named && t == JSON_LEX_STRING && (model || !*out->model))
            text_of(&x, out->model, sizeof out->model);
        if (model && !all) return;
        if (strcmp(key, "keep_alive") == 0 && (t == JSON_LEX_STRING || t == JSON_LEX_NUMBER)) {
            text_of(&x, value, sizeof value);
            out->has_keep = seconds(value, &out->keep);
        }
        bool filled = t == JSON_LEX_STRING ? x.to > x.from
                                           : t == JSON_LEX_ARRAY && (t = json_lex(&x)) != JSON_LEX_CLOSE;
        if (strcmp(key, "prompt") == 0 || strcmp(key, "messages") == 0) out->empty = out->empty && !filled;
        if (t == JSON_LEX_ERROR || t == JSON_LEX_DEEP || t == JSON_LEX_END) return;
    }
}
