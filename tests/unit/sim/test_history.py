"""The history checker: each anomaly is found in a history that has it, and in none that has not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.types import TopicPartition
from kreplica.sim.history import Assign, History, Poll, Polled, Send, Sent, check

AT = TopicPartition("t", 0)


def send(*values, process="p", status="ok"):
    return Send(process, status, [Sent(AT, value, offset) for value, offset in values])


def poll(*records, process="c"):
    return Poll(process, [Polled(AT, offset, value) for offset, value in records])


def names(*operations, final=None, **options):
    history = History(list(operations))
    if final is not None:
        history.final[AT] = [Polled(AT, offset, value) for offset, value in final]
    return [anomaly.name for anomaly in check(history, **options)]


def test_a_history_without_fault():
    assert (
        names(
            send(("a", 0), ("b", 1)),
            send(("c", None), status="info"),
            send(("d", None), status="fail"),
            poll((0, "a"), (1, "b")),
            poll((2, "c")),
            final=[(0, "a"), (1, "b"), (2, "c")],
        )
        == []
    )


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([poll((0, "a")), poll((0, "b"), process="d")], ["inconsistent-offsets"]),
        ([send(("a", 0)), poll((0, "b"))], ["inconsistent-offsets"]),
        ([send(("a", None), status="fail"), poll((0, "a"))], ["G1a"]),
        ([send(("a", 3)), poll((2, "b"), (4, "c"))], ["lost-write", "poll-skip"]),
        ([poll((0, "a"), (1, "a"))], ["duplicate"]),
        ([send(("a", 0)), poll((1, "a"))], ["duplicate"]),
        ([poll((0, "a"), (2, "c")), poll((1, "b"), process="d")], ["poll-skip"]),
        ([poll((1, "b"), (0, "a"))], ["nonmonotonic-poll"]),
        ([poll((1, "b")), poll((0, "a"))], ["nonmonotonic-poll"]),
        ([send(("b", 1), ("a", 0))], ["nonmonotonic-send"]),
        ([send(("b", 1)), send(("a", 0))], ["nonmonotonic-send"]),
    ],
)
def test_each_anomaly_is_found(operations, expected):
    assert names(*operations) == expected


def test_what_was_acknowledged_must_be_there_at_the_end():
    assert names(send(("a", 0)), final=[]) == ["unseen"]
    assert names(send(("a", None)), final=[]) == ["unseen"]
    assert names(send(("a", None), status="info"), final=[]) == []


def test_what_was_read_must_be_there_at_the_end():
    assert names(poll((0, "a")), final=[]) == ["unseen"]


def test_without_a_final_read_nothing_is_unseen():
    assert names(send(("a", 0))) == []


def test_what_was_deleted_on_purpose_is_not_missed():
    operations = [send(("a", 0), ("b", 1)), poll((1, "b"))]
    assert names(*operations, final=[(1, "b")]) == ["lost-write", "unseen"]
    assert names(*operations, final=[(1, "b")], log_starts={AT: 1}) == []


def test_plain_producers_may_duplicate():
    assert names(poll((0, "a"), (1, "a")), may_duplicate=lambda _: True) == []


def test_an_assignment_begins_anew():
    assert names(poll((5, "b")), Assign("c"), poll((0, "a"))) == []
    assert names(poll((5, "b")), Assign("c", [TopicPartition("other", 0)]), poll((0, "a"))) == [
        "nonmonotonic-poll"
    ]


def test_control_records_between_two_are_no_skip():
    assert names(poll((0, "a"), (7, "b"))) == []


@given(st.data())
def test_a_log_that_keeps_its_promises_has_no_anomaly(data):
    history = History()
    log = []
    positions = {}
    for number in range(data.draw(st.integers(0, 30))):
        kind = data.draw(st.sampled_from(["send", "poll", "assign"]))
        process = data.draw(st.integers(0, 2))
        if kind == "send":
            status = data.draw(st.sampled_from(["ok", "info", "fail"]))
            happens = status == "ok" or (status == "info" and data.draw(st.booleans()))
            offset = len(log) if happens else None
            if happens:
                log.append(number)
            history.add(Send(process, status, [Sent(AT, number, offset if status == "ok" else None)]))
        elif kind == "poll":
            start = positions.get(process, 0)
            end = data.draw(st.integers(start, len(log)))
            history.add(Poll(process, [Polled(AT, at, log[at]) for at in range(start, end)]))
            positions[process] = end
        else:
            history.add(Assign(process))
            positions[process] = data.draw(st.integers(0, len(log)))
    history.final[AT] = [Polled(AT, offset, value) for offset, value in enumerate(log)]
    assert check(history) == []
    if log:
        lost = data.draw(st.integers(0, len(log) - 1))
        acked = {
            sent.value
            for each in history.operations
            if isinstance(each, Send) and each.status == "ok"
            for sent in each.values
        }
        del history.final[AT][lost]
        if log[lost] in acked:
            assert "unseen" in {anomaly.name for anomaly in check(history)}


def test_what_was_read_and_deleted_is_not_missed_where_its_producer_has_no_offset():
    at = TopicPartition("deleted", 0)
    sent = Send("p", "ok", [Sent(at, "a", None)])
    read = Poll("c", [Polled(at, 2, "a")])
    assert check(History([sent, read], {at: []}), log_starts={at: 3}) == []
    assert {each.name for each in check(History([sent, read], {at: []}), log_starts={at: 2})} == {"unseen"}


def test_earlier_records_that_were_never_read_may_be_among_the_deleted_ones():
    assert names(send(("a", None)), final=[(1, "b")], log_starts={AT: 1}) == []
    assert names(send(("a", None)), final=[(1, "b")], log_starts={AT: 0}) == ["unseen"]
