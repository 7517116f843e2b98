/* A checkpoint is read through mmap. If the file is truncated meanwhile, or the disk fails, the next access
 * raises SIGBUS. The process cannot continue, but it can say why. */
#ifndef KVASIR_BUS_ERROR_H
#define KVASIR_BUS_ERROR_H

/* From now on such a fault ends the process with code 1 and one line on stderr that names the file. Any other
 * SIGBUS ends it as before. */
void bus_error_catch(void);

#endif
