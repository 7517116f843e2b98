/* Counters, histograms and the Prometheus text (openai-api §9). Event loop's thread only, except that the
 * scheduler's figures come as a snapshot of its atomics.
 *
 * A new metric: a call of single() in the part of metrics.c that it belongs to, from struct sched_stats or
 * struct server; what is counted here is a field of struct metrics and a function below. A histogram is a
 * line in the table `hists`. */
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
/* Labels and token buckets; once, when the model is loaded. model_name is borrowed for good. */
void metrics_model(struct metrics *m, const char *model_name, uint32_t context_max);

void metrics_http(struct metrics *m, const char *handler, const char *method, int status, double seconds);
void metrics_rejected(struct metrics *m, int status);
void metrics_first_token(struct metrics *m, double seconds);
void metrics_next_token(struct metrics *m, double seconds);
void metrics_image(struct metrics *m, double decode_seconds); /* one picture decoded and prepared */

/* One finished sequence. */
struct metrics_sequence {
    enum finish finish;
    uint32_t prompt_tokens, cached_tokens, generated, max_tokens;
    double e2e_seconds, queue_seconds, prefill_seconds, decode_seconds;
    bool had_token;
};
void metrics_sequence(struct metrics *m, const struct metrics_sequence *q);
void metrics_request_n(struct metrics *m, uint32_t n, uint32_t max_generated);

enum status metrics_text(const struct server *s, struct buf *out) KV_MUST_CHECK;
const char *cache_stop_name(enum cache_stop stop); /* also of cache_info in answers */

#endif
