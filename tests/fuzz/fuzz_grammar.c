/* GBNF and Lark: any text is rejected with a message, or becomes a grammar that runs. */
#include "tests/lib/grammars.h"
#include "server/grammar/vocab.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct grammar *g = NULL;
    struct grammar_error error;
    if (size > 4096) return 0;
    if (grammar_from_text((const char *)data, size, &g, &error)) {
        if (!error.message[0]) abort();
        return 0;
    }
    uint32_t state = STATE_FIRST;
    for (size_t i = 0; i < 64; i++) { /* some way through it, led by the text itself */
        uint32_t to = STATE_DEAD;
        for (unsigned k = 0; k < 256 && !to; k++) to = machine__next(g, state, (uint8_t)(data[i % size] + k));
        if (!to) break;
        state = to;
    }
    if (!g->states[state].accepts && !g->states[state].item_count) abort();
    grammar_unref(g);
    return 0;
}
