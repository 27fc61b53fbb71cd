"""What all tests share: hypothesis takes the time it needs, and in CI the same examples every time.

A machine under load is slow, not wrong, so no example has a deadline. `HYPOTHESIS_PROFILE=search` looks for
new examples, as a run by hand does.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "search", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("ci", settings.get_profile("search"), derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "search"))
