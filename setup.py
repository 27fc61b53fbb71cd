"""Build the native core: every .pyx under kreplica/_core is one extension module.

KREPLICA_DEBUG=1     turns Cython's bounds and initialisation checks on.
KREPLICA_SANITIZE=1  compiles with AddressSanitizer and UBSan (see `make sanitize`).
KREPLICA_PURE=1      leaves the native modules out: an editable install beside an --inplace build, which would
                     compile all of them once more.

Everything that is made goes under build/, one folder for each of these flavours, so that none is taken for
another; --inplace copies the modules from there to their sources.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

ROOT = Path(__file__).parent
CORE = Path("kreplica/_core")
NATIVE = CORE / "native"
DEBUG = bool(os.environ.get("KREPLICA_DEBUG"))
SANITIZE = bool(os.environ.get("KREPLICA_SANITIZE"))
PURE = bool(os.environ.get("KREPLICA_PURE"))

# A module that has a plain C companion names it here; the companion is compiled into that module alone.
COMPANIONS: dict[str, list[str]] = {
    "crc32c": ["crc32c.c"],
    "disk_thread": ["disk_queue.c"],
    "offset_map": ["offset_map.c"],
    "region": ["file.c", "fork.c", "growth.c", "guard.c", "mapping.c", "prefault.c"],
}

CHECKS = DEBUG or SANITIZE
FLAVOUR = "sanitize" if SANITIZE else "debug" if DEBUG else "release"
BUILD = Path("build") / FLAVOUR
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": CHECKS,
    "wraparound": False,
    "initializedcheck": CHECKS,
    "cdivision": True,
    "embedsignature": True,
    "embedsignature.format": "python",
}
LINK_ARGUMENTS = {
    "release": ["-Wl,-x"] if sys.platform == "darwin" else ["-Wl,--strip-all"],
    "debug": [],
    "sanitize": ["-fsanitize=address,undefined"],
}
COMPILE_ARGUMENTS = {
    # Python's own flags ask for debugging information, which makes the modules five times as large.
    "release": ["-O3", "-g0", "-std=c11", "-fno-strict-aliasing", "-Wno-unused-function"],
    "debug": ["-O1", "-g", "-std=c11"],
    "sanitize": [
        *("-O1", "-g", "-std=c11", "-fno-omit-frame-pointer", "-fsanitize=address,undefined"),
        *("-fno-sanitize-recover=undefined", "-fno-sanitize=alignment"),
    ],
}


def extension(source: Path) -> Extension:
    name = source.stem
    return Extension(
        f"kreplica._core.{name}",
        sources=[str(source), *(str(NATIVE / c) for c in COMPANIONS.get(name, []))],
        include_dirs=[str(NATIVE)],
        depends=[str(p) for p in sorted(NATIVE.glob("*.h"))],
        extra_compile_args=COMPILE_ARGUMENTS[FLAVOUR],
        extra_link_args=LINK_ARGUMENTS[FLAVOUR],
        libraries=[] if sys.platform == "darwin" else ["pthread"],
    )


class BuildCore(build_ext):
    """Compiles the core, and says in one line what is missing if that cannot begin."""

    def build_extensions(self) -> None:
        source = Path(self.build_temp) / "probe.c"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text("#include <Python.h>\n")
        try:
            self.compiler.compile([str(source)], output_dir=self.build_temp, include_dirs=self.include_dirs)
        except CompileError:
            compiler = " ".join(self.compiler.compiler[:1])
            sys.exit(
                f"kreplica: cannot compile with {compiler!r}: install a C compiler and Python's headers"
                " (apt install gcc python3-dev, or xcode-select --install), or use a wheel of kreplica"
            )
        # Translating takes a minute: not before it is known that the result can be compiled.
        translated = cythonize(
            self.extensions, build_dir=str(BUILD / "cython"), compiler_directives=DIRECTIVES, quiet=True
        )
        in_c = {each.name: each for each in translated}
        for each in self.extensions:
            each.sources, each.depends = in_c[each.name].sources, in_c[each.name].depends
        super().build_extensions()


# Packages whose sources stand beside the package, by their importable names.
BESIDE = {"kreplica.arrow": "bindings", "kreplica.spark": "spark_connector"}


def packages() -> list[str]:
    """Return all packages; those beside are named as they are imported."""
    beside = [f"{name}.{each}" for name, folder in BESIDE.items() for each in find_packages(folder)]
    return [*find_packages(include=["kreplica", "kreplica.*", "pyspark_kreplica"]), *BESIDE, *beside]


os.chdir(ROOT)
setup(
    packages=packages(),
    package_dir=BESIDE,
    cmdclass={"build_ext": BuildCore},
    ext_modules=[] if PURE else [extension(source) for source in sorted(CORE.glob("*.pyx"))],
    options={"build": {"build_base": str(BUILD)}, "build_ext": {"parallel": os.cpu_count() or 1}},
)
