"""What waits is completed by the mark that covers it, or by its deadline."""

from __future__ import annotations

import pytest

from kreplica._core.purgatory import Watermark
from kreplica.replica.purgatory import DelayedOperationPurgatory
from tests.support.virtual import VirtualMachine


def test_an_operation_ends_at_its_deadline_and_not_before() -> None:
    machine, expired = VirtualMachine(), []
    purgatory = DelayedOperationPurgatory("test", machine.clock, machine.loop, expired.extend)
    purgatory.watch(1, 10, 500, "late")
    purgatory.watch(1, 10, 100, "early")
    machine.pass_time(99)
    assert expired == []
    machine.pass_time(1)
    assert expired == ["early"]
    machine.pass_time(400)
    assert expired == ["early", "late"]
    assert purgatory.delayed == 0


@pytest.mark.parametrize("timeout_ms", [1 << 62, (1 << 63) - 1, 1 << 70])
def test_a_timeout_beyond_all_clocks_is_none(timeout_ms: int) -> None:
    machine, expired = VirtualMachine(), []
    purgatory = DelayedOperationPurgatory("test", machine.clock, machine.loop, expired.extend)
    assert purgatory.watch(1, 10, timeout_ms, "one")
    assert purgatory.watch_all([(1, 10, None), (2, 10, None)], timeout_ms, "both")
    machine.pass_time(1 << 40)
    assert expired == []
    assert (purgatory.complete_to(1, 10), purgatory.complete_to(2, 10)) == (["one"], ["both"])


def test_a_timeout_below_zero_is_over_at_once() -> None:
    machine, expired = VirtualMachine(), []
    purgatory = DelayedOperationPurgatory("test", machine.clock, machine.loop, expired.extend)
    purgatory.watch(1, 10, -(1 << 70), "late")
    machine.pass_time(1)
    assert expired == ["late"]


def test_what_a_mark_completes_does_not_expire() -> None:
    machine, expired = VirtualMachine(), []
    purgatory = DelayedOperationPurgatory("test", machine.clock, machine.loop, expired.extend)
    for number in range(5):
        purgatory.watch(7, number, 100, number)
    assert purgatory.complete_to(7, 2) == [0, 1, 2]
    machine.pass_time(1000)
    assert expired == [3, 4]


def test_a_mark_that_is_there_already_or_closed_needs_no_wait() -> None:
    machine = VirtualMachine()
    purgatory = DelayedOperationPurgatory("test", machine.clock, machine.loop, lambda _: None)
    mark = Watermark(5)
    assert not purgatory.watch(1, 5, 100, "a", mark)
    assert purgatory.watch(1, 6, 100, "b", mark)
    mark.close()
    assert not purgatory.watch(1, 6, 100, "c", mark)
    assert not purgatory.watch_all([(1, 5, mark), (2, 0, Watermark(0))], 100, "d")


def test_after_the_end_no_alarm_goes_off() -> None:
    machine, expired = VirtualMachine(), []
    purgatory = DelayedOperationPurgatory("test", machine.clock, machine.loop, expired.extend)
    purgatory.watch(1, 1, 100, "a")
    assert purgatory.shutdown() == ["a"]
    machine.pass_time(1000)
    assert expired == []
