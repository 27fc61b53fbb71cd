"""`python -m kreplica` is the command `kreplica`."""

from __future__ import annotations

from kreplica.cli import main

if __name__ == "__main__":
    main()
