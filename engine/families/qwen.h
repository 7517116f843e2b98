/* What all Qwen files share: the decoder, the names, what the three towers have in common. Used by
 * engine/families/qwen*.c only. */
#ifndef KVASIR_MODELS_QWEN_H
#define KVASIR_MODELS_QWEN_H

#include "engine/model/model_desc.h"

/* The decoder of every generation: d is overwritten; d->layers is the caller's (model_desc_free). ST_NOMEM.
 */
enum status qwen_describe_decoder(const struct hf_config *c, struct model_desc *d,
                                  struct err *err) KV_MUST_CHECK;
/* The parts of the tower that all generations have (merging end, fused qkv, 2-D rotary), with the names of
 * these tensors. */
void qwen_describe_tower(const struct hf_config *c, struct model_desc *d);
/* How a picture is written; videos as one run of soft tokens (Qwen2-VL, Qwen2.5-VL). */
void qwen_describe_images(const struct hf_config *c, struct model_desc *d);

#endif
