"""`python -m kreplica.cli` is the command `kreplica`."""

from kreplica.cli import main

main()
