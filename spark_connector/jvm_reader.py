"""Build the jar with the JVM reader, and add it to a session that has a JVM of its own.

The package ships Java sources, in `jvm/`. Janino, which is one of Spark's own jars, compiles them without a
JDK. Janino has limits: the sources use no lambda, no try-with-resources, no generics, arrays for varargs, and
catch one kind of exception where a method continues after a try. The jar is in the user's cache under a name
derived from the sources and Spark's version; it appears there when it is complete. Thread rule: any thread;
two threads that build it at the same time build the same jar.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
from kreplica.spark.java_runtime import cache_directory, version_of
from kreplica.spark.option_table import as_lines
from pyspark.find_spark_home import _find_spark_home

from kreplica.common.errors import BY_CODE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "jvm"
PROVIDER = "org.kreplica.spark.KreplicaProvider"
PYTHON_HALF = "org.kreplica.spark.PythonHalf"
# Spark's setting for the class that writes checkpoints, and the jar's class for it.
CHECKPOINTS_SETTING = "spark.sql.streaming.checkpointFileManagerClass"
CHECKPOINTS = "org.kreplica.spark.LocalCheckpoints"
_OPTIONS = "org/kreplica/spark/options.tsv"
_ERRORS = "org/kreplica/spark/errors.tsv"
_SERVICE = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
# The JVM's system property with the path of the driver's Python.
_PYTHON = "kreplica.driver.python"
_COMPILER = "org.codehaus.commons.compiler.samples.CompilerDemo"
# By default Janino does not support static methods of interfaces.
_TARGET = "-Dorg.codehaus.janino.UnitCompiler.defaultTargetVersion=8"
_LOADER = "org.apache.spark.util.MutableURLClassLoader"
_TIMEOUT_S = 300
# The time of every entry, so that the same sources give the same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)


class NoJvmReader(RuntimeError):
    """The JVM reader is not available here; the message says why."""


def jar() -> str:
    """Return the path of the jar, for `spark.jars` or `spark.addArtifact`. Raises NoJvmReader."""
    path = cache_directory() / f"kreplica-spark-{_fingerprint()}.jar"
    try:
        if not path.exists():
            _make(path)
    except OSError as error:
        raise NoJvmReader(f"the jar could not be written to {path.parent}: {error}") from error
    return str(path)


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        compile_into(Path(scratch) / "classes")
        made = Path(scratch) / path.name
        _pack(Path(scratch) / "classes", made)
        os.replace(made, path)


def add_to(spark: SparkSession) -> None:
    """Add the jar to the class path of the session's driver and executors. Raises NoJvmReader."""
    if not hasattr(spark, "_jsparkSession"):
        raise NoJvmReader("a Spark Connect session has its JVM in another process")
    jvm: Any = spark._jvm
    context_loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    if _has_provider(context_loader):
        return
    path = jar()
    loader = context_loader
    while loader is not None and loader.getClass().getName() != _LOADER:
        loader = loader.getParent()
    if loader is None:
        raise NoJvmReader("the running driver accepts no jar: set spark.jars to kreplica.spark.jar()")
    loader.addURL(jvm.java.io.File(path).toURI().toURL())
    if not _is_one_process(spark):
        spark.sparkContext._jsc.addJar(path)


def share_python(spark: SparkSession) -> None:
    """Make workers on this machine use the driver's Python, unless one is configured.

    By default Spark uses the first python3 on the PATH, which may lack the packages. The Python of remote
    workers is unknown here; the jar's error message names the driver's.
    """
    if not hasattr(spark, "_jsparkSession"):
        return
    jvm: Any = spark._jvm
    jvm.java.lang.System.setProperty(_PYTHON, sys.executable)
    is_chosen = "PYSPARK_PYTHON" in os.environ or spark.sparkContext.getConf().contains(
        "spark.pyspark.python"
    )
    if not is_chosen and str(spark.sparkContext.master).startswith("local"):
        spark.sparkContext.pythonExec = sys.executable


def share_source(spark: SparkSession, source: type[DataSource]) -> None:
    """Let all sessions of this JVM use the source in Python, also those that newSession creates.

    Spark registers it in one session only.
    """
    from pyspark.sql.udf import _wrap_function

    jvm: Any = spark._jvm
    made = jvm.org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource(
        _wrap_function(spark.sparkContext, source)
    )
    # Py4J finds no class of a jar that was added later, so ask the class loader.
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    share = next(each for each in loader.loadClass(PYTHON_HALF).getMethods() if each.getName() == "share")
    gateway: Any = spark.sparkContext._gateway
    arguments = gateway.new_array(jvm.java.lang.Object, 2)
    arguments[0], arguments[1] = source.name(), made
    share.invoke(None, arguments)


def hasten_checkpoints(spark: SparkSession) -> None:
    """Write this session's local checkpoints without starting a process for each file.

    Applies where the driver runs the tasks itself and no checkpoint writer is configured.
    """
    if _is_one_process(spark) and not spark.conf.get(CHECKPOINTS_SETTING, None):
        spark.conf.set(CHECKPOINTS_SETTING, CHECKPOINTS)


def compile_into(directory: Path) -> None:
    """Compile the sources with Janino. Raises NoJvmReader."""
    directory.mkdir()
    jars = os.pathsep.join(map(str, spark_jars()))
    arguments = ["-d", str(directory), "-classpath", jars, *map(str, sources())]
    command = [_java(), "-XX:TieredStopAtLevel=1", _TARGET, "-cp", jars, _COMPILER, *arguments]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoJvmReader(f"compiling its sources failed: {error}") from error
    provider = directory / (PROVIDER.replace(".", "/") + ".class")
    if ran.returncode or not provider.exists():
        raise NoJvmReader(f"compiling its sources failed: {(ran.stderr + ran.stdout)[-2000:]}")


def sources() -> list[Path]:
    """Return the paths of the Java files."""
    return sorted(SOURCES.rglob("*.java"))


def spark_jars() -> list[Path]:
    """Return the paths of Spark's own jars, which the sources are compiled against."""
    return sorted((Path(_find_spark_home()) / "jars").glob("*.jar"))


def _is_one_process(spark: SparkSession) -> bool:
    """Return whether the driver runs the tasks itself; local-cluster[...] has executors."""
    return str(spark.sparkContext.master).partition("[")[0] == "local"


def _has_provider(loader: Any) -> bool:
    return loader.getResource(PROVIDER.replace(".", "/") + ".class") is not None


def _fingerprint() -> str:
    found = hashlib.sha256(f"{pyspark.__version__}\n{_option_lines()}{_error_lines()}".encode())
    for path in sources():
        found.update(f"{path.name}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def _option_lines() -> str:
    return "".join(f"{line}\n" for line in as_lines())


def _error_lines() -> str:
    """Return the table of error codes: code, name, whether to retry, what happened, separated by tabs."""
    rows = ((code, kind.__name__, str(kind.retriable).lower(), str(kind())) for code, kind in BY_CODE.items())
    return "".join("\t".join(map(str, row)) + "\n" for row in sorted(rows))


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    if home and version_of(Path(home)) is not None:
        return f"{home}/bin/java"
    return "java"


def _pack(classes: Path, path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(_SERVICE, _TIME), PROVIDER + "\n")
        archive.writestr(zipfile.ZipInfo(_OPTIONS, _TIME), _option_lines())
        archive.writestr(zipfile.ZipInfo(_ERRORS, _TIME), _error_lines())
        for each in sorted(classes.rglob("*.class")):
            name = each.relative_to(classes).as_posix()
            archive.writestr(zipfile.ZipInfo(name, _TIME), each.read_bytes(), zipfile.ZIP_DEFLATED)
