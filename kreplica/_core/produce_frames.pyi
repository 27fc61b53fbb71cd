from typing_extensions import Buffer

PRODUCE_VERSION: int

def read_produce_answer(frame: Buffer, position: int, name: bytes) -> int | None: ...
