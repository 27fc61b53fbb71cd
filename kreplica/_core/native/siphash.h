/* SipHash-1-3 with 128 bits of output (Aumasson and Bernstein): a keyed hash, so without the key an attacker cannot
 * aim for collisions. One round for every eight bytes, three at the end of each half, as is usual for hash tables. */
#ifndef KREPLICA_SIPHASH_H
#define KREPLICA_SIPHASH_H

#include <stdint.h>
#include <string.h>

typedef struct {
    uint64_t low, high;
} kr_hash128;

static inline uint64_t kr_little64(const uint8_t *p) {
    uint64_t x;
    memcpy(&x, p, sizeof x);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    x = __builtin_bswap64(x);
#endif
    return x;
}

/* Return the last 0 to 7 of `size` bytes, which end at `end`, with the size's lowest byte above them. */
static inline uint64_t kr_siphash_tail(const uint8_t *end, uint64_t size) {
    uint64_t rest = size & 7, last = size << 56;
    if (rest == 0) return last;
    if (size >= 8) return last | kr_little64(end - 8) >> (64 - 8 * rest);
    for (uint64_t i = 0; i < rest; i++) last |= (uint64_t)end[i - rest] << (8 * i);
    return last;
}

#define KR_ROTATE(x, bits) ((x) << (bits) | (x) >> (64 - (bits)))
#define KR_SIP_ROUND(v0, v1, v2, v3) \
    do { \
        v0 += v1; v1 = KR_ROTATE(v1, 13); v1 ^= v0; v0 = KR_ROTATE(v0, 32); \
        v2 += v3; v3 = KR_ROTATE(v3, 16); v3 ^= v2; \
        v0 += v3; v3 = KR_ROTATE(v3, 21); v3 ^= v0; \
        v2 += v1; v1 = KR_ROTATE(v1, 17); v1 ^= v2; v2 = KR_ROTATE(v2, 32); \
    } while (0)

static inline kr_hash128 kr_siphash(const uint64_t key[2], const uint8_t *p, int64_t size) {
    uint64_t v0 = key[0] ^ 0x736f6d6570736575, v1 = key[1] ^ 0x646f72616e646f6d ^ 0xee;
    uint64_t v2 = key[0] ^ 0x6c7967656e657261, v3 = key[1] ^ 0x7465646279746573;
    const uint8_t *end = p + size;
    for (; end - p >= 8; p += 8) {
        uint64_t word = kr_little64(p);
        v3 ^= word;
        KR_SIP_ROUND(v0, v1, v2, v3);
        v0 ^= word;
    }
    uint64_t last = kr_siphash_tail(end, (uint64_t)size);
    v3 ^= last;
    KR_SIP_ROUND(v0, v1, v2, v3);
    v0 ^= last;
    kr_hash128 hash;
    v2 ^= 0xee;
    for (int i = 0; i < 3; i++) KR_SIP_ROUND(v0, v1, v2, v3);
    hash.low = v0 ^ v1 ^ v2 ^ v3;
    v1 ^= 0xdd;
    for (int i = 0; i < 3; i++) KR_SIP_ROUND(v0, v1, v2, v3);
    hash.high = v0 ^ v1 ^ v2 ^ v3;
    return hash;
}

#endif
