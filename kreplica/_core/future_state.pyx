"""The native part of a Future, and of what depends on others; contract and thread rule: future_state.pxd."""

from concurrent.futures import CancelledError, InvalidStateError

# The states have concurrent.futures' names, because its `wait` compares them.
PENDING = "PENDING"
CANCELLED = "CANCELLED_AND_NOTIFIED"
FINISHED = "FINISHED"

cdef object pending_state = PENDING
cdef object cancelled_state = CANCELLED
cdef object finished_state = FINISHED


cdef class FutureState:
    """The state of a future; a subclass overrides `_wait(timeout)`, `_wake(callbacks)` and `_callback_failed()`.

    `_wait`: waits until it is done. `_wake`: notifies the threads that wait, and calls the callbacks.
    """

    def __cinit__(self, *_arguments, **_options):
        self._state = pending_state

    def __init__(self, prepared=None):
        self._result = prepared

    # ---- the owner -------------------------------------------------------------------------------------------

    def prepare(self, result):
        """Set the result with which `finish` resolves."""
        self._result = result

    def finish(self):
        """Resolve with the prepared result. Returns False if the future was cancelled."""
        return self._resolve(finished_state)

    def set_result(self, result):
        """Resolve with `result`. Raises InvalidStateError if already resolved; does nothing if cancelled."""
        self.to_result(result)

    def set_exception(self, exception):
        """Resolve with an error. Raises InvalidStateError if already resolved; does nothing if cancelled."""
        self.to_error(exception)

    def set_running_or_notify_cancel(self):
        return self._state is pending_state

    cdef int to_result(self, object result) except -1:
        if self._state is finished_state:
            raise InvalidStateError(f"{self._state}: {self!r}")
        self._result = result
        self._resolve(finished_state)
        return 0

    cdef int to_error(self, object error) except -1:
        if self._state is finished_state:
            raise InvalidStateError(f"{self._state}: {self!r}")
        self._exception = error
        self._resolve(finished_state)
        return 0

    cpdef bint _resolve(self, object state) except -1:
        """Resolve to `state`, notify waiting threads and run the callbacks; return False if not pending."""
        cdef list callbacks
        if self._state is not pending_state:
            return False
        self._state = state
        callbacks, self._callbacks = self._callbacks, None
        if callbacks is not None or self._changed is not None:
            self._notify(callbacks)
        return True

    cpdef object _notify(self, list callbacks):
        """Notify waiting threads and run the callbacks of a future that was just resolved."""
        if self._changed is not None:
            self._wake(callbacks)
        elif callbacks is not None:
            for callback in callbacks:
                self.call(callback)

    cdef int call(self, object callback) except -1:
        try:
            callback(self)
        except Exception:
            self._callback_failed()
        return 0

    # ---- the waiting side ------------------------------------------------------------------------------------

    def cancel(self):
        """Stop waiting for the result; the operation itself continues. Returns False if already resolved."""
        return self._resolve(cancelled_state) or self._state is cancelled_state

    def cancelled(self):
        return self._state is cancelled_state

    def running(self):
        return False

    def done(self):
        return self._state is not pending_state

    def result(self, timeout=None):
        """Return the result or raise the error; TimeoutError after `timeout` seconds, CancelledError."""
        self.is_read = True
        if self._state is pending_state:
            self._wait(timeout)
        if self._state is cancelled_state:
            raise CancelledError
        if self._exception is not None:
            raise self._exception
        return self._result

    def exception(self, timeout=None):
        """Return the error, or None. Raises TimeoutError after `timeout` seconds, CancelledError."""
        self.is_read = True
        if self._state is pending_state:
            self._wait(timeout)
        if self._state is cancelled_state:
            raise CancelledError
        return self._exception

    def add_done_callback(self, fn):
        """Call `fn(self)` in the thread that resolves the future; at once if it is resolved."""
        cdef list made
        if self._callbacks is None and self._state is pending_state:
            # Making a list may run a collection, and with it other code: what follows checks again.
            made = []
            if self._callbacks is None:
                self._callbacks = made
        if self._state is pending_state:
            self._callbacks.append(fn)
        else:
            self.call(fn)


def finish_states(futures not None):
    """Resolve the pending ones of `futures` with their prepared results; return those to notify, with their callbacks.

    The caller calls `_notify` of each.
    """
    cdef FutureState future
    cdef list heard = []
    for future in futures:
        if future._state is pending_state:
            future._state = finished_state
            if future._callbacks is not None or future._changed is not None:
                heard.append((future, future._callbacks))
                future._callbacks = None
    return heard


# A subclass may override `result`, `exception` and `set_result`, so what depends on others calls them as Python does.


def pass_on(answer not None, done not None):
    """Resolve `answer` with the result or error of `done`."""
    error = done.exception()
    if error is None:
        answer.set_result(done.result())
    else:
        answer.set_exception(error)


cdef class Then:
    """The callback that resolves `answer` with `make(result)`, or with `refuse(error)` if it is given; see `then`."""

    cdef FutureState answer
    cdef object make
    cdef object refuse

    def __init__(self, FutureState answer not None, make not None, refuse):
        self.answer = answer
        self.make = make
        self.refuse = refuse

    def __call__(self, done):
        try:
            error = CancelledError() if done.cancelled() else done.exception()
            if error is None:
                made = self.make(done.result())
            elif self.refuse is None:
                raise error
            else:
                made = self.refuse(error)
        except Exception as failure:
            self.answer.to_error(failure)
        else:
            self.answer.to_result(made)


cdef class Gathering:
    """The callback of each of `parts` that resolves `whole`; see `all_of`."""

    cdef list parts
    cdef FutureState whole
    cdef Py_ssize_t left

    def __init__(self, list parts not None, FutureState whole not None):
        self.parts = parts
        self.whole = whole
        self.left = len(parts)

    def __call__(self, _done):
        cdef list parts
        self.left -= 1
        if self.left:
            return
        parts, self.parts = self.parts, None
        for part in parts:
            error = part.exception()
            if error is not None:
                self.whole.to_error(error)
                return
        self.whole.to_result([part.result() for part in parts])
