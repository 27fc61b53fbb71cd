/* One native thread that does small pieces of work for files that are being written: it is started when the first is
 * handed to it, never takes the GIL, and is forgotten by a fork. At the end of the process it simply ends.
 *
 * Thread rule: any thread may submit and forget; a task's owner does one of them at a time. */
#ifndef KREPLICA_PREFAULT_H
#define KREPLICA_PREFAULT_H

#include <stdint.h>

typedef struct kr_task {
    int (*step)(struct kr_task *task); /* one piece of work; not 0: there is more */
    struct kr_task *next;
    int queued;    /* these are the thread's, guarded by its lock */
    int forgotten;
} kr_task;

/* Have the task's steps run, in turn with other tasks', until one returns 0. Nothing happens if no thread can be had:
 * what the thread does is never needed, only timely. */
void kr_submit(kr_task *task);
/* Afterwards no step of the task runs or will run: at most one step is waited for. */
void kr_forget(kr_task *task);

/* Bring the pages of base[0:size] in, ready to be written: 0 or an errno. The file may shrink meanwhile. */
int kr_populate(uint8_t *base, int64_t size);
/* Ask for pages of 2 MiB where the file is read in and written by page faults, or for the usual ones again. */
void kr_prefer_huge_pages(uint8_t *base, int64_t size, int huge);
int64_t kr_monotonic_ns(void);

#endif
