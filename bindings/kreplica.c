/*
 * kreplica.h on top of the Python package: each function takes the interpreter's lock and calls its counterpart in
 * bindings/c_api.py with whole batches as buffers. An exception raised there becomes a code and a text.
 *
 * Ownership: a kreplica_log holds one reference to a log; kreplica_records hold the buffers that their pointers
 * point into. Thread rule: see the header; `starting` guards the global variables until they are set, once.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kreplica.h"

struct kreplica_log {
    PyObject *log;
    int committed;
};

enum { BUFFERS = 8, TEXT_BYTES = 2048 };

/* The buffers of one read, in the order of c_api.Piece. */
typedef struct {
    kreplica_records records;
    Py_buffer buffers[BUFFERS];
} held_records;

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static PyObject *api;
static _Thread_local char text[TEXT_BYTES];

const char *kreplica_error(void) {
    return text;
}

static int fail(int code, const char *said) {
    snprintf(text, sizeof text, "%s", said);
    return code;
}

/* ---- the interpreter: called without its lock unless stated otherwise --------------------------------------- */

static int start_interpreter(const char *python) {
    PyConfig config;
    PyStatus status = {0};
    int code = KREPLICA_OK;
    PyConfig_InitPythonConfig(&config);
    config.parse_argv = 0;
    config.install_signal_handlers = 0;
    if (python != NULL) {
        status = PyConfig_SetBytesString(&config, &config.program_name, python);
        if (!PyStatus_Exception(status)) {
            status = PyConfig_SetBytesString(&config, &config.executable, python);
        }
    }
    if (!PyStatus_Exception(status)) {
        status = Py_InitializeFromConfig(&config);
    }
    if (PyStatus_Exception(status)) {
        code = fail(KREPLICA_NO_ENGINE, status.err_msg ? status.err_msg : "the interpreter did not start");
    } else {
        /* Each call takes the interpreter's lock itself. */
        PyEval_SaveThread();
    }
    PyConfig_Clear(&config);
    return code;
}

/* With the lock held: keep the exception as text, and clear it and everything that it holds. */
static void take_text(PyObject *error) {
    PyObject *said = PyObject_Str(error);
    const char *words = said == NULL ? NULL : PyUnicode_AsUTF8(said);
    snprintf(text, sizeof text, "%s: %s", Py_TYPE(error)->tp_name, words == NULL ? "" : words);
    Py_XDECREF(said);
    PyErr_Clear();
}

/* With the lock held: return the code of the current exception and keep its text. */
static int raised(void) {
    PyObject *kind, *error, *trace, *answer = NULL;
    long code = KREPLICA_NO_ENGINE;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    if (error == NULL) {
        code = fail(KREPLICA_REFUSED, "nothing was raised");
    } else {
        take_text(error);
        if (api != NULL) {
            answer = PyObject_CallMethod(api, "code_of", "O", error);
            code = answer == NULL ? KREPLICA_REFUSED : PyLong_AsLong(answer);
            PyErr_Clear();
        }
    }
    Py_XDECREF(answer);
    Py_XDECREF(kind);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return (int)code;
}

static int import_api(void) {
    PyGILState_STATE state = PyGILState_Ensure();
    int code = KREPLICA_OK;
    PyObject *module = PyImport_ImportModule("kreplica.arrow.c_api");
    if (module == NULL) {
        code = raised();
    }
    api = module;
    PyGILState_Release(state);
    return code;
}

int kreplica_start(const char *python) {
    int code = KREPLICA_OK;
    pthread_mutex_lock(&starting);
    if (api == NULL) {
        if (python == NULL) {
            python = getenv("KREPLICA_PYTHON");
        }
        if (!Py_IsInitialized()) {
            code = start_interpreter(python);
        }
        if (code == KREPLICA_OK) {
            code = import_api();
        }
    }
    pthread_mutex_unlock(&starting);
    return code;
}

/* ---- open and close ----------------------------------------------------------------------------------------- */

int kreplica_open(const char *directory, int flags, kreplica_log **log) {
    kreplica_log *made;
    PyGILState_STATE state;
    int code;
    if (directory == NULL || log == NULL || flags & ~(KREPLICA_READ | KREPLICA_SYNC | KREPLICA_COMMITTED)) {
        return fail(KREPLICA_BAD_ARGUMENT, "kreplica_open: a null directory, a null log pointer, or an unknown flag");
    }
    *log = NULL;
    code = kreplica_start(NULL);
    if (code != KREPLICA_OK) {
        return code;
    }
    made = malloc(sizeof *made);
    if (made == NULL) {
        return fail(KREPLICA_NO_MEMORY, "kreplica_open: out of memory");
    }
    made->committed = flags & KREPLICA_COMMITTED;
    state = PyGILState_Ensure();
    made->log = PyObject_CallMethod(api, "open_log", "yii", directory, flags & KREPLICA_READ, flags & KREPLICA_SYNC);
    if (made->log == NULL) {
        code = raised();
        free(made);
    } else {
        *log = made;
    }
    PyGILState_Release(state);
    return code;
}

int kreplica_close(kreplica_log *log) {
    PyGILState_STATE state;
    PyObject *done;
    int code = KREPLICA_OK;
    if (log == NULL) {
        return KREPLICA_OK;
    }
    state = PyGILState_Ensure();
    done = PyObject_CallMethod(log->log, "close", NULL);
    if (done == NULL) {
        code = raised();
    }
    Py_XDECREF(done);
    Py_DECREF(log->log);
    PyGILState_Release(state);
    free(log);
    return code;
}

int kreplica_bounds(kreplica_log *log, int64_t *first, int64_t *end) {
    PyGILState_STATE state;
    PyObject *found;
    long long from = 0, to = 0;
    int code = KREPLICA_OK;
    if (log == NULL) {
        return fail(KREPLICA_BAD_ARGUMENT, "kreplica_bounds: the log is null");
    }
    state = PyGILState_Ensure();
    found = PyObject_CallMethod(api, "bounds", "O", log->log);
    if (found == NULL || !PyArg_ParseTuple(found, "LL", &from, &to)) {
        code = raised();
    } else {
        if (first != NULL) {
            *first = from;
        }
        if (end != NULL) {
            *end = to;
        }
    }
    Py_XDECREF(found);
    PyGILState_Release(state);
    return code;
}

/* ---- append: records to columns ----------------------------------------------------------------------------- */

/* One column of the records to append, in Arrow's layout. */
typedef struct {
    uint8_t *validity;
    int32_t *ends;
    uint8_t *data;
    int64_t size;
} packed;

/* The timestamps of the records to append; the engine sets those that are missing. */
typedef struct {
    uint8_t *validity;
    int64_t *numbers;
} times;

static int pack_times(times *column, const kreplica_record *records, size_t count) {
    size_t i;
    column->validity = calloc(count / 8 + 1, 1);
    column->numbers = malloc(count * sizeof *column->numbers);
    if (column->validity == NULL || column->numbers == NULL) {
        return fail(KREPLICA_NO_MEMORY, "kreplica_append: out of memory");
    }
    for (i = 0; i < count; i++) {
        column->numbers[i] = records[i].timestamp;
        column->validity[i >> 3] |= (uint8_t)((records[i].timestamp != -1) << (i & 7));
    }
    return KREPLICA_OK;
}

static const void *bytes_of(const kreplica_record *record, int is_key, int64_t *size) {
    *size = is_key ? record->key_size : record->value_size;
    return is_key ? record->key : record->value;
}

/* Pack the bytes of all records into `column`. The caller calls free_packed, also after a failure. */
static int pack(packed *column, const kreplica_record *records, size_t count, int is_key) {
    int64_t total = 0, size;
    size_t i;
    for (i = 0; i < count; i++) {
        const void *bytes = bytes_of(&records[i], is_key, &size);
        if (size < -1 || (size > 0 && bytes == NULL)) {
            return fail(KREPLICA_BAD_ARGUMENT, "kreplica_append: a size below -1, or a null pointer to bytes");
        }
        if (size > INT32_MAX || (total += size > 0 ? size : 0) > INT32_MAX) {
            return fail(KREPLICA_TOO_LARGE, "kreplica_append: a batch of more than 2 GiB");
        }
    }
    column->size = total;
    column->validity = calloc(count / 8 + 1, 1);
    column->ends = malloc((count + 1) * sizeof *column->ends);
    column->data = malloc(total ? (size_t)total : 1);
    if (column->validity == NULL || column->ends == NULL || column->data == NULL) {
        return fail(KREPLICA_NO_MEMORY, "kreplica_append: out of memory");
    }
    total = 0;
    for (i = 0; i < count; i++) {
        const void *bytes = bytes_of(&records[i], is_key, &size);
        column->ends[i] = (int32_t)total;
        if (size >= 0) {
            column->validity[i >> 3] |= (uint8_t)(1 << (i & 7));
        }
        if (size > 0) {
            memcpy(column->data + total, bytes, (size_t)size);
            total += size;
        }
    }
    column->ends[count] = (int32_t)total;
    return KREPLICA_OK;
}

static void free_packed(packed *column) {
    free(column->validity);
    free(column->ends);
    free(column->data);
}

/* With the lock held: return a view of `size` bytes, or NULL with an exception. */
static PyObject *view(const void *bytes, int64_t size) {
    return PyMemoryView_FromMemory((char *)bytes, (Py_ssize_t)size, PyBUF_READ);
}

/* With the lock held: return (validity, ends, data), or NULL with an exception. */
static PyObject *column_views(const packed *column, size_t count) {
    return Py_BuildValue(
        "(NNN)", view(column->validity, (int64_t)(count / 8 + 1)),
        view(column->ends, (int64_t)((count + 1) * sizeof *column->ends)), view(column->data, column->size));
}

static int append_packed(
    kreplica_log *log, const packed *key, const packed *value, const times *timestamps, size_t count,
    int64_t *first_offset) {
    PyGILState_STATE state = PyGILState_Ensure();
    int code = KREPLICA_OK;
    long long offset;
    PyObject *answer = PyObject_CallMethod(
        api, "append", "OnNN(NN)", log->log, (Py_ssize_t)count, column_views(key, count), column_views(value, count),
        view(timestamps->validity, (int64_t)(count / 8 + 1)),
        view(timestamps->numbers, (int64_t)(count * sizeof *timestamps->numbers)));
    if (answer == NULL) {
        code = raised();
    } else {
        offset = PyLong_AsLongLong(answer);
        if (offset == -1 && PyErr_Occurred()) {
            code = raised();
        } else if (first_offset != NULL) {
            *first_offset = offset;
        }
        Py_DECREF(answer);
    }
    PyGILState_Release(state);
    return code;
}

int kreplica_append(kreplica_log *log, const kreplica_record *records, size_t count, int64_t *first_offset) {
    packed key = {0}, value = {0};
    times timestamps = {0};
    int code;
    if (log == NULL || (records == NULL && count > 0)) {
        return fail(KREPLICA_BAD_ARGUMENT, "kreplica_append: the log or the records are null");
    }
    if (count == 0) {
        return kreplica_bounds(log, NULL, first_offset);
    }
    if (count >= INT32_MAX) {
        return fail(KREPLICA_TOO_LARGE, "kreplica_append: more records than a batch can hold");
    }
    code = pack_times(&timestamps, records, count);
    if (code == KREPLICA_OK) {
        code = pack(&key, records, count, 1);
    }
    if (code == KREPLICA_OK) {
        code = pack(&value, records, count, 0);
    }
    if (code == KREPLICA_OK) {
        code = append_packed(log, &key, &value, &timestamps, count, first_offset);
    }
    free_packed(&key);
    free_packed(&value);
    free(timestamps.validity);
    free(timestamps.numbers);
    return code;
}

/* ---- read: columns as they are ------------------------------------------------------------------------------ */

/* With the lock held: take the buffers of `piece`, a tuple of counts and buffers; raises TypeError if it is not one. */
static int hold(held_records *held, PyObject *piece) {
    Py_ssize_t n;
    if (!PyTuple_Check(piece) || PyTuple_GET_SIZE(piece) != 2 + BUFFERS) {
        PyErr_SetString(PyExc_TypeError, "kreplica.arrow.c_api has a different version than kreplica.c");
        return -1;
    }
    held->records.count = PyLong_AsLongLong(PyTuple_GET_ITEM(piece, 0));
    held->records.next_offset = PyLong_AsLongLong(PyTuple_GET_ITEM(piece, 1));
    for (n = 0; n < BUFFERS && !PyErr_Occurred(); n++) {
        PyObject *each = PyTuple_GET_ITEM(piece, 2 + n);
        if (each != Py_None && PyObject_GetBuffer(each, &held->buffers[n], PyBUF_SIMPLE) < 0) {
            return -1;
        }
    }
    return PyErr_Occurred() ? -1 : 0;
}

static void point(held_records *held) {
    Py_buffer *found = held->buffers;
    kreplica_records *records = &held->records;
    records->owner = held;
    records->offsets = found[0].buf;
    records->timestamps = found[1].buf;
    records->keys = (kreplica_column){found[2].buf, found[3].buf, found[4].buf};
    records->values = (kreplica_column){found[5].buf, found[6].buf, found[7].buf};
}

/* With the lock held. */
static void let_go(held_records *held) {
    int n;
    for (n = 0; n < BUFFERS; n++) {
        PyBuffer_Release(&held->buffers[n]);
    }
    free(held);
}

int kreplica_read(kreplica_log *log, int64_t offset, kreplica_records **records) {
    held_records *held;
    PyGILState_STATE state;
    PyObject *piece;
    int code = KREPLICA_OK;
    if (log == NULL || records == NULL) {
        return fail(KREPLICA_BAD_ARGUMENT, "kreplica_read: the log or the records pointer is null");
    }
    *records = NULL;
    held = calloc(1, sizeof *held);
    if (held == NULL) {
        return fail(KREPLICA_NO_MEMORY, "kreplica_read: out of memory");
    }
    state = PyGILState_Ensure();
    piece = PyObject_CallMethod(api, "read", "OLi", log->log, (long long)offset, log->committed);
    if (piece == NULL || hold(held, piece) < 0) {
        code = raised();
        let_go(held);
    } else {
        point(held);
        *records = &held->records;
    }
    Py_XDECREF(piece);
    PyGILState_Release(state);
    return code;
}

void kreplica_free(kreplica_records *records) {
    PyGILState_STATE state;
    if (records != NULL) {
        state = PyGILState_Ensure();
        let_go(records->owner);
        PyGILState_Release(state);
    }
}
