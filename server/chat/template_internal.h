/* Shared by server/template*.c: a template and its detected capabilities. */
#ifndef KVASIR_TEMPLATE_INTERNAL_H
#define KVASIR_TEMPLATE_INTERNAL_H

#include "config/base/buf.h"
#include "server/chat/template.h"

struct template_variant {
    struct jinja_template *jinja; /* NULL: none */
    char *source;                 /* owned, not terminated: for template_guard */
    size_t source_len;
    struct buf written; /* what the template itself wrote in the probes, its pieces separated by NULs */
    struct template_caps caps;
};
struct template
{
    struct jinja_limits limits;
    json_t *kwargs; /* the operator's; NULL: none */
    struct template_variant plain,
        tools; /* `tools` is for requests with tools, if the checkpoint has such a template */
};

/* Detects the template's capabilities (template_probe.c). ST_NOMEM. */
enum status template_probe(const struct jinja_template *t, const struct jinja_limits *limits,
                           struct template_caps *caps, struct buf *written) KV_MUST_CHECK;

/* The conversation as template variables (template_messages.c): content as the template expects it, origins
 * set, `tag` (or NULL) at the end of the last message's text; *final_text is then that text without the tag.
 * ST_INVALID if that is impossible. */
struct template_final {
    const char *text;
    size_t len;
};
/* The messages passed to the template: the list, and by index in the request each message's dict, or none if
 * it was merged into another. */
struct template_chat {
    struct jinja_value list;
    struct jinja_value *each; /* [number of messages in the request], owned by the caller */
};
/* The sources of a render, numbered from 1 in order of use. */
struct template_trace {
    bool on, no_memory;
    struct template_source *list; /* owned */
    size_t count, cap;
};
/* The origin with the source number; without trace, the plain origin. */
uint32_t template_from(struct template_trace *t, enum jinja_origin origin,
                       const struct template_source *source);
enum status template_messages(struct jinja_ctx *c, const struct template_caps *caps,
                              const struct template_request *rq, const char *tag, struct template_chat *out,
                              struct template_final *final_text, struct template_trace *trace,
                              struct err *err) KV_MUST_CHECK;

#endif
