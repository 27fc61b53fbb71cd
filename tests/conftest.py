"""What all tests share: hypothesis takes the time it needs, and in CI the same examples every time.

A machine under load is slow, not wrong, so no example has a deadline. `HYPOTHESIS_PROFILE=search` looks for
new examples, as a run by hand does.

A callback of a future that fails is only logged, so a test in which one does has failed.
"""

import logging
import os
import sys
from functools import cache

import pytest
import typer.testing
from hypothesis import HealthCheck, settings

settings.register_profile(
    "search", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("ci", settings.get_profile("search"), derandomize=True)
# Tests do not use the profiles of the user who runs them.
os.environ["XDG_CONFIG_HOME"] = os.devnull
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "search"))

# CliRunner builds all commands anew for each one that it runs, in 0.1 s; the program builds them once, too.
typer.testing._get_command = cache(typer.testing._get_command)


class _Failures(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record.exc_info[1])


@pytest.fixture(autouse=True)
def _logging_as_before():
    """Take back what a test, or a snippet in it, has set up by kreplica.enable_logging."""
    logger = logging.getLogger("kreplica")
    before = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers, logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


@pytest.fixture(autouse=True)
def _no_callback_fails(request):
    failures, logger = _Failures(), logging.getLogger("kreplica.common.future")
    logger.addHandler(failures)
    yield
    logger.removeHandler(failures)
    if request.node.get_closest_marker("callbacks_may_fail") is None:
        assert failures.records == []


@pytest.fixture(autouse=True)
def _own_audit():
    """Refusals that an earlier test has counted are new ones here."""
    audit = sys.modules.get("kreplica.broker.audit")
    if audit is not None:
        audit._REFUSALS.forget()


@pytest.fixture(autouse=True)
def _own_logging():
    """What a command sets up for its process's log, with a standard error that is gone by the next test."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)
    for handler in [each for each in root.handlers if type(each) is logging.StreamHandler]:
        root.removeHandler(handler)
