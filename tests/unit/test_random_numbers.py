"""The random number of a token is Philox4x32-10, checked against Random123's known answers."""

from __future__ import annotations

import random

from blink_persistent import _native


def philox4x32(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 in plain integers (Salmon et al., SC 2011)."""
    word, (k0, k1) = counter, key
    for _ in range(10):
        low, high = 0xD2511F53 * word[0], 0xCD9E8D57 * word[2]
        word = [
            high >> 32 ^ word[1] ^ k0,
            high & 0xFFFFFFFF,
            low >> 32 ^ word[3] ^ k1,
            low & 0xFFFFFFFF,
        ]
        k0, k1 = (k0 + 0x9E3779B9) % (1 << 32), (k1 + 0xBB67AE85) % (1 << 32)
    return word


KNOWN_ANSWERS = [  # kat_vectors of Random123
    ("0 0 0 0", "0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff " * 4, "ffffffff " * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def test_random_numbers_are_philox() -> None:
    for counter, key, answer in KNOWN_ANSWERS:
        words = [[int(word, 16) for word in text.split()] for text in (counter, key, answer)]
        assert philox4x32(words[0], words[1]) == words[2]
    chance = random.Random(0)
    for seed, position in [(0, 0), (2**64 - 1, 2**32 - 1)] + [
        (chance.getrandbits(64), chance.getrandbits(32)) for _ in range(200)
    ]:
        word = philox4x32([position, 0, 0, 0], [seed & 0xFFFFFFFF, seed >> 32])[0]
        assert _native.uniform_at(seed, position) == (word >> 8) * 2.0**-24
