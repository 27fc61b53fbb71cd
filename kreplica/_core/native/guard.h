/* The SIGBUS guard: a page of a mapped file that cannot be had (the file was truncated by somebody else, the disk
 * failed to read it, a full copy-on-write file system) becomes a status instead of the end of the process.
 *
 * Native code that touches mapped memory runs under kr_guard_call. What Python code touches by itself, through a
 * memoryview, cannot be guarded: there the handler puts a page of zeros in the lost page's place and records the
 * fault with the region, so that the process survives and the next use of the region is an error.
 *
 * Thread rule: everything here may be called from any thread. The handler reads only what is written atomically. */
#ifndef KREPLICA_GUARD_H
#define KREPLICA_GUARD_H

#include <stdint.h>

#define KR_PAGE_FAULT (-42) /* Status.PAGE_FAULT; region.pyx refuses to load if they differ. */

/* Run fn(argument); its result, or KR_PAGE_FAULT if it met a lost page. Calls nest. fn must hold nothing that an
 * abrupt end would leave behind: no lock, no memory of its own, not the GIL's state changed. */
typedef int (*kr_guarded)(void *argument);
int kr_guard_call(kr_guarded fn, void *argument);

/* memcpy under the guard: 0 or KR_PAGE_FAULT. */
int kr_guarded_copy(void *target, const void *source, int64_t size);

/* Put the handler in place, in front of the present one; again if another one was put in front since. Returns 0 or
 * errno. */
int kr_guard_install(void);

/* The number of forks that led to this process; *kr_generation_address() is what kr_generation() returns. */
int kr_generation(void);
const int32_t *kr_generation_address(void);

/* Watch base[0:size]: a lost page that is touched there outside of a guard is replaced by zeros, and *fault (if it is
 * still zero) becomes KR_PAGE_FAULT. Returns the watch's number, or -1 without memory. */
int64_t kr_watch(uint8_t *base, int64_t size, int32_t *fault);
/* Record no more faults with the watch's owner, which goes away before the memory does. */
void kr_watch_disown(int64_t watch);
void kr_unwatch(int64_t watch);

/* Set *fault unless an earlier failure stands there. */
static inline void kr_set_fault(int32_t *fault, int32_t status) {
    int32_t none = 0;
    __atomic_compare_exchange_n(fault, &none, status, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

#endif
