"""What the gatekeeper lets through, for every API of a node."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kreplica.broker.api_versions import API_RANGES, Scope, request_type, response_type
from kreplica.broker.blank_answers import blank
from kreplica.broker.gatekeeper import Gatekeeper
from kreplica.broker.node_config import STANDARD_AUTHORIZER, AuthorizerConfig
from kreplica.broker.request_context import RequestContext
from kreplica.broker.rights_table import ROWS
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    BrokerNotAvailable,
    InvalidConfig,
    InvalidRecord,
    TopicAuthorizationFailed,
)
from kreplica.common.future import Future, resolved
from kreplica.common.message import Message, fields_of, replace, structure_of
from kreplica.common.messages.administration import DeleteTopicsRequest, DeleteTopicState
from kreplica.common.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from kreplica.common.messages.data import FetchPartition as AskedPartition
from kreplica.common.messages.data import (
    FetchRequest,
    FetchResponse,
    FetchTopic,
    MetadataRequest,
    MetadataRequestTopic,
    PartitionProduceData,
    ProduceRequest,
    ReplicaState,
    TopicProduceData,
)
from kreplica.common.types import Uuid
from kreplica.common.wire import uuid_of
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.records import (
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
    TopicRecord,
)
from kreplica.security.acl import AclBinding, AclOperation, AclPermissionType, PatternType, ResourceType
from kreplica.security.peer import ANONYMOUS, THIS_PROCESS, KafkaPrincipal, Peer
from tests.support.batches import build
from tests.unit.security.test_standard_authorizer import OPERATIONS, PEERS, RULES, plainly

KNOWN = Uuid(bytes(range(16)))
NAMES = {"topic": "orders", "group_id": "readers"}
# Open to everyone, or answered with what the client may see.
OPEN = {17, 18, 36, 39, 40, 60}
FILTERED = {3: "topics", 16: "groups", 41: "tokens", 66: "transaction_states"}
DENIED = {29, 30, 31, 53, 55, 65}
CLIENT = RequestContext(99, "client", Peer("/10.0.0.1", KafkaPrincipal("User", "alice"), "CLIENTS"))


class Node:
    """A gatekeeper before a handler that answers everything with a blank answer."""

    def __init__(self, *rules: AccessControlEntryRecord, loaded: bool = True, **settings: Any) -> None:
        self.metadata = ClusterMetadata()
        self.metadata.replay(TopicRecord(name="orders", topic_id=KNOWN))
        for rule in rules:
            self.metadata.replay(rule)
        config = AuthorizerConfig(authorizer_class_name=STANDARD_AUTHORIZER, **settings)
        self.gatekeeper = Gatekeeper(config, lambda: self.metadata, creates_topics=True)
        if loaded:
            self.publish()
        self.handled: list[Any] = []
        self.answer: Any = None

    def publish(self) -> None:
        delta: Any = None
        self.gatekeeper.on_metadata_update(delta, self.metadata.copy(), OffsetAndEpoch(1, 1))

    def ask(self, request: Any, context: RequestContext = CLIENT) -> Any:
        return self.gatekeeper.admit(request, context, self._handle).result(0)

    def _handle(self, request: Any, _: RequestContext) -> Future[Any]:
        self.handled.append(request)
        kind = response_type(request.__api_key__, request.__version__)
        return resolved(blank(kind) if self.answer is None else self.answer)


def rule(
    operation: str,
    kind: str,
    name: str,
    permission: str = "ALLOW",
    pattern: str = "LITERAL",
    principal: str = "User:alice",
    host: str = "*",
) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=Uuid(uuid.uuid4().bytes),
        resource_type=int(ResourceType[kind]),
        resource_name=name,
        pattern_type=int(PatternType[pattern]),
        principal=principal,
        host=host,
        operation=int(AclOperation[operation]),
        permission_type=int(AclPermissionType[permission]),
    )


def sample(kind: type[Message]) -> Any:
    """Return a message in which every list has one element, and every name is one that exists."""
    values: dict[str, Any] = {}
    for field in fields_of(kind):
        if field.structure is not None:
            made = sample(field.structure)
            values[field.name] = (made,) if field.is_array else made
        elif field.is_array and field.kind is not None:
            values[field.name] = ("readers",) if field.kind.name == "string" else (0,)
        elif field.kind is not None and field.kind.name == "string":
            values[field.name] = "readers" if "group" in field.name else "orders"
        elif field.name == "topic_id":
            values[field.name] = uuid_of(KNOWN)
        elif field.kind is not None and field.kind.name == "records":
            values[field.name] = build([b"x"])
    return blank(kind, **values)


def codes_in(message: Any) -> Iterator[int]:
    if isinstance(message, ErrorCode):
        yield int(message)
    elif isinstance(message, tuple):
        for each in message:
            yield from codes_in(each)
    elif isinstance(message, Message):
        for field in fields_of(type(message)):
            yield from codes_in(getattr(message, field.name))


def test_every_api_has_a_row():
    assert {request_type(key, each.handled) for key, each in API_RANGES.items()} == set(ROWS)


@pytest.mark.parametrize("api_key", sorted(API_RANGES))
def test_who_has_no_rights_gets_nothing_from_any_api(api_key):
    node = Node()
    request = sample(request_type(api_key, API_RANGES[api_key].handled))
    context = CLIENT
    if api_key == 24:
        # What a client sends: a broker's version is about several transactions.
        context = CLIENT._replace(api_version=3)
    try:
        answer = node.ask(request, context)
    except TopicAuthorizationFailed:
        # A Produce that has no answer.
        assert api_key == 0
        return
    if api_key in OPEN:
        assert node.handled == [request]
        return
    if api_key in FILTERED:
        assert getattr(node.handled[0], "topics", ()) == ()
        assert DENIED.issuperset(set(codes_in(answer)) - {0})
        return
    assert node.handled == []
    codes = set(codes_in(answer))
    assert codes & DENIED
    assert codes <= DENIED | {0}


@pytest.mark.parametrize("api_key", sorted(API_RANGES))
def test_a_super_user_gets_everything_unchanged(api_key):
    node = Node(
        rule("ALL", "TOPIC", "orders", "DENY", principal="User:*"), super_users=" User:alice ; User:b "
    )
    request = sample(request_type(api_key, API_RANGES[api_key].handled))
    if api_key == 1:
        request = blank(FetchRequest, session_epoch=-1, topics=request.topics)
    node.ask(request)
    assert node.handled == [request]


@pytest.mark.parametrize("api_key", [k for k, each in API_RANGES.items() if each.scope == Scope.CONTROLLERS])
def test_only_nodes_send_what_is_between_nodes(api_key):
    request = sample(request_type(api_key, API_RANGES[api_key].handled))
    node = Node(rule("CLUSTER_ACTION", "CLUSTER", "kafka-cluster"))
    node.ask(request)
    assert node.handled == [request]
    others = Node(rule("ALTER", "CLUSTER", "kafka-cluster"))
    assert 31 in set(codes_in(others.ask(request)))
    assert others.handled == []


def test_before_the_rules_are_known_only_super_users_are_served():
    node = Node(loaded=False, super_users="User:node")
    with pytest.raises(BrokerNotAvailable):
        node.ask(sample(MetadataRequest))
    of_node = CLIENT._replace(peer=Peer("/h", KafkaPrincipal("User", "node")))
    node.ask(sample(MetadataRequest), of_node)
    assert len(node.handled) == 1


def fetch(*ids: Uuid, replica_id: int = -1, session_id: int = 0, session_epoch: int = 0) -> FetchRequest:
    made: FetchRequest = blank(
        FetchRequest,
        replica_state=ReplicaState(replica_id=replica_id),
        session_id=session_id,
        session_epoch=session_epoch,
        topics=tuple(
            FetchTopic(topic_id=uuid_of(each), partitions=(blank(AskedPartition, partition=0),))
            for each in ids
        ),
    )
    return made


@pytest.mark.parametrize("replica_id", [0, 1, 1 << 30])
def test_a_client_that_fetches_as_a_replica_moves_nothing(replica_id):
    # CVE-2018-1288.
    node = Node(rule("ALL", "TOPIC", "*"))
    answer = node.ask(fetch(KNOWN, replica_id=replica_id))
    assert [part.error_code for topic in answer.responses for part in topic.partitions] == [29]
    assert node.handled == []


def test_an_unknown_topic_id_is_no_secret():
    node = Node()
    unknown = Uuid(b"x" * 16)
    answer = node.ask(fetch(unknown, KNOWN))
    # The handler refuses the first one, and the client gets no session.
    assert [each.topic_id for each in node.handled[0].topics] == [uuid_of(unknown)]
    assert node.handled[0].session_epoch == -1
    assert [each.topic_id for each in answer.responses] == [uuid_of(KNOWN)]


def test_a_fetch_session_ends_when_the_rules_change_or_another_uses_it():
    node = Node(rule("READ", "TOPIC", "orders", principal="User:*"))
    session = SimpleNamespace(holder=None)
    node.gatekeeper.sessions = {7: session}
    node.answer = blank(FetchResponse, session_id=7)
    node.ask(fetch(KNOWN))
    again = fetch(session_id=7, session_epoch=1)
    assert node.ask(again).error_code == 0
    bob = CLIENT._replace(peer=Peer("/10.0.0.1", KafkaPrincipal("User", "bob"), "CLIENTS"))
    not_found = 70
    assert node.ask(again, bob).error_code == not_found
    node.metadata.replay(rule("READ", "TOPIC", "orders", "DENY"))
    node.publish()
    assert node.ask(again).error_code == not_found
    answer = node.ask(fetch(KNOWN))
    assert [part.error_code for topic in answer.responses for part in topic.partitions] == [29]


def produce(
    *topics: str, acks: int = 1, transactional: bool = False, name: str | None = None
) -> ProduceRequest:
    records = build(
        [b"x"],
        **(
            {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
            if transactional
            else {}
        ),
    )
    made: ProduceRequest = blank(
        ProduceRequest,
        acks=acks,
        transactional_id=name,
        topic_data=tuple(
            TopicProduceData(name=each, partition_data=(PartitionProduceData(index=0, records=records),))
            for each in topics
        ),
    )
    return made


def test_a_transactions_batches_need_its_id_wherever_they_are():
    # CVE-2018-17196.
    node = Node(rule("WRITE", "TOPIC", "*"))
    for name in (None, "payments"):
        answer = node.ask(produce("a", "b", transactional=True, name=name))
        assert set(codes_in(answer)) == {53}
    assert node.handled == []
    allowed = Node(rule("WRITE", "TOPIC", "*"), rule("WRITE", "TRANSACTIONAL_ID", "payments"))
    allowed.ask(produce("a", transactional=True, name="payments"))
    assert len(allowed.handled) == 1


def test_a_produce_without_an_answer_closes_the_connection_after_what_is_allowed():
    node = Node(rule("WRITE", "TOPIC", "a"))
    with pytest.raises(TopicAuthorizationFailed):
        node.ask(produce("a", "b", acks=0))
    assert [each.name for each in node.handled[0].topic_data] == ["a"]


def test_a_topic_that_is_absent_looks_like_one_that_is_forbidden():
    # KAFKA-5547, KAFKA-12394.
    node = Node()
    for name in ("orders", "absent"):
        request = blank(
            MetadataRequest,
            topics=(MetadataRequestTopic(name=name),),
            allow_auto_topic_creation=True,
        )
        (found,) = node.ask(request).topics
        assert (found.error_code, found.name, found.topic_id, found.partitions) == (29, name, None, ())
    by_id = blank(MetadataRequest, topics=(MetadataRequestTopic(name=None, topic_id=uuid_of(KNOWN)),))
    (found,) = node.ask(by_id).topics
    assert (found.error_code, found.name) == (29, None)
    deleted = blank(DeleteTopicsRequest, topics=(DeleteTopicState(name=None, topic_id=uuid_of(KNOWN)),))
    (gone,) = node.ask(deleted).responses
    assert (gone.error_code, gone.name) == (29, None)


def test_a_missing_topic_is_created_only_for_who_may_create_it():
    request = blank(
        MetadataRequest, topics=(MetadataRequestTopic(name="new"),), allow_auto_topic_creation=True
    )
    describe = rule("DESCRIBE", "TOPIC", "new")
    (found,) = Node(describe).ask(request).topics
    assert found.error_code == 29
    for create in (rule("CREATE", "TOPIC", "new"), rule("CREATE", "CLUSTER", "kafka-cluster")):
        node = Node(describe, create)
        node.ask(request)
        assert node.handled[0].topics == request.topics


def test_rules_name_addresses_in_full():
    # KAFKA-13698: the address, never a host's name.
    node = Node(rule("READ", "TOPIC", "orders", host="10.0.0.1"))
    node.ask(fetch(KNOWN))
    assert len(node.handled[0].topics) == 1
    elsewhere = CLIENT._replace(peer=Peer("/10.0.0.2", KafkaPrincipal("User", "alice"), "CLIENTS"))
    assert 29 in set(codes_in(node.ask(fetch(KNOWN), elsewhere)))


def test_allow_everyone_counts_only_where_no_rule_is():
    # KAFKA-14435.
    node = Node(rule("READ", "TOPIC", "orders", principal="User:other"), allow_everyone_if_no_acl_found=True)
    assert 29 in set(codes_in(node.ask(fetch(KNOWN))))
    open_to_all = Node(allow_everyone_if_no_acl_found=True)
    open_to_all.ask(fetch(KNOWN))
    assert len(open_to_all.handled) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"authorizer_class_name": "com.example.Authorizer"},
        {"authorizer_class_name": STANDARD_AUTHORIZER, "super_users": "admin"},
        {"super_users": "User:admin"},
        {"allow_everyone_if_no_acl_found": True},
    ],
)
def test_settings_that_would_protect_nothing_are_refused(settings):
    with pytest.raises(InvalidConfig):
        AuthorizerConfig(**settings)


def test_denials_are_logged_for_the_audit(caplog):
    with caplog.at_level("INFO", "kreplica.audit"):
        Node().ask(fetch(KNOWN), CLIENT._replace(peer=Peer("/10.0.0.1", ANONYMOUS, "CLIENTS")))
    (record,) = caplog.records
    assert '"principal": "User:ANONYMOUS"' in record.getMessage()
    assert "READ TOPIC:orders" in record.getMessage()


def test_a_heartbeat_brings_the_topics_that_its_client_may_describe():
    node = Node(rule("READ", "GROUP", "readers"), rule("DESCRIBE", "TOPIC", "orders"))
    seen = []

    def handle(request, context):
        seen.append(context.sees_topic)
        return resolved(blank(response_type(request.__api_key__, request.__version__)))

    request = blank(ConsumerGroupHeartbeatRequest, group_id="readers", subscribed_topic_regex=".*")
    node.gatekeeper.admit(request, CLIENT, handle).result(0)
    node.gatekeeper.admit(request, CLIENT, handle).result(0)
    assert [seen[0](name) for name in ("orders", "secrets")] == [True, False]
    assert seen[0] == seen[1]  # a group compares them
    node.metadata.replay(rule("DESCRIBE", "TOPIC", "secrets"))
    node.publish()
    node.gatekeeper.admit(request, CLIENT, handle).result(0)
    assert seen[2]("secrets")
    assert seen[2] != seen[0]
    node.gatekeeper.admit(request, CLIENT._replace(peer=THIS_PROCESS), handle).result(0)
    assert seen[3] is None


# ---- transactions ------------------------------------------------------------------------------------------

OF_ID, OF_GROUP, OF_TOPIC, OF_CLUSTER = 53, 30, 29, 31
WRITE_ID = (("WRITE", "TRANSACTIONAL_ID", "orders"), OF_ID)
READ_GROUP = (("READ", "GROUP", "readers"), OF_GROUP)
ACT = (("CLUSTER_ACTION", "CLUSTER", "kafka-cluster"), OF_CLUSTER)
# By API and version: the rights that it needs in their order, and the error without each.
NEEDED = {
    (10, 6): [(("DESCRIBE", "TRANSACTIONAL_ID", "orders"), OF_ID)],
    (22, 5): [WRITE_ID],
    (24, 3): [WRITE_ID, (("WRITE", "TOPIC", "orders"), OF_TOPIC)],
    (24, 5): [ACT],
    (25, 4): [WRITE_ID, READ_GROUP],
    (26, 5): [WRITE_ID],
    (27, 2): [ACT],
    (28, 5): [WRITE_ID, READ_GROUP, (("READ", "TOPIC", "orders"), OF_TOPIC)],
    (61, 0): [(("READ", "TOPIC", "orders"), OF_TOPIC)],
    (65, 0): [(("DESCRIBE", "TRANSACTIONAL_ID", "readers"), OF_ID)],
}


@pytest.mark.parametrize(("api_key", "version"), NEEDED)
def test_requests_of_transactions_need_their_rights_in_this_order(api_key, version):
    request = sample(request_type(api_key, API_RANGES[api_key].handled))
    if api_key == 10:
        request = blank(type(request), key_type=1, coordinator_keys=("orders",))
    needed = NEEDED[api_key, version]
    context = CLIENT._replace(api_version=version)
    for count, (_, code) in enumerate(needed):
        node = Node(*(rule(*right) for right, _ in needed[:count]))
        codes = set(codes_in(node.ask(request, context)))
        assert code in codes
        assert codes <= {code, 0}
        # Topics may be refused one by one; a request without any goes no further than its handler.
        assert all(getattr(each, "topics", ()) == () for each in node.handled)
    node = Node(*(rule(*right) for right, _ in needed))
    node.ask(request, context)
    assert node.handled == [request]


def test_a_producer_without_an_id_needs_a_right_of_the_cluster_or_of_any_topic():
    request = blank(request_type(22, API_RANGES[22].handled), transactional_id=None)
    assert set(codes_in(Node(rule("WRITE", "TRANSACTIONAL_ID", "*")).ask(request))) == {OF_CLUSTER}
    for right in (("IDEMPOTENT_WRITE", "CLUSTER", "kafka-cluster"), ("WRITE", "TOPIC", "any")):
        node = Node(rule(*right))
        node.ask(request)
        assert node.handled == [request]


def test_a_topic_that_is_forbidden_keeps_the_others_out_of_the_transaction():
    (transaction,) = sample(request_type(24, API_RANGES[24].handled)).transactions
    topics = tuple(replace(transaction.topics[0], name=name) for name in ("orders", "secrets"))
    request = blank(
        request_type(24, API_RANGES[24].handled), transactions=(replace(transaction, topics=topics),)
    )
    node = Node(rule("WRITE", "TRANSACTIONAL_ID", "orders"), rule("WRITE", "TOPIC", "orders"))
    answer = node.ask(request, CLIENT._replace(api_version=3))
    found = {
        topic.name: int(topic.results_by_partition[0].partition_error_code)
        for topic in answer.results_by_transaction[0].topic_results
    }
    assert found == {"orders": 55, "secrets": OF_TOPIC}
    assert node.handled == []


def test_a_request_that_adds_nothing_begins_no_transaction_of_a_foreign_id():
    (transaction,) = sample(request_type(24, API_RANGES[24].handled)).transactions
    request = blank(request_type(24, API_RANGES[24].handled), transactions=(replace(transaction, topics=()),))
    context = CLIENT._replace(api_version=3)
    node = Node(rule("WRITE", "TOPIC", "*"))
    [answer] = node.ask(request, context).results_by_transaction
    assert (answer.transactional_id, answer.topic_results) == ("orders", ())
    assert node.handled == []
    allowed = Node(rule("WRITE", "TRANSACTIONAL_ID", "orders"))
    allowed.ask(request, context)
    assert allowed.handled == [request]


def test_tools_see_the_transactions_and_topics_that_they_may_describe():
    listed, described = (API_RANGES[key].handled for key in (66, 65))
    kinds = [
        structure_of(response_type(key, version), "transaction_states")
        for key, version in ((66, listed), (65, described))
    ]
    node = Node(rule("DESCRIBE", "TRANSACTIONAL_ID", "mine"), rule("DESCRIBE", "TOPIC", "orders"))
    states = tuple(blank(kinds[0], transactional_id=name) for name in ("mine", "other"))
    node.answer = blank(response_type(66, listed), transaction_states=states)
    answer = node.ask(blank(request_type(66, listed)))
    assert [each.transactional_id for each in answer.transaction_states] == ["mine"]
    topic = structure_of(kinds[1], "topics")
    topics = tuple(blank(topic, topic=name) for name in ("orders", "secrets"))
    node.answer = blank(
        response_type(65, described),
        transaction_states=(blank(kinds[1], transactional_id="mine", topics=topics),),
    )
    answer = node.ask(blank(request_type(65, described), transactional_ids=("mine",)))
    assert [each.topic for each in answer.transaction_states[0].topics] == ["orders"]


# ---- rules that come and go ------------------------------------------------------------------------------

IDS = st.integers(0, 5)
# Each batch adds rules under these ids and removes others, in any order; an id may come and go in one batch.
BATCHES = st.lists(st.lists(st.tuples(IDS, st.none() | RULES), max_size=5), max_size=8)


def record_of(number: int, binding: AclBinding) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(id=Uuid(bytes([number] * 16)), **binding._asdict())


@settings(max_examples=200, deadline=None)
@given(BATCHES, PEERS, OPERATIONS, st.booleans())
def test_rules_that_come_and_go_in_batches_decide_as_those_that_are_left(
    batches: list[list[tuple[int, AclBinding | None]]], peer: Peer, operation: AclOperation, default: bool
) -> None:
    """CVE-2024-27309, KAFKA-13889: after a removal other rules of the resource no longer counted."""
    node = Node(allow_everyone_if_no_acl_found=default)
    left: dict[int, AclBinding] = {}
    for batch in batches:
        for number, binding in batch:
            if binding is not None:
                node.metadata.replay(record_of(number, binding))
                left[number] = binding
            elif left.pop(number, None) is not None:
                node.metadata.replay(RemoveAccessControlEntryRecord(id=Uuid(bytes([number] * 16))))
            else:
                with pytest.raises(InvalidRecord):
                    node.metadata.replay(RemoveAccessControlEntryRecord(id=Uuid(bytes([number] * 16))))
        node.publish()
        for name in ("a", "ab", "*"):
            decided = node.gatekeeper.rules.authorize(peer, operation, ResourceType.TOPIC, name)
            assert decided == plainly(list(left.values()), peer, operation, name, default)
