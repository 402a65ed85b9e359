"""The agent: keeps a ring of another memory mirrored in this one, for all workers of a machine."""
