# Unaligned big-endian numbers (native/big_endian.h). The caller has checked that the bytes exist.

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

cdef extern from "big_endian.h" nogil:
    int16_t load16 "kr_load16"(const uint8_t *p)
    int32_t load32 "kr_load32"(const uint8_t *p)
    int64_t load64 "kr_load64"(const uint8_t *p)
    void store16 "kr_store16"(uint8_t *p, int16_t value)
    void store32 "kr_store32"(uint8_t *p, int32_t value)
    void store64 "kr_store64"(uint8_t *p, int64_t value)
    # Store after all earlier writes.
    void publish32 "kr_publish32"(uint8_t *p, int32_t value)
