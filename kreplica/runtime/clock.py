"""The machine's clocks, as the Clock port."""

from __future__ import annotations

import time


class SystemClock:
    """Implements `kreplica.common.ports.Clock`. Stateless; any thread may use it."""

    def time_ms(self) -> int:
        """Return milliseconds since 1970. May go back."""
        return time.time_ns() // 1_000_000

    # Nanoseconds since an arbitrary moment; never goes back. Assigned directly, as it is called for each
    # record.
    monotonic_ns = staticmethod(time.monotonic_ns)
