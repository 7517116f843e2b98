/* The endpoints: handlers that a route starts when a request's body is complete. Each ends in
 * request_respond, request_fail or request_work (http/request.h). Event loop's thread.
 *
 * To add one: a function, declared here and defined in the file of its group; a line in the table of
 * server/routes.c; a line in docs/http.md; its path in openapi.json. */
#ifndef KVASIR_API_H
#define KVASIR_API_H

struct request;

/* generate.c */
void api_chat_start(struct request *r);
void api_completions_start(struct request *r);
void api_messages_start(struct request *r);
void api_responses_start(struct request *r);
void api_compact_start(struct request *r);
void api_embeddings_start(struct request *r);
void api_ollama_chat_start(struct request *r);
void api_ollama_generate_start(struct request *r);
void api_ollama_embed_start(struct request *r);
void api_ollama_embeddings_start(struct request *r);
void api_pooling_start(struct request *r);
void api_classify_start(struct request *r);
void api_rerank_start(struct request *r);
void api_score_start(struct request *r);
/* responses.c */
void api_response_start(struct request *r);
/* tokenize.c */
void api_tokenize_start(struct request *r);
void api_detokenize_start(struct request *r);
void api_apply_template_start(struct request *r);
void api_count_tokens_start(struct request *r);
void api_input_tokens_start(struct request *r);
void api_chat_tokens_start(struct request *r);
/* models.c */
void api_models_start(struct request *r);
void api_model_start(struct request *r);
void api_server_info_start(struct request *r);
void api_props_start(struct request *r);
void api_tokenizer_info_start(struct request *r);
/* ollama.c */
void api_ollama_tags_start(struct request *r);
void api_ollama_ps_start(struct request *r);
void api_ollama_show_start(struct request *r);
void api_ollama_version_start(struct request *r);
/* ops.c */
void api_health_start(struct request *r);
void api_ready_start(struct request *r);
void api_live_start(struct request *r);
void api_version_start(struct request *r);
void api_load_start(struct request *r);
void api_metrics_start(struct request *r);
void api_root_start(struct request *r);
void api_page_start(struct request *r);
/* cache_tree.c */
void api_cache_tree_start(struct request *r);
/* openapi.c */
void api_openapi_start(struct request *r);
/* admin.c */
void api_drop_start(struct request *r); /* what the route's label says */

#endif
