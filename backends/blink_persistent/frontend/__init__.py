"""The worker's side of a ring: a `Session` over one range, whatever transport brings its memory."""
