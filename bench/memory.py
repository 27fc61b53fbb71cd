"""Physical memory for benchmarks that fill the page cache."""

import mmap

HUGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)


def warm(size_bytes: int) -> None:
    """Touch this much memory and free it, right before a measurement.

    Many virtual machines return free memory to their host within seconds. The next use then waits for the
    host: on one machine at 0.4 GB/s, where memory in use is filled at 8 GB/s. That would distort the
    measurement.
    """
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if HUGE_PAGES is not None:
        memory.madvise(HUGE_PAGES)
    for position in range(0, size_bytes, mmap.PAGESIZE):
        memory[position] = 1
    memory.close()
