"""What tests with Spark share: the session of this process, and the readers that each read is tested with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.support.spark_session import READERS, spark_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest) -> dict[str, str]:
    """The options that choose one of the readers."""
    return READERS[request.param]
