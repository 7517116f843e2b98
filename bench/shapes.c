/* See shapes.h. */
#include "bench/shapes.h"

#include <stdint.h>
#include <string.h>

/* Seven times four sliding-window layers and one with full attention. */
#define FIVE                                                                                                 \
    "'sliding_attention','sliding_attention','sliding_attention','sliding_attention','full_attention'"
#define SEVEN_TIMES_FIVE FIVE "," FIVE "," FIVE "," FIVE "," FIVE "," FIVE "," FIVE

/* JSON with ' for ", and $ before values of `keys`, in their order: "$640/2048", "$//48". */
static const struct {
    const char *name, *config;
} shapes[] = {
    {"gemma3-270m", "{'model_type':'gemma3_text','vocab_size':262144,$640/2048/18/4/1,'head_dim':256,"
                    "'sliding_window':512,'max_position_embeddings':32768}"},
    {"gemma3-1b", "{'model_type':'gemma3_text','vocab_size':262144,$1152/6912/26/4/1,'head_dim':256,"
                  "'sliding_window':512,'max_position_embeddings':32768}"},
    {"gemma3-4b", "{'model_type':'gemma3','text_config':{'model_type':'gemma3_text',$2560/10240/34,"
                  "'rope_scaling':{'factor':8.0,'rope_type':'linear'},'sliding_window':1024},"
                  "'vision_config':{'model_type':'siglip_vision_model',$1152/4304/27/16,'image_size':896,"
                  "'patch_size':14,'vision_use_head':false}}"},
    {"gemma4-e2b", "{'model_type':'gemma4','text_config':{'model_type':'gemma4_text',$1536/6144/35/8/1,"
                   "'num_kv_shared_layers':20,'use_double_wide_mlp':true,'final_logit_softcapping':30.0,"
                   "'layer_types':[" SEVEN_TIMES_FIVE
                   "]},'vision_config':{'model_type':'gemma4_vision','use_clipped_linears':true}}"},
    {"gemma4-e4b", "{'model_type':'gemma4','text_config':{'model_type':'gemma4_text',$2560/10240/42/8/2,"
                   "'num_kv_shared_layers':18,'final_logit_softcapping':30.0},"
                   "'vision_config':{'model_type':'gemma4_vision','use_clipped_linears':true}}"},
    {"gemma4-12b",
     "{'model_type':'gemma4_unified','text_config':{'model_type':'gemma4_unified_text',"
     "$3840/15360/48/16/8,'num_global_key_value_heads':1,'attention_k_eq_v':true,'sliding_window':1024,"
     "'final_logit_softcapping':30.0,'use_bidirectional_attention':'vision'},"
     "'vision_config':{'model_type':'gemma4_unified_vision','mm_embed_dim':3840,'output_proj_dims':3840}}"},
    {"gemma4-26b-a4b",
     "{'model_type':'gemma4','text_config':{'model_type':'gemma4_text',$2816/2112/30/16/8,"
     "'num_global_key_value_heads':2,'attention_k_eq_v':true,'sliding_window':1024,"
     "'hidden_size_per_layer_input':0,'final_logit_softcapping':30.0,'enable_moe_block':true,"
     "'num_experts':128,'top_k_experts':8,'moe_intermediate_size':704,"
     "'use_bidirectional_attention':'vision'},'vision_config':{$1152/4304/27/16/16,'head_dim':72,"
     "'standardize':true}}"},
    {"gemma4-31b",
     "{'model_type':'gemma4','text_config':{'model_type':'gemma4_text',$5376/21504/60/32/16,"
     "'num_global_key_value_heads':4,'attention_k_eq_v':true,'sliding_window':1024,"
     "'hidden_size_per_layer_input':0,'final_logit_softcapping':30.0,"
     "'use_bidirectional_attention':'vision'},'vision_config':{$1152/4304/27/16/16,'head_dim':72,"
     "'standardize':true}}"},
    {"paligemma-3b",
     "{'model_type':'paligemma','text_config':{'model_type':'gemma','vocab_size':257216,"
     "$2048/16384/18/8/1},'vision_config':{$1152/4304/27/16,'image_size':224,'patch_size':14}}"},
    {"paligemma2-3b",
     "{'model_type':'paligemma','text_config':{'model_type':'gemma2','vocab_size':257216,"
     "$2304/9216/26/8/4},'vision_config':{$1152/4304/27/16,'image_size':224,'patch_size':14}}"},
    {"qwen2.5-0.5b",
     "{'model_type':'qwen2',$896/4864/24/14/2,'rope_theta':1000000.0,'tie_word_embeddings':true}"},
    {"qwen3-0.6b",
     "{'model_type':'qwen3',$1024/3072/28/16/8,'max_position_embeddings':40960,'rope_theta':1000000,"
     "'tie_word_embeddings':true}"},
    {"qwen3-30b-a3b", "{'model_type':'qwen3_moe',$//48,'head_dim':128,'max_position_embeddings':40960,"
                      "'norm_topk_prob':true,'rope_theta':1000000.0}"},
    {"qwen2-vl-2b", "{'model_type':'qwen2_vl','vocab_size':151936,$1536/8960/28/12/2,'rms_norm_eps':1e-06,"
                    "'tie_word_embeddings':true,'rope_scaling':{'type':'mrope','mrope_section':[16,24,24]},"
                    "'vision_config':{'hidden_size':1536,'spatial_patch_size':14}}"},
    {"qwen2.5-vl-3b",
     "{'model_type':'qwen2_5_vl','vocab_size':151936,$2048/11008/36/16/2,"
     "'max_position_embeddings':128000,'rms_norm_eps':1e-06,'tie_word_embeddings':true,"
     "'rope_scaling':{'type':'mrope','mrope_section':[16,24,24]},'vision_config':{'hidden_size':1280,"
     "'out_hidden_size':2048,'tokens_per_second':2}}"},
    {"qwen3-vl-2b",
     "{'model_type':'qwen3_vl','tie_word_embeddings':true,'text_config':{$2048/6144/28/16/8,"
     "'max_position_embeddings':262144,'rope_theta':5000000,'rope_scaling':{'rope_type':'default',"
     "'mrope_interleaved':true,'mrope_section':[24,20,20]}},'vision_config':{'depth':24,"
     "'hidden_size':1024,'intermediate_size':4096,'out_hidden_size':2048,'deepstack_visual_indexes':[5,"
     "11,17]}}"},
    {"qwen3-vl-4b",
     "{'model_type':'qwen3_vl','tie_word_embeddings':true,'text_config':{$2560/9728/36/32/8,"
     "'max_position_embeddings':262144,'rope_theta':5000000,'rope_scaling':{'rope_type':'default',"
     "'mrope_interleaved':true,'mrope_section':[24,20,20]}},'vision_config':{'depth':24,"
     "'hidden_size':1024,'intermediate_size':4096,'out_hidden_size':2560,'deepstack_visual_indexes':[5,"
     "11,17]}}"},
    {"qwen3-vl-8b",
     "{'model_type':'qwen3_vl','tie_word_embeddings':false,'text_config':{$4096/12288/36/32/8,"
     "'max_position_embeddings':262144,'rope_theta':5000000,'rope_scaling':{'rope_type':'default',"
     "'mrope_interleaved':true,'mrope_section':[24,20,20]}},'vision_config':{'out_hidden_size':4096}}"},
    {"qwen3-vl-30b-a3b",
     "{'model_type':'qwen3_vl_moe','tie_word_embeddings':false,'text_config':{$2048/6144/48/32/4,"
     "'max_position_embeddings':262144,'head_dim':128,'num_experts':128,'num_experts_per_tok':8,"
     "'moe_intermediate_size':768,'rope_theta':5000000,'rope_scaling':{'rope_type':'default',"
     "'mrope_interleaved':true,'mrope_section':[24,20,20]}},'vision_config':{'out_hidden_size':2048}}"},
    {"qwen3.5-0.8b",
     "{'model_type':'qwen3_5','tie_word_embeddings':true,'text_config':{$1024/3584/24/8/2,"
     "'linear_num_value_heads':16,'max_position_embeddings':262144,"
     "'rope_parameters':{'rope_type':'default','rope_theta':10000000}},'vision_config':{'depth':12,"
     "'hidden_size':768,'num_heads':12,'intermediate_size':3072,'out_hidden_size':1024}}"},
    {"qwen3.5-2b",
     "{'model_type':'qwen3_5','tie_word_embeddings':true,'text_config':{$2048/6144/24/8/2,"
     "'linear_num_value_heads':16,'max_position_embeddings':262144,"
     "'rope_parameters':{'rope_type':'default','rope_theta':10000000}},'vision_config':{'depth':24,"
     "'hidden_size':1024,'intermediate_size':4096,'out_hidden_size':2048}}"},
    {"qwen3.5-4b",
     "{'model_type':'qwen3_5','tie_word_embeddings':true,'text_config':{$2560/9216/32/16/4,"
     "'linear_num_value_heads':32,'max_position_embeddings':262144,"
     "'rope_parameters':{'rope_type':'default','rope_theta':10000000}},'vision_config':{'depth':24,"
     "'hidden_size':1024,'intermediate_size':4096,'out_hidden_size':2560}}"},
    {"qwen3.5-9b", "{'model_type':'qwen3_5','tie_word_embeddings':false,'text_config':{$4096/12288/32/16/4,"
                   "'linear_num_value_heads':32,'max_position_embeddings':262144,"
                   "'rope_parameters':{'rope_type':'default','rope_theta':10000000}},"
                   "'vision_config':{'out_hidden_size':4096}}"},
    {"qwen3.5-35b-a3b",
     "{'model_type':'qwen3_5_moe','tie_word_embeddings':false,'text_config':{$//40,"
     "'max_position_embeddings':262144,'rope_parameters':{'rope_type':'default','rope_theta':10000000}},"
     "'vision_config':{'out_hidden_size':2048}}"},
    {"paddleocr-vl-0.9b", "{'model_type':'paddleocr_vl','tie_word_embeddings':false,$//18,"
                          "'max_position_embeddings':131072,'vision_config':{'hidden_size':1152}}"},
    {"glm-ocr-0.9b",
     "{'model_type':'glm_ocr','text_config':{'model_type':'glm_ocr_text',$1536/4608/16/16/8,"
     "'head_dim':128,'rope_parameters':{'rope_type':'default','rope_theta':10000,'mrope_section':[16,24,"
     "24]}},'vision_config':{'depth':24,'out_hidden_size':1536}}"},
    {"smolvlm-256m", "{'model_type':'smolvlm','scale_factor':4,'image_token_id':49190,"
                     "'text_config':{'model_type':'llama','vocab_size':49280,$576/1536/30/9/3,"
                     "'max_position_embeddings':8192,'rope_theta':100000},'vision_config':{$768/3072/12/12,"
                     "'image_size':512,'patch_size':16}}"},
    {"granite-docling-258m",
     "{'model_type':'idefics3','scale_factor':4,'image_token_id':100270,"
     "'text_config':{'model_type':'llama','vocab_size':100352,$576/1536/30/9/3,"
     "'max_position_embeddings':8192,'rope_theta':100000},'vision_config':{$768/3072/12/12,"
     "'image_size':512,'patch_size':16}}"},
    {"internvl3-1b",
     "{'model_type':'internvl','text_config':{'model_type':'qwen2','vocab_size':151674,$896/4864/24/14/2,"
     "'max_position_embeddings':32768,'rope_theta':1000000},'vision_config':{'attention_bias':true}}"},
    {"lfm2-vl-450m",
     "{'model_type':'lfm2_vl','text_config':{'model_type':'lfm2','hidden_size':1024,'block_ff_dim':6656,"
     "$//16,'num_attention_heads':16,'num_key_value_heads':8,'full_attn_idxs':[2,5,8,10,"
     "12,14]},'vision_config':{}}"},
};
static const char *const keys[] = {"hidden_size", "intermediate_size", "num_hidden_layers",
                                   "num_attention_heads", "num_key_value_heads"};

const char *bench_shape_name(size_t i)
{
    return i < sizeof shapes / sizeof *shapes ? shapes[i].name : NULL;
}

/* layers: in place of the decoder's number of them, which precedes the tower's; "": as it is. */
static void write_config(FILE *f, const char *s, const char *layers)
{
    for (; *s; s++) {
        const char *comma = "";
        if (*s != '$') fputc(*s == '\'' ? '"' : *s, f);
        for (size_t k = 0; *s == '$' || *s == '/'; k++) {
            int n = (int)strspn(++s, "0123456789");
            if (k == 2 && *layers) fprintf(f, "%s\"%s\":%s", comma, keys[k], layers), layers = "";
            else if (n) fprintf(f, "%s\"%s\":%.*s", comma, keys[k], n, s);
            if (n) comma = ",";
            s += n;
            if (*s != '/') s--;
        }
    }
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
