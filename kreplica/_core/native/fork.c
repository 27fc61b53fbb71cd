/* A forked child has one thread: the copy of the one that forked. A lock that another thread of the parent held stays
 * locked in the child, and what that thread was changing stays half-changed. So each lock of the core follows one of
 * these rules. Add each new lock to this list.
 *
 * Freed in the child, because the child keeps using it:
 *   guard.c     watch_lock      A change of the table of watches leaves it whole after each store; at worst the child
 *                               loses one free slot.
 *               install_lock    The handler in place is the system's; `former` is published whole.
 *   prefault.c  lock, wanted, finished    The queue is emptied as well, and the next task starts a thread.
 *   file.c      kr_file.lock    By kr_file_forked, when the child destroys a region of its parent. The prefault thread
 *                               may have held it; any other holder also has a reference that the child never drops.
 *
 * Never taken in the child, which gets UseAfterFork first, because the object has the generation of the parent:
 *   region.pyx       Region.lock                `usable` comes before it; freeing the region takes no lock.
 *   growth.c         kr_growth.lock             As Region.lock.
 *   log_lock.pyx     LogLock.lock               `require_own` comes before it; the child does not free it.
 *   log_state.pyx    LogState.lock, turn        The log's LogLock comes before them.
 *   disk_queue.c     kr_disk_queue.lock, wanted, finished    DiskThread.require_own comes before them. The child destroys
 *                                               none: pthread_cond_destroy waits for the waiting threads of the parent.
 *   held_exceptions.pyx  a second state of a thread    The interpreter has freed it; `release` compares generations.
 *
 * Without a lock:
 *   file.c      kept, budget; mapping.c   maps_held, map_budget; prefault.c   missing    Atomic. A thread that was
 *               opening or mapping a file may have counted it: the child counts one too many.
 *   crc32c.c    its tables and the choice of an implementation    Written when the module is loaded.
 *   codec.pyx, frame_memory.pyx and all other fields of modules    Guarded by the GIL, which the forking thread holds.
 *
 * glibc frees the locks of malloc and of its streams. The locks of Python modules: see common/locks.py. */
#include "fork.h"

#include <pthread.h>

static int32_t generation;

int kr_generation(void) { return __atomic_load_n(&generation, __ATOMIC_RELAXED); }
const int32_t *kr_generation_address(void) { return &generation; }

static void after_fork(void) {
    kr_guard_forked();
    kr_prefault_forked();
    __atomic_add_fetch(&generation, 1, __ATOMIC_RELAXED);
}

/* When the module is loaded, before any thread takes a lock of the core. */
__attribute__((constructor)) static void prepare(void) { pthread_atfork(NULL, NULL, after_fork); }
