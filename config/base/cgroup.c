/* See cgroup.h. */
#include "config/base/cgroup.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define PATH_ROOM 4096
/* Version 1 reports "no limit" as the largest number of pages. */
#define V1_UNLIMITED (UINT64_C(1) << 60)

static FILE *file_open(const char *dir, const char *name)
{
    char path[2 * PATH_ROOM];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    return n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
}

/* The first number of a file; false if there is none ("max", -1) or no such file. */
static bool number_read(const char *dir, const char *name, uint64_t *out)
{
    FILE *f = file_open(dir, name);
    if (!f) return false;
    char text[32] = "";
    bool ok = fgets(text, sizeof text, f) && text[0] >= '0' && text[0] <= '9';
    fclose(f);
    return ok && sscanf(text, "%" SCNu64, out) == 1;
}

static bool list_has(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; *p; p += strcspn(p, ","), p += *p == ',')
        if (strcspn(p, ",") == n && memcmp(p, word, n) == 0) return true;
    return false;
}

/* The folder under which a controller's groups are mounted, and the process's own group below it ("",
 * "/a/b"). controller NULL: version 2. */
static bool group_find(const char *root, const char *controller, char base[PATH_ROOM], char group[PATH_ROOM])
{
    char line[PATH_ROOM];
    bool found = false;
    FILE *f = file_open(root, "proc/self/cgroup");
    while (f && !found && fgets(line, sizeof line, f)) { /* HIERARCHY:CONTROLLERS:PATH */
        line[strcspn(line, "\n")] = 0;
        char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        if (!path) continue;
        *path++ = 0;
        list++;
        if (controller ? !list_has(list, controller) : *list || strncmp(line, "0:", 2) != 0) continue;
        /* A process outside of the container's view has a path of "..": use the mount only. */
        bool plain = path[0] == '/' && path[1] && strncmp(path, "/..", 3) != 0;
        int n = snprintf(base, PATH_ROOM, "%s/sys/fs/cgroup%s%s", root, *list ? "/" : "", list);
        int m = snprintf(group, PATH_ROOM, "%s", plain ? path : "");
        found = n > 0 && n < PATH_ROOM && m >= 0 && m < PATH_ROOM;
    }
    if (f) fclose(f);
    return found;
}

/* From the process's own group up to the mount: `least` of all levels. */
static uint64_t levels_least(const char *root, const char *controller, uint64_t (*level)(const char *dir))
{
    char base[PATH_ROOM], group[PATH_ROOM], dir[2 * PATH_ROOM];
    uint64_t least = CGROUP_NO_LIMIT;
    if (!group_find(root, controller, base, group)) return least;
    for (;;) {
        snprintf(dir, sizeof dir, "%s%s", base, group);
        uint64_t here = level(dir);
        if (here < least) least = here;
        char *slash = strrchr(group, '/');
        if (!slash) return least;
        *slash = 0;
    }
}

/* ---- memory ---- */

/* Bytes of cached files: lines `inactive` and `active` of memory.stat. */
static uint64_t cached_files(const char *dir, const char *inactive, const char *active)
{
    char line[128], key[64];
    uint64_t sum = 0, value;
    FILE *f = file_open(dir, "memory.stat");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%63s %" SCNu64, key, &value) != 2) continue;
        if ((strcmp(key, inactive) == 0 || strcmp(key, active) == 0) && sum <= UINT64_MAX - value)
            sum += value;
    }
    if (f) fclose(f);
    return sum;
}

static uint64_t room_below(uint64_t limit, uint64_t used, uint64_t cached)
{
    used = used > cached ? used - cached : 0;
    return limit > used ? limit - used : 0;
}

static uint64_t memory_v2(const char *dir)
{
    uint64_t limit = CGROUP_NO_LIMIT, high, used = 0;
    (void)number_read(dir, "memory.max", &limit);
    /* Above memory.high the kernel doesn't refuse allocations, but throttles them heavily. */
    if (number_read(dir, "memory.high", &high) && high < limit) limit = high;
    if (limit == CGROUP_NO_LIMIT) return limit;
    (void)number_read(dir, "memory.current", &used);
    return room_below(limit, used, cached_files(dir, "inactive_file", "active_file"));
}

static uint64_t memory_v1(const char *dir)
{
    uint64_t limit, used = 0;
    if (!number_read(dir, "memory.limit_in_bytes", &limit) || limit >= V1_UNLIMITED) return CGROUP_NO_LIMIT;
    (void)number_read(dir, "memory.usage_in_bytes", &used);
    return room_below(limit, used, cached_files(dir, "total_inactive_file", "total_active_file"));
}

uint64_t cgroup_memory_free(const char *root)
{
    uint64_t v2 = levels_least(root, NULL, memory_v2), v1 = levels_least(root, "memory", memory_v1);
    return v1 < v2 ? v1 : v2;
}

/* ---- CPU time ---- */

/* Rounded down: compute threads meet at barriers, where all wait for a thread throttled by the quota, and the
 * event loop needs the remainder. */
static uint64_t whole_cpus(uint64_t quota, uint64_t period)
{
    if (!period) return CGROUP_NO_LIMIT;
    return quota < period ? 1 : quota / period;
}

static uint64_t cpus_v2(const char *dir)
{
    uint64_t quota, period;
    FILE *f = file_open(dir, "cpu.max");
    bool ok = f && fscanf(f, "%" SCNu64 " %" SCNu64, &quota, &period) == 2; /* else "max PERIOD" */
    if (f) fclose(f);
    return ok ? whole_cpus(quota, period) : CGROUP_NO_LIMIT;
}

static uint64_t cpus_v1(const char *dir)
{
    uint64_t quota, period;
    if (!number_read(dir, "cpu.cfs_quota_us", &quota) || !number_read(dir, "cpu.cfs_period_us", &period))
        return CGROUP_NO_LIMIT;
    return whole_cpus(quota, period);
}

uint32_t cgroup_cpus(const char *root)
{
    uint64_t v2 = levels_least(root, NULL, cpus_v2), v1 = levels_least(root, "cpu", cpus_v1);
    uint64_t cpus = v1 < v2 ? v1 : v2;
    return cpus > UINT32_MAX ? 0 : (uint32_t)cpus;
}
