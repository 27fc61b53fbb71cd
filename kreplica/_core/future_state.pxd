# FutureState: the state of a Future, and its way from pending to done, without Python.
#
#     pending --set_result, set_exception, finish--> finished      the callbacks are called once, in their order,
#         \-----cancel-----------------------------> cancelled     by the thread that resolves
#
# The Python part, kreplica/common/future.py, lets threads wait.
#
# Ownership: the owner resolves; callbacks belong to the future until it is done. Thread rule: any thread may call
# anything. The GIL guards the transition: between a check of `_state` and the change that depends on it nothing
# allocates an object that the garbage collector follows, so no other code runs. Nothing is called before the change.


cdef class FutureState:
    # As concurrent.futures names them.
    cdef public object _state
    cdef public object _result
    cdef public object _exception
    cdef public list _callbacks
    cdef public object _changed     # the condition on which threads wait; None before the first one
    cdef public list _seen_by       # the waiters of concurrent.futures.wait and as_completed
    cdef public bint is_read

    cpdef bint _resolve(self, object state) except -1
    cpdef object _notify(self, list callbacks)
    cdef int call(self, object callback) except -1
    cdef int to_error(self, object error) except -1
    cdef int to_result(self, object result) except -1
