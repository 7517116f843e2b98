/* kernels/cpu/attn/amx.c on emulated tiles. */
#include "tests/lib/tiles/tiles.h"

#include "kernels/cpu/attn/amx.c"
