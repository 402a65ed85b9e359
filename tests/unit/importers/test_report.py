from __future__ import annotations

import io

from rich.console import Console

from blink_server.importers.report import stages_shown


def test_a_stage_s_name_is_shown_as_it_is() -> None:
    output = io.StringIO()
    console = Console(file=output, width=80, force_terminal=True, color_system=None)
    with stages_shown(console) as stages:
        stages.report("layers [0]", 0.5)
        stages.report("plan [/x]", 1.0)
    assert "layers [0] " in output.getvalue()
    assert "plan [/x] " in output.getvalue()
