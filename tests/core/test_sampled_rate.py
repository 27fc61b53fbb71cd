"""The rate of what a client uses, by worked examples and against a slow model."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica._core.sampled_rate import LONGEST_THROTTLE_MS, SampledRate, rounded_ms

SAMPLES, WINDOW_MS = 11, 1_000


def rate() -> SampledRate:
    return SampledRate(SAMPLES, WINDOW_MS)


# ---- worked examples -------------------------------------------------------------------------------------


def test_the_first_request_of_a_silent_client_is_measured_over_ten_seconds() -> None:
    made = rate()
    made.record(20_000, 5)
    assert made.measure(5) == (2_000.0, 10_000)
    assert made.throttle_ms(1_000, 5) == 10_000


def test_a_rate_of_exactly_the_quota_is_not_throttled() -> None:
    made = rate()
    made.record(10_000, 0)
    assert made.throttle_ms(1_000, 0) == 0
    made.record(1, 0)
    # (1000.1 - 1000) / 1000 x 10,000 ms
    assert made.throttle_ms(1_000, 0) == 1


def test_what_is_taken_back_does_not_count() -> None:
    made = rate()
    made.record(20_000, 0)
    made.record(-20_000, 0)
    assert made.measure(0)[0] == 0


def test_after_the_throttle_time_the_rate_is_the_quota() -> None:
    made = rate()
    made.record(20_000, 0)
    # One sample of 10 s, and ten full windows: the assumed ones are replaced by real time.
    assert made.measure(10_000) == (2_000.0, 10_000)
    # A slot without a value for 11 s no longer counts.
    assert made.measure(11_000) == (0.0, 10_000)


def test_a_slot_that_is_full_is_followed_by_another() -> None:
    made = rate()
    made.record(100, 0)
    made.record(100, 999)
    made.record(300, 1_000)
    assert made.measure(1_000) == (50.0, 10_000)
    # The first slot, whose last value came at 999 ms, counts for 11 s.
    assert made.measure(11_998) == (pytest.approx(500 * 1000 / 11_998), 11_998)
    assert made.measure(11_999) == (pytest.approx(300 * 1000 / 10_999), 10_999)


def test_half_a_millisecond_is_rounded_up() -> None:
    made = SampledRate(2, 1_000)
    made.record(2_001, 0)
    assert made.throttle_ms(2_000, 0) == 1


def test_a_throttle_time_has_a_limit() -> None:
    made = rate()
    made.record(1e30, 0)
    assert made.throttle_ms(1, 0) == rounded_ms(1e300) == LONGEST_THROTTLE_MS


def test_windows_of_years_are_no_overflow() -> None:
    made = SampledRate((1 << 31) - 1, ((1 << 31) - 1) * 1_000)
    made.record(1 << 40, 0)
    assert made.throttle_ms(1, 1 << 40) == 0
    assert made.full_ms > 1 << 70


@pytest.mark.parametrize(("samples", "window_ms"), [(0, 1), (1, 0), (-1, 1)])
def test_a_rate_without_windows_is_refused(samples: int, window_ms: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        SampledRate(samples, window_ms)


# ---- against a slow model --------------------------------------------------------------------------------


class SlowRate:
    """All slots there ever were; the newest `samples` + 1 count."""

    def __init__(self, samples: int, window_ms: int) -> None:
        self.samples, self.window_ms = samples, window_ms
        self.slots: list[dict[str, Fraction]] = []

    def record(self, value: int, now: int) -> None:
        if not self.slots or now - self.slots[-1]["start"] >= self.window_ms:
            self.slots.append({"start": Fraction(now), "total": Fraction(0), "last": Fraction(now)})
        self.slots[-1]["total"] += value
        self.slots[-1]["last"] = Fraction(now)

    def measure(self, now: int) -> tuple[Fraction, Fraction]:
        counting = self.slots[-(self.samples + 1) :]
        for slot in counting:
            if now - slot["last"] >= self.samples * self.window_ms:
                slot.update(start=Fraction(now), total=Fraction(0), last=Fraction(now))
        total = sum((slot["total"] for slot in counting), Fraction(0))
        elapsed = now - min((slot["start"] for slot in counting), default=Fraction(now))
        whole = elapsed // self.window_ms
        elapsed = max(elapsed + max(self.samples - 1 - whole, 0) * self.window_ms, Fraction(1))
        return total * 1000 / elapsed, elapsed


STEPS = st.lists(st.tuples(st.integers(0, 4_000), st.integers(-50, 5_000), st.booleans()), max_size=80)


@given(st.integers(1, 5), st.sampled_from([1, 300, 1_000]), STEPS)
def test_a_rate_is_that_of_a_slow_model(
    samples: int, window_ms: int, steps: list[tuple[int, int, bool]]
) -> None:
    made, model, now_ms = SampledRate(samples, window_ms), SlowRate(samples, window_ms), 17
    for pause_ms, value, is_measured in steps:
        now_ms += pause_ms
        made.record(value, now_ms)
        model.record(value, now_ms)
        if is_measured:
            found, elapsed_ms = made.measure(now_ms)
            expected, expected_ms = model.measure(now_ms)
            assert elapsed_ms == expected_ms
            assert found == pytest.approx(float(expected), abs=1e-9)
