"""Sums of the flights in whole numbers, so that results of two computations compare exactly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

# The mean of fewer departures is not meaningful.
FEWEST_DEPARTURES = 10


class Route(NamedTuple):
    """A carrier's flights of one month between two airports."""

    carrier: str
    month: int
    origin: str
    dest: str


class Sums(NamedTuple):
    """The sums of a route. `minutes`: total delay of all departures; early ones count as negative."""

    flights: int
    departures: int
    minutes: int

    @property
    def mean_minutes(self) -> Fraction | None:
        """The exact mean delay of a departure, None without departures."""
        return Fraction(self.minutes, self.departures) if self.departures else None


RouteSums = dict[Route, Sums]
# The route with the greatest mean delay, by carrier and month.
WorstRoutes = dict[tuple[str, int], Route]


def added(sums: Iterable[Sums]) -> Sums:
    """Return the total of the sums."""
    return Sums(*map(sum, zip(Sums(0, 0, 0), *sums, strict=True)))


def by_carrier(sums: Mapping[Route, Sums]) -> dict[str, Sums]:
    """Return the sums of each carrier, by its code."""
    carriers = sorted({route.carrier for route in sums})
    return {
        carrier: added(each for route, each in sums.items() if route.carrier == carrier)
        for carrier in carriers
    }


def by_month(sums: Mapping[Route, Sums], origin: str) -> dict[int, Sums]:
    """Return the sums of each month for flights from `origin`."""
    months = sorted({route.month for route in sums})
    return {
        month: added(each for route, each in sums.items() if (route.month, route.origin) == (month, origin))
        for month in months
    }


def worst_routes(sums: Mapping[Route, Sums]) -> WorstRoutes:
    """Return the route with the greatest mean delay of each carrier and month.

    Only routes with FEWEST_DEPARTURES count; of equal ones, the first by name wins.
    """
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
    """Return a sentence for each difference; empty if all sums are equal."""
    return [
        f"{' '.join(map(str, route))}: {found.get(route)} where the table has {expected.get(route)}"
        for route in sorted(found.keys() | expected.keys())
        if found.get(route) != expected.get(route)
    ]
