/* A checkpoint is read through mmap. If the file is truncated meanwhile, or the disk fails, the next access
 * raises SIGBUS. The process cannot continue, but it can say why. */
#ifndef KVASIR_BUS_ERROR_H
#define KVASIR_BUS_ERROR_H

/* After this call, such a SIGBUS ends the process with code 1 and one line on stderr that names the file. Any
 * other SIGBUS has its default effect. */
void bus_error_catch(void);

#endif
