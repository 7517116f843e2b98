/* How much a fleet of 2 to 64 servers reuses, relative to one machine with all their memory, by routing
 * policy: cache events, consistent hash of the session, round robin. The real schedulers over fake engines,
 * the traces of sim_hitrate with as many more sessions as there are servers.
 *
 *   request -> route() -> scheduler of server i --events--> block_index, which route() asks
 *
 * By events means: where the sum is least of what this request would compute there (LACKS_WEIGH times), what
 * is being computed there, and what that server has stored so far more than the one that stored least, all in
 * blocks. Without the last part all new sessions go where their common prefix is, and that memory overflows.
 * Round robin and hash ignore what is cached. Asserts that by events 95 % are reused in each trace. Each
 * server takes the longest sequence; together they have the trace's working set, and the one machine the
 * same. */
#include "tests/sim/fake_engine.h"

#include "tests/lib/block_index.h"
#include "tests/sim/traces.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

enum { WINDOW = 1024, SERVERS_MAX = 64, POINTS = 128, LACKS_WEIGH = 8 };
enum route { BY_EVENTS, BY_HASH, IN_TURN, ROUTES };
static const char *const route_names[ROUTES] = {"events", "hash", "in turn"};

struct server {
    struct engine engine;
    struct scheduler *sched;
    uint64_t left; /* blocks of prompts that were sent here and are not answered */
    uint32_t running;
};
/* A request on its way: by session, as a session waits for its answer. */
struct sent {
    uint32_t server, blocks;
};
struct fleet {
    struct server *servers;
    uint32_t count, turn;
    enum route route;
    struct block_index *index;
    struct session *sessions;
    struct sent *sent; /* by session */
    uint64_t points[SERVERS_MAX * POINTS];
    uint64_t hit, asked, full_blocks;
    uint32_t longest;
    uint64_t most, least; /* requests that one server got */
    uint64_t got[SERVERS_MAX];
};

static struct session *all_sessions;
static uint32_t *all_orders;

static uint32_t by_hash(const struct fleet *f, uint32_t session)
{
    uint64_t at = fake_mix(session * 31ull + 7), best = UINT64_MAX;
    uint32_t server = 0;
    for (uint32_t i = 0; i < f->count * POINTS; i++) { /* the next point on the ring */
        uint64_t away = f->points[i] - at;
        if (away > best) continue;
        best = away;
        server = i / POINTS;
    }
    return server;
}

static uint32_t by_events(struct fleet *f, const struct session *q, uint32_t *missing)
{
    static const uint8_t salt[32];
    static uint64_t keys[CONTEXT / BT];
    uint32_t count = q->prompt.token_count / BT, best = 0;
    uint64_t best_cost = UINT64_MAX, least = UINT64_MAX;
    block_index_keys(f->index, q->tokens, q->prompt.token_count, q->images, q->prompt.span_count, salt, keys);
    for (uint32_t i = 0; i < f->count; i++) {
        uint64_t stored = block_index_stored(f->index, i);
        if (stored < least) least = stored;
    }
    for (uint32_t i = 0; i < f->count; i++) {
        uint32_t lacks = count - block_index_overlap(f->index, i, 0, keys, count);
        uint64_t more = block_index_stored(f->index, i) - least,
                 cost = LACKS_WEIGH * (uint64_t)lacks + f->servers[i].left + more;
        if (cost >= best_cost) continue;
        best = i;
        best_cost = cost;
        *missing = lacks;
    }
    return best;
}

static void submit_turn(struct fleet *f, const struct trace *t, uint32_t session)
{
    struct session *q = &f->sessions[session];
    struct seq_id id;
    struct err err;
    begin_turn(t, q);
    struct sent *to = &f->sent[session];
    to->blocks = q->prompt.token_count / BT;
    to->server = f->route == BY_EVENTS ? by_events(f, q, &to->blocks)
                 : f->route == BY_HASH ? by_hash(f, session)
                                       : f->turn++ % f->count;
    struct server *s = &f->servers[to->server];
    ASSERT(sched_submit(s->sched, &q->seq, &id, &err) == ST_OK);
    s->left += to->blocks;
    s->running++;
    f->got[to->server]++;
    f->asked += q->prompt.token_count;
    if (q->prompt.token_count + t->answer > f->longest) f->longest = q->prompt.token_count + t->answer;
}

static uint32_t take_events(struct fleet *f, const struct trace *t, struct server *s)
{
    struct sched_event ev;
    uint32_t ended = 0;
    while (sched_poll(s->sched, &ev)) {
        const struct session *q = ev.user;
        if (!take_event(t, &ev)) continue;
        f->hit += ev.cache.reused;
        s->left -= f->sent[q - f->sessions].blocks;
        s->running--;
        ended++;
    }
    return ended;
}

static void open_server(struct fleet *f, uint32_t i, uint64_t arena, uint32_t sequences)
{
    struct server *s = &f->servers[i];
    struct err err;
    struct sched_options opt = {.prefill_chunk = CHUNK, .hash_seed = i + 1, .queue_max = 4096};
    if (f->route == BY_EVENTS) opt.event_sink = block_index_sink(f->index, i);
    s->engine = (struct engine){.vocab = 60000, .eos = 1};
    s->engine.caps = sim_caps(WINDOW, arena, sequences);
    fake_open(&s->engine, false);
    ASSERT(sched_create(&s->engine, &opt, &s->sched, &err) == ST_OK);
}

static struct fleet *run_fleet(const struct trace *t, uint32_t scale, uint32_t servers, enum route route,
                               uint64_t arena, uint32_t concurrency)
{
    struct fleet *f = calloc(1, sizeof *f);
    uint32_t sessions = t->sessions * scale, next = 0, flying = 0;
    ASSERT(f);
    f->count = servers;
    f->route = route;
    f->sessions = all_sessions;
    f->index = block_index_new(BT, servers);
    f->servers = calloc(servers, sizeof *f->servers);
    f->sent = calloc(sessions, sizeof *f->sent);
    ASSERT(f->servers && f->sent);
    for (uint32_t i = 0; i < servers * POINTS; i++) f->points[i] = fake_mix(fake_mix(i) + 3);
    for (uint32_t i = 0; i < servers; i++) open_server(f, i, arena, concurrency);
    for (uint32_t i = 0; i < sessions; i++) {
        struct session *q = &all_sessions[i];
        q->prompt.token_count = q->prompt.span_count = q->turns = 0;
        q->busy = false;
        q->random = fake_mix(i * 977ull + t->answer);
    }
    order_random = 5;
    uint32_t count = t->order(all_orders, sessions, scale);
    for (uint64_t now = 1; next < count || flying > 0; now++) {
        while (next < count && flying < concurrency && !all_sessions[all_orders[next]].busy) {
            submit_turn(f, t, all_orders[next++]);
            flying++;
        }
        for (uint32_t i = 0; i < servers; i++) {
            if (!f->servers[i].running) continue;
            sched_step(f->servers[i].sched, now);
            flying -= take_events(f, t, &f->servers[i]);
        }
    }
    f->least = UINT64_MAX;
    for (uint32_t i = 0; i < servers; i++) {
        struct sched_stats st;
        sched_stats(f->servers[i].sched, &st);
        f->full_blocks += st.groups[0].blocks_used;
        if (f->got[i] > f->most) f->most = f->got[i];
        if (f->got[i] < f->least) f->least = f->got[i];
        sched_destroy(f->servers[i].sched);
        fake_close(&f->servers[i].engine);
    }
    block_index_free(f->index);
    free(f->servers);
    free(f->sent);
    return f;
}

static bool one_trace(const struct trace *t, uint32_t servers)
{
    uint32_t scale = servers < 8 ? 1 : servers / 4, concurrency = t->concurrency * scale;
    if (concurrency < servers) concurrency = servers;
    struct fleet *all = run_fleet(t, scale, 1, BY_HASH, 1u << 22, concurrency);
    uint64_t set = set_units(all->full_blocks, WINDOW, t->live * scale, concurrency),
             least = least_arena(WINDOW, all->longest), arena = (set + servers - 1) / servers;
    bool raised = arena < least;
    if (raised) arena = least;
    struct fleet *one = run_fleet(t, scale, 1, BY_HASH, arena * servers, concurrency);
    printf("%-22s %7u %8u%s %6.1f%%", t->name, servers, t->sessions * scale, raised ? "*" : " ",
           100.0 * (double)one->hit / (double)one->asked);
    bool good = true;
    for (enum route r = 0; r < ROUTES; r++) {
        struct fleet *f = run_fleet(t, scale, servers, r, arena, concurrency);
        double share = (double)f->hit / (double)one->hit;
        printf("  %5.1f (%u..%u)", 100 * share, (unsigned)f->least, (unsigned)f->most);
        if (r == BY_EVENTS) good = share >= 0.95;
        free(f);
    }
    printf("\n");
    fflush(stdout);
    free(all);
    free(one);
    return good;
}

static void test_fleet(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {2, 4, 8, 16, 32, 64};
    bool brief = getenv("KVASIR_TEST_SHORT") != NULL, good = true;
    uint32_t largest = brief ? 8 : 64, scale = largest / 4;
    all_sessions = calloc(128u * scale, sizeof *all_sessions);
    all_orders = calloc(640u * scale, sizeof *all_orders);
    assert_true(all_sessions && all_orders);
    printf("reuse in %% of that of one machine with all the memory (requests that one server got: least and "
           "most); * = more memory, as each server takes the longest sequence\n");
    printf("%-22s %7s %9s %7s", "trace", "servers", "sessions", "alone");
    for (int r = 0; r < ROUTES; r++) printf("  %-15s", route_names[r]);
    printf("\n");
    for (uint32_t k = 0; k < TRACES; k++)
        for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes && sizes[i] <= largest; i++)
            good = one_trace(&traces[k], sizes[i]) && good;
    free(all_sessions);
    free(all_orders);
    assert_true(good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fleet)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
