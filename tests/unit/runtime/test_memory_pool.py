"""Who waits and who goes when requests hold too much."""

from __future__ import annotations

from kreplica.runtime.memory_pool import MemoryPool


class Connection:
    def __init__(self, pool: MemoryPool) -> None:
        self._pool = pool
        self.is_cut = False
        self.turns = 0

    def cut(self) -> None:
        self.is_cut = True
        self._pool.forget(self)

    def go_on(self) -> None:
        self.turns += 1
        if self._pool.is_full:
            self._pool.wait(self)


def test_those_that_wait_go_on_once_there_is_room() -> None:
    pool = MemoryPool(10)
    first, second = Connection(pool), Connection(pool)
    pool.take(6)
    assert not pool.is_full
    pool.take(6)
    assert pool.is_full
    pool.wait(first)
    pool.wait(second)
    pool.forget(second)
    pool.take(5)
    pool.give_back(6)
    assert first.turns == 0
    pool.give_back(6)
    assert (first.turns, second.turns) == (1, 0)
    assert pool.under_way_bytes == 5


def test_the_frame_that_is_longest_on_its_way_goes() -> None:
    pool = MemoryPool(10)
    connections = [Connection(pool) for _ in range(4)]
    for number, each in enumerate(connections[:3]):
        pool.receive(each, 1 + number)
    pool.receive(connections[0], 4)
    pool.receive(connections[1], 0)
    pool.receive(connections[3], 4)
    assert [each.is_cut for each in connections] == [True, False, False, False]
    assert pool.receiving_bytes == 7
    pool.receive(connections[2], 9)
    assert [each.is_cut for each in connections] == [True, False, True, False]
    assert pool.receiving_bytes == 4
