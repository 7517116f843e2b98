/* GET /openapi.json: the description of this interface, a file built into the program.
 * tests/api/test_openapi.py compares it with what the server does. */
#include "server/http/request.h"
#include "server/api/api.h"

#include <string.h>

/* The assembler puts the file in: relative to where make runs. A NUL after it makes it a string. */
__asm__(".pushsection .rodata\n"
        ".global kvasir_openapi\n"
        "kvasir_openapi: .incbin \"server/api/openapi.json\"\n"
        ".byte 0\n"
        ".popsection\n");
extern const char kvasir_openapi[];

void api_openapi_start(struct request *r)
{
    request_respond(r, buf_add(&r->response.out, kvasir_openapi, strlen(kvasir_openapi)) ? 500 : 200);
}
