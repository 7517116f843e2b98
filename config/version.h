/* The version of the program. */
#ifndef KVASIR_VERSION_H
#define KVASIR_VERSION_H

#define KVASIR_VERSION "0.1.0"

#endif
