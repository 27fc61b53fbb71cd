"""Following: how a member that has lost its leader finds it again."""

from __future__ import annotations

from tests.unit.raft.test_kafka_raft_client import all_have, started
from tests.unit.raft.test_voter_changes import add_voter


def test_an_observer_comes_back_to_a_leader_that_it_does_not_know_for_a_voter():
    """Its disk is new: it knows only the first voter, which names the leader in each of its responses."""
    quorum, first = started(voters=1, observers=2)
    quorum.kill(3)
    quorum.pass_time(300)
    answer = quorum.send(first, add_voter(2))
    assert quorum.run_until(answer.done)
    assert answer.result().error_code.value == 0
    quorum.client(first).resign(1)
    assert quorum.run_until(lambda: quorum.leader == 2)
    quorum.network.cut(2, 3)
    quorum.start(3)
    quorum.pass_time(2 * quorum.setup.config.quorum_fetch_timeout_ms)
    assert quorum.client(3).leader_and_epoch.leader_id == 2
    quorum.network.heal_all()
    quorum.append(2, "a")
    assert all_have(quorum, "a")
