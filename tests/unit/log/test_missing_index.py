"""An index that is gone is made anew, also behind a clean close."""

import pytest

from kreplica import Log


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_missing_index_is_rebuilt(tmp_path, suffix, which):
    path = tmp_path / "t-0"
    with Log.open(path, segment_bytes=20_000) as log:
        for number in range(100):
            log.append([b"%03d" % number + bytes(600)])
    victim = sorted(path.glob("*" + suffix))[which]
    before = victim.read_bytes()
    assert len(before) > 0
    victim.unlink()
    with Log.open(path, segment_bytes=20_000) as log:
        assert log.damage is None
        assert [record.value[:3] for record in log.read()] == [b"%03d" % n for n in range(100)]
    assert victim.read_bytes() == before
