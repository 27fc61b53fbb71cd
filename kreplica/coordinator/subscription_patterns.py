r"""Regular expressions by which members subscribe to topics.

The syntax is that of RE2, and a pattern has to match the whole name of a topic. RE2 takes time that is linear
in the name, whatever the pattern, and refuses a pattern that needs too much memory. Kafka uses RE2/J; the
differences are few:

    pattern                                         RE2/J      here
    `\C`                                            refused    one byte
    nested repetitions above 1,000, `(a{99}){99}`   accepted   refused
    a pattern of more than 1 MiB, `\pL{1000}`       accepted   refused
    two groups of one name                          refused    accepted
    a group with a name that is not ASCII           refused    accepted
    `a{99999999999}`                                refused    matches itself

Kafka's patterns also find internal topics, as `.*` would; here these have to be named.

Pure functions, but for `TopicPatterns`, which belongs to one loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from kreplica.common.errors import InvalidRegularExpression

# Whether a member may know of a topic.
Sees = Callable[[str], bool]

# Memory of a compiled pattern. RE2's default of 8 MiB would allow patterns that take 200 ms to compile.
MAX_PATTERN_BYTES = 1 << 20
# Names that one step matches, in about 2 ms.
NAMES_PER_STEP = 200


def compiled(pattern: str) -> Any:
    """Compile a pattern; its method `fullmatch` takes a name. Raises InvalidRegularExpression."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_PATTERN_BYTES
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0]
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidRegularExpression(f"{pattern[:200]!r} is not a regular expression: {text}") from None


class TopicPatterns:
    """Finds the topics that match each of several patterns and that its members may know, in bounded steps.

    Many patterns over many topics take seconds, and the coordinator's loop has other work. The caller posts
    `step` again until it returns True. A pattern that cannot be compiled matches nothing. `patterns`: each
    with the rights of its members, which decide about each topic.
    """

    def __init__(self, patterns: Mapping[str, Collection[Sees]], topics: Sequence[str]) -> None:
        self.patterns = patterns
        self._topics = topics
        self._found: dict[str, set[str]] = {pattern: set() for pattern in patterns}
        self._steps = self._work()

    def step(self) -> bool:
        """Match some names, and return whether all are done."""
        return next(self._steps, True)

    def result(self) -> dict[str, frozenset[str]]:
        """Return the matching topics of each pattern, once `step` has returned True."""
        return {pattern: frozenset(names) for pattern, names in self._found.items()}

    def _work(self) -> Iterator[bool]:
        for pattern, found in self._found.items():
            try:
                matches = compiled(pattern).fullmatch
            except InvalidRegularExpression:
                continue
            for start in range(0, len(self._topics), NAMES_PER_STEP):
                names = list(filter(matches, self._topics[start : start + NAMES_PER_STEP]))
                yield False
                for sees in self.patterns[pattern] if names else ():
                    names = list(filter(sees, names))
                    yield False
                found.update(names)
