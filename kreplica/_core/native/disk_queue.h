/* A native thread that does the disk work of event loops: jobs go in through a queue, and a file descriptor
 * notifies of their results. It never takes the GIL. Each job runs once, as a whole, in the order of submission,
 * except lazy ones.
 *
 * A lane is a sequence of jobs that build on each other, such as the appends of one log. A job that does not end
 * with OK holds its lane: the later jobs do nothing and come back with KR_HELD, until the owner has them all back
 * and frees the lane.
 *
 * While brief jobs come one at a time, the thread is pinned to the submitter's processor. Otherwise Linux would
 * wake it on an idle processor, and its waiter on another one: two interrupts between processors and two cold
 * caches for a few microseconds of work. Other jobs, and several at once, run on any processor.
 *
 * Ownership: a job belongs to the thread from kr_disk_submit until kr_disk_take returns it, and a lane to its
 * submitter, who keeps both at their addresses. Thread rule: any thread may submit, settle and query; one thread
 * takes. `lock` guards every field, except those that only a job's `run` uses, and `status`, which is read once the
 * job is back. */
#ifndef KREPLICA_DISK_QUEUE_H
#define KREPLICA_DISK_QUEUE_H

#include <pthread.h>
#include <stdint.h>

#define KR_HELD 6 /* Status.HELD; disk_thread.pyx refuses to load if they differ. */

typedef struct kr_lane {
    int64_t in_flight; /* submitted and not yet run */
    int held;
} kr_lane;

typedef struct kr_job {
    int (*run)(struct kr_job *job); /* a Status */
    struct kr_job *next;
    kr_lane *lane;
    int64_t submitted_ns;
    int brief; /* takes a few microseconds */
    int status;
    int finished;
} kr_job;

typedef struct kr_disk_queue {
    pthread_mutex_t lock;
    pthread_cond_t wanted;   /* a job was submitted, or the thread is to stop */
    pthread_cond_t finished; /* a job has run */
    kr_job *first, *last;
    kr_job *lazy_first, *lazy_last; /* run after a short wait; jobs submitted later may run before */
    kr_job *done_first, *done_last;
    kr_job *current;
    int64_t length; /* jobs that have not been taken back */
    int running, stopping;
    int settling; /* number of threads that wait for `finished` */
    int dozing; /* nothing to do for a moment: the thread will soon check again on its own */
    int asleep; /* nothing to do: the thread must be woken */
    int processor; /* the processor to which the thread is pinned, -1: none */
    unsigned long processors[128 / sizeof(unsigned long)]; /* its affinity before it was pinned: a cpu_set_t */
    int64_t crowded_ns; /* when the last job was submitted that was not brief, or not the only one */
    int wakes[2]; /* a descriptor to watch, and the one to write to; the same one with eventfd */
    pthread_t thread;
} kr_disk_queue;

/* Start the thread. Returns 0 or an errno; nothing needs to be freed after a failure. */
int kr_disk_start(kr_disk_queue *queue);
/* Run the submitted jobs and end the thread; finished jobs can still be taken. `at_once`: wait only for the job
 * that is running; the others come back as held. */
void kr_disk_stop(kr_disk_queue *queue, int at_once);
void kr_disk_destroy(kr_disk_queue *queue);

/* How a job is submitted. KR_LAZILY: it may wait for some ms, and others may overtake it. KR_QUIETLY: the thread may
 * sleep on until kr_disk_wake, so that it wakes once for several jobs. */
enum { KR_NOW, KR_LAZILY, KR_QUIETLY };
void kr_disk_submit(kr_disk_queue *queue, kr_job *job, int how);
/* Wake the thread if it has jobs that were submitted quietly. */
void kr_disk_wake(kr_disk_queue *queue);
/* Return the jobs run since the last call, linked by `next`, and clear the notification. */
kr_job *kr_disk_take(kr_disk_queue *queue);
/* Wait until all jobs of the lane have run. */
void kr_disk_settle(kr_disk_queue *queue, kr_lane *lane);
int64_t kr_disk_in_flight(kr_disk_queue *queue, kr_lane *lane);
/* Let jobs of the lane run again. None may be in flight. */
void kr_disk_free_lane(kr_disk_queue *queue, kr_lane *lane);
int kr_disk_is_finished(kr_disk_queue *queue, kr_job *job);
/* Return how long the oldest job that has not run has been waiting, in ns; 0 without such a job. */
int64_t kr_disk_waiting_ns(kr_disk_queue *queue);

#endif
