"""RequestManager: one request in flight to each peer, a pause after a failure. And the votes of one round."""

from __future__ import annotations

import random

import pytest

from kreplica.common.errors import InvalidConfig, NetworkException
from kreplica.raft.epoch_state import NEVER_MS, EpochElection
from kreplica.raft.raft_config import RaftConfig
from kreplica.raft.request_manager import RequestManager
from tests.support.virtual import AnsweringTransport, VirtualMachine


class Peers:
    def __init__(self):
        self.machine = VirtualMachine()
        self.transport = AnsweringTransport()
        self.answers = []
        self.requests = RequestManager(
            self.transport, RaftConfig(), self.machine.clock, random.Random(1), self.machine.loop.post
        )

    def send(self, node_id=2, body="request"):
        return self.requests.maybe_send(node_id, lambda: body, self.answers.append)


def test_one_request_is_in_flight_to_each_peer():
    peers = Peers()
    assert [peers.send(2), peers.send(2), peers.send(3)] == [NEVER_MS] * 3
    assert [(node_id, body) for node_id, body, _ in peers.transport.sent] == [(2, "request"), (3, "request")]
    peers.transport.sent[0][2].set_result("answer")
    # The answer comes in the loop, and then the next request may go.
    assert peers.answers == []
    peers.machine.settle()
    assert peers.answers == ["answer"]
    peers.send(2)
    assert len(peers.transport.sent) == 3


def test_a_peer_that_fails_is_left_alone_for_a_while():
    peers = Peers()
    peers.send()
    peers.transport.sent[0][2].set_exception(NetworkException())
    peers.machine.settle()
    assert peers.answers == [None]
    assert peers.send() == RaftConfig().quorum_retry_backoff_ms
    assert peers.requests.unreachable([2, 3]) == [2]
    assert peers.requests.ready_one_of([2]) is None
    assert peers.requests.ready_one_of([2, 3]) == 3
    peers.machine.pass_time(RaftConfig().quorum_retry_backoff_ms)
    assert peers.requests.back_off_ms([2, 3]) == NEVER_MS
    peers.send()
    assert len(peers.transport.sent) == 2


def test_votes_are_counted_once_and_only_of_voters():
    votes = EpochElection([1, 2, 3, 4, 5], 1)
    votes.record(9, True)
    votes.record(2, True)
    votes.record(2, False)
    assert votes.granting == [1, 2]
    assert votes.unrecorded == [3, 4, 5]
    assert not votes.is_won
    votes.record(3, False)
    votes.record(4, False)
    assert not votes.is_lost
    votes.record(5, False)
    assert votes.is_lost
    # A voter that refused may grant its vote later.
    votes.record(4, True)
    assert votes.is_won


def test_a_node_that_is_no_voter_does_not_vote_for_itself():
    votes = EpochElection([2], 1)
    assert votes.granting == []
    votes.record(2, True)
    assert votes.is_won


def test_settings_under_which_no_quorum_could_settle_are_refused():
    with pytest.raises(InvalidConfig):
        RaftConfig(quorum_fetch_timeout_ms=0)
    with pytest.raises(InvalidConfig):
        RaftConfig(quorum_fetch_timeout_ms=100, quorum_fetch_wait_max_ms=51)
    for size_bytes in (0, (8 << 20) + 1):
        with pytest.raises(InvalidConfig):
            RaftConfig(quorum_max_batch_size_bytes=size_bytes)
    assert RaftConfig().fetch_wait_max_ms == 666
    # An idle fetch is answered before it times out.
    assert RaftConfig(quorum_request_timeout_ms=500).fetch_wait_max_ms == 333
    assert RaftConfig(quorum_fetch_timeout_ms=900, quorum_request_timeout_ms=500).fetch_wait_max_ms == 300
    assert RaftConfig().check_quorum_timeout_ms == 3_000
