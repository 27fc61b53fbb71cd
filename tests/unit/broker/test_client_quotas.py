"""Which quota a client has, whose bucket it shares, and what each change of the quotas does to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.broker import client_quotas
from kreplica.broker.client_quotas import (
    FETCH,
    IDLE_MS,
    MUTATION,
    PRODUCE,
    REQUEST,
    BucketKey,
    ClientQuotas,
    QuotaLimits,
    RequestQuota,
)
from kreplica.broker.node_config import QuotaConfig
from kreplica.broker.request_context import RequestContext
from kreplica.common.errors import ThrottlingQuotaExceeded
from kreplica.common.metrics import MetricRegistry
from kreplica.metadata.client_quotas import quota_key
from kreplica.metadata.cluster_metadata import ClusterMetadata, MetadataDelta
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.security.peer import THIS_PROCESS, USER, KafkaPrincipal, Peer

MS = 1_000_000
Entity = Mapping[str, str | None]


class ManualClock:
    def __init__(self) -> None:
        self.ns = 5 * MS

    def time_ms(self) -> int:
        return self.ns // MS

    def monotonic_ns(self) -> int:
        return self.ns

    def pass_ms(self, delay_ms: float) -> None:
        self.ns += int(delay_ms * MS)


class Stage:
    """The quotas of a node, changed as the metadata changes them."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.metrics = MetricRegistry()
        self.quotas = ClientQuotas(QuotaConfig(), self.clock, self.metrics)
        self._metadata = ClusterMetadata()

    def set(self, entity: Entity, **quotas: float | None) -> None:
        """Set quotas of an entity; None removes one."""
        metadata = self._metadata.copy()
        key = quota_key(entity.items())
        found = {**metadata.quotas.get(key, {}), **quotas}
        left = {name: value for name, value in found.items() if value is not None}
        metadata.put("quotas", key, left or None, 0)
        self._metadata = metadata
        self.quotas.on_metadata_update(MetadataDelta(), metadata, OffsetAndEpoch(1, 1))

    def request(self, user: str = "alice", client_id: str = "c", size: int = 0) -> RequestQuota:
        peer = Peer("/10.0.0.1", KafkaPrincipal(USER, user))
        made = self.quotas.begin(peer, client_id, size, self.clock.monotonic_ns())
        assert made is not None
        return made

    def produce(self, size: int, **client: str) -> int:
        """Charge a Produce request; return its throttle time."""
        made = self.request(size=size, **client)
        made.charge_produced()
        return made.throttle_ms

    def mutation(self, user: str = "alice", client_id: str = "c", *, is_strict: bool = True) -> Any:
        context = RequestContext(7, client_id, Peer("/10.0.0.1", KafkaPrincipal(USER, user)))
        return self.quotas.mutation(context, is_strict=is_strict)


@pytest.fixture
def stage() -> Stage:
    return Stage()


# ---- precedence ------------------------------------------------------------------------------------------

ENTITIES = st.tuples(
    st.sampled_from(["absent", "a", "b", None]), st.sampled_from(["absent", "a", "b", None])
).filter(lambda each: each != ("absent", "absent"))


@given(
    st.dictionaries(ENTITIES, st.integers(1, 9), max_size=12), st.sampled_from("abx"), st.sampled_from("abx")
)
def test_the_first_quota_that_is_set_applies(
    quotas: dict[tuple[str | None, str | None], int], user: str, client_id: str
) -> None:
    made = QuotaLimits(
        {
            quota_key(
                (kind, name)
                for kind, name in (("user", of_user), ("client-id", of_client))
                if name != "absent"
            ): {"producer_byte_rate": float(value)}
            for (of_user, of_client), value in quotas.items()
        }
    )
    # Kafka's order, written out, and whose bucket each of them uses.
    order = [
        ((user, client_id), (user, client_id)),
        ((user, None), (user, client_id)),
        ((user, "absent"), (user, None)),
        ((None, client_id), (user, client_id)),
        ((None, None), (user, client_id)),
        ((None, "absent"), (user, None)),
        (("absent", client_id), (None, client_id)),
        (("absent", None), (None, client_id)),
    ]
    expected = next(
        ((quotas[entity], BucketKey(PRODUCE, *whose)) for entity, whose in order if entity in quotas), None
    )
    assert made.find(PRODUCE, user, client_id) == expected
    assert made.find(FETCH, user, client_id) is None


LEVELS: list[Entity] = [
    {"client-id": None},
    {"client-id": "c"},
    {"user": None},
    {"user": None, "client-id": None},
    {"user": None, "client-id": "c"},
    {"user": "alice"},
    {"user": "alice", "client-id": None},
    {"user": "alice", "client-id": "c"},
]


def test_a_quota_is_set_altered_and_removed_at_each_level_under_load(stage: Stage) -> None:
    # KAFKA-9658, 10458: from the last in precedence to the first, then back.
    for level, entity in enumerate(LEVELS, 1):
        stage.set(entity, producer_byte_rate=level * 1000.0)
        assert quota_of(stage) == level * 1000
        stage.set(entity, producer_byte_rate=level * 1000.0 + 1)
        assert quota_of(stage) == level * 1000 + 1
    for level, entity in reversed(list(enumerate(LEVELS, 1))):
        assert quota_of(stage) == level * 1000 + 1
        stage.set(entity, producer_byte_rate=None)
    # Without any quota nothing is counted.
    assert stage.quotas.limits is None
    assert stage.quotas.begin(Peer("/10.0.0.1"), "c", 1 << 30, 0) is None


def quota_of(stage: Stage) -> float:
    """The quota that a produce meets: what a silent client may send in 10 s, and 1 byte more."""
    found = stage.request().client.produce
    assert found is not None
    quota = found.bucket.quota
    stage.clock.pass_ms(60_000)
    assert stage.produce(int(quota * 10)) == 0
    assert stage.produce(int(quota)) == 1_000
    return float(quota)


def test_what_was_used_counts_against_a_changed_quota(stage: Stage) -> None:
    stage.set({"user": "alice"}, producer_byte_rate=10_000.0)
    assert stage.produce(20_000) == 0
    stage.set({"user": "alice"}, producer_byte_rate=1_000.0)
    assert stage.produce(0) == 10_000


# ---- buckets ---------------------------------------------------------------------------------------------


def test_all_clients_of_a_user_share_the_bucket_of_the_user(stage: Stage) -> None:
    stage.set({"user": None}, producer_byte_rate=1_000.0)
    assert stage.produce(10_000, client_id="one") == 0
    assert stage.produce(10_000, client_id="two") == 10_000
    assert stage.produce(10_000, user="bob") == 0


def test_each_client_id_of_a_user_has_a_bucket_if_the_quota_names_client_ids(stage: Stage) -> None:
    stage.set({"user": "alice", "client-id": None}, producer_byte_rate=1_000.0)
    assert stage.produce(10_000, client_id="one") == stage.produce(10_000, client_id="two") == 0
    assert stage.produce(1_000, client_id="one") == 1_000


def test_all_users_share_the_bucket_of_a_client_id(stage: Stage) -> None:
    stage.set({"client-id": None}, producer_byte_rate=1_000.0)
    assert stage.produce(20_000) == 10_000
    assert stage.produce(0, user="bob") == 10_000
    assert stage.produce(0, user="bob", client_id="other") == 0


def test_idle_buckets_go_with_their_metrics(stage: Stage) -> None:
    stage.set({"user": None}, producer_byte_rate=1_000.0)
    stage.produce(20_000, user="al/ice")
    shown = "kafka.server:type=Produce,name=byte-rate,client-id=,user=al%2Fice"
    assert stage.metrics.values()[shown] == 2_000
    assert stage.metrics.values()[shown.replace("byte-rate", "throttle-time")] == 10_000
    stage.clock.pass_ms(IDLE_MS - 1)
    stage.produce(1, user="bob")
    assert shown in stage.metrics.values()
    stage.clock.pass_ms(60_001)
    stage.produce(1, user="bob")
    assert shown not in stage.metrics.values()
    assert shown.replace("al%2Fice", "bob") in stage.metrics.values()


def test_the_number_of_buckets_is_bounded(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quotas, "MOST_BUCKETS", 20)
    stage.set({"client-id": None}, producer_byte_rate=1_000.0)
    stage.produce(20_000, client_id="noisy")
    for number in range(200):
        stage.clock.pass_ms(1)
        stage.produce(1, client_id=str(number))
        # A client that is in use keeps its bucket.
        assert stage.produce(0, client_id="noisy") > 0
        assert len([name for name in stage.metrics.values() if "byte-rate" in name]) <= 20


def test_long_client_ids_share_a_bucket_by_their_beginning(stage: Stage) -> None:
    stage.set({"client-id": None}, producer_byte_rate=1_000.0)
    stage.produce(20_000, client_id="x" * 255 + "a" * 30_000)
    assert stage.produce(0, client_id="x" * 255 + "b") == 10_000


# ---- kinds of quotas -------------------------------------------------------------------------------------


def test_a_fetch_over_its_quota_is_taken_back(stage: Stage) -> None:
    stage.set({"user": "alice"}, consumer_byte_rate=1_000.0)
    first, second, third = stage.request(), stage.request(), stage.request()
    assert first.most_fetched == 10_000
    assert first.take_fetched(10_000)
    assert first.throttle_ms == 0
    assert not second.take_fetched(5_000)
    assert second.throttle_ms == 5_000
    # The same again: the bytes that were not sent do not count.
    assert not third.take_fetched(5_000)
    assert third.throttle_ms == 5_000


def test_a_batch_larger_than_every_burst_is_sent_to_a_client_within_its_quota(stage: Stage) -> None:
    stage.set({"user": "alice"}, consumer_byte_rate=1_024.0)
    request = stage.request()
    assert request.take_fetched(1 << 20)
    assert request.throttle_ms == 1_014_000
    assert not stage.request().take_fetched(1 << 20)
    # The samples without any fetch go after 11 s.
    stage.clock.pass_ms(11_000)
    assert stage.request().take_fetched(1 << 20)


def test_request_time_is_throttled_for_a_window_at_most(stage: Stage) -> None:
    stage.set({"user": "alice"}, request_percentage=0.5)
    request = stage.request()
    stage.clock.pass_ms(60)
    request.pause()
    stage.clock.pass_ms(5_000)
    request.resume()
    stage.clock.pass_ms(40)
    request.charge_time()
    # 100 ms are 1 % of 10 s, twice the quota: 10 s, but for the limit.
    assert request.throttle_ms == 1_000
    assert request.client.request is not None
    assert request.client.request.bucket.rate(stage.quotas.now_ms()) == pytest.approx(1.0)


def test_the_time_of_the_answer_is_counted_without_a_wait(stage: Stage) -> None:
    stage.set({"user": "alice"}, request_percentage=0.5)
    request = stage.request()
    request.charge_time()
    stage.clock.pass_ms(100)
    request.note_time()
    assert request.throttle_ms == 0
    another = stage.request()
    another.charge_time()
    assert another.throttle_ms == 1_000


def test_the_larger_throttle_counts(stage: Stage) -> None:
    stage.set({"user": "alice"}, request_percentage=0.5, producer_byte_rate=1_000.0)
    request = stage.request(size=10_500)
    stage.clock.pass_ms(100)
    request.charge_produced()
    assert request.throttle_ms == 500
    request.charge_time()
    assert request.throttle_ms == 1_000


def test_mutations_are_refused_or_delayed(stage: Stage) -> None:
    stage.set({"user": "alice"}, controller_mutation_rate=5.0)
    strict = stage.mutation()
    strict.begin()
    strict.charge(112)
    with pytest.raises(ThrottlingQuotaExceeded, match="retry in 11400 ms"):
        strict.charge(1)
    assert strict.throttle_ms == 11_400
    permissive = stage.mutation(is_strict=False)
    permissive.begin()
    permissive.charge(10)
    assert permissive.throttle_ms == 13_400
    # An event that is repeated is charged once.
    permissive.begin()
    permissive.charge(10)
    assert permissive.throttle_ms == 13_400
    stage.clock.pass_ms(13_400)
    again = stage.mutation()
    again.begin()
    again.charge(1)
    assert again.throttle_ms == 0
    assert stage.mutation(user="bob").throttle_ms == 0


def test_a_client_without_a_quota_is_free(stage: Stage) -> None:
    stage.set({"user": "alice"}, producer_byte_rate=1.0)
    stage.set({"user": "carol"}, controller_mutation_rate=1.0)
    assert stage.request().client.account is not None
    assert stage.request(user="bob").client.account is None
    assert stage.request(user="carol").client.account is None
    assert stage.produce(1 << 30, user="bob") == 0
    assert stage.quotas.begin(THIS_PROCESS, "c", 1, 0) is None


def test_quotas_of_addresses_limit_no_client(stage: Stage) -> None:
    stage.set({"ip": "::ffff:10.0.0.1"}, connection_creation_rate=5.0)
    assert stage.quotas.limits is None
    assert stage.quotas.of_ips.connection_rate("10.0.0.1") == 5
    assert stage.quotas.of_ips.connection_rate("10.0.0.2") is None
    stage.set({"ip": None}, connection_creation_rate=7.0)
    assert stage.quotas.of_ips.connection_rate("10.0.0.2") == 7


def test_a_change_is_announced_and_an_unrelated_one_is_not(stage: Stage) -> None:
    seen: list[QuotaLimits | None] = []
    stage.quotas.watch(seen.append)
    stage.set({"user": "alice"}, producer_byte_rate=1.0)
    stage.set({"user": "alice"}, producer_byte_rate=1.0)
    assert [each is None for each in seen] == [True, False]


def test_the_metrics_of_each_kind_have_kafkas_names(stage: Stage) -> None:
    stage.set(
        {"user": "alice", "client-id": "c"},
        producer_byte_rate=1.0,
        consumer_byte_rate=1.0,
        request_percentage=1.0,
        controller_mutation_rate=1.0,
    )
    stage.request()
    names = {name.split(",client-id")[0] for name in stage.metrics.values() if "user=alice" in name}
    assert names == {
        f"kafka.server:type={each.metrics},name={name}"
        for each in (PRODUCE, FETCH, REQUEST, MUTATION)
        for name in (each.rate, "throttle-time")
    }
