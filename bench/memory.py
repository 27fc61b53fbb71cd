"""Memory that is really there, for benchmarks of what fills the page cache."""

import mmap

HUGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)


def warm(size_bytes: int) -> None:
    """Touch so much memory and free it again, right before a measurement.

    Many virtual machines give free memory back to their host within seconds, and whoever touches it next
    waits for the host (0.4 GB/s on one such machine, where the same memory is filled at 8 GB/s after that).
    It would hide what is to be measured.
    """
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if HUGE_PAGES is not None:
        memory.madvise(HUGE_PAGES)
    for position in range(0, size_bytes, mmap.PAGESIZE):
        memory[position] = 1
    memory.close()
