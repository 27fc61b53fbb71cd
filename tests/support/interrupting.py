"""Raise an exception from outside at a chosen instruction, where CPython itself would deliver it.

A signal's handler and PyThreadState_SetAsyncExc raise between two instructions of Python code: at the start
of a function, at a jump backwards, after a call. `interrupted` counts the instructions of a call, and sets
the exception at the n-th; CPython raises it at the next opportunity. So a sweep covers exactly the places
where a program can be interrupted. (A trace function that raises would also hit the end of a `with` block
between its last call and that of `__exit__`, where CPython never raises.)
"""

import ctypes
import itertools
import sys
import threading
from collections.abc import Callable

_set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
_set_exception.argtypes = (ctypes.c_ulong, ctypes.py_object)


_raise_signal = ctypes.PyDLL(None)["raise"]


def interrupted(
    call: Callable[[], object], instruction: int, kind: type[BaseException], number: int | None = None
) -> bool:
    """Run `call`, and raise `kind` after its n-th instruction; returns False if it has fewer instructions.

    With `number`, that signal is sent there, and its handler raises. The exception itself does not leave this
    function; other exceptions of `call` do.
    """
    # Two calls in C without an instruction in between: end the tracing, and set the exception.
    if number is None:
        blow = map(_set_exception, (threading.get_ident(),), (kind,))
    else:
        blow = map(_raise_signal, (number,))
    strike = itertools.chain(map(sys.settrace, (None,)), blow)
    left = instruction

    def trace(frame, event, _):
        nonlocal left
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode":
            left -= 1
            if left == 0:
                [_, _] = strike
        return trace

    try:
        try:
            sys.settrace(trace)
            call()
        finally:
            sys.settrace(None)
    except kind:
        assert left <= 0
        return True
    return left <= 0
