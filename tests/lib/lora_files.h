/* Random LoRA adapters of a checkpoint, in PEFT's files. */
#ifndef KVASIR_TEST_LORA_FILES_H
#define KVASIR_TEST_LORA_FILES_H

#include <stdbool.h>
#include <stdint.h>

/* Writes one to `dir`, which it makes: of some linears of every layer, of the tower's too if `tower`. False:
 * the checkpoint has none of those. */
bool lora_write(const char *checkpoint, const char *dir, uint32_t rank, uint64_t seed, bool tower);

#endif
