"""The command `kreplica`.

Each subcommand has a file of its own, which is imported when the subcommand runs, so that `kreplica --help`
is fast. Exit codes of all subcommands: 0; 1 if it found a problem, or an error kept it from looking; 2 for
wrong arguments.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line of this process and exit."""
    from kreplica.cli.app import app, help_page
    from kreplica.common.errors import KreplicaError

    try:
        try:
            page = help_page(sys.argv[1:])
            if page is None:
                app(prog_name="kreplica")
            print(page)
        finally:
            sys.stdout.flush()
    except KreplicaError as error:
        print(f"kreplica: {error}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        named = "" if error.filename is None else f" ({error.filename})"
        print(f"kreplica: {error.strerror or error}{named}", file=sys.stderr)
        # Output still buffered for a full disk or a closed pipe would fail again at the interpreter's exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
