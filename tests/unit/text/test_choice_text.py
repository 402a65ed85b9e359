from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from blink_server.backend import FinishReason, TokenEvent, TokenLogprob
from blink_server.testing.tiny_tokenizer import byte_level_tokenizer
from blink_server.text.choice_text import ChoiceText, ShownLogprob
from blink_server.text.tokenizers import HuggingFaceTokenizer

TOKENIZER = HuggingFaceTokenizer(byte_level_tokenizer())
BY_BYTE = {TOKENIZER.token_bytes(place): place for place in range(TOKENIZER.vocabulary_size)}
EOS = 2


def by_bytes(text: str) -> list[int]:
    return [BY_BYTE[bytes([byte])] for byte in text.encode()]


def run(
    ids: list[int],
    *,
    cuts: list[int] = [],  # noqa: B006
    reason: FinishReason = FinishReason.LENGTH,
    stops: tuple[str, ...] = (),
    include: bool = False,
) -> tuple[str, list[ShownLogprob], ChoiceText]:
    """Feed `ids` in events that end at `cuts`; joined text, log-probabilities, the choice."""
    choice = ChoiceText(TOKENIZER, stops=stops, include_stop=include)
    text, entries, start = "", [], 0
    ends = [*sorted({cut for cut in cuts if 0 < cut < len(ids)}), len(ids)]
    for end in ends:
        part = ids[start:end]
        event = TokenEvent(
            part,
            [TokenLogprob(token_id, -1.0) for token_id in part],
            reason if end == len(ids) else None,
        )
        delta, shown = choice.push(event)
        text += delta
        entries += shown
        start = end
        if choice.finish_reason:
            break
    return text, entries, choice


texts = st.text(st.sampled_from("ab😀é\n"), max_size=25)
cut_lists = st.lists(st.integers(0, 60), max_size=6)


@given(texts, cut_lists, st.lists(st.text("ab😀é\n", min_size=1, max_size=3), max_size=3))
def test_batching_changes_nothing_and_bytes_join_to_the_text(
    text: str, cuts: list[int], stops: list[str]
) -> None:
    ids = by_bytes(text)
    whole, whole_entries, one = run(ids, stops=tuple(stops))
    parts, part_entries, many = run(ids, cuts=cuts, stops=tuple(stops))
    assert parts == whole
    assert part_entries == whole_entries
    assert (many.generated, many.finish_reason) == (one.generated, one.finish_reason)
    assert b"".join(entry.data for entry in whole_entries) == whole.encode()


@given(texts, st.lists(st.text("ab😀é\n", min_size=1, max_size=3), max_size=3))
def test_bytes_join_to_the_text_with_tokens_longer_than_a_character(
    text: str, stops: list[str]
) -> None:
    ids = TOKENIZER.encode(f"Hello {text} world", add_special_tokens=False)
    shown, entries, _ = run(ids, stops=tuple(stops))
    assert b"".join(entry.data for entry in entries) == shown.encode()


def test_the_ending_token_is_counted_but_not_shown() -> None:
    text, entries, choice = run([*by_bytes("ok"), EOS], reason=FinishReason.STOP)
    assert (text, choice.generated, choice.finish_reason) == ("ok", 3, "stop")
    assert [entry.data for entry in entries] == [b"o", b"k"]
    assert not choice.stopped


def test_a_stop_token_with_text_is_shown_only_where_asked_for() -> None:
    ids = by_bytes("ok!")
    assert run(ids, reason=FinishReason.STOP)[0] == "ok"
    assert run(ids, reason=FinishReason.STOP, include=True)[0] == "ok!"


def test_a_stop_string_ends_the_count_at_its_last_token() -> None:
    ids = by_bytes("one. STOP two")
    text, _, choice = run(ids, stops=("STOP",))
    assert (text, choice.finish_reason, choice.stopped) == ("one. ", "stop", True)
    assert choice.generated == len("one. STOP")


def test_a_token_cut_by_a_stop_string_keeps_its_first_part() -> None:
    token = next(
        place
        for place in range(3, TOKENIZER.vocabulary_size)
        if len(TOKENIZER.token_bytes(place)) >= 3 and TOKENIZER.token_bytes(place).isalpha()
    )
    name = TOKENIZER.token_bytes(token).decode()
    text, entries, _ = run([token], stops=(name[1:],))
    assert text == name[0]
    assert [(entry.data, entry.offset) for entry in entries] == [(name[0].encode(), 0)]


def test_a_stop_string_that_never_completes_is_flushed_at_the_end() -> None:
    text, _, choice = run(by_bytes("abST"), stops=("STOP",), cuts=[1, 2, 3])
    assert (text, choice.finish_reason) == ("abST", "length")
