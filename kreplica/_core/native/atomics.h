/* Atomic loads and stores with the memory ordering that the core's lock-free publications need. */
#ifndef KREPLICA_ATOMICS_H
#define KREPLICA_ATOMICS_H

#include <stdint.h>

static inline int64_t kr_load_acquire(const int64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline void kr_store_release(int64_t *p, int64_t value) { __atomic_store_n(p, value, __ATOMIC_RELEASE); }
static inline int64_t kr_fetch_add(int64_t *p, int64_t value) { return __atomic_fetch_add(p, value, __ATOMIC_ACQ_REL); }
static inline int32_t kr_load_acquire32(const int32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline void kr_store_release32(int32_t *p, int32_t value) { __atomic_store_n(p, value, __ATOMIC_RELEASE); }
static inline void kr_fence_acquire(void) { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
static inline void kr_fence_release(void) { __atomic_thread_fence(__ATOMIC_RELEASE); }

#endif
