"""Rules: added, removed and described, each with a result of its own."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import PolicyViolation
from kreplica.common.messages.administration import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from kreplica.controller import acl_control
from kreplica.controller.acl_control import AclControl, describe_acls
from kreplica.metadata.cluster_metadata import ClusterMetadata

INVALID = ErrorCode.invalid_request
RULE = {
    "resource_type": 2,
    "resource_name": "orders",
    "resource_pattern_type": 3,
    "principal": "User:alice",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
ALL = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


class Rules:
    """A control whose records are applied at once."""

    def __init__(self) -> None:
        self.metadata = ClusterMetadata()
        self.control = AclControl(self.metadata, random.Random(0))

    def create(self, *rules: dict[str, Any]) -> tuple[list[ErrorCode], int]:
        """Return the results, and the number of records."""
        result = self.control.create(
            CreateAclsRequest(creations=tuple(AclCreation(**each) for each in rules))
        )
        for record in result.records:
            self.metadata.replay(record.message)
        return [each.error_code for each in result.response.results], len(result.records)

    def delete(self, *filters: dict[str, Any]) -> tuple[list[list[str]], int]:
        """Return the principals of the rules that each filter selects, and the number of records."""
        request = DeleteAclsRequest(filters=tuple(DeleteAclsFilter(**each) for each in filters))
        result = self.control.delete(request)
        for record in result.records:
            self.metadata.replay(record.message)
        found = [[rule.principal for rule in each.matching_acls] for each in result.response.filter_results]
        return found, len(result.records)

    def describe(self, **changes: Any) -> list[tuple[str, str]]:
        answer = describe_acls(DescribeAclsRequest(**{**ALL, **changes}), self.metadata)
        return [(each.resource_name, rule.principal) for each in answer.resources for rule in each.acls]


def test_a_rule_is_added_once():
    rules = Rules()
    assert rules.create(RULE, RULE) == ([ErrorCode.none] * 2, 1)
    assert rules.create(RULE) == ([ErrorCode.none], 0)
    assert rules.describe() == [("orders", "User:alice")]


@pytest.mark.parametrize(
    "change",
    [
        {"resource_type": 0},
        {"resource_type": 1},
        {"resource_type": 99},
        {"resource_pattern_type": 2},
        {"resource_pattern_type": 1},
        {"operation": 0},
        {"operation": 1},
        {"permission_type": 1},
        {"permission_type": -1},
        {"resource_name": ""},
        {"principal": "alice"},
        {"principal": ":alice"},
        {"principal": "User:"},
        {"host": ""},
        {"resource_type": 4},
    ],
)
def test_a_rule_that_can_never_apply_is_refused_alone(change):
    rules = Rules()
    assert rules.create({**RULE, **change}, RULE) == ([INVALID, ErrorCode.none], 1)
    cluster = {**RULE, "resource_type": 4, "resource_name": "kafka-cluster"}
    assert rules.create(cluster) == ([ErrorCode.none], 1)


def test_a_rule_that_two_filters_select_is_removed_once():
    # KAFKA-13892.
    rules = Rules()
    rules.create(RULE, {**RULE, "principal": "User:bob"})
    alices = {**ALL, "principal_filter": "User:alice"}
    assert rules.delete(ALL, alices) == ([["User:alice", "User:bob"], ["User:alice"]], 2)
    assert rules.describe() == []
    assert rules.delete(ALL) == ([[]], 0)


def test_filters_by_name_and_by_what_would_apply():
    rules = Rules()
    rules.create(
        RULE,
        {**RULE, "resource_name": "ord", "resource_pattern_type": 4, "principal": "User:prefix"},
        {**RULE, "resource_name": "*", "principal": "User:all"},
    )
    named = {"resource_type_filter": 2, "resource_name_filter": "orders"}
    assert rules.describe(**named) == [("orders", "User:alice")]
    assert rules.describe(**named, pattern_type_filter=3) == [("orders", "User:alice")]
    applying = rules.describe(**named, pattern_type_filter=2)
    assert sorted(principal for _, principal in applying) == ["User:alice", "User:all", "User:prefix"]
    assert rules.describe(resource_type_filter=3) == []


def test_a_filter_with_an_unknown_code_is_refused():
    rules = Rules()
    answer = describe_acls(DescribeAclsRequest(**{**ALL, "operation": 0}), rules.metadata)
    assert (answer.error_code, answer.resources) == (INVALID, ())
    refused = rules.control.delete(DeleteAclsRequest(filters=(DeleteAclsFilter(**{**ALL, "operation": 77}),)))
    assert refused.response.filter_results[0].error_code == INVALID


def test_too_many_rules_are_not_removed_at_once(monkeypatch):
    rules = Rules()
    rules.create(RULE, {**RULE, "principal": "User:bob"})
    monkeypatch.setattr(acl_control, "MOST_REMOVED", 1)
    with pytest.raises(PolicyViolation):
        rules.delete(ALL)
    assert len(rules.describe()) == 2
