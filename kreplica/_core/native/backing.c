#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#define _FILE_OFFSET_BITS 64
#include "backing.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/vfs.h>
#endif

#include "guard.h"

/* ---- descriptors --------------------------------------------------------------------------------------------- */

int kr_open(const char *path, int writable, int create, kr_descriptor **out) {
    int flags = (writable ? O_RDWR : O_RDONLY) | (create ? O_CREAT : 0) | O_CLOEXEC;
    kr_descriptor *descriptor = malloc(sizeof *descriptor);
    if (!descriptor) return ENOMEM;
    do descriptor->fd = open(path, flags, 0644);
    while (descriptor->fd < 0 && errno == EINTR);
    if (descriptor->fd < 0) {
        int error = errno;
        free(descriptor);
        return error;
    }
    descriptor->references = 1;
    *out = descriptor;
    return 0;
}

void kr_descriptor_retain(kr_descriptor *descriptor) {
    __atomic_add_fetch(&descriptor->references, 1, __ATOMIC_RELAXED);
}

void kr_descriptor_release(kr_descriptor *descriptor) {
    if (!descriptor || __atomic_sub_fetch(&descriptor->references, 1, __ATOMIC_ACQ_REL)) return;
    close(descriptor->fd);
    free(descriptor);
}

/* ---- mappings ------------------------------------------------------------------------------------------------ */

static int64_t maps_held;
static int64_t map_budget; /* 0: not asked for yet */

int64_t kr_maps_held(void) { return __atomic_load_n(&maps_held, __ATOMIC_RELAXED); }
void kr_set_map_budget(int64_t maps) { __atomic_store_n(&map_budget, maps > 0 ? maps : 1, __ATOMIC_RELAXED); }

int64_t kr_map_budget(void) {
    int64_t budget = __atomic_load_n(&map_budget, __ATOMIC_RELAXED);
    if (budget) return budget;
    long long maximum = 65530; /* Linux's default, where the system does not tell */
    FILE *file = fopen("/proc/sys/vm/max_map_count", "re");
    if (file) {
        if (fscanf(file, "%lld", &maximum) != 1 || maximum < 16) maximum = 65530;
        fclose(file);
    }
    kr_set_map_budget(maximum / 5 * 4);
    return kr_map_budget();
}

static kr_mapping *new_mapping(uint8_t *base, int64_t size, int64_t watch) {
    kr_mapping *mapping = malloc(sizeof *mapping);
    if (mapping) *mapping = (kr_mapping){.references = 1, .base = base, .size = size, .watch = watch};
    return mapping;
}

static int map_within_budget(int fd, int64_t size, int writable, int32_t *fault, kr_mapping **out) {
    int protection = PROT_READ | (writable ? PROT_WRITE : 0);
    void *base = mmap(NULL, (size_t)size, protection, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) return errno;
    int64_t watch = kr_watch(base, size, fault);
    kr_mapping *mapping = watch < 0 ? NULL : new_mapping(base, size, watch);
    if (!mapping) {
        if (watch >= 0) kr_unwatch(watch);
        munmap(base, (size_t)size);
        return ENOMEM;
    }
    *out = mapping;
    return 0;
}

int kr_map(int fd, int64_t size, int writable, int32_t *fault, kr_mapping **out) {
    int64_t budget = kr_map_budget();
    if (writable) budget += budget / 8;
    int error = ENOMEM;
    if (__atomic_add_fetch(&maps_held, 1, __ATOMIC_RELAXED) <= budget)
        error = map_within_budget(fd, size, writable, fault, out);
    if (error) __atomic_sub_fetch(&maps_held, 1, __ATOMIC_RELAXED);
    return error;
}

int kr_map_memory(int64_t size, kr_mapping **out) {
    uint8_t *base = calloc(1, (size_t)size);
    *out = base ? new_mapping(base, size, -1) : NULL;
    if (*out) return 0;
    free(base);
    return ENOMEM;
}

void kr_mapping_retain(kr_mapping *mapping) { __atomic_add_fetch(&mapping->references, 1, __ATOMIC_RELAXED); }

void kr_mapping_disown(kr_mapping *mapping) {
    if (mapping->watch >= 0) kr_watch_disown(mapping->watch);
}

void kr_mapping_release(kr_mapping *mapping) {
    if (!mapping || __atomic_sub_fetch(&mapping->references, 1, __ATOMIC_ACQ_REL)) return;
    if (mapping->watch >= 0) {
        kr_unwatch(mapping->watch);
        munmap(mapping->base, (size_t)mapping->size);
        __atomic_sub_fetch(&maps_held, 1, __ATOMIC_RELAXED);
    } else {
        free(mapping->base);
    }
    free(mapping);
}

/* ---- files --------------------------------------------------------------------------------------------------- */

int kr_file_size(int fd, int64_t *size) {
    struct stat status;
    if (fstat(fd, &status)) return errno;
    *size = status.st_size;
    return 0;
}

int kr_reserves_nothing(int fd) {
#ifdef __linux__
    struct statfs system;
    if (fstatfs(fd, &system)) return 0;
    switch ((uint32_t)system.f_type) {
    case 0x9123683E: /* btrfs */
    case 0x2FC12FC1: /* zfs */
    case 0xCA451A4E: /* bcachefs */
    case 0x00003434: /* nilfs2 */
        return 1;
    }
#else
    (void)fd;
#endif
    return 0;
}

int kr_read(int fd, int64_t position, int64_t size, uint8_t *target) {
    while (size > 0) {
        ssize_t done = pread(fd, target, (size_t)size, position);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return done < 0 ? errno : EIO;
        target += done, position += done, size -= done;
    }
    return 0;
}

int kr_write(int fd, int64_t position, int64_t size, const uint8_t *source) {
    while (size > 0) {
        ssize_t done = pwrite(fd, source, (size_t)size, position);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return done < 0 ? errno : ENOSPC;
        source += done, position += done, size -= done;
    }
    return 0;
}

static int write_zeros(int fd, int64_t start, int64_t stop) {
    static const uint8_t zeros[1 << 16];
    int error = 0;
    while (start < stop && !error) {
        int64_t size = stop - start < (int64_t)sizeof zeros ? stop - start : (int64_t)sizeof zeros;
        error = kr_write(fd, start, size, zeros);
        start += size;
    }
    return error;
}

static int reserve_blocks(int fd, int64_t start, int64_t stop, int64_t size) {
#if defined(__APPLE__)
    (void)start;
    fstore_t wanted = {.fst_flags = F_ALLOCATEALL, .fst_posmode = F_PEOFPOSMODE, .fst_length = stop - size};
    if (stop <= size) return 0;
    if (fcntl(fd, F_PREALLOCATE, &wanted) < 0) return errno;
    return ftruncate(fd, stop) ? errno : 0;
#elif defined(__linux__)
    (void)size;
    while (fallocate(fd, 0, start, stop - start))
        if (errno != EINTR) return errno;
    return 0;
#else
    (void)size;
    return posix_fallocate(fd, start, stop - start);
#endif
}

int kr_allocate(int fd, int64_t start, int64_t stop, int zeros) {
    int64_t size;
    int error = kr_file_size(fd, &size);
    if (error) return error;
    error = zeros ? EOPNOTSUPP : reserve_blocks(fd, start, stop, size);
    if ((error == EOPNOTSUPP || error == ENOSYS) && stop > size)
        error = write_zeros(fd, size, stop);
    else if (error == EOPNOTSUPP || error == ENOSYS)
        error = 0;
    /* Nothing more can be done should this fail too; the first error is the one to tell. */
    if (error && ftruncate(fd, size)) return error;
    return error;
}

int kr_resize(int fd, int64_t size) {
    while (ftruncate(fd, size))
        if (errno != EINTR) return errno;
    return 0;
}

int kr_flush(int fd, uint8_t *base, int64_t size) {
#ifdef __APPLE__
    if (base && size > 0 && msync(base, (size_t)size, MS_SYNC)) return errno;
    return fcntl(fd, F_FULLFSYNC) < 0 ? errno : 0;
#else
    /* Linux finds the pages that were written through a mapping by itself. */
    (void)base, (void)size;
    return fdatasync(fd) ? errno : 0;
#endif
}
