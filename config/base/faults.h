/* Known bugs that tests put back in, to show that they would be found. They are compiled into the objects
 * that tests are linked with
 * (-DKVASIR_FAULTS: libfaults.a, kvasir-faults) and into nothing that ships. */
#ifndef KVASIR_FAULTS_H
#define KVASIR_FAULTS_H

#ifdef KVASIR_FAULTS
#define FAULT(chosen, bugs) (((chosen) & (bugs)) != 0)
#else
#define FAULT(chosen, bugs) (0 && ((chosen) & (bugs)))
#endif

#endif
