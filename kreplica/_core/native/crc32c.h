/* CRC-32C (Castagnoli, polynomial 0x1EDC6F41, reflected): the checksum of record batches.
 *
 * There are several implementations. kr_crc32c_init chooses the fastest that this machine supports, once. All take and return finished checksums (inverted at both ends), so the checksum of no bytes is 0 and
 * kr_crc32c_extend(kr_crc32c_extend(0, a), b) is the checksum of a followed by b. Thread rule: init and select are
 * called under the GIL; everything else may run on any thread.
 */
#ifndef KREPLICA_CRC32C_H
#define KREPLICA_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Build the tables and choose the fastest implementation. Call it once, before any other function. */
void kr_crc32c_init(void);

/* Return the checksum of the bytes that `crc` covers followed by p[0:n]. */
uint32_t kr_crc32c_extend(uint32_t crc, const uint8_t *p, size_t n);

/* Do the same and copy p[0:n] to `target`, so that the bytes pass the cache once. The two must not overlap. */
uint32_t kr_crc32c_copy_extend(uint32_t crc, uint8_t *target, const uint8_t *p, size_t n);

/* Return the checksum of a followed by b, given both checksums and b's size. */
uint32_t kr_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t size_b);

/* Return the name of the i-th implementation, fastest first, or NULL after the last; and whether this machine has it.
 */
const char *kr_crc32c_name(int i);
int kr_crc32c_available(int i);
int kr_crc32c_selected(void);
void kr_crc32c_select(int i);

#endif
