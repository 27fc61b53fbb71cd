"""The machine's clocks, as the Clock port."""

from __future__ import annotations

import time

from kreplica.common.ports import NANOSECONDS_PER_MS


class SystemClock:
    """Implements `kreplica.common.ports.Clock`. Stateless; any thread may use it."""

    def time_ms(self) -> int:
        """Return milliseconds since 1970. May go back."""
        return time.time_ns() // NANOSECONDS_PER_MS

    # Nanoseconds since an arbitrary moment; never goes back. Assigned directly, as it is called for each
    # record.
    monotonic_ns = staticmethod(time.monotonic_ns)
