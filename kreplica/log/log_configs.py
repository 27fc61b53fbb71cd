"""LogConfigs: what the logs of a node are configured to, by topic and by default, while they run.

A topic that has no configuration of its own gets the node's, which may change, too. Thread rule: the
LogManager's lock guards all of it, so that no log is opened with a configuration that was changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from kreplica.common.config import LogConfig
from kreplica.log.unified_log import UnifiedLog


class LogConfigs:
    """`default`: what a log gets whose topic is not in `by_topic`. `logs()`: those that are to be told."""

    def __init__(
        self,
        default: LogConfig,
        by_topic: Mapping[str, LogConfig],
        *,
        lock: AbstractContextManager[Any],
        logs: Callable[[], list[UnifiedLog]],
    ) -> None:
        # Told what `change` has changed.
        self.on_change: Callable[[Mapping[str, LogConfig | None]], object] = lambda _: None
        self._lock = lock
        self._logs = logs
        # Guarded by _lock:
        self._default = default
        self._by_topic = dict(by_topic)

    @property
    def default(self) -> LogConfig:
        """What a log gets whose topic has no configuration of its own."""
        return self._default

    @property
    def by_topic(self) -> dict[str, LogConfig]:
        """A copy of those that topics have of their own."""
        with self._lock:
            return dict(self._by_topic)

    def of(self, topic: str) -> LogConfig:
        """The topic's own, or the node's."""
        with self._lock:
            return self._by_topic.get(topic, self._default)

    def change(self, configs: Mapping[str, LogConfig | None], default: LogConfig | None = None) -> None:
        """Give the logs of these topics a configuration, now and from now on; None: the node's own, which is
        `default` from now on where that is given."""
        with self._lock:
            is_other = default is not None and default != self._default
            self._default = default or self._default
            for topic, config in configs.items():
                if config is None:
                    self._by_topic.pop(topic, None)
                else:
                    self._by_topic[topic] = config
            for log in self._logs():
                topic = log.topic_partition.topic
                if topic in configs or (is_other and topic not in self._by_topic):
                    log.configure(self._by_topic.get(topic, self._default))
        self.on_change(configs)
