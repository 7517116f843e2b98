/* See receipts.h. */
#include "server/receipts/receipts.h"

#include "config/base/file.h"
#include "server/json/fields.h"
#include "server/json/parser.h"
#include "server/json/value.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void receipt_hex(struct json_writer *o, const uint8_t digest[32])
{
    char hex[65];
    jw_cstring(o, sodium_bin2hex(hex, sizeof hex, digest, 32));
}

void receipt_choice_write(struct json_writer *o, const struct receipt_choice *c)
{
    jw_text(o, "{\"token_ids\":");
    jw_ids(o, c->ids, c->id_count);
    jw_text(o, ",\"logprobs_sha256\":");
    receipt_hex(o, c->logprobs);
    jw_put(o, ",\"finish\":%s}", c->finish);
}

/* ---- keys ---- */

/* The last 32 bytes of a PEM file's only block, whose DER begins with `head`; or hexadecimal digits. */
static enum status key_read(const char *path, const char *head, uint8_t out[32], struct err *err)
{
    char *text = NULL;
    uint8_t der[64];
    size_t len, n = 0, used = strlen(head) / 2;
    uint8_t want[32];
    enum status st = file_text(path, 4096, &text, &len, err);
    if (st) return st;
    char *begin = strstr(text, "-----BEGIN "), *body = begin ? strchr(begin, '\n') : NULL,
         *end = body ? strstr(body, "-----END ") : NULL;
    bool ok = false;
    if (end)
        ok = !sodium_base642bin(der, sizeof der, body, (size_t)(end - body), " \r\n", &n, NULL,
                                sodium_base64_VARIANT_ORIGINAL) &&
             n == used + 32 && !sodium_hex2bin(want, sizeof want, head, strlen(head), NULL, NULL, NULL) &&
             memcmp(der, want, used) == 0;
    else if (!begin) ok = !sodium_hex2bin(out, 32, text, len, " \r\n", &n, NULL) && n == 32;
    if (ok && end) memcpy(out, der + used, 32);
    sodium_memzero(der, sizeof der);
    sodium_memzero(text, len);
    free(text);
    return ok ? ST_OK
              : err_set(err, ST_FORMAT,
                        "%s: not an Ed25519 key: PEM of openssl genpkey -algorithm ed25519 (openssl pkey "
                        "-pubout for the public one), or 64 hexadecimal digits",
                        path);
}

enum status receipt_key_read(const char *path, struct receipt_key *out, struct err *err)
{
    uint8_t seed[32];
    enum status st = key_read(path, "302e020100300506032b657004220420", seed, err);
    if (st) return st;
    crypto_sign_seed_keypair(out->public, out->secret, seed);
    crypto_hash_sha256(out->id, out->public, sizeof out->public);
    sodium_memzero(seed, sizeof seed);
    return ST_OK;
}

enum status receipt_public_key_read(const char *path, struct receipt_key *out, struct err *err)
{
    enum status st = key_read(path, "302a300506032b6570032100", out->public, err);
    if (!st) crypto_hash_sha256(out->id, out->public, sizeof out->public);
    return st;
}

/* ---- DSSE ---- */

/* What is signed: "DSSEv1", and the lengths and bytes of type and payload. */
static enum status pae(struct buf *to, const char *payload, size_t len)
{
    buf_init(to, SIZE_MAX / 4);
    enum status st = buf_addf(to, "DSSEv1 %zu %s %zu ", strlen(RECEIPT_PAYLOAD), RECEIPT_PAYLOAD, len);
    return st ? st : buf_add(to, payload, len);
}

static void base64_write(struct json_writer *o, const void *data, size_t len)
{
    size_t cap = sodium_base64_encoded_len(len, sodium_base64_VARIANT_ORIGINAL);
    char *text = malloc(cap);
    if (!text) {
        o->st = ST_NOMEM;
        return;
    }
    jw_cstring(o, sodium_bin2base64(text, cap, data, len, sodium_base64_VARIANT_ORIGINAL));
    free(text);
}

void receipt_sign(struct json_writer *o, const struct receipt_key *key, const char *statement, size_t len)
{
    struct buf text;
    uint8_t signature[crypto_sign_BYTES];
    if (!key) {
        jw_bytes(o, statement, len);
        return;
    }
    if (pae(&text, statement, len)) o->st = ST_NOMEM;
    else crypto_sign_detached(signature, NULL, (const uint8_t *)text.data, text.len, key->secret);
    buf_fini(&text);
    if (o->st) return;
    jw_text(o, "{\"payloadType\":\"" RECEIPT_PAYLOAD "\",\"payload\":");
    base64_write(o, statement, len);
    jw_text(o, ",\"signatures\":[{\"keyid\":");
    receipt_hex(o, key->id);
    jw_text(o, ",\"sig\":");
    base64_write(o, signature, sizeof signature);
    jw_text(o, "}]}");
}

/* The string's bytes, malloc'd. NULL: no string, or not base64, or no memory. */
static uint8_t *base64_read(const json_t *v, size_t *len)
{
    const char *text = json_string_value(v);
    size_t n = json_string_length(v);
    uint8_t *out = text ? malloc(n + 1) : NULL;
    if (out && !sodium_base642bin(out, n + 1, text, n, NULL, len, NULL, sodium_base64_VARIANT_ORIGINAL))
        return out;
    free(out);
    return NULL;
}

static bool signed_by(const struct receipt_key *key, const json_t *envelope, const uint8_t *payload,
                      size_t len)
{
    const json_t *one = json_array_get(json_object_get(envelope, "signatures"), 0),
                 *id = json_object_get(one, "keyid");
    char hex[65];
    size_t n = 0;
    struct buf text;
    uint8_t *sig = base64_read(json_object_get(one, "sig"), &n);
    sodium_bin2hex(hex, sizeof hex, key->id, sizeof key->id);
    bool ok = !pae(&text, (const char *)payload, len) && json_is(id, hex) && sig && n == crypto_sign_BYTES &&
              !crypto_sign_verify_detached(sig, (const uint8_t *)text.data, text.len, key->public);
    buf_fini(&text);
    free(sig);
    return ok;
}

json_t *receipt_open(const json_t *receipt, const struct receipt_key *key, bool *forged, const char **why)
{
    const json_t *payload = json_object_get(receipt, "payload"),
                 *type = json_object_get(receipt, "payloadType"),
                 *signatures = json_object_get(receipt, "signatures");
    json_t *out = NULL;
    size_t len = 0;
    *forged = false;
    *why = "the receipt is no JSON object";
    if (!json_is_object(receipt)) return NULL;
    *why = "the receipt is not signed";
    *forged = key && !payload;
    if (!payload) return *forged ? NULL : json_incref((json_t *)(uintptr_t)receipt);
    *why = "the envelope is not that of a receipt (DSSE, one signature)";
    const json_t *one = json_array_get(signatures, 0);
    uint8_t *bytes = base64_read(payload, &len);
    bool ok = bytes && json_is(type, RECEIPT_PAYLOAD) && json_object_size(receipt) == 3 &&
              json_array_size(signatures) == 1 && json_object_size(one) == 2 &&
              json_is_string(json_object_get(one, "keyid")) && json_is_string(json_object_get(one, "sig"));
    if (ok) *why = "the payload of the envelope is not JSON";
    *forged = ok && key && !signed_by(key, receipt, bytes, len);
    if (*forged) *why = "the signature is not that of the key";
    if (ok && !*forged && json_from_text((const char *)bytes, len, &out)) out = NULL;
    free(bytes);
    return out;
}
