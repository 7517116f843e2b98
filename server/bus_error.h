/* A checkpoint's bytes are read where they are mapped: when somebody cuts the file short meanwhile, or the
 * disk fails, the next touch is SIGBUS. There is no way on, but one to say why. */
#ifndef KVASIR_BUS_ERROR_H
#define KVASIR_BUS_ERROR_H

/* From now on such a fault ends the process with code 1 and one line on stderr that names the file. Any other
 * SIGBUS ends it as before. */
void bus_error_catch(void);

#endif
