"""Apache Kafka as a peer: its jars, its tools, and a node of it to start, stop and kill.

Maven resolves `pom.xml` into `.make/kafka`, once; Java sources of tests and benchmarks are compiled into it
too. Building and using kreplica needs none of this. `missing()` says why the peer is not available, and tests
that need it skip with that line. A `Node` belongs to the thread that made it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType

from tests.support import secured
from tests.support.polling import comes_to_be
from tests.support.ports import free_addresses

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".make" / "kafka"
CLUSTER_ID = "a3JlcGxpY2EtY29uZm9ybQ"  # 16 bytes in URL-safe base64, as Kafka's own ids
OLDEST_JAVA = 17

# What a small, quick, single node needs: one partition an internal topic, no waiting for a group to fill.
SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.max.timeout.ms": 2**31 - 1,
    "group.initial.rebalance.delay.ms": 0,
    "log.cleaner.backoff.ms": 100,
    "log.initial.task.delay.ms": 200,
    "auto.create.topics.enable": "false",
}

LOGGING = """\
status = error
appender.out.type = Console
appender.out.name = OUT
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %m (%c{1})%n
rootLogger.level = {level}
rootLogger.appenderRef.out.ref = OUT
"""


class PeerError(Exception):
    """A tool or node of Kafka failed; the message ends with what it printed last."""


# ---- what is on this machine -----------------------------------------------------------------------------


@functools.cache
def missing() -> str | None:
    """Why Kafka cannot run here, as one line to skip with; None where it can."""
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            return f"Kafka as a peer needs Java {OLDEST_JAVA} and Maven: {tool} is not on the path"
    words = subprocess.run(["javac", "-version"], capture_output=True, text=True, check=False).stdout.split()
    version = int(words[1].split(".")[0]) if len(words) > 1 else 0
    if version < OLDEST_JAVA:
        return f"Kafka as a peer needs Java {OLDEST_JAVA}: javac here is of version {version}"
    try:
        jars()
    except PeerError as error:
        return f"Kafka as a peer: Maven could not resolve it: {str(error).splitlines()[-1]}"
    return None


@functools.cache
def jars() -> Path:
    """The directory of Kafka's jars, resolved by Maven on the first call."""
    return made("jars", [HERE / "pom.xml"], _resolve)


@functools.cache
def spark_jars() -> list[str]:
    """The jars that Spark needs for format("kafka"), for its setting spark.jars. Raises PeerError."""
    pom = HERE / "spark" / "pom.xml"
    directory = made("spark-jars", [pom], lambda target: _resolve(target, pom))
    return [str(path) for path in sorted(directory.glob("*.jar"))]


@functools.cache
def oidc_jars() -> Path:
    """The directory of the jars of an OpenID Connect server. Raises PeerError."""
    pom = HERE / "oidc" / "pom.xml"
    return made("oidc-jars", [pom], lambda target: _resolve(target, pom))


@functools.cache
def classes(*sources: Path) -> Path:
    """The directory of the classes compiled from `sources` (Java files) against Kafka's jars."""
    return made("classes", sources, lambda target: _compile(sources, target))


def class_path(*sources: Path) -> str:
    """Kafka's jars, and the classes compiled from `sources`, for java's -cp."""
    entries = [f"{jars()}/*"] + ([str(classes(*sources))] if sources else [])
    return os.pathsep.join(entries)


def made(kind: str, sources: Iterable[Path], make: Callable[[Path], None]) -> Path:
    """`CACHE/<kind>-<hash of the sources>`, made aside and renamed: it is there whole or not at all."""
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    target = CACHE / f"{kind}-{digest}"
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=CACHE))
        try:
            make(aside)
            if not target.exists():
                aside.rename(target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return target


def _resolve(target: Path, pom: Path = HERE / "pom.xml") -> None:
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={target}"]
    _run(["mvn", "--quiet", "--batch-mode", "--file", str(pom), *goal], timeout_s=600)


def _compile(sources: Iterable[Path], target: Path) -> None:
    files = [str(source) for source in sources]
    _run(["javac", "-Xlint:all,-processing", "-cp", f"{jars()}/*", "-d", str(target), *files], timeout_s=120)


# ---- running Java ----------------------------------------------------------------------------------------


def _run(
    command: list[str], *, timeout_s: float, standard_input: str = ""
) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        command, input=standard_input, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if result.returncode != 0:
        said = (result.stdout + result.stderr)[-4000:]
        raise PeerError(f"{command[0]} ended with {result.returncode}\n{said.strip()}")
    return result


def java_command(main: str, *arguments: str, sources: tuple[Path, ...] = (), heap: str = "512m") -> list[str]:
    """The command line that runs class `main`; what it logs from warnings up goes to its standard error.

    Kafka's tools and our programs, which name the nodes' addresses, get what they need to connect there.
    """
    logging = _logging_file("warn")
    options = [f"-Xmx{heap}", f"-Dlog4j2.configurationFile={logging}", "-cp", class_path(*sources)]
    file = next((found for each in arguments if (found := secured.java_file(each))), None)
    if file is not None and sources:
        options = [f"-Dclients.config={file}", *options]
    elif file is not None:
        arguments = ("--command-config", file, *arguments)
    return ["java", *options, main, *arguments]


def run_java(
    main: str,
    *arguments: str,
    sources: tuple[Path, ...] = (),
    heap: str = "512m",
    timeout_s: float = 120,
    standard_input: str = "",
) -> str:
    """Run class `main` to its end; its standard output. Raises PeerError if it ends with anything but 0."""
    command = java_command(main, *arguments, sources=sources, heap=heap)
    return _run(command, timeout_s=timeout_s, standard_input=standard_input).stdout


def dump_segments(*files: Path, options: Iterable[str] = ()) -> str:
    """What DumpLogSegments prints of the files (segments, indexes, snapshots), its complaints included.

    An index that fails its sanity check ends it with a PeerError; other findings it only prints ("Found ...",
    "isvalid: false"), so that a caller looks for them in the text.
    """
    names = ",".join(str(file) for file in files)
    result = _run(
        java_command("org.apache.kafka.tools.DumpLogSegments", "--files", names, *options), timeout_s=120
    )
    return result.stdout + result.stderr


def complaints(*directories: Path) -> list[str]:
    """What DumpLogSegments finds wrong in the logs and indexes of partition directories; [] if all is well.

    Three looks: every record of every segment; the check of each index that a broker does when it starts;
    each entry of each index against its segment. Offsets with gaps are as they should be, a cleaner makes
    them.
    """
    files = [file for directory in directories for file in sorted(directory.iterdir())]
    indexes = [file for file in files if file.suffix in (".index", ".timeindex")]
    logs = [file for file in files if file.suffix == ".log"]
    others = [file for file in files if file.suffix in (".txnindex", ".snapshot")]
    looks = (("--deep-iteration", logs), ("--index-sanity-check", indexes), ("--verify-index-only", indexes))
    try:
        said = [dump_segments(*asked, options=[option]) for option, asked in looks if asked]
        said += [dump_segments(*others)] if others else []
    except PeerError as error:
        return str(error).splitlines()
    return [line for look in said for line in look.splitlines() if _COMPLAINT.search(line)]


_COMPLAINT = re.compile(
    r"^Mismatch|^The following|^Found|^  Index|^Ignoring|isvalid: false|Exception", re.IGNORECASE
)


def _logging_file(level: str) -> Path:
    path = CACHE / f"log4j2-{level}.properties"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(f".{os.getpid()}")
        aside.write_text(LOGGING.replace("{level}", level))
        aside.rename(path)
    return path


# ---- a node ----------------------------------------------------------------------------------------------


class Node:
    """One combined broker and controller, alone in its cluster, on free ports of 127.0.0.1; or on `ports`
    (its own and its controller's), one of the voters that `settings` name.

    `directory` takes its configuration and its output; `log_directory` (by default a folder of it) is Kafka's
    log.dirs. The same Node may be started again after `stop` (clean) or `kill` (SIGKILL). As a context
    manager it is started on entry, and not left running on exit.
    """

    def __init__(
        self,
        directory: Path,
        *,
        log_directory: Path | None = None,
        ports: tuple[int, int] | None = None,
        **settings: object,
    ) -> None:
        self.directory = directory
        self.log_directory = log_directory or directory / "logs"
        self.output = directory / "node.out"
        self._properties = directory / "node.properties"
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self._port, controller_port = ports or [port for _, port in free_addresses(2)]
        properties = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": self.log_directory,
            **SETTINGS,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))

    @property
    def bootstrap(self) -> str:
        """host:port, for clients."""
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The id of its process, which runs."""
        assert self._process is not None, "not launched"
        return self._process.pid

    def format(self) -> None:
        """Make the log directory a fresh one of this cluster; one that is formatted stays as it is."""
        arguments = ["-t", CLUSTER_ID, "-c", str(self._properties), "--ignore-formatted"]
        run_java("kafka.tools.StorageTool", "format", *arguments)

    def start(self, *, timeout_s: float = 60) -> None:
        """Start on what the log directory holds; returns when the node serves."""
        self.launch()
        self.await_start(timeout_s=timeout_s)

    def launch(self, *, heap: str = "512m") -> None:
        """Begin to start, which one of several voters cannot finish alone."""
        command = java_command("kafka.Kafka", str(self._properties), heap=heap)
        command[2] = f"-Dlog4j2.configurationFile={_logging_file('info')}"
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )

    def await_start(self, *, timeout_s: float = 60) -> None:
        """Return when the node that was launched serves."""
        assert self._process is not None, "not launched"
        process = self._process

        def has_started() -> bool:
            return b"Kafka Server started" in self.output.read_bytes()

        comes_to_be(lambda: has_started() or process.poll() is not None, timeout_s=timeout_s)
        if not has_started():
            self.kill()
            raise PeerError(f"Kafka did not start\n{self.output.read_text()[-4000:].strip()}")

    def stop(self, *, timeout_s: float = 60) -> None:
        """Shut down cleanly, as SIGTERM does."""
        self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, closed or marked."""
        self._end(signal.SIGKILL, 10)

    def _end(self, by: signal.Signals, timeout_s: float) -> None:
        if self._process is not None:
            self._process.send_signal(by)
            self._process.wait(timeout_s)
            self._process = None

    def __enter__(self) -> Node:
        self.format()
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
