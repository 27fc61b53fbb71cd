/* How a file grows. Its blocks are allocated in steps that double. While it is written fast, the prefault thread
 * allocates its next pages and faults them in ahead of the writer, as huge pages. On Linux 6.18 with ext4 that
 * reaches 8 GB/s, compared with 1.9 page by page under the writer. A file that is written slowly, or not at all,
 * has nothing ahead of it: the window is what the writer has recently written in a fiftieth of a second, up to a
 * limit.
 *
 * A flush also writes what lies ahead, and all of a huge page for each byte changed in it: 200 flushed appends of 1
 * KiB wrote 400 MiB. So no work is done ahead before 64 MiB have been written since the last flush, and the window
 * is at most an eighth of that. When a flush comes nevertheless, the space ahead is given back, and pages are small
 * again.
 *
 * A page of the space ahead that is touched through the mapping makes the kernel read ahead of it, up to the disk's
 * read_ahead_kb, and then ahead of each page that is read later: all of the file is cleared once before it is written.
 * So there is no reading ahead in the mapping before the writer, and as usual behind it.
 *
 * Thread rule: one writer calls all of these except kr_growth_flushed, which any thread may call; `lock` guards the
 * file's end against the prefault thread. The writer calls kr_growth_stop before it shortens, unmaps or closes the
 * file. */
#ifndef KREPLICA_GROWTH_H
#define KREPLICA_GROWTH_H

#include <pthread.h>
#include <stdint.h>

#include "file.h"
#include "prefault.h"

typedef struct {
    kr_task task; /* first, because the prefault thread passes its address to the step */
    pthread_mutex_t lock;
    kr_file *file;
    int64_t *allocated;    /* of the region: bytes that may be written; stored with release */
    const int64_t *length; /* of the region: the writer's position */
    int64_t capacity;
    int64_t file_size; /* guarded by lock, with step and *allocated */
    int64_t step;
    int64_t limit;  /* the largest window; 0: no work is done ahead */
    uint8_t *base;  /* the writer's mapping; NULL after a stop until the file grows again */
    int64_t window; /* atomic: bytes to fault in ahead of the writer */
    int64_t done;   /* the prefault thread's: bytes are faulted in up to here */
    int64_t looked_at_ns, looked_at; /* time and length at which the pace was last measured; 0: not yet */
    int huge;
    int64_t read_ahead; /* nothing is read ahead from here on; -1: everywhere */
    int64_t flushed; /* atomic: the length at the last flush, or -1 */
} kr_growth;

void kr_growth_init(kr_growth *growth, kr_file *file, int64_t *allocated, const int64_t *length);
void kr_growth_destroy(kr_growth *growth);

/* Make [0, need) of the file writable, and more of it by the present step if the disk has the space. `length` is
 * the length filled so far, `base` the mapping's address. Returns 0 or an errno. */
int kr_grow(kr_growth *growth, uint8_t *base, int64_t length, int64_t need);
/* Record that the writer has reached `length`; return the watermark at which it calls this again. */
int64_t kr_growth_advance(kr_growth *growth, int64_t length);
/* Record a flush of the bytes below `length`; the writer should call kr_growth_advance soon. */
static inline void kr_growth_flushed(kr_growth *growth, int64_t length) {
    __atomic_store_n(&growth->flushed, length, __ATOMIC_RELAXED);
}
/* Record that `size` bytes are written by a call and not through the mapping: nothing is faulted in for such ones. */
static inline void kr_growth_written_aside(kr_growth *growth, int64_t size) { growth->looked_at += size; }
/* Stop the work ahead until the writer advances again. Returns the first watermark. */
int64_t kr_growth_stop(kr_growth *growth, int64_t length);
/* Record that the file was given this size, all of it allocated, after kr_growth_stop. */
void kr_growth_resized(kr_growth *growth, int64_t size);

#endif
