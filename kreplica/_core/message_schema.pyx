"""MessageSchema: the fields of one structure of Kafka's protocol, for the reader and the writer.

It knows only the entity class, whose fields are slots, and not where the class was declared. A structure within
another one has its own schema. Immutable; any thread may use it.
"""

from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free

from types import MemberDescriptorType

cdef extern from "Python.h":
    ctypedef struct _Type "PyTypeObject":
        descrgetfunc tp_descr_get
        descrsetfunc tp_descr_set
        object (*tp_alloc)(PyTypeObject *, Py_ssize_t)

KINDS = {
    "int8": INT8, "int16": INT16, "int32": INT32, "int64": INT64, "uint8": UINT8, "uint16": UINT16,
    "uint32": UINT32, "uint64": UINT64, "float64": FLOAT64, "bool": BOOL, "uuid": UUID,
    "error_code": ERROR_CODE, "timedelta_i32": DURATION32, "timedelta_i64": DURATION64,
    "datetime_i64": MOMENT, "string": STRING, "bytes": BYTES, "records": RECORDS, "structure": STRUCTURE,
}
# A reader records the tags it met in a 64-bit mask.
MOST_TAGS = 64


cdef class MessageSchema:
    """The fields of one structure.

    `entity`: a class whose fields are slots. `fields`, in the order of the message: (name, kind, is_array,
    is_nullable, tag or None, default, schema or None, decode or None, encode or None). `absent`: (name, default) of
    the entity's fields that this version lacks; `refuse(name)` returns the error for writing another value there.
    `make_unknown(tag, data)` makes the items of the slot `unknown_tagged_fields`; without it, unknown tags are
    skipped. Raises TypeError for an entity without such a slot, ValueError for an unknown kind or more than 64 tags.
    """

    def __cinit__(
        self,
        entity not None,
        bint is_flexible,
        list fields not None,
        absent not None=(),
        refuse=None,
        make_unknown=None,
    ):
        cdef list tagged = sorted([each for each in fields if each[4] is not None], key=lambda each: each[4])
        cdef list plain = [each for each in fields if each[4] is None]
        cdef int index
        if not isinstance(entity, type):
            raise TypeError(f"{entity!r} is no class")
        if len(tagged) > MOST_TAGS:
            raise ValueError(f"{entity!r} has {len(tagged)} tagged fields: at most {MOST_TAGS} are supported")
        self.entity = entity
        self.is_flexible = is_flexible
        self._kept = []
        self.plain = <Field *>calloc(len(plain) + 1, sizeof(Field))
        self.tagged = <Field *>calloc(len(tagged) + 1, sizeof(Field))
        if self.plain == NULL or self.tagged == NULL:
            raise MemoryError
        for index in range(len(plain)):
            self._add(&self.plain[index], plain[index])
        self.plain_count = <int>len(plain)
        for index in range(len(tagged)):
            self._add(&self.tagged[index], tagged[index])
        self.tagged_count = <int>len(tagged)
        self.absent = <Field *>calloc(len(absent) + 1, sizeof(Field))
        if self.absent == NULL:
            raise MemoryError
        for index in range(len(absent)):
            self._add_slot(&self.absent[index], absent[index][0], absent[index][1])
        self.absent_count = <int>len(absent)
        self.refuse = refuse
        self.make_unknown = make_unknown
        if make_unknown is not None:
            self._add_slot(&self.unknown, "unknown_tagged_fields", ())

    def __dealloc__(self):
        free(self.plain)
        free(self.tagged)
        free(self.absent)

    cdef int _add(self, Field *field, tuple declared) except -1:
        name, kind, is_array, is_nullable, tag, default, schema, decode, encode = declared
        self._add_slot(field, name, default)
        if kind not in KINDS:
            raise ValueError(f"{self.entity!r}: the kind {kind!r} of {name} is unknown")
        if (kind == "structure") != isinstance(schema, MessageSchema):
            raise TypeError(f"{self.entity!r}: {name} of kind {kind} has the wrong schema {schema!r}")
        self._kept += (schema, decode, encode)
        field.kind = KINDS[kind]
        field.is_array = is_array
        field.is_nullable = is_nullable
        field.tag = 0 if tag is None else <uint32_t>tag
        field.schema = <PyObject *>schema
        field.decode = NULL if decode is None else <PyObject *>decode
        field.encode = NULL if encode is None else <PyObject *>encode
        return 0

    cdef int _add_slot(self, Field *field, name, default) except -1:
        slot = getattr(self.entity, name)
        if type(slot) is not MemberDescriptorType:
            raise TypeError(f"{self.entity!r} does not hold {name} in a slot")
        self._kept += (slot, default)
        field.slot = <PyObject *>slot
        field.set = (<_Type *>MemberDescriptorType).tp_descr_set
        field.get = (<_Type *>MemberDescriptorType).tp_descr_get
        field.default = <PyObject *>default
        return 0

    cdef object made(self):
        # Return a new entity with no slot set.
        return (<_Type *>self.entity).tp_alloc(<PyTypeObject *>self.entity, 0)
