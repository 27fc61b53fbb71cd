# Field: reads an attribute that Python keeps in the __slots__ of a class, as fast as a field of a native class.
#
# Native code that handles each batch reads a log, its queue and its settings some hundred times for a record that three
# brokers store. These are Python's own objects; looking such an attribute up by its name takes ten times as long as
# reading it. A Field remembers where the instances of the class that it last met keep it. For an instance of any
# other class it looks the attribute up, as Python would.
#
# Ownership: a Field keeps the class alive, so that no other class takes its address. Thread rule: the GIL is the lock.

cimport cython
from cpython.object cimport PyObject


@cython.final
cdef class Field:
    cdef readonly str name
    cdef object owner             # the class whose instances keep the value at `offset`, or None
    cdef Py_ssize_t offset

    cdef inline object of(self, object instance):
        cdef PyObject *value
        if <PyObject *> (<PyObject *> instance).ob_type == <PyObject *> self.owner:
            value = (<PyObject **> (<char *> <PyObject *> instance + self.offset))[0]
            if value != NULL:
                return <object> value
        return self.look_up(instance)

    cdef object look_up(self, object instance)


# Of a UnifiedLog.
cdef Field LOG_STATE, LOG_LOCK, LOG_ACTIVE, LOG_DURABLE, LOG_PLAIN, LOG_CONFIG
cdef Field LOG_EPOCHS, LOG_CLOSED, LOG_STOPPED_AT, LOG_DAMAGES, LOG_LEADER_EPOCH, LOG_PRODUCERS
# Of its PlainPath, Damages, LeaderEpochFileCache and LogConfig.
cdef Field PLAIN_EPOCH, PLAIN_KEYED_EPOCH, PLAIN_LATEST_MS, PLAIN_MAX_BYTES
cdef Field DAMAGES_EMPTY, EPOCH_ENTRIES, CONFIG_MIN_ISR
# Of its AppendQueue.
cdef Field QUEUE_LOG, QUEUE_DISK, QUEUE_LANE, QUEUE_IN_FLIGHT, QUEUE_NOTED
cdef Field QUEUE_WAITING, QUEUE_RETURNED, QUEUE_ASIDE, QUEUE_PUBLISHING
# Of a PartitionState.
cdef Field STATE_ISR, STATE_MAXIMAL_ISR
