/*
 * A program with kreplica.h, for test_c_header.py: what it is asked for comes as arguments, what it finds goes to
 * standard output, one line a record or an error. It ends with 1 where something is not as it has to be.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kreplica.h"

#define REQUIRE(what)                                                                     \
    do {                                                                                  \
        if (!(what)) {                                                                    \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, kreplica_error());      \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

enum { THREADS = 4, APPENDS = 50 };

static kreplica_record record(const char *key, const char *value, int64_t timestamp) {
    kreplica_record made = {0, timestamp, key, key ? (int64_t)strlen(key) : -1, value, value ? (int64_t)strlen(value) : -1};
    return made;
}

static void print_bytes(const void *bytes, int64_t size) {
    if (size < 0) {
        printf(" null");
    } else {
        printf(" '%.*s'", (int)size, (const char *)bytes);
    }
}

/* Print all records from `offset` on. */
static void dump(kreplica_log *log, int64_t offset) {
    kreplica_records *records;
    for (;;) {
        int64_t i;
        int code = kreplica_read(log, offset, &records);
        if (code != KREPLICA_OK) {
            printf("error %d %s\n", code, kreplica_error());
            return;
        }
        if (records->count == 0) {
            REQUIRE(records->next_offset >= offset);
            kreplica_free(records);
            return;
        }
        for (i = 0; i < records->count; i++) {
            kreplica_record found = kreplica_at(records, i);
            REQUIRE(found.offset >= offset && found.offset < records->next_offset);
            printf("%" PRId64 " %" PRId64, found.offset, found.timestamp);
            print_bytes(found.key, found.key_size);
            print_bytes(found.value, found.value_size);
            printf("\n");
        }
        offset = records->next_offset;
        kreplica_free(records);
    }
}

static void write_some(const char *directory, int flags) {
    kreplica_log *log;
    int64_t first, end;
    kreplica_record records[4];
    records[0] = record("key", "value", 1000);
    records[1] = record(NULL, "", 3000);
    records[2] = record("", NULL, 2000);
    records[3] = record(NULL, NULL, -1);
    REQUIRE(kreplica_open(directory, flags, &log) == KREPLICA_OK);
    REQUIRE(kreplica_bounds(log, &first, &end) == KREPLICA_OK);
    REQUIRE(kreplica_append(log, records, 4, &first) == KREPLICA_OK && first == end);
    REQUIRE(kreplica_append(log, records, 1, NULL) == KREPLICA_OK);
    REQUIRE(kreplica_append(log, NULL, 0, &first) == KREPLICA_OK && first == end + 5);
    dump(log, end);
    REQUIRE(kreplica_close(log) == KREPLICA_OK);
}

static void said(const char *what, int code) {
    printf("%s: %d %s\n", what, code, code == KREPLICA_OK ? "" : kreplica_error());
}

static void be_refused(const char *directory, const char *nothing) {
    kreplica_log *log, *other;
    kreplica_records *records;
    kreplica_record wrong = {0, -1, NULL, -1, NULL, 5};
    char *large = calloc(2, 1 << 20);
    kreplica_record too_large = {0, -1, NULL, -1, large, 2 << 20};
    kreplica_record before_time = record("k", "v", -2);
    REQUIRE(large != NULL && kreplica_error()[0] == 0);
    said("nothing to read", kreplica_open(nothing, KREPLICA_READ, &log));
    said("no directory", kreplica_open(NULL, 0, &log));
    said("unknown flag", kreplica_open(directory, 64, &log));
    REQUIRE(kreplica_open(directory, 0, &log) == KREPLICA_OK);
    said("locked", kreplica_open(directory, 0, &other));
    REQUIRE(other == NULL);
    said("no bytes", kreplica_append(log, &wrong, 1, NULL));
    wrong.value_size = -7;
    said("negative size", kreplica_append(log, &wrong, 1, NULL));
    said("too large", kreplica_append(log, &too_large, 1, NULL));
    said("bad timestamp", kreplica_append(log, &before_time, 1, NULL));
    said("no records", kreplica_append(log, NULL, 3, NULL));
    said("behind the end", kreplica_read(log, 1000000, &records));
    REQUIRE(records == NULL);
    said("below the start", kreplica_read(log, -1, &records));
    said("no place", kreplica_read(log, 0, NULL));
    REQUIRE(kreplica_close(log) == KREPLICA_OK);
    REQUIRE(kreplica_open(directory, KREPLICA_READ, &log) == KREPLICA_OK);
    before_time.timestamp = 1;
    said("read only", kreplica_append(log, &before_time, 1, NULL));
    REQUIRE(kreplica_close(log) == KREPLICA_OK && kreplica_close(NULL) == KREPLICA_OK);
    kreplica_free(NULL);
    free(large);
}

static void *append_many(void *given) {
    kreplica_log *log = given;
    int i;
    for (i = 0; i < APPENDS; i++) {
        kreplica_record each = record("thread", "value", -1);
        kreplica_records *found;
        int64_t offset;
        REQUIRE(kreplica_append(log, &each, 1, &offset) == KREPLICA_OK);
        REQUIRE(kreplica_read(log, offset, &found) == KREPLICA_OK && found->count >= 1);
        REQUIRE(kreplica_at(found, 0).offset == offset);
        kreplica_free(found);
    }
    return NULL;
}

static void run_threads(const char *directory) {
    pthread_t threads[THREADS];
    kreplica_log *log;
    int i;
    REQUIRE(kreplica_open(directory, 0, &log) == KREPLICA_OK);
    for (i = 0; i < THREADS; i++) {
        REQUIRE(pthread_create(&threads[i], NULL, append_many, log) == 0);
    }
    for (i = 0; i < THREADS; i++) {
        REQUIRE(pthread_join(threads[i], NULL) == 0);
    }
    REQUIRE(kreplica_close(log) == KREPLICA_OK);
}

int main(int count, char **arguments) {
    const char *what = count > 2 ? arguments[1] : "";
    kreplica_log *log;
    if (strcmp(what, "write") == 0 || strcmp(what, "write-synced") == 0) {
        write_some(arguments[2], strcmp(what, "write") == 0 ? 0 : KREPLICA_SYNC);
    } else if (strcmp(what, "dump") == 0 || strcmp(what, "dump-committed") == 0) {
        int committed = strcmp(what, "dump") == 0 ? 0 : KREPLICA_COMMITTED;
        int code = kreplica_open(arguments[2], KREPLICA_READ | committed, &log);
        said("open", code);
        if (code == KREPLICA_OK) {
            dump(log, count > 3 ? atoll(arguments[3]) : 0);
            REQUIRE(kreplica_close(log) == KREPLICA_OK);
        }
    } else if (strcmp(what, "refused") == 0 && count > 3) {
        be_refused(arguments[2], arguments[3]);
    } else if (strcmp(what, "threads") == 0) {
        run_threads(arguments[2]);
    } else if (strcmp(what, "die") == 0) {
        /* As if it were killed: nothing is closed. */
        kreplica_record each = record("k", "before it died", 7);
        REQUIRE(kreplica_open(arguments[2], 0, &log) == KREPLICA_OK);
        REQUIRE(kreplica_append(log, &each, 1, NULL) == KREPLICA_OK);
        _Exit(0);
    } else {
        fprintf(stderr, "not known: %s\n", what);
        return 1;
    }
    return 0;
}
