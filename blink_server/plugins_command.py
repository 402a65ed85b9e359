"""`blink-server plugins`: which plugins there are, and what each implements."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import click

from blink_server.plugin_choice import PluginChoice, plugin_options
from blink_server.plugins import Plugins, load_plugins
from blink_server.tables import cell, show, table


@click.command("plugins")
@plugin_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def plugins_command(ctx: click.Context, plugin_choice: PluginChoice, as_json: bool) -> None:
    """List plugins in loading order, with their hooks.

    Broken plugins are listed too, with the reason; the exit status is then 1 unless
    --no-strict-plugins is given.
    """
    plugins = load_plugins(choice=replace(plugin_choice, strict=False), warn=False)
    if as_json:
        click.echo(json.dumps(_as_json(plugins), indent=2))
    else:
        _print(plugins)
    ctx.exit(1 if plugins.broken and plugin_choice.strict else 0)


def _as_json(plugins: Plugins) -> dict[str, object]:
    return {
        "plugins": [asdict(each) for each in plugins.loaded],
        "broken": [
            {"name": each.name, "origin": each.origin, "problem": each.what}
            for each in plugins.broken
        ],
    }


def _print(plugins: Plugins) -> None:
    shown = table("plugin", "version", "origin", "hooks")
    for each in plugins.loaded:
        values = (each.name, each.version or "-", each.origin, "\n".join(each.hooks) or "-")
        shown.add_row(*map(cell, values))
    show(shown)
    for broken in plugins.broken:
        click.echo(f"broken: {broken}")
