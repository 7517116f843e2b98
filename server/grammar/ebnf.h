/* Shared by GBNF and Lark: rules over alternatives, sequences, groups and repetitions. A dialect parses atoms
 * and definitions; ebnf.c does the rest: everything non-recursive and not large becomes one regular
 * expression, because those are fast and have few states. Internal to server/grammar/. */
#ifndef KVASIR_EBNF_H
#define KVASIR_EBNF_H

#include "server/grammar/build.h"

typedef uint32_t enode; /* a parsed expression; 0: syntax error, see ebnf.st */

struct ebnf_part { /* a translated expression: regular, or `g` */
    bool regular;
    rx r;
    gx g;
    uint32_t size; /* of a regular expression, roughly */
};

struct ebnf;
struct ebnf_dialect {
    const char *start;                     /* the start rule */
    const char *comments[2];               /* comment markers; comments end with the line */
    bool (*defines)(const struct ebnf *e); /* does a definition (or directive) begin here? */
    enode (*atom)(struct ebnf *e);
};

struct ebnf {
    struct grammar_builder *b;
    struct rx_pool *p;
    const struct ebnf_dialect *dialect;
    const char *s;
    size_t len, at;
    struct grammar_error *error;
    enum status st;
    struct ebnf_node *nodes;
    uint32_t node_count;
    struct ebnf_rule *rules;
    uint32_t rule_count;
    size_t node_cap, rule_cap;
    json_t *names;    /* rule name -> number */
    enode ignored;    /* may follow each token of a rule (%ignore); 0: nothing */
    bool in_json;     /* the text is inside a JSON string */
    bool in_terminal; /* inside a terminal, which has no tokens */
    struct ebnf_part gap;
    unsigned depth;
};

enode ebnf_refuse(struct ebnf *e, enum status st, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
enode ebnf_nomem(struct ebnf *e);
bool ebnf_has(const struct ebnf *e, const char *text); /* does it follow? */
bool ebnf_take(struct ebnf *e, const char *text);      /* consumes it if it follows */
size_t ebnf_space(const struct ebnf *e, size_t at);    /* the position after white space and comments */
size_t ebnf_name(const struct ebnf *e, size_t at);     /* the position after a name; at: there is none */
uint32_t ebnf_number(struct ebnf *e);
uint32_t ebnf_char(struct ebnf *e); /* a character, possibly escaped */

enode ebnf_regex(struct ebnf *e, rx a, size_t size);
enode ebnf_token(struct ebnf *e, enode x); /* x, followed by what is ignored */
enode ebnf_either(struct ebnf *e, enode a, enode b);
enode ebnf_repeat(struct ebnf *e, enode x, uint32_t min, uint32_t max);
enode ebnf_rule(struct ebnf *e, size_t from, size_t to); /* by its name, s[from..to) */
void ebnf_define(struct ebnf *e, enode rule, enode body);
enode ebnf_string(struct ebnf *e, bool any_case); /* "..." */
enode ebnf_alternatives(struct ebnf *e);
enode ebnf_group(struct ebnf *e, const char *close); /* after its opening bracket */

bool ebnf_open(struct ebnf *e);
gx ebnf_compile(struct ebnf *e);
void ebnf_close(struct ebnf *e);

enum status ebnf_read_lark(struct ebnf *e); /* lark.c */
enum status ebnf_read_gbnf(struct ebnf *e); /* gbnf.c */

#endif
