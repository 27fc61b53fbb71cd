"""Fast reading of attributes in __slots__; purpose and thread rule: fields.pxd."""

cimport cython
from cpython.object cimport PyObject

from types import MemberDescriptorType

cdef extern from "structmember.h":
    int T_OBJECT_EX
    ctypedef struct PyMemberDef:
        int type
        Py_ssize_t offset

cdef extern from "Python.h":
    ctypedef struct PyMemberDescrObject:
        PyMemberDef *d_member


@cython.final
cdef class Field:
    """Reads the attribute `name`."""

    def __init__(self, str name not None):
        self.name = name

    def __call__(self, instance):
        """Return the attribute of `instance`. Raises AttributeError."""
        return self.of(instance)

    cdef object look_up(self, object instance):
        cdef object owner = type(instance)
        cdef object descriptor = getattr(owner, self.name, None)
        cdef PyMemberDef *member
        if type(descriptor) is MemberDescriptorType:
            member = (<PyMemberDescrObject *> <PyObject *> descriptor).d_member
            if member.type == T_OBJECT_EX:
                self.owner, self.offset = owner, member.offset
        return getattr(instance, self.name)


LOG_STATE, LOG_LOCK, LOG_ACTIVE = Field("state"), Field("offsets_lock"), Field("active")
LOG_DURABLE, LOG_PLAIN, LOG_CONFIG = Field("durable"), Field("plain"), Field("config")
LOG_EPOCHS, LOG_CLOSED, LOG_STOPPED_AT = Field("epochs"), Field("closed"), Field("stopped_at")
LOG_DAMAGES, LOG_LEADER_EPOCH, LOG_PRODUCERS = Field("damages"), Field("leader_epoch"), Field("producers")
PLAIN_EPOCH, PLAIN_KEYED_EPOCH = Field("epoch"), Field("keyed_epoch")
PLAIN_LATEST_MS, PLAIN_MAX_BYTES = Field("latest_ms"), Field("max_bytes")
DAMAGES_EMPTY, EPOCH_ENTRIES, CONFIG_MIN_ISR = Field("is_empty"), Field("entries"), Field("min_insync_replicas")
QUEUE_LOG, QUEUE_DISK, QUEUE_LANE = Field("log"), Field("disk"), Field("lane")
QUEUE_IN_FLIGHT, QUEUE_NOTED, QUEUE_WAITING = Field("in_flight"), Field("noted"), Field("waiting")
QUEUE_RETURNED, QUEUE_ASIDE, QUEUE_PUBLISHING = Field("returned"), Field("aside"), Field("is_publishing")
STATE_ISR, STATE_MAXIMAL_ISR = Field("isr"), Field("maximal_isr")
