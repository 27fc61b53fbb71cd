/* What backs a region: a descriptor and a mapping, each counted, so that whoever uses one of them keeps it while its
 * owner goes on to another; and the few file operations in which operating systems differ.
 *
 * Functions return 0 or an errno. Thread rule: references may be taken and dropped by any thread; the one that drops
 * the last one closes or unmaps. */
#ifndef KREPLICA_BACKING_H
#define KREPLICA_BACKING_H

#include <stdint.h>

typedef struct {
    int64_t references;
    int fd;
} kr_descriptor;

typedef struct {
    int64_t references;
    uint8_t *base;
    int64_t size;
    int64_t watch; /* with the SIGBUS guard; -1 for plain memory */
} kr_mapping;

int kr_open(const char *path, int writable, int create, kr_descriptor **out);
void kr_descriptor_retain(kr_descriptor *descriptor);
void kr_descriptor_release(kr_descriptor *descriptor); /* NULL is allowed */

/* Map [0, size) of the file. `fault` is told of lost pages (guard.h) until kr_mapping_disown. Refused with ENOMEM
 * when the process's map budget is spent; a writer may take an eighth more than the budget. */
int kr_map(int fd, int64_t size, int writable, int32_t *fault, kr_mapping **out);
/* Zeroed memory that belongs to no file. */
int kr_map_memory(int64_t size, kr_mapping **out);
void kr_mapping_retain(kr_mapping *mapping);
void kr_mapping_release(kr_mapping *mapping); /* NULL is allowed */
void kr_mapping_disown(kr_mapping *mapping);

/* How many file mappings the process may hold: four fifths of vm.max_map_count unless it was set. */
int64_t kr_map_budget(void);
void kr_set_map_budget(int64_t maps);
int64_t kr_maps_held(void);

int kr_file_size(int fd, int64_t *size);
/* Whether blocks that fallocate hands out may still turn out to be missing: copy-on-write file systems. */
int kr_reserves_nothing(int fd);
/* Make [start, stop) of the file exist on disk, contents unchanged below the file's size and zero above it. With
 * `zeros` the part above the file's size is written, not only reserved. What a failure left behind is given back. */
int kr_allocate(int fd, int64_t start, int64_t stop, int zeros);
int kr_resize(int fd, int64_t size);
/* The file's bytes, written through `base` (or not mapped: NULL), are on disk afterwards. */
int kr_flush(int fd, uint8_t *base, int64_t size);
/* All of it, or an error; a file that ends before gives EIO. */
int kr_read(int fd, int64_t position, int64_t size, uint8_t *target);
int kr_write(int fd, int64_t position, int64_t size, const uint8_t *source);

#endif
