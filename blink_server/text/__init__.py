"""Between text and token ids: chat templates, tokenizers, incremental decoding, stop strings."""
