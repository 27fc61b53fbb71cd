"""Streams groups on a coordinator under a virtual clock, and their members' heartbeats."""

from __future__ import annotations

from kreplica.coordinator.group_records import StreamsGroupTopologyValue, Subtopology, TopicInfo
from kreplica.coordinator.streams_group import TasksTuple
from kreplica.coordinator.streams_groups import StreamsGroupPorts, StreamsHeartbeat, StreamsSettings
from tests.support.consumer_stage import MadeTopics
from tests.support.group_stage import CONFIG, GroupStage


def topic(name, partitions=0):
    return TopicInfo(name=name, partitions=partitions, replication_factor=0, topic_configs=())


def topology(epoch=0, source="t", **changes):
    """A subtopology that reads `source` and has a changelog."""
    parts = {
        "subtopology_id": "s",
        "source_topics": (source,),
        "source_topic_regex": (),
        "state_changelog_topics": (topic("log"),),
        "repartition_sink_topics": (),
        "repartition_source_topics": (),
        "copartition_groups": (),
    }
    return StreamsGroupTopologyValue(epoch=epoch, subtopologies=(Subtopology(**parts | changes),))


def tasks(*numbers):
    return {"s": frozenset(numbers)} if numbers else {}


def active(*numbers):
    return TasksTuple(tasks(*numbers))


class StreamsGroupStage(GroupStage):
    """A coordinator with the topic t and its changelog `log`, of 2 partitions each."""

    def __init__(self, config=CONFIG, log=None, topics=None, max_size=3, **settings):
        self.topics = topics or MadeTopics(t=2, log=2)
        self.max_size = max_size
        self.settings = StreamsSettings(
            **{
                "session_timeout_ms": 1_000,
                "heartbeat_interval_ms": 100,
                "assignment_interval_ms": 0,
                "initial_rebalance_delay_ms": 0,
                "num_standby": 0,
            }
            | settings
        )
        super().__init__(config, log)

    def streams_ports(self):
        return StreamsGroupPorts(self.topics, lambda _: self.settings, self.max_size)

    def begin(self, member="a", epoch=0, *, group="g", **options):
        """Send a heartbeat of a member, whose process has its name if it does not say."""
        if epoch == 0:
            joining = {"topology": topology(), "owned": TasksTuple(), "rebalance_timeout_ms": 500}
            options = {**joining, "process_id": member, **options}
        asked = StreamsHeartbeat(group, member, epoch, client_id="client", client_host="host")
        future = self.coordinator.streams_heartbeat(asked._replace(**options))
        self.settle()
        return future

    def beat(self, *arguments, **options):
        """Return the answer to a heartbeat. Raises its error."""
        return self.begin(*arguments, **options).result(0)

    def refusal(self, *arguments, **options):
        """Return the type of the error of a heartbeat."""
        return type(self.begin(*arguments, **options).exception(0))

    def describe(self, group="g"):
        future = self.coordinator.describe_streams_group(group)
        self.settle()
        return future.result(0)

    @property
    def state(self):
        """The group's state, epoch and assignment epoch, and epoch and tasks of each member."""
        group = self.describe()
        members = {each.member_id: (each.epoch, each.assigned) for each in group.members}
        return group.state, group.epoch, group.assignment_epoch, members

    def change_topics(self, **counts):
        """Give these topics that number of partitions."""
        self.topics.counts.update(counts)
        self.coordinator.change_topics(counts, has_other_names=True)
        self.settle()

    def reloaded(self):
        """Return another coordinator's stage, which has loaded the same log."""
        return StreamsGroupStage(log=self.log, topics=self.topics, **self.settings._asdict())
