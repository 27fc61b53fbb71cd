cdef class MessageMaker:
    cdef object kind
    cdef tuple names
    cdef tuple slots
    cdef tuple defaults
    cdef object missing

    cdef object make(self, dict values)
