/* The page at `/`: one file of HTML, built into the program. */
#ifndef KVASIR_PAGE_H
#define KVASIR_PAGE_H

#include <stdbool.h>
#include <stddef.h>

const char *page_html(size_t *len);
/* Value of Content-Security-Policy: its own style and script by their hashes, requests to this server alone.
 * NULL: the page does not have exactly one of each. Event loop's thread. */
const char *page_policy(void);
bool page_wanted(const char *accept); /* the client is a browser; accept may be NULL */

#endif
