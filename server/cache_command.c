/* See cache_command.h. */
#include "server/cache_command.h"

#include "config/base/list.h"
#include "config/options.h"
#include "scheduler/cache/record_index.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

static const char usage[] =
    "kvasir cache ls DIR              what the directory of --cache-dir holds, by model\n"
    "kvasir cache verify DIR          reads all of it; names damaged records, exit code 1 if there are any\n"
    "kvasir cache prune DIR [SIZE]    deletes damaged records, and then the least recently used ones until\n"
    "                                 SIZE (K, M, G suffixes; default 0) is left; not while a server uses "
    "it\n";

/* The records of one model. */
struct sum {
    uint64_t tag, records, bytes, used, kinds[RECORD_KINDS];
    char about[sizeof((struct record_header *)0)->about];
};

static bool add(struct sum **sums, size_t *count, size_t *cap, const struct record_file *f,
                const struct record_header *h)
{
    size_t i = 0;
    while (i < *count && (*sums)[i].tag != f->tag) i++;
    if (i == *count) {
        if (!LIST_RESERVE(*sums, *cap, *count + 1)) return false;
        (*sums)[(*count)++] = (struct sum){.tag = f->tag};
        for (size_t c = 0; h->about[c]; c++) /* printable */
            (*sums)[i].about[c] = h->about[c] < ' ' || h->about[c] > '~' ? '?' : h->about[c];
    }
    struct sum *s = &(*sums)[i];
    s->records++;
    s->bytes += f->bytes;
    s->kinds[h->kind]++;
    if (f->used > s->used) s->used = f->used;
    return true;
}

static void print(const struct sum *s)
{
    char when[32] = "?";
    time_t t = (time_t)(s->used / 1000000000u);
    struct tm tm;
    if (localtime_r(&t, &tm)) strftime(when, sizeof when, "%Y-%m-%d %H:%M", &tm);
    printf("%-40s %10.1f MiB, %llu KV blocks, %llu windows, %llu states, %llu images; last used %s\n",
           *s->about ? s->about : "?", (double)s->bytes / (1 << 20), (unsigned long long)s->kinds[RECORD_KV],
           (unsigned long long)s->kinds[RECORD_WINDOW], (unsigned long long)s->kinds[RECORD_STATE],
           (unsigned long long)s->kinds[RECORD_IMAGE], when);
}

/* Every record: checked, and with `prune` deleted if it is damaged. */
static int run(struct record_index *x, const char *what, uint64_t size_left, size_t foreign)
{
    bool list = !strcmp(what, "ls"), prune = !strcmp(what, "prune");
    struct sum *sums = NULL;
    size_t count = 0, cap = 0, records = 0, bad = 0, evicted = 0;
    struct index_entry *e;
    for (uint64_t id = 0; (e = index_next(x, id)); id = e->file.id + 1) {
        struct record_header h;
        enum file_state fs = record_head(&x->dir, e->file.id, e->file.tag, &h, NULL);
        if (!fs && !list)
            fs = record_payload(&x->dir, h.id, e->file.tag, h.header_sum, NULL, h.payload_bytes);
        if (fs == FILE_GONE) continue; /* a running server evicts */
        records++;
        if (fs) {
            bad++;
            printf("%016llx-%016llx: %s\n", (unsigned long long)e->file.id, (unsigned long long)e->file.tag,
                   fs == FILE_DAMAGED ? "damaged" : strerror(errno));
            if (prune && fs == FILE_DAMAGED) index_remove(x, e);
        } else if (!add(&sums, &count, &cap, &e->file, &h)) {
            break;
        }
    }
    for (; prune && x->bytes > size_left && (e = index_oldest(x)); evicted++) index_remove(x, e);
    for (size_t i = 0; list && i < count; i++) print(&sums[i]);
    free(sums);
    printf("%zu records, %zu damaged, %zu other files", records, bad, foreign);
    if (prune) printf("; %zu more deleted", evicted);
    printf("; %.1f MiB\n", (double)x->bytes / (1 << 20));
    return fflush(stdout) || (bad && !strcmp(what, "verify"));
}

int cache_command(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    bool prune = !strcmp(what, "prune");
    uint64_t size = 0;
    if ((argc != 3 && !(prune && argc == 4)) || (!prune && strcmp(what, "ls") && strcmp(what, "verify")) ||
        (argc == 4 && !options_size(argv[3], &size))) {
        bool help = !strcmp(what, "--help") || !strcmp(what, "-h");
        fputs(usage, help ? stdout : stderr);
        return help ? 0 : 2;
    }
    struct err err;
    struct cache_dir d;
    struct record_index x;
    size_t foreign;
    enum status st = cache_dir_open(argv[2], false, &d, &err);
    if (!st && prune) { /* it exists */
        cache_dir_close(&d);
        st = cache_dir_open(argv[2], true, &d, &err);
    }
    if (st || index_open(&x, &d, &foreign, &err)) {
        fprintf(stderr, "kvasir: %s\n", err.msg);
        return 1;
    }
    int rc = run(&x, what, size, foreign);
    index_close(&x);
    return rc;
}
