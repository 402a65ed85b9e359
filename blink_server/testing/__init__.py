"""Public fakes and contract suites for tests of the server, its backends and its plugins."""
