# The plain C companions of region.pyx; their headers in native/ document them.

from libc.errno cimport EDQUOT, EFBIG, EMFILE, ENFILE, ENOMEM, ENOSPC
from libc.stdint cimport int32_t, int64_t, uint8_t

from kreplica._core.status cimport IO_FAILED, NO_MEMORY, OK, OUT_OF_DESCRIPTORS, STORAGE_FULL

cdef extern from "pthread.h" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t *mutex, const void *attributes)
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)
    int pthread_mutex_destroy(pthread_mutex_t *mutex)

cdef extern from "atomics.h" nogil:
    int64_t kr_load_acquire(const int64_t *p)
    void kr_store_release(int64_t *p, int64_t value)
    int64_t kr_fetch_add(int64_t *p, int64_t value)
    int32_t kr_load_acquire32(const int32_t *p)

cdef extern from "fork.h" nogil:
    const int32_t *kr_generation_address()

cdef extern from "guard.h" nogil:
    enum:
        KR_PAGE_FAULT
    ctypedef int (*kr_guarded)(void *argument) noexcept nogil
    int guard_call "kr_guard_call"(kr_guarded fn, void *argument)
    int guard_install "kr_guard_install"()
    int kr_guarded_copy(void *target, const void *source, int64_t size)
    void kr_set_fault(int32_t *fault, int32_t status)

cdef extern from "mapping.h" nogil:
    ctypedef struct kr_mapping:
        uint8_t *base
        int64_t size
    int kr_map_memory(int64_t size, kr_mapping **out)
    void kr_mapping_retain(kr_mapping *mapping)
    void kr_mapping_release(kr_mapping *mapping)
    void kr_mapping_disown(kr_mapping *mapping)
    int64_t kr_map_budget()
    void kr_set_map_budget(int64_t maps)
    int64_t kr_maps_held()

cdef extern from "file.h" nogil:
    ctypedef struct kr_descriptor:
        pass
    ctypedef struct kr_file:
        kr_descriptor *descriptor
        int zeros
    int64_t kr_descriptor_budget()
    void kr_set_descriptor_budget(int64_t descriptors)
    void kr_file_init(kr_file *file)
    void kr_file_destroy(kr_file *file)
    void kr_file_forked(kr_file *file)
    int kr_file_open(kr_file *file, const char *path, int writable, int create, int64_t *size)
    int kr_file_size(kr_file *file, int64_t *size)
    int kr_file_resize(kr_file *file, int64_t size)
    int kr_file_cut(kr_file *file, int64_t size)
    int kr_file_hold(kr_file *file)
    int kr_file_flush(kr_file *file, uint8_t *base, int64_t size)
    int kr_file_write_along(kr_file *file, kr_file *along)
    void kr_file_settle(kr_file *along, kr_file *file, int error)
    int kr_file_read(kr_file *file, int64_t position, int64_t size, uint8_t *target)
    int kr_file_read_aside(kr_file *file, int64_t position, int64_t size, uint8_t *target)
    int kr_file_write(kr_file *file, int64_t position, int64_t size, const uint8_t *source)
    int kr_file_map(kr_file *file, int64_t size, int64_t least, int32_t *fault, kr_mapping **out)
    int kr_file_replace(kr_file *file, int64_t keep, const uint8_t *tail, int64_t tail_size, int64_t size,
                        int32_t *fault, kr_mapping **out)
    void kr_file_renamed(kr_file *file, const char *path)
    void kr_file_let_go(kr_file *file)

cdef extern from "growth.h" nogil:
    ctypedef struct kr_growth:
        int64_t capacity
        int64_t limit
        int64_t file_size
        int huge
    void kr_growth_init(kr_growth *growth, kr_file *file, int64_t *allocated, const int64_t *length)
    void kr_growth_destroy(kr_growth *growth)
    int kr_grow(kr_growth *growth, uint8_t *base, int64_t length, int64_t need)
    int64_t kr_growth_advance(kr_growth *growth, int64_t length)
    void kr_growth_flushed(kr_growth *growth, int64_t length)
    int64_t kr_growth_stop(kr_growth *growth, int64_t length)
    void kr_growth_written_aside(kr_growth *growth, int64_t size)
    void kr_growth_resized(kr_growth *growth, int64_t size)


# The status for an errno: status.status_of_errno for native code.
cdef inline int status_of(int number) noexcept nogil:
    if number == 0:
        return OK
    if number == ENOSPC or number == EDQUOT or number == EFBIG:
        return STORAGE_FULL
    if number == EMFILE or number == ENFILE:
        return OUT_OF_DESCRIPTORS
    if number == ENOMEM:
        return NO_MEMORY
    return IO_FAILED
