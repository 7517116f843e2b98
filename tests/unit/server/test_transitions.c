/* States of requests and sequences, and the holders of KV blocks: what is right goes through, and what is
 * wrong ends the process with one line that names the object and both states, in every build. */
#include "scheduler/cache/kv_blocks.h"
#include "scheduler/internal.h"
#include "server/http/request.h"
#include "tests/lib/cache_check.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static struct request request;
static struct seq_list inbox, waiting, running;
static struct sequence sequence;
static struct kv_blocks *blocks;
static uint32_t unit;

/* `wrong` in a process of its own dies of an assertion that says `words`. */
static void dies(void (*wrong)(void), const char *words)
{
    char said[512];
    int to[2], status;
    assert_int_equal(pipe(to), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit none = {0};
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGABRT, SIG_DFL);
        dup2(to[1], STDERR_FILENO);
        wrong();
        _exit(0);
    }
    close(to[1]);
    size_t n = 0;
    for (ssize_t got; n < 511 && (got = read(to[0], said + n, 511 - n)) > 0;) n += (size_t)got;
    said[n] = '\0';
    close(to[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!strstr(said, "assertion failed: ") || !strstr(said, words)) fail_msg("\"%s\" in: %s", words, said);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void stream_at_once(void)
{
    request_to(&request, RQ_STREAM);
}
static void answer_a_stream(void)
{
    request_to(&request, RQ_RESPONSE);
}

static void test_requests(void **state)
{
    (void)state;
    strcpy(request.http.id, "req-7");
    dies(stream_at_once, "request req-7 can't go from RQ_BODY to RQ_STREAM");
    request_to(&request, RQ_WORKING);
    request_to(&request, RQ_RUNNING);
    request_to(&request, RQ_STREAM);
    dies(answer_a_stream, "request req-7 can't go from RQ_STREAM to RQ_RESPONSE");
}

static void run_from_inbox(void)
{
    sched__list_remove(&inbox, &sequence);
    sched__list_insert(&running, &sequence);
}
static void remove_from_waiting(void)
{
    sched__list_remove(&waiting, &sequence);
}
static void remove_twice(void)
{
    sched__list_remove(&running, &sequence);
    sched__list_remove(&running, &sequence);
}
static void end_twice(void)
{
    sched__list_remove(&running, &sequence);
    sched__seq_to(&sequence, SEQ_ENDED);
    sched__seq_to(&sequence, SEQ_ENDED);
}

static void test_sequences(void **state)
{
    (void)state;
    inbox.state = SEQ_INBOX;
    waiting.state = SEQ_WAITING;
    running.state = SEQ_RUNNING;
    sequence.id = (struct seq_id){.slot = 3, .gen = 9};
    sched__list_append(&inbox, &sequence);
    dies(run_from_inbox, "sequence 9 of slot 3 can't go from SEQ_INBOX to SEQ_RUNNING");
    dies(remove_from_waiting, "sequence 9 of slot 3, in SEQ_INBOX, is not in the list of SEQ_WAITING");
    sched__list_remove(&inbox, &sequence);
    sched__list_insert(&waiting, &sequence);
    for (int i = 0; i < 2; i++) { /* once more: it was preempted */
        sched__list_remove(&waiting, &sequence);
        sched__list_insert(&running, &sequence);
        if (i) break;
        sched__list_remove(&running, &sequence);
        sched__list_insert(&waiting, &sequence);
    }
    dies(remove_twice, "sequence 9 of slot 3, in SEQ_RUNNING, is not in the list of SEQ_RUNNING");
    dies(end_twice, "sequence 9 of slot 3 can't go from SEQ_ENDED to SEQ_ENDED");
}

static void release_for_the_cache(void)
{
    kvb_release(blocks, 0, unit, KVB_CACHED);
}
static void release_in_another_group(void)
{
    kvb_release(blocks, 1, unit, KVB_LIVE);
}
static void release(void)
{
    kvb_release(blocks, 0, unit, KVB_LIVE);
}
static void acquire(void)
{
    kvb_acquire(blocks, 0, unit, KVB_CACHED);
}

static void test_blocks(void **state)
{
    struct engine_caps caps = {.group_count = 2, .block_tokens = 16, .grain_bytes = 64, .arena_grains = 640};
    struct err err;
    (void)state;
    caps.groups[0] = (struct engine_kv_group){.layers = 1, .block_grains = 1};
    caps.groups[1] = (struct engine_kv_group){.layers = 5, .block_grains = 5};
    assert_int_equal(kvb_create(&caps, &blocks, &err), ST_OK);
    uint32_t first = kvb_allocate(blocks, 0), other;
    unit = kvb_allocate(blocks, 0);
    char words[200];
    snprintf(
        words, sizeof words,
        "the cache can't release the block of group 0 at unit %u: 1 sequences hold it, the cache 0 times",
        unit);
    dies(release_for_the_cache, words);
    snprintf(words, sizeof words, "group 1 has no block at unit %u", unit);
    dies(release_in_another_group, words);
    kvb_release(blocks, 0, first, KVB_LIVE); /* then the chain of free blocks is not empty */
    other = unit;
    kvb_acquire(blocks, 0, unit, KVB_CACHED);
    kvb_release(blocks, 0, unit, KVB_LIVE);
    snprintf(
        words, sizeof words,
        "the sequence can't release the block of group 0 at unit %u: 0 sequences hold it, the cache 1 times",
        unit);
    dies(release, words);
    unit = first;
    snprintf(words, sizeof words, "the block of group 0 at unit %u is free", unit);
    dies(release, words);
    dies(acquire, words);
    kvb_check(blocks);
    assert_int_equal(kvb_allocate(blocks, 0), first);
    kvb_release(blocks, 0, first, KVB_LIVE);
    kvb_release(blocks, 0, other, KVB_CACHED);
    kvb_check(blocks);
    kvb_destroy(blocks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_requests), cmocka_unit_test(test_sequences),
                                       cmocka_unit_test(test_blocks)};
    return cmocka_run_group_tests_name("transitions", tests, NULL, NULL);
}
