"""BrokerHeartbeatManager: whose session ends when, and what a heartbeat makes of a broker."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.errors import InvalidConfig
from kreplica.controller.broker_heartbeat_manager import BrokerControlState, BrokerHeartbeatManager
from kreplica.controller.controller_config import ControllerConfig

MS = 1_000_000
CONFIG = ControllerConfig(
    broker_session_timeout_ms=200,
    broker_session_hint_ms=80,
    broker_session_max_timeout_ms=800,
    broker_session_decay_ms=10_000,
)


def brokers(*ids: int, config: ControllerConfig = CONFIG) -> BrokerHeartbeatManager:
    """These brokers, unfenced, heard at the moment 0; the epoch of each is ten times its id."""
    manager = BrokerHeartbeatManager(config)
    for broker_id in ids:
        manager.register(broker_id, broker_id * 10, 0, is_fenced=False)
    return manager


# ---- sessions --------------------------------------------------------------------------------------------


def test_a_session_ends_when_nothing_was_heard_for_its_length() -> None:
    manager = brokers(1)
    assert manager.expired_brokers(200 * MS - 1) == []
    assert manager.expired_brokers(200 * MS) == [1]


def test_a_heartbeat_renews_it() -> None:
    manager = brokers(1)
    manager.touch(1, 150 * MS, metadata_offset=5)
    assert manager.expired_brokers(349 * MS) == []
    assert manager.expired_brokers(350 * MS) == [1]


def test_two_sessions_that_end_in_one_check_are_both_reported() -> None:
    # KAFKA-13173.
    manager = brokers(1, 2, 3)
    manager.touch(2, 100 * MS, metadata_offset=5)
    assert manager.expired_brokers(250 * MS) == [1, 3]


def test_a_fenced_broker_is_not_fenced_again() -> None:
    manager = brokers(1)
    manager.fence(1, expired=True)
    assert manager.expired_brokers(1_000 * MS) == []


def test_a_session_is_that_of_one_epoch() -> None:
    manager = brokers(1)
    assert manager.has_valid_session(1, 10, 100 * MS)
    assert not manager.has_valid_session(1, 11, 100 * MS)
    assert not manager.has_valid_session(1, 10, 200 * MS)
    assert not manager.has_valid_session(2, 20, 0)


def test_after_a_fail_over_a_broker_has_time_to_find_the_new_controller() -> None:
    manager = brokers(1, 2, config=dataclasses.replace(CONFIG, broker_session_failover_ms=500))
    manager.await_after_failover(1, 0)
    assert manager.expired_brokers(300 * MS) == [2]
    manager.connection_lost(1, 300 * MS)
    assert manager.expired_brokers(380 * MS) == [1, 2], "a closed connection counts all the same"
    manager.touch(1, 380 * MS, metadata_offset=5)
    assert manager.expired_brokers(579 * MS) == [2]
    assert manager.expired_brokers(580 * MS) == [1, 2], "heard once, it has a session like any other"


# ---- the controller was held up --------------------------------------------------------------------------


def test_a_stall_of_the_controller_lengthens_every_session() -> None:
    manager = brokers(1, 2)
    manager.controller_stalled(500 * MS)
    assert manager.expired_brokers(699 * MS) == []
    assert manager.expired_brokers(700 * MS) == [1, 2]


def test_it_looks_often_enough_to_notice_a_stall() -> None:
    manager = brokers(1)
    assert manager.next_check_ns(0) == 25 * MS  # an eighth of a session
    assert manager.next_check_ns(190 * MS) == 200 * MS  # the session's end
    assert manager.next_check_ns(500 * MS) == 500 * MS  # overdue


def test_without_brokers_it_looks_all_the_same() -> None:
    assert BrokerHeartbeatManager(CONFIG).next_check_ns(7 * MS) == 32 * MS


# ---- a closed connection ---------------------------------------------------------------------------------


def test_a_closed_connection_shortens_a_session_and_does_not_end_it() -> None:
    manager = brokers(1)
    manager.connection_lost(1, 10 * MS)
    assert manager.expired_brokers(89 * MS) == []
    assert manager.expired_brokers(90 * MS) == [1]


def test_a_closed_connection_never_lengthens_a_session() -> None:
    manager = brokers(1)
    manager.connection_lost(1, 190 * MS)
    assert manager.expired_brokers(200 * MS) == [1]


def test_a_heartbeat_after_it_makes_the_session_whole_again() -> None:
    manager = brokers(1)
    manager.connection_lost(1, 10 * MS)
    manager.touch(1, 50 * MS, metadata_offset=5)
    assert manager.expired_brokers(249 * MS) == []


def test_the_hint_of_a_broker_that_is_not_known_is_nothing() -> None:
    manager = brokers(1)
    manager.connection_lost(7, 0)
    assert manager.get(7) is None


# ---- a broker that flaps ---------------------------------------------------------------------------------


def flap(manager: BrokerHeartbeatManager, now_ms: int) -> int:
    """Let broker 1 be silent until it is fenced, and heard again right after; its session in ms."""
    state = manager.get(1)
    assert state is not None
    length_ms = (state.deadline_ns - now_ms * MS) // MS
    now_ms += length_ms
    assert manager.expired_brokers(now_ms * MS) == [1]
    manager.fence(1, expired=True)
    manager.touch(1, now_ms * MS, metadata_offset=5)
    manager.unfence(1)
    return length_ms


def test_one_that_was_fenced_too_early_gets_a_longer_session_up_to_a_limit() -> None:
    manager = brokers(1)
    lengths, now_ms = [], 0
    for _ in range(5):
        lengths.append(flap(manager, now_ms))
        now_ms += lengths[-1]
    assert lengths == [200, 400, 800, 800, 800]


def test_a_longer_session_becomes_shorter_with_time() -> None:
    manager = brokers(1)
    now_ms = flap(manager, 0)
    now_ms += flap(manager, now_ms)
    state = manager.get(1)
    assert state is not None
    assert manager.session_ns(state, now_ms * MS) == 800 * MS
    assert manager.session_ns(state, (now_ms + 10_000) * MS) == 400 * MS
    assert manager.session_ns(state, (now_ms + 20_000) * MS) == 200 * MS
    assert manager.session_ns(state, (now_ms + 90_000) * MS) == 200 * MS


def test_one_that_was_really_dead_was_not_fenced_too_early() -> None:
    # A new life was registered: the old one never came back.
    manager = brokers(1)
    manager.fence(1, expired=True)
    manager.register(1, 11, 500 * MS, is_fenced=True)
    manager.touch(1, 500 * MS, metadata_offset=5)
    state = manager.get(1)
    assert state is not None
    assert manager.session_ns(state, 500 * MS) == 200 * MS


def test_one_that_was_fenced_by_its_own_wish_was_not_fenced_too_early() -> None:
    manager = brokers(1)
    manager.fence(1, expired=False)
    manager.touch(1, 500 * MS, metadata_offset=5)
    state = manager.get(1)
    assert state is not None
    assert manager.session_ns(state, 500 * MS) == 200 * MS


@given(
    silences=st.lists(st.integers(0, 3_000), min_size=1, max_size=40),
    hints=st.sets(st.integers(0, 40)),
    stalls=st.dictionaries(st.integers(0, 40), st.integers(0, 1_000)),
)
def test_no_session_is_ever_shorter_than_the_hint_or_longer_than_the_limit(
    silences: list[int], hints: set[int], stalls: dict[int, int]
) -> None:
    manager = brokers(1)
    now_ms = 0
    for number, silence_ms in enumerate(silences):
        state = manager.get(1)
        assert state is not None
        heard_ms = now_ms
        if number in hints:
            manager.connection_lost(1, now_ms * MS)
        stall_ms = stalls.get(number, 0)
        manager.controller_stalled(stall_ms * MS)
        now_ms += silence_ms
        passed_ms = now_ms - heard_ms - stall_ms
        expired = manager.expired_brokers(now_ms * MS)
        if expired:
            assert passed_ms >= CONFIG.broker_session_hint_ms
            manager.fence(1, expired=True)
        else:
            assert passed_ms < CONFIG.broker_session_max_timeout_ms
        manager.touch(1, now_ms * MS, metadata_offset=number)
        manager.unfence(1)


# ---- what a broker is to be ------------------------------------------------------------------------------


def next_state(manager: BrokerHeartbeatManager, broker_id: int = 1, **wishes: object) -> BrokerControlState:
    defaults: dict[str, object] = {
        "wants_fence": False,
        "wants_shutdown": False,
        "metadata_offset": 100,
        "has_leaderships": lambda: False,
    }
    return manager.next_state(broker_id, **{**defaults, **wishes})  # type: ignore[arg-type]


def test_a_fenced_broker_is_unfenced_once_it_knows_its_own_registration() -> None:
    manager = BrokerHeartbeatManager(CONFIG)
    manager.register(1, 10, 0, is_fenced=True)
    assert next_state(manager, metadata_offset=9) is BrokerControlState.FENCED
    assert next_state(manager, metadata_offset=10, wants_fence=True) is BrokerControlState.FENCED
    assert next_state(manager, metadata_offset=10) is BrokerControlState.UNFENCED
    assert next_state(manager, wants_shutdown=True) is BrokerControlState.SHUTDOWN_NOW


def test_a_broker_that_leads_nothing_may_shut_down_at_once() -> None:
    assert next_state(brokers(1), wants_shutdown=True) is BrokerControlState.SHUTDOWN_NOW


def test_one_that_leads_waits_until_all_others_have_heard_of_the_new_leaders() -> None:
    manager = brokers(1, 2, 3)
    leads = lambda: True  # noqa: E731
    assert next_state(manager, wants_shutdown=True, has_leaderships=leads) is (
        BrokerControlState.CONTROLLED_SHUTDOWN
    )
    manager.begin_controlled_shutdown(1, 50)
    assert next_state(manager, wants_shutdown=True, has_leaderships=leads) is (
        BrokerControlState.CONTROLLED_SHUTDOWN
    )
    manager.touch(2, 0, metadata_offset=60)
    assert next_state(manager, wants_shutdown=True) is BrokerControlState.CONTROLLED_SHUTDOWN
    manager.touch(3, 0, metadata_offset=50)
    assert next_state(manager, wants_shutdown=True) is BrokerControlState.SHUTDOWN_NOW


def test_the_last_broker_shuts_down_at_once() -> None:
    manager = brokers(1)
    manager.begin_controlled_shutdown(1, 50)
    assert next_state(manager, wants_shutdown=True) is BrokerControlState.SHUTDOWN_NOW


def test_a_broker_may_ask_to_be_fenced() -> None:
    manager = brokers(1)
    assert next_state(manager, wants_fence=True) is BrokerControlState.FENCED
    assert next_state(manager, wants_fence=True, wants_shutdown=True) is BrokerControlState.SHUTDOWN_NOW


# ---- settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"broker_session_timeout_ms": -1},
        {"broker_session_hint_ms": 0},
        {"broker_session_hint_ms": 9_001},
        {"broker_session_max_timeout_ms": 8_999},
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(InvalidConfig):
        ControllerConfig(**settings)  # type: ignore[arg-type]
