/* CRC-32C (Castagnoli, polynomial 0x1EDC6F41, reflected): the checksum of record batches.
 *
 * Several implementations, one of them in use: the fastest that this machine has is chosen once, by
 * kr_crc32c_init. All work on checksums in their finished form (inverted at both ends), so the checksum of
 * nothing is 0 and kr_crc32c_extend(kr_crc32c_extend(0, a), b) is the checksum of a followed by b.
 * Thread rule: init and select are called under the GIL; everything else may run anywhere.
 */
#ifndef KREPLICA_CRC32C_H
#define KREPLICA_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Build the tables and choose the fastest implementation; call once, before anything else. */
void kr_crc32c_init(void);

/* The checksum of what `crc` covers followed by p[0:n]. */
uint32_t kr_crc32c_extend(uint32_t crc, const uint8_t *p, size_t n);

/* The same, copying p[0:n] to `target` on the way, so that the bytes pass the cache once. No overlap. */
uint32_t kr_crc32c_copy_extend(uint32_t crc, uint8_t *target, const uint8_t *p, size_t n);

/* The checksum of a followed by b, from theirs and b's size. */
uint32_t kr_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t size_b);

/* The name of the i-th implementation, fastest first, NULL past the last; whether this machine has it. */
const char *kr_crc32c_name(int i);
int kr_crc32c_available(int i);
int kr_crc32c_selected(void);
void kr_crc32c_select(int i);

#endif
