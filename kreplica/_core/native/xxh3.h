/* XXH3 with 64 bits of output, the default secret and no seed, as the specification of xxHash describes it.
 *
 * Inputs of up to 16, 128 and 240 bytes each have a path of their own; longer ones are mixed in stripes of 64 bytes
 * into eight accumulators, which are scrambled after every 16 stripes. Plain C, without vector instructions. */
#ifndef KREPLICA_XXH3_H
#define KREPLICA_XXH3_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define KR_XXH_PRIME32_1 0x9E3779B1U
#define KR_XXH_PRIME32_2 0x85EBCA77U
#define KR_XXH_PRIME32_3 0xC2B2AE3DU
#define KR_XXH_PRIME64_1 0x9E3779B185EBCA87ULL
#define KR_XXH_PRIME64_2 0xC2B2AE3D27D4EB4FULL
#define KR_XXH_PRIME64_3 0x165667B19E3779F9ULL
#define KR_XXH_PRIME64_4 0x85EBCA77C2B2AE63ULL
#define KR_XXH_PRIME64_5 0x27D4EB2F165667C5ULL

enum { KR_XXH3_STRIPE = 64, KR_XXH3_SECRET_SIZE = 192, KR_XXH3_STRIPES = 16 };

static const uint8_t kr_xxh3_secret[KR_XXH3_SECRET_SIZE] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static inline uint32_t kr_xxh3_read32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t kr_xxh3_read64(const uint8_t *p) {
    return (uint64_t)kr_xxh3_read32(p) | (uint64_t)kr_xxh3_read32(p + 4) << 32;
}

static inline uint64_t kr_xxh3_rotate(uint64_t x, int by) {
    return x << by | x >> (64 - by);
}

/* The product of 128 bits, its halves combined by xor. */
static inline uint64_t kr_xxh3_fold(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t kr_xxh3_avalanche(uint64_t h) {
    h ^= h >> 37;
    h *= 0x165667919E3779F9ULL;
    return h ^ h >> 32;
}

/* The avalanche of XXH64, which the shortest inputs use. */
static inline uint64_t kr_xxh64_avalanche(uint64_t h) {
    h ^= h >> 33;
    h *= KR_XXH_PRIME64_2;
    h ^= h >> 29;
    h *= KR_XXH_PRIME64_3;
    return h ^ h >> 32;
}

static inline uint64_t kr_xxh3_upto16(const uint8_t *p, size_t size) {
    const uint8_t *secret = kr_xxh3_secret;
    if (size > 8) {
        uint64_t low = kr_xxh3_read64(p) ^ kr_xxh3_read64(secret + 24) ^ kr_xxh3_read64(secret + 32);
        uint64_t high = kr_xxh3_read64(p + size - 8) ^ kr_xxh3_read64(secret + 40) ^ kr_xxh3_read64(secret + 48);
        return kr_xxh3_avalanche(size + __builtin_bswap64(low) + high + kr_xxh3_fold(low, high));
    }
    if (size >= 4) {
        uint64_t both = kr_xxh3_read32(p + size - 4) + ((uint64_t)kr_xxh3_read32(p) << 32);
        uint64_t h = both ^ kr_xxh3_read64(secret + 8) ^ kr_xxh3_read64(secret + 16);
        h ^= kr_xxh3_rotate(h, 49) ^ kr_xxh3_rotate(h, 24);
        h *= 0x9FB21C651E98DF25ULL;
        h ^= (h >> 35) + size;
        h *= 0x9FB21C651E98DF25ULL;
        return h ^ h >> 28;
    }
    if (size) {
        uint32_t all = (uint32_t)p[0] << 16 | (uint32_t)p[size >> 1] << 24 | p[size - 1] | (uint32_t)size << 8;
        return kr_xxh64_avalanche(all ^ (uint64_t)(kr_xxh3_read32(secret) ^ kr_xxh3_read32(secret + 4)));
    }
    return kr_xxh64_avalanche(kr_xxh3_read64(secret + 56) ^ kr_xxh3_read64(secret + 64));
}

static inline uint64_t kr_xxh3_mix16(const uint8_t *p, const uint8_t *secret) {
    return kr_xxh3_fold(kr_xxh3_read64(p) ^ kr_xxh3_read64(secret), kr_xxh3_read64(p + 8) ^ kr_xxh3_read64(secret + 8));
}

/* From both ends to the middle, 16 bytes at a time. */
static inline uint64_t kr_xxh3_upto128(const uint8_t *p, size_t size) {
    uint64_t h = size * KR_XXH_PRIME64_1;
    for (size_t i = (size - 1) / 32 + 1; i-- > 0;) {
        h += kr_xxh3_mix16(p + 16 * i, kr_xxh3_secret + 32 * i);
        h += kr_xxh3_mix16(p + size - 16 * (i + 1), kr_xxh3_secret + 32 * i + 16);
    }
    return kr_xxh3_avalanche(h);
}

static inline uint64_t kr_xxh3_upto240(const uint8_t *p, size_t size) {
    uint64_t h = size * KR_XXH_PRIME64_1;
    for (size_t i = 0; i < 8; i++) h += kr_xxh3_mix16(p + 16 * i, kr_xxh3_secret + 16 * i);
    h = kr_xxh3_avalanche(h);
    for (size_t i = 8; i < size / 16; i++) h += kr_xxh3_mix16(p + 16 * i, kr_xxh3_secret + 16 * (i - 8) + 3);
    h += kr_xxh3_mix16(p + size - 16, kr_xxh3_secret + 136 - 17);
    return kr_xxh3_avalanche(h);
}

static inline void kr_xxh3_accumulate(uint64_t *sums, const uint8_t *p, const uint8_t *secret) {
    for (int i = 0; i < 8; i++) {
        uint64_t value = kr_xxh3_read64(p + 8 * i), key = value ^ kr_xxh3_read64(secret + 8 * i);
        sums[i ^ 1] += value;
        sums[i] += (key & 0xFFFFFFFFU) * (key >> 32);
    }
}

static inline void kr_xxh3_scramble(uint64_t *sums) {
    const uint8_t *secret = kr_xxh3_secret + KR_XXH3_SECRET_SIZE - KR_XXH3_STRIPE;
    for (int i = 0; i < 8; i++) {
        sums[i] = (sums[i] ^ sums[i] >> 47 ^ kr_xxh3_read64(secret + 8 * i)) * KR_XXH_PRIME32_1;
    }
}

static inline uint64_t kr_xxh3_long(const uint8_t *p, size_t size) {
    uint64_t sums[8] = {KR_XXH_PRIME32_3, KR_XXH_PRIME64_1, KR_XXH_PRIME64_2, KR_XXH_PRIME64_3,
                        KR_XXH_PRIME64_4, KR_XXH_PRIME32_2, KR_XXH_PRIME64_5, KR_XXH_PRIME32_1};
    for (size_t stripe = 0; stripe < (size - 1) / KR_XXH3_STRIPE; stripe++) {
        size_t n = stripe % KR_XXH3_STRIPES;
        kr_xxh3_accumulate(sums, p + stripe * KR_XXH3_STRIPE, kr_xxh3_secret + 8 * n);
        if (n == KR_XXH3_STRIPES - 1) kr_xxh3_scramble(sums);
    }
    kr_xxh3_accumulate(sums, p + size - KR_XXH3_STRIPE, kr_xxh3_secret + KR_XXH3_SECRET_SIZE - KR_XXH3_STRIPE - 7);
    uint64_t h = size * KR_XXH_PRIME64_1;
    for (int i = 0; i < 8; i += 2) {
        const uint8_t *secret = kr_xxh3_secret + 11 + 8 * i;
        h += kr_xxh3_fold(sums[i] ^ kr_xxh3_read64(secret), sums[i + 1] ^ kr_xxh3_read64(secret + 8));
    }
    return kr_xxh3_avalanche(h);
}

static inline uint64_t kr_xxh3(const uint8_t *p, size_t size) {
    if (size <= 16) return kr_xxh3_upto16(p, size);
    if (size <= 128) return kr_xxh3_upto128(p, size);
    if (size <= 240) return kr_xxh3_upto240(p, size);
    return kr_xxh3_long(p, size);
}

#endif
