/* A file by its path: opened when a descriptor is needed, and closed when it is not. These are the few file
 * operations in which operating systems and file systems differ.
 *
 * A path may come to belong to another file. So a file that is opened again is compared with the one of
 * kr_file_open, and if it is another one the result is ESTALE. Readers hold a shared lock (flock) on what they have
 * open or mapped, in all processes. A writer tries to take that lock before it cuts a file: see kr_file_cut.
 *
 * All functions but the last return 0 or an errno. Thread rule: any thread; a call in progress keeps its descriptor
 * even if another call lets it go. */
#ifndef KREPLICA_FILE_H
#define KREPLICA_FILE_H

#include <pthread.h>
#include <stdint.h>
#include <sys/types.h>

#include "mapping.h"

typedef struct {
    int fd;
    int64_t references;
    dev_t device; /* with the inode: identifies the file */
    ino_t inode;
} kr_descriptor;

typedef struct {
    pthread_mutex_t lock;
    const char *path;          /* belongs to the owner; guarded by lock, as is the descriptor */
    kr_descriptor *descriptor; /* NULL if not needed so far */
    dev_t device; /* with the inode: identifies the file */
    ino_t inode;
    int writable;
    int zeros; /* write zeros ahead instead of reserving blocks: see kr_file_allocate */
    int held;    /* atomic: the descriptor stays open until kr_file_destroy */
    int settled; /* atomic: the addresses of its blocks are on disk, and the file system writes them in place */
} kr_file;

/* The number of descriptors that files may keep open between two uses, by default three quarters of the process's
 * limit. Beyond it a file is opened for each use; a mapping needs no descriptor. */
int64_t kr_descriptor_budget(void);
void kr_set_descriptor_budget(int64_t descriptors);

void kr_file_init(kr_file *file);
void kr_file_destroy(kr_file *file);
/* Free the file's lock in a forked child that is about to destroy a file of its parent: see fork.c. */
void kr_file_forked(kr_file *file);

/* Check that the regular file `path` can be used, create it if `create`, and return its size. Anything but a
 * regular file is refused with EINVAL. */
int kr_file_open(kr_file *file, const char *path, int writable, int create, int64_t *size);
int kr_file_size(kr_file *file, int64_t *size);

/* Make [start, stop) exist on disk, with zeros above the file's former size. Reserved blocks may still turn out to
 * be missing on a copy-on-write file system; there (and with `zeros`) the bytes above the former size are written.
 * What a failure left behind is given back to the disk. */
int kr_file_allocate(kr_file *file, int64_t start, int64_t stop);
int kr_file_resize(kr_file *file, int64_t size);
/* Like kr_file_resize, for bytes that a reader may have seen. Returns EBUSY, and changes nothing, if a reader has
 * the file open or mapped, in this process or another one. The file must then be replaced. */
int kr_file_cut(kr_file *file, int64_t size);
/* Keep a descriptor from now on until kr_file_destroy, beyond the budget if need be: the file is about to lose its
 * name. */
int kr_file_hold(kr_file *file);
/* Flush what was written, also through the mapping `base` (or NULL). */
int kr_file_flush(kr_file *file, uint8_t *base, int64_t size);
/* Make what was written to `along` durable with the flush of `file` that the caller does next, if that is possible.
 * Otherwise returns ENOSYS, and `along` needs a flush of its own.
 *
 * It is possible on Linux with ext4, for a file that was flushed, with all its bytes written, since it last grew.
 * ext4 writes a block in place, so the block is in the disk's cache once the write is done; and a flush of any file
 * makes the disk empty that cache. So this function writes the pages and waits for them while those of `file` are
 * being written. If each write may move a block (copy on write, shared blocks), only a flush of that file records
 * the new address. */
int kr_file_write_along(kr_file *file, kr_file *along);
/* Record that all of `along` was written and then flushed, with the result `error`; decides whether
 * kr_file_write_along can be used from now on. */
void kr_file_settle(kr_file *along, kr_file *file, int error);
/* Read all of the bytes or return an error; EIO if the file ends before. */
int kr_file_read(kr_file *file, int64_t position, int64_t size, uint8_t *target);
/* Write all of the bytes. Until it returns, a mapping may show none, some or all of them. Returns ENOSYS if a
 * mapping might never show them. */
int kr_file_write(kr_file *file, int64_t position, int64_t size, const uint8_t *source);
/* Like kr_file_read, for bytes that no other reader wants: those that were not in the page cache do not stay there. */
int kr_file_read_aside(kr_file *file, int64_t position, int64_t size, uint8_t *target);

/* Map [0, size); EIO if the file has fewer than `least` bytes. */
int kr_file_map(kr_file *file, int64_t size, int64_t least, int32_t *fault, kr_mapping **out);
/* Replace the file by a new one of the first `keep` bytes followed by `tail`, and map [0, size) of it. The new file
 * is written as path + ".tmp", and flushed before it gets the name. */
int kr_file_replace(kr_file *file, int64_t keep, const uint8_t *tail, int64_t tail_size, int64_t size, int32_t *fault,
                    kr_mapping **out);

void kr_file_renamed(kr_file *file, const char *path);
/* Release the descriptor until the next use, unless kr_file_hold keeps it. */
void kr_file_let_go(kr_file *file);

#endif
