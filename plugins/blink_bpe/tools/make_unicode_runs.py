"""Writes csrc/include/blink_bpe/unicode_runs.inc: the classes of characters, asked of `tokenizers`.

The library's parts follow different versions of Unicode, and none of them has to be Python's: so
each class is found by what the part in question does with each character.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

TABLE = Path(__file__).parents[1] / "csrc" / "include" / "blink_bpe" / "unicode_runs.inc"
LETTER, NUMBER, SPACE, NUMERIC, WORD, UNSTABLE = (1 << bit for bit in range(6))
CODE_POINTS = [*range(0xD800), *range(0xE000, 0x110000)]
BATCH = 4096


def batches() -> Iterator[str]:
    """All characters, so many at a time that a piece of text stays short."""
    characters = map(chr, CODE_POINTS)
    while batch := "".join(itertools.islice(characters, BATCH)):
        yield batch


def matching(pattern: str) -> set[str]:
    """Characters that a regular expression of Split matches."""
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    return {
        character
        for batch in batches()
        for piece, _ in split.pre_tokenize_str(batch)
        for character in piece
    }


def numeric() -> set[str]:
    """Characters that Digits isolates."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    separated = ("".join(f"a{character}" for character in batch) for batch in batches())
    pieces = (piece for batch in separated for piece, _ in digits.pre_tokenize_str(batch))
    return {piece for piece in pieces if len(piece) == 1} - {"a"}


def found_after(**options: bool) -> Iterator[tuple[str, int]]:
    """Each character, and where an added token that follows it was found to start, from it on.

    Negative where the token was not found.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.add_tokens([AddedToken("<|>", normalized=False, **options)])
    for batch in batches():
        unit = ".c<|>."
        text = "".join(unit.replace("c", character) for character in batch)
        starts = {end // len(unit): start for start, end in tokenizer.encode(text).offsets}
        for place, character in enumerate(batch):
            yield character, starts.get(place, -1) - place * len(unit) - 1


def word() -> set[str]:
    """Characters next to which a token that is to be a single word is not found."""
    return {character for character, start in found_after(single_word=True) if start < 0}


def stripped() -> set[str]:
    """Characters that a token takes from before itself."""
    return {character for character, start in found_after(lstrip=True) if start == 0}


def unstable() -> set[str]:
    """Characters in whose presence NFC may change a text.

    Those that it changes alone, those that may join the character before them (they come second in
    a decomposition), and those of a combining class (two of them may change places).
    """
    nfc, nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
    highest, lowest = "\N{COMBINING GREEK YPOGEGRAMMENI}", "\N{COMBINING TILDE OVERLAY}"
    found = set()
    for character in map(chr, CODE_POINTS):
        found.update(nfd(character)[1:])
        if any(
            nfc(text) != text
            for text in (character, f"{highest}{character}", f"{character}{lowest}")
        ):
            found.add(character)
    return found


def runs() -> list[tuple[int, int]]:
    """(first code point, flags) of each run of characters with equal flags, in their order."""
    spaces = matching(r"\s")
    if stripped() != spaces:
        raise SystemExit("added tokens and patterns differ in what they take for white space")
    classes = {
        LETTER: matching(r"\p{L}"),
        NUMBER: matching(r"\p{N}"),
        SPACE: spaces,
        NUMERIC: numeric(),
        WORD: word(),
        UNSTABLE: unstable(),
    }
    flags = dict.fromkeys(range(0x110000), 0)
    for flag, characters in classes.items():
        for character in characters:
            flags[ord(character)] |= flag
    return [
        (code_point, flag)
        for code_point, flag in flags.items()
        if code_point == 0 or flags[code_point - 1] != flag
    ]


def table() -> str:
    """The text of the table: code point << 8 | flags of each run."""
    numbers = [f"0x{first << 8 | flag:x}," for first, flag in runs()]
    lines = (" ".join(numbers[at : at + 12]) for at in range(0, len(numbers), 12))
    return "\n".join(["// Made by tools/make_unicode_runs.py", *lines]) + "\n"


if __name__ == "__main__":
    TABLE.write_text(table())
