/* See stop_match.h. Nodes of the automaton are full goto tables of 256 entries: at most 16 strings of 1,024
 * bytes are allowed, and the usual stop string has three. */
#include "server/chat/stop_match.h"

#include "config/base/checked.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

struct node {
    uint32_t next[256];
    uint32_t fail, depth;
    uint32_t which; /* longest string that ends here, or NONE */
    uint32_t which_len;
};
struct stop_set {
    struct node *nodes;
    uint32_t count;
};

static void links_build(struct stop_set *s, uint32_t *queue)
{
    /* Breadth first: a node's failure link is nearer the root and complete before the node is reached.
     */
    size_t head = 0, tail = 0;
    for (int c = 0; c < 256; c++) {
        uint32_t n = s->nodes[0].next[c];
        if (n == NONE) {
            s->nodes[0].next[c] = 0;
        } else {
            s->nodes[n].fail = 0;
            queue[tail++] = n;
        }
    }
    while (head < tail) {
        uint32_t at = queue[head++];
        struct node *node = &s->nodes[at], *fail = &s->nodes[node->fail];
        if (node->which == NONE) { /* a string that ends in a shorter suffix also completes here */
            node->which = fail->which;
            node->which_len = fail->which_len;
        }
        for (int c = 0; c < 256; c++) {
            uint32_t n = node->next[c];
            if (n == NONE) {
                node->next[c] = fail->next[c];
            } else {
                s->nodes[n].fail = fail->next[c];
                queue[tail++] = n;
            }
        }
    }
}

enum status stop_set_create(const struct stop_string *strings, size_t count, struct stop_set **out)
{
    size_t nodes_max = 1, bytes;
    for (size_t i = 0; i < count; i++) {
        if (!strings[i].len) return ST_INVALID;
        if (add_overflows(nodes_max, strings[i].len, &nodes_max)) return ST_NOMEM;
    }
    if (nodes_max >= NONE || mul_overflows(nodes_max, sizeof(struct node), &bytes)) return ST_NOMEM;
    struct stop_set *s = calloc(1, sizeof *s);
    uint32_t *queue = calloc(nodes_max, sizeof *queue);
    if (s) s->nodes = malloc(bytes);
    if (!s || !queue || !s->nodes) {
        stop_set_free(s);
        free(queue);
        return ST_NOMEM;
    }
    memset(s->nodes, 0xFF, bytes); /* every next and which is NONE */
    s->nodes[0].fail = 0;
    s->nodes[0].depth = 0;
    s->count = 1;
    for (size_t i = 0; i < count; i++) {
        uint32_t at = 0;
        for (size_t k = 0; k < strings[i].len; k++) {
            uint32_t *next = &s->nodes[at].next[(unsigned char)strings[i].text[k]];
            if (*next == NONE) {
                s->nodes[s->count].depth = s->nodes[at].depth + 1;
                *next = s->count++;
            }
            at = *next;
        }
        if (s->nodes[at].which == NONE) {
            s->nodes[at].which = (uint32_t)i;
            s->nodes[at].which_len = (uint32_t)strings[i].len;
        }
    }
    links_build(s, queue);
    free(queue);
    *out = s;
    return ST_OK;
}

void stop_set_free(struct stop_set *s)
{
    if (!s) return;
    free(s->nodes);
    free(s);
}

struct stop_hit stop_feed(const struct stop_set *s, struct stop_state *st, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        st->node = s->nodes[st->node].next[(unsigned char)text[i]];
        const struct node *n = &s->nodes[st->node];
        if (n->which != NONE)
            return (struct stop_hit){.found = true, .which = n->which, .end = i + 1, .len = n->which_len};
    }
    return (struct stop_hit){0};
}

size_t stop_held(const struct stop_set *s, const struct stop_state *st)
{
    return s->nodes[st->node].depth;
}
