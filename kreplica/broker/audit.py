"""The audit log: who logged in, was refused, or changed what. One JSON object for each event.

The logger is `kreplica.audit`: refusals are warnings, the rest is information. Nothing secret is written: a
change is named by its kind and what it is about, and never by its values. Any thread may call.
"""

from __future__ import annotations

import json
import logging

from kreplica.security.peer import Peer

LOGGER = logging.getLogger("kreplica.audit")


def audit(event: str, peer: Peer, *, is_refused: bool = False, **facts: object) -> None:
    """Log one event of the client `peer`; `facts` are text, numbers and lists of these."""
    level = logging.WARNING if is_refused else logging.INFO
    if LOGGER.isEnabledFor(level):
        who = {
            "principal": str(peer.principal),
            "host": peer.host.removeprefix("/"),
            "listener": peer.listener,
        }
        LOGGER.log(level, "%s", json.dumps({"event": event, **who, **facts}))
