/* See prompt.h and prompt_build.h. */
#include "engine/prompt_build.h"

#include "config/base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPANSION_BYTES_MAX ((size_t)64 << 20)
#define PICTURES_MAX        4096u

/* The sentence around crops is the processor's, letter for letter: the checkpoints were trained with it. */
#define CROPS_BEFORE  "Here is the original image "
#define CROPS_BETWEEN " and here are some crops to help you see better "

void prompt_free(struct prompt *p)
{
    for (uint32_t i = 0; i < p->image_count; i++) free(p->images[i].pixels.rgb);
    free(p->images);
    free(p->tokens);
    *p = (struct prompt){0};
}

/* ---- finding markers ---- */

/* The runs as one text. first[r] is where run r begins; first[run_count] = len. */
struct joined {
    char *text;
    size_t *first;
    const struct tok_run *runs;
    size_t run_count, len;
};

static enum status join(const struct tok_run *runs, size_t n, struct joined *j, struct err *err)
{
    *j = (struct joined){.runs = runs, .run_count = n};
    j->first = calloc(n + 1, sizeof *j->first);
    for (size_t r = 0; j->first && r < n; r++) {
        j->first[r] = j->len;
        j->len += runs[r].len;
    }
    j->text = malloc(j->len + 1);
    if (!j->first || !j->text) {
        free(j->first);
        free(j->text);
        return err_set(err, ST_NOMEM, "out of memory for a prompt of %zu bytes", j->len);
    }
    j->first[n] = j->len;
    for (size_t r = 0; r < n; r++)
        if (runs[r].len) memcpy(j->text + j->first[r], runs[r].text, runs[r].len);
    return ST_OK;
}

/* Do all bytes of [a, b) allow every control token? *r is a run at or before a; it moves forward with a. */
static bool all_control(const struct joined *j, size_t a, size_t b, size_t *r)
{
    while (*r < j->run_count && j->first[*r + 1] <= a) (*r)++;
    for (size_t k = *r; k < j->run_count && j->first[k] < b; k++)
        if (j->first[k + 1] > j->first[k] && j->runs[k].control != TOK_CONTROL_ALL) return false;
    return true;
}

/* Next occurrence of `what` from `at` on that stands wholly in template text; SIZE_MAX if there is none. */
static size_t next_control(const struct joined *j, const char *what, size_t at, size_t *r)
{
    size_t n = strlen(what);
    while (n && at < j->len) {
        const char *hit = memmem(j->text + at, j->len - at, what, n);
        if (!hit) break;
        size_t a = (size_t)(hit - j->text);
        if (all_control(j, a, a + n, r)) return a;
        at = a + 1;
    }
    return SIZE_MAX;
}

/* ---- expansion ---- */

struct expansion {
    struct joined j;
    struct tok_run *runs; /* what is tokenized: pieces of j.text and of `one` */
    uint32_t *tags;       /* [count] tag of each, when asked for */
    const uint32_t *run_tags; /* of the runs as they came; NULL: not asked for */
    uint32_t tag;             /* of what is added now */
    size_t count, cap;
    char *one; /* prefix + soft tokens + suffix */
    size_t one_len;
};

static enum status add_run(struct expansion *x, const char *text, size_t len, enum tok_control control, struct err *err)
{
    if (len == 0) return ST_OK;
    if (x->count == x->cap) {
        size_t cap = x->cap ? x->cap * 2 : 64;
        struct tok_run *n = realloc(x->runs, cap * sizeof *n);
        if (!n) return err_set(err, ST_NOMEM, "out of memory for a prompt");
        x->runs = n;
        if (x->run_tags) {
            uint32_t *tags = realloc(x->tags, cap * sizeof *tags);
            if (!tags) return err_set(err, ST_NOMEM, "out of memory for a prompt");
            x->tags = tags;
        }
        x->cap = cap;
    }
    if (x->tags) x->tags[x->count] = x->tag;
    x->runs[x->count++] = (struct tok_run){text, len, control};
    return ST_OK;
}

/* Bytes [a, b) of the text as they were, run by run. *r as in all_control. */
static enum status add_text(struct expansion *x, size_t a, size_t b, size_t *r, struct err *err)
{
    enum status st = ST_OK;
    const struct joined *j = &x->j;
    while (*r < j->run_count && j->first[*r + 1] <= a) (*r)++;
    for (size_t k = *r; k < j->run_count && j->first[k] < b && !st; k++) {
        size_t from = j->first[k] > a ? j->first[k] : a, to = j->first[k + 1] < b ? j->first[k + 1] : b;
        if (x->run_tags) x->tag = x->run_tags[k];
        if (to > from) st = add_run(x, j->text + from, to - from, j->runs[k].control, err);
    }
    return st;
}

static enum status add_literal(struct expansion *x, const char *s, struct err *err)
{
    return add_run(x, s, strlen(s), TOK_CONTROL_ALL, err);
}

static enum status add_picture(struct expansion *x, uint32_t images, struct err *err)
{
    enum status st = ST_OK;
    if (images > 1) st = add_literal(x, CROPS_BEFORE, err);
    for (uint32_t i = 0; i < images && !st; i++) {
        if (i == 1)
            st = add_literal(x, CROPS_BETWEEN, err);
        else if (i > 1)
            st = add_literal(x, " ", err);
        if (!st) st = add_run(x, x->one, x->one_len, TOK_CONTROL_ALL, err);
    }
    return st;
}

static enum status make_one(const struct model_image_rule *rule, struct expansion *x, struct err *err)
{
    struct buf b;
    buf_init(&b, EXPANSION_BYTES_MAX);
    enum status st = buf_adds(&b, rule->prefix);
    for (uint32_t i = 0; i < rule->tokens && !st; i++) st = buf_adds(&b, rule->soft);
    if (!st) st = buf_adds(&b, rule->suffix);
    if (st) {
        buf_fini(&b);
        return err_set(err, st, "out of memory for a picture's placeholder");
    }
    x->one = b.data;
    x->one_len = b.len;
    return ST_OK;
}

static enum status count_markers(const struct model_image_rule *rule, const struct joined *j, uint32_t pictures, struct err *err)
{
    uint64_t markers = 0;
    size_t r = 0, len = strlen(rule->marker);
    for (size_t at = 0; (at = next_control(j, rule->marker, at, &r)) != SIZE_MAX; at += len) markers++;
    if (markers != pictures)
        return err_set(err, ST_INVALID, "The prompt has %llu image placeholder%s (%s), but the request has %u image%s.",
                       (unsigned long long)markers, markers == 1 ? "" : "s", rule->marker, pictures, pictures == 1 ? "" : "s");
    r = 0;
    if (next_control(j, rule->soft, 0, &r) != SIZE_MAX)
        return err_set(err, ST_INVALID, "The prompt holds the token %s, which only images may bring.", rule->soft);
    return ST_OK;
}

static enum status expand(const struct model_image_rule *rule, const struct prompt_picture *pictures, uint32_t picture_count,
                          struct expansion *x, struct err *err)
{
    enum status st = count_markers(rule, &x->j, picture_count, err);
    if (!st) st = make_one(rule, x, err);
    size_t at = 0, find_run = 0, copy_run = 0, len = strlen(rule->marker);
    for (uint32_t k = 0; k < picture_count && !st; k++) {
        size_t hit = next_control(&x->j, rule->marker, at, &find_run); /* there are as many as pictures: counted above */
        st = add_text(x, at, hit, &copy_run, err);
        x->tag = PROMPT_TAG_PICTURE | k;
        if (!st) st = add_picture(x, pictures[k].count, err);
        at = hit + len;
    }
    return st ? st : add_text(x, at, x->j.len, &copy_run, err);
}

/* ---- spans ---- */

static uint32_t total_images(const struct prompt_picture *pictures, uint32_t picture_count, uint64_t *total)
{
    *total = 0;
    for (uint32_t k = 0; k < picture_count; k++) *total += pictures[k].count;
    return *total > PICTURES_MAX ? PICTURES_MAX + 1 : (uint32_t)*total;
}

/* Runs of the soft id become spans, in order; each must be as long as a picture has rows. */
static enum status find_spans(const struct model_image_rule *rule, struct prompt *p, uint32_t expected, struct err *err)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < p->token_count; i++) {
        if (p->tokens[i] != rule->soft_id) continue;
        uint32_t end = i;
        while (end < p->token_count && p->tokens[end] == rule->soft_id) end++;
        if (found == expected || end - i != rule->tokens)
            return err_set(err, ST_INVALID, "The tokenizer made %u placeholder tokens in a row where an image has %u.", end - i,
                           rule->tokens);
        p->images[found++] = (struct prompt_image){.begin = i, .end = end, .atomic = rule->atomic};
        i = end;
    }
    if (found != expected)
        return err_set(err, ST_INVALID, "The tokenizer made %u image places, the request has %u images.", found, expected);
    return ST_OK;
}

static void move_pixels(struct prompt *p, struct prompt_picture *pictures, uint32_t picture_count)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < picture_count; k++) {
        for (uint32_t i = 0; i < pictures[k].count; i++, n++) {
            if (pictures[k].images) {
                p->images[n].pixels = pictures[k].images[i];
                pictures[k].images[i].rgb = NULL;
            }
            memcpy(p->images[n].key, pictures[k].keys[i], sizeof p->images[n].key);
        }
    }
}

enum status prompt_check(const struct model_info *m, const struct prompt *p, struct err *err)
{
    uint32_t k = 0;
    if (p->token_count == 0) return err_set(err, ST_INVALID, "The prompt is empty.");
    for (uint32_t i = 0; i < p->token_count; i++) {
        while (k < p->image_count && p->images[k].end <= i) k++;
        if (k < p->image_count && i >= p->images[k].begin) continue;
        if (m->image.present && p->tokens[i] == m->image.soft_id)
            return err_set(err, ST_INVALID, "The prompt holds the image placeholder token %u outside of an image.", p->tokens[i]);
        if (p->tokens[i] >= m->vocab_size)
            return err_set(err, ST_INVALID, "Token id %u is not in the model's vocabulary (%u ids).", p->tokens[i],
                           m->vocab_size);
    }
    return ST_OK;
}

static void expansion_fini(struct expansion *x)
{
    free(x->runs);
    free(x->tags);
    free(x->one);
    free(x->j.text);
    free(x->j.first);
}

/* ---- the two ways to a prompt ---- */

enum status prompt_build(const struct model_info *m, const struct tokenizer *t, const struct tok_run *runs, size_t run_count,
                         bool add_special, struct prompt_picture *pictures, uint32_t picture_count, uint32_t token_max,
                         struct prompt *out, struct err *err)
{
    struct expansion x = {0};
    struct tok_ids ids = {0};
    struct prompt p = {0};
    uint64_t total;
    if (picture_count && !m->image.present) return err_set(err, ST_INVALID, "This model takes no images.");
    uint32_t images = total_images(pictures, picture_count, &total);
    if (images > PICTURES_MAX)
        return err_set(err, ST_TOO_LARGE, "%llu images and crops, at most %u are taken.", (unsigned long long)total,
                       PICTURES_MAX);
    if ((uint64_t)images * m->image.tokens > token_max)
        return err_set(err, ST_TOO_LARGE, "%u images take %llu tokens, the limit is %u.", images,
                       (unsigned long long)images * m->image.tokens, token_max);
    enum status st = join(runs, run_count, &x.j, err);
    if (st) return st;
    if (m->image.present) st = expand(&m->image, pictures, picture_count, &x, err);
    if (!st)
        st = tok_encode(t, m->image.present ? x.runs : runs, m->image.present ? x.count : run_count, add_special, token_max, &ids,
                        err);
    if (!st && ids.count > UINT32_MAX) st = err_set(err, ST_TOO_LARGE, "%zu tokens are too many.", ids.count);
    if (!st) {
        p = (struct prompt){.tokens = ids.ids, .token_count = (uint32_t)ids.count};
        ids.ids = NULL;
        if (images && !(p.images = calloc(images, sizeof *p.images)))
            st = err_set(err, ST_NOMEM, "out of memory for %u images", images);
    }
    if (!st && m->image.present) {
        p.image_count = images;
        st = find_spans(&m->image, &p, images, err);
    }
    if (!st) st = prompt_check(m, &p, err);
    if (st) {
        prompt_free(&p); /* holds no pixels yet */
    } else {
        move_pixels(&p, pictures, picture_count);
        *out = p;
    }
    tok_ids_free(&ids);
    expansion_fini(&x);
    return st;
}

/* ---- where tokens came from ---- */

/* The expanded text, and how far the tokens' bytes have been laid along it. */
struct trail {
    const struct tokenizer *t;
    const struct prompt *p;
    char *text;
    size_t len, at;
    size_t *ends; /* [count] of the expansion's runs */
    size_t run;   /* that holds `at`, or an earlier one */
};

static bool fits(const struct trail *r, size_t at, uint32_t token)
{
    size_t n;
    const char *s = tok_bytes(r->t, r->p->tokens[token], &n);
    return n && n <= r->len - at && memcmp(r->text + at, s, n) == 0;
}

/* Length of the text that token i stands for, from r->at on, which may move over text that no token shows. */
static size_t take(struct trail *r, uint32_t i)
{
    enum { WINDOW = 256 };
    size_t n;
    const char *s = tok_bytes(r->t, r->p->tokens[i], &n);
    if (!n) return 0;
    if (fits(r, r->at, i)) return n;
    /* A blank that the tokenizer put in front. */
    if (n > 1 && s[0] == ' ' && n - 1 <= r->len - r->at && memcmp(r->text + r->at, s + 1, n - 1) == 0) return n - 1;
    for (size_t at = r->at + 1; at < r->len && at <= r->at + WINDOW; at++) {
        if (!fits(r, at, i)) continue;
        if (i + 1 < r->p->token_count && at + n < r->len && !fits(r, at + n, i + 1)) continue; /* two in a row, or it is chance */
        r->at = at;
        return n;
    }
    return 0; /* stands for nothing that is seen: BOS, a normalised or repaired character */
}

static enum status trail_init(struct trail *r, const struct expansion *x, struct err *err)
{
    r->ends = malloc((x->count ? x->count : 1) * sizeof *r->ends);
    for (size_t k = 0; r->ends && k < x->count; k++) r->ends[k] = r->len += x->runs[k].len;
    r->text = r->ends ? malloc(r->len ? r->len : 1) : NULL;
    if (!r->text) return err_set(err, ST_NOMEM, "out of memory for a text of %zu bytes", r->len);
    for (size_t k = 0; k < x->count; k++) memcpy(r->text + r->ends[k] - x->runs[k].len, x->runs[k].text, x->runs[k].len);
    return ST_OK;
}

/* One entry per stretch of equal tags. */
static enum status trail_walk(struct trail *r, const struct expansion *x, struct prompt_origin **out, size_t *count, struct err *err)
{
    struct prompt_origin *list = NULL;
    size_t n = 0, cap = 0;
    for (uint32_t i = 0; i < r->p->token_count; i++) {
        size_t len = take(r, i), end = r->at + (len ? len : 1);
        while (r->run < x->count && r->ends[r->run] <= r->at) r->run++;
        uint32_t tag = r->run < x->count ? x->tags[r->run] : 0;
        for (size_t k = r->run; !tag && len && k < x->count && (k == r->run || r->ends[k - 1] < end); k++) tag = x->tags[k];
        r->at += len;
        if (n && list[n - 1].tag == tag) continue;
        if (n == cap) {
            cap = cap ? 2 * cap : 32;
            struct prompt_origin *more = realloc(list, cap * sizeof *more);
            if (!more) {
                free(list);
                return err_set(err, ST_NOMEM, "out of memory for the origins of a prompt");
            }
            list = more;
        }
        list[n++] = (struct prompt_origin){.token = i, .tag = tag};
    }
    *out = list;
    *count = n;
    return ST_OK;
}

enum status prompt_origins(const struct model_info *m, const struct tokenizer *t, const struct tok_run *runs, const uint32_t *tags,
                           size_t run_count, const struct prompt_picture *pictures, uint32_t picture_count, const struct prompt *p,
                           struct prompt_origin **out, size_t *count, struct err *err)
{
    struct expansion x = {.run_tags = tags};
    struct trail r = {.t = t, .p = p};
    enum status st = join(runs, run_count, &x.j, err);
    if (st) return st;
    size_t first = 0;
    st = m->image.present ? expand(&m->image, pictures, picture_count, &x, err) : add_text(&x, 0, x.j.len, &first, err);
    if (!st) st = trail_init(&r, &x, err);
    if (!st) st = trail_walk(&r, &x, out, count, err);
    free(r.text);
    free(r.ends);
    expansion_fini(&x);
    return st;
}

enum status prompt_from_ids(const struct model_info *m, const uint32_t *ids, size_t count, uint32_t token_max, struct prompt *out,
                            struct err *err)
{
    if (count > token_max) return err_set(err, ST_TOO_LARGE, "The prompt has %zu tokens, the limit is %u.", count, token_max);
    struct prompt p = {.tokens = malloc(count ? count * sizeof *p.tokens : 1), .token_count = (uint32_t)count};
    if (!p.tokens) return err_set(err, ST_NOMEM, "out of memory for %zu tokens", count);
    if (count) memcpy(p.tokens, ids, count * sizeof *p.tokens);
    enum status st = prompt_check(m, &p, err);
    if (st)
        prompt_free(&p);
    else
        *out = p;
    return st;
}
