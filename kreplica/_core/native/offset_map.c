#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#include "offset_map.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20 };

static size_t bytes_of(const kr_offset_map *map) { return (size_t)map->slots * sizeof(kr_offset_entry); }

int kr_offset_map_open(kr_offset_map *map, int64_t slots, int64_t capacity, const uint8_t key[16]) {
    *map = (kr_offset_map){.slots = slots,
                           .capacity = capacity,
                           .reserved_slots = slots,
                           .reserved_capacity = capacity,
                           .key = {kr_little64(key), kr_little64(key + 8)}};
    void *memory = mmap(NULL, bytes_of(map), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return ENOMEM;
#ifdef MADV_HUGEPAGE
    /* Every key lies on a page of its own, so huge pages save lookups in the page table. The advice may be refused. */
    if (bytes_of(map) >= 2 * HUGE_PAGE) madvise(memory, bytes_of(map), MADV_HUGEPAGE);
#endif
    map->entries = memory;
    return 0;
}

void kr_offset_map_close(kr_offset_map *map) {
    map->slots = map->reserved_slots;
    if (map->entries) munmap(map->entries, bytes_of(map));
    map->entries = NULL;
}

static void empty(kr_offset_map *map) {
    map->size = 0;
#ifdef __linux__
    if (bytes_of(map) >= HUGE_PAGE && madvise(map->entries, bytes_of(map), MADV_DONTNEED) == 0) return;
#endif
    memset(map->entries, 0, bytes_of(map));
}

void kr_offset_map_clear(kr_offset_map *map, int64_t keys) {
    empty(map);
    map->slots = map->reserved_slots;
    map->capacity = map->reserved_capacity;
    if (keys >= map->capacity) return;
    /* A tenth of the slots stays empty, as in a table of full size. */
    map->capacity = keys < 1 ? 1 : keys;
    int64_t slots = map->capacity + map->capacity / 9 + 2;
    if (slots < map->slots) map->slots = slots;
}

/* Take the slot `at`; the entries from there on move up by one, as far as the next empty slot. */
static void insert(kr_offset_map *map, int64_t at, const kr_offset_entry *entry) {
    kr_offset_entry carried = *entry;
    while (carried.mark != 0) {
        kr_offset_entry held = map->entries[at];
        map->entries[at] = carried;
        carried = held;
        if (++at == map->slots) at = 0;
    }
    map->size++;
}

int kr_offset_map_put(kr_offset_map *map, const kr_offset_entry *entry) {
    int64_t at = kr_offset_map_slot(map, entry->place);
    for (int64_t distance = 0;; distance++) {
        kr_offset_entry *slot = &map->entries[at];
        if (slot->mark == 0) break;
        if (slot->place == entry->place && slot->check == entry->check) {
            if (entry->mark > slot->mark) slot->mark = entry->mark;
            return 1;
        }
        int64_t came = at - kr_offset_map_slot(map, slot->place);
        if (came + (came < 0 ? map->slots : 0) < distance) break;
        if (++at == map->slots) at = 0;
    }
    if (map->size >= map->capacity) return 0;
    insert(map, at, entry);
    return 1;
}
