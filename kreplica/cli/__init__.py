"""The command `kreplica`.

One file for each subcommand; a subcommand's imports happen when it runs, so that `kreplica --help` costs
little. Exit codes of all of them: 0, 1 where something was found that should not be (or an error kept the
command from looking), 2 for a call it cannot understand.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line of this process and exit."""
    from kreplica.cli.app import app
    from kreplica.common.errors import KreplicaError

    try:
        app(prog_name="kreplica")
    except KreplicaError as error:
        print(f"kreplica: {error}", file=sys.stderr)
        sys.exit(1)
