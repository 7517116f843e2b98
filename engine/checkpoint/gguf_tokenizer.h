/* The files beside a checkpoint's tokenizer, made from the metadata of a GGUF file: what the model's own
 * repository has under these names, as far as it matters to engine/tokenizer and server/chat. Pure. */
#ifndef KVASIR_GGUF_TOKENIZER_H
#define KVASIR_GGUF_TOKENIZER_H

#include "config/gguf/gguf.h"

/* "tokenizer.json", "tokenizer_config.json", "chat_template.jinja" and
 * "additional_chat_templates/tool_use.jinja"; *text is the caller's, with a zero behind it. ST_NOT_FOUND:
 * another name, or nothing in the file to make it from. ST_UNSUPPORTED names the kind of tokenizer that we
 * don't have. Messages don't name the file. tower: the model has one, in another file. */
enum status gguf_side_text(const struct gguf *g, bool tower, const char *name, char **text, size_t *len,
                           struct err *err) KV_MUST_CHECK;

#endif
