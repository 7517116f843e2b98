/* See cuda_loader.h. */
#include "kernels/cuda_loader.h"

#include "config/base/env.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LIBRARY "kvasir-cuda.so"

/* A test program may have the emulated device linked in: then that is used. */
const struct be_ops *be_cuda_host_ops(void) __attribute__((weak));

/* The library's path; false: no such file. */
static bool loader__path(char *out, size_t room)
{
    const char *named = env_get("KVASIR_CUDA_LIBRARY");
    if (named && *named) return snprintf(out, room, "%s", named) < (int)room;
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0) return false;
    exe[n] = 0;
    char *slash = strrchr(exe, '/');
    if (!slash) return false;
    *slash = 0;
    int len = snprintf(out, room, "%s/" LIBRARY, exe);
    return len > 0 && (size_t)len < room && access(out, R_OK) == 0;
}

/* Whether [at, at + bytes) lies in a file of `size` bytes. */
static bool within(uint64_t at, uint64_t bytes, uint64_t size)
{
    return at <= size && bytes <= size - at;
}

/* Whether the file is as long as its own headers say. dlopen maps what they say, and touching a page after
 * the end of a truncated file kills the process. Files that aren't ELF of this machine's kind are left to
 * dlopen, which reports them. The section headers are not needed, but are at the end of the file. */
static bool loader__whole(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat sb;
    Elf64_Ehdr h;
    if (fd < 0) return true; /* a bare name, which dlopen looks up; or dlopen reports why not */
    bool whole = true, elf = fstat(fd, &sb) == 0 && S_ISREG(sb.st_mode) &&
                             pread(fd, &h, sizeof h, 0) == (ssize_t)sizeof h &&
                             memcmp(h.e_ident, ELFMAG, SELFMAG) == 0 && h.e_ident[EI_CLASS] == ELFCLASS64;
    uint64_t size = elf ? (uint64_t)sb.st_size : 0;
    if (elf) {
        whole = within(h.e_phoff, (uint64_t)h.e_phnum * sizeof(Elf64_Phdr), size) &&
                (!h.e_shoff || within(h.e_shoff, (uint64_t)h.e_shnum * h.e_shentsize, size));
        for (unsigned i = 0; whole && i < h.e_phnum; i++) {
            Elf64_Phdr p;
            whole = pread(fd, &p, sizeof p, (off_t)(h.e_phoff + i * sizeof p)) == (ssize_t)sizeof p &&
                    (p.p_type == PT_NULL || within(p.p_offset, p.p_filesz, size));
        }
    }
    close(fd);
    return whole;
}

/* What the library exports. ISO C has no conversion of an object pointer to a function pointer; POSIX says
 * that these bytes are one. */
struct library {
    const struct be_ops *(*ops)(void);
    const char *(*probe)(void);
    uint32_t (*devices)(struct be_cuda_device *out, uint32_t max);
    void (*versions)(int *driver, int *runtime);
};

static bool loader__open(struct library *out, char *why, size_t room)
{
    char path[PATH_MAX + 32];
    static const char *const names[] = {"be_cuda_ops", "be_cuda_probe", "be_cuda_list", "be_cuda_versions"};
    void *symbols[4];
    if (!loader__path(path, sizeof path)) {
        snprintf(why, room, "the CUDA backend is not built (make cuda)");
        return false;
    }
    if (!loader__whole(path)) {
        snprintf(why, room, "%s: cut short or damaged", path);
        return false;
    }
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        snprintf(why, room, "%s", dlerror());
        return false;
    }
    for (int i = 0; i < 4; i++) {
        symbols[i] = dlsym(lib, names[i]);
        if (symbols[i]) continue;
        snprintf(why, room, LIBRARY " is of another version");
        (void)dlclose(lib);
        return false;
    }
    memcpy(&out->ops, &symbols[0], sizeof out->ops);
    memcpy(&out->probe, &symbols[1], sizeof out->probe);
    memcpy(&out->devices, &symbols[2], sizeof out->devices);
    memcpy(&out->versions, &symbols[3], sizeof out->versions);
    return true;
}

const struct be_ops *be_cuda_load(char *why, size_t room)
{
    struct library lib;
    if (be_cuda_host_ops) return be_cuda_host_ops();
    if (!loader__open(&lib, why, room)) return NULL;
    const char *missing = lib.probe();
    if (missing) {
        snprintf(why, room, "%s", missing);
        return NULL;
    }
    return lib.ops();
}

uint32_t be_cuda_devices(struct be_cuda_device *out, uint32_t max, char version[96], char *why, size_t room)
{
    struct library lib;
    int driver = 0, runtime = 0;
    version[0] = 0;
    if (!loader__open(&lib, why, room)) return 0;
    lib.versions(&driver, &runtime);
    if (driver)
        snprintf(version, 96, "CUDA runtime %d.%d, driver for up to %d.%d", runtime / 1000,
                 runtime % 1000 / 10, driver / 1000, driver % 1000 / 10);
    else snprintf(version, 96, "CUDA runtime %d.%d, no driver", runtime / 1000, runtime % 1000 / 10);
    const char *missing = lib.probe();
    uint32_t n = lib.devices(out, max);
    snprintf(why, room, "%s", missing ? missing : n ? "" : "the GPU can't be asked");
    return missing ? 0 : n;
}
