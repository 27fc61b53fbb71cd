"""The log's state machines beside Kafka's own: the same script, the same answers, the same files.

Kafka's LeaderEpochFileCache and ProducerStateManager run in `java/StateMachines.java`. A script is made while
ours runs it, so that most of its commands make sense; what ours answers is compared line by line.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from kreplica.common.errors import KreplicaError
from kreplica.common.types import INT32_MAX, AppendOrigin
from kreplica.log.checkpoint import LeaderEpochCheckpointFile
from kreplica.log.leader_epoch_file_cache import LeaderEpochFileCache
from kreplica.log.producer_append_info import ProducerStateEntry, add_sequence
from kreplica.log.producer_state_manager import ProducerStateManager, parse_snapshot
from tests.conformance.kafka_peer import run_java
from tests.support.memory_storage import MemoryStorage

pytestmark = pytest.mark.conformance

MACHINES = 150
STEPS = 60
ORIGINS = (AppendOrigin.CLIENT, AppendOrigin.COORDINATOR, AppendOrigin.REPLICATION)

# Where ours says more: Kafka has one error for a gap and for a batch that is too old to be found.
KAFKAS_NAME = {
    "DuplicateSequenceNumber": "OutOfOrderSequenceException",
    "OutOfOrderSequenceNumber": "OutOfOrderSequenceException",
}


class Script:
    """Commands, and what ours answered to each."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.answers: list[str] = []

    def add(self, answer: str, command: str, *numbers: int) -> None:
        self.commands.append(" ".join([command, *map(str, numbers)]))
        self.answers.append(answer)

    def compare(self, machine: str, tmp_path: Path) -> None:
        """Let Kafka run it, and fail at the first line that differs, with the lines before it."""
        file = tmp_path / "commands"
        file.write_text("\n".join(self.commands) + "\n")
        source = Path(__file__).parent / "java" / "StateMachines.java"
        out = run_java("StateMachines", machine, str(file), str(tmp_path), sources=(source,), timeout_s=300)
        kafka = out.splitlines()
        assert len(kafka) == len(self.answers)
        for at, (ours, theirs) in enumerate(zip(self.answers, kafka, strict=True)):
            if ours != theirs:
                before = zip(self.commands[: at + 1], kafka, strict=False)
                history = "\n".join(f"{command}\n    {answer}" for command, answer in list(before)[-8:])
                pytest.fail(f"{history}\nours:\n    {ours}", pytrace=False)


# ---- leader epochs -----------------------------------------------------------------------------------


def entries_of(cache: LeaderEpochFileCache) -> str:
    return " ".join(f"{entry.epoch}:{entry.start_offset}" for entry in cache.entries)


def asked(cache: LeaderEpochFileCache, epoch: int, offset: int) -> str:
    entry = cache.entry_for(epoch)
    epochs = [each.epoch for each in cache.entries]
    before = max((each for each in epochs if each < epoch), default=None)
    behind = min((each for each in epochs if each > epoch), default=None)
    others = (before, behind, cache.epoch_for_offset(offset))
    found = [*cache.end_offset_for(epoch, offset), *others, None if entry is None else entry.start_offset]
    return " ".join("-9" if answer is None else str(answer) for answer in found)


def epochs_script(rng: random.Random) -> Script:
    script = Script()
    for _ in range(MACHINES):
        cache = LeaderEpochFileCache.load(LeaderEpochCheckpointFile(MemoryStorage(), "t-0"))
        script.add("", "new")
        for _ in range(STEPS):
            latest = cache.latest_entry or (0, 0)
            choice = rng.choices(["on", "any", "end", "start", "ask", "clear"], [25, 15, 10, 10, 38, 1])[0]
            epoch, offset = rng.randrange(-1, 16), rng.randrange(45)
            if choice in ("on", "any"):
                if choice == "on":
                    epoch, offset = latest[0] + rng.randrange(2), latest[1] + rng.randrange(6)
                cache.assign(max(epoch, 0), offset)
                script.add(entries_of(cache), "assign", max(epoch, 0), offset)
            elif choice == "end":
                cache.truncate_from_end(offset)
                script.add(entries_of(cache), "truncate_end", offset)
            elif choice == "start":
                cache.truncate_from_start(offset // 3)
                script.add(entries_of(cache), "truncate_start", offset // 3)
            elif choice == "clear":
                cache.clear()
                script.add("", "clear")
            else:
                script.add(asked(cache, epoch, offset), "ask", epoch, offset)
    return script


def test_leader_epochs_as_kafka(tmp_path: Path) -> None:
    epochs_script(random.Random(3)).compare("epochs", tmp_path)


# ---- producers ---------------------------------------------------------------------------------------


class Producers:
    """Our manager of one log, and the commands that chance gives it."""

    def __init__(self, rng: random.Random, script: Script) -> None:
        self.rng, self.script = rng, script
        self.storage = MemoryStorage()
        self.expiration_ms = rng.choice([50, 100_000])
        self.manager = self._open()
        self.start = self.end = self.high_watermark = 0
        self.now_ms = 100
        self._say("ok", "new", self.expiration_ms)

    def step(self) -> None:
        self.now_ms += self.rng.randrange(8)
        commands: list[tuple[Callable[[], None], int]] = [
            (self.data, 48),
            (self.marker, 20),
            (self.advance, 8),
            (self.snapshot, 8),
            (self.reload, 8),
            (self.look_at_the_clock, 8),
            (self.cut, 8),
        ]
        self.rng.choices([each for each, _ in commands], [weight for _, weight in commands])[0]()

    def data(self) -> None:
        rng, origin = self.rng, self.rng.choices((0, 1, 2), (8, 1, 1))[0]
        producer_id, count = rng.randrange(3), rng.randrange(1, 4)
        entry = self.manager.last_entry(producer_id) or ProducerStateEntry(producer_id, 0)
        epoch = max(entry.producer_epoch + rng.choices((0, 1, -1), (12, 1, 1))[0], 0)
        first = self._sequence(entry, continues=origin != 0)
        if origin == 0 and entry.batches and rng.random() < 0.15:  # one of the last five again
            again = rng.choice(entry.batches)
            epoch, first, count = entry.producer_epoch, again.first_sequence, again.offset_delta + 1
        last, end = add_sequence(first, count - 1), self.end
        txn = rng.random() < (0.93 if entry.in_transaction else 0.5)
        appended = self.manager.prepare_update(producer_id, ORIGINS[origin])
        try:
            duplicate = appended.append_data_batch(epoch, first, last, self.now_ms, end, end + count - 1, txn)
        except KreplicaError as error:
            answer = kafkas_name(error)
        else:
            if duplicate is None:
                answer = "ok"
                self.manager.update(appended)
                self.end = self.manager.map_end_offset = end + count
            else:
                answer = f"duplicate {duplicate.last_offset}"
        numbers = (epoch, first, last, self.now_ms, end, end + count - 1, int(txn))
        self._say(answer, "data", origin, producer_id, *numbers)

    def _sequence(self, entry: ProducerStateEntry, *, continues: bool) -> int:
        """What mostly, or where a leader has checked it always, comes next."""
        if not entry.batches:
            return self.rng.choice([0, 0, 0, 5, INT32_MAX - 4])
        if continues or self.rng.random() < 0.8:
            return add_sequence(entry.last_sequence, 1)
        return add_sequence(entry.last_sequence, self.rng.randrange(-12, 3))

    def marker(self) -> None:
        rng, origin = self.rng, self.rng.choice((1, 1, 1, 2))
        producer_id, end = rng.randrange(3), self.end
        entry = self.manager.last_entry(producer_id) or ProducerStateEntry(producer_id, 0)
        epoch = max(entry.producer_epoch + rng.choice((0, 0, 0, 1, 1, -1)), 0)
        coordinator_epoch, version = rng.choice((0, 1, 1, 1, 2)), rng.choice((0, 1, 2))
        abort = rng.random() < 0.5
        appended = self.manager.prepare_update(producer_id, ORIGINS[origin])
        try:
            completed = appended.append_end_txn_marker(
                epoch, coordinator_epoch, end, self.now_ms, abort, version
            )
        except KreplicaError as error:
            answer = kafkas_name(error)
        else:
            answer = "ok"
            self.manager.update(appended)
            if completed is not None:
                stable = self.manager.last_stable_offset(completed)
                self.manager.complete_txn(completed)
                outcome = str(completed.is_aborted).lower()
                answer = f"ended {completed.first_offset} {completed.last_offset} {outcome} {stable}"
            self.end = self.manager.map_end_offset = end + 1
        numbers = (epoch, end, self.now_ms, coordinator_epoch, int(abort), version)
        self._say(answer, "marker", origin, producer_id, *numbers)

    def advance(self) -> None:
        self.high_watermark = self.rng.randint(self.high_watermark, self.end)
        self.manager.on_high_watermark_updated(self.high_watermark)
        self._say("ok", "high_watermark", self.high_watermark)

    def snapshot(self) -> None:
        self.manager.take_snapshot()
        self._say("ok", "snapshot")

    def reload(self) -> None:
        self.start = self.rng.randint(self.start, max(self.start, self.high_watermark))
        end = self.rng.choice([self.end, self.rng.randint(self.start, self.end)])
        command = self.rng.choice(["reload", "reopen"])
        if command == "reopen":
            self.manager = self._open()
        self.manager.truncate_and_reload(self.start, end, self.now_ms)
        self.end = max(self.manager.map_end_offset, self.start)
        self.high_watermark = min(self.high_watermark, self.end)
        self._say("ok", command, self.start, end, self.now_ms)

    def look_at_the_clock(self) -> None:
        if self.rng.random() < 0.5:
            then = self.now_ms + self.rng.randrange(60)
            self.manager.remove_expired(then)
            self._say("ok", "expire", then)
        else:
            then = self.now_ms + self.rng.choice([0, 1_200_000, 1_200_005, 1_300_000])
            self._say(str(self.manager.has_late_transaction(then)).lower(), "late", then)

    def cut(self) -> None:
        command = self.rng.choices(["log_start", "truncate_fully", "delete_before", "stray"], (3, 1, 1, 1))[0]
        if command == "stray":
            bases = sorted(self.rng.sample(range(self.end + 2), min(self.rng.randrange(4), self.end)))
            self.manager.remove_stray_snapshots(bases)
            self._say("ok", command, *bases)
            return
        offset = self.rng.randint(self.start, self.end)
        if command == "log_start":
            self.start = offset
            self.manager.on_log_start_offset_incremented(offset)
        elif command == "truncate_fully":
            self.start = self.end = self.high_watermark = offset
            self.manager.truncate_fully_and_start_at(offset)
        else:
            self.manager.delete_snapshots_before(offset)
        self._say("ok", command, offset)

    def _open(self) -> ProducerStateManager:
        return ProducerStateManager(self.storage, "t-0", producer_id_expiration_ms=self.expiration_ms)

    def _say(self, answer: str, command: str, *numbers: int) -> None:
        self.script.add(f"{answer} | {self._state()}", command, *numbers)

    def _state(self) -> str:
        state = ""
        for producer_id, entry in sorted(self.manager.active_producers.items()):
            batches = " ".join(",".join(map(str, batch)) for batch in entry.batches)
            state += f"{producer_id} {entry.producer_epoch} {entry.coordinator_epoch} "
            state += f"{entry.last_timestamp} {entry.current_txn_first_offset} [{batches}] "
        offsets = (self.manager.first_unstable_offset, self.manager.first_undecided_offset)
        unstable, undecided = (-1 if offset is None else offset for offset in offsets)
        names = " ".join(self.storage.list_directory("t-0"))
        end = self.manager.map_end_offset
        return f"{state}unstable {unstable} undecided {undecided} end {end} snapshots {names}"


def kafkas_name(error: KreplicaError) -> str:
    name = type(error).__name__
    return KAFKAS_NAME.get(name, f"{name}Exception")


def test_producers_as_kafka(tmp_path: Path) -> None:
    script = Script()
    rng = random.Random(3)
    machines = []
    for _ in range(MACHINES):
        machines.append(Producers(rng, script))
        for _ in range(STEPS):
            machines[-1].step()
    script.compare("producers", tmp_path)
    compared = 0
    for number, machine in enumerate(machines):
        for file in (tmp_path / str(number)).iterdir():
            ours = machine.storage.files[f"t-0/{file.name}"]
            assert same_snapshot(ours, file.read_bytes()), file
            compared += 1
    assert compared > 50


def same_snapshot(ours: bytes, kafka: bytes) -> bool:
    """Byte for byte the same, but for the order of the producers, which is a hash map's there."""
    entries = [sorted(map(repr, parse_snapshot(data, "snapshot"))) for data in (ours, kafka)]
    return ours[:2] == kafka[:2] and len(ours) == len(kafka) and entries[0] == entries[1]
