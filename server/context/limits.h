/* Limits of the HTTP interface that no flag changes. docs/http.md lists them under Limits. */
#ifndef KVASIR_SERVER_LIMITS_H
#define KVASIR_SERVER_LIMITS_H

#define LIMIT_URL_BYTES    8192u
#define LIMIT_ARGUMENTS    256u
#define LIMIT_HEADER_BYTES 65536u
#define LIMIT_HEADERS      256u
#define LIMIT_CHUNK_LINE   512u /* size line and extensions of one body chunk */
#define LIMIT_MESSAGES     65536u
#define LIMIT_PARTS        65536u /* in all messages, tool calls included */
#define LIMIT_PROMPTS      2048u
#define LIMIT_PROMPT_TOKENS                                                                                  \
    (4u << 20) /* of all prompts of a request, if it has several; they are tokenized in a few seconds */
#define LIMIT_STOPS      16u
#define LIMIT_STOP_BYTES 1024u
#define LIMIT_STOP_IDS   48u /* plus at most 16 EOS tokens: the scheduler's limit */
#define LIMIT_BIASES     1024u
#define LIMIT_TOOLS      512u
#define LIMIT_CONSTRAINT_BYTES                                                                               \
    (2u << 20)                  /* a constraint's description, with the tools: half a second to compile */
#define LIMIT_VIDEOS         4u /* per prompt; each may need 192 MB of pixels */
#define LIMIT_TOP_LOGPROBS   20u
#define LIMIT_CHOICES        4096u        /* prompts times n per request */
#define LIMIT_RESPONSE_BYTES (512u << 20) /* one non-streaming JSON response */
#define LIMIT_BODIES_BYTES   (1ull << 30) /* request bodies held at once, all connections */
#define LIMIT_PARSE_BYTES                                                                                    \
    (512u << 20) /* memory for the bodies being parsed; one that needs more is parsed alone */
#define LIMIT_PARSE_FREE (8u << 20) /* a body that needs less is not counted and never waits */
#define LIMIT_LARGE_JOB  (1u << 20) /* with more bytes of body a job may take long */
#define LIMIT_SMALL_BODY                                                                                     \
    65536u /* a rejected request's body up to this size is read and discarded, to keep the connection */
#define LIMIT_HEADER_SECONDS 10u   /* until the headers of a connection's first request are complete */
#define LIMIT_BODY_SECONDS   300u  /* until a body is complete */
#define LIMIT_UPLOAD_SECONDS 3600u /* of a file for /v1/files */
#define LIMIT_UPLOAD_BYTES   (512u << 20)
#define LIMIT_UPLOAD_CHUNK   (1u << 20) /* of it, held in memory */
#define LIMIT_BODY_SILENCE   60u   /* seconds without a byte of it; --keep-alive-timeout if that is less */
#define LIMIT_WEBSOCKET_IDLE 3600u /* seconds without a byte, while no response runs */
#define LIMIT_WRITE_SECONDS  60u   /* a client that reads no byte for so long is disconnected */
#define LIMIT_LINGER_SILENCE                                                                                 \
    2u /* after the last response, a connection is drained until it is silent for so long ... */
#define LIMIT_LINGER_SECONDS    30u          /* ... or for so long in total */
#define LIMIT_CONNECTION_MEMORY (160u << 10) /* libmicrohttpd's pool: header block, one chunk */

#endif
