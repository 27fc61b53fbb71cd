"""Exceptions that other threads raise in this one, held back while it must not be interrupted.

PyThreadState_SetAsyncExc sets an exception in the first thread state that it finds of a thread, and the thread raises
it between two of its instructions. While `hold` lasts, a second state of the thread lies in front of the one that it
runs with: what others raise is set there. `release` takes that state away and sets the exception anew, in the
thread's own. Signals are another matter: see runtime/interrupts.py.

Thread rule: `hold` and `release` are one thread's; the GIL is held. What is held has to be released before the thread
ends. In a forked child the interpreter has freed the states of the parent's other threads: nothing is released there.
"""

cdef extern from "Python.h":
    ctypedef struct PyObject
    ctypedef struct PyInterpreterState
    ctypedef struct PyThreadState:
        unsigned long thread_id
        PyObject *async_exc

cdef class HeldExceptions:
    cdef PyThreadState *_state
    cdef int _generation
