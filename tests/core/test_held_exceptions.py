"""Exceptions of other threads that wait."""

import ctypes
import threading
from collections.abc import Callable

from kreplica._core.held_exceptions import HeldExceptions

set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
set_exception.argtypes = (ctypes.c_ulong, ctypes.py_object)


class Raised(Exception):
    """By another thread."""


def raise_here() -> None:
    """Let another thread raise it in this one."""
    ident = threading.get_ident()
    thread = threading.Thread(target=lambda: set_exception(ident, Raised))
    thread.start()
    thread.join()


def work() -> int:
    return sum(number for number in range(1000))


def expect(act: Callable[[], object]) -> None:
    """The exception comes once that is called, between two instructions."""
    came = False
    try:
        act()
        work()
    except Raised:
        came = True
    assert came


def test_an_exception_waits_until_it_is_released() -> None:
    held = HeldExceptions()
    held.hold()
    raise_here()
    assert work() == 499_500
    expect(held.release)
    assert work() == 499_500


def test_nothing_happens_where_none_came() -> None:
    held = HeldExceptions()
    for _ in range(3):
        held.hold()
        work()
        held.release()
        held.release()
    expect(raise_here)


def test_what_is_held_stays_held() -> None:
    held = HeldExceptions()
    held.hold()
    held.hold()
    raise_here()
    held.hold()
    work()
    expect(held.release)


def test_each_thread_holds_its_own() -> None:
    held = HeldExceptions()
    held.hold()
    found: list[type[BaseException]] = []

    def other() -> None:
        try:
            raise_here()
            work()
        except Raised as error:
            found.append(type(error))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    held.release()
    work()
    assert found == [Raised]
