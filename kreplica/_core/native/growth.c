#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#include "growth.h"

#include <errno.h>

#include "mapping.h"

#define FIRST_STEP ((int64_t)64 << 10)
#define LAST_STEP ((int64_t)16 << 20)
#define CHUNK ((int64_t)2 << 20) /* faulted in at once: a huge page; no other thread waits longer than for this */
#define LOOK_EVERY ((int64_t)128 << 10) /* the writer's pace is measured at most once in this many bytes */
#define SMALLEST_WINDOW ((int64_t)256 << 10)
#define SELDOM_FLUSHED ((int64_t)64 << 20)
#define AHEAD_NS ((int64_t)20 * 1000 * 1000)
#define PAGE ((int64_t)4096)
#define READ_BEHIND ((int64_t)8 << 20) /* how far the writer goes before the kernel may read ahead behind it */
#define NEVER INT64_MAX

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static int prefault_step(kr_task *task);

void kr_growth_init(kr_growth *growth, kr_file *file, int64_t *allocated, const int64_t *length) {
    *growth = (kr_growth){.task = {.step = prefault_step}, .file = file, .allocated = allocated, .length = length,
                          .step = FIRST_STEP, .flushed = -1, .read_ahead = -1};
    pthread_mutex_init(&growth->lock, NULL);
}

void kr_growth_destroy(kr_growth *growth) { pthread_mutex_destroy(&growth->lock); }

static int is_full(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

/* Called under the lock, with need > *allocated. */
static int grow_to(kr_growth *growth, int64_t length, int64_t need) {
    int64_t start = *growth->allocated;
    int64_t stop = smaller(larger(need, larger(start, length) + growth->step), growth->capacity);
    int error = kr_file_allocate(growth->file, start, stop);
    if (is_full(error) && stop > need) {
        /* Use a disk to its last page before it counts as full. */
        stop = need;
        error = kr_file_allocate(growth->file, start, stop);
    }
    if (error) return error;
    growth->file_size = larger(growth->file_size, stop);
    growth->step = smaller(growth->step * 2, LAST_STEP);
    __atomic_store_n(growth->allocated, stop, __ATOMIC_RELEASE);
    return 0;
}

int kr_grow(kr_growth *growth, uint8_t *base, int64_t length, int64_t need) {
    int error = 0;
    if (growth->base != base) growth->base = base; /* no task is in progress then */
    pthread_mutex_lock(&growth->lock);
    if (need > *growth->allocated) error = grow_to(growth, length, need);
    pthread_mutex_unlock(&growth->lock);
    return error;
}

/* Runs on the prefault thread: do one chunk, and return whether there is more. An error ends the work ahead; if it
 * persists, the writer meets it. The writer's own chunk is left to the writer, because the two would only wait for
 * each other. */
static int prefault_step(kr_task *task) {
    kr_growth *growth = (kr_growth *)task;
    int64_t length = __atomic_load_n(growth->length, __ATOMIC_ACQUIRE);
    int64_t target = smaller(length + __atomic_load_n(&growth->window, __ATOMIC_ACQUIRE), growth->capacity);
    int64_t start = larger(growth->done, (length / CHUNK + 1) * CHUNK);
    int64_t stop = smaller(start + CHUNK, growth->capacity);
    int error = 0;
    if (start >= target) return 0;
    pthread_mutex_lock(&growth->lock);
    if (stop > *growth->allocated) error = grow_to(growth, stop, stop);
    pthread_mutex_unlock(&growth->lock);
    if (error || kr_populate(growth->base + start, stop - start)) return 0;
    growth->done = stop;
    return 1;
}

/* Return the window in bytes: what the writer would write in AHEAD_NS at its pace since the last measurement,
 * within limits. `since_flush` is the number of bytes written since the last flush. */
static int64_t window_for(const kr_growth *growth, int64_t length, int64_t since_flush, int64_t now) {
    if (!growth->looked_at_ns) return 0;
    int64_t bound = smaller(growth->limit, larger(growth->window * 2, SMALLEST_WINDOW));
    int64_t elapsed_ns = larger(now - growth->looked_at_ns, 1);
    double wanted = (double)(length - growth->looked_at) * (double)AHEAD_NS / (double)elapsed_ns;
    bound = smaller(bound, since_flush / 8);
    if (wanted < (double)bound) bound = (int64_t)wanted;
    return bound < SMALLEST_WINDOW / 4 ? 0 : bound / PAGE * PAGE;
}

static void read_ahead_only_behind(kr_growth *growth, int64_t length) {
    int64_t from = growth->read_ahead, stop = length / PAGE * PAGE;
    if (from >= 0 && stop - from < READ_BEHIND) return;
    if (from >= 0) kr_read_ahead(growth->base + from, stop - from, 1);
    else if (kr_count_map()) kr_read_ahead(growth->base + stop, growth->capacity - stop, 0);
    else return;
    growth->read_ahead = stop;
}

int64_t kr_growth_advance(kr_growth *growth, int64_t length) {
    if (!growth->limit) return NEVER;
    if (!growth->base) return length + LOOK_EVERY; /* nothing has grown since the last stop */
    read_ahead_only_behind(growth, length);
    int64_t flushed = __atomic_load_n(&growth->flushed, __ATOMIC_RELAXED);
    int64_t since_flush = flushed < 0 ? INT64_MAX : length - flushed;
    if (since_flush < SELDOM_FLUSHED) {
        if (!growth->huge) return length + LOOK_EVERY;
        kr_growth_stop(growth, length);
        /* If this fails, the slack remains; the next trim or close meets the error. */
        if (!kr_file_resize(growth->file, length)) kr_growth_resized(growth, length);
        return length + LOOK_EVERY;
    }
    int64_t now = kr_monotonic_ns();
    int64_t window = window_for(growth, length, since_flush, now);
    __atomic_store_n(&growth->window, window, __ATOMIC_RELEASE);
    growth->looked_at_ns = now;
    growth->looked_at = length;
    if (window) {
        if (!growth->huge) kr_prefer_huge_pages(growth->base, growth->capacity, growth->huge = 1);
        kr_submit(&growth->task);
    }
    return length + larger(window / 2, LOOK_EVERY);
}

int64_t kr_growth_stop(kr_growth *growth, int64_t length) {
    kr_forget(&growth->task);
    if (growth->huge) kr_prefer_huge_pages(growth->base, growth->capacity, growth->huge = 0);
    if (growth->read_ahead >= 0) {
        kr_read_ahead(growth->base + growth->read_ahead, growth->capacity - growth->read_ahead, 1);
        kr_uncount_map();
    }
    growth->read_ahead = -1;
    growth->window = growth->done = growth->looked_at_ns = 0;
    growth->base = NULL;
    return growth->limit ? length + LOOK_EVERY : NEVER;
}

void kr_growth_resized(kr_growth *growth, int64_t size) {
    growth->file_size = size;
    growth->step = FIRST_STEP;
    __atomic_store_n(growth->allocated, size, __ATOMIC_RELEASE);
}
