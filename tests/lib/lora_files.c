/* See lora_files.h. */
#include "tests/lib/lora_files.h"

#include "engine/checkpoint/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool is_target(const struct stf_tensor *t, bool tower)
{
    static const char *const text[] = {"q_proj.weight", "v_proj.weight", "down_proj.weight"},
                             *const vision[] = {"fc1.weight", "linear_fc1.weight", "attn.qkv.weight",
                                                "self_attn.q_proj.weight"};
    bool seen = strstr(t->name, "vis") != NULL, hit = false;
    if (t->rank != 2 || t->dtype > STF_BF16 || strstr(t->name, ".experts.") ||
        strncmp(t->name, "mtp.", 4) == 0 || strstr(t->name, "vit_merger") || (seen && !tower))
        return false;
    for (size_t i = 0; i < (seen ? 4 : 3); i++) {
        const char *tail = seen ? vision[i] : text[i];
        size_t n = strlen(t->name), k = strlen(tail);
        hit |= n > k && strcmp(t->name + n - k, tail) == 0;
    }
    return hit;
}

static void values(FILE *to, uint64_t n, float scale, uint64_t *random)
{
    for (uint64_t i = 0; i < n; i++) {
        *random = *random * 6364136223846793005ull + 1442695040888963407ull;
        float v = ((float)(*random >> 40) / (float)(1u << 24) - 0.5f) * scale;
        fwrite(&v, sizeof v, 1, to);
    }
}

static FILE *file(const char *dir, const char *name)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    if (!f) abort();
    return f;
}

bool lora_write(const char *checkpoint, const char *dir, uint32_t rank, uint64_t seed, bool tower)
{
    struct stf_files *files = NULL;
    struct err err;
    char *head = NULL, *data = NULL;
    size_t head_len, data_len, count = 0;
    if (stf_open(checkpoint, &files, &err)) return false;
    FILE *h = open_memstream(&head, &head_len), *d = open_memstream(&data, &data_len);
    for (size_t i = 0, at = 0; i < stf_count(files); i++) {
        const struct stf_tensor *t = stf_at(files, i);
        if (!is_target(t, tower)) continue;
        for (int b = 0; b < 2; b++) {
            uint64_t rows = b ? t->shape[0] : rank, columns = b ? rank : t->shape[1];
            size_t bytes = rows * columns * sizeof(float);
            fprintf(h,
                    "%c\"%.*s.lora_%c.weight\":{\"dtype\":\"F32\",\"shape\":[%llu,%llu],\"data_offsets\":[%"
                    "zu,%zu]}",
                    count++ ? ',' : '{', (int)(strlen(t->name) - strlen(".weight")), t->name, "AB"[b],
                    (unsigned long long)rows, (unsigned long long)columns, at, at + bytes);
            values(d, rows * columns, 0.5f, &seed);
            at += bytes;
        }
    }
    stf_close(files);
    fputc('}', h);
    fclose(h);
    fclose(d);
    if (mkdir(dir, 0700)) abort();
    FILE *weights = file(dir, "adapter_model.safetensors"), *config = file(dir, "adapter_config.json");
    uint64_t length = head_len;
    fwrite(&length, sizeof length, 1, weights);
    fwrite(head, 1, head_len, weights);
    fwrite(data, 1, data_len, weights);
    fprintf(config,
            "{\"peft_type\":\"LORA\",\"r\":%u,\"lora_alpha\":8,\"target_modules\":\"all-linear\",\"bias\":"
            "\"none\"}",
            rank);
    fclose(weights);
    fclose(config);
    free(head);
    free(data);
    return count > 0;
}
