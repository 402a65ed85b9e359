"""Contract suites: a class of tests for each kind of plugin; a subclass overrides its fixtures."""

from pathlib import Path

import pytest

for _file in Path(__file__).parent.glob("[a-z]*.py"):
    pytest.register_assert_rewrite(f"{__name__}.{_file.stem}")
