/* CRC-32C: see crc32c.h for the contract.
 *
 * Polynomials are kept reflected: bit 31 of a word is the coefficient of x^0. There are three ways to divide by P:
 *
 *   table        eight bytes a step through eight tables (slicing by 8); works everywhere.
 *   instruction  the processor's CRC instruction (SSE4.2, ARMv8), which has a latency of three cycles and a
 *                throughput of one. So three parts of the input are computed side by side, and joined by multiplying
 *                the earlier ones by x^(8 * bytes that follow).
 *   fold         AVX-512 carry-less multiplication: 256 bytes of input are held as sixteen polynomials of 128
 *                bits, each multiplied by x^2048 and added to the next 256 bytes (Gopal et al., "Fast CRC
 *                Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009).
 */
#include "crc32c.h"

#include <string.h>

#define POLYNOMIAL 0x82F63B78u
#define ONE 0x80000000u /* the polynomial 1 */
#define COPY_BLOCK 4096 /* small enough to stay in the first-level cache between copy and checksum */

typedef uint32_t (*extend_fn)(uint32_t crc, const uint8_t *p, size_t n);
typedef uint32_t (*copy_fn)(uint32_t crc, uint8_t *target, const uint8_t *p, size_t n);

static inline uint64_t load_le64(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* ---- arithmetic modulo P --------------------------------------------------------------------------------- */

static uint32_t powers_of_x[64]; /* x^(2^i) mod P */

static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = ONE; bit != 0; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = (b & 1) ? (b >> 1) ^ POLYNOMIAL : b >> 1;
    }
    return product;
}

static uint32_t power_of_x(uint64_t exponent)
{
    uint32_t power = ONE;
    for (int i = 0; exponent != 0; i++, exponent >>= 1)
        if (exponent & 1)
            power = multiply(power, powers_of_x[i]);
    return power;
}

uint32_t kr_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t size_b)
{
    /* x^(8 * size_b), squared three times so that a size in bits cannot overflow. */
    uint32_t shift = power_of_x(size_b);
    for (int i = 0; i < 3; i++)
        shift = multiply(shift, shift);
    return multiply(shift, crc_a) ^ crc_b;
}

/* ---- table ----------------------------------------------------------------------------------------------- */

static uint32_t slices[8][256];

static void init_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc & 1) ? (crc >> 1) ^ POLYNOMIAL : crc >> 1;
        slices[0][byte] = crc;
    }
    for (int slice = 1; slice < 8; slice++)
        for (int byte = 0; byte < 256; byte++)
            slices[slice][byte] = (slices[slice - 1][byte] >> 8) ^ slices[0][slices[slice - 1][byte] & 0xFF];
}

static uint32_t table_extend(uint32_t crc, const uint8_t *p, size_t n)
{
    crc = ~crc;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t word = load_le64(p) ^ crc;
        crc = 0;
        for (int i = 0; i < 8; i++)
            crc ^= slices[7 - i][(word >> (8 * i)) & 0xFF];
    }
    for (; n > 0; n--)
        crc = (crc >> 8) ^ slices[0][(crc ^ *p++) & 0xFF];
    return ~crc;
}

static uint32_t copy_by_blocks(extend_fn extend, uint32_t crc, uint8_t *target, const uint8_t *p, size_t n)
{
    while (n > 0) {
        size_t block = n < COPY_BLOCK ? n : COPY_BLOCK;
        memcpy(target, p, block);
        crc = extend(crc, p, block);
        target += block;
        p += block;
        n -= block;
    }
    return crc;
}

static uint32_t table_copy(uint32_t crc, uint8_t *target, const uint8_t *p, size_t n)
{
    return copy_by_blocks(table_extend, crc, target, p, n);
}

static int always(void) { return 1; }

/* ---- instruction ----------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
#include <immintrin.h>
#define HAVE_INSTRUCTION 1
#define INSTRUCTION_NAME "sse4.2"
#if defined(__clang__) /* for Clang, unlike GCC, the CRC instruction is a feature of its own besides SSE4.2 */
#define X86_CRC "sse4.2,crc32"
#else
#define X86_CRC "sse4.2"
#endif
#define INSTRUCTION_TARGET __attribute__((target(X86_CRC)))
#define CRC_WORD(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#define CRC_BYTE(crc, byte) _mm_crc32_u8((crc), (byte))

static int has_instruction(void) { return __builtin_cpu_supports("sse4.2"); }

#elif defined(__aarch64__) && (defined(__linux__) || defined(__APPLE__))
#include <arm_acle.h>
#define HAVE_INSTRUCTION 1
#define INSTRUCTION_NAME "armv8"
#if defined(__ARM_FEATURE_CRC32)
#define INSTRUCTION_TARGET
#elif defined(__clang__)
#define INSTRUCTION_TARGET __attribute__((target("crc")))
#else
#define INSTRUCTION_TARGET __attribute__((target("+crc")))
#endif
#define CRC_WORD(crc, word) __crc32cd((crc), (word))
#define CRC_BYTE(crc, byte) __crc32cb((crc), (byte))

#if defined(__linux__)
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
static int has_instruction(void) { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#else
static int has_instruction(void) { return 1; } /* every Apple processor of this architecture */
#endif
#endif

#ifdef HAVE_INSTRUCTION
#define LONG_PART 2048 /* bytes of each of the three parts */
#define SHORT_PART 256

/* Multiplication by x^(8 * part), one byte of the factor at a time. */
static uint32_t long_shift[4][256], short_shift[4][256];

static void init_shift(uint32_t shift[4][256], size_t part)
{
    uint32_t factor = power_of_x(8 * (uint64_t)part);
    for (int position = 0; position < 4; position++)
        for (uint32_t byte = 0; byte < 256; byte++)
            shift[position][byte] = multiply(factor, byte << (8 * position));
}

static inline uint32_t shifted(uint32_t shift[4][256], uint32_t crc)
{
    return shift[0][crc & 0xFF] ^ shift[1][(crc >> 8) & 0xFF] ^ shift[2][(crc >> 16) & 0xFF] ^ shift[3][crc >> 24];
}

INSTRUCTION_TARGET
static inline uint32_t three_parts(uint32_t crc, const uint8_t *p, size_t part, uint32_t shift[4][256])
{
    uint32_t second = 0, third = 0;
    for (const uint8_t *end = p + part; p < end; p += 8) {
        crc = CRC_WORD(crc, load_le64(p));
        second = CRC_WORD(second, load_le64(p + part));
        third = CRC_WORD(third, load_le64(p + 2 * part));
    }
    return shifted(shift, shifted(shift, crc) ^ second) ^ third;
}

INSTRUCTION_TARGET
static uint32_t instruction_extend(uint32_t crc, const uint8_t *p, size_t n)
{
    crc = ~crc;
    for (; n >= 3 * LONG_PART; p += 3 * LONG_PART, n -= 3 * LONG_PART)
        crc = three_parts(crc, p, LONG_PART, long_shift);
    for (; n >= 3 * SHORT_PART; p += 3 * SHORT_PART, n -= 3 * SHORT_PART)
        crc = three_parts(crc, p, SHORT_PART, short_shift);
    for (; n >= 8; p += 8, n -= 8)
        crc = CRC_WORD(crc, load_le64(p));
    for (; n > 0; n--)
        crc = CRC_BYTE(crc, *p++);
    return ~crc;
}

static uint32_t instruction_copy(uint32_t crc, uint8_t *target, const uint8_t *p, size_t n)
{
    return copy_by_blocks(instruction_extend, crc, target, p, n);
}
#endif

/* ---- fold ------------------------------------------------------------------------------------------------ */

#if defined(__x86_64__)
#define HAVE_FOLD 1
#define FOLD_TARGET __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,vpclmulqdq,pclmul," X86_CRC)))
#define FOLD_WIDTH 256

/* The two factors that multiply a polynomial of 128 bits by x^bits: one for its low half, one for its high half. */
typedef struct { uint64_t low, high; } factors;
static factors ahead_2048, ahead_1536, ahead_1024, ahead_512, within_512[4];

static factors factors_of(uint64_t bits)
{
    return (factors){power_of_x(bits + 31), power_of_x(bits - 33)};
}

static void init_fold(void)
{
    ahead_2048 = factors_of(2048);
    ahead_1536 = factors_of(1536);
    ahead_1024 = factors_of(1024);
    ahead_512 = factors_of(512);
    within_512[0] = factors_of(384);
    within_512[1] = factors_of(256);
    within_512[2] = factors_of(128);
    within_512[3] = (factors){0, 0}; /* the last one is not multiplied */
}

static int has_fold(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("pclmul") &&
           __builtin_cpu_supports("sse4.2");
}

FOLD_TARGET __attribute__((always_inline))
static inline __m512i broadcast(const factors *f)
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)f));
}

/* Return a, multiplied by the factors k, plus b. */
FOLD_TARGET __attribute__((always_inline))
static inline __m512i carried(__m512i a, __m512i k, __m512i b)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(a, k, 0x00), _mm512_clmulepi64_epi128(a, k, 0x11), b,
                                     0x96);
}

/* Load 64 bytes, and store them at the same position of the target if there is one. */
FOLD_TARGET __attribute__((always_inline))
static inline __m512i take(const uint8_t *p, uint8_t *target, size_t at)
{
    __m512i bytes = _mm512_loadu_si512(p + at);
    if (target != NULL)
        _mm512_storeu_si512(target + at, bytes);
    return bytes;
}

/* Return the checksum's state over the 64 bytes of `a`. */
FOLD_TARGET __attribute__((always_inline))
static inline uint32_t reduced(__m512i a)
{
    __m512i aligned = carried(a, _mm512_loadu_si512(within_512), _mm512_setzero_si512());
    __m128i sum = _mm_xor_si128(_mm_xor_si128(_mm512_castsi512_si128(aligned), _mm512_extracti32x4_epi32(aligned, 1)),
                                _mm_xor_si128(_mm512_extracti32x4_epi32(aligned, 2), _mm512_extracti32x4_epi32(a, 3)));
    uint64_t crc = _mm_crc32_u64(0, (uint64_t)_mm_extract_epi64(sum, 0));
    return (uint32_t)_mm_crc32_u64(crc, (uint64_t)_mm_extract_epi64(sum, 1));
}

FOLD_TARGET __attribute__((always_inline))
static inline uint32_t fold_rest(uint32_t state, const uint8_t *p, uint8_t *target, size_t n)
{
    if (target != NULL)
        memcpy(target, p, n);
    for (; n >= 8; p += 8, n -= 8)
        state = (uint32_t)_mm_crc32_u64(state, load_le64(p));
    for (; n > 0; n--)
        state = _mm_crc32_u8(state, *p++);
    return ~state;
}

FOLD_TARGET __attribute__((always_inline))
static inline uint32_t fold(uint32_t crc, const uint8_t *p, uint8_t *target, size_t n)
{
    if (n < FOLD_WIDTH)
        return fold_rest(~crc, p, target, n);
    __m512i a = _mm512_xor_si512(take(p, target, 0), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc)));
    __m512i b = take(p, target, 64), c = take(p, target, 128), d = take(p, target, 192);
    size_t at = FOLD_WIDTH;
    for (__m512i k = broadcast(&ahead_2048); n - at >= FOLD_WIDTH; at += FOLD_WIDTH) {
        a = carried(a, k, take(p, target, at));
        b = carried(b, k, take(p, target, at + 64));
        c = carried(c, k, take(p, target, at + 128));
        d = carried(d, k, take(p, target, at + 192));
    }
    d = carried(c, broadcast(&ahead_512), d);
    d = carried(b, broadcast(&ahead_1024), d);
    d = carried(a, broadcast(&ahead_1536), d);
    for (__m512i k = broadcast(&ahead_512); n - at >= 64; at += 64)
        d = carried(d, k, take(p, target, at));
    return fold_rest(reduced(d), p + at, target == NULL ? NULL : target + at, n - at);
}

FOLD_TARGET
static uint32_t fold_extend(uint32_t crc, const uint8_t *p, size_t n) { return fold(crc, p, NULL, n); }

FOLD_TARGET
static uint32_t fold_copy(uint32_t crc, uint8_t *target, const uint8_t *p, size_t n)
{
    return fold(crc, p, target, n);
}
#endif

/* ---- choice ---------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    int (*available)(void);
    extend_fn extend;
    copy_fn copy;
} implementations[] = {
#ifdef HAVE_FOLD
    {"avx512", has_fold, fold_extend, fold_copy},
#endif
#ifdef HAVE_INSTRUCTION
    {INSTRUCTION_NAME, has_instruction, instruction_extend, instruction_copy},
#endif
    {"table", always, table_extend, table_copy},
};

#define IMPLEMENTATIONS ((int)(sizeof implementations / sizeof implementations[0]))

static int selected = IMPLEMENTATIONS - 1;

void kr_crc32c_init(void)
{
    powers_of_x[0] = ONE >> 1;
    for (int i = 1; i < 64; i++)
        powers_of_x[i] = multiply(powers_of_x[i - 1], powers_of_x[i - 1]);
    init_table();
#ifdef HAVE_INSTRUCTION
    init_shift(long_shift, LONG_PART);
    init_shift(short_shift, SHORT_PART);
#endif
#ifdef HAVE_FOLD
    init_fold();
#endif
    for (selected = 0; !implementations[selected].available(); selected++)
        ;
}

uint32_t kr_crc32c_extend(uint32_t crc, const uint8_t *p, size_t n)
{
    return implementations[selected].extend(crc, p, n);
}

uint32_t kr_crc32c_copy_extend(uint32_t crc, uint8_t *target, const uint8_t *p, size_t n)
{
    return implementations[selected].copy(crc, target, p, n);
}

const char *kr_crc32c_name(int i) { return i < IMPLEMENTATIONS ? implementations[i].name : NULL; }
int kr_crc32c_available(int i) { return implementations[i].available(); }
int kr_crc32c_selected(void) { return selected; }
void kr_crc32c_select(int i) { selected = i; }
