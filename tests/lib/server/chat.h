/* Messages of the reference's chats, which have images without a URL and contents that no client may send, as
 * input of our templates. */
#ifndef KVASIR_TEST_CHAT_H
#define KVASIR_TEST_CHAT_H

#include "server/chat/messages.h"

/* Fails the test if they can't be read. */
struct chat_messages chat_of(const json_t *messages, bool arguments_as_text);

#endif
