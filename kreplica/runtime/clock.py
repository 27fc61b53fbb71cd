"""The machine's clocks, as the Clock port wants them."""

from __future__ import annotations

import time


class SystemClock:
    """Implements `kreplica.common.ports.Clock`. Has no state: any thread may use it."""

    def time_ms(self) -> int:
        """Milliseconds since 1970. May go back."""
        return time.time_ns() // 1_000_000

    # Nanoseconds since some moment. Never goes back. The system's own function: it is asked for each record.
    monotonic_ns = staticmethod(time.monotonic_ns)
