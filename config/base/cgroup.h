/* Memory and CPU limits that control groups set for this process (containers, supervisors). Version 2, and
 * version 1 for controllers still mounted there; limits of ancestor groups apply too. Nothing here fails: an
 * unreadable file sets no limit.
 *
 *     root/proc/self/cgroup      0::/pod/container               where the process is
 *     root/sys/fs/cgroup         /pod/container/memory.max       its own group
 *                                /pod/memory.max                 the group around it
 *
 * In a container the mount often begins at its own group while proc names the path as the host sees it:
 * missing levels are skipped, and the mount itself is the last one.
 *
 * root: "" on a running system; tests pass a folder with such files. Any thread. */
#ifndef KVASIR_CGROUP_H
#define KVASIR_CGROUP_H

#include <stdint.h>

#define CGROUP_NO_LIMIT UINT64_MAX

/* Bytes that can still be allocated below the limits. Page cache counts as free, because the kernel reclaims
 * it first. */
uint64_t cgroup_memory_free(const char *root);

/* Whole CPUs of the lowest quota, at least 1; 0: no quota. */
uint32_t cgroup_cpus(const char *root);

#endif
