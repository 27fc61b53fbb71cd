"""LogConfigs: the configurations of a node's logs, by topic and by default, which may change at runtime.

A topic without its own configuration uses the node's default. Thread rule: the LogManager's lock guards
everything, so that no log is opened with an outdated configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from kreplica.common.config import LogConfig
from kreplica.log.unified_log import UnifiedLog


class LogConfigs:
    """Configurations by topic. `default` applies to other topics. `logs()`: the logs to reconfigure."""

    def __init__(
        self,
        default: LogConfig,
        by_topic: Mapping[str, LogConfig],
        *,
        lock: AbstractContextManager[Any],
        logs: Callable[[], list[UnifiedLog]],
    ) -> None:
        # Called with the configurations that `change` has changed.
        self.on_change: Callable[[Mapping[str, LogConfig | None]], object] = lambda _: None
        self._lock = lock
        self._logs = logs
        # Guarded by _lock:
        self._default = default
        self._by_topic = dict(by_topic)

    @property
    def default(self) -> LogConfig:
        """The configuration of topics without their own."""
        return self._default

    @property
    def by_topic(self) -> dict[str, LogConfig]:
        """A copy of the topics' own configurations."""
        with self._lock:
            return dict(self._by_topic)

    def of(self, topic: str) -> LogConfig:
        """Return the topic's own configuration, or the default."""
        with self._lock:
            return self._by_topic.get(topic, self._default)

    def change(self, configs: Mapping[str, LogConfig | None], default: LogConfig | None = None) -> None:
        """Set the configurations of these topics, and reconfigure their open logs.

        None removes a topic's own configuration. `default`: the new default, if given.
        """
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
