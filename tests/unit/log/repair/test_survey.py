"""Which batches of a damaged segment fit together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kreplica.log.repair.survey import (
    BadRange,
    SegmentSurvey,
    Whole,
    epochs_to_correct,
    fitting,
    relocated,
)

BASE = 100


def dense(counts: list[int], epochs: list[int] | None = None) -> list[Whole]:
    made, offset = [], BASE
    for n, count in enumerate(counts):
        epoch = epochs[n] if epochs else 0
        made.append(Whole(n * 70, 70, offset, offset + count - 1, epoch, count))
        offset += count
    return made


def moved(whole: Whole, base_offset: int) -> Whole:
    return whole._replace(base_offset=base_offset, last_offset=base_offset + whole.offset_count - 1)


counts = st.lists(st.integers(1, 9), min_size=2, max_size=12)


@given(counts, st.data())
def test_the_one_batch_whose_offset_was_changed_is_found(sizes: list[int], data: st.DataObject) -> None:
    sound = dense(sizes)
    stop = BASE + sum(sizes)
    at = data.draw(st.integers(0, len(sound) - 1))
    bit = data.draw(st.integers(0, 62))
    lying = list(sound)
    lying[at] = moved(sound[at], sound[at].base_offset ^ 1 << bit)
    good = fitting(lying, BASE, stop, is_known=True)
    assert good == sound[:at] + sound[at + 1 :]
    bad = BadRange(at * 70, at * 70 + 70, sound[at].base_offset, None, "OFFSET_REGRESSION", False)
    found = SegmentSurvey(BASE, 70 * len(sound), good, [bad], [lying[at]])
    assert relocated(found, bad, sound[at].last_offset + 1) == [(lying[at], sound[at].base_offset)]
    assert relocated(found, bad, sound[at].last_offset + 2) == []


@given(counts, st.lists(st.integers(0, 3), max_size=12))
def test_what_compaction_left_fits(sizes: list[int], gaps: list[int]) -> None:
    shifts = [sum(gaps[: n + 1]) for n in range(len(sizes))]
    wholes = [moved(w, w.base_offset + by) for w, by in zip(dense(sizes), shifts, strict=True)]
    assert fitting(wholes, BASE, BASE + 1000, is_known=False) == wholes


def test_nothing_fits_into_a_segment_of_another_name() -> None:
    assert fitting(dense([3, 4, 5]), 1000, 2000, is_known=False) == []


@given(st.lists(st.integers(0, 3), min_size=3, max_size=12).map(sorted), st.data())
def test_an_epoch_that_goes_against_its_neighbours_is_found(epochs: list[int], data: st.DataObject) -> None:
    sound = dense([1] * len(epochs), epochs)
    expected = {whole.base_offset: whole.leader_epoch for whole in sound}
    assert epochs_to_correct(sound, -1, expected) == []
    at = data.draw(st.integers(0, len(sound) - 2))
    wrong = list(sound)
    wrong[at] = sound[at]._replace(leader_epoch=1000)
    assert epochs_to_correct(wrong, -1, expected) == [(wrong[at], sound[at].leader_epoch)]


def test_without_a_checkpoint_the_neighbours_decide() -> None:
    sound = dense([1] * 6, [2, 2, 2, 5, 5, 5])
    for at, epoch, right in ((1, 9, 2), (1, 0, 2), (4, 7, 5), (4, 3, 5)):
        wrong = list(sound)
        wrong[at] = sound[at]._replace(leader_epoch=epoch)
        assert epochs_to_correct(wrong, -1, {}) == [(wrong[at], right)]
