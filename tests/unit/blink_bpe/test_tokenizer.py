"""What the native tokenizer promises beside its ids: errors, and that other threads may run."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from blink_bpe.tokenizer import BlinkBpeTokenizer
from blink_server.errors import InvalidRequest
from blink_server.text.tokenizers import HuggingFaceTokenizer

Pair = tuple[HuggingFaceTokenizer, BlinkBpeTokenizer]


def test_a_lone_surrogate_is_the_requests_fault(pair: Pair) -> None:
    with pytest.raises(InvalidRequest, match="position 1"):
        pair[1].encode("a\ud800", add_special_tokens=False)


def test_ids_that_are_no_numbers_are_refused(pair: Pair) -> None:
    broken: Any = ["a"]
    with pytest.raises((TypeError, RuntimeError)):
        pair[1].decode(broken)


def test_threads_encode_at_once(pair: Pair) -> None:
    library, native = pair
    texts = ["Hello world, it's 2026! e\u0301 <think> 你好\n" * size for size in (1, 30, 1000)]
    expected = [library.encode(text, add_special_tokens=True) for text in texts]
    found: list[list[list[int]]] = []

    def encode() -> None:
        for _ in range(20):
            found.append([native.encode(text, add_special_tokens=True) for text in texts])

    threads = [threading.Thread(target=encode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 80


def test_other_threads_run_while_a_long_text_is_encoded(pair: Pair) -> None:
    native = pair[1]
    text = "Hello world, this is the quick brown fox 12345!\n" * 20_000
    begun, seen = threading.Event(), threading.Event()

    def observe() -> None:
        begun.wait()
        seen.set()

    observer = threading.Thread(target=observe)
    observer.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # nobody is made to give the lock up
    try:
        begun.set()
        for _ in range(100):
            native.encode(text, add_special_tokens=False)
            if seen.is_set():
                break
        assert seen.is_set()
    finally:
        sys.setswitchinterval(interval)
        observer.join()
