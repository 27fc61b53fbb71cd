/*
 * A log of kreplica for C programs: open a directory, append records, read them, close it.
 *
 * These functions run the engine of the Python package, including its native core, in this process, with the same
 * recovery, locks and files. Batches, and never single records, are passed between C and Python.
 * `python -m kreplica.arrow.c_flags` prints the compiler's arguments, including kreplica.c:
 *
 *     cc program.c $(python -m kreplica.arrow.c_flags) -o program
 *
 * Errors: a function returns KREPLICA_OK or one of the codes below. After an error nothing was done, and
 * kreplica_error() describes the error.
 * Threads: any thread may call any function. Several threads may append to one log at once; the result of a read
 * belongs to its reader. kreplica_close must be the last call with its log.
 * Processes: one process at a time writes to a directory, while any number may read it. A forked child cannot use its
 * parent's log; it must open the directory itself.
 * The first call starts the interpreter, without signal handlers, and it lives as long as the process. If the process
 * already has an interpreter, that one is used.
 */
#ifndef KREPLICA_H
#define KREPLICA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    KREPLICA_OK = 0,
    KREPLICA_BAD_ARGUMENT = 1,  /* a null pointer, a size below -1, an unknown flag */
    KREPLICA_NO_ENGINE = 2,     /* the interpreter did not start, or has no package kreplica */
    KREPLICA_NO_MEMORY = 3,
    KREPLICA_LOCKED = 4,        /* another process writes to the directory */
    KREPLICA_INVALID_FILE = 5,  /* no directory to read, or a file with contents that do not fit its name */
    KREPLICA_OUT_OF_RANGE = 6,  /* the log does not have this offset */
    KREPLICA_DAMAGED = 7,       /* bytes on disk are damaged; the text names the offsets */
    KREPLICA_TOO_LARGE = 8,     /* the batch is larger than max.message.bytes */
    KREPLICA_DISK_FULL = 9,
    KREPLICA_READ_ONLY = 10,    /* opened read-only, or made read-only by damage */
    KREPLICA_STORAGE = 11,      /* a file operation failed; the log is no longer usable */
    KREPLICA_REFUSED = 12       /* anything else; see the text */
};

/* Flags of kreplica_open. */
enum {
    KREPLICA_READ = 1, /* read only, also while another process writes; also opens a directory of Kafka */
    KREPLICA_SYNC = 2, /* an append returns once it is on disk; by default it only survives the end of the process */
    KREPLICA_COMMITTED = 4 /* reads leave out records of aborted transactions, and end where an open one begins */
};

/* A null key or value has the size -1. `timestamp` is in ms since 1970; in an append, -1 means now, and `offset` is
 * ignored. Headers are not available here. */
typedef struct {
    int64_t offset;
    int64_t timestamp;
    const void *key;
    int64_t key_size;
    const void *value;
    int64_t value_size;
} kreplica_record;

/* The bytes of many rows in Arrow's binary layout: row i is data[ends[i]] to data[ends[i + 1]]. It is null if there is
 * a `validity` and its bit i is 0. */
typedef struct {
    const uint8_t *validity;
    const int32_t *ends;
    const uint8_t *data;
} kreplica_column;

/* The result of a read: `count` records by offset, and the offset to continue at. */
typedef struct {
    int64_t count;
    int64_t next_offset;
    const int64_t *offsets;
    const int64_t *timestamps;
    kreplica_column keys;
    kreplica_column values;
    void *owner;
} kreplica_records;

typedef struct kreplica_log kreplica_log;

/* Start the engine with the packages of the interpreter whose executable is `python`, such as that of a virtual
 * environment. NULL means the one in the environment variable KREPLICA_PYTHON, or else the default one. Needed only to
 * choose the interpreter: the other functions start the engine themselves. */
int kreplica_start(const char *python);

/* Open the log in `directory`, which is created if it is missing (but not with KREPLICA_READ). If the log was not
 * closed cleanly, its end is recovered first. */
int kreplica_open(const char *directory, int flags, kreplica_log **log);

/* Append the records as one batch, all of them or none. If `first_offset` is not NULL, it is set to the offset of the
 * first record. With a count of 0 nothing is appended. */
int kreplica_append(kreplica_log *log, const kreplica_record *records, size_t count, int64_t *first_offset);

/* Read some of the committed records from `offset` on: at most 65,536, and about 8 MiB. At the end the count is 0 and
 * next_offset is the end of what may be read. Free the result with kreplica_free. */
int kreplica_read(kreplica_log *log, int64_t offset, kreplica_records **records);

/* Return record `i` of `records`, 0 <= i < count; its bytes are valid until the records are freed. */
static inline kreplica_record kreplica_at(const kreplica_records *records, int64_t i) {
    const kreplica_column *columns[2] = {&records->keys, &records->values};
    const void *bytes[2];
    int64_t sizes[2];
    kreplica_record found;
    int n;
    for (n = 0; n < 2; n++) {
        const kreplica_column *column = columns[n];
        int is_null = column->validity != NULL && !(column->validity[i >> 3] >> (i & 7) & 1);
        bytes[n] = is_null ? NULL : column->data + column->ends[i];
        sizes[n] = is_null ? -1 : column->ends[i + 1] - column->ends[i];
    }
    found.offset = records->offsets[i];
    found.timestamp = records->timestamps[i];
    found.key = bytes[0];
    found.key_size = sizes[0];
    found.value = bytes[1];
    found.value_size = sizes[1];
    return found;
}

/* Free the result of a read; NULL is allowed. */
void kreplica_free(kreplica_records *records);

/* Return the log's first offset, and the offset of the next record; either pointer may be NULL. */
int kreplica_bounds(kreplica_log *log, int64_t *first, int64_t *end);

/* Close the log and free it, even if an error is returned; NULL is allowed. */
int kreplica_close(kreplica_log *log);

/* Return the text of this thread's last failed call, in UTF-8, valid until its next failure; "" before the first. */
const char *kreplica_error(void);

#ifdef __cplusplus
}
#endif
#endif
