"""The construction of message objects from keyword arguments, without Python.

Messages are immutable and their fields are slots. So a constructor in Python would need a call for each field, past the
`__setattr__` that refuses changes. Stateless but for what a class never changes; any thread may call.
"""

from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject, PyTypeObject

from types import MemberDescriptorType

cdef extern from "Python.h":
    ctypedef int (*descrsetfunc)(PyObject *, PyObject *, PyObject *) except -1
    ctypedef struct _Type "PyTypeObject":
        descrsetfunc tp_descr_set
        object (*tp_alloc)(PyTypeObject *, Py_ssize_t)


cdef class MessageMaker:
    """Makes messages of the class `kind` from keyword arguments.

    `defaults`: the value of each field that is not given, by its name; `missing` marks those that must be given.
    Raises TypeError for a class whose fields are no slots, and for missing and unknown arguments.
    """

    def __cinit__(self, kind not None, dict defaults not None, missing not None):
        if not isinstance(kind, type):
            raise TypeError(f"{kind!r} is no class")
        self.kind = kind
        self.missing = missing
        self.names = tuple(defaults)
        self.defaults = tuple(defaults.values())
        self.slots = tuple([getattr(kind, name) for name in defaults])
        for name, slot in zip(self.names, self.slots):
            if type(slot) is not MemberDescriptorType:
                raise TypeError(f"{kind!r} does not hold {name} in a slot")

    def __call__(self, **values):
        return self.make(values)

    cdef object make(self, dict values):
        cdef descrsetfunc set = (<_Type *> MemberDescriptorType).tp_descr_set
        cdef object made = (<_Type *> self.kind).tp_alloc(<PyTypeObject *> self.kind, 0)
        cdef Py_ssize_t left = len(values)
        cdef Py_ssize_t index
        cdef PyObject *value
        for index in range(len(self.names)):
            value = PyDict_GetItemWithError(values, self.names[index])
            if value != NULL:
                left -= 1
            else:
                value = <PyObject *> self.defaults[index]
                if value == <PyObject *> self.missing:
                    raise TypeError(f"{self.kind.__name__}() needs the argument {self.names[index]!r}")
            set(<PyObject *> self.slots[index], <PyObject *> made, value)
        if left:
            unknown = [name for name in values if name not in self.names]
            raise TypeError(f"{self.kind.__name__}() has no argument {unknown[0]!r}")
        return made


cdef class MadeByMaker(type):
    """A class of classes: a call of one of its classes is a call of that class's MessageMaker, `_make`.

    A subclass overrides `_new_maker()`, which makes it when it is first needed.
    """

    def __call__(cls, **values):
        cdef object maker = cls._make
        if maker is None:
            maker = cls._new_maker()
        return (<MessageMaker?> maker).make(values)
