"""Serving versions on a GPU: one process owns it, and each version has a link to that process."""
