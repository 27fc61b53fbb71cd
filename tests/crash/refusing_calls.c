/* System calls that fail when a test wants them to, for every file below one directory.
 *
 * Preloaded into a process (LD_PRELOAD), so that it sees the calls of Python and of native code alike. A test arms it with
 * the kinds of calls that may fail, the number of the first one that does, the errno, and whether all of these kinds fail
 * from then on or that one alone. A flush of these files does nothing otherwise: no test of it cuts the power. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum kind { OPEN = 1, CREATE = 2, WRITE = 4, GROW = 8, RESIZE = 16, FLUSH = 32, NAME = 64, REMOVE = 128, READ = 256,
            LOOK = 512, MAP = 1024, SHORT = 2048 /* a write that fails writes a half first */ };
enum { DESCRIPTORS = 1 << 16 };

static char root[4096];
static size_t root_size;
static _Atomic unsigned char tracked[DESCRIPTORS];
static _Atomic int armed;
static unsigned kinds;
static long at;
static int number, goes_on, halved;
static atomic_long seen, refused;

void refuse_below(const char *path) {
    root_size = strlen(path) < sizeof root ? strlen(path) : 0;
    memcpy(root, path, root_size);
}

void refuse_arm(unsigned of_kinds, long nth, int error, int from_then_on) {
    kinds = of_kinds, at = nth, number = error, goes_on = from_then_on, halved = 0;
    seen = 0;
    refused = 0;
    armed = 1;
}

/* How many calls of these kinds there were. */
long refuse_disarm(void) {
    armed = 0;
    return seen;
}

long refuse_refused(void) { return refused; }

static int is_below(const char *path) { return root_size && path && !strncmp(path, root, root_size); }
static int is_tracked(int fd) { return fd >= 0 && fd < DESCRIPTORS && tracked[fd]; }

static int refuses(enum kind kind) {
    if (!armed || !(kinds & kind)) return 0;
    long now = atomic_fetch_add(&seen, 1);
    if (now != at && !(goes_on && now > at)) return 0;
    atomic_fetch_add(&refused, 1);
    errno = number;
    return 1;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define REAL(name)                     \
    static __typeof__(&name) real;     \
    if (!real) real = NEXT(name)

static int opened(int fd) {
    if (fd >= 0 && fd < DESCRIPTORS) tracked[fd] = 1;
    return fd;
}

static int refuses_open(const char *path, int flags) {
    int is_new = (flags & O_CREAT) && faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW);
    return refuses(is_new ? CREATE : OPEN);
}

#define OPENS(name)                                              \
    int name(const char *path, int flags, ...) {                 \
        REAL(name);                                              \
        va_list rest;                                            \
        va_start(rest, flags);                                   \
        mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                            \
        if (!is_below(path)) return real(path, flags, mode);     \
        return refuses_open(path, flags) ? -1 : opened(real(path, flags, mode)); \
    }
OPENS(open)
OPENS(open64)

int close(int fd) {
    REAL(close);
    if (is_tracked(fd)) tracked[fd] = 0;
    return real(fd);
}

DIR *opendir(const char *path) {
    REAL(opendir);
    return is_below(path) && refuses(OPEN) ? NULL : real(path);
}

#define READS(name, type)                                                   \
    ssize_t name(int fd, void *target, size_t size, type position) {        \
        REAL(name);                                                         \
        return is_tracked(fd) && refuses(READ) ? -1 : real(fd, target, size, position); \
    }
READS(pread, off_t)
READS(pread64, off64_t)

ssize_t read(int fd, void *target, size_t size) {
    REAL(read);
    return is_tracked(fd) && refuses(READ) ? -1 : real(fd, target, size);
}

/* Of a write that is refused a half is written first, once, where that is asked for. */
#define WRITES(name, type)                                                     \
    ssize_t name(int fd, const void *source, size_t size, type position) {     \
        REAL(name);                                                            \
        if (!is_tracked(fd) || !refuses(WRITE)) return real(fd, source, size, position); \
        if (!(kinds & SHORT) || size < 2 || halved) return -1;                 \
        halved = goes_on = 1;                                                  \
        return real(fd, source, size / 2, position);                           \
    }
WRITES(pwrite, off_t)
WRITES(pwrite64, off64_t)

ssize_t write(int fd, const void *source, size_t size) {
    REAL(write);
    return is_tracked(fd) && refuses(WRITE) ? -1 : real(fd, source, size);
}

ssize_t copy_file_range(int from, off64_t *in, int to, off64_t *out, size_t size, unsigned flags) {
    REAL(copy_file_range);
    return is_tracked(to) && refuses(WRITE) ? -1 : real(from, in, to, out, size, flags);
}

#define RESIZES(name, type)                                                          \
    int name(int fd, type size) {                                                    \
        REAL(name);                                                                  \
        return is_tracked(fd) && refuses(RESIZE) ? -1 : real(fd, size);              \
    }
RESIZES(ftruncate, off_t)
RESIZES(ftruncate64, off64_t)

#define GROWS(name, type)                                                            \
    int name(int fd, int mode, type start, type size) {                              \
        REAL(name);                                                                  \
        return is_tracked(fd) && refuses(GROW) ? -1 : real(fd, mode, start, size);   \
    }
GROWS(fallocate, off_t)
GROWS(fallocate64, off64_t)

#define FLUSHES(name)                                              \
    int name(int fd) {                                             \
        REAL(name);                                                \
        if (!is_tracked(fd)) return real(fd);                      \
        return refuses(FLUSH) ? -1 : 0;                            \
    }
FLUSHES(fsync)
FLUSHES(fdatasync)

int sync_file_range(int fd, off64_t start, off64_t size, unsigned flags) {
    REAL(sync_file_range);
    if (!is_tracked(fd)) return real(fd, start, size, flags);
    return refuses(FLUSH) ? -1 : 0;
}

#define NAMES(name)                                                                       \
    int name(const char *from, const char *to) {                                          \
        REAL(name);                                                                       \
        return is_below(from) && refuses(NAME) ? -1 : real(from, to);                     \
    }
NAMES(rename)
NAMES(link)

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    return is_below(path) && refuses(CREATE) ? -1 : real(path, mode);
}

int unlink(const char *path) {
    REAL(unlink);
    return is_below(path) && refuses(REMOVE) ? -1 : real(path);
}

#define LOOKS(name, type)                                                                 \
    int name(const char *path, type *status) {                                            \
        REAL(name);                                                                       \
        return is_below(path) && refuses(LOOK) ? -1 : real(path, status);                 \
    }
LOOKS(stat, struct stat)
LOOKS(stat64, struct stat64)
LOOKS(lstat, struct stat)
LOOKS(lstat64, struct stat64)

#define LOOKS_AT_OPEN(name, type)                                                         \
    int name(int fd, type *status) {                                                      \
        REAL(name);                                                                       \
        return is_tracked(fd) && refuses(LOOK) ? -1 : real(fd, status);                   \
    }
LOOKS_AT_OPEN(fstat, struct stat)
LOOKS_AT_OPEN(fstat64, struct stat64)

#define MAPS(name, type)                                                                  \
    void *name(void *where, size_t size, int access, int flags, int fd, type start) {     \
        REAL(name);                                                                       \
        return is_tracked(fd) && refuses(MAP) ? MAP_FAILED : real(where, size, access, flags, fd, start); \
    }
MAPS(mmap, off_t)
MAPS(mmap64, off64_t)
