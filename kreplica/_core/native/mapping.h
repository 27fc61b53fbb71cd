/* Mappings with a count of references: a user of a mapping keeps it, while its owner may change to another one. The
 * SIGBUS guard watches them, and the process holds at most as many as its budget allows.
 *
 * Thread rule: any thread may take and drop references; the one that drops the last reference unmaps. */
#ifndef KREPLICA_MAPPING_H
#define KREPLICA_MAPPING_H

#include <stdint.h>

typedef struct {
    uint8_t *base;
    int64_t size;
    int64_t references;
    int64_t watch; /* its number with the guard; -1 for plain memory */
} kr_mapping;

/* Map [0, size) of the file. Lost pages are recorded in *fault until kr_mapping_disown. Returns 0 or an errno:
 * ENOMEM also if the budget is exhausted; a writer may use an eighth more than the budget. */
int kr_map(int fd, int64_t size, int writable, int32_t *fault, kr_mapping **out);
/* Allocate zeroed memory that belongs to no file and does not count towards the budget. */
int kr_map_memory(int64_t size, kr_mapping **out);
void kr_mapping_retain(kr_mapping *mapping);
void kr_mapping_release(kr_mapping *mapping); /* NULL is allowed, here and below */
void kr_mapping_disown(kr_mapping *mapping);

/* The number of file mappings that the process may hold: four fifths of vm.max_map_count unless it was set. */
int64_t kr_map_budget(void);
void kr_set_map_budget(int64_t maps);
int64_t kr_maps_held(void);
/* Count one more, since a mapping is about to be split in two; returns 0, and counts none, beyond the budget. */
int kr_count_map(void);
void kr_uncount_map(void);

#endif
