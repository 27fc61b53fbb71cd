/* How a file grows. Its blocks are taken in steps that double. While it is written fast, its next pages are taken and
 * faulted in ahead of the writer, by the prefault thread and as huge pages: on Linux 6.18 with ext4 that is 8 GB/s,
 * where page by page under the writer it is 1.9. A file that is written slowly, or not at all, has nothing ahead of it:
 * the window is what the writer has lately written in a fiftieth of a second, up to a limit.
 *
 * A flush writes what lies ahead too, and a huge page as a whole for each byte that changed in it: 200 flushed appends
 * of 1 KiB wrote 400 MiB. So nothing is done ahead before 64 MiB were written since the last flush, and the window is
 * at most an eighth of that. When a flush comes nevertheless, what lies ahead is given back, and pages are small again.
 *
 * Thread rule: one writer calls all of these but kr_growth_flushed, which any thread may call; `lock` guards the file's
 * end against the prefault thread. Before the writer shortens, unmaps or closes the file it calls kr_growth_stop. */
#ifndef KREPLICA_GROWTH_H
#define KREPLICA_GROWTH_H

#include <pthread.h>
#include <stdint.h>

#include "file.h"
#include "prefault.h"

typedef struct {
    kr_task task; /* first: the prefault thread hands it back */
    pthread_mutex_t lock;
    kr_file *file;
    int64_t *allocated;    /* the region's: bytes that may be written; stored with release */
    const int64_t *length; /* the region's: where the writer is */
    int64_t capacity;
    int64_t file_size; /* guarded by lock, with step and *allocated */
    int64_t step;
    int64_t limit;  /* the largest window; 0: nothing is done ahead */
    uint8_t *base;  /* the writer's mapping; NULL until it grows again after a stop */
    int64_t window; /* atomic: bytes to have faulted in ahead of the writer */
    int64_t done;   /* the prefault thread's: faulted in up to here */
    int64_t looked_at_ns, looked_at; /* when, and at which length, the pace was last looked at; 0: not yet */
    int huge;
    int64_t flushed; /* atomic: the length at the last flush, or -1 */
} kr_growth;

void kr_growth_init(kr_growth *growth, kr_file *file, int64_t *allocated, const int64_t *length);
void kr_growth_destroy(kr_growth *growth);

/* Make [0, need) of the file writable, and more of it by the present step if the disk has the room. `length` is how
 * far it is filled, `base` where it is mapped. Returns 0 or an errno. */
int kr_grow(kr_growth *growth, uint8_t *base, int64_t length, int64_t need);
/* The writer has come to `length`: the watermark at which it should call again. */
int64_t kr_growth_advance(kr_growth *growth, int64_t length);
/* The bytes below `length` were flushed: the writer should call kr_growth_advance soon. */
static inline void kr_growth_flushed(kr_growth *growth, int64_t length) {
    __atomic_store_n(&growth->flushed, length, __ATOMIC_RELAXED);
}
/* Nothing is done ahead any more, until the writer advances again. Returns the watermark to begin with. */
int64_t kr_growth_stop(kr_growth *growth, int64_t length);
/* The file was given this size, all of it allocated, after kr_growth_stop. */
void kr_growth_resized(kr_growth *growth, int64_t size);

#endif
