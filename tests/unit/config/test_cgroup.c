/* Control groups in folders made for the purpose: both versions, limits of parent levels, the view inside a
 * container, and files without limits. */
#include "config/base/cgroup.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

#define MIB UINT64_C(1048576)

struct file {
    const char *path, *text;
};
struct tree {
    const char *what;
    struct file files[12];
    uint64_t memory;
    uint32_t cpus;
};

static const struct tree trees[] = {
    {"nothing at all", {{0}}, CGROUP_NO_LIMIT, 0},
    {"a group without limits",
     {{"proc/self/cgroup", "0::/user.slice\n"},
      {"sys/fs/cgroup/user.slice/memory.max", "max\n"},
      {"sys/fs/cgroup/user.slice/memory.high", "max\n"},
      {"sys/fs/cgroup/user.slice/memory.current", "1048576\n"},
      {"sys/fs/cgroup/user.slice/cpu.max", "max 100000\n"}},
     CGROUP_NO_LIMIT,
     0},
    {"a container sees its own group as the mount",
     {{"proc/self/cgroup", "0::/\n"},
      {"sys/fs/cgroup/memory.max", "1073741824\n"},
      {"sys/fs/cgroup/memory.current", "314572800\n"},
      {"sys/fs/cgroup/memory.stat", "anon 104857600\nfile 209715200\ninactive_file 104857600\n"
                                    "active_file 52428800\n"},
      {"sys/fs/cgroup/cpu.max", "250000 100000\n"}},
     (1024 - 300 + 150) * MIB,
     2},
    {"without a namespace the path is the host's, the mount the container's",
     {{"proc/self/cgroup", "0::/docker/0123\n"},
      {"sys/fs/cgroup/memory.max", "1073741824\n"},
      {"sys/fs/cgroup/cpu.max", "400000 100000\n"}},
     1024 * MIB,
     4},
    {"a path outside of what is mounted",
     {{"proc/self/cgroup", "0::/../other\n"},
      {"sys/fs/cgroup/memory.max", "2097152\n"},
      {"sys/fs/other/memory.max", "1048576\n"}},
     2 * MIB,
     0},
    {"the group around it has less left",
     {{"proc/self/cgroup", "0::/pod/server\n"},
      {"sys/fs/cgroup/pod/server/memory.max", "1073741824\n"},
      {"sys/fs/cgroup/pod/server/memory.current", "104857600\n"},
      {"sys/fs/cgroup/pod/server/cpu.max", "800000 100000\n"},
      {"sys/fs/cgroup/pod/memory.max", "1073741824\n"},
      {"sys/fs/cgroup/pod/memory.current", "734003200\n"},
      {"sys/fs/cgroup/pod/cpu.max", "600000 100000\n"}},
     324 * MIB,
     6},
    {"memory.high below memory.max",
     {{"proc/self/cgroup", "0::/s\n"},
      {"sys/fs/cgroup/s/memory.max", "1073741824\n"},
      {"sys/fs/cgroup/s/memory.high", "536870912\n"},
      {"sys/fs/cgroup/s/memory.current", "1048576\n"}},
     511 * MIB,
     0},
    {"more used than allowed, more cached than used, a tenth of a CPU",
     {{"proc/self/cgroup", "0::/a/b\n"},
      {"sys/fs/cgroup/a/b/memory.max", "1048576\n"},
      {"sys/fs/cgroup/a/b/memory.current", "2097152\n"},
      {"sys/fs/cgroup/a/memory.max", "1048576\n"},
      {"sys/fs/cgroup/a/memory.current", "4096\n"},
      {"sys/fs/cgroup/a/memory.stat", "inactive_file 8192\n"},
      {"sys/fs/cgroup/a/cpu.max", "10000 100000\n"}},
     0,
     1},
    {"version 1",
     {{"proc/self/cgroup", "4:memory:/docker/0123\n3:cpu,cpuacct:/docker/0123\n0::/\n"},
      {"sys/fs/cgroup/memory/docker/0123/memory.limit_in_bytes", "536870912\n"},
      {"sys/fs/cgroup/memory/docker/0123/memory.usage_in_bytes", "268435456\n"},
      {"sys/fs/cgroup/memory/docker/0123/memory.stat", "active_file 1\ntotal_inactive_file 1048576\n"
                                                       "total_active_file 2097152\n"},
      {"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
      {"sys/fs/cgroup/cpu,cpuacct/docker/0123/cpu.cfs_quota_us", "350000\n"},
      {"sys/fs/cgroup/cpu,cpuacct/docker/0123/cpu.cfs_period_us", "100000\n"},
      {"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"},
      {"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"}},
     259 * MIB,
     3},
    {"version 1, the mount is the container's; another controller's name ends alike",
     {{"proc/self/cgroup", "5:xcpu:/no\n4:memory:/docker/0123\n1:cpuacct:/no\n1:cpu:/docker/0123\n"},
      {"sys/fs/cgroup/memory/memory.limit_in_bytes", "1048576\n"},
      {"sys/fs/cgroup/cpuacct/no/cpu.cfs_quota_us", "100000\n"},
      {"sys/fs/cgroup/cpuacct/no/cpu.cfs_period_us", "100000\n"},
      {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n"},
      {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}},
     MIB,
     2},
    {"files that say nothing",
     {{"proc/self/cgroup", "\n0\n0:\nx::/y\n0::/a\n"},
      {"sys/fs/cgroup/a/memory.max", ""},
      {"sys/fs/cgroup/a/memory.high", "-1\n"},
      {"sys/fs/cgroup/a/memory.stat", "inactive_file\n\nx y z\n"},
      {"sys/fs/cgroup/a/cpu.max", "100000\n"},
      {"sys/fs/cgroup/cpu.max", "100000 0\n"}},
     CGROUP_NO_LIMIT,
     0},
};

static void put(const char *root, const struct file *f)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, f->path);
    for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        (void)mkdir(path, 0700);
        *p = '/';
    }
    FILE *out = fopen(path, "we");
    assert_non_null(out);
    assert_true(fputs(f->text, out) >= 0);
    assert_int_equal(fclose(out), 0);
}

static void test_trees(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof trees / sizeof *trees; i++) {
        char root[] = "/tmp/kvasir-cgroup-XXXXXX", command[64];
        assert_non_null(mkdtemp(root));
        for (const struct file *f = trees[i].files; f->path; f++) put(root, f);
        uint64_t memory = cgroup_memory_free(root);
        uint32_t cpus = cgroup_cpus(root);
        snprintf(command, sizeof command, "rm -r %s", root);
        assert_int_equal(system(command), 0);
        if (memory != trees[i].memory || cpus != trees[i].cpus)
            fail_msg("%s: %llu bytes and %u CPUs, not %llu and %u", trees[i].what, (unsigned long long)memory,
                     cpus, (unsigned long long)trees[i].memory, trees[i].cpus);
    }
}

/* The longest path that proc can name doesn't fit behind the mount: no limit, and nothing is written over. */
static void test_long_path(void **state)
{
    (void)state;
    char root[] = "/tmp/kvasir-cgroup-XXXXXX", command[64];
    static char text[6000];
    assert_non_null(mkdtemp(root));
    memset(text, 'a', sizeof text - 1);
    memcpy(text, "0::/", 4);
    put(root, &(struct file){"proc/self/cgroup", text});
    assert_true(cgroup_memory_free(root) == CGROUP_NO_LIMIT);
    assert_int_equal(cgroup_cpus(root), 0);
    snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trees),
        cmocka_unit_test(test_long_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
