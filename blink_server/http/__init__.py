"""The worker's HTTP side: OpenAI-compatible routes over a directory of connected models."""
