/* A checkpoint out of GGUF files: what a directory has in config.json, generation_config.json and
 * preprocessor_config.json, and its tensors under the names that they have there. What differs between
 * families stands in their records. ST_UNSUPPORTED: an architecture or an option that we don't have, in one
 * line. Used by engine/families/load.c and images.c only. */
#ifndef KVASIR_FROM_GGUF_H
#define KVASIR_FROM_GGUF_H

#include "config/hf/config.h"

struct family_prompt;
struct image_config;
struct model_desc;
struct stf_files;

/* As family_load; *d is zero. */
enum status gguf_config(const char *model, const char *mmproj, struct hf_config *c, struct model_desc *d,
                        struct err *err) KV_MUST_CHECK;
enum status gguf_generation(const char *model, struct hf_generation *g, struct err *err) KV_MUST_CHECK;
enum status gguf_prompt(const char *model, const struct family_prompt **out, struct err *err) KV_MUST_CHECK;
/* Over the class defaults in *out. ST_NOT_FOUND: there is no tower. */
enum status gguf_images(const char *model, const char *mmproj, bool videos, struct image_config *out,
                        struct err *err) KV_MUST_CHECK;
enum status gguf_open_tensors(const char *model, const char *mmproj, struct stf_files **out,
                              struct err *err) KV_MUST_CHECK;

#endif
