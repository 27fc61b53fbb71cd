"""The arithmetic of a bucket of tokens, by worked examples and against a slow model."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica._core.sampled_rate import SampledRate
from kreplica.common.quota_rate import TokenBucket


def test_a_bucket_of_tokens_does_not_starve_a_client_after_one_large_operation() -> None:
    # KAFKA-10162, Q = 5: five topics of 112 partitions each. The sampled rate would let the first
    # pass and then count all 560 if they came at once.
    sampled = SampledRate(11, 1_000)
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
