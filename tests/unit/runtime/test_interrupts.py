"""Handlers of signals that wait until the main thread has done its share of a node's work."""

import signal

import pytest

from kreplica.runtime.interrupts import HeldSignals

NUMBERS = (signal.SIGALRM, signal.SIGUSR1, signal.SIGINT)


@pytest.fixture
def called():
    """The numbers of signals whose handlers were called; each raises TimeoutError."""
    numbers = []

    def handle(number, _frame):
        numbers.append(number)
        raise TimeoutError(number)

    former = {number: signal.signal(number, handle) for number in NUMBERS}
    yield numbers
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_handler_waits_for_the_release(called, number):
    before, held = [signal.getsignal(each) for each in NUMBERS], HeldSignals()
    held.hold()
    for _ in range(3):
        signal.raise_signal(number)
    assert called == []
    with pytest.raises(TimeoutError):
        held.release()
    assert called == [number]
    assert [signal.getsignal(each) for each in NUMBERS] == before
    held.hold()
    held.release()
    assert called == [number]


def test_each_handler_is_called_though_the_one_before_it_raises(called):
    held = HeldSignals()
    held.hold()
    for number in NUMBERS:
        signal.raise_signal(number)
    with pytest.raises(TimeoutError):
        held.release()
    assert called == list(NUMBERS)
