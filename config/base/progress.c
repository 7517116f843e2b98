/* See progress.h. */
#include "config/base/progress.h"

#include "config/base/clock.h"
#include "config/base/log.h"

#include <stdio.h>
#include <string.h>

#define CELLS        40u
#define BAR_US       50000u
#define BAR_FIRST_US 300000u
#define LINE_US      1000000u
#define LINE_MOST_US 30000000u

void progress_show(struct progress *p, uint64_t done, uint64_t total, uint64_t before)
{
    uint64_t now = now_us();
    if (!p->began_us) p->began_us = p->line_us = now;
    uint64_t passed = now - p->began_us, line_us = passed / 8;
    if (passed < BAR_FIRST_US || now - p->bar_us < BAR_US) return;
    p->bar_us = now;
    char bar[CELLS + 1] = "", text[160];
    double part = total && done < total ? (double)done / (double)total : 1,
           rate = done > before ? (double)(done - before) / ((double)passed * 1e-6) : 0;
    unsigned left = rate > 0 ? (unsigned)((double)(total - done) / rate) : 0;
    memset(bar, '.', CELLS);
    memset(bar, '#', (size_t)(part * CELLS));
    snprintf(text, sizeof text, "%s [%s] %3.0f %% of %llu MiB, %.1f MiB/s, %u:%02u:%02u left", p->what, bar,
             100 * part, (unsigned long long)(total >> 20), rate / (1 << 20), left / 3600, left / 60 % 60,
             left % 60);
    line_us = line_us < LINE_US ? LINE_US : line_us > LINE_MOST_US ? LINE_MOST_US : line_us;
    if (log_status(text) || now - p->line_us < line_us) return;
    p->line_us = now;
    log_info("%s %llu of %llu MiB, %.1f MiB/s, %u:%02u:%02u left", p->what, (unsigned long long)(done >> 20),
             (unsigned long long)(total >> 20), rate / (1 << 20), left / 3600, left / 60 % 60, left % 60);
}
