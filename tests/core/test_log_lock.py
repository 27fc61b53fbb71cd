"""The lock of a log: reentrant; the next thread that takes it repairs what a broken step has left."""

import os
import signal
import threading
from contextlib import suppress

import pytest

from kreplica._core.log_lock import LogLock
from kreplica.common.errors import KreplicaError, StorageFull, UseAfterFork

PATIENCE_SECONDS = 20


def _lock(repair=lambda: None):
    return LogLock(repair, KreplicaError)


def _in_thread(call):
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    return not thread.is_alive()


def test_a_thread_that_holds_it_may_take_it_again_and_others_wait():
    lock, taken = _lock(), threading.Event()

    def take():
        with lock:
            taken.set()

    with lock, lock:
        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        assert not taken.wait(0.05)
    assert taken.wait(PATIENCE_SECONDS)
    thread.join(PATIENCE_SECONDS)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeoutError, AssertionError])
def test_a_broken_step_is_repaired_before_anything_else(kind):
    repairs = []
    lock = _lock(lambda: repairs.append(1))
    with suppress(kind), lock, lock.step, lock, lock.step:
        raise kind
    assert lock.broken
    assert _in_thread(lock.look)
    with lock, lock.step:
        assert repairs == [1]
    assert not lock.broken
    assert repairs == [1]


def test_an_error_of_its_own_ends_a_step_in_order():
    lock = _lock(pytest.fail)
    with suppress(StorageFull), lock, lock.step:
        raise StorageFull("no room")
    with lock:
        assert not lock.broken


def test_a_repair_that_fails_is_tried_again():
    outcomes = iter((StorageFull("no room"), KeyboardInterrupt(), None))

    def repair():
        outcome = next(outcomes)
        if outcome is not None:
            raise outcome

    lock = _lock(repair)
    with suppress(KeyboardInterrupt), lock, lock.step:
        raise KeyboardInterrupt
    for kind in (StorageFull, KeyboardInterrupt):
        with pytest.raises(kind):
            lock.look()
    assert _in_thread(lock.look)
    assert not lock.broken


def test_a_signal_ends_the_wait_for_it():
    lock, held, done = _lock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            done.wait(PATIENCE_SECONDS)

    def end(_signal, _frame):
        raise TimeoutError

    threading.Thread(target=hold, daemon=True).start()
    assert held.wait(PATIENCE_SECONDS)
    former = signal.signal(signal.SIGALRM, end)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(TimeoutError):
            lock.__enter__()
    finally:
        signal.signal(signal.SIGALRM, former)
        done.set()
    assert _in_thread(lock.look)


def test_a_child_of_its_process_cannot_take_it_even_where_it_was_held():
    lock = _lock()
    with lock:
        child = os.fork()
        if child == 0:
            for use in (lock.__enter__, lock.look):
                try:
                    use()
                except UseAfterFork:
                    continue
                os._exit(1)
            os._exit(0 if lock.is_forked else 2)
        assert os.waitpid(child, 0)[1] == 0
    assert not lock.is_forked
