"""The `blink-server` command: its commands are imported when they are used, not before."""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple, NoReturn

import click

from blink_server.errors import BlinkError


class _Command(NamedTuple):
    target: str  # module:attribute of a click command
    summary: str


COMMANDS = {
    "bench": _Command(
        "blink_server.bench.command:bench_group",
        "Measure a server, alone or beside noisy neighbours.",
    ),
    "build": _Command(
        "blink_server.importers.build_command:build_command",
        "Build a version for another engine from its weights.",
    ),
    "check": _Command(
        "blink_server.check:check_command", "Report what is wrong in a model repository."
    ),
    "frontend": _Command(
        "blink_server.remote.command:frontend_command",
        "Serve another machine's models, for example from a DPU.",
    ),
    "import": _Command(
        "blink_server.importers.command:import_command", "Import a model as a new version."
    ),
    "log-level": _Command(
        "blink_server.log_options:log_level_command", "Set the log level of a running server."
    ),
    "models": _Command(
        "blink_server.importers.models_command:models_group",
        "Show, load, unload and pull models.",
    ),
    "new-plugin": _Command(
        "blink_server.new_plugin:new_plugin_command", "Create a plugin project."
    ),
    "plugins": _Command(
        "blink_server.plugins_command:plugins_command", "List plugins and their hooks."
    ),
    "serve": _Command("blink_server.serve:serve_command", "Serve a model repository over HTTP."),
    "top": _Command("blink_server.top.command:top_command", "Watch a server in a terminal."),
}


class LazyGroup(click.Group):
    """A group whose commands are modules' attributes, imported on use.

    A BlinkError in a command becomes one line on standard error and exit code 1.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].summary) for name in sorted(COMMANDS)])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BlinkError as error:
            _fail(ctx, error)


def _fail(ctx: click.Context, error: BlinkError) -> NoReturn:
    click.echo(f"error: {error}", err=True)
    ctx.exit(1)


def _version() -> str:
    try:
        return version("blink-server")
    except PackageNotFoundError:
        return "not installed"


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_version(), prog_name="blink-server")
def main() -> None:
    """Serve language models with the host CPU off the path of every token."""
