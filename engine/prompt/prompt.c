/* See prompt.h and prompt_build.h. */
#include "engine/prompt/prompt_build.h"

#include "config/base/checked.h"
#include "config/base/list.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPANSION_BYTES_MAX ((size_t)64 << 20)
#define IMAGES_MAX          4096u
#define POSITIONS_MAX       (1 << 24) /* a rope position is exact as float32 up to here */

void prompt_free(struct prompt *p)
{
    for (uint32_t i = 0; i < p->span_count; i++) free(p->spans[i].pixels.rgb);
    free(p->spans);
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

/* Whether all bytes of [a, b) allow every control token. *r is a run at or before a; it moves forward with
 * a. */
static bool all_control(const struct joined *j, size_t a, size_t b, size_t *r)
{
    while (*r < j->run_count && j->first[*r + 1] <= a) (*r)++;
    for (size_t k = *r; k < j->run_count && j->first[k] < b; k++)
        if (j->first[k + 1] > j->first[k] && j->runs[k].control != TOK_CONTROL_ALL) return false;
    return true;
}

/* Next occurrence of `what` from `at` on that is wholly in template text; SIZE_MAX if none. */
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

/* The kind of a marker. */
enum mark { MARK_NONE, MARK_IMAGE, MARK_VIDEO, MARK_STRAY };
struct mark_at {
    enum mark kind;
    size_t at, len;
    const char *text; /* of the marker or the stray token */
};

static size_t len_of(const char *s)
{
    return s ? strlen(s) : 0;
}

/* Walks over the markers of images and videos, and over placeholder tokens that are no markers. A marker may
 * be the placeholder token itself, or contain it. Every string is searched only once, however often the
 * others occur. */
struct mark_scan {
    const struct joined *j;
    struct {
        const char *text;
        enum mark kind;
        size_t hit, run; /* SIZE_MAX: none is left; run as in all_control */
    } marks[4];
};

static struct mark_scan mark_scan(const struct model_image_rule *rule, const struct joined *j)
{
    struct mark_scan s = {
        .j = j,
        .marks = {{.text = rule->marker, .kind = MARK_IMAGE},
                  {.text = rule->video_marker, .kind = MARK_VIDEO},
                  {.text = rule->placeholder, .kind = MARK_STRAY},
                  {.text = rule->video_marker ? rule->video_placeholder : NULL, .kind = MARK_STRAY}}};
    for (size_t i = 0; i < 4; i++)
        s.marks[i].hit =
            len_of(s.marks[i].text) ? next_control(j, s.marks[i].text, 0, &s.marks[i].run) : SIZE_MAX;
    return s;
}

/* The first one from `at` on; `at` never decreases. */
static struct mark_at next_mark(struct mark_scan *s, size_t at)
{
    struct mark_at best = {.kind = MARK_NONE, .at = SIZE_MAX};
    for (size_t i = 0; i < 4; i++) {
        if (s->marks[i].hit < at)
            s->marks[i].hit = next_control(s->j, s->marks[i].text, at, &s->marks[i].run);
        if (s->marks[i].hit < best.at)
            best = (struct mark_at){s->marks[i].kind, s->marks[i].hit, strlen(s->marks[i].text),
                                    s->marks[i].text};
    }
    return best;
}

/* ---- expansion ---- */

struct expansion {
    struct joined j;
    struct tok_run *runs;     /* what is tokenized: parts of j.text and of the strings below */
    uint32_t *tags;           /* [count] tag of each, if requested */
    const uint32_t *run_tags; /* of the input runs; NULL: not requested */
    uint32_t tag;             /* of the text being added */
    size_t count, cap;
    char *placeholder[2]; /* of images and of videos: as many placeholder tokens as the largest has */
    char *written;        /* slots of MODEL_TEXT_BYTES, for what a family writes */
    size_t written_count; /* of them used */
};

static enum status add_run(struct expansion *x, const char *text, size_t len, enum tok_control control,
                           struct err *err)
{
    if (len == 0) return ST_OK;
    size_t cap = x->cap;
    if ((x->run_tags && !LIST_RESERVE(x->tags, cap, x->count + 1)) ||
        !LIST_RESERVE(x->runs, x->cap, x->count + 1))
        return err_nomem(err, "a prompt");
    if (x->tags) x->tags[x->count] = x->tag;
    x->runs[x->count++] = (struct tok_run){text, len, control};
    return ST_OK;
}

/* Adds bytes [a, b) of the text unchanged, run by run. *r as in all_control. */
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
    return add_run(x, s, len_of(s), TOK_CONTROL_ALL, err);
}

/* Placeholder tokens of image i of an image. */
static uint64_t token_count(const struct model_image_rule *rule, const struct prompt_image *p, uint32_t i)
{
    if (rule->tokens && !p->video) return rule->tokens;
    const struct prompt_grid *g = p->grids ? &p->grids[i] : &(struct prompt_grid){0};
    uint64_t n;
    return __builtin_mul_overflow((uint64_t)g->t, g->h, &n) || __builtin_mul_overflow(n, g->w, &n)
               ? UINT64_MAX
               : n;
}

/* Breaks between the rows of image i. */
static uint32_t break_count(const struct model_image_rule *rule, const struct prompt_image *p, uint32_t i)
{
    return rule->row_break ? p->grids[i].h - 1 : 0;
}

/* The time of a group of frames, or the layout around image i. */
static enum status add_written(const struct model_image_rule *rule, struct expansion *x,
                               const struct prompt_image *p, uint32_t i, struct err *err)
{
    char *slot = x->written + x->written_count++ * MODEL_TEXT_BYTES;
    int n = p->video ? rule->video_stamp(slot, p->stamps[i])
                     : rule->layout(slot, &(struct image_place){i, p->count, p->rows, p->columns,
                                                                x->tag & ~PROMPT_TAG_IMAGE});
    if (n < 0 || (size_t)n >= MODEL_TEXT_BYTES)
        return err_set(err, ST_INVALID, "The time of a frame is out of range.");
    return add_run(x, slot, (size_t)n, TOK_CONTROL_ALL, err);
}

/* For each image what the family writes before it, prefix, placeholder tokens, suffix. */
static enum status add_image(const struct model_image_rule *rule, struct expansion *x,
                             const struct prompt_image *p, struct err *err)
{
    const char *prefix = p->video ? rule->video_prefix : rule->prefix,
               *suffix = p->video ? rule->video_suffix : rule->suffix;
    size_t placeholder = strlen(p->video ? rule->video_placeholder : rule->placeholder);
    bool layout = !p->video && rule->layout;
    enum status st = ST_OK;
    for (uint32_t i = 0; i < p->count && !st; i++) {
        if (p->video && i && rule->video_between) st = add_literal(x, rule->video_between, err);
        if (!st && (layout || (p->video && rule->video_stamp))) st = add_written(rule, x, p, i, err);
        if (prefix && !st) st = add_literal(x, prefix, err);
        uint32_t rows = break_count(rule, p, i) + 1;
        size_t row = (size_t)token_count(rule, p, i) / rows * placeholder;
        for (uint32_t y = 0; y < rows && !st; y++) {
            if (y) st = add_literal(x, rule->row_break, err);
            if (!st) st = add_run(x, x->placeholder[p->video], row, TOK_CONTROL_ALL, err);
        }
        if (suffix && !st) st = add_literal(x, suffix, err);
    }
    return layout && !st ? add_written(rule, x, p, p->count, err) : st;
}

/* The strings that images add. check_images has checked their sizes. */
static enum status make_texts(const struct model_image_rule *rule, const struct prompt_image *images,
                              uint32_t image_count, struct expansion *x, struct err *err)
{
    uint64_t most[2] = {0, 0}, written = 0;
    for (uint32_t k = 0; k < image_count; k++) {
        const struct prompt_image *p = &images[k];
        for (uint32_t i = 0; i < p->count; i++) {
            uint64_t n = token_count(rule, p, i);
            if (n > most[p->video]) most[p->video] = n;
        }
        if (p->video ? rule->video_stamp != NULL : rule->layout != NULL) written += p->count + 1;
    }
    for (int v = 0; v < 2; v++) {
        const char *placeholder = v ? rule->video_placeholder : rule->placeholder;
        size_t len = len_of(placeholder), bytes;
        if (!most[v]) continue;
        if (mul_overflows((size_t)most[v], len, &bytes) || bytes > EXPANSION_BYTES_MAX)
            return err_set(err, ST_TOO_LARGE, "An image of %llu tokens is too large.",
                           (unsigned long long)most[v]);
        x->placeholder[v] = malloc(bytes ? bytes : 1);
        for (size_t i = 0; x->placeholder[v] && i < most[v]; i++)
            memcpy(x->placeholder[v] + i * len, placeholder, len);
        if (!x->placeholder[v]) return err_nomem(err, "an image's placeholder");
    }
    if (written && !(x->written = malloc((size_t)written * MODEL_TEXT_BYTES)))
        return err_nomem(err, "the text around images");
    return ST_OK;
}

static enum status count_markers(const struct model_image_rule *rule, const struct joined *j,
                                 const struct prompt_image *images, uint32_t image_count, struct err *err)
{
    uint64_t found[2] = {0, 0}, wanted[2] = {0, 0};
    struct mark_scan scan = mark_scan(rule, j);
    bool in_order = true;
    uint32_t k = 0;
    struct mark_at m;
    for (uint32_t i = 0; i < image_count; i++) wanted[images[i].video]++;
    for (size_t at = 0; (m = next_mark(&scan, at)).kind != MARK_NONE; at = m.at + m.len) {
        bool video = m.kind == MARK_VIDEO;
        if (m.kind == MARK_STRAY)
            return err_set(err, ST_INVALID, "The prompt holds the token %s, which only images may bring.",
                           m.text);
        found[video]++;
        in_order = in_order && k < image_count && images[k].video == video;
        k++;
    }
    for (int v = 0; v < 2; v++) {
        const char *what = v ? "video" : "image";
        if (found[v] != wanted[v])
            return err_set(err, ST_INVALID,
                           "The prompt has %llu %s placeholder%s (%s), but the request has %llu %s%s.",
                           (unsigned long long)found[v], what, found[v] == 1 ? "" : "s",
                           v ? rule->video_marker : rule->marker, (unsigned long long)wanted[v], what,
                           wanted[v] == 1 ? "" : "s");
    }
    return in_order ? ST_OK
                    : err_set(err, ST_INVALID,
                              "The chat template puts images and videos in another order than the request.");
}

static enum status expand(const struct model_image_rule *rule, const struct prompt_image *images,
                          uint32_t image_count, struct expansion *x, struct err *err)
{
    enum status st = count_markers(rule, &x->j, images, image_count, err);
    if (!st) st = make_texts(rule, images, image_count, x, err);
    struct mark_scan scan = mark_scan(rule, &x->j);
    size_t at = 0, copy_run = 0;
    for (uint32_t k = 0; k < image_count && !st; k++) {
        struct mark_at m = next_mark(&scan, at); /* as many as images: counted above */
        st = add_text(x, at, m.at, &copy_run, err);
        x->tag = PROMPT_TAG_IMAGE | k;
        if (!st) st = add_image(rule, x, &images[k], err);
        at = m.at + m.len;
    }
    if (!st && image_count && rule->behind_last) st = add_literal(x, rule->behind_last, err);
    if (!st) st = add_text(x, at, x->j.len, &copy_run, err);
    x->tag = 0;
    return !st && image_count && rule->end ? add_literal(x, rule->end, err) : st;
}

/* ---- spans ---- */

/* Checks the images before anything is built. *slots: how many markers they take. */
static enum status check_images(const struct model_image_rule *rule, const struct prompt_image *images,
                                uint32_t image_count, uint32_t token_max, uint32_t *slots, struct err *err)
{
    uint64_t count = 0, tokens = 0;
    if (image_count && !rule->present) return err_set(err, ST_INVALID, "This model takes no images.");
    for (uint32_t k = 0; k < image_count; k++) {
        if (images[k].video && !rule->video_marker)
            return err_set(err, ST_INVALID, "This model takes no videos.");
        count += images[k].count;
    }
    if (count > IMAGES_MAX)
        return err_set(err, ST_TOO_LARGE, "%llu images and crops, at most %u are taken.",
                       (unsigned long long)count, IMAGES_MAX);
    for (uint32_t k = 0; k < image_count; k++) {
        if (images[k].video && rule->video_stamp && !images[k].stamps)
            return err_set(err, ST_INVALID, "A video's frames have no times.");
        for (uint32_t i = 0; i < images[k].count; i++) {
            uint64_t n = token_count(rule, &images[k], i);
            if (!n) return err_set(err, ST_INVALID, "An image has no tokens.");
            if (n > token_max) n = (uint64_t)token_max + 1; /* 4,096 of them can't overflow */
            tokens += n;
        }
    }
    if (tokens > token_max)
        return err_set(err, ST_TOO_LARGE, "%llu image%s take more than the limit of %u tokens.",
                       (unsigned long long)count, count == 1 ? "" : "s", token_max);
    *slots = (uint32_t)count;
    return ST_OK;
}

static bool is_placeholder(const struct model_image_rule *rule, uint32_t token, bool *video)
{
    *video = rule->video_marker && token == rule->video_placeholder_id;
    return *video || token == rule->placeholder_id;
}

/* Assigns placeholder tokens to images in order: the images' lengths are known, so adjacent ones need no text
 * between them. */
static enum status find_spans(const struct model_image_rule *rule, const struct prompt_image *images,
                              uint32_t image_count, struct prompt *p, struct err *err)
{
    uint32_t at = 0, found = 0;
    bool video;
    for (uint32_t k = 0; k < image_count; k++) {
        for (uint32_t i = 0; i < images[k].count; i++) {
            struct prompt_grid grid = images[k].grids ? images[k].grids[i] : (struct prompt_grid){0};
            uint32_t want = (uint32_t)token_count(rule, &images[k], i) + break_count(rule, &images[k], i),
                     n = 0;
            grid.breaks = rule->row_break != NULL;
            while (at < p->token_count && !is_placeholder(rule, p->tokens[at], &video)) at++;
            while (n < want && at + n < p->token_count &&
                   is_placeholder(rule, p->tokens[at + n], &video) != prompt_grid_break(&grid, n) &&
                   video == images[k].video)
                n++;
            if (n != want)
                return err_set(err, ST_INVALID,
                               "The tokenizer made %u placeholder tokens in a row where an image has %u.", n,
                               want);
            p->spans[found] = span_of_image(at, at + n, rule->rule);
            if (rule->grid || rule->row_break) p->spans[found].grid = grid;
            found++;
            at += n;
        }
    }
    for (; at < p->token_count; at++)
        if (is_placeholder(rule, p->tokens[at], &video))
            return err_set(err, ST_INVALID,
                           "The tokenizer made more placeholder tokens than the request's %u images have.",
                           found);
    return ST_OK;
}

/* The left-to-right scan of models with mRoPE: `next` is the rope position of the token at index `at`. After
 * a video it also skips the video's time, as in the training code, vLLM and transformers 4; transformers 5.23
 * uses only max(h, w), so that the text after a long video has the positions of the video's later frames. */
static enum status set_offsets(const struct model_image_rule *rule, struct prompt *p, struct err *err)
{
    int64_t next = 0;
    uint32_t at = 0;
    for (uint32_t k = 0; rule->grid && k < p->span_count; k++) {
        struct prompt_span *m = &p->spans[k];
        double last = floor((double)(m->grid.t - 1) * m->grid.seconds);
        if (!(last >= 0.0) || last > POSITIONS_MAX)
            return err_set(err, ST_INVALID, "A video is too long for the model's positions.");
        int64_t span = prompt_grid_time(&m->grid, m->grid.t - 1);
        if (span < (int64_t)m->grid.h - 1) span = (int64_t)m->grid.h - 1;
        if (span < (int64_t)m->grid.w - 1) span = (int64_t)m->grid.w - 1;
        next += (int64_t)(m->begin - at) + span + 1;
        at = m->end;
        if (next > POSITIONS_MAX)
            return err_set(err, ST_INVALID, "The videos are too long for the model's positions.");
        m->mrope_delta = (int32_t)(next - (int64_t)at); /* next in 0..2^24, at in 0..2^31-1 */
    }
    return ST_OK;
}

static void copy_keys(struct prompt *p, const struct prompt_image *images, uint32_t image_count)
{
    for (uint32_t k = 0, n = 0; k < image_count; k++)
        for (uint32_t i = 0; i < images[k].count; i++, n++)
            memcpy(p->spans[n].key, images[k].keys[i], sizeof p->spans[n].key);
}

static void move_pixels(struct prompt *p, struct prompt_image *images, uint32_t image_count)
{
    struct prompt_span *s = p->spans;
    for (uint32_t k = 0; k < image_count; k++) {
        for (uint32_t i = 0; i < images[k].count; i++, s++) {
            while (!s->image) s++;
            if (!images[k].images) continue;
            s->pixels = images[k].images[i];
            images[k].images[i].rgb = NULL;
        }
    }
}

enum status prompt_apply_rule(const struct model_info *m, struct prompt *p, struct err *err)
{
    return m->image.rule == SPAN_PREFIX_LM ? prompt_prefix_lm(p, err) : ST_OK;
}

enum status prompt_check(const struct model_info *m, const struct prompt *p, struct err *err)
{
    uint32_t k = 0;
    if (p->token_count == 0) return err_set(err, ST_INVALID, "The prompt is empty.");
    for (uint32_t i = 0; i < p->token_count; i++) {
        while (k < p->span_count && p->spans[k].end <= i) k++;
        if (k < p->span_count && i >= p->spans[k].begin && p->spans[k].image &&
            !prompt_grid_break(&p->spans[k].grid, i - p->spans[k].begin))
            continue;
        bool video;
        if (m->image.present && is_placeholder(&m->image, p->tokens[i], &video))
            return err_set(err, ST_INVALID,
                           "The prompt holds the image placeholder token %u outside of an image.",
                           p->tokens[i]);
        if (p->tokens[i] >= m->vocab_size)
            return err_set(err, ST_INVALID, "Token id %u is not in the model's vocabulary (%u ids).",
                           p->tokens[i], m->vocab_size);
    }
    return ST_OK;
}

static void expansion_fini(struct expansion *x)
{
    free(x->runs);
    free(x->tags);
    free(x->placeholder[0]);
    free(x->placeholder[1]);
    free(x->written);
    free(x->j.text);
    free(x->j.first);
}

/* ---- the prompt ---- */

enum status prompt_build(const struct model_info *m, const struct tokenizer *t, const struct tok_run *runs,
                         size_t run_count, bool add_special, struct prompt_image *images,
                         uint32_t image_count, uint32_t token_max, struct prompt *out, struct err *err)
{
    struct expansion x = {0};
    struct tok_ids ids = {0};
    struct prompt p = {0};
    uint32_t slots = 0;
    enum status st = check_images(&m->image, images, image_count, token_max, &slots, err);
    if (!st) st = join(runs, run_count, &x.j, err);
    if (st) return st;
    if (m->image.present) st = expand(&m->image, images, image_count, &x, err);
    if (!st)
        st = tok_encode(t, m->image.present ? x.runs : runs, m->image.present ? x.count : run_count,
                        add_special, token_max, &ids, err);
    if (!st && ids.count > UINT32_MAX) st = err_set(err, ST_TOO_LARGE, "%zu tokens are too many.", ids.count);
    if (!st) {
        p = (struct prompt){.tokens = ids.ids, .token_count = (uint32_t)ids.count};
        ids.ids = NULL;
        if (slots && !(p.spans = calloc(slots, sizeof *p.spans)))
            st = err_set(err, ST_NOMEM, "out of memory for %u images", slots);
    }
    if (!st && m->image.present) {
        p.span_count = slots;
        st = find_spans(&m->image, images, image_count, &p, err);
        if (!st) st = set_offsets(&m->image, &p, err);
    }
    if (!st) st = prompt_check(m, &p, err);
    if (!st) copy_keys(&p, images, image_count);
    if (!st) st = prompt_apply_rule(m, &p, err);
    if (st) {
        prompt_free(&p); /* holds no pixels yet */
    } else {
        move_pixels(&p, images, image_count);
        *out = p;
    }
    tok_ids_free(&ids);
    expansion_fini(&x);
    return st;
}

/* ---- where tokens came from ---- */

/* The expanded text, and how far the tokens' bytes are aligned with it. */
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

/* Length of the text of token i, from r->at on, which may skip text that no token has. */
static size_t take(struct trail *r, uint32_t i)
{
    enum { WINDOW = 256 };
    size_t n;
    const char *s = tok_bytes(r->t, r->p->tokens[i], &n);
    if (!n) return 0;
    if (fits(r, r->at, i)) return n;
    /* A space that the tokenizer prepended. */
    if (n > 1 && s[0] == ' ' && n - 1 <= r->len - r->at && memcmp(r->text + r->at, s + 1, n - 1) == 0)
        return n - 1;
    for (size_t at = r->at + 1; at < r->len && at <= r->at + WINDOW; at++) {
        if (!fits(r, at, i)) continue;
        if (i + 1 < r->p->token_count && at + n < r->len && !fits(r, at + n, i + 1))
            continue; /* two in a row, else it may be chance */
        r->at = at;
        return n;
    }
    return 0; /* no visible text: BOS, a normalised or repaired character */
}

static enum status trail_init(struct trail *r, const struct expansion *x, struct err *err)
{
    r->ends = malloc((x->count ? x->count : 1) * sizeof *r->ends);
    for (size_t k = 0; r->ends && k < x->count; k++) r->ends[k] = r->len += x->runs[k].len;
    r->text = r->ends ? malloc(r->len ? r->len : 1) : NULL;
    if (!r->text) return err_set(err, ST_NOMEM, "out of memory for a text of %zu bytes", r->len);
    for (size_t k = 0; k < x->count; k++)
        memcpy(r->text + r->ends[k] - x->runs[k].len, x->runs[k].text, x->runs[k].len);
    return ST_OK;
}

/* One entry per run of equal tags. */
static enum status trail_walk(struct trail *r, const struct expansion *x, struct prompt_origin **out,
                              size_t *count, struct err *err)
{
    struct prompt_origin *list = NULL;
    size_t n = 0, cap = 0;
    for (uint32_t i = 0; i < r->p->token_count; i++) {
        size_t len = take(r, i), end = r->at + (len ? len : 1);
        while (r->run < x->count && r->ends[r->run] <= r->at) r->run++;
        uint32_t tag = r->run < x->count ? x->tags[r->run] : 0;
        for (size_t k = r->run; !tag && len && k < x->count && (k == r->run || r->ends[k - 1] < end); k++)
            tag = x->tags[k];
        r->at += len;
        if (n && list[n - 1].tag == tag) continue;
        if (!LIST_RESERVE(list, cap, n + 1)) {
            free(list);
            return err_nomem(err, "the origins of a prompt");
        }
        list[n++] = (struct prompt_origin){.token = i, .tag = tag};
    }
    *out = list;
    *count = n;
    return ST_OK;
}

enum status prompt_origins(const struct model_info *m, const struct tokenizer *t, const struct tok_run *runs,
                           const uint32_t *tags, size_t run_count, const struct prompt_image *images,
                           uint32_t image_count, const struct prompt *p, struct prompt_origin **out,
                           size_t *count, struct err *err)
{
    struct expansion x = {.run_tags = tags};
    struct trail r = {.t = t, .p = p};
    uint32_t slots;
    enum status st = check_images(&m->image, images, image_count, p->token_count, &slots, err);
    if (!st) st = join(runs, run_count, &x.j, err);
    if (st) return st;
    size_t first = 0;
    st = m->image.present ? expand(&m->image, images, image_count, &x, err)
                          : add_text(&x, 0, x.j.len, &first, err);
    if (!st) st = trail_init(&r, &x, err);
    if (!st) st = trail_walk(&r, &x, out, count, err);
    free(r.text);
    free(r.ends);
    expansion_fini(&x);
    return st;
}
