"""Runs the command `kreplica` for `python -m kreplica`."""

from __future__ import annotations

from kreplica.cli import main

if __name__ == "__main__":
    main()
