/* Big-endian numbers at unaligned addresses, as in Kafka's files and protocol. */
#ifndef KREPLICA_BIG_ENDIAN_H
#define KREPLICA_BIG_ENDIAN_H

#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define KR_BIG16(x) (x)
#define KR_BIG32(x) (x)
#define KR_BIG64(x) (x)
#else
#define KR_BIG16(x) __builtin_bswap16(x)
#define KR_BIG32(x) __builtin_bswap32(x)
#define KR_BIG64(x) __builtin_bswap64(x)
#endif

static inline int16_t kr_load16(const uint8_t *p)
{
    uint16_t x;
    memcpy(&x, p, sizeof x);
    return (int16_t)KR_BIG16(x);
}

static inline int32_t kr_load32(const uint8_t *p)
{
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return (int32_t)KR_BIG32(x);
}

static inline int64_t kr_load64(const uint8_t *p)
{
    uint64_t x;
    memcpy(&x, p, sizeof x);
    return (int64_t)KR_BIG64(x);
}

static inline void kr_store16(uint8_t *p, int16_t value)
{
    uint16_t x = KR_BIG16((uint16_t)value);
    memcpy(p, &x, sizeof x);
}

static inline void kr_store32(uint8_t *p, int32_t value)
{
    uint32_t x = KR_BIG32((uint32_t)value);
    memcpy(p, &x, sizeof x);
}

static inline void kr_store64(uint8_t *p, int64_t value)
{
    uint64_t x = KR_BIG64((uint64_t)value);
    memcpy(p, &x, sizeof x);
}

/* Store `value` after everything that was written before: a process killed before the store leaves the old value.
 * The address may be unaligned, so this is a fence and a plain store, not an atomic one. */
static inline void kr_publish32(uint8_t *p, int32_t value)
{
    __atomic_thread_fence(__ATOMIC_RELEASE);
    uint32_t x = KR_BIG32((uint32_t)value);
    __asm__ volatile("" ::: "memory");
    memcpy(p, &x, sizeof x);
    __asm__ volatile("" ::: "memory");
}

#endif
