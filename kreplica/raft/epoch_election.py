"""EpochElection: the votes, or pre-votes, of one round. Thread rule: the client's loop."""

from __future__ import annotations

from collections.abc import Iterable


class EpochElection:
    """Collects the answers of `voters`. The candidate votes for itself if it is one of them."""

    def __init__(self, voters: Iterable[int], candidate_id: int) -> None:
        self._answers: dict[int, bool | None] = dict.fromkeys(sorted(voters))
        self.record(candidate_id, True)

    def record(self, voter_id: int, is_granted: bool) -> None:
        """Record an answer. Answers of other nodes are ignored, and a granted vote stays granted."""
        if voter_id in self._answers and not self._answers[voter_id]:
            self._answers[voter_id] = is_granted

    @property
    def majority(self) -> int:
        return len(self._answers) // 2 + 1

    @property
    def granting(self) -> list[int]:
        """Ids of the voters that have granted their vote."""
        return [voter for voter, answer in self._answers.items() if answer]

    @property
    def unrecorded(self) -> list[int]:
        """Ids of the voters that have not answered."""
        return [voter for voter, answer in self._answers.items() if answer is None]

    @property
    def is_won(self) -> bool:
        return len(self.granting) >= self.majority

    @property
    def is_lost(self) -> bool:
        """Whether a majority can no longer be reached."""
        return len(self.granting) + len(self.unrecorded) < self.majority
