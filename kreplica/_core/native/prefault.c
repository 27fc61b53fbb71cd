#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#include "prefault.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "fork.h"
#include "guard.h"

enum { STACK_BYTES = 256 << 10 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wanted = PTHREAD_COND_INITIALIZER;   /* a task was submitted */
static pthread_cond_t finished = PTHREAD_COND_INITIALIZER; /* a step ended */
static kr_task *first, *last; /* guarded by lock, as are those below */
static kr_task *current;
static int running;

static void push(kr_task *task) {
    if (task->queued) return;
    task->queued = 1;
    task->next = NULL;
    if (last)
        last->next = task;
    else
        first = task;
    last = task;
}

static void unlink_task(kr_task *task) {
    kr_task *before = NULL;
    for (kr_task *at = first; at; before = at, at = at->next) {
        if (at != task) continue;
        if (before)
            before->next = task->next;
        else
            first = task->next;
        if (last == task) last = before;
        break;
    }
    task->queued = 0;
}

static void *work(void *unused) {
    (void)unused;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!first) pthread_cond_wait(&wanted, &lock);
        kr_task *task = current = first;
        unlink_task(task);
        pthread_mutex_unlock(&lock);
        int more = task->step(task);
        pthread_mutex_lock(&lock);
        if (more && !task->forgotten) push(task);
        current = NULL;
        pthread_cond_broadcast(&finished);
    }
    return NULL;
}

void kr_prefault_forked(void) {
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&wanted, NULL);
    pthread_cond_init(&finished, NULL);
    first = last = current = NULL;
    running = 0;
}

/* Called under the lock. */
static void start(void) {
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes)) return;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    /* Leave the process's signals to its other threads, except those that memory access raises. */
    sigset_t blocked, before;
    sigfillset(&blocked);
    sigdelset(&blocked, SIGBUS);
    sigdelset(&blocked, SIGSEGV);
    sigdelset(&blocked, SIGFPE);
    sigdelset(&blocked, SIGILL);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    pthread_t thread;
    running = !pthread_create(&thread, &attributes, work, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

void kr_submit(kr_task *task) {
    pthread_mutex_lock(&lock);
    if (!running) start();
    if (running) {
        push(task);
        pthread_cond_signal(&wanted);
    }
    pthread_mutex_unlock(&lock);
}

void kr_forget(kr_task *task) {
    pthread_mutex_lock(&lock);
    if (task->queued) unlink_task(task);
    task->forgotten = 1;
    while (current == task) pthread_cond_wait(&finished, &lock);
    task->forgotten = 0;
    pthread_mutex_unlock(&lock);
}

/* ---- faulting in --------------------------------------------------------------------------------------------- */

struct range {
    uint8_t *base;
    int64_t size;
};

static int touch_pages(void *argument) {
    const struct range *range = argument;
    int64_t page = sysconf(_SC_PAGESIZE);
    /* The writer may be using the same page: an atomic addition of 0 changes none of its bytes. */
    for (int64_t at = 0; at < range->size; at += page) __atomic_fetch_add(range->base + at, 0, __ATOMIC_RELAXED);
    return 0;
}

static int touch(uint8_t *base, int64_t size) {
    struct range range = {base, size};
    return kr_guard_call(touch_pages, &range) ? EFAULT : 0;
}

int kr_populate(uint8_t *base, int64_t size) {
#ifdef __linux__
    enum { POPULATE_WRITE = 23 }; /* Linux 5.14 */
    static int missing;
    if (!__atomic_load_n(&missing, __ATOMIC_RELAXED)) {
        if (!madvise(base, (size_t)size, POPULATE_WRITE)) return 0;
        if (errno != EINVAL) return errno;
        __atomic_store_n(&missing, 1, __ATOMIC_RELAXED);
    }
#endif
    return touch(base, size);
}

void kr_prefer_huge_pages(uint8_t *base, int64_t size, int huge) {
#if defined(MADV_HUGEPAGE) && defined(MADV_NOHUGEPAGE)
    /* The kernel may have no huge pages and refuse; then the pages stay small. */
    (void)madvise(base, (size_t)size, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#else
    (void)base, (void)size, (void)huge;
#endif
}

void kr_read_ahead(uint8_t *base, int64_t size, int on) {
    if (size > 0) (void)madvise(base, (size_t)size, on ? MADV_NORMAL : MADV_RANDOM);
}

int64_t kr_monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
