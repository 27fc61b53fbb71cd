"""Exceptions that other threads raise in this one; contract and thread rule: held_exceptions.pxd."""

from kreplica._core.region cimport kr_generation

cdef extern from "Python.h":
    PyThreadState *PyThreadState_Get()
    PyInterpreterState *PyThreadState_GetInterpreter(PyThreadState *state)
    PyThreadState *PyThreadState_New(PyInterpreterState *interpreter)
    void PyThreadState_Clear(PyThreadState *state)
    void PyThreadState_Delete(PyThreadState *state)
    int PyThreadState_SetAsyncExc(unsigned long thread, PyObject *exception)
    void Py_XINCREF(PyObject *object)
    void Py_XDECREF(PyObject *object)


cdef class HeldExceptions:
    """From `hold` on, exceptions that other threads raise in this one wait for `release`."""

    def hold(self):
        """Hold exceptions back from now on; does nothing if they are held already. Raises MemoryError."""
        cdef PyThreadState *own = PyThreadState_Get()
        if self._state != NULL:
            return
        self._state = PyThreadState_New(PyThreadState_GetInterpreter(own))
        if self._state == NULL:
            raise MemoryError
        self._generation = kr_generation()

    def release(self):
        """Raise the last exception that was held back, if any, at the next instruction; hold no more."""
        cdef PyThreadState *state = self._state
        cdef PyObject *came
        cdef unsigned long thread
        if state == NULL or self._generation != kr_generation():
            return
        self._state = NULL
        came = state.async_exc
        thread = state.thread_id
        Py_XINCREF(came)
        PyThreadState_Clear(state)
        PyThreadState_Delete(state)
        if came != NULL:
            PyThreadState_SetAsyncExc(thread, came)
            Py_XDECREF(came)
