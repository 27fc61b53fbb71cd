/* Slots: fixed-size records in one growing array, identified by their index. The contract is in slots.pxd. */
#ifndef KREPLICA_SLOTS_H
#define KREPLICA_SLOTS_H

#include <stdint.h>
#include <stdlib.h>

enum { NO_SLOT = 0, FEWEST_SLOTS = 64, SLOTS_AHEAD = 8 };

typedef struct {
    char *base;
    int64_t slot_bytes;
    int32_t *free;       /* the indexes that were given back, the latest last */
    int32_t free_count;
    int32_t used;        /* indexes from here on have not been taken since the array started over */
    int32_t capacity;
    int32_t limit;
    int32_t reserved;
} slots_t;

/* Rare work stays out of the callers, which then need no stack frame of their own. */
#define SLOTS_RARELY static __attribute__((noinline, cold))

SLOTS_RARELY int slots_resize(slots_t *slots, int64_t capacity) {
    /* Until both arrays have the new size, the smaller one limits the slots. */
    if (capacity < slots->capacity) slots->capacity = (int32_t)capacity;
    char *base = realloc(slots->base, (size_t)(capacity * slots->slot_bytes));
    if (base == NULL) return 0;
    slots->base = base;
    int32_t *free_indexes = realloc(slots->free, (size_t)capacity * sizeof(int32_t));
    if (free_indexes == NULL) return 0;
    slots->free = free_indexes;
    slots->capacity = (int32_t)capacity;
    return 1;
}

static inline int slots_open(slots_t *slots, int64_t slot_bytes, int32_t reserved, int32_t limit) {
    *slots = (slots_t){.slot_bytes = slot_bytes, .used = reserved, .limit = limit, .reserved = reserved};
    return slots_resize(slots, (int64_t)reserved + FEWEST_SLOTS);
}

static inline void slots_close(slots_t *slots) {
    free(slots->base);
    free(slots->free);
    slots->base = NULL;
    slots->free = NULL;
}

static inline int32_t slots_taken(const slots_t *slots) {
    return slots->used - slots->reserved - slots->free_count;
}

static inline int64_t slots_allocated_bytes(const slots_t *slots) {
    return slots->capacity * (slots->slot_bytes + (int64_t)sizeof(int32_t));
}

SLOTS_RARELY int32_t slots_grow(slots_t *slots) {
    int64_t larger = (int64_t)slots->capacity * 2;
    if (larger > slots->limit) larger = slots->limit;
    if (larger <= slots->capacity || !slots_resize(slots, larger)) return NO_SLOT;
    return slots->used++;
}

static inline int32_t slots_take(slots_t *slots) {
    if (slots->free_count > 0) {
        int32_t left = --slots->free_count;
        /* The slots on top of the list may be anywhere, so prefetch one that will be taken soon. */
        if (left >= SLOTS_AHEAD)
            __builtin_prefetch(slots->base + slots->free[left - SLOTS_AHEAD] * slots->slot_bytes, 1);
        return slots->free[left];
    }
    return slots->used < slots->capacity ? slots->used++ : slots_grow(slots);
}

SLOTS_RARELY void slots_start_over(slots_t *slots) {
    int32_t smaller = slots->capacity / 2;
    if (slots->used <= slots->capacity / 4 && smaller >= slots->reserved + FEWEST_SLOTS)
        slots_resize(slots, smaller); /* if this fails, the larger array serves as well */
    slots->used = slots->reserved;
    slots->free_count = 0;
}

static inline void slots_give(slots_t *slots, int32_t index) {
    slots->free[slots->free_count++] = index;
    if (__builtin_expect(slots_taken(slots) == 0, 0)) slots_start_over(slots);
}

#endif
