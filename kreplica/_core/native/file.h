/* A file by its name: opened when something needs the descriptor, and let go when nothing does. Here are the few file
 * operations in which operating systems and file systems differ.
 *
 * A name may come to mean another file, so a file that is opened again is compared with the one of kr_file_open: another
 * one is ESTALE. Readers hold a shared lock (flock) on what they have open or mapped, in all processes, and a writer asks
 * for it before it cuts a file: see kr_file_cut.
 *
 * All functions but the last return 0 or an errno. Thread rule: any thread; a call under way keeps the descriptor it
 * uses, also while another lets it go. */
#ifndef KREPLICA_FILE_H
#define KREPLICA_FILE_H

#include <pthread.h>
#include <stdint.h>
#include <sys/types.h>

#include "mapping.h"

typedef struct {
    int fd;
    int64_t references;
    dev_t device; /* of the file, with the next */
    ino_t inode;
} kr_descriptor;

typedef struct {
    pthread_mutex_t lock;
    const char *path;          /* the owner's; guarded by lock, with the next */
    kr_descriptor *descriptor; /* NULL while nothing has needed it */
    dev_t device; /* which file it is, with the next */
    ino_t inode;
    int writable;
    int zeros; /* write zeros ahead instead of reserving blocks: see kr_file_allocate */
    int held;    /* atomic: the descriptor stays until the end */
    int settled; /* atomic: where its blocks lie is on disk, and the file system writes them in place */
} kr_file;

/* How many descriptors files may keep open between two uses, by default three quarters of what the process may have.
 * Beyond it a file is opened for each use: a mapping needs none. */
int64_t kr_descriptor_budget(void);
void kr_set_descriptor_budget(int64_t descriptors);

void kr_file_init(kr_file *file);
void kr_file_destroy(kr_file *file);
/* In a forked child, before it destroys a file of its parent's: a thread that held the file's lock is not here. */
void kr_file_forked(kr_file *file);

/* See whether the regular file `path` may be used, creating it if that is asked for, and tell its size. Anything but a
 * regular file is refused with EINVAL. */
int kr_file_open(kr_file *file, const char *path, int writable, int create, int64_t *size);
int kr_file_size(kr_file *file, int64_t *size);

/* Make [start, stop) exist on disk, zero above the file's former size. Blocks that are only reserved may still turn out
 * to be missing on a copy-on-write file system; there (and with `zeros`) what lies above the former size is written.
 * The disk gets back what a failure left behind. */
int kr_file_allocate(kr_file *file, int64_t start, int64_t stop);
int kr_file_resize(kr_file *file, int64_t size);
/* As kr_file_resize, for bytes that a reader may have seen: EBUSY, and nothing has changed, where a reader has the file
 * open or mapped, in this process or another one. The file has to be replaced then. */
int kr_file_cut(kr_file *file, int64_t size);
/* Keep a descriptor from now on until kr_file_destroy, whatever the budget says: the file is about to lose its name. */
int kr_file_hold(kr_file *file);
/* Make last what was written, through the mapping `base` too (or NULL). */
int kr_file_flush(kr_file *file, uint8_t *base, int64_t size);
/* Make what was written to `along` last with the flush of `file` that the caller does next, where that can be: else
 * ENOSYS, and `along` wants a flush of its own.
 *
 * It can be on Linux with ext4, for a file that was flushed since it grew and all of whose bytes had been written then. A
 * block is written in place there, so it is in the disk's own cache once the write is done; and a flush of any file has
 * the disk empty that cache. So the pages are written and waited for, while those of `file` are under way. Where a block
 * may get a new place with each write (copy on write, shared blocks), only a flush of that file notes the place. */
int kr_file_write_along(kr_file *file, kr_file *along);
/* `along`, all of it written, was flushed, which ended with `error`: whether kr_file_write_along will do from now on. */
void kr_file_settle(kr_file *along, kr_file *file, int error);
/* All of the bytes, or an error; EIO if the file ends before. */
int kr_file_read(kr_file *file, int64_t position, int64_t size, uint8_t *target);
/* Write all of the bytes, of which a mapping shows none, some or all until it returns; ENOSYS where a mapping might never
 * show them. */
int kr_file_write(kr_file *file, int64_t position, int64_t size, const uint8_t *source);
/* As kr_file_read, for bytes that nobody else wants: what was not in the page cache does not stay there. */
int kr_file_read_aside(kr_file *file, int64_t position, int64_t size, uint8_t *target);

/* Map [0, size); EIO if the file has fewer than `least` bytes. */
int kr_file_map(kr_file *file, int64_t size, int64_t least, int32_t *fault, kr_mapping **out);
/* Put a new file of the first `keep` bytes, with `tail` behind them, in the file's place, and map [0, size) of it. It is
 * made as path + ".tmp", and flushed before it gets the name. */
int kr_file_replace(kr_file *file, int64_t keep, const uint8_t *tail, int64_t tail_size, int64_t size, int32_t *fault,
                    kr_mapping **out);

void kr_file_renamed(kr_file *file, const char *path);
/* Hold no descriptor until the next use, but for kr_file_hold. */
void kr_file_let_go(kr_file *file);

#endif
