/* Mappings, counted: whoever uses one keeps it, while its owner may go on to another. They are watched by the SIGBUS
 * guard, and the process holds no more of them than its budget allows.
 *
 * Thread rule: references may be taken and dropped by any thread; the one that drops the last one unmaps. */
#ifndef KREPLICA_MAPPING_H
#define KREPLICA_MAPPING_H

#include <stdint.h>

typedef struct {
    uint8_t *base;
    int64_t size;
    int64_t references;
    int64_t watch; /* with the guard; -1 for plain memory */
} kr_mapping;

/* Map [0, size) of the file. *fault is told of lost pages until kr_mapping_disown. Returns 0 or an errno: ENOMEM also
 * when the budget is spent; a writer may take an eighth more than the budget. */
int kr_map(int fd, int64_t size, int writable, int32_t *fault, kr_mapping **out);
/* Zeroed memory that belongs to no file and counts for no budget. */
int kr_map_memory(int64_t size, kr_mapping **out);
void kr_mapping_retain(kr_mapping *mapping);
void kr_mapping_release(kr_mapping *mapping); /* NULL is allowed, here and below */
void kr_mapping_disown(kr_mapping *mapping);

/* How many file mappings the process may hold: four fifths of vm.max_map_count unless it was set. */
int64_t kr_map_budget(void);
void kr_set_map_budget(int64_t maps);
int64_t kr_maps_held(void);

#endif
