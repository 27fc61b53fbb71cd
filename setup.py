"""Build the native core: every .pyx under kreplica/_core is one extension module.

KREPLICA_DEBUG=1     turns Cython's bounds and initialisation checks on.
KREPLICA_SANITIZE=1  compiles with AddressSanitizer and UBSan (see `make sanitize`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

ROOT = Path(__file__).parent
CORE = Path("kreplica/_core")
NATIVE = CORE / "native"
DEBUG = bool(os.environ.get("KREPLICA_DEBUG"))
SANITIZE = bool(os.environ.get("KREPLICA_SANITIZE"))

# A module that has a plain C companion names it here; the companion is compiled into that module alone.
COMPANIONS: dict[str, list[str]] = {
}

CHECKS = DEBUG or SANITIZE
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": CHECKS,
    "wraparound": False,
    "initializedcheck": CHECKS,
    "cdivision": True,
    "embedsignature": True,
    "embedsignature.format": "python",
}


def compile_arguments() -> list[str]:
    arguments = ["-O3", "-std=c11", "-fno-strict-aliasing", "-Wno-unused-function"]
    if SANITIZE:
        arguments = ["-O1", "-g", "-std=c11", "-fno-omit-frame-pointer", "-fsanitize=address,undefined",
                     "-fno-sanitize-recover=undefined", "-fno-sanitize=alignment"]
    elif DEBUG:
        arguments = ["-O1", "-g", "-std=c11"]
    return arguments


def extension(source: Path) -> Extension:
    name = source.stem
    return Extension(
        f"kreplica._core.{name}",
        sources=[str(source), *(str(NATIVE / c) for c in COMPANIONS.get(name, []))],
        include_dirs=[str(NATIVE)],
        depends=[str(p) for p in sorted(NATIVE.glob("*.h"))],
        extra_compile_args=compile_arguments(),
        extra_link_args=["-fsanitize=address,undefined"] if SANITIZE else [],
        libraries=[] if sys.platform == "darwin" else ["pthread"],
    )


os.chdir(ROOT)
setup(
    ext_modules=cythonize(
        [extension(source) for source in sorted(CORE.glob("*.pyx"))],
        compiler_directives=DIRECTIVES,
        nthreads=0,
        quiet=True,
    ),
)
