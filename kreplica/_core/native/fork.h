/* What a forked child finds of the core's locks and shared fields; fork.c lists them all.
 *
 * Thread rule: kr_generation may be called by any thread; the two resets are fork.c's. */
#ifndef KREPLICA_FORK_H
#define KREPLICA_FORK_H

#include <stdint.h>

/* The number of forks that led to this process since the core was loaded; *kr_generation_address() is what
 * kr_generation() returns. */
int kr_generation(void);
const int32_t *kr_generation_address(void);

/* Free the locks of guard.c and of prefault.c in a forked child. */
void kr_guard_forked(void);
void kr_prefault_forked(void);

#endif
