/* A native thread that does the work of a disk for event loops: a queue of jobs in, a notice through a file descriptor
 * back. It never takes the GIL. A job is run once, whole, in the order of submission, but for lazy ones.
 *
 * A lane is a sequence of jobs of which each builds on the one before it, such as the appends of one log. A job that
 * does not come out as OK holds its lane: those behind it come back with KR_HELD and have done nothing, until the
 * owner, who has them all back, frees it.
 *
 * As long as brief jobs come one at a time, the thread is held on the processor of whoever submits. Linux would wake it
 * on one that is idle, and whoever waits for it on another one: two interrupts between processors and two cold caches
 * for some microseconds of work. Other jobs, and several at once, are done wherever there is room.
 *
 * Ownership: a job belongs to the thread from kr_disk_submit until kr_disk_take gives it back, a lane to whoever
 * submits, who keeps both in place. Thread rule: any thread may submit, settle and look; one takes. Every field is
 * guarded by `lock`, but for what a job's own `run` reads and writes, and `status`, which is read once it is back. */
#ifndef KREPLICA_DISK_QUEUE_H
#define KREPLICA_DISK_QUEUE_H

#include <pthread.h>
#include <stdint.h>

#define KR_HELD 6 /* Status.HELD; disk_thread.pyx refuses to load if they differ. */

typedef struct kr_lane {
    int64_t in_flight; /* submitted, and not yet run */
    int held;
} kr_lane;

typedef struct kr_job {
    int (*run)(struct kr_job *job); /* a Status */
    struct kr_job *next;
    kr_lane *lane;
    int64_t submitted_ns;
    int brief; /* some microseconds of work */
    int status;
    int finished;
} kr_job;

typedef struct kr_disk_queue {
    pthread_mutex_t lock;
    pthread_cond_t wanted;   /* a job came, or the end */
    pthread_cond_t finished; /* a job was run */
    kr_job *first, *last;
    kr_job *lazy_first, *lazy_last; /* done when they have waited for a moment; not before those that came later */
    kr_job *done_first, *done_last;
    kr_job *current;
    int64_t length; /* jobs that are not back yet */
    int running, stopping;
    int settling; /* how many wait for `finished` */
    int dozing; /* nothing to do for a moment: it looks again by itself soon */
    int asleep; /* nothing to do: it must be woken */
    int processor; /* where the thread is held, -1: anywhere */
    unsigned long processors[128 / sizeof(unsigned long)]; /* where it might run before: a cpu_set_t */
    int64_t crowded_ns; /* when a job was submitted last that was not brief, or not the only one */
    int wakes[2]; /* a descriptor to watch, and the one to write to; the same where there is eventfd */
    pthread_t thread;
} kr_disk_queue;

/* 0 or an errno; nothing is held after a failure. */
int kr_disk_start(kr_disk_queue *queue);
/* Run what was submitted, and end the thread; what is done can still be taken. `at_once`: only the job that runs now is
 * waited for, the others come back as held. */
void kr_disk_stop(kr_disk_queue *queue, int at_once);
void kr_disk_destroy(kr_disk_queue *queue);

/* `lazily`: it may wait for some ms, and others overtake it. */
void kr_disk_submit(kr_disk_queue *queue, kr_job *job, int lazily);
/* The jobs that were run since the last call, linked by `next`; the notice is taken with them. */
kr_job *kr_disk_take(kr_disk_queue *queue);
/* Wait until the lane has no job that is not run. */
void kr_disk_settle(kr_disk_queue *queue, kr_lane *lane);
int64_t kr_disk_in_flight(kr_disk_queue *queue, kr_lane *lane);
/* Let jobs of the lane run again; none is in flight. */
void kr_disk_free_lane(kr_disk_queue *queue, kr_lane *lane);
int kr_disk_is_finished(kr_disk_queue *queue, kr_job *job);
/* How long the oldest job that is not run has been waiting, in ns; 0 where there is none. */
int64_t kr_disk_waiting_ns(kr_disk_queue *queue);

#endif
