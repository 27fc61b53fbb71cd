"""LocalLog: segments' files."""

from kreplica.common.config import LogConfig
from kreplica.log.local_log import LocalLog
from kreplica.runtime.storage import FileStorage


def ages(directory, **settings):
    log = LocalLog(str(directory), LogConfig(**settings), FileStorage())
    rolled = [log.roll(base).max_age_ms for base in range(40)]
    log.close()
    return rolled


def test_jitter_spreads_the_rolls_and_is_the_same_for_the_same_segment(tmp_path):
    (tmp_path / "t-0").mkdir()
    spread = ages(tmp_path / "t-0", segment_ms=10_000, segment_jitter_ms=1_000)
    assert all(9_000 <= age <= 10_000 for age in spread)
    assert len(set(spread)) > 20
    assert ages(tmp_path / "t-0", segment_ms=10_000, segment_jitter_ms=1_000) == spread


def test_without_jitter_every_segment_may_be_as_old_as_segment_ms(tmp_path):
    (tmp_path / "t-0").mkdir()
    assert set(ages(tmp_path / "t-0", segment_ms=10_000)) == {10_000}


def test_jitter_never_exceeds_the_age_itself(tmp_path):
    (tmp_path / "t-0").mkdir()
    assert all(age >= 0 for age in ages(tmp_path / "t-0", segment_ms=5, segment_jitter_ms=1_000))
