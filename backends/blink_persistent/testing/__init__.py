"""Public test kit: the scripted engine behind a real ring and a real scheduler."""
