"""Compare two replicas of a partition: find how far they agree, and what each has at the first divergence.

Batches are compared byte for byte, including leader epochs, which the CRC does not cover. Differing batches
are compared record by record on request. Rot on one side is reported as rot, not as a divergence, and the
comparison continues behind it. Nothing is written. Either log may have a live writer; each is read up to the
offsets that its writer has published. Thread rule: one thread per comparison.
"""

from kreplica.log.diff.comparison import Pair, compare, compare_pair, pair_up
from kreplica.log.diff.report import (
    Comparison,
    Divergence,
    EpochHistory,
    LostRange,
    Place,
    Standing,
    agrees,
)

__all__ = [
    "Comparison",
    "Divergence",
    "EpochHistory",
    "LostRange",
    "Pair",
    "Place",
    "Standing",
    "agrees",
    "compare",
    "compare_pair",
    "pair_up",
]
