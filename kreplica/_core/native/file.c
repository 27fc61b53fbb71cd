#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#define _FILE_OFFSET_BITS 64
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/vfs.h>
#endif

/* ---- the descriptor ------------------------------------------------------------------------------------------ */

static void drop(kr_descriptor *descriptor) {
    if (!descriptor || __atomic_sub_fetch(&descriptor->references, 1, __ATOMIC_ACQ_REL)) return;
    close(descriptor->fd);
    free(descriptor);
}

static int open_regular(const char *path, int flags, kr_descriptor **out) {
    struct stat status;
    int fd, error = 0;
    kr_descriptor *made = NULL;
    /* O_NONBLOCK: the path may be that of a pipe whose other end is not open. */
    do fd = open(path, flags | O_CLOEXEC | O_NONBLOCK, 0644);
    while (fd < 0 && errno == EINTR);
    if (fd < 0) return errno;
    if (fstat(fd, &status))
        error = errno;
    else if (!S_ISREG(status.st_mode))
        error = EINVAL;
    else if (!(made = malloc(sizeof *made)))
        error = ENOMEM;
    if (error) {
        close(fd);
        return error;
    }
    *made = (kr_descriptor){.fd = fd, .references = 1, .device = status.st_dev, .inode = status.st_ino};
    *out = made;
    return 0;
}

/* Open the file again by its path, which may by now belong to another file. */
static int open_again(const kr_file *file, int flags, kr_descriptor **out) {
    int error = open_regular(file->path, flags, out);
    if (error || ((*out)->device == file->device && (*out)->inode == file->inode)) return error;
    drop(*out);
    return ESTALE;
}

static int64_t kept;
static int64_t budget = -1; /* not read yet */

static int64_t default_budget(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return 768;
    return limit.rlim_cur > INT32_MAX ? INT32_MAX : (int64_t)limit.rlim_cur / 4 * 3;
}

int64_t kr_descriptor_budget(void) {
    int64_t found = __atomic_load_n(&budget, __ATOMIC_RELAXED);
    if (found < 0) kr_set_descriptor_budget(found = default_budget());
    return found;
}

void kr_set_descriptor_budget(int64_t descriptors) { __atomic_store_n(&budget, descriptors, __ATOMIC_RELAXED); }

static int may_keep(void) {
    if (__atomic_add_fetch(&kept, 1, __ATOMIC_RELAXED) <= kr_descriptor_budget()) return 1;
    __atomic_sub_fetch(&kept, 1, __ATOMIC_RELAXED);
    return 0;
}

/* Take a reader's lock on an opened file. It lasts as long as any descriptor or mapping made from it, because Linux
 * releases a flock() lock with the last reference to the open file. If a file system has no such locks, it refuses the
 * writer's lock too, and the writer assumes that the file is being read. Returns EAGAIN while a writer cuts the file.
 */
static int hold_as_reader(int fd) {
    while (flock(fd, LOCK_SH | LOCK_NB))
        if (errno != EINTR) return errno == EWOULDBLOCK ? EAGAIN : 0;
    return 0;
}

/* Return a reference to the descriptor, which the caller drops. The file keeps it too, if the budget allows one more.
 */
static int take(kr_file *file, kr_descriptor **out) {
    int error = 0;
    pthread_mutex_lock(&file->lock);
    kr_descriptor *found = file->descriptor;
    if (!found) {
        error = open_again(file, file->writable ? O_RDWR : O_RDONLY, &found);
        if (!error && !file->writable && (error = hold_as_reader(found->fd))) drop(found);
        if (!error && may_keep()) file->descriptor = found;
    }
    if (!error && file->descriptor) __atomic_add_fetch(&found->references, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&file->lock);
    *out = found;
    return error;
}

static void put(kr_file *file, kr_descriptor *descriptor) {
    pthread_mutex_lock(&file->lock);
    kr_descriptor *former = file->descriptor;
    if (former) __atomic_sub_fetch(&kept, 1, __ATOMIC_RELAXED);
    file->descriptor = descriptor && may_keep() ? descriptor : NULL;
    __atomic_store_n(&file->settled, 0, __ATOMIC_RELAXED); /* the next descriptor may be of another file */
    if (descriptor) file->device = descriptor->device, file->inode = descriptor->inode;
    if (!file->descriptor) drop(descriptor);
    pthread_mutex_unlock(&file->lock);
    drop(former);
}

void kr_file_init(kr_file *file) {
    *file = (kr_file){.path = NULL};
    pthread_mutex_init(&file->lock, NULL);
}

void kr_file_destroy(kr_file *file) {
    put(file, NULL);
    pthread_mutex_destroy(&file->lock);
}

void kr_file_forked(kr_file *file) { pthread_mutex_init(&file->lock, NULL); }

void kr_file_let_go(kr_file *file) {
    if (!__atomic_load_n(&file->held, __ATOMIC_RELAXED)) put(file, NULL);
}

int kr_file_hold(kr_file *file) {
    kr_descriptor *descriptor;
    int error = take(file, &descriptor);
    if (error) return error;
    pthread_mutex_lock(&file->lock);
    if (!file->descriptor) {
        __atomic_add_fetch(&kept, 1, __ATOMIC_RELAXED);
        file->descriptor = descriptor;
        descriptor = NULL;
    }
    __atomic_store_n(&file->held, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&file->lock);
    drop(descriptor);
    return 0;
}

void kr_file_renamed(kr_file *file, const char *path) {
    pthread_mutex_lock(&file->lock);
    file->path = path;
    pthread_mutex_unlock(&file->lock);
}

/* ---- size and blocks ----------------------------------------------------------------------------------------- */

static int size_of(int fd, int64_t *size) {
    struct stat status;
    if (fstat(fd, &status)) return errno;
    *size = status.st_size;
    return 0;
}

static int resize(int fd, int64_t size) {
    while (ftruncate(fd, size))
        if (errno != EINTR) return errno;
    return 0;
}

static int reserves_nothing(int fd) {
#ifdef __linux__
    struct statfs system;
    if (fstatfs(fd, &system)) return 0;
    switch ((uint32_t)system.f_type) {
    case 0x9123683E: /* btrfs */
    case 0x2FC12FC1: /* zfs */
    case 0xCA451A4E: /* bcachefs */
    case 0x00003434: /* nilfs2 */
        return 1;
    }
#else
    (void)fd;
#endif
    return 0;
}

int kr_file_open(kr_file *file, const char *path, int writable, int create, int64_t *size) {
    kr_descriptor *descriptor;
    int error = open_regular(path, (writable ? O_RDWR : O_RDONLY) | (create ? O_CREAT : 0), &descriptor);
    if (error) return error;
    file->path = path;
    file->device = descriptor->device;
    file->inode = descriptor->inode;
    file->writable = writable;
    file->zeros = reserves_nothing(descriptor->fd);
    error = size_of(descriptor->fd, size);
    drop(descriptor);
    return error;
}

int kr_file_size(kr_file *file, int64_t *size) {
    kr_descriptor *descriptor;
    int error = take(file, &descriptor);
    if (error) return error;
    error = size_of(descriptor->fd, size);
    drop(descriptor);
    return error;
}

int kr_file_resize(kr_file *file, int64_t size) {
    kr_descriptor *descriptor;
    int error = take(file, &descriptor);
    if (error) return error;
    error = resize(descriptor->fd, size);
    __atomic_store_n(&file->settled, 0, __ATOMIC_RELAXED);
    drop(descriptor);
    return error;
}

static int cut_alone(int fd, int64_t size) {
#ifdef __linux__
    while (flock(fd, LOCK_EX | LOCK_NB))
        if (errno != EINTR) return EBUSY;
    int error = resize(fd, size);
    (void)flock(fd, LOCK_UN);
    return error;
#else
    /* On other systems a mapping does not keep the lock of the descriptor that it was made from. */
    (void)fd, (void)size;
    return EBUSY;
#endif
}

int kr_file_cut(kr_file *file, int64_t size) {
    kr_descriptor *descriptor;
    int error = take(file, &descriptor);
    if (error) return error;
    error = cut_alone(descriptor->fd, size);
    __atomic_store_n(&file->settled, 0, __ATOMIC_RELAXED);
    drop(descriptor);
    return error;
}

/* ---- bytes --------------------------------------------------------------------------------------------------- */

static int read_all(int fd, int64_t position, int64_t size, uint8_t *target) {
    while (size > 0) {
        ssize_t done = pread(fd, target, (size_t)size, position);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return done < 0 ? errno : EIO;
        target += done, position += done, size -= done;
    }
    return 0;
}

static int write_all(int fd, int64_t position, int64_t size, const uint8_t *source) {
    while (size > 0) {
        ssize_t done = pwrite(fd, source, (size_t)size, position);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return done < 0 ? errno : ENOSPC;
        source += done, position += done, size -= done;
    }
    return 0;
}

static int write_zeros(int fd, int64_t start, int64_t stop) {
    static const uint8_t zeros[1 << 16];
    int error = 0;
    for (int64_t part; start < stop && !error; start += part) {
        part = stop - start < (int64_t)sizeof zeros ? stop - start : (int64_t)sizeof zeros;
        error = write_all(fd, start, part, zeros);
    }
    return error;
}

static int reserve(int fd, int64_t start, int64_t stop, int64_t size) {
#if defined(__APPLE__)
    (void)start;
    fstore_t wanted = {.fst_flags = F_ALLOCATEALL, .fst_posmode = F_PEOFPOSMODE, .fst_length = stop - size};
    if (stop <= size) return 0;
    if (fcntl(fd, F_PREALLOCATE, &wanted) < 0) return errno;
    return resize(fd, stop);
#elif defined(__linux__)
    (void)size;
    while (fallocate(fd, 0, start, stop - start))
        if (errno != EINTR) return errno;
    return 0;
#else
    (void)size;
    return posix_fallocate(fd, start, stop - start);
#endif
}

static int allocate(int fd, int64_t start, int64_t stop, int zeros) {
    int64_t size, now;
    int error = size_of(fd, &size);
    if (error) return error;
    error = zeros ? EOPNOTSUPP : reserve(fd, start, stop, size);
    if (error == EOPNOTSUPP || error == ENOSYS) error = write_zeros(fd, size, stop);
    /* Return the first of two errors. */
    if (error && !size_of(fd, &now) && now > size) (void)resize(fd, size);
    return error;
}

int kr_file_allocate(kr_file *file, int64_t start, int64_t stop) {
    kr_descriptor *descriptor;
    int error = take(file, &descriptor);
    if (error) return error;
    error = allocate(descriptor->fd, start, stop, file->zeros);
    __atomic_store_n(&file->settled, 0, __ATOMIC_RELAXED);
    drop(descriptor);
    return error;
}

/* As `take`, but wait while a writer cuts the file, which takes a moment; a writer that was stopped may take longer.
 */
static int take_patiently(kr_file *file, kr_descriptor **out) {
    enum { LOOKS = 1000, PAUSE_NS = 1000000 };
    const struct timespec pause = {0, PAUSE_NS};
    int error = take(file, out);
    for (int look = 0; error == EAGAIN && look < LOOKS; look++) {
        nanosleep(&pause, NULL);
        error = take(file, out);
    }
    return error;
}

int kr_file_read(kr_file *file, int64_t position, int64_t size, uint8_t *target) {
    kr_descriptor *descriptor;
    int error = take_patiently(file, &descriptor);
    if (error) return error;
    error = read_all(descriptor->fd, position, size, target);
    drop(descriptor);
    return error;
}

int kr_file_write(kr_file *file, int64_t position, int64_t size, const uint8_t *source) {
#ifdef __linux__
    kr_descriptor *descriptor;
    int error = take(file, &descriptor);
    if (error) return error;
    while (size > 0 && !error) {
        ssize_t done = pwrite(descriptor->fd, source, (size_t)size, position);
        if (done < 0) {
            if (errno != EINTR) error = errno;
            continue;
        }
        source += done, position += done, size -= done;
    }
    drop(descriptor);
    return error;
#else
    (void)file, (void)position, (void)size, (void)source;
    return ENOSYS;
#endif
}

/* Copy the first bytes of [position, position + size) that are already in memory; return how many. */
static int64_t read_cached(int fd, int64_t position, int64_t size, uint8_t *target) {
#if defined(__linux__) && defined(RWF_NOWAIT)
    struct iovec part = {.iov_base = target, .iov_len = (size_t)size};
    ssize_t done = preadv2(fd, &part, 1, position, RWF_NOWAIT);
    return done > 0 ? done : 0;
#else
    (void)fd, (void)position, (void)size, (void)target;
    return 0;
#endif
}

int kr_file_read_aside(kr_file *file, int64_t position, int64_t size, uint8_t *target) {
    enum { PART_BYTES = 1 << 18 };
    kr_descriptor *descriptor = NULL;
    int error;
    pthread_mutex_lock(&file->lock);
    /* Use a separate descriptor, so that the advice for this read does not slow down others. */
    error = open_again(file, O_RDONLY, &descriptor);
    pthread_mutex_unlock(&file->lock);
    if (error) return error;
#ifdef POSIX_FADV_RANDOM
    /* Read-ahead pages would look as if they had been requested. */
    (void)posix_fadvise(descriptor->fd, 0, 0, POSIX_FADV_RANDOM);
#endif
    while (size > 0 && !error) {
        int64_t part = size < PART_BYTES ? size : PART_BYTES;
        int64_t cached = read_cached(descriptor->fd, position, part, target);
        if (cached < part) {
            error = read_all(descriptor->fd, position + cached, part - cached, target + cached);
#ifdef POSIX_FADV_DONTNEED
            (void)posix_fadvise(descriptor->fd, position + cached, part - cached, POSIX_FADV_DONTNEED);
#endif
        }
        target += part, position += part, size -= part;
    }
    drop(descriptor);
    return error;
}

static int flush(int fd) {
#ifdef __APPLE__
    return fcntl(fd, F_FULLFSYNC) < 0 ? errno : 0;
#else
    return fdatasync(fd) ? errno : 0;
#endif
}

int kr_file_flush(kr_file *file, uint8_t *base, int64_t size) {
    kr_descriptor *descriptor;
    int error = take(file, &descriptor);
    if (error) return error;
#ifdef __linux__
    /* Linux itself finds the pages that were written through a mapping. */
    (void)base, (void)size;
#else
    if (base && size > 0 && msync(base, (size_t)size, MS_SYNC)) error = errno;
#endif
    if (!error) error = flush(descriptor->fd);
    drop(descriptor);
    return error;
}

#ifdef __linux__
static int is_in_place(int fd, int beside) {
    struct statfs system;
    struct stat status, other;
    if (fstatfs(fd, &system) || fstat(fd, &status) || fstat(beside, &other)) return 0;
    return (uint32_t)system.f_type == 0xEF53 /* ext4, ext3, ext2 */ && status.st_dev == other.st_dev;
}

static int write_along(int fd, int along) {
    /* If this starts nothing, the flush that follows still writes everything. */
    (void)sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    return sync_file_range(along, 0, 0, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER)
               ? errno
               : 0;
}
#else
static int is_in_place(int fd, int beside) {
    (void)fd, (void)beside;
    return 0;
}

static int write_along(int fd, int along) {
    (void)fd, (void)along;
    return ENOSYS;
}
#endif

/* Call `step` with both files' descriptors, which stay open meanwhile. */
static int with_both(kr_file *file, kr_file *along, int (*step)(int, int), int *result) {
    kr_descriptor *descriptor, *other;
    int error = take(file, &descriptor);
    if (error) return error;
    error = take(along, &other);
    if (!error) {
        *result = step(descriptor->fd, other->fd);
        drop(other);
    }
    drop(descriptor);
    return error;
}

int kr_file_write_along(kr_file *file, kr_file *along) {
    int result = 0;
    if (!__atomic_load_n(&along->settled, __ATOMIC_RELAXED)) return ENOSYS;
    int error = with_both(file, along, write_along, &result);
    return error ? error : result;
}

void kr_file_settle(kr_file *along, kr_file *file, int error) {
    int in_place = 0;
    if (error || with_both(along, file, is_in_place, &in_place)) in_place = 0;
    __atomic_store_n(&along->settled, in_place, __ATOMIC_RELAXED);
}

/* ---- mappings ------------------------------------------------------------------------------------------------ */

int kr_file_map(kr_file *file, int64_t size, int64_t least, int32_t *fault, kr_mapping **out) {
    kr_descriptor *descriptor;
    int64_t there;
    int error = take(file, &descriptor);
    if (error) return error == EAGAIN ? ENOMEM : error; /* read without a mapping until the writer has cut the file */
    error = size_of(descriptor->fd, &there);
    if (!error && there < least) error = EIO;
    if (!error) error = kr_map(descriptor->fd, size, file->writable, fault, out);
    drop(descriptor);
    if (!error && !file->writable) kr_file_let_go(file); /* a mapping outlives the descriptor */
    return error;
}

static int copy(int from, int to, int64_t size) {
    enum { BUFFER_BYTES = 1 << 18 };
    int64_t position = 0;
    int error = 0;
#ifdef __linux__
    /* Copy-on-write file systems share the blocks instead of copying them. */
    while (position < size) {
        off_t in = position, out = position;
        ssize_t done = copy_file_range(from, &in, to, &out, (size_t)(size - position), 0);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) break;
        position += done;
    }
    if (position == size) return 0;
#endif
    uint8_t *buffer = malloc(BUFFER_BYTES);
    if (!buffer) return ENOMEM;
    for (int64_t part; position < size && !error; position += part) {
        part = size - position < BUFFER_BYTES ? size - position : BUFFER_BYTES;
        error = read_all(from, position, part, buffer);
        if (!error) error = write_all(to, position, part, buffer);
    }
    free(buffer);
    return error;
}

int kr_file_replace(kr_file *file, int64_t keep, const uint8_t *tail, int64_t tail_size, int64_t size, int32_t *fault,
                    kr_mapping **out) {
    char path[PATH_MAX];
    kr_descriptor *former, *made = NULL;
    kr_mapping *mapping = NULL;
    if (snprintf(path, sizeof path, "%s.tmp", file->path) >= (int)sizeof path) return ENAMETOOLONG;
    int error = take(file, &former);
    if (error) return error;
    error = open_regular(path, O_RDWR | O_CREAT | O_TRUNC, &made);
    if (!error) {
        error = copy(former->fd, made->fd, keep);
        if (!error) error = write_all(made->fd, keep, tail_size, tail);
        if (!error) error = flush(made->fd);
        if (!error) error = kr_map(made->fd, size, 1, fault, &mapping);
        if (!error && rename(path, file->path)) error = errno;
        if (error) unlink(path);
    }
    drop(former);
    if (error) {
        kr_mapping_release(mapping);
        drop(made);
        return error;
    }
    put(file, made);
    *out = mapping;
    return 0;
}
