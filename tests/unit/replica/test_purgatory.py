"""What waits is completed by the mark that covers it, or by its deadline."""

from __future__ import annotations

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
