"""Run by `make wheels` in an environment that has the wheel and nothing of the source tree."""

import importlib
import importlib.metadata
from pathlib import Path

import kreplica

PACKAGE = Path(kreplica.__file__).parent
assert "site-packages" in PACKAGE.parts, PACKAGE

names = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*") if path.is_file()}
assert "py.typed" in names
assert [name for name in names if name.endswith((".pyx", ".c"))] == ["arrow/kreplica.c"]

stubs = [name for name in names if name.startswith("_core/") and name.endswith(".pyi")]
assert stubs
for stub in stubs:
    module = stub.removesuffix(".pyi")
    assert f"{module}.pxd" in names, module
    importlib.import_module("kreplica." + module.replace("/", "."))

# Modules that need the packages of an extra say which; nothing of kreplica itself may be missing.
EXTRAS = {
    "confluent_kafka",
    "cryptography",
    "joserfc",
    "prometheus_client",
    "pyarrow",
    "pyspark",
    "pytest",
    "uvloop",
}
for name in sorted(names):
    if name.endswith(".py") and "__main__" not in name:
        module = ("kreplica/" + name).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as missing:
            if str(missing.name).split(".")[0] not in EXTRAS:
                raise

assert {"arrow/py.typed", "arrow/kreplica.h", "arrow/kreplica.c", "spark/py.typed"} <= names
assert "spark/jvm/org/kreplica/spark/KreplicaProvider.java" in names

assert importlib.metadata.version("kreplica")
print(f"{len(names)} files, {len(stubs)} native modules: installed and importable")
