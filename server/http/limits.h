/* Limits of the HTTP interface that no flag changes. docs/http.md lists them under Limits. */
#ifndef KVASIR_SERVER_LIMITS_H
#define KVASIR_SERVER_LIMITS_H

#define LIMIT_URL_BYTES      8192u
#define LIMIT_ARGUMENTS      256u
#define LIMIT_HEADER_BYTES   65536u
#define LIMIT_HEADERS        256u
#define LIMIT_CHUNK_LINE     512u /* size and extensions of one chunk of a body */
#define LIMIT_JSON_DEPTH     128u
#define LIMIT_JSON_TOKENS    4000000u
#define LIMIT_ILL_FORMED     65536u /* bytes and surrogates of a body that U+FFFD replaces */
#define LIMIT_JSON_MEMBERS   65536u /* of one object: beyond, its table costs a microsecond for each */
#define LIMIT_MESSAGES       65536u
#define LIMIT_PARTS          65536u /* of all messages' contents, tool calls counted */
#define LIMIT_PROMPTS        2048u
#define LIMIT_STOPS          16u
#define LIMIT_STOP_BYTES     1024u
#define LIMIT_STOP_IDS       48u /* with at most 16 end tokens: what the scheduler takes */
#define LIMIT_BIASES         1024u
#define LIMIT_TOOLS          128u
#define LIMIT_VIDEOS         4u /* of one request; each may come to 192 MB of pixels */
#define LIMIT_TOP_LOGPROBS   20u
#define LIMIT_CHOICES        4096u        /* prompts times n of one request */
#define LIMIT_RESPONSE_BYTES (512u << 20) /* one whole JSON answer */
#define LIMIT_BODIES_BYTES   (1ull << 30) /* request bodies held at once, all connections */
#define LIMIT_PARSE_BYTES                                                                                    \
    (512u << 20)                    /* memory for the bodies being read; one that takes more is read alone */
#define LIMIT_PARSE_FREE (8u << 20) /* a body that takes less is not counted and never waits */
#define LIMIT_SMALL_BODY                                                                                     \
    65536u /* a refused request's body of at most this size is read and dropped, to keep the connection */
#define LIMIT_HEADER_SECONDS 10u  /* first request of a connection: header complete */
#define LIMIT_BODY_SECONDS   300u /* a body must be complete */
#define LIMIT_BODY_SILENCE   60u  /* seconds without a byte of it; --keep-alive-timeout where that is less */
#define LIMIT_WRITE_SECONDS  60u  /* a client that reads no byte of its answer for so long is disconnected */
#define LIMIT_LINGER_SILENCE                                                                                 \
    2u /* a connection that has its last answer is read on until it is silent for so long ... */
#define LIMIT_LINGER_SECONDS    30u          /* ... or for so long in all */
#define LIMIT_CONNECTION_MEMORY (160u << 10) /* libmicrohttpd's pool: header block, one chunk */

#endif
