/* Fairness between tenants: the table of virtual times, the choice among waiting sequences, and what follows
 * from both on a machine with a few places: a bounded wait for who comes late, equal shares for who always
 * wants more. */
#include "config/base/assert.h"
#include "scheduler/internal.h"
#include "scheduler/tenants.h"
#include "tests/lib/cache_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* Tenants known, debts included; one's live sequences. */
static uint32_t tenants_count(const struct tenants *t)
{
    return (uint32_t)t->table.count;
}
static uint32_t tenants_live(const struct tenants *t, uint64_t id)
{
    for (uint32_t i = 0; i < t->fresh; i++)
        if (t->all[i].id == id && t->all[i].live) return t->all[i].live;
    return 0;
}

static uint64_t rng_state = 1;
static uint32_t rnd(uint32_t below)
{
    rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((rng_state >> 33) % below);
}

static struct tenants *make(uint32_t live_max)
{
    struct tenants *t;
    struct err err = {{0}};
    assert_int_equal(tenants_create(live_max, 99, &t, &err), ST_OK);
    return t;
}

/* ---- the table ---- */
static void test_times(void **state)
{
    (void)state;
    struct tenants *t = make(8);
    tenants_enter(t, 1);
    tenants_enter(t, 1);
    tenants_enter(t, 0); /* nobody's: a tenant as others */
    tenants_charge(t, 1, 500);
    assert_int_equal(tenants_time(t, 1), 500);
    assert_int_equal(tenants_time(t, 0), 0);
    assert_int_equal(tenants_live(t, 1), 2);
    assert_int_equal(tenants_active(t), 2);
    tenants_start(t, 1);
    assert_int_equal(tenants_running(t, 1), 1);
    assert_int_equal(tenants_served(t, 1), 500);
    tenants_advance(t, 300);
    assert_int_equal(tenants_time(t, 0), 300); /* the clock is a floor: waiting behind others earns nothing */
    assert_int_equal(tenants_time(t, 77), 300);
    tenants_advance(t, 200);
    assert_int_equal(tenants_clock(t), 300); /* never back */
    tenants_charge(t, 0, 1);
    assert_int_equal(tenants_time(t, 0), 301);
    tenants_advance_all(t);
    assert_int_equal(tenants_clock(t), 500);
    tenants_leave(t, 1);
    assert_int_equal(tenants_live(t, 1), 1);
    tenants_check(t);
    tenants_destroy(t);
}

static void test_debt_is_kept_until_the_clock_passes(void **state)
{
    (void)state;
    struct tenants *t = make(8);
    tenants_enter(t, 1);
    tenants_enter(t, 2);
    tenants_charge(t, 1, 1000);
    tenants_leave(t, 1);
    assert_int_equal(tenants_count(t), 2);
    tenants_enter(t, 1); /* coming back at once wins nothing */
    assert_int_equal(tenants_time(t, 1), 1000);
    tenants_leave(t, 1);
    tenants_advance(t, 1500);
    tenants_enter(t, 1);
    assert_int_equal(tenants_time(t, 1), 1500);
    tenants_leave(t, 1);
    assert_int_equal(tenants_count(t), 1); /* no debt, no entry */
    tenants_charge(t, 2, 10000);
    tenants_leave(t, 2);
    assert_int_equal(tenants_count(t), 0); /* nobody there: all begin again */
    assert_int_equal(tenants_clock(t), 0);
    tenants_check(t);
    tenants_destroy(t);
}

/* Far more tenants come and go in debt than the table holds: it never fails, and who is live is never
 * forgotten. */
static void test_full_of_debts(void **state)
{
    (void)state;
    enum { LIVE = 16 };
    struct tenants *t = make(LIVE);
    uint32_t live[40] = {0}, total = 1;
    uint64_t charged[40] = {0}, debtors = 0;
    tenants_enter(t, 1000); /* keeps the table from starting again */
    for (uint32_t op = 0; op < 20000; op++) {
        uint32_t i = rnd(40);
        if (rnd(2) && total < LIVE) {
            if (!live[i]) charged[i] = tenants_time(t, i);
            tenants_enter(t, i);
            assert_int_equal(tenants_time(t, i), charged[i]);
            live[i]++;
            total++;
        } else if (live[i]) {
            tenants_charge(t, i, 10);
            charged[i] += 10;
            assert_int_equal(tenants_time(t, i), charged[i]);
            tenants_leave(t, i);
            live[i]--;
            total--;
        }
        assert_int_equal(tenants_live(t, i), live[i]);
        assert_int_equal(tenants_live(t, 1000), 1);
        assert_true(tenants_count(t) <= 2 * LIVE);
        if (tenants_count(t) == 2 * LIVE) debtors++;
        if (op % 64 == 0) tenants_check(t);
    }
    assert_true(debtors > 100); /* it was full */
    tenants_destroy(t);
}

/* ---- the choice ---- */
struct bed {
    struct scheduler s;
    struct sequence q[600];
    uint32_t count;
};
static struct bed *bed_make(void)
{
    struct bed *b = calloc(1, sizeof *b);
    b->s.tenants = make(600);
    b->s.waiting.state = SEQ_WAITING;
    b->s.running.state = SEQ_RUNNING;
    return b;
}
static void bed_free(struct bed *b)
{
    tenants_destroy(b->s.tenants);
    free(b);
}
static struct sequence *submit(struct bed *b, uint64_t tenant, int64_t priority, uint32_t tokens)
{
    assert_true(b->count < 600);
    struct sequence *q = &b->q[b->count];
    *q = (struct sequence){.state = SEQ_INBOX, .arrival = b->count++, .count = tokens};
    q->req.tenant = tenant;
    q->req.priority = priority;
    tenants_enter(b->s.tenants, tenant);
    sched__list_insert(&b->s.waiting, q);
    return q;
}
static struct sequence *admit(struct bed *b)
{
    struct sequence *q = sched__pick_waiting(&b->s);
    if (!q) return NULL;
    sched__list_remove(&b->s.waiting, q);
    sched__place_taken(&b->s, q);
    return q;
}
/* It computes so many tokens. */
static void serve(struct bed *b, struct sequence *q, uint32_t tokens)
{
    q->position += tokens;
    sched__served(&b->s, q);
}
static void chunk(struct bed *b, struct sequence *q)
{
    sched__list_insert(&b->s.running, q);
    tenants_start(b->s.tenants, q->req.tenant);
}

static void test_pick(void **state)
{
    (void)state;
    struct bed *b = bed_make();
    assert_null(sched__pick_waiting(&b->s));
    struct sequence *late = submit(b, 5, 1, 10), *a1 = submit(b, 1, 0, 100), *a2 = submit(b, 1, 0, 100),
                    *b1 = submit(b, 2, 0, 80), *b2 = submit(b, 2, 0, 100), *c1 = submit(b, 0, 0, 90),
                    *first = submit(b, 1, -1, 50);
    struct sequence *order[] = {first, b1, c1, a1, b2, a2, late};
    /* Priority before everything, and tenant 1 pays for it; 2 and 0 are equal: who came first; then 50
     * against 80 and 90; then 80 against 150. */
    for (uint32_t i = 0; i < 7; i++) {
        assert_ptr_equal(admit(b), order[i]);
        serve(b, order[i], order[i]->count);
    }
    assert_null(admit(b));
    bed_free(b);
}

/* Places count before tokens; of equals that need not wait for their turn; a rank is for its own tenant. */
static void test_places_and_ranks(void **state)
{
    (void)state;
    struct bed *b = bed_make();
    struct sequence *x = submit(b, 1, 0, 1), *y1 = submit(b, 2, 0, 1), *y2 = submit(b, 2, 0, 1),
                    *z = submit(b, 3, 0, 1);
    y2->req.rank = -5;
    serve(b, z, 1000);
    assert_ptr_equal(admit(b), x); /* y2's rank is nothing to tenant 1 */
    chunk(b, x);
    assert_ptr_equal(admit(b), y2);
    chunk(b, y2);
    assert_ptr_equal(admit(b), z); /* without a place, whatever it was served */
    assert_ptr_equal(admit(b), y1);
    struct sequence *u = submit(b, 4, 0, 1), *v = submit(b, 5, 0, 1);
    serve(b, u, 32);
    assert_ptr_equal(admit(b), v);
    serve(b, v, 1);
    struct sequence *w = submit(b, 5, 0, 1);
    assert_ptr_equal(admit(b), w);
    bed_free(b);
}

/* Who gives its place to whom. */
static void test_victims(void **state)
{
    (void)state;
    struct bed *b = bed_make();
    struct sequence *a[4], *c, *d;
    for (uint32_t i = 0; i < 4; i++) {
        a[i] = submit(b, 1, i == 3 ? -1 : 0, 1);
        chunk(b, admit(b));
    }
    assert_ptr_equal(sched__pick_victim(&b->s, NULL), a[2]);    /* the arena is full */
    assert_null(sched__pick_victim(&b->s, submit(b, 1, 0, 1))); /* nobody gives to its own tenant */
    c = submit(b, 2, 0, 1);
    assert_ptr_equal(sched__pick_victim(&b->s, c), a[2]); /* the youngest, at once */
    a[0]->req.rank = 7;
    assert_ptr_equal(sched__pick_victim(&b->s, c), a[0]);
    a[0]->req.rank = 0;
    assert_null(sched__pick_victim(&b->s, submit(b, 3, 1, 1))); /* all are of a better priority */
    /* One place each: the light one takes it at once, others after a turn, and only from who was served more.
     */
    for (uint32_t i = 1; i < 4; i++) {
        sched__list_remove(&b->s.running, a[i]);
        tenants_stop(b->s.tenants, 1);
    }
    assert_null(sched__pick_victim(&b->s, c)); /* tenant 1 is light itself */
    serve(b, a[0], 100);
    assert_ptr_equal(sched__pick_victim(&b->s, c), a[0]);
    a[0]->kept = true;
    assert_null(sched__pick_victim(&b->s, c));
    a[0]->kept = false;
    d = submit(b, 4, 0, 1);
    serve(b, d, 99);
    assert_null(sched__pick_victim(&b->s, d));
    b->s.turn += 32;
    assert_ptr_equal(sched__pick_victim(&b->s, d), a[0]);
    a[0]->lost = 1000; /* what it computed again has to be worth it */
    assert_null(sched__pick_victim(&b->s, d));
    assert_ptr_equal(sched__pick_victim(&b->s, c), a[0]);
    b->s.turn += 100 * 50;
    assert_ptr_equal(sched__pick_victim(&b->s, d), a[0]);
    serve(b, d, 2);
    assert_null(sched__pick_victim(&b->s, d));
    bed_free(b);
}

static void test_deferred_stand_aside(void **state)
{
    (void)state;
    struct bed *b = bed_make();
    struct sequence *x = submit(b, 1, 0, 10), *y = submit(b, 1, 0, 10), *z = submit(b, 2, 1, 10);
    x->prefix_inflight = true;
    assert_ptr_equal(sched__pick_waiting(&b->s), y);
    y->prefix_inflight = true;
    assert_ptr_equal(sched__pick_waiting(&b->s), z);
    z->prefix_inflight = true;
    assert_null(sched__pick_waiting(&b->s));
    x->prefix_inflight = false;
    assert_ptr_equal(sched__pick_waiting(&b->s), x);
    bed_free(b);
}

/* ---- a machine with PLACES places, one token per place and turn ---- */
enum { PLACES_MAX = 8 };
struct machine {
    struct bed *b;
    uint32_t places;
    struct {
        struct sequence *q;
        uint32_t left;
    } place[PLACES_MAX];
    uint64_t served[4], now;
    uint64_t admitted_at[600]; /* by arrival: turn + 1; 0 = waits */
};
static void turn(struct machine *m)
{
    for (uint32_t i = 0; i < m->places; i++) {
        if (m->place[i].q && --m->place[i].left == 0) {
            tenants_stop(m->b->s.tenants, m->place[i].q->req.tenant);
            tenants_leave(m->b->s.tenants, m->place[i].q->req.tenant);
            m->place[i].q = NULL;
        }
        if (!m->place[i].q && (m->place[i].q = admit(m->b))) {
            m->place[i].left = m->place[i].q->count;
            m->admitted_at[m->place[i].q->arrival] = m->now + 1;
            tenants_start(m->b->s.tenants, m->place[i].q->req.tenant);
        }
        if (!m->place[i].q) continue;
        m->served[m->place[i].q->req.tenant]++;
        serve(m->b, m->place[i].q, 1);
    }
    if (m->now++ % 128 == 0) tenants_check(m->b->s.tenants);
}

/* 50 requests of one tenant queue; another sends 2. Its first one gets the next place that is free, the
 * second then waits for as much as its first one took. First come, first served would let it wait for all 50.
 */
static void test_late_tenant_waits_little(void **state)
{
    (void)state;
    for (uint32_t places = 1; places <= 4; places++) {
        for (uint32_t after = 0; after < 300; after += 37) {
            struct machine m = {.b = bed_make(), .places = places};
            for (int i = 0; i < 50; i++) submit(m.b, 1, 0, 100);
            for (uint32_t i = 0; i < after; i++) turn(&m);
            uint64_t came = m.now;
            const struct sequence *x = submit(m.b, 2, 0, 100), *y = submit(m.b, 2, 0, 100);
            for (int i = 0; i < 1000; i++) turn(&m);
            assert_true(m.admitted_at[x->arrival] && m.admitted_at[y->arrival]);
            assert_true(m.admitted_at[x->arrival] - 1 - came <= 101);
            assert_true(m.admitted_at[y->arrival] - 1 - came <= 301);
            bed_free(m.b);
        }
    }
}

/* Both always have more to do, with requests of very different sizes and numbers: tokens are shared within 10
 * %. Three tenants alike. */
static void test_long_run_shares(void **state)
{
    (void)state;
    static const struct {
        uint32_t tenants, places, queue[3], size[3];
    } rows[] = {
        {2, 1, {1, 20, 0}, {10, 200, 0}}, {2, 4, {4, 12, 0}, {300, 20, 0}},   {2, 8, {8, 8, 0}, {50, 50, 0}},
        {2, 2, {2, 30, 0}, {150, 7, 0}},  {3, 4, {4, 9, 20}, {100, 30, 250}}, {3, 1, {1, 1, 1}, {5, 60, 200}},
    };
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        struct machine m = {.places = rows[r].places};
        rng_state = r + 1;
        m.b = bed_make();
        uint64_t total = 0;
        while (m.now < 60000) {
            for (uint32_t k = 0; k < rows[r].tenants; k++) {
                uint32_t waiting = 0;
                for (const struct sequence *q = m.b->s.waiting.head; q; q = q->next)
                    waiting += q->req.tenant == k;
                for (; waiting < rows[r].queue[k]; waiting++) {
                    uint32_t at = 0;
                    if (m.b->count < 600) {
                        submit(m.b, k, 0, 1 + rnd(2 * rows[r].size[k]));
                        continue;
                    }
                    /* Arrival numbers go on; records that are neither waiting nor running are used again. */
                    for (bool taken = true; taken;) {
                        at = rnd(600);
                        taken = false;
                        for (uint32_t i = 0; i < m.places; i++) taken |= m.place[i].q == &m.b->q[at];
                        for (const struct sequence *q = m.b->s.waiting.head; q; q = q->next)
                            taken |= q == &m.b->q[at];
                    }
                    m.b->q[at] = (struct sequence){
                        .state = SEQ_INBOX, .arrival = at, .count = 1 + rnd(2 * rows[r].size[k])};
                    m.b->q[at].req.tenant = k;
                    tenants_enter(m.b->s.tenants, k);
                    sched__list_append(&m.b->s.waiting, &m.b->q[at]);
                }
            }
            turn(&m);
        }
        for (uint32_t k = 0; k < rows[r].tenants; k++) total += m.served[k];
        assert_int_equal(total, 60000ull * rows[r].places);
        for (uint32_t k = 0; k < rows[r].tenants; k++) {
            double share = (double)m.served[k] / (double)total * rows[r].tenants;
            if (share < 0.9 || share > 1.1) fail_msg("row %zu: tenant %u got %.3f of its share", r, k, share);
        }
        bed_free(m.b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_debt_is_kept_until_the_clock_passes),
        cmocka_unit_test(test_full_of_debts),
        cmocka_unit_test(test_pick),
        cmocka_unit_test(test_places_and_ranks),
        cmocka_unit_test(test_victims),
        cmocka_unit_test(test_deferred_stand_aside),
        cmocka_unit_test(test_late_tenant_waits_little),
        cmocka_unit_test(test_long_run_shares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
