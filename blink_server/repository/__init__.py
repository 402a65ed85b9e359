"""The model repository: what is on disk, what of it is wanted, and the state of each version."""
