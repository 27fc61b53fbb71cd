/* The table of an OffsetMap: open addressing with linear probing over 16-byte entries, in bounded memory.
 *
 * A key is identified by 96 bits of its keyed hash. The upper 64 also give its place: scaled to the number of
 * slots, they are the slot where its search begins. Entries lie in the order of the slots where their searches
 * begin (Robin Hood: the entry farther from its first slot stays). So a search ends at the first entry that is less
 * far from its first slot, and a missing key costs no more than a present one, even in a full table.
 *
 * Thread rule: one thread at a time. */
#ifndef KREPLICA_OFFSET_MAP_H
#define KREPLICA_OFFSET_MAP_H

#include <stdint.h>

#include "siphash.h"

typedef struct {
    uint64_t place;
    uint32_t check;
    uint32_t mark; /* the offset minus the pass's first one, plus 1; 0: an empty slot */
} kr_offset_entry;

typedef struct {
    kr_offset_entry *entries;
    int64_t slots;    /* in use; as few of the reserved ones as the keys of a pass may need */
    int64_t capacity; /* keys; fewer than slots, so that every search ends */
    int64_t reserved_slots;
    int64_t reserved_capacity;
    int64_t size;
    uint64_t key[2];
} kr_offset_map;

/* Allocate `slots` slots; at most `capacity` of them are taken. Both are at least 1, and one slot stays empty.
 * Returns 0 or ENOMEM. */
int kr_offset_map_open(kr_offset_map *map, int64_t slots, int64_t capacity, const uint8_t key[16]);
void kr_offset_map_close(kr_offset_map *map);
/* Empty the map for at most `keys` keys, or for as many as it has room for. A large table's memory goes back to the
 * system; a small table for few keys stays in the processor's cache. */
void kr_offset_map_clear(kr_offset_map *map, int64_t keys);
/* Put the entry, or raise the mark of the one with its hash. Returns 1, or 0 if there is no room for another key. */
int kr_offset_map_put(kr_offset_map *map, const kr_offset_entry *entry);

static inline int64_t kr_offset_map_slot(const kr_offset_map *map, uint64_t place) {
    return (int64_t)((unsigned __int128)place * (uint64_t)map->slots >> 64);
}

/* Return the entry of a key, without a mark, and prefetch its slot, which is rarely in a cache. */
static inline kr_offset_entry kr_offset_map_entry(const kr_offset_map *map, const uint8_t *key, int64_t size) {
    kr_hash128 hash = kr_siphash(map->key, key, size);
    const kr_offset_entry *slot = &map->entries[kr_offset_map_slot(map, hash.low)];
    __builtin_prefetch(slot, 1);
    __builtin_prefetch(slot + 4, 1);
    return (kr_offset_entry){.place = hash.low, .check = (uint32_t)hash.high};
}

/* Return the mark of the key with this hash, or 0 if the key is missing. */
static inline uint32_t kr_offset_map_find(const kr_offset_map *map, uint64_t place, uint32_t check) {
    int64_t at = kr_offset_map_slot(map, place);
    for (int64_t distance = 0;; distance++) {
        const kr_offset_entry *slot = &map->entries[at];
        if (slot->mark == 0) return 0;
        if (slot->place == place && slot->check == check) return slot->mark;
        int64_t came = at - kr_offset_map_slot(map, slot->place);
        if (came + (came < 0 ? map->slots : 0) < distance) return 0;
        if (++at == map->slots) at = 0;
    }
}

#endif
