/*
 * A log of kreplica from C: open a directory, append records, read them, close it.
 *
 * These functions run the engine of the Python package, its native core included, in this process: the same
 * recovery, the same locks, the same files. What crosses between C and Python is a batch, never a record.
 * `python -m bindings.c_flags` prints what to give to the compiler, kreplica.c among it:
 *
 *     cc program.c $(python -m bindings.c_flags) -o program
 *
 * Errors: a function returns KREPLICA_OK or one of the codes below; then nothing was done, and kreplica_error()
 * says what was wrong, in words.
 * Threads: any thread may call any function. One log may be appended to by several threads at once; what a read
 * returned belongs to whoever reads it. kreplica_close must be the last call with its log.
 * Processes: one process writes to a directory at a time, any number may read it meanwhile. A log is not usable
 * in a forked child: open it there.
 * The interpreter is started by the first call (no signal handler is installed) and lives as long as the process;
 * in a process that has one, that one is used.
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
    KREPLICA_BAD_ARGUMENT = 1,  /* a null pointer, a size below -1, a flag that is none */
    KREPLICA_NO_ENGINE = 2,     /* the interpreter did not start, or has no package kreplica */
    KREPLICA_NO_MEMORY = 3,
    KREPLICA_LOCKED = 4,        /* somebody else writes to the directory */
    KREPLICA_INVALID_FILE = 5,  /* no such directory to read, or a file that is not what its name says */
    KREPLICA_OUT_OF_RANGE = 6,  /* the log has no such offset */
    KREPLICA_DAMAGED = 7,       /* bytes rotted on disk; the text names the offsets */
    KREPLICA_TOO_LARGE = 8,     /* the batch is larger than max.message.bytes */
    KREPLICA_DISK_FULL = 9,
    KREPLICA_READ_ONLY = 10,    /* opened so, or made so by damage */
    KREPLICA_STORAGE = 11,      /* a file operation failed; the log is not usable any more */
    KREPLICA_REFUSED = 12       /* anything else; the text says what */
};

/* Flags of kreplica_open. */
enum {
    KREPLICA_READ = 1, /* only read, beside a writer perhaps; a directory of Kafka's may be opened so, too */
    KREPLICA_SYNC = 2  /* an append returns when it is on the disk; by default it survives the process only */
};

/* A null key or value has the size -1. `timestamp` is in ms since 1970; on an append, -1 stands for now, and
 * `offset` is not looked at. Headers are not seen here. */
typedef struct {
    int64_t offset;
    int64_t timestamp;
    const void *key;
    int64_t key_size;
    const void *value;
    int64_t value_size;
} kreplica_record;

/* Bytes of many rows, as in Arrow's binary layout: row i has data[ends[i]] to data[ends[i + 1]], and is null
 * where `validity` is there and its bit i is 0. */
typedef struct {
    const uint8_t *validity;
    const int32_t *ends;
    const uint8_t *data;
} kreplica_column;

/* What a read returned: `count` records by offset, and where to read on. */
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

/* Start the engine with the packages that this interpreter (the path of its executable, as of a virtual
 * environment) finds; NULL: the one that KREPLICA_PYTHON names in the environment, or else the default one.
 * Needed only to name it: the other functions start the engine themselves. */
int kreplica_start(const char *python);

/* Open the log in `directory`, which is made where it is not there (but not with KREPLICA_READ). Its end is
 * recovered first if it was not closed in order. */
int kreplica_open(const char *directory, int flags, kreplica_log **log);

/* Append the records as one batch, all of them or none; `first_offset`, if not NULL, gets the first's offset.
 * None are appended for a count of 0. */
int kreplica_append(kreplica_log *log, const kreplica_record *records, size_t count, int64_t *first_offset);

/* Some of the committed records from `offset` on: at most 65,536, and few beyond 8 MiB. At the end there are none
 * (count 0), and next_offset is the end. Free them with kreplica_free. */
int kreplica_read(kreplica_log *log, int64_t offset, kreplica_records **records);

/* Record `i` of `records`, 0 <= i < count; its bytes are there until the records are freed. */
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

/* Let go of what a read returned; NULL is allowed. */
void kreplica_free(kreplica_records *records);

/* The first offset there is, and the one that the next record gets; either pointer may be NULL. */
int kreplica_bounds(kreplica_log *log, int64_t *first, int64_t *end);

/* Close the log and free it, whatever is returned; NULL is allowed. */
int kreplica_close(kreplica_log *log);

/* What this thread's last call that failed said: UTF-8, until its next one fails; "" before. */
const char *kreplica_error(void);

#ifdef __cplusplus
}
#endif
#endif
