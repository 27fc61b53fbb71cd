"""`kreplica topic`: manage topics of any Kafka-compatible cluster."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kreplica.cli import stock_client
from kreplica.cli.output import Fact, print_facts, print_json, say
from kreplica.cli.scope import is_internal
from kreplica.common.errors import NetworkException, RequestTimedOut, UnknownTopicOrPartition
from kreplica.common.message import structure_of

TIMEOUT_S = 15.0
LOOK_AGAIN_S = 0.02
METADATA = 3
# Kafka's number for a value that is set on the topic itself, not on a broker or by default.
DYNAMIC_TOPIC_CONFIG = 1
ALL_REPLICAS = -1


def list_topics(bootstrap: str, internal: bool, as_json: bool) -> int:
    """Print the topics with their partitions and replicas; returns the exit code."""
    topics = stock_client.connect("AdminClient", bootstrap).metadata.topics
    facts = [
        {
            "topic": name,
            "partitions": len(topic.partitions),
            "replicas": max((len(each.replicas) for each in topic.partitions.values()), default=0),
            "without_leader": sum(each.leader < 0 for each in topic.partitions.values()),
            "under_replicated": sum(
                len(each.isrs) < len(each.replicas) for each in topic.partitions.values()
            ),
        }
        for name, topic in sorted(topics.items())
        if internal or not is_internal(name)
    ]
    return _show("topics", facts, as_json)


def describe(bootstrap: str, names: Sequence[str], as_json: bool) -> int:
    """Print each partition's leader, replicas, ISR and offsets, and the topics' own settings."""
    connected = stock_client.connect("AdminClient", bootstrap)
    admin, topics = connected.client, connected.metadata.topics
    for name in names:
        if name not in topics:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
    for name in names:
        offsets = _offsets(
            admin, name, [i for i, each in topics[name].partitions.items() if each.leader >= 0]
        )
        facts: list[Fact] = [
            {
                "topic": name,
                "partition": index,
                "leader": each.leader,
                "replicas": list(each.replicas),
                "isr": list(each.isrs),
                "log_start_offset": offsets.get(index, (None, None))[0],
                "high_watermark": offsets.get(index, (None, None))[1],
            }
            for index, each in sorted(topics[name].partitions.items())
        ]
        _show(f"{name}  {_settings(admin, name)}".rstrip(), facts, as_json)
    return 0


def create(
    bootstrap: str, name: str, partitions: int, replicas: int, settings: Mapping[str, str], as_json: bool
) -> int:
    """Create a topic, and wait until all brokers know its leaders."""
    connected = stock_client.connect("AdminClient", bootstrap)
    admin = connected.client
    module = stock_client.admin_module()
    wanted = module.NewTopic(name, partitions, replicas, config=dict(settings))
    with stock_client.errors():
        futures = admin.create_topics([wanted], operation_timeout=TIMEOUT_S, request_timeout=TIMEOUT_S)
    _done(futures, "created", connected, as_json)
    _wait_until_known(connected.metadata.brokers.values(), name)
    return 0


def _wait_until_known(brokers: Iterable[Any], name: str) -> None:
    """Return when every broker names a leader for all partitions of the topic. Raises RequestTimedOut with
    the other brokers after TIMEOUT_S."""
    deadline = time.monotonic() + TIMEOUT_S
    late = {f"{each.host}:{each.port}": (each.host, each.port) for each in brokers}
    while True:
        late = {text: address for text, address in late.items() if not _knows(address, name)}
        if not late:
            return
        if time.monotonic() > deadline:
            text = f"{name} was created, but {TIMEOUT_S:g} s later it was still unknown to {', '.join(late)}"
            raise RequestTimedOut(f"{text}: clients that ask there find no leader")
        time.sleep(LOOK_AGAIN_S)


def _knows(address: tuple[str, int], name: str) -> bool:
    from kreplica.cli.kafka_connection import KafkaConnection

    try:
        with KafkaConnection(*address) as broker:
            kind: Any = broker.newest(METADATA, (4, 5, 6, 7))
            asked: Any = structure_of(kind, "topics")
            answer = broker.ask(kind(topics=(asked(name=name),), allow_auto_topic_creation=False))
    except ConnectionRefusedError:
        return True  # it is down, and will know the topic before it serves clients
    except (OSError, NetworkException):
        return False
    (topic,) = answer.topics
    return not topic.error_code and all(each.leader_id >= 0 for each in topic.partitions)


def delete(bootstrap: str, names: Sequence[str], as_json: bool) -> int:
    """Delete topics and all their records."""
    connected = stock_client.connect("AdminClient", bootstrap)
    admin = connected.client
    with stock_client.errors():
        futures = admin.delete_topics(list(names), operation_timeout=TIMEOUT_S, request_timeout=TIMEOUT_S)
    return _done(futures, "deleted", connected, as_json)


def add_partitions(bootstrap: str, name: str, total: int, as_json: bool) -> int:
    """Give a topic `total` partitions."""
    connected = stock_client.connect("AdminClient", bootstrap)
    admin = connected.client
    module = stock_client.admin_module()
    with stock_client.errors():
        futures = admin.create_partitions([module.NewPartitions(name, total)], request_timeout=TIMEOUT_S)
    return _done(futures, "changed", connected, as_json)


def configure(
    bootstrap: str, name: str, settings: Mapping[str, str], dropped: Sequence[str], as_json: bool
) -> int:
    """Change a topic's settings, or print them if there are no changes."""
    connected = stock_client.connect("AdminClient", bootstrap)
    admin = connected.client
    module = stock_client.admin_module()
    if not settings and not dropped:
        facts = [
            {"name": each.name, "value": each.value, "set": each.source == DYNAMIC_TOPIC_CONFIG}
            for each in _config(admin, name)
        ]
        return _show(name, facts, as_json)
    changes = [
        module.ConfigEntry(key, value, incremental_operation=module.AlterConfigOpType.SET)
        for key, value in settings.items()
    ]
    changes += [
        module.ConfigEntry(key, None, incremental_operation=module.AlterConfigOpType.DELETE)
        for key in dropped
    ]
    resource = module.ConfigResource(module.ResourceType.TOPIC, name, incremental_configs=changes)
    with stock_client.errors():
        futures = admin.incremental_alter_configs([resource], request_timeout=TIMEOUT_S)
    return _done(dict(zip([name], futures.values(), strict=True)), "changed", connected, as_json)


# ---- what is asked, and how it is shown ------------------------------------------------------------------


def _offsets(admin: Any, name: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return the first offset and the end of each partition that has a leader."""
    client, module = stock_client.client_module(), stock_client.admin_module()
    found = []
    for spec in (module.OffsetSpec.earliest(), module.OffsetSpec.latest()):
        wanted = {client.TopicPartition(name, index): spec for index in partitions}
        with stock_client.errors():
            futures = admin.list_offsets(wanted, request_timeout=TIMEOUT_S) if wanted else {}
        found.append({at.partition: stock_client.result(future).offset for at, future in futures.items()})
    return {index: (found[0][index], found[1][index]) for index in partitions}


def _config(admin: Any, name: str) -> list[Any]:
    module = stock_client.admin_module()
    with stock_client.errors():
        asked = [module.ConfigResource(module.ResourceType.TOPIC, name)]
        (future,) = admin.describe_configs(asked, request_timeout=TIMEOUT_S).values()
    return sorted(stock_client.result(future).values(), key=lambda each: str(each.name))


def _settings(admin: Any, name: str) -> str:
    return " ".join(
        f"{each.name}={each.value}" for each in _config(admin, name) if each.source == DYNAMIC_TOPIC_CONFIG
    )


def _show(title: str, facts: Sequence[Fact], as_json: bool) -> int:
    if facts or as_json:
        print_facts(title, list(facts[0]) if facts else (), facts, as_json)
    else:
        say(f"no {title}")
    return 0


def _done(futures: Mapping[str, Any], verb: str, connected: stock_client.Connected, as_json: bool) -> int:
    def print_done(name: str) -> None:
        if as_json:
            print_json({"topic": name, "done": verb, "cluster_id": connected.metadata.cluster_id})
        else:
            say(f"{verb} {name} in {connected.cluster}")

    stock_client.each_result(futures, print_done)
    return 0
