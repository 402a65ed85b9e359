"""What `blink-server new-plugin` writes: a folder a kind, with a plugin and its tests."""
