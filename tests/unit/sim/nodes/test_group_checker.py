"""What the checker of groups makes of a log that has rotted."""

from __future__ import annotations

from typing import Any

import pytest

from kreplica.common.errors import DamagedLog, InvalidCrc
from kreplica.sim.nodes.group_checker import CommittedEpochs


class RottenLog:
    high_watermark = 3

    def __init__(self, error: Exception) -> None:
        self.error = error

    def read(self, *_: Any, **__: Any) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [InvalidCrc("a bit"), DamagedLog("a range")])
def test_committed_epochs_are_unknown_where_the_log_has_rotted(error: Exception) -> None:
    epochs = CommittedEpochs()
    assert not epochs.read(RottenLog(error))
    assert epochs.offset == 0
