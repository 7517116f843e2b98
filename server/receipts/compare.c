/* The parts of two statements, in the order in which a difference counts. See receipts.h. */
#include "server/receipts/receipts.h"

#include <string.h>

/* Parts of the predicate. What is unverifiable isn't a claim about the output, but about what it was made
 * with: another server has something else. */
static const struct {
    const char *name;
    bool early, unverifiable;
} parts[] = {{"weights", true, true},  {"adapter", true, true}, {"arithmetic", true, true},
             {"request", true, true},  {"prompts", true, true}, {"sampling", true, false},
             {"choices", false, false}};

static bool equal(const json_t *a, const json_t *b)
{
    return a == b || json_equal(a, b);
}

const char *receipt_differs(const json_t *claim, const json_t *made, bool early, bool *unverifiable)
{
    static const char *const around[] = {"subject", "_type", "predicateType"};
    const json_t *a = json_object_get(claim, "predicate"), *b = json_object_get(made, "predicate");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if ((early && !parts[i].early) ||
            equal(json_object_get(a, parts[i].name), json_object_get(b, parts[i].name)))
            continue;
        *unverifiable = parts[i].unverifiable;
        return parts[i].name;
    }
    *unverifiable = false;
    if (early) return NULL;
    for (size_t i = 0; i < 3; i++)
        if (!equal(json_object_get(claim, around[i]), json_object_get(made, around[i]))) return around[i];
    return equal(claim, made) ? NULL : "members that no receipt has";
}
