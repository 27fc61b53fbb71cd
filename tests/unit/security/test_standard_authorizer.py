"""Decisions of the authorizer, beside a plain reading of the rules."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kreplica.security.acl import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourceType,
    applies_to,
)
from kreplica.security.peer import THIS_PROCESS, KafkaPrincipal, Peer
from kreplica.security.standard_authorizer import StandardAuthorizer

NAMES = st.sampled_from(["*", "a", "ab", "hardcode"])
ASKED = [AclOperation.READ, AclOperation.DESCRIBE, AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS]
OPERATIONS = st.sampled_from(ASKED)
PEERS = st.builds(
    lambda host, name: Peer("/" + host, KafkaPrincipal("User", name)),
    st.sampled_from(["10.0.0.1", "0:0:0:0:0:0:0:1"]),
    st.sampled_from(["alice", "bob"]),
)
RULES = st.builds(
    AclBinding,
    st.sampled_from([ResourceType.TOPIC, ResourceType.TOPIC, ResourceType.GROUP]),
    NAMES,
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from(["User:alice", "User:bob", "User:*"]),
    st.sampled_from(["*", "10.0.0.1", "0:0:0:0:0:0:0:1"]),
    st.sampled_from([AclOperation.ALL, *ASKED]),
    st.sampled_from([AclPermissionType.DENY, AclPermissionType.ALLOW]),
)
STRONGER = {
    AclOperation.DESCRIBE: {
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.DELETE,
        AclOperation.ALTER,
    },
    AclOperation.DESCRIBE_CONFIGS: {AclOperation.ALTER_CONFIGS},
}


def plainly(rules: list[AclBinding], peer: Peer, operation: AclOperation, name: str, default: bool) -> bool:
    near = [rule for rule in rules if rule.resource_type == ResourceType.TOPIC and applies_to(rule, name)]
    if not near:
        return default
    own = [
        rule
        for rule in near
        if rule.principal in (str(peer.principal), "User:*") and rule.host in ("*", peer.host[1:])
    ]
    asked = {AclOperation.ALL, operation}
    if any(rule.permission_type == AclPermissionType.DENY and rule.operation in asked for rule in own):
        return False
    enough = asked | STRONGER.get(operation, set())
    return any(rule.permission_type == AclPermissionType.ALLOW and rule.operation in enough for rule in own)


@settings(max_examples=1000, deadline=None)
@given(st.lists(RULES, max_size=8), PEERS, OPERATIONS, NAMES, st.booleans())
def test_decides_as_a_plain_reading_of_the_rules(rules, peer, operation, name, default):
    authorizer = StandardAuthorizer(rules, allow_everyone_if_no_acl_found=default)
    decided = authorizer.authorize(peer, operation, ResourceType.TOPIC, name)
    assert decided == plainly(rules, peer, operation, name, default)


@settings(max_examples=500, deadline=None)
@given(st.lists(RULES, max_size=8), PEERS, OPERATIONS)
def test_any_resource_of_a_type_is_allowed_only_where_one_is(rules, peer, operation):
    authorizer = StandardAuthorizer(rules)
    # A name that no literal rule has shows whether a prefix allows anything.
    names = [rule.resource_name + end for rule in rules for end in ("", "\0")] + ["hardcode"]
    possible = any(authorizer.authorize(peer, operation, ResourceType.TOPIC, name) for name in names)
    if authorizer.authorize_by_resource_type(peer, operation, ResourceType.TOPIC):
        assert possible


def test_super_users_and_this_process_are_above_the_rules():
    deny = AclBinding(
        ResourceType.TOPIC,
        "*",
        PatternType.LITERAL,
        "User:*",
        "*",
        AclOperation.ALL,
        AclPermissionType.DENY,
    )
    authorizer = StandardAuthorizer([deny], frozenset({"User:admin"}))
    for peer, expected in (
        (Peer("/10.0.0.1", KafkaPrincipal("User", "admin", True)), True),
        (THIS_PROCESS, True),
        (Peer(*THIS_PROCESS), False),
        (Peer("/10.0.0.1"), False),
    ):
        assert authorizer.authorize(peer, AclOperation.READ, ResourceType.TOPIC, "a") is expected


def test_an_asterisk_with_a_prefix_pattern_is_no_wildcard():
    rule = AclBinding(
        ResourceType.TOPIC,
        "*",
        PatternType.PREFIXED,
        "User:*",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    # The rule's text is the prefix of one character.
    authorizer = StandardAuthorizer([rule])
    assert not authorizer.authorize(Peer("/h"), AclOperation.READ, ResourceType.TOPIC, "a")
    assert authorizer.authorize(Peer("/h"), AclOperation.READ, ResourceType.TOPIC, "*a")


@given(RULES, NAMES)
def test_a_filter_by_match_selects_what_would_apply(rule, name):
    chosen = AclBindingFilter(resource_name=name, pattern_type=PatternType.MATCH)
    assert chosen.matches(rule) == applies_to(rule, name)
