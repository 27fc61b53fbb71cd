"""The jar with the JVM reader: made where it is needed, and given to a session that has a JVM of its own.

What is shipped are the Java sources in `jvm/`. Janino, which is among Spark's own jars, compiles them without
a JDK, so they are plain Java: no lambda, no try-with-resources, no generics, arrays for varargs, and one
kind of exception caught where a method goes on behind a try. The jar lies in the user's cache under a name
that the sources and Spark's version give, and gets it once it is whole. Thread rule: any thread; two that
make it at once make the same.
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
from pyspark.find_spark_home import _find_spark_home

from spark_connector.java_runtime import cache_directory, version_of
from spark_connector.option_table import as_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "jvm"
PROVIDER = "org.kreplica.spark.KreplicaProvider"
# Spark's setting for how checkpoints are written, and what the jar has for it.
CHECKPOINTS_SETTING = "spark.sql.streaming.checkpointFileManagerClass"
CHECKPOINTS = "org.kreplica.spark.LocalCheckpoints"
_OPTIONS = "org/kreplica/spark/options.tsv"
_SERVICE = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
# The system property of the JVM with the path of the driver's Python.
_PYTHON = "kreplica.driver.python"
_COMPILER = "org.codehaus.commons.compiler.samples.CompilerDemo"
# Janino's own default knows no static methods of interfaces.
_TARGET = "-Dorg.codehaus.janino.UnitCompiler.defaultTargetVersion=8"
_LOADER = "org.apache.spark.util.MutableURLClassLoader"
_TIMEOUT_S = 300
# In every entry, so that the same sources give the same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)


class NoJvmReader(RuntimeError):
    """The JVM reader cannot be had here; the message says why."""


def jar() -> str:
    """The path of the jar, for `spark.jars` or `spark.addArtifact`. Raises NoJvmReader."""
    path = cache_directory() / f"kreplica-spark-{_fingerprint()}.jar"
    try:
        if not path.exists():
            _make(path)
    except OSError as error:
        raise NoJvmReader(f"there is no place for its jar: {error}") from error
    return str(path)


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        compile_into(Path(scratch) / "classes")
        made = Path(scratch) / path.name
        _pack(Path(scratch) / "classes", made)
        os.replace(made, path)


def add_to(spark: SparkSession) -> None:
    """Put the jar on the session's class path, of the driver and of the executors. Raises NoJvmReader."""
    if not hasattr(spark, "_jsparkSession"):
        raise NoJvmReader("a session of Spark Connect has its JVM elsewhere")
    jvm: Any = spark._jvm
    context_loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    if _has_provider(context_loader):
        return
    path = jar()
    loader = context_loader
    while loader is not None and loader.getClass().getName() != _LOADER:
        loader = loader.getParent()
    if loader is None:
        raise NoJvmReader("the driver takes no jar while it runs: set spark.jars to spark_connector.jar()")
    loader.addURL(jvm.java.io.File(path).toURI().toURL())
    if not _is_one_process(spark):
        spark.sparkContext._jsc.addJar(path)


def share_python(spark: SparkSession) -> None:
    """Have workers on this machine run the driver's Python, if nobody has chosen one: Spark takes the first
    python3 of the path, which need not have the packages. What workers elsewhere run is not known here; the
    jar's error names the driver's."""
    if not hasattr(spark, "_jsparkSession"):
        return
    jvm: Any = spark._jvm
    jvm.java.lang.System.setProperty(_PYTHON, sys.executable)
    is_chosen = "PYSPARK_PYTHON" in os.environ or spark.sparkContext.getConf().contains(
        "spark.pyspark.python"
    )
    if not is_chosen and str(spark.sparkContext.master).startswith("local"):
        spark.sparkContext.pythonExec = sys.executable


def hasten_checkpoints(spark: SparkSession) -> None:
    """Have streams of this session, whose driver has the jar, write local checkpoints without a process for
    each file, if nobody has chosen how they are written. Executors elsewhere are left as they are."""
    if _is_one_process(spark) and not spark.conf.get(CHECKPOINTS_SETTING, None):
        spark.conf.set(CHECKPOINTS_SETTING, CHECKPOINTS)


def compile_into(directory: Path) -> None:
    """Compile the sources by Janino. Raises NoJvmReader."""
    directory.mkdir()
    jars = os.pathsep.join(map(str, spark_jars()))
    arguments = ["-d", str(directory), "-classpath", jars, *map(str, sources())]
    command = [_java(), "-XX:TieredStopAtLevel=1", _TARGET, "-cp", jars, _COMPILER, *arguments]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoJvmReader(f"its sources were not compiled: {error}") from error
    provider = directory / (PROVIDER.replace(".", "/") + ".class")
    if ran.returncode or not provider.exists():
        raise NoJvmReader(f"its sources were not compiled: {(ran.stderr + ran.stdout)[-2000:]}")


def sources() -> list[Path]:
    """The Java files."""
    return sorted(SOURCES.rglob("*.java"))


def spark_jars() -> list[Path]:
    """Spark's own jars: what the sources are compiled against."""
    return sorted((Path(_find_spark_home()) / "jars").glob("*.jar"))


def _is_one_process(spark: SparkSession) -> bool:
    """Whether the driver runs the tasks, too; local-cluster[...] has executors."""
    return str(spark.sparkContext.master).partition("[")[0] == "local"


def _has_provider(loader: Any) -> bool:
    return loader.getResource(PROVIDER.replace(".", "/") + ".class") is not None


def _fingerprint() -> str:
    found = hashlib.sha256(f"{pyspark.__version__}\n{_option_lines()}".encode())
    for path in sources():
        found.update(f"{path.name}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def _option_lines() -> str:
    return "".join(f"{line}\n" for line in as_lines())


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    if home and version_of(Path(home)) is not None:
        return f"{home}/bin/java"
    return "java"


def _pack(classes: Path, path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(_SERVICE, _TIME), PROVIDER + "\n")
        archive.writestr(zipfile.ZipInfo(_OPTIONS, _TIME), _option_lines())
        for each in sorted(classes.rglob("*.class")):
            name = each.relative_to(classes).as_posix()
            archive.writestr(zipfile.ZipInfo(name, _TIME), each.read_bytes(), zipfile.ZIP_DEFLATED)
