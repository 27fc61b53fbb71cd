"""Status codes: each has a name and an exception; a status that is no error passes."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

from kreplica._core import status
from kreplica.common import errors

DECLARATION = Path(__file__).resolve().parents[2] / "kreplica/_core/status.pxd"
CODES = {
    name: int(number)
    for name, number in re.findall(r"^    ([A-Z_]+) = (-?\d+)", DECLARATION.read_text(), re.MULTILINE)
}


def test_every_error_code_is_named_and_no_outcome_is() -> None:
    assert {number: name for name, number in CODES.items() if number < 0} == status.NAMES


@pytest.mark.parametrize("name", [name for name, number in CODES.items() if number < 0])
def test_every_error_code_raises_its_exception(name: str) -> None:
    with pytest.raises(errors.KreplicaError, match=name) as raised:
        status.raise_status(CODES[name], "reading x", 4711)
    assert type(raised.value) is not errors.UnknownServerError
    assert raised.value.where == 4711
    assert "reading x at 4711" in str(raised.value)


@pytest.mark.parametrize("name", [name for name, number in CODES.items() if number >= 0])
def test_outcomes_are_returned(name: str) -> None:
    assert status.raise_status(CODES[name], "reading x") == CODES[name]


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (errno.ENOSPC, "STORAGE_FULL"),
        (errno.EDQUOT, "STORAGE_FULL"),
        (errno.EFBIG, "STORAGE_FULL"),
        (errno.EMFILE, "OUT_OF_DESCRIPTORS"),
        (errno.ENOMEM, "NO_MEMORY"),
        (errno.EIO, "IO_FAILED"),
        (errno.EACCES, "IO_FAILED"),
    ],
)
def test_errno_has_a_status(number: int, name: str) -> None:
    assert status.status_of_errno(number) == CODES[name]
