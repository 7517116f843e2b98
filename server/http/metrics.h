/* Counters, histograms and the Prometheus text of GET /metrics. Event loop's thread only; the scheduler's
 * numbers come as a copy (sched_stats).
 *
 * To add a metric without labels: a call of single() in the function of metrics.c for its topic (engine_text,
 * prefix_cache_text, images_text, kv_text, process_text). Where its value comes from:
 *   - the server's state: struct server (server/http/http.h)
 *   - the scheduler: a field of struct sched_stats (scheduler/scheduler.h)
 *   - events counted here: a field of struct metrics in metrics.c, and a function below that counts
 * With labels: head(), then sample() for each value; kvasir:sequences_ended_total is an example.
 * A histogram: its row in HISTOGRAMS, and observe() where it is measured.
 * Names: "vllm:" where vLLM has the same metric, "kvasir:" elsewhere. Test: test_metrics in
 * tests/api/test_api.py. */
#ifndef KVASIR_METRICS_H
#define KVASIR_METRICS_H

#include "config/base/buf.h"
#include "config/base/status.h"
#include "scheduler/scheduler.h"

#include <stdbool.h>
#include <stdint.h>

struct metrics;
struct server;

enum finish { FIN_NONE = 0, FIN_STOP, FIN_LENGTH, FIN_ABORT, FIN_ERROR };

struct metrics *metrics_create(void); /* NULL when out of memory */
void metrics_destroy(struct metrics *m);
/* Labels and token buckets; once, when the model is loaded. model_name must outlive m. */
void metrics_model(struct metrics *m, const char *model_name, uint32_t context_max);

void metrics_http(struct metrics *m, const char *handler, const char *method, int status, double seconds);
void metrics_rejected(struct metrics *m, int status);
void metrics_first_token(struct metrics *m, double seconds);
void metrics_next_token(struct metrics *m, double seconds);
void metrics_image(struct metrics *m, double decode_seconds); /* one image decoded and prepared */

/* One finished sequence. */
struct metrics_sequence {
    enum finish finish;
    uint32_t prompt_tokens, cached_tokens, generated, max_tokens, preemptions;
    double e2e_seconds, queue_seconds, prefill_seconds, decode_seconds;
    bool had_token;
};
void metrics_sequence(struct metrics *m, const struct metrics_sequence *q);
void metrics_request_n(struct metrics *m, uint32_t n, uint32_t max_generated);

enum status metrics_text(const struct server *s, struct buf *out) KV_MUST_CHECK;
const char *cache_tier_name(enum cache_tier tier);
const char *cache_stop_name(enum cache_stop stop); /* also for cache_info in responses */

#endif
