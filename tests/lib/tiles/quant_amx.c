/* kernels/cpu/linear/quant_amx.c on emulated tiles. */
#include "tests/lib/tiles/tiles.h"

#include "kernels/cpu/linear/quant_amx.c"
