/* Preloaded into a server by test_bodies.py: an allocation of a worker fails. Workers are the threads that
 * parse bodies: those that have made a JSON object. The file that NOMEM names is shared with the test. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static struct control {
    _Atomic long ready;   /* the server is up: threads that only load have passed */
    _Atomic long left;    /* allocations of workers until one fails; below 0: none */
    _Atomic long forever; /* all behind it fail too */
    _Atomic long failed;  /* how many did */
} * control;
static __thread bool worker;

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);

__attribute__((constructor)) static void start(void)
{
    int fd = open(getenv("NOMEM"), O_RDWR);
    void *at = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED) control = at;
    close(fd);
}

json_t *json_object(void)
{
    static json_t *(*real)(void);
    if (!real) real = (json_t * (*)(void)) dlsym(RTLD_NEXT, "json_object");
    worker = worker || (control->ready && gettid() != getpid());
    return real();
}

static bool fails(void)
{
    if (!worker || !control || atomic_load(&control->left) < 0) return false;
    if (atomic_load(&control->left) > 0) {
        atomic_fetch_sub(&control->left, 1);
        return false;
    }
    if (!atomic_load(&control->forever)) atomic_store(&control->left, -1);
    atomic_fetch_add(&control->failed, 1);
    return true;
}

void *malloc(size_t size)
{
    return fails() ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    return fails() ? NULL : __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
    return fails() ? NULL : __libc_realloc(old, size);
}
