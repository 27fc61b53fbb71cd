/* The SIGBUS guard: a missing page of a mapped file becomes a status instead of the end of the process. The reason
 * may be that another program truncated the file, that the disk failed to read it, or a full copy-on-write file
 * system.
 *
 * Native code that accesses mapped memory runs under kr_guard_call. Accesses by Python code, through a memoryview,
 * cannot be guarded. For these the handler puts a page of zeros in place of the lost page and records the fault
 * with the region, so that the process survives and the next use of the region is an error.
 *
 * Thread rule: any thread may call everything here. The handler reads only what is written atomically. */
#ifndef KREPLICA_GUARD_H
#define KREPLICA_GUARD_H

#include <stdint.h>

#define KR_PAGE_FAULT (-42) /* Status.PAGE_FAULT; region.pyx refuses to load if they differ. */

/* Run fn(argument) and return its result, or KR_PAGE_FAULT if it met a lost page. Calls nest. fn must hold nothing
 * that would leak if it ends abruptly: no lock, no memory of its own, no change of the GIL's state. */
typedef int (*kr_guarded)(void *argument);
int kr_guard_call(kr_guarded fn, void *argument);

/* Copy with memcpy under the guard; return 0 or KR_PAGE_FAULT. */
int kr_guarded_copy(void *target, const void *source, int64_t size);

/* Install the handler in front of the present one, or again if another one was installed since. Returns 0 or an errno.
 */
int kr_guard_install(void);

/* Watch base[0:size]: if a lost page is accessed there outside of a guard, it is replaced by zeros, and *fault
 * becomes KR_PAGE_FAULT if it is still zero. Returns the watch's number, or -1 without memory. */
int64_t kr_watch(uint8_t *base, int64_t size, int32_t *fault);
/* Stop recording faults with the watch's owner, which is freed before the memory is. */
void kr_watch_disown(int64_t watch);
void kr_unwatch(int64_t watch);

/* Set *fault unless it already holds an earlier failure. */
static inline void kr_set_fault(int32_t *fault, int32_t status) {
    int32_t none = 0;
    __atomic_compare_exchange_n(fault, &none, status, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

#endif
