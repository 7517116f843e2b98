/* Qwen2, Qwen2.5, Qwen3 and Qwen3-MoE without pictures: the decoder of qwen.c with one rotary axis. */
#include "engine/families/qwen.h"

enum status qwen_text_describe(const struct hf_config *c, struct model_desc *out, struct err *err)
{
    return qwen_describe_decoder(c, out, err);
}
