#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#include "guard.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fork.h"

#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif

/* glibc accesses an initial-exec variable without a call, even in a signal handler; other systems' loaders refuse
 * the model in a module that is loaded late. */
#ifdef __GLIBC__
#define KR_THREAD _Thread_local __attribute__((tls_model("initial-exec")))
#else
#define KR_THREAD _Thread_local
#endif

struct frame {
    sigjmp_buf environment;
    struct frame *outer;
};

static KR_THREAD struct frame *active;
static KR_THREAD int passing;

int kr_guard_call(kr_guarded fn, void *argument) {
    struct frame frame;
    frame.outer = active;
    /* The signal mask is not saved: the handler runs with SA_NODEFER, so the mask never changes. */
    if (__builtin_expect(sigsetjmp(frame.environment, 0), 0)) {
        active = frame.outer;
        return KR_PAGE_FAULT;
    }
    active = &frame;
    int result = fn(argument);
    active = frame.outer;
    return result;
}

struct copy {
    void *target;
    const void *source;
    size_t size;
};

static int copy_bytes(void *argument) {
    const struct copy *copy = argument;
    memcpy(copy->target, copy->source, copy->size);
    return 0;
}

int kr_guarded_copy(void *target, const void *source, int64_t size) {
    struct copy copy = {target, source, (size_t)size};
    return kr_guard_call(copy_bytes, &copy);
}

/* ---- watched memory: a table that only grows, readable from the handler -------------------------------------- */

struct watch {
    uint8_t *base;
    int64_t size; /* 0: the slot is free; written last, cleared first */
    int32_t *fault;
    int64_t next_free;
};

enum { FIRST_BLOCK = 1024, BLOCKS = 24 };

static pthread_mutex_t watch_lock = PTHREAD_MUTEX_INITIALIZER;
static struct watch *blocks[BLOCKS]; /* block b holds FIRST_BLOCK << b slots */
static int64_t watch_count;          /* slots ever used; guarded by watch_lock */
static int64_t first_free = -1;      /* guarded by watch_lock */
static int64_t page_size;

static struct watch *slot_of(int64_t number) {
    int block = 0;
    for (int64_t held = FIRST_BLOCK; number >= held; held <<= 1) {
        number -= held;
        block++;
    }
    return &blocks[block][number];
}

static int64_t new_slot(void) {
    int64_t number = watch_count, start = 0;
    int block = 0;
    while (number >= start + ((int64_t)FIRST_BLOCK << block)) start += (int64_t)FIRST_BLOCK << block++;
    if (block >= BLOCKS) return -1;
    if (!blocks[block]) {
        struct watch *fresh = calloc((size_t)FIRST_BLOCK << block, sizeof(struct watch));
        if (!fresh) return -1;
        __atomic_store_n(&blocks[block], fresh, __ATOMIC_RELEASE);
    }
    watch_count++;
    return number;
}

int64_t kr_watch(uint8_t *base, int64_t size, int32_t *fault) {
    pthread_mutex_lock(&watch_lock);
    int64_t number = first_free;
    if (number >= 0)
        first_free = slot_of(number)->next_free;
    else
        number = new_slot();
    if (number >= 0) {
        struct watch *slot = slot_of(number);
        __atomic_store_n(&slot->base, base, __ATOMIC_RELAXED);
        __atomic_store_n(&slot->fault, fault, __ATOMIC_RELAXED);
        __atomic_store_n(&slot->size, size, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&watch_lock);
    return number;
}

void kr_watch_disown(int64_t watch) { __atomic_store_n(&slot_of(watch)->fault, NULL, __ATOMIC_RELEASE); }

void kr_unwatch(int64_t watch) {
    pthread_mutex_lock(&watch_lock);
    struct watch *slot = slot_of(watch);
    __atomic_store_n(&slot->size, 0, __ATOMIC_RELEASE);
    slot->next_free = first_free;
    /* Whole at each moment: a fork may come between the two stores. */
    __atomic_store_n(&first_free, watch, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&watch_lock);
}

/* Replace the lost page at `address` by zeros, if it is watched. The thread that accesses the address keeps its own
 * slot in place meanwhile, so a slot that changes during this walk belongs to another thread and cannot match. */
static int replace_page(uint8_t *address) {
    for (int block = 0; block < BLOCKS; block++) {
        struct watch *slots = __atomic_load_n(&blocks[block], __ATOMIC_ACQUIRE);
        if (!slots) break;
        for (int64_t i = 0; i < ((int64_t)FIRST_BLOCK << block); i++) {
            int64_t size = __atomic_load_n(&slots[i].size, __ATOMIC_ACQUIRE);
            uint8_t *base = __atomic_load_n(&slots[i].base, __ATOMIC_RELAXED);
            if (!size || address < base || address - base >= size) continue;
            uint8_t *page = base + (address - base) / page_size * page_size;
            if (mmap(page, (size_t)page_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                     0) == MAP_FAILED)
                return 0;
            int32_t *fault = __atomic_load_n(&slots[i].fault, __ATOMIC_ACQUIRE);
            if (fault) kr_set_fault(fault, KR_PAGE_FAULT);
            return 1;
        }
    }
    return 0;
}

/* ---- the handler --------------------------------------------------------------------------------------------- */

static pthread_mutex_t install_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction *former; /* published as a whole; one leaks each time we install ourselves again */

static void die(int number, const siginfo_t *info) {
    struct sigaction standard = {.sa_handler = SIG_DFL};
    sigemptyset(&standard.sa_mask);
    sigaction(number, &standard, NULL);
    /* A fault of the machine is raised again when the handler returns; a signal that was sent is not. */
    if (info->si_code <= 0 || passing) raise(number);
}

static void pass_on(int number, siginfo_t *info, void *context) {
    const struct sigaction *next = __atomic_load_n(&former, __ATOMIC_ACQUIRE);
    /* `passing`: the former handler raised the signal again, and it came back to us. */
    if (passing || !next || next->sa_handler == SIG_DFL || (next->sa_handler == SIG_IGN && info->si_code > 0)) {
        die(number, info);
        return;
    }
    if (next->sa_handler == SIG_IGN) return;
    passing = 1;
    if (next->sa_flags & SA_SIGINFO)
        next->sa_sigaction(number, info, context);
    else
        next->sa_handler(number);
    passing = 0;
}

static int is_page_fault(const siginfo_t *info) {
#ifdef BUS_MCEERR_AO
    if (info->si_code == BUS_MCEERR_AO) return 0; /* advice about memory that has not been accessed yet */
#endif
    return info->si_code > 0;
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    int saved = errno;
    int fault = is_page_fault(info);
#ifdef SI_TKILL
    /* A handler installed after ours (faulthandler) restores ours and raises the signal again. */
    fault = fault || (active && info->si_code == SI_TKILL && info->si_pid == getpid());
#endif
    if (fault && active) siglongjmp(active->environment, 1);
    if (fault && replace_page(info->si_addr)) {
        errno = saved;
        return;
    }
    pass_on(number, info, context);
    errno = saved;
}

/* ---- forks --------------------------------------------------------------------------------------------------- */

void kr_guard_forked(void) {
    pthread_mutex_init(&watch_lock, NULL);
    pthread_mutex_init(&install_lock, NULL);
}

/* ---- the installation ---------------------------------------------------------------------------------------- */

int kr_guard_install(void) {
    pthread_mutex_lock(&install_lock);
    page_size = sysconf(_SC_PAGESIZE);
    struct sigaction now, ours = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_NODEFER};
    int error = sigaction(SIGBUS, NULL, &now) ? errno : 0;
    if (!error && !((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_bus_error)) {
        struct sigaction *kept = malloc(sizeof *kept);
        if (kept) {
            *kept = now;
            __atomic_store_n(&former, kept, __ATOMIC_RELEASE);
            sigemptyset(&ours.sa_mask);
            error = sigaction(SIGBUS, &ours, NULL) ? errno : 0;
        } else {
            error = ENOMEM;
        }
    }
    pthread_mutex_unlock(&install_lock);
    return error;
}
