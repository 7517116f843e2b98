/* See tool_calls.h: content, blocks and their ends; reader.h has the ways of writing a call. */
#include "server/chat/tool_calls/reader.h"

#include "config/base/assert.h"

#include <ctype.h>

/* Maximum bytes from the start of content to the brace of a plain call's arguments: the most text held back.
 */
#define HEAD_MAX  1024u
#define FENCE_LEN 3
/* Maximum length of the language after it. */
#define LANGUAGE_MAX 64u
/* Maximum bytes of a block's tag and the words before its call. */
#define PREFACE_MAX 256u
/* Bytes read as calls that were none, after which all is content: each of many could reach to the end. */
#define REREAD_MAX ((size_t)1 << 20)

static const struct call_reader *const readers[] = {&call_json, &call_tags, &call_named};

static void state_to(struct tool_calls *c, enum tool_state state)
{
    static const unsigned next[] = {
        [TOOL_TEXT] = 1u << TOOL_TEXT | 1u << TOOL_BLOCK | 1u << TOOL_DONE,
        [TOOL_BLOCK] = 1u << TOOL_TEXT | 1u << TOOL_CALL,
        [TOOL_CALL] = 1u << TOOL_TEXT | 1u << TOOL_BLOCK | 1u << TOOL_END,
        [TOOL_END] = 1u << TOOL_TEXT | 1u << TOOL_CALL | 1u << TOOL_DONE,
        [TOOL_DONE] = 0,
    };
    ASSERT(next[c->state] >> state & 1);
    c->state = state;
}

/* ---- content ---- */

static void content_emit(struct tool_calls *c, const struct tag_text *t, size_t to)
{
    size_t from = c->at;
    ASSERT_CMP(to, <=, t->len);
    if (to <= from || c->st) return;
    c->at = to;
    c->blank = false;
    c->st = c->sink->content(c->sink->user, t->s + from, to - from);
}

/* Content resumes at `from`, maybe with another plain call. */
static void text_start(struct tool_calls *c, size_t from, bool bare)
{
    bool done = c->rules.single && c->calls;
    ASSERT_CMP(from, >=, c->at);
    state_to(c, done ? TOOL_DONE : TOOL_TEXT);
    c->at = c->search = c->blank_to = from;
    c->blank = true;
    c->bare = bare && !done;
    if (!c->bare) return;
    state_to(c, TOOL_BLOCK);
    c->block_at = c->scan = from;
}

/* What is at c->call_at is no call: content, with the tags before it if the block had no call. */
static bool refuse(struct tool_calls *c)
{
    ASSERT(c->state == TOOL_BLOCK || !c->begun);
    if (c->call_at == c->block_at) {
        state_to(c, TOOL_TEXT);
        if (!c->bare) c->search = c->block_at + 1;
    } else {
        text_start(c, c->call_at, false);
    }
    c->bare = false;
    return true;
}

/* Searches for the first tag, or line, that opens a block at or after c->search. *scan: where its call may
 * begin; *keep: bytes at the end that may become one; *bare: it may be plain JSON. SIZE_MAX: none. */
static size_t open_find(const struct tool_calls *c, const struct tag_text *t, size_t *scan, size_t *keep,
                        bool *bare)
{
    static const char *const lines[] = {"\n{", "\n[", "\n`", "\n~"};
    size_t n = t->len > c->search && c->reread < REREAD_MAX ? t->len - c->search : 0, found = SIZE_MAX;
    const char *s = t->s + c->search;
    *keep = 0;
    for (const char *const *open = c->syntax->opens; *open && n; open++) {
        size_t len = strlen(*open), held = tag_prefix(s, n, *open);
        const char *hit = memmem(s, n, *open, len);
        if (held > *keep) *keep = held;
        if (!hit || (size_t)(hit - t->s) >= found) continue;
        found = (size_t)(hit - t->s);
        *scan = open == c->syntax->opens ? found + len : found;
    }
    for (size_t k = 0; k < 4 && c->rules.lines && n; k++) {
        const char *hit = memmem(s, n, lines[k], 2);
        if (!*keep && s[n - 1] == '\n') *keep = 1;
        if (!hit || (size_t)(hit - t->s) >= found) continue;
        *scan = found = (size_t)(hit - t->s);
        *bare = true;
    }
    return found;
}

static bool text_run(struct tool_calls *c, const struct tag_text *t)
{
    bool bare = false;
    size_t keep, scan = 0, hit = open_find(c, t, &scan, &keep, &bare);
    bool found = hit != SIZE_MAX;
    size_t end = found ? hit : t->final ? t->len : t->len - keep, next = end;
    if ((found || !t->final) && end > c->at && t->s[end - 1] == '\n') end--;
    if (c->blank) {
        int n = 1;
        for (; n > 0 && c->blank_to<end; c->blank_to += n> 0 ? (size_t)n : 0) n = space_at(t, c->blank_to);
        if (c->blank_to >= end || n < 0) {
            /* White space: dropped next to a call, but content if there is nothing else. */
            end = t->final && !found && !c->calls ? end : c->at;
        }
    }
    content_emit(c, t, end);
    c->search = next + bare;
    if (!found) return false;
    c->bare = bare;
    state_to(c, TOOL_BLOCK);
    c->block_at = hit;
    c->scan = scan;
    c->prefaced = false;
    return true;
}

/* ---- calls ---- */

/* A call begins at i: like call_reader.starts. */
static int call_starts(struct tool_calls *c, const struct tag_text *t, const struct call_reader *reader,
                       size_t i)
{
    c->scan = c->from = i;
    c->begun = false;
    c->args.len = c->hold = 0;
    int found = reader->starts(c, t);
    if (found <= 0) return found;
    c->reader = reader;
    state_to(c, TOOL_CALL);
    return 1;
}

/* False: the text is too short. */
static bool spaces_skip(const struct tag_text *t, size_t *i)
{
    int n = 1;
    for (; n > 0 && *i<t->len; *i += n> 0 ? (size_t)n : 0) n = space_at(t, *i);
    return n >= 0;
}

/* A code fence at i: like tag_at. */
static int fence_at(const struct tag_text *t, size_t i)
{
    return tag_at(t, i, t->s[i] == '~' ? "~~~" : "```");
}

/* Skips what may be before the calls of a block: a code fence and a bracket. False: the text is too short. */
static bool front_skip(struct tool_calls *c, const struct tag_text *t, size_t *i)
{
    if (!spaces_skip(t, i)) return false;
    c->scan = *i;
    int fence = *i < t->len ? fence_at(t, *i) : 0;
    if (fence > 0) {
        size_t from = *i += FENCE_LEN;
        while (*i < t->len && *i - from < LANGUAGE_MAX &&
               (t->s[*i] == '_' || isalpha((unsigned char)t->s[*i])))
            ++*i;
        if (!spaces_skip(t, i)) return false;
        c->fenced = true;
    }
    if (*i < t->len && t->s[*i] == '[') ++*i;
    return spaces_skip(t, i) && fence >= 0 && (*i < t->len || t->final);
}

/* No call begins at i: skips a word before it. 0: none may follow; -1: the text is too short. */
static int word_skip(struct tool_calls *c, const struct tag_text *t, size_t i)
{
    if (c->bare || i == t->len || t->s[i] == '<') return 0;
    for (const char *const *open = c->syntax->opens; *open; open++)
        if (tag_at(t, i, *open)) return tag_at(t, i, *open) < 0 ? -1 : 0;
    for (size_t to = i + 1; to < t->len && to - c->block_at <= PREFACE_MAX; to++) {
        char last = t->s[to - 1];
        if (!strchr("{[<`~", t->s[to]) && (is_blank(t->s[to]) || !(is_blank(last) || last == ':'))) continue;
        c->scan = to;
        return c->prefaced = true;
    }
    return t->len - c->block_at > PREFACE_MAX || t->final ? 0 : -1;
}

/* Of a plain call only the head is held back. */
static struct tag_text view(const struct tool_calls *c, const struct tag_text *t, bool *cut)
{
    size_t most = c->at + HEAD_MAX;
    *cut = c->bare && (c->state == TOOL_BLOCK || !c->begun) && t->len >= most;
    return *cut ? (struct tag_text){t->s, most, false} : *t;
}

static bool block_run(struct tool_calls *c, const struct tag_text *text)
{
    bool cut;
    struct tag_text t = view(c, text, &cut);
    size_t n = c->bare ? 1 : sizeof readers / sizeof *readers;
    int most = 0, word = 1;
    c->call_at = c->block_at;
    while (!most && word > 0) {
        size_t i = c->scan;
        if (!c->bare) c->fenced = false;
        if (!front_skip(c, &t, &i)) return cut && refuse(c);
        for (size_t k = 0; k < n && i < t.len && most <= 0; k++) {
            size_t scan = c->scan;
            int found = call_starts(c, &t, readers[k], i);
            if (found <= 0) c->scan = scan;
            if (found) most = found;
        }
        if (!most) word = word_skip(c, &t, i);
    }
    return most < 0 || word < 0 ? false : most || refuse(c);
}

static bool call_run(struct tool_calls *c, const struct tag_text *text)
{
    bool cut;
    struct tag_text t = view(c, text, &cut);
    enum call_step step = c->reader->feed(c, &t);
    if (step == CALL_MORE && c->begun && t.final) value_flush(&c->value, &t);
    if (c->value.st && !c->st) c->st = c->value.st;
    calls__flush(c);
    if (step == CALL_MORE && (t.final || cut) && !c->begun) step = CALL_NO;
    if (step == CALL_MORE) return cut;
    if (step == CALL_NO) {
        c->reread += c->value.at - c->call_at;
        if (c->bare || c->call_at != c->block_at || c->from - c->block_at > PREFACE_MAX ||
            c->reread >= REREAD_MAX)
            return refuse(c);
        state_to(c, TOOL_BLOCK); /* a brace in the words before a call */
        c->scan = c->from + 1;
        c->prefaced = true;
        return true;
    }
    calls__end(c);
    state_to(c, TOOL_END);
    return true;
}

/* After a call: superfluous brackets and separators, then the end tag, another call, or content. */
static bool end_run(struct tool_calls *c, const struct tag_text *t)
{
    const char *close = c->syntax->closes[0];
    bool plain = c->reader != &call_tags;
    for (int skip = 1; skip && c->scan < t->len; c->scan += (size_t)skip) {
        char ch = t->s[c->scan];
        int fence = (ch == '`' || ch == '~') && c->fenced ? fence_at(t, c->scan) : 0,
            tag = c->bare && ch == '<' && close ? tag_at(t, c->scan, close) : 0;
        if (fence < 0 || tag < 0) return false;
        if (fence) c->fenced = false;
        skip = fence ? FENCE_LEN
               : tag ? (int)strlen(close)
               : plain && ch && strchr(c->bare ? "}],;" : "}]),;", ch) ? 1
                                                                       : space_at(t, c->scan);
        if (skip < 0) return false;
    }
    size_t i = c->scan, name[2];
    c->prefaced = false;
    if (i == t->len) return false;
    int tag = close ? tag_at(t, i, close) : 0;
    if (!tag && !c->bare) { /* in a wrong spelling */
        tag = calls__closer(plain ? NULL : c, t, &c->scan, name);
        if (tag) return tag > 0;
    }
    if (!tag && !c->bare && !(c->rules.single && c->calls)) {
        c->call_at = i;
        tag = call_starts(c, t, c->reader, i);
        if (tag > 0) return true;
        c->scan = i;
    } else if (tag > 0) {
        i += strlen(close);
    }
    if (tag >= 0) text_start(c, i, c->bare);
    return tag >= 0;
}

/* ---- public functions ---- */

void tool_calls_init(struct tool_calls *c, size_t from, const struct tool_rules *rules)
{
    *c = (struct tool_calls){.rules = *rules, .syntax = tool_syntax(rules->syntax)};
    struct buf *bufs[] = {&c->args, &c->name, &c->key, &c->flat};
    for (size_t i = 0; i < 4; i++) buf_init(bufs[i], SIZE_MAX / 4);
    text_start(c, from, rules->bare != NULL);
}

void tool_calls_fini(struct tool_calls *c)
{
    struct buf *bufs[] = {&c->args, &c->name, &c->key, &c->flat};
    for (size_t i = 0; i < 4; i++) buf_fini(bufs[i]);
}

enum status tool_calls_run(struct tool_calls *c, const char *text, size_t len, bool final,
                           const struct tool_sink *sink)
{
    const struct tag_text t = {text, len, final};
    bool more = true;
    ASSERT(c->rules.syntax != TOOL_SYNTAX_NONE);
    ASSERT_CMP(c->at, <=, len); /* it begins with the text of earlier runs */
    c->sink = sink;
    while (more && !c->st) {
        switch (c->state) {
        case TOOL_TEXT: more = text_run(c, &t); break;
        case TOOL_BLOCK: more = block_run(c, &t); break;
        case TOOL_CALL: more = call_run(c, &t); break;
        case TOOL_END: more = end_run(c, &t); break;
        case TOOL_DONE: more = false; break;
        }
    }
    return c->st;
}

bool tool_calls_complete(const struct tool_calls *c)
{
    return c->calls && !c->open && !c->broken;
}

bool tool_calls_done(const struct tool_calls *c)
{
    return c->state == TOOL_DONE;
}
