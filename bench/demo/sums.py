"""What is counted of the flights, in whole numbers, so that two ways to the same figure compare exactly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

# A mean of fewer departures is chance.
FEWEST_DEPARTURES = 10


class Route(NamedTuple):
    """A carrier's flights of one month between two airports."""

    carrier: str
    month: int
    origin: str
    dest: str


class Sums(NamedTuple):
    """`minutes`: the delays of all departures together, early ones below zero."""

    flights: int
    departures: int
    minutes: int

    @property
    def mean_minutes(self) -> Fraction | None:
        """The mean delay of a departure, exactly; None without one."""
        return Fraction(self.minutes, self.departures) if self.departures else None


RouteSums = dict[Route, Sums]
# The route of the greatest mean delay, by carrier and month.
WorstRoutes = dict[tuple[str, int], Route]


def added(sums: Iterable[Sums]) -> Sums:
    """All of them together."""
    return Sums(*map(sum, zip(Sums(0, 0, 0), *sums, strict=True)))


def by_carrier(sums: Mapping[Route, Sums]) -> dict[str, Sums]:
    """The sums of each carrier, by its code."""
    carriers = sorted({route.carrier for route in sums})
    return {
        carrier: added(each for route, each in sums.items() if route.carrier == carrier)
        for carrier in carriers
    }


def by_month(sums: Mapping[Route, Sums], origin: str) -> dict[int, Sums]:
    """The sums of each month of those that left from `origin`."""
    months = sorted({route.month for route in sums})
    return {
        month: added(each for route, each in sums.items() if (route.month, route.origin) == (month, origin))
        for month in months
    }


def worst_routes(sums: Mapping[Route, Sums]) -> WorstRoutes:
    """Of each carrier and month the route with the greatest mean delay, among those with FEWEST_DEPARTURES;
    of two that are equal the first by name."""
    worst: WorstRoutes = {}
    for route in sorted(sums):
        mean = sums[route].mean_minutes
        if mean is None or sums[route].departures < FEWEST_DEPARTURES:
            continue
        key = (route.carrier, route.month)
        known = worst.get(key)
        known_mean = None if known is None else sums[known].mean_minutes
        if known_mean is None or mean > known_mean:
            worst[key] = route
    return worst


def differences(found: Mapping[Route, Sums], expected: Mapping[Route, Sums]) -> list[str]:
    """What differs, each as a sentence; empty: every sum is equal."""
    return [
        f"{' '.join(map(str, route))}: {found.get(route)} where the table has {expected.get(route)}"
        for route in sorted(found.keys() | expected.keys())
        if found.get(route) != expected.get(route)
    ]
