/* Runs a program of tests/fuzz without libFuzzer: each file of a directory as it is, cut short, and with
 * bytes changed, the same each time. For builds by a compiler without libFuzzer, and for short runs. usage:
 * fuzz_NAME COPIES DIRECTORY     COPIES: changed copies of each file */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 16 << 10 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint32_t rnd(size_t below)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % below);
}

/* On the heap and of exactly this size, so that the address sanitizer sees a read behind its end. */
static void run(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy) abort();
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

int main(int argc, char **argv)
{
    static uint8_t data[MOST_BYTES], changed[MOST_BYTES];
    struct dirent **names;
    size_t inputs = 0;
    int n = argc == 3 ? scandir(argv[2], &names, NULL, alphasort) : -1;
    if (n < 0) return fprintf(stderr, "usage: %s COPIES DIRECTORY\n", argv[0]), 2;
    for (int i = 0; i < n; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", argv[2], names[i]->d_name);
        FILE *f = names[i]->d_type == DT_REG ? fopen(path, "rb") : NULL;
        free(names[i]);
        if (!f) continue;
        size_t size = fread(data, 1, sizeof data, f);
        fclose(f);
        run(data, size);
        for (int c = 0; c < atoi(argv[1]) && size; c++) {
            size_t keep = c % 4 ? size : rnd(size + 1);
            memcpy(changed, data, keep);
            for (uint32_t k = rnd(4); k && keep; k--) changed[rnd(keep)] = (uint8_t)rnd(256);
            run(changed, keep);
        }
        inputs += 1 + (size ? (size_t)atoi(argv[1]) : 0);
    }
    free(names);
    printf("stat::number_of_executed_units: %zu\n", inputs);
    return !inputs;
}
