#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#include "mapping.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "guard.h"

enum { LARGE_MEMORY = 64 << 10 };

static int64_t maps_held;
static int64_t map_budget = -1; /* not read yet */

int64_t kr_maps_held(void) { return __atomic_load_n(&maps_held, __ATOMIC_RELAXED); }
void kr_set_map_budget(int64_t maps) { __atomic_store_n(&map_budget, maps > 0 ? maps : 0, __ATOMIC_RELAXED); }

int64_t kr_map_budget(void) {
    int64_t budget = __atomic_load_n(&map_budget, __ATOMIC_RELAXED);
    if (budget >= 0) return budget;
    long long maximum = 65530; /* Linux's default, if the system does not provide the value */
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
    if (mapping) *mapping = (kr_mapping){.base = base, .size = size, .references = 1, .watch = watch};
    return mapping;
}

static int map_and_watch(int fd, int64_t size, int writable, int32_t *fault, kr_mapping **out) {
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
        error = map_and_watch(fd, size, writable, fault, out);
    if (error) __atomic_sub_fetch(&maps_held, 1, __ATOMIC_RELAXED);
    return error;
}

int kr_count_map(void) {
    if (__atomic_add_fetch(&maps_held, 1, __ATOMIC_RELAXED) <= kr_map_budget()) return 1;
    kr_uncount_map();
    return 0;
}

void kr_uncount_map(void) { __atomic_sub_fetch(&maps_held, 1, __ATOMIC_RELAXED); }

/* Anonymous pages are zeroed when they are first accessed; calloc zeroes memory that malloc reuses all at once.
 * Most pages are never accessed. So the system counts only those that are, also for a forked child. */
static uint8_t *zeroed_memory(int64_t size) {
    if (size < LARGE_MEMORY) return calloc(1, size > 0 ? (size_t)size : 1);
    void *base = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return base == MAP_FAILED ? NULL : base;
}

static void free_memory(uint8_t *base, int64_t size) {
    if (size < LARGE_MEMORY) free(base);
    else if (base) munmap(base, (size_t)size);
}

int kr_map_memory(int64_t size, kr_mapping **out) {
    uint8_t *base = zeroed_memory(size);
    *out = base ? new_mapping(base, size, -1) : NULL;
    if (*out) return 0;
    free_memory(base, size);
    return ENOMEM;
}

void kr_mapping_retain(kr_mapping *mapping) { __atomic_add_fetch(&mapping->references, 1, __ATOMIC_RELAXED); }

void kr_mapping_disown(kr_mapping *mapping) {
    if (mapping && mapping->watch >= 0) kr_watch_disown(mapping->watch);
}

void kr_mapping_release(kr_mapping *mapping) {
    if (!mapping || __atomic_sub_fetch(&mapping->references, 1, __ATOMIC_ACQ_REL)) return;
    if (mapping->watch >= 0) {
        kr_unwatch(mapping->watch);
        munmap(mapping->base, (size_t)mapping->size);
        __atomic_sub_fetch(&maps_held, 1, __ATOMIC_RELAXED);
    } else {
        free_memory(mapping->base, mapping->size);
    }
    free(mapping);
}
