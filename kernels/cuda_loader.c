/* See cuda_loader.h. */
#include "kernels/cuda_loader.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "kvasir-cuda.so"

/* The library's path; false: there is no such file. */
static bool loader__path(char *out, size_t room)
{
    const char *named = getenv("KVASIR_CUDA_LIBRARY");
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

const struct be_ops *be_cuda_load(char *why, size_t room)
{
    char path[PATH_MAX + 32];
    if (!loader__path(path, sizeof path)) {
        snprintf(why, room, "there is no " LIBRARY " beside the program");
        return NULL;
    }
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        snprintf(why, room, "%s", dlerror());
        return NULL;
    }
    /* ISO C has no conversion of an object pointer to a function pointer; POSIX says that these bytes are one. */
    const struct be_ops *(*entry)(void) = NULL;
    const char *(*probe)(void) = NULL;
    void *symbols[2] = {dlsym(lib, "be_cuda_ops"), dlsym(lib, "be_cuda_probe")};
    memcpy(&entry, &symbols[0], sizeof entry);
    memcpy(&probe, &symbols[1], sizeof probe);
    const char *missing = !entry || !probe ? LIBRARY " is of another version" : probe();
    if (missing) {
        snprintf(why, room, "%s", missing);
        (void)dlclose(lib);
        return NULL;
    }
    return entry();
}
