/* Receipts: what binds a response to the weights, the arithmetic and the request that it comes from, so that
 * anyone with the same weights recomputes it (docs/receipts.md). An in-toto Statement as JSON, in a DSSE
 * envelope if there is a key. Below generate/, which fills the struct. Any thread.
 *
 *   receipt.c        the statement, its signature, its opening; compare.c: two of them
 *   checkpoint_id.h  the digest of the weights */
#ifndef KVASIR_RECEIPTS_H
#define KVASIR_RECEIPTS_H

#include "server/json/writer.h"

#include <jansson.h>
#include <stdbool.h>
#include <sodium.h>

#define RECEIPT_STATEMENT "https://in-toto.io/Statement/v1"
#define RECEIPT_PREDICATE "urn:kvasir:inference-receipt:v1"
#define RECEIPT_PAYLOAD   "application/vnd.in-toto+json"

/* What a choice of a response is, bit for bit: two answers are equal if and only if these are. */
struct receipt_choice {
    const uint32_t *ids; /* borrowed: the generated tokens, the one that ended it included */
    uint32_t id_count;
    uint8_t logprobs[32]; /* SHA-256 over the f32 of each token's log-prob, little-endian */
    uint8_t text[32];     /* SHA-256 of the text, before reasoning and calls are parsed */
    const char *finish;   /* "stop", "length" */
};
/* {"token_ids":..,"logprobs_sha256":..,"finish":..} */
void receipt_choice_write(struct json_writer *o, const struct receipt_choice *c);
void receipt_hex(struct json_writer *o, const uint8_t digest[32]); /* with quotes */

/* The key of --receipt-key: PKCS#8 in PEM (openssl genpkey -algorithm ed25519), or a seed of 32 bytes as 64
 * hexadecimal digits. id: SHA-256 of the public key. */
struct receipt_key {
    uint8_t secret[crypto_sign_SECRETKEYBYTES], public[crypto_sign_PUBLICKEYBYTES], id[32];
};
enum status receipt_key_read(const char *path, struct receipt_key *out, struct err *err) KV_MUST_CHECK;
/* A public key: SubjectPublicKeyInfo in PEM (openssl pkey -pubout), or 64 hexadecimal digits. */
enum status receipt_public_key_read(const char *path, struct receipt_key *out, struct err *err) KV_MUST_CHECK;
/* The statement as it is, or, with a key, in its envelope. */
void receipt_sign(struct json_writer *o, const struct receipt_key *key, const char *statement, size_t len);
/* The statement in a receipt, a new reference; NULL: *why says what is wrong. key: of the signature, checked
 * if it isn't NULL. *forged: the signature is another's. */
json_t *receipt_open(const json_t *receipt, const struct receipt_key *key, bool *forged, const char **why);

/* The first part of two statements that differs, of those before the output if `early`; NULL: none.
 * *unverifiable: it says where the claim was made, not what. */
const char *receipt_differs(const json_t *claim, const json_t *made, bool early, bool *unverifiable);

#endif
