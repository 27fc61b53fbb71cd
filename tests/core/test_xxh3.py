"""XXH3, beside the values of another implementation (hash4j, which Kafka uses)."""

from __future__ import annotations

import pytest

from kreplica._core.xxh3 import xxh3_64

DATA = bytes((i * 131 + (i >> 8) * 17) & 0xFF for i in range(3000))


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, 3244421341483603138),
        (1, -4302098779834749733),
        (3, 7498866712160224988),
        (4, -1346519935298723189),
        (8, -1894825013668101829),
        (9, 620244566734256247),
        (16, 724733943424338815),
        (17, 6324510874929802270),
        (32, -8186798694729715443),
        (33, -4893446407486759051),
        (64, 8580642941582262547),
        (65, -2515450645457134660),
        (96, 9165215860174439771),
        (97, 891120467965394398),
        (128, 7593185266339588378),
        (129, -5643673190338823189),
        (144, -8272766953603299344),
        (240, -5187438120683311388),
        (241, 4961791514685885991),
        (1024, 8880268711922178748),
        (1025, -8773216353793743548),
        (1088, -653532815824628875),
        (2048, 1146335981932821096),
        (3000, 1675639148992349256),
    ],
)
def test_sizes_of_every_path_have_the_known_hash(size: int, expected: int) -> None:
    assert xxh3_64(DATA[:size]) == expected


def test_all_sizes_up_to_3000_have_the_known_hashes() -> None:
    combined = 0
    for size in range(len(DATA) + 1):
        combined = (combined * 31 + xxh3_64(DATA[:size])) % (1 << 64)
    assert combined == 6197207071343755001


def test_any_buffer_can_be_hashed() -> None:
    assert xxh3_64(memoryview(bytearray(DATA))[3:700]) == xxh3_64(DATA[3:700])
