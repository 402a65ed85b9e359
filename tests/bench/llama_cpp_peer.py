"""llama.cpp's bare batch API behind JSON lines; runs in the environment of llama_cpp_bench.py.

    python llama_cpp_peer.py MODEL.gguf THREADS

Standard input has {"do": "decode", "prompts": [[id, ...], ...], "tokens": n} or
{"do": "prefill", "prompt": [id, ...]} a line; the answer has "seconds": of the decode steps after
every prompt has its first token, or from the prompt to its first token. Choices are greedy.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import llama_cpp
import numpy as np

CONTEXT = 1024  # tokens of each sequence
BATCH = 2048


class Peer:
    """A context for a number of sequences on one model; defaults but for sizes and threads."""

    def __init__(self, model: Any, sequences: int, threads: int) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = CONTEXT * sequences
        params.n_seq_max = sequences
        params.n_batch = BATCH
        params.n_threads = params.n_threads_batch = threads
        params.no_perf = True
        self._context = llama_cpp.llama_init_from_model(model, params)
        if self._context is None:
            raise RuntimeError("llama.cpp could not make a context")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        vocabulary = llama_cpp.llama_model_get_vocab(model)
        self._vocabulary_size = llama_cpp.llama_vocab_n_tokens(vocabulary)

    def start(self, prompts: list[list[int]]) -> list[int]:
        """Forget everything, read a prompt for each sequence; their first tokens."""
        llama_cpp.llama_memory_clear(self._memory, True)
        batch, size, ends = self._batch, 0, []
        for sequence, prompt in enumerate(prompts):
            for position, token in enumerate(prompt):
                self._put(size, token, position, sequence, position == len(prompt) - 1)
                size += 1
            ends.append(size - 1)
        batch.n_tokens = size
        return self._decode(ends)

    def step(self, tokens: list[int], positions: list[int]) -> list[int]:
        """Append a token to each sequence; their next ones."""
        for sequence, (token, position) in enumerate(zip(tokens, positions, strict=True)):
            self._put(sequence, token, position, sequence, True)
        self._batch.n_tokens = len(tokens)
        return self._decode(range(len(tokens)))

    def _put(self, place: int, token: int, position: int, sequence: int, shown: bool) -> None:
        batch = self._batch
        batch.token[place] = token
        batch.pos[place] = position
        batch.n_seq_id[place] = 1
        batch.seq_id[place][0] = sequence
        batch.logits[place] = shown

    def _decode(self, shown: Any) -> list[int]:
        if (status := llama_cpp.llama_decode(self._context, self._batch)) != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        return [self._best(place) for place in shown]

    def _best(self, place: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, place)
        return int(np.ctypeslib.as_array(logits, (self._vocabulary_size,)).argmax())


def decode(peer: Peer, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
    """Greedy answers of `tokens` tokens each; the seconds of all steps after the first tokens."""
    latest = peer.start(prompts)
    answers = [[token] for token in latest]
    lengths = [len(prompt) for prompt in prompts]
    started = time.perf_counter()
    for _ in range(tokens - 1):
        latest = peer.step(latest, lengths)
        lengths = [length + 1 for length in lengths]
        for answer, token in zip(answers, latest, strict=True):
            answer.append(token)
    return {"seconds": time.perf_counter() - started, "answers": answers}


def prefill(peer: Peer, prompt: list[int]) -> dict[str, Any]:
    """Seconds until the prompt's first token is there."""
    started = time.perf_counter()
    peer.start([prompt])
    return {"seconds": time.perf_counter() - started}


def main() -> None:
    """Load the model, say so with a line, and answer until the input ends."""
    path, threads = sys.argv[1], int(sys.argv[2])
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(path.encode(), params)
    if model is None:
        sys.exit(f"llama.cpp cannot load {path}")
    peers: dict[int, Peer] = {}
    build = llama_cpp.llama_print_system_info().decode()
    print(json.dumps({"version": llama_cpp.__version__, "build": build}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        prompts = asked["prompts"] if asked["do"] == "decode" else [asked["prompt"]]
        sequences = len(prompts)
        if sequences not in peers:
            peers[sequences] = Peer(model, sequences, threads)
        peer = peers[sequences]
        is_decode = asked["do"] == "decode"
        found = decode(peer, prompts, asked["tokens"]) if is_decode else prefill(peer, prompts[0])
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
