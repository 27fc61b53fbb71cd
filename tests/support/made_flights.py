"""Generated flights in the form of the demo's table."""

from __future__ import annotations

import random

import pyarrow

from bench.demo.flights import numbered

CSV = b"""year,month,day,dep_time,dep_delay,carrier,flight,tailnum,origin,dest,time_hour
2013,1,1,517,2,UA,1545,N14228,EWR,IAH,2013-01-01T10:00:00Z
2013,1,1,NA,NA,EV,4308,NA,EWR,RDU,2013-01-01T10:00:00Z
2013,1,1,542,-3,AA,1141,N619AA,JFK,MIA,2013-01-01T10:00:00Z
"""


def made_flights(count: int, seed: int = 0) -> pyarrow.Table:
    """Return `count` flights on few routes; some never left, and some have no tail number."""
    drawn = random.Random(seed)
    rows = [
        {
            "month": drawn.randint(1, 3),
            "carrier": drawn.choice(["UA", "AA"]),
            "origin": drawn.choice(["EWR", "JFK", "LGA"]),
            "dest": drawn.choice(["IAH", "MIA"]),
            "dep_delay": None if drawn.random() < 0.05 else drawn.randint(-20, 90),
            "tailnum": None if drawn.random() < 0.05 else f"N{drawn.randrange(100)}",
        }
        for _ in range(count)
    ]
    return numbered(pyarrow.Table.from_pylist(rows))
