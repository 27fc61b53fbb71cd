"""`python -m kreplica.arrow.c_flags`: prints a C compiler's flags for a program with kreplica.h.

The flags name kreplica.c, which is compiled into the program, and the library of this interpreter. The
program must find this interpreter's packages: set KREPLICA_PYTHON to the interpreter, or pass its path to
kreplica_start.
"""

from __future__ import annotations

import os
import shlex
import sysconfig

HERE = os.path.dirname(os.path.abspath(__file__))


def c_flags() -> list[str]:
    """Return the flags. Raises FileNotFoundError if this interpreter lacks its library or headers."""
    include = sysconfig.get_path("include")
    directory, version = sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LDVERSION")
    names = [sysconfig.get_config_var(name) for name in ("LDLIBRARY", "LIBRARY")]
    places = [directory, sysconfig.get_config_var("LIBPL")]
    found = [p for p in places if p and any(n and os.path.exists(os.path.join(p, n)) for n in names)]
    if not os.path.exists(os.path.join(include, "Python.h")) or not found:
        raise FileNotFoundError(f"this Python has no Python.h in {include}, or no library in {directory}")
    system = [sysconfig.get_config_var(name) or "" for name in ("LIBS", "SYSLIBS", "LINKFORSHARED")]
    return [
        *(f"-I{HERE}", f"-I{include}", os.path.join(HERE, "kreplica.c")),
        *(f"-L{found[0]}", f"-Wl,-rpath,{found[0]}", f"-lpython{version}", "-lpthread"),
        *(flag for flags in system for flag in shlex.split(flags)),
    ]


if __name__ == "__main__":
    print(shlex.join(c_flags()))
