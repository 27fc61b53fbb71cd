"""The file `quorum-state` of a metadata log: the last election that this node knows of.

One line of JSON (broken here to fit), in Kafka's schema QuorumStateData. Version 0 (KRaft with a fixed set of
voters) lists the voters; version 1 (KIP-853) names the log directory of the candidate voted for instead:

    {"clusterId":"","leaderId":1,"leaderEpoch":3,"votedId":-1,"appliedOffset":0,
     "currentVoters":[{"voterId":1}],"data_version":0}
    {"leaderId":1,"leaderEpoch":3,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA",
     "data_version":1}

This module only formats and parses the text. A node with an unreadable file must not start: without its
contents it could vote twice in one epoch.
"""

from __future__ import annotations

import json

from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidFile, InvalidRequest, UnsupportedVersion
from kreplica.common.json_file import integer, parse_object, string
from kreplica.common.types import INT32_MAX, INT64_MAX, Uuid

FILE_NAME = "quorum-state"
LOWEST_VERSION = 0
HIGHEST_VERSION = 1
NO_NODE = -1
# An int32 on the wire and in the file. After this epoch no election is possible.
LAST_EPOCH = INT32_MAX
RECOVER = "stop all nodes of the quorum and run `kreplica format --recover` on each voter"


@dataclass(frozen=True, slots=True)
class QuorumStateData:
    """The stored election. `leader_id` and `voted_id` are -1 if there is no leader or no vote."""

    leader_epoch: int
    leader_id: int = NO_NODE
    voted_id: int = NO_NODE
    voted_directory_id: Uuid = Uuid.ZERO  # version 1
    cluster_id: str = ""  # this and the rest: version 0
    applied_offset: int = 0
    current_voters: tuple[int, ...] | None = ()
    data_version: int = HIGHEST_VERSION


def format_quorum_state(state: QuorumStateData) -> bytes:
    """Return the file's contents, as Kafka writes them."""
    election = {"leaderId": state.leader_id, "leaderEpoch": state.leader_epoch, "votedId": state.voted_id}
    fields: dict[str, object]
    if state.data_version == 0:
        voters = state.current_voters
        fields = {
            "clusterId": state.cluster_id,
            **election,
            "appliedOffset": state.applied_offset,
            "currentVoters": None if voters is None else [{"voterId": voter} for voter in voters],
        }
    else:
        fields = {**election, "votedDirectoryId": str(state.voted_directory_id)}
    fields["data_version"] = state.data_version
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def parse_quorum_state(data: bytes, path: str = FILE_NAME) -> QuorumStateData:
    """Parse the file's contents. Raises InvalidFile, or UnsupportedVersion for an unknown version."""
    fields = parse_object(data, path)
    version = integer(fields, "data_version", 0, INT32_MAX, path)
    if version > HIGHEST_VERSION:
        raise UnsupportedVersion(
            f"{path}: version {version} is not supported; supported are {LOWEST_VERSION} to {HIGHEST_VERSION}"
        )
    try:
        epoch = integer(fields, "leaderEpoch", 0, LAST_EPOCH, path)
    except InvalidFile as error:
        raise InvalidFile(f"{error}; {RECOVER}") from None
    leader_id = integer(fields, "leaderId", NO_NODE, INT32_MAX, path)
    voted_id = integer(fields, "votedId", NO_NODE, INT32_MAX, path)
    if version == 0:
        return QuorumStateData(
            leader_epoch=epoch,
            leader_id=leader_id,
            voted_id=voted_id,
            cluster_id=string(fields, "clusterId", path),
            applied_offset=integer(fields, "appliedOffset", 0, INT64_MAX, path),
            current_voters=_voters(fields, path),
            data_version=version,
        )
    try:
        directory_id = Uuid.parse(string(fields, "votedDirectoryId", path))
    except InvalidRequest as error:
        raise InvalidFile(f"{path}: votedDirectoryId: {error}") from None
    return QuorumStateData(epoch, leader_id, voted_id, directory_id)


def _voters(fields: dict[str, object], path: str) -> tuple[int, ...] | None:
    if "currentVoters" in fields and fields["currentVoters"] is None:
        return None
    voters = fields.get("currentVoters")
    if not isinstance(voters, list) or not all(isinstance(voter, dict) for voter in voters):
        raise InvalidFile(f"{path}: currentVoters is not a list of voters")
    return tuple(integer(voter, "voterId", 0, INT32_MAX, path) for voter in voters)
