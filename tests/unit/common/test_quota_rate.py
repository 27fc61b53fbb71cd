"""The arithmetic of quotas, by worked examples and against a slow model."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.quota_rate import LONGEST_THROTTLE_MS, SampledRate, TokenBucket

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
    assert made.throttle_ms(1, 0) == LONGEST_THROTTLE_MS


def test_a_bucket_of_tokens_does_not_starve_a_client_after_one_large_operation() -> None:
    # KAFKA-10162, Q = 5: five topics of 112 partitions each. The sampled rate would let the first
    # pass and then count all 560 if they came at once.
    sampled = rate()
    sampled.record(560, 0)
    assert sampled.throttle_ms(5, 0) == 102_000
    bucket = TokenBucket(11, 5, 0)
    assert bucket.refill(5, 0) == 55
    bucket.take(112)
    assert bucket.throttle_ms(5) == 11_400
    bucket.refill(5, 11_399)
    assert bucket.throttle_ms(5) == 1
    bucket.refill(5, 11_400)
    assert bucket.throttle_ms(5) == 0


def test_a_bucket_of_tokens_is_never_fuller_than_its_burst() -> None:
    bucket = TokenBucket(11, 2, 0)
    assert bucket.refill(2, 100_000) == 22
    bucket.take(22)
    assert bucket.throttle_ms(2) == 0
    # A smaller quota takes effect at once.
    assert bucket.refill(1, 200_000) == 11


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


@given(st.lists(st.tuples(st.integers(0, 30_000), st.integers(1, 300)), max_size=40))
def test_tokens_are_conserved(steps: list[tuple[int, int]]) -> None:
    bucket, now_ms, tokens = TokenBucket(11, 4, 0), 0, Fraction(44)
    for pause_ms, count in steps:
        now_ms += pause_ms
        tokens = min(tokens + Fraction(pause_ms * 4, 1000), Fraction(44))
        bucket.refill(4, now_ms)
        if bucket.throttle_ms(4) == 0:
            bucket.take(count)
            tokens -= count
        assert bucket.tokens == pytest.approx(float(tokens), abs=1e-6)
