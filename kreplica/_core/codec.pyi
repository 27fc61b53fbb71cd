from collections.abc import Callable

from typing_extensions import Buffer

def install(
    compress: Callable[[int, Buffer, int | None], Buffer],
    decompress: Callable[[int, Buffer, int, int], Buffer],
) -> None: ...
def least_size(data: Buffer, record_count: int) -> int: ...
