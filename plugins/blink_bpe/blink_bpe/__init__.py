"""The fast byte-level BPE tokenizer, as a plugin of the Blink server."""
