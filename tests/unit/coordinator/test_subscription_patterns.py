"""Regular expressions of subscriptions: syntax, whole names, bounded steps."""

from __future__ import annotations

import pytest

from kreplica.common.errors import InvalidRegularExpression
from kreplica.coordinator.subscription_patterns import NAMES_PER_STEP, TopicPatterns, compiled


def found(patterns: list[str], topics: list[str]) -> dict[str, frozenset[str]]:
    work = TopicPatterns(dict.fromkeys(patterns, ()), topics)
    while not work.step():
        pass
    return work.result()


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.*", {"a", "ab", "a.b"}),
        ("a", {"a"}),
        ("b", set()),
        ("a|ab", {"a", "ab"}),
        ("^a$", {"a"}),
        ("(?i)A[.]B", {"a.b"}),
        (r"a\.b", {"a.b"}),
        (r"\Qa.b\E", {"a.b"}),
        ("a.b", {"a.b"}),
        (r"[[:alpha:]]+", {"a", "ab"}),
        (r"\pL+", {"a", "ab"}),
        ("", set()),
        (".*", {"a", "ab", "a.b", "topic-1"}),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, names: set[str]) -> None:
    assert found([pattern], ["a", "ab", "a.b", "topic-1"]) == {pattern: names}


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", ")", "*", "[a", "a{2,1}", "a{1001}", "\\", "[z-a]", "(?P=n)", r"(a)\1", "(?<=a)b", "a(?=b)"),
        *("(?>a)", "a++", r"\p{Foo}", r"\Z", "(?x) a", r"((a{100}){100}){100}", r"\pL{1000}"),
    ],
)
def test_what_re2_cannot_compile_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRegularExpression, match="is not a regular expression"):
        compiled(pattern)


def test_a_pattern_that_cannot_be_compiled_matches_nothing() -> None:
    assert found(["(", "a"], ["a"]) == {"(": frozenset(), "a": {"a"}}


def test_a_pattern_that_makes_others_backtrack_takes_linear_time() -> None:
    assert compiled("(a*)*b").fullmatch("a" * 249) is None


def test_many_topics_and_patterns_take_bounded_steps() -> None:
    topics = [f"topic-{n}" for n in range(2 * NAMES_PER_STEP + 1)]
    work = TopicPatterns({"topic-1.*": (), ".*-2": ()}, topics)
    steps = 0
    while not work.step():
        steps += 1
    assert steps == 6
    assert work.result()[".*-2"] == {"topic-2"}


def test_no_patterns_and_no_topics_are_done_at_once() -> None:
    assert TopicPatterns({}, ["a"]).step()
    assert found(["a"], []) == {"a": frozenset()}


def test_topics_that_a_member_may_not_know_do_not_match() -> None:
    topics = [f"{letter}{n}" for letter in "ab" for n in range(2 * NAMES_PER_STEP)]
    work = TopicPatterns({"a.*": (lambda name: "7" in name, lambda name: "1" in name), ".*0": ()}, topics)
    while not work.step():
        pass
    assert {"a17", "a71"} < work.result()["a.*"]
    assert all("1" in name and "7" in name for name in work.result()["a.*"])
    assert {"a10", "b10"} < work.result()[".*0"]
