"""Raw requests of transactions as lines of text, sent to one node, and its answers as text.

    init ID v=4 as=p           InitProducerId; `had=p` names what the producer has had (KIP-360)
    add ID p T-0,T-1 v=3       AddPartitionsToTxn; `verify` only verifies, from version 4 on
    offsets ID p GROUP v=3     AddOffsetsToTxn
    commit ID p GROUP T-0=5 v=3    TxnOffsetCommit; `generation=`, `member=`
    end ID p commit v=4        EndTxn; `abort` for the other outcome
    produce ID p T-0 seq=0 v=11    Produce of one record; `plain` without a transaction
    marker p commit T-0 epoch=0 tv=0   WriteTxnMarkers by a coordinator of that epoch
    describe ID · list ... · producers T-0   what tools ask
    bounds T-0 · fetched GROUP T-0   the last stable offset and the end; a committed offset
    settle ID                  wait until no markers of the id are on their way
    await ID STATE             wait until the id is in the state
    level 1                    change the finalized level of transaction.version
    delete T                   delete a topic

A producer is a name that `as=` has given, `p+1` or `p-1` for another epoch, or `77/3` for an id and an epoch.
Producer ids are shown as the order in which a script has met them. `~` in a line is the script's own prefix.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from kreplica.common.encoded_request import VersionedRequest
from kreplica.common.error_code import ErrorCode
from kreplica.common.message import Message, schema_of
from kreplica.common.message_reader import NUMBER_BYTES, MessageReader
from kreplica.common.messages.administration import (
    DeleteTopicsRequest,
    DeleteTopicState,
    FeatureUpdateKey,
    UpdateFeaturesRequest,
)
from kreplica.common.messages.data import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeProducersRequest,
    DescribeProducersRequestTopicRequest,
    InitProducerIdRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kreplica.common.messages.groups import (
    FindCoordinatorRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kreplica.common.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kreplica.common.types import TopicPartition
from tests.support.batches import build
from tests.support.polling import wait_until
from tests.support.tcp_cluster import TcpClient

TIMEOUT_MS = 60_000
GROUP, TRANSACTION = 0, 1
FEATURE = "transaction.version"
UPGRADE, SAFE_DOWNGRADE = 1, 2
COORDINATORS = 4
LATEST = -1
NOWHERE = "-"
UNDECIDED = {"PrepareCommit", "PrepareAbort"}

Words = list[str]
Named = dict[str, str]


class _ApiVersions(VersionedRequest):
    """Its response has no tags in the header, so that every client can read it."""

    def read(self, frame: memoryview) -> Any:
        return MessageReader(frame, NUMBER_BYTES).read(schema_of(ApiVersionsResponse, self.kind.__version__))


class TransactionRequests:
    """Sends lines of one script to the node that `client` reaches; `prefix` stands for `~`."""

    def __init__(self, client: TcpClient, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        self._producers: dict[str, tuple[int, int]] = {}
        self._order: list[int] = []
        self._verbs: dict[str, Callable[[Words, Named], str]] = {
            name.removeprefix("_do_"): getattr(self, name) for name in dir(self) if name.startswith("_do_")
        }

    def answer(self, line: str) -> str:
        """Send the request of the line; return what matters of the answer."""
        verb, *words = line.replace("~", self._prefix).split()
        named = dict(word.split("=", 1) for word in words if "=" in word and "-" not in word.split("=")[0])
        plain = [word for word in words if word.split("=")[0] not in named]
        found = self._verbs[verb](plain, named)
        return found.replace(self._prefix, "~")

    def send(self, request: Message, named: Named) -> Any:
        """Return the answer to the request, in the version that is named."""
        version = int(named.get("v", type(request).__version__))
        sent = self._client.transport.send(1, VersionedRequest(request, version), timeout_ms=TIMEOUT_MS)
        return sent.result(TIMEOUT_MS / 1000)

    def begin(self, topics: list[str], transactional_id: str, group: str) -> None:
        """Wait until the node leads the first two partitions of the topics, coordinates both, and has ids."""
        for topic in topics:
            for number in range(2):
                wait_until(
                    lambda at=f"{topic}-{number}": self.answer(f"bounds {at}") == "none 0, none 0",
                    f"a leader of {topic}-{number}",
                )
        wait_until(lambda: self.answer("init - v=4").startswith("none"), "producer ids")
        self._order.clear()
        for kind, name in ((TRANSACTION, transactional_id), (GROUP, group)):
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=(name,))
            wait_until(
                lambda request=request: (
                    self.send(request, {"v": str(COORDINATORS)}).coordinators[0].error_code is ErrorCode.none
                ),
                f"the coordinator of {name}",
            )

    # ---- producers ----------------------------------------------------------------------------------------

    def _producer(self, word: str) -> tuple[int, int]:
        if "/" in word:
            producer_id, epoch = word.split("/")
            return int(producer_id), int(epoch)
        for sign in "+-":
            if sign in word:
                name, change = word.split(sign)
                return self._producers[name][0], self._producers[name][1] + int(sign + change)
        return self._producers[word]

    def _show(self, producer_id: int, epoch: int) -> str:
        if producer_id < 0 or epoch < 0:
            return f"{producer_id}/{epoch}"
        if producer_id not in self._order:
            self._order.append(producer_id)
        return f"#{self._order.index(producer_id)}/{epoch}"

    def _answered(self, answer: Any, named: Named) -> str:
        """Show the producer of an answer, and keep it under the name that is named."""
        if answer.error_code is not ErrorCode.none:
            return f"{answer.error_code.name} {answer.producer_id}/{answer.producer_epoch}"
        if "as" in named:
            self._producers[named["as"]] = answer.producer_id, answer.producer_epoch
        return f"none {self._show(answer.producer_id, answer.producer_epoch)}"

    # ---- requests of producers ----------------------------------------------------------------------------

    def _do_init(self, words: Words, named: Named) -> str:
        producer_id, epoch = self._producer(named["had"]) if "had" in named else (-1, -1)
        name = "" if not words else words[0]
        request = InitProducerIdRequest(
            transactional_id=None if name == NOWHERE else name,
            transaction_timeout=timedelta(milliseconds=int(named.get("timeout", "60000"))),
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        return self._answered(self.send(request, named), named)

    def _do_add(self, words: Words, named: Named) -> str:
        name, producer, places, *verify = words
        producer_id, epoch = self._producer(producer)
        topics = tuple(
            AddPartitionsToTxnTopic(name=topic, partitions=tuple(numbers))
            for topic, numbers in _by_topic(places).items()
        )
        if int(named["v"]) < 4:
            answer = self.send(
                AddPartitionsToTxnRequest(
                    v3_and_below_transactional_id=name,
                    v3_and_below_producer_id=producer_id,
                    v3_and_below_producer_epoch=epoch,
                    v3_and_below_topics=topics,
                ),
                named,
            )
            return _codes(answer.results_by_topic_v3_and_below)
        asked = AddPartitionsToTxnTransaction(
            transactional_id=name,
            producer_id=producer_id,
            producer_epoch=epoch,
            verify_only="verify" in verify,
            topics=topics,
        )
        answer = self.send(AddPartitionsToTxnRequest(transactions=(asked,)), named)
        [found] = answer.results_by_transaction
        return f"{answer.error_code.name}: {found.transactional_id} {_codes(found.topic_results)}"

    def _do_offsets(self, words: Words, named: Named) -> str:
        name, producer, *group = words
        producer_id, epoch = self._producer(producer)
        request = AddOffsetsToTxnRequest(
            transactional_id=name,
            producer_id=producer_id,
            producer_epoch=epoch,
            group_id="".join(group),
        )
        return str(self.send(request, named).error_code.name)

    def _do_commit(self, words: Words, named: Named) -> str:
        name, producer, group, *offsets = words
        producer_id, epoch = self._producer(producer)
        places = dict(each.split("=") for each in offsets)
        topics = {topic: numbers for place in places for topic, numbers in _by_topic(place).items()}
        request = TxnOffsetCommitRequest(
            transactional_id=name,
            group_id="" if group == NOWHERE else group,
            producer_id=producer_id,
            producer_epoch=epoch,
            generation_id=int(named.get("generation", "-1")),
            member_id=named.get("member", ""),
            topics=tuple(
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=tuple(
                        TxnOffsetCommitRequestPartition(
                            partition_index=number,
                            committed_offset=int(places[f"{topic}-{number}"]),
                            committed_metadata=named.get("metadata"),
                        )
                        for number in numbers
                    ),
                )
                for topic, numbers in topics.items()
            ),
        )
        answer = self.send(request, named)
        return " ".join(
            f"{topic.name}-{each.partition_index}:{each.error_code.name}"
            for topic in answer.topics
            for each in topic.partitions
        )

    def _do_end(self, words: Words, named: Named) -> str:
        *name, producer, outcome = words
        producer_id, epoch = self._producer(producer)
        request = EndTxnRequest(
            transactional_id="".join(name),
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=outcome == "commit",
        )
        return self._answered(self.send(request, named), named)

    def _do_produce(self, words: Words, named: Named) -> str:
        name, producer, place, *plain = words
        at = _at(place)
        producer_id, epoch = self._producer(producer)
        batch = build(
            [b"value"],
            now_ms=time.time_ns() // 1_000_000,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=int(named["seq"]),
            transactional="plain" not in plain,
        )
        data = PartitionProduceData(index=at.partition, records=batch)
        request = ProduceRequest(
            transactional_id=None if name == NOWHERE else name,
            acks=int(named.get("acks", "-1")),
            timeout=timedelta(seconds=30),
            topic_data=(TopicProduceData(name=at.topic, partition_data=(data,)),),
        )
        [answer] = self.send(request, named).responses[0].partition_responses
        return f"{answer.error_code.name} at {answer.base_offset}"

    # ---- requests of brokers and tools --------------------------------------------------------------------

    def _do_marker(self, words: Words, named: Named) -> str:
        producer, outcome, places = words
        producer_id, epoch = self._producer(producer)
        marker = WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=epoch,
            transaction_result=outcome == "commit",
            topics=tuple(
                WritableTxnMarkerTopic(name=topic, partition_indexes=tuple(numbers))
                for topic, numbers in _by_topic(places).items()
            ),
            coordinator_epoch=int(named["epoch"]),
            transaction_version=int(named.get("tv", "0")),
        )
        answer = self.send(WriteTxnMarkersRequest(markers=(marker,)), named)
        return " ".join(
            f"{topic.name}-{each.partition_index}:{each.error_code.name}"
            for each_marker in answer.markers
            for topic in each_marker.topics
            for each in topic.partitions
        )

    def _described(self, name: str) -> Any:
        [found] = self.send(DescribeTransactionsRequest(transactional_ids=(name,)), {}).transaction_states
        return found

    def _do_describe(self, words: Words, _: Named) -> str:
        found = self._described("".join(words))
        if found.error_code is not ErrorCode.none:
            return f"{found.error_code.name} [{found.transactional_id}]"
        started = "started" if found.transaction_start_time is not None else "not started"
        places = " ".join(f"{each.topic}-{each.partitions}" for each in found.topics)
        producer = self._show(found.producer_id, found.producer_epoch)
        timeout_ms = found.transaction_timeout // timedelta(milliseconds=1)
        return f"{found.transaction_state} {producer} {timeout_ms} ms, {started} [{places}]"

    def _do_list(self, _: Words, named: Named) -> str:
        request = ListTransactionsRequest(
            state_filters=tuple(named["states"].split(",")) if "states" in named else (),
            producer_id_filters=(self._producer(named["producer"])[0],) if "producer" in named else (),
            duration_filter=int(named.get("duration", "-1")),
            transactional_id_pattern=named.get("pattern"),
        )
        answer = self.send(request, named)
        found = sorted(
            f"{each.transactional_id}={each.transaction_state}"
            for each in answer.transaction_states
            if each.transactional_id.startswith(self._prefix)
        )
        return f"{answer.error_code.name} unknown {list(answer.unknown_state_filters)} {found}"

    def _do_producers(self, words: Words, _: Named) -> str:
        at = _at(words[0])
        topic = DescribeProducersRequestTopicRequest(name=at.topic, partition_indexes=(at.partition,))
        answer = self.send(DescribeProducersRequest(topics=(topic,)), {})
        [found] = answer.topics[0].partitions
        producers = [
            f"{self._show(each.producer_id, each.producer_epoch)} sequence {each.last_sequence} coordinator"
            f" {each.coordinator_epoch} from {each.current_txn_start_offset}"
            for each in found.active_producers
        ]
        return f"{found.error_code.name} {sorted(producers)}"

    def _do_bounds(self, words: Words, _: Named) -> str:
        at = _at(words[0])
        offsets = []
        for isolation in (1, 0):
            partition = ListOffsetsPartition(partition_index=at.partition, timestamp=LATEST)
            topic = ListOffsetsTopic(name=at.topic, partitions=(partition,))
            request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=(topic,))
            [found] = self.send(request, {}).topics[0].partitions
            offsets.append(f"{found.error_code.name} {found.offset}")
        return ", ".join(offsets)

    def _do_fetched(self, words: Words, _: Named) -> str:
        group, place = words
        at = _at(place)
        topic = OffsetFetchRequestTopics(name=at.topic, partition_indexes=(at.partition,))
        request = OffsetFetchRequest(
            groups=(OffsetFetchRequestGroup(group_id=group, topics=(topic,)),), require_stable=True
        )
        [found] = self.send(request, {"v": "8"}).groups
        [each] = found.topics[0].partitions
        return f"{found.error_code.name} {each.error_code.name} {each.committed_offset} {each.metadata!r}"

    def _do_settle(self, words: Words, _: Named) -> str:
        wait_until(
            lambda: self._described(words[0]).transaction_state not in UNDECIDED, "the markers are written"
        )
        return ""

    def _do_await(self, words: Words, _: Named) -> str:
        name, state = words
        wait_until(lambda: self._described(name).transaction_state == state, f"{name} is in {state}")
        return ""

    def _do_level(self, words: Words, _: Named) -> str:
        level = int(words[0])
        kind = SAFE_DOWNGRADE if level < self.offered()[1] else UPGRADE
        update = FeatureUpdateKey(feature=FEATURE, max_version_level=level, upgrade_type=kind)
        answer = self.send(UpdateFeaturesRequest(feature_updates=(update,)), {})
        wait_until(lambda: self.offered()[1] == level, f"the level is {level}")
        return str(answer.error_code.name)

    def offered(self) -> tuple[dict[int, tuple[int, int]], int]:
        """Return the versions of each API, and the finalized level of transaction.version."""
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        sent = self._client.transport.send(1, _ApiVersions(request, 4), timeout_ms=TIMEOUT_MS)
        answer = sent.result(TIMEOUT_MS / 1000)
        level = next(
            (each.max_version_level for each in answer.finalized_features if each.name == FEATURE), 0
        )
        return {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}, level

    def _do_delete(self, words: Words, _: Named) -> str:
        topic = DeleteTopicState(name=words[0], topic_id=None)
        request = DeleteTopicsRequest(topics=(topic,), timeout=timedelta(milliseconds=TIMEOUT_MS))
        [answer] = self.send(request, {}).responses
        place = f"{words[0]}-0"
        wait_until(lambda: self.answer(f"bounds {place}").startswith("unknown"), f"{place} is deleted")
        return str(answer.error_code.name)


def _at(place: str) -> TopicPartition:
    topic, _, number = place.rpartition("-")
    return TopicPartition(topic, int(number))


def _by_topic(places: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for place in places.split(","):
        at = _at(place)
        found.setdefault(at.topic, []).append(at.partition)
    return found


def _codes(topics: Any) -> str:
    """Show the errors by partition; a broker may answer in any order."""
    return " ".join(
        sorted(
            f"{topic.name}-{each.partition_index}:{each.partition_error_code.name}"
            for topic in topics
            for each in topic.results_by_partition
        )
    )
