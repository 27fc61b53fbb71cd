"""Two replicas of a partition compared: how far they agree, and what each has where they first do not.

Batches are compared byte for byte, leader epochs included, which lie outside of a batch's CRC; where they
differ, record by record if that is wanted. Bytes that rotted on one side are told as rot and not as a
divergence, and the comparison goes on behind them. Nothing is written, and either log may have a live writer:
each is read up to the offsets that its writer publishes. Thread rule: one thread for a comparison.
"""

from kreplica.log.diff.comparison import compare, compare_pair
from kreplica.log.diff.directory import Pair, is_partition, pair_up
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
    "is_partition",
    "pair_up",
]
