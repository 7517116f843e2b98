/* What the control groups of this process leave it: in a container, and under a supervisor that sets limits,
 * that is less than the machine has. Version 2 and, where a controller still hangs there, version 1; every
 * level above the process's own group counts too. Nothing here fails: what can't be read sets no limit.
 *
 *     root/proc/self/cgroup      0::/pod/container               where the process is
 *     root/sys/fs/cgroup         /pod/container/memory.max       its own group
 *                                /pod/memory.max                 the group around it
 *
 * In a container the mount often begins at its own group while proc names the path as the host sees it:
 * levels that aren't there are left out, and the mount itself is the last one.
 *
 * root: "" on a running system; the tests name a folder with such files. Any thread. */
#ifndef KVASIR_CGROUP_H
#define KVASIR_CGROUP_H

#include <stdint.h>

#define CGROUP_NO_LIMIT UINT64_MAX

/* Bytes that may still be taken before a limit is reached. Cached files count as free, as the kernel drops
 * them first. */
uint64_t cgroup_memory_free(const char *root);

/* Whole CPUs of the tightest quota, at least 1; 0: no quota. */
uint32_t cgroup_cpus(const char *root);

#endif
