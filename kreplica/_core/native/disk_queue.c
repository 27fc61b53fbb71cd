#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#include "disk_queue.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/eventfd.h>
#endif

enum { STACK_BYTES = 256 << 10 };
/* How long a lazily submitted job waits for more of its kind or for the thread to be idle. */
#define DOZE_NS (20 * 1000 * 1000)

static int64_t now_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* After this long without several jobs at once, jobs are taken to come one at a time. */
#define CROWDED_NS (20 * 1000 * 1000)

/* ---- notices ------------------------------------------------------------------------------------------------- */

static int open_wakes(int wakes[2]) {
#ifdef __linux__
    wakes[0] = wakes[1] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return wakes[0] < 0 ? errno : 0;
#else
    if (pipe(wakes)) return errno;
    for (int i = 0; i < 2; i++) {
        fcntl(wakes[i], F_SETFD, FD_CLOEXEC);
        fcntl(wakes[i], F_SETFL, O_NONBLOCK);
    }
    return 0;
#endif
}

static void close_wakes(int wakes[2]) {
    if (wakes[0] >= 0) close(wakes[0]);
    if (wakes[1] >= 0 && wakes[1] != wakes[0]) close(wakes[1]);
    wakes[0] = wakes[1] = -1;
}

static void notify(const kr_disk_queue *queue) {
    uint64_t one = 1;
    /* An eventfd takes eight bytes; a full pipe is notice enough. */
    while (write(queue->wakes[1], &one, sizeof one) < 0 && errno == EINTR) continue;
}

static void forget_notices(const kr_disk_queue *queue) {
    uint64_t seen[64];
    ssize_t got;
    do {
        got = read(queue->wakes[0], seen, sizeof seen);
    } while ((got < 0 && errno == EINTR) || got == (ssize_t)sizeof seen);
}

/* ---- where the thread runs ----------------------------------------------------------------------------------- */

#ifdef __linux__
static int place(kr_disk_queue *queue, const cpu_set_t *processors) {
    return pthread_setaffinity_np(queue->thread, sizeof *processors, processors);
}

/* Called under the lock. */
static void hold_here(kr_disk_queue *queue) {
    int processor = sched_getcpu();
    if (processor == queue->processor || processor < 0 || processor >= CPU_SETSIZE) return;
    cpu_set_t one, *own = (cpu_set_t *)queue->processors;
    _Static_assert(sizeof one == sizeof queue->processors, "a set of processors");
    if (queue->processor < 0 && pthread_getaffinity_np(queue->thread, sizeof *own, own)) return;
    if (!CPU_ISSET(processor, own)) return; /* the thread's affinity excludes this processor */
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    if (place(queue, &one) == 0) queue->processor = processor;
}

/* Called under the lock. Let the thread run wherever it might before it was pinned. */
static void hold_nowhere(kr_disk_queue *queue) {
    if (queue->processor < 0) return;
    if (place(queue, (cpu_set_t *)queue->processors) == 0) queue->processor = -1;
}
#else
static void hold_here(kr_disk_queue *queue) { (void)queue; }
static void hold_nowhere(kr_disk_queue *queue) { (void)queue; }
#endif

/* Called under the lock, before `job` is in the queue. */
static void choose_processor(kr_disk_queue *queue, const kr_job *job) {
    int is_alone = (queue->dozing || queue->asleep) && !queue->first;
    if (!is_alone || !job->brief) {
        queue->crowded_ns = job->submitted_ns;
        hold_nowhere(queue);
    } else if (job->submitted_ns - queue->crowded_ns > CROWDED_NS) {
        hold_here(queue);
    }
}

/* ---- the thread ---------------------------------------------------------------------------------------------- */

/* Called under the lock. Returns whether to notify the taker, which the caller does after it has released the lock,
 * because the taker would wake only to wait for the lock. */
static int finish(kr_disk_queue *queue, kr_job *job, int status) {
    job->status = status;
    job->finished = 1;
    job->next = NULL;
    if (job->lane) {
        job->lane->in_flight--;
        if (status != 0) job->lane->held = 1;
    }
    int is_first = !queue->done_first;
    if (is_first)
        queue->done_first = job;
    else
        queue->done_last->next = job;
    queue->done_last = job;
    if (queue->settling) pthread_cond_broadcast(&queue->finished);
    return is_first;
}

static void append(kr_job **first, kr_job **last, kr_job *job) {
    if (*last)
        (*last)->next = job;
    else
        *first = job;
    *last = job;
}

/* Called under the lock. */
static kr_job *pop(kr_disk_queue *queue) {
    kr_job *lazy = queue->lazy_first;
    if (lazy && (queue->stopping || queue->settling || now_ns(CLOCK_MONOTONIC) >= lazy->submitted_ns + DOZE_NS)) {
        append(&queue->first, &queue->last, lazy);
        queue->last = queue->lazy_last;
        queue->lazy_first = queue->lazy_last = NULL;
    }
    kr_job *job = queue->first;
    if (!job) return NULL;
    queue->first = job->next;
    if (!queue->first) queue->last = NULL;
    return job;
}

/* Called under the lock, when there is nothing to do. */
static void rest(kr_disk_queue *queue) {
    int64_t doze_ns = DOZE_NS;
    if (queue->lazy_first) {
        doze_ns += queue->lazy_first->submitted_ns - now_ns(CLOCK_MONOTONIC);
        if (doze_ns <= 0) return;
    }
    int64_t until_ns = now_ns(CLOCK_REALTIME) + doze_ns;
    struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
    queue->dozing = 1;
    int woken = pthread_cond_timedwait(&queue->wanted, &queue->lock, &until);
    queue->dozing = 0;
    if (woken != ETIMEDOUT || queue->lazy_first) return;
    queue->asleep = 1;
    while (!queue->first && !queue->lazy_first && !queue->stopping) pthread_cond_wait(&queue->wanted, &queue->lock);
    queue->asleep = 0;
}

static void *work(void *argument) {
    kr_disk_queue *queue = argument;
    pthread_mutex_lock(&queue->lock);
    for (;;) {
        kr_job *job = pop(queue);
        if (!job) {
            if (queue->stopping) break;
            rest(queue);
            continue;
        }
        int status = KR_HELD;
        if (queue->stopping < 2 && !(job->lane && job->lane->held)) {
            queue->current = job;
            pthread_mutex_unlock(&queue->lock);
            status = job->run(job);
            pthread_mutex_lock(&queue->lock);
            queue->current = NULL;
        }
        if (finish(queue, job, status)) {
            pthread_mutex_unlock(&queue->lock);
            notify(queue);
            pthread_mutex_lock(&queue->lock);
        }
    }
    pthread_mutex_unlock(&queue->lock);
    return NULL;
}

int kr_disk_start(kr_disk_queue *queue) {
    memset(queue, 0, sizeof *queue);
    queue->processor = -1;
    queue->wakes[0] = queue->wakes[1] = -1;
    int error = open_wakes(queue->wakes);
    if (error) return error;
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->wanted, NULL);
    pthread_cond_init(&queue->finished, NULL);
    pthread_attr_t attributes;
    error = pthread_attr_init(&attributes);
    if (!error) {
        pthread_attr_setstacksize(&attributes, STACK_BYTES);
        /* Leave the process's signals to its other threads, except those that memory access raises. */
        sigset_t blocked, before;
        sigfillset(&blocked);
        sigdelset(&blocked, SIGBUS);
        sigdelset(&blocked, SIGSEGV);
        sigdelset(&blocked, SIGFPE);
        sigdelset(&blocked, SIGILL);
        pthread_sigmask(SIG_SETMASK, &blocked, &before);
        error = pthread_create(&queue->thread, &attributes, work, queue);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        pthread_attr_destroy(&attributes);
    }
    queue->running = !error;
    if (error) kr_disk_destroy(queue);
    return error;
}

void kr_disk_stop(kr_disk_queue *queue, int at_once) {
    pthread_mutex_lock(&queue->lock);
    int was_running = queue->running;
    queue->running = 0;
    queue->stopping = at_once ? 2 : 1;
    pthread_cond_signal(&queue->wanted);
    pthread_mutex_unlock(&queue->lock);
    if (was_running) pthread_join(queue->thread, NULL);
}

void kr_disk_destroy(kr_disk_queue *queue) {
    close_wakes(queue->wakes);
    pthread_mutex_destroy(&queue->lock);
    pthread_cond_destroy(&queue->wanted);
    pthread_cond_destroy(&queue->finished);
}

/* ---- its users ----------------------------------------------------------------------------------------------- */

void kr_disk_submit(kr_disk_queue *queue, kr_job *job, int how) {
    int lazily = how == KR_LAZILY;
    job->next = NULL;
    job->finished = 0;
    job->submitted_ns = now_ns(CLOCK_MONOTONIC);
    int is_noticed = 0, is_wanted = 0;
    pthread_mutex_lock(&queue->lock);
    if (job->lane) job->lane->in_flight++;
    queue->length++;
    if (!queue->running) {
        is_noticed = finish(queue, job, KR_HELD);
    } else {
        if (lazily) {
            append(&queue->lazy_first, &queue->lazy_last, job);
        } else {
            choose_processor(queue, job);
            append(&queue->first, &queue->last, job);
        }
        is_wanted = how != KR_QUIETLY && (queue->asleep || (queue->dozing && !lazily));
    }
    pthread_mutex_unlock(&queue->lock);
    /* Signal without the lock, because the thread would wake only to wait for it. */
    if (is_wanted) pthread_cond_signal(&queue->wanted);
    if (is_noticed) notify(queue);
}

void kr_disk_wake(kr_disk_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    int is_wanted = queue->first && (queue->asleep || queue->dozing);
    pthread_mutex_unlock(&queue->lock);
    if (is_wanted) pthread_cond_signal(&queue->wanted);
}

kr_job *kr_disk_take(kr_disk_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    forget_notices(queue);
    kr_job *taken = queue->done_first;
    queue->done_first = queue->done_last = NULL;
    for (kr_job *job = taken; job; job = job->next) queue->length--;
    pthread_mutex_unlock(&queue->lock);
    return taken;
}

void kr_disk_settle(kr_disk_queue *queue, kr_lane *lane) {
    pthread_mutex_lock(&queue->lock);
    /* Lazily submitted jobs are waited for now. */
    queue->settling++;
    if (lane->in_flight) pthread_cond_signal(&queue->wanted);
    while (lane->in_flight) pthread_cond_wait(&queue->finished, &queue->lock);
    queue->settling--;
    pthread_mutex_unlock(&queue->lock);
}

int64_t kr_disk_in_flight(kr_disk_queue *queue, kr_lane *lane) {
    pthread_mutex_lock(&queue->lock);
    int64_t in_flight = lane->in_flight;
    pthread_mutex_unlock(&queue->lock);
    return in_flight;
}

void kr_disk_free_lane(kr_disk_queue *queue, kr_lane *lane) {
    pthread_mutex_lock(&queue->lock);
    lane->held = 0;
    pthread_mutex_unlock(&queue->lock);
}

int kr_disk_is_finished(kr_disk_queue *queue, kr_job *job) {
    pthread_mutex_lock(&queue->lock);
    int finished = job->finished;
    pthread_mutex_unlock(&queue->lock);
    return finished;
}

int64_t kr_disk_waiting_ns(kr_disk_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    const kr_job *oldest = queue->current ? queue->current : queue->first;
    int64_t since_ns = oldest ? oldest->submitted_ns : 0;
    pthread_mutex_unlock(&queue->lock);
    return since_ns ? now_ns(CLOCK_MONOTONIC) - since_ns : 0;
}
