"""Real tokenizers of a few hundred tokens, made in memory in milliseconds."""

from __future__ import annotations

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML, with the special tokens of `byte_level_tokenizer`."""

END_OF_TEXT, IM_START, IM_END = 0, 1, 2
"""Ids of the special tokens of `byte_level_tokenizer`."""

_CORPUS = [
    "Hello world, the quick brown fox jumps over the lazy dog.",
    "def main(): return {'key': [1, 2, 3]}",
    "héllo wörld, ça va? 你好世界 😀😀 👩‍🚀",
]


def byte_level_tokenizer(vocabulary_size: int = 400) -> str:
    """A byte-level BPE's tokenizer.json: any text and any bytes, few merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 4, trainer)
    tokenizer.add_tokens([AddedToken("<plain added>", special=False)])
    return str(tokenizer.to_str())


def sentencepiece_tokenizer() -> str:
    """A Llama-2-like tokenizer.json: pieces with U+2581 for space, bytes for what is unknown."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁He", "llo", "▁world", "▁你", "好", "a", "b", "c", "▁a", "▁b", "!"]
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("▁", "b")]
    model = models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    steps = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return str(tokenizer.to_str())


def number_tokenizer(vocabulary_size: int) -> str:
    """A tokenizer.json whose every token is its id as a word: texts tell which tokens they are."""
    vocabulary = {f"▁{token_id}": token_id for token_id in range(vocabulary_size)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="▁0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return str(tokenizer.to_str())
