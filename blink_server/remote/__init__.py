"""Frontends on other machines: the door that lets them in, and the frontend that comes through."""
