"""Packages that a part of the library needs and the library itself does not."""

from __future__ import annotations

from importlib import import_module

# The commands that install them, where an extra of kreplica does it.
EXTRAS = {
    "numpy": "'kreplica[arrow]'",
    "pyarrow": "'kreplica[arrow]'",
    "pyspark": "'kreplica[spark]'",
}


def require_package(name: str) -> None:
    """Import the package. Raises ImportError with the command that installs it."""
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        text = f"this needs {name}, which is not installed: pip install {EXTRAS.get(name, name)}"
        raise ModuleNotFoundError(text, name=name) from error
