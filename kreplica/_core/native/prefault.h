/* One native thread that does small pieces of work for files that are being written. The first task starts it; it
 * never takes the GIL, and a forked child does not have it. The process's end does not wait for it.
 *
 * Thread rule: any thread may submit and forget; a task's owner makes one of these calls at a time. */
#ifndef KREPLICA_PREFAULT_H
#define KREPLICA_PREFAULT_H

#include <stdint.h>

typedef struct kr_task {
    int (*step)(struct kr_task *task); /* does one piece of work; returns nonzero if there is more */
    struct kr_task *next;
    int queued;    /* these belong to the thread, guarded by its lock */
    int forgotten;
} kr_task;

/* Run the task's steps, in turn with those of other tasks, until one returns 0. If no thread can be started nothing
 * happens: the thread's work saves time, but is never necessary. */
void kr_submit(kr_task *task);
/* Stop the task: on return none of its steps runs or will run. Waits for at most one step. */
void kr_forget(kr_task *task);

/* Fault in the pages of base[0:size] for writing; returns 0 or an errno. The file may shrink meanwhile. */
int kr_populate(uint8_t *base, int64_t size);
/* Prefer pages of 2 MiB for page faults in this range, or the usual ones again. */
void kr_prefer_huge_pages(uint8_t *base, int64_t size, int huge);
/* Let the kernel read ahead of pages that are touched there, or not. `base`: at a page. */
void kr_read_ahead(uint8_t *base, int64_t size, int on);
int64_t kr_monotonic_ns(void);

#endif
