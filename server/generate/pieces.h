/* What a stream shows next of an answer that was taken apart (chat/output.h), for all dialects. Event loop's
 * thread. */
#ifndef KVASIR_PIECES_H
#define KVASIR_PIECES_H

#include "server/generate/generate.h"

enum piece_kind { PIECE_NONE = 0, PIECE_ECHO, PIECE_REASONING, PIECE_CONTENT, PIECE_CALL, PIECE_ARGUMENTS };
struct piece {
    enum piece_kind kind;
    uint32_t call;
    const char *text; /* borrowed */
    size_t len;
};

/* The first thing that no chunk showed yet; content and calls in the order in which the model wrote them. */
struct piece piece_next(const struct choice *c);
void piece_shown(struct choice *c, const struct piece *piece);
/* A new id: prefix, of at most 6 characters, and 24 letters or digits. */
void call_id_make(struct chat_call *call, const char *prefix);

#endif
