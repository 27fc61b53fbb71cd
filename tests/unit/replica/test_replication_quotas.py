"""A broker's two quotas: their rates, and which replicas each holds."""

from __future__ import annotations

from kreplica.common.config import LogConfig
from kreplica.common.types import TopicPartition
from kreplica.replica.replica_config import ReplicaConfig
from kreplica.replica.replication_quotas import FOLLOWER_RATE, LEADER_RATE, ReplicationQuotas
from tests.support.virtual import VirtualMachine

START = ReplicaConfig(leader_replication_throttled_rate=500, follower_replication_throttled_rate=700)
LISTED = LogConfig.parse(
    {
        "leader.replication.throttled.replicas": "0:1,1:2",
        "follower.replication.throttled.replicas": "*",
    }
)


def made(broker_id: int = 1) -> ReplicationQuotas:
    return ReplicationQuotas(broker_id, START, VirtualMachine().clock)


def rates(quotas: ReplicationQuotas) -> tuple[int, int]:
    return quotas.leader.bytes_per_second, quotas.follower.bytes_per_second


def test_rates_are_the_initial_ones_until_others_are_set() -> None:
    quotas = made()
    assert rates(quotas) == (500, 700)
    quotas.set_rates({LEADER_RATE: "9", FOLLOWER_RATE: "11"})
    assert rates(quotas) == (9, 11)
    quotas.set_rates({LEADER_RATE: "9"})
    assert rates(quotas) == (9, 700)
    quotas.set_rates({})
    assert rates(quotas) == (500, 700)


def test_each_quota_has_its_own_list_of_this_brokers_replicas() -> None:
    quotas = made()
    quotas.set_throttled({"t": LISTED, "u": LogConfig()})
    partitions = [TopicPartition("t", number) for number in range(3)]
    assert [quotas.leader.is_throttled(each) for each in partitions] == [True, False, False]
    assert [quotas.follower.is_throttled(each) for each in partitions] == [True, True, True]
    assert not quotas.leader.is_throttled(TopicPartition("u", 0))


def test_a_topic_without_settings_of_its_own_is_not_held() -> None:
    quotas = made()
    quotas.set_throttled({"t": LISTED})
    quotas.set_throttled({"t": None})
    assert not quotas.leader.is_active
    assert not quotas.follower.is_active


def test_the_windows_are_the_brokers() -> None:
    machine = VirtualMachine()
    config = ReplicaConfig(replication_quota_window_num=2, replication_quota_window_size_seconds=1)
    quota = ReplicationQuotas(1, config, machine.clock).leader
    quota.record(1_000)
    assert quota.rate() == 1_000
    machine.pass_time(2_000)
    assert quota.rate() == 0
