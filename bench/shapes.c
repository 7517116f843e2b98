/* See shapes.h. */
#include "bench/shapes.h"

#include <stdint.h>
#include <string.h>

/* Four sliding-window layers and one with full attention. */
#define FOUR_AND_ONE                                                                                         \
    "'sliding_attention','sliding_attention','sliding_attention','sliding_attention','full_attention'"

/* JSON with ' for ". */
static const struct {
    const char *name, *config;
} shapes[] = {
    {"gemma3-270m",
     "{'model_type':'gemma3_text','vocab_size':262144,'hidden_size':640,'intermediate_size':2048,"
     "'num_hidden_layers':18,'num_attention_heads':4,'num_key_value_heads':1,'head_dim':256,"
     "'sliding_window':512,'max_position_embeddings':32768}"},
    {"gemma3-1b",
     "{'model_type':'gemma3_text','vocab_size':262144,'hidden_size':1152,'intermediate_size':6912,"
     "'num_hidden_layers':26,'num_attention_heads':4,'num_key_value_heads':1,'head_dim':256,"
     "'sliding_window':512,'max_position_embeddings':32768}"},
    {"gemma3-4b",
     "{'model_type':'gemma3','text_config':{'model_type':'gemma3_text','hidden_size':2560,"
     "'intermediate_size':10240,'num_hidden_layers':34,'rope_scaling':{'factor':8.0,"
     "'rope_type':'linear'},'sliding_window':1024},'vision_config':{'model_type':'siglip_vision_model',"
     "'hidden_size':1152,'intermediate_size':4304,'num_hidden_layers':27,'num_attention_heads':16,"
     "'image_size':896,'patch_size':14,'vision_use_head':false}}"},
    {"gemma4-e2b",
     "{'model_type':'gemma4','text_config':{'model_type':'gemma4_text','hidden_size':1536,"
     "'intermediate_size':6144,'num_hidden_layers':35,'num_attention_heads':8,'num_key_value_heads':1,"
     "'num_kv_shared_layers':20,'use_double_wide_mlp':true,'final_logit_softcapping':30.0,"
     "'layer_types':[" FOUR_AND_ONE "," FOUR_AND_ONE "," FOUR_AND_ONE "," FOUR_AND_ONE "," FOUR_AND_ONE
     "," FOUR_AND_ONE "," FOUR_AND_ONE "]},'vision_config':{'model_type':'gemma4_vision',"
     "'use_clipped_linears':true}}"},
    {"gemma4-e4b",
     "{'model_type':'gemma4','text_config':{'model_type':'gemma4_text','hidden_size':2560,"
     "'intermediate_size':10240,'num_hidden_layers':42,'num_attention_heads':8,'num_key_value_heads':2,"
     "'num_kv_shared_layers':18,'final_logit_softcapping':30.0},'vision_config':{"
     "'model_type':'gemma4_vision','use_clipped_linears':true}}"},
    {"gemma4-12b",
     "{'model_type':'gemma4_unified','text_config':{'model_type':'gemma4_unified_text',"
     "'hidden_size':3840,'intermediate_size':15360,'num_hidden_layers':48,'num_attention_heads':16,"
     "'num_key_value_heads':8,'num_global_key_value_heads':1,'attention_k_eq_v':true,"
     "'sliding_window':1024,'final_logit_softcapping':30.0,'use_bidirectional_attention':'vision'},"
     "'vision_config':{'model_type':'gemma4_unified_vision','mm_embed_dim':3840,"
     "'output_proj_dims':3840}}"},
    {"gemma4-26b-a4b",
     "{'model_type':'gemma4','text_config':{'model_type':'gemma4_text','hidden_size':2816,"
     "'intermediate_size':2112,'num_hidden_layers':30,'num_attention_heads':16,'num_key_value_heads':8,"
     "'num_global_key_value_heads':2,'attention_k_eq_v':true,'sliding_window':1024,"
     "'hidden_size_per_layer_input':0,'final_logit_softcapping':30.0,'enable_moe_block':true,"
     "'num_experts':128,'top_k_experts':8,'moe_intermediate_size':704,"
     "'use_bidirectional_attention':'vision'},'vision_config':{'hidden_size':1152,"
     "'intermediate_size':4304,'num_hidden_layers':27,'num_attention_heads':16,'num_key_value_heads':16,"
     "'head_dim':72,'standardize':true}}"},
    {"gemma4-31b",
     "{'model_type':'gemma4','text_config':{'model_type':'gemma4_text','hidden_size':5376,"
     "'intermediate_size':21504,'num_hidden_layers':60,'num_attention_heads':32,"
     "'num_key_value_heads':16,'num_global_key_value_heads':4,'attention_k_eq_v':true,"
     "'sliding_window':1024,'hidden_size_per_layer_input':0,'final_logit_softcapping':30.0,"
     "'use_bidirectional_attention':'vision'},'vision_config':{'hidden_size':1152,"
     "'intermediate_size':4304,'num_hidden_layers':27,'num_attention_heads':16,'num_key_value_heads':16,"
     "'head_dim':72,'standardize':true}}"},
    {"paligemma-3b",
     "{'model_type':'paligemma','text_config':{'model_type':'gemma','vocab_size':257216,"
     "'hidden_size':2048,'intermediate_size':16384,'num_hidden_layers':18,'num_attention_heads':8,"
     "'num_key_value_heads':1},'vision_config':{'hidden_size':1152,'intermediate_size':4304,"
     "'num_hidden_layers':27,'num_attention_heads':16,'image_size':224,'patch_size':14}}"},
    {"paligemma2-3b",
     "{'model_type':'paligemma','text_config':{'model_type':'gemma2','vocab_size':257216,"
     "'hidden_size':2304,'intermediate_size':9216,'num_hidden_layers':26,'num_attention_heads':8,"
     "'num_key_value_heads':4},'vision_config':{'hidden_size':1152,'intermediate_size':4304,"
     "'num_hidden_layers':27,'num_attention_heads':16,'image_size':224,'patch_size':14}}"},
    {"qwen2.5-0.5b",
     "{'model_type':'qwen2','hidden_size':896,'intermediate_size':4864,'num_hidden_layers':24,"
     "'num_attention_heads':14,'num_key_value_heads':2,'rope_theta':1000000.0,"
     "'tie_word_embeddings':true}"},
    {"qwen3-0.6b", "{'model_type':'qwen3','hidden_size':1024,'intermediate_size':3072,'num_hidden_layers':28,"
                   "'num_attention_heads':16,'num_key_value_heads':8,'max_position_embeddings':40960,"
                   "'rope_theta':1000000,'tie_word_embeddings':true}"},
    {"qwen3-30b-a3b",
     "{'model_type':'qwen3_moe','num_hidden_layers':48,'head_dim':128,'max_position_embeddings':40960,"
     "'norm_topk_prob':true,'rope_theta':1000000.0}"},
    {"qwen2-vl-2b",
     "{'model_type':'qwen2_vl','vocab_size':151936,'hidden_size':1536,'intermediate_size':8960,"
     "'num_hidden_layers':28,'num_attention_heads':12,'num_key_value_heads':2,'rms_norm_eps':1e-06,"
     "'tie_word_embeddings':true,'rope_scaling':{'type':'mrope','mrope_section':[16,24,24]},"
     "'vision_config':{'hidden_size':1536,'spatial_patch_size':14}}"},
    {"qwen2.5-vl-3b",
     "{'model_type':'qwen2_5_vl','vocab_size':151936,'hidden_size':2048,'intermediate_size':11008,"
     "'num_hidden_layers':36,'num_attention_heads':16,'num_key_value_heads':2,"
     "'max_position_embeddings':128000,'rms_norm_eps':1e-06,'tie_word_embeddings':true,'rope_scaling':{"
     "'type':'mrope','mrope_section':[16,24,24]},'vision_config':{'hidden_size':1280,"
     "'out_hidden_size':2048,'tokens_per_second':2}}"},
    {"qwen3-vl-2b",
     "{'model_type':'qwen3_vl','tie_word_embeddings':true,'text_config':{'hidden_size':2048,"
     "'intermediate_size':6144,'num_hidden_layers':28,'num_attention_heads':16,'num_key_value_heads':8,"
     "'max_position_embeddings':262144,'rope_theta':5000000,'rope_scaling':{'rope_type':'default',"
     "'mrope_interleaved':true,'mrope_section':[24,20,20]}},'vision_config':{'depth':24,"
     "'hidden_size':1024,'intermediate_size':4096,'out_hidden_size':2048,'deepstack_visual_indexes':[5,"
     "11,17]}}"},
    {"qwen3-vl-4b",
     "{'model_type':'qwen3_vl','tie_word_embeddings':true,'text_config':{'hidden_size':2560,"
     "'intermediate_size':9728,'num_hidden_layers':36,'num_attention_heads':32,'num_key_value_heads':8,"
     "'max_position_embeddings':262144,'rope_theta':5000000,'rope_scaling':{'rope_type':'default',"
     "'mrope_interleaved':true,'mrope_section':[24,20,20]}},'vision_config':{'depth':24,"
     "'hidden_size':1024,'intermediate_size':4096,'out_hidden_size':2560,'deepstack_visual_indexes':[5,"
     "11,17]}}"},
    {"qwen3-vl-8b",
     "{'model_type':'qwen3_vl','tie_word_embeddings':false,'text_config':{'hidden_size':4096,"
     "'intermediate_size':12288,'num_hidden_layers':36,'num_attention_heads':32,'num_key_value_heads':8,"
     "'max_position_embeddings':262144,'rope_theta':5000000,'rope_scaling':{'rope_type':'default',"
     "'mrope_interleaved':true,'mrope_section':[24,20,20]}},'vision_config':{'out_hidden_size':4096}}"},
    {"qwen3-vl-30b-a3b",
     "{'model_type':'qwen3_vl_moe','tie_word_embeddings':false,'text_config':{'hidden_size':2048,"
     "'intermediate_size':6144,'num_hidden_layers':48,'num_attention_heads':32,'num_key_value_heads':4,"
     "'max_position_embeddings':262144,'head_dim':128,'num_experts':128,'num_experts_per_tok':8,"
     "'moe_intermediate_size':768,'rope_theta':5000000,'rope_scaling':{'rope_type':'default',"
     "'mrope_interleaved':true,'mrope_section':[24,20,20]}},'vision_config':{'out_hidden_size':2048}}"},
    {"qwen3.5-0.8b",
     "{'model_type':'qwen3_5','tie_word_embeddings':true,'text_config':{'hidden_size':1024,"
     "'intermediate_size':3584,'num_hidden_layers':24,'num_attention_heads':8,'num_key_value_heads':2,"
     "'linear_num_value_heads':16,'max_position_embeddings':262144,"
     "'rope_parameters':{'rope_type':'default','rope_theta':10000000}},'vision_config':{'depth':12,"
     "'hidden_size':768,'num_heads':12,'intermediate_size':3072,'out_hidden_size':1024}}"},
    {"qwen3.5-2b",
     "{'model_type':'qwen3_5','tie_word_embeddings':true,'text_config':{'hidden_size':2048,"
     "'intermediate_size':6144,'num_hidden_layers':24,'num_attention_heads':8,'num_key_value_heads':2,"
     "'linear_num_value_heads':16,'max_position_embeddings':262144,"
     "'rope_parameters':{'rope_type':'default','rope_theta':10000000}},'vision_config':{'depth':24,"
     "'hidden_size':1024,'intermediate_size':4096,'out_hidden_size':2048}}"},
    {"qwen3.5-4b",
     "{'model_type':'qwen3_5','tie_word_embeddings':true,'text_config':{'hidden_size':2560,"
     "'intermediate_size':9216,'num_hidden_layers':32,'num_attention_heads':16,'num_key_value_heads':4,"
     "'linear_num_value_heads':32,'max_position_embeddings':262144,"
     "'rope_parameters':{'rope_type':'default','rope_theta':10000000}},'vision_config':{'depth':24,"
     "'hidden_size':1024,'intermediate_size':4096,'out_hidden_size':2560}}"},
    {"qwen3.5-9b",
     "{'model_type':'qwen3_5','tie_word_embeddings':false,'text_config':{'hidden_size':4096,"
     "'intermediate_size':12288,'num_hidden_layers':32,'num_attention_heads':16,'num_key_value_heads':4,"
     "'linear_num_value_heads':32,'max_position_embeddings':262144,"
     "'rope_parameters':{'rope_type':'default','rope_theta':10000000}},"
     "'vision_config':{'out_hidden_size':4096}}"},
    {"qwen3.5-35b-a3b",
     "{'model_type':'qwen3_5_moe','tie_word_embeddings':false,'text_config':{'num_hidden_layers':40,"
     "'max_position_embeddings':262144,'rope_parameters':{'rope_type':'default','rope_theta':10000000}},"
     "'vision_config':{'out_hidden_size':2048}}"},
    {"paddleocr-vl-0.9b", "{'model_type':'paddleocr_vl','tie_word_embeddings':false,'num_hidden_layers':18,"
                          "'max_position_embeddings':131072,'vision_config':{'hidden_size':1152}}"},
    {"glm-ocr-0.9b",
     "{'model_type':'glm_ocr','text_config':{'model_type':'glm_ocr_text','hidden_size':1536,"
     "'intermediate_size':4608,'num_hidden_layers':16,'num_attention_heads':16,'num_key_value_heads':8,"
     "'head_dim':128,'rope_parameters':{'rope_type':'default','rope_theta':10000,"
     "'mrope_section':[16,24,24]}},'vision_config':{'depth':24,'out_hidden_size':1536}}"},
    {"smolvlm-256m",
     "{'model_type':'smolvlm','scale_factor':4,'image_token_id':49190,"
     "'text_config':{'model_type':'llama','vocab_size':49280,'hidden_size':576,"
     "'intermediate_size':1536,'num_hidden_layers':30,'num_attention_heads':9,'num_key_value_heads':3,"
     "'max_position_embeddings':8192,'rope_theta':100000},'vision_config':{'hidden_size':768,"
     "'intermediate_size':3072,'num_hidden_layers':12,'num_attention_heads':12,'image_size':512,"
     "'patch_size':16}}"},
    {"granite-docling-258m",
     "{'model_type':'idefics3','scale_factor':4,'image_token_id':100270,"
     "'text_config':{'model_type':'llama','vocab_size':100352,'hidden_size':576,"
     "'intermediate_size':1536,'num_hidden_layers':30,'num_attention_heads':9,'num_key_value_heads':3,"
     "'max_position_embeddings':8192,'rope_theta':100000},'vision_config':{'hidden_size':768,"
     "'intermediate_size':3072,'num_hidden_layers':12,'num_attention_heads':12,'image_size':512,"
     "'patch_size':16}}"},
    {"internvl3-1b",
     "{'model_type':'internvl','text_config':{'model_type':'qwen2','vocab_size':151674,"
     "'hidden_size':896,'intermediate_size':4864,'num_hidden_layers':24,'num_attention_heads':14,"
     "'num_key_value_heads':2,'max_position_embeddings':32768,'rope_theta':1000000},"
     "'vision_config':{'attention_bias':true}}"},
    {"lfm2-vl-450m",
     "{'model_type':'lfm2_vl','text_config':{'model_type':'lfm2','hidden_size':1024,"
     "'block_ff_dim':6656,'num_hidden_layers':16,'num_attention_heads':16,'num_key_value_heads':8,"
     "'full_attn_idxs':[2,5,8,10,12,14]},'vision_config':{}}"},
};

const char *bench_shape_name(size_t i)
{
    return i < sizeof shapes / sizeof *shapes ? shapes[i].name : NULL;
}

static void put(FILE *f, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) fputc(s[i] == '\'' ? '"' : s[i], f);
}

/* Replaces the decoder's num_hidden_layers, which precedes the tower's. */
static void write_config(FILE *f, const char *config, const char *layers)
{
    static const char key[] = "'num_hidden_layers':";
    const char *at = strstr(config, key);
    if (at && *layers) {
        at += sizeof key - 1;
        put(f, config, (size_t)(at - config));
        fputs(layers, f);
        config = at + strspn(at, "0123456789");
    }
    put(f, config, strlen(config));
}

bool bench_shape_write(const char *shape, FILE *f)
{
    size_t n = strcspn(shape, "/");
    const char *layers = shape[n] ? shape + n + 1 : "";
    if (shape[n] && (!*layers || layers[strspn(layers, "0123456789")])) return false;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (strlen(shapes[i].name) != n || memcmp(shapes[i].name, shape, n) != 0) continue;
        write_config(f, shapes[i].config, layers);
        return true;
    }
    return false;
}

/* Draft models of some of them (gemma-4-*-it-assistant). */
static const struct {
    const char *name;
    uint32_t wide, hidden, ff, heads, window;
    bool clusters;
} drafters[] = {
    {"gemma4-e2b", 1536, 256, 2048, 4, 512, true},     {"gemma4-e4b", 2560, 256, 2048, 4, 512, true},
    {"gemma4-12b", 3840, 1024, 8192, 16, 1024, false}, {"gemma4-26b-a4b", 2816, 1024, 8192, 16, 1024, false},
    {"gemma4-31b", 5376, 1024, 8192, 32, 1024, false},
};

bool bench_drafter_write(const char *shape, FILE *f)
{
    size_t len = strcspn(shape, "/");
    for (size_t i = 0; i < sizeof drafters / sizeof *drafters; i++) {
        if (strlen(drafters[i].name) != len || strncmp(drafters[i].name, shape, len) != 0) continue;
        return fprintf(f,
                       "{\"model_type\":\"gemma4_assistant\",\"backbone_hidden_size\":%u,"
                       "\"use_ordered_embeddings\":%s,\"text_config\":{\"model_type\":\"gemma4_text\","
                       "\"hidden_size\":%u,\"intermediate_size\":%u,\"num_hidden_layers\":4,"
                       "\"num_attention_heads\":%u,\"num_key_value_heads\":1,\"sliding_window\":%u,"
                       "\"layer_types\":[\"sliding_attention\",\"sliding_attention\","
                       "\"sliding_attention\",\"full_attention\"]}}",
                       drafters[i].wide, drafters[i].clusters ? "true" : "false", drafters[i].hidden,
                       drafters[i].ff, drafters[i].heads, drafters[i].window) > 0;
    }
    return false;
}
