"""`blink-server serve`: checks what it was asked for, then runs the provisioner."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path

import click

from blink_server.control import HOST_RANGES_VARIABLE, SCHEDULER_VARIABLE
from blink_server.errors import BlinkError
from blink_server.front_options import FrontOptions, front_options
from blink_server.gunicorn_settings import LOAD_TIMEOUT_VARIABLE
from blink_server.http_options import HttpOptions, http_options
from blink_server.listener import url_of
from blink_server.log_options import log_options
from blink_server.plugin_choice import PluginChoice, plugin_options
from blink_server.plugins import load_plugins
from blink_server.provisioner import Provisioner, ServeOptions
from blink_server.remote.door_options import DoorOptions, door_options
from blink_server.repository.admin import ControlMode
from blink_server.repository.harness import State
from blink_server.repository.supervisor import Supervisor
from blink_server.repository.surroundings import Limits


@click.command("serve")
@click.option(
    "--model-repository",
    "repositories",
    type=click.Path(path_type=Path),
    multiple=True,
    default=(Path("model_repository"),),
    show_default="model_repository",
    help="Model repository directory; repeatable.",
)
@front_options
@click.option(
    "--load-timeout-secs",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Time limit for loading one version.",
)
@click.option(
    "--drain-timeout-secs",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="How long open requests may continue on a version being unloaded.",
)
@click.option(
    "--load-parallelism",
    type=click.IntRange(1, 1024),
    default=4,
    show_default=True,
    help="Number of versions that may load at once.",
)
@click.option(
    "--model-control",
    type=click.Choice([str(mode) for mode in ControlMode]),
    default=str(ControlMode.WATCH),
    show_default=True,
    help="none: serve what is there at startup; watch: follow changes to the repository; "
    "explicit: serve only what is loaded on request.",
)
@click.option(
    "--load-model",
    "load_models",
    multiple=True,
    help="With --model-control explicit: load this model at startup; * means all. Repeatable.",
)
@click.option(
    "--repository-polling",
    "polling_seconds",
    type=click.FloatRange(min=0.1, max=3600),
    help="Poll for changes at this interval, for file systems that send no events.",
)
@click.option(
    "--settle-secs",
    type=click.FloatRange(min=0, max=3600),
    default=1.0,
    show_default=True,
    help="How long a version's files must be unchanged before it is loaded.",
)
@click.option(
    "--runtime-dir",
    type=click.Path(path_type=Path),
    help="Private directory for sockets; reuse it to take over after a crash.",
)
@plugin_options
@click.option(
    "--reload-plugins/--no-reload-plugins",
    default=False,
    help="Reread changed plugin files for models loaded later.",
)
@click.option(
    "--scheduler",
    type=click.Choice(["device", "host"]),
    help="What launches the steps on a GPU, overriding each config.json. [default: device]",
)
@log_options
@door_options
@http_options
def serve_command(
    repositories: tuple[Path, ...],
    front: FrontOptions,
    load_timeout_secs: float,
    drain_timeout_secs: float,
    load_parallelism: int,
    model_control: str,
    load_models: tuple[str, ...],
    polling_seconds: float | None,
    settle_secs: float,
    runtime_dir: Path | None,
    plugin_choice: PluginChoice,
    reload_plugins: bool,
    scheduler: str | None,
    door: DoorOptions | None,
    http: HttpOptions,
) -> None:
    """Serve the models of a repository over HTTP."""
    if load_models and model_control != ControlMode.EXPLICIT:
        raise BlinkError("--load-model needs --model-control explicit: else all models are loaded")
    os.environ[LOAD_TIMEOUT_VARIABLE] = str(load_timeout_secs)
    if scheduler is not None:
        os.environ[SCHEDULER_VARIABLE] = scheduler
    if door is not None and door.gpudirect:
        # One more, for the successor of a worker whose range is being taken back.
        os.environ[HOST_RANGES_VARIABLE] = str(front.workers + 1)
    plugin_choice = replace(plugin_choice, reload=reload_plugins)
    os.environ.update(plugin_choice.variables())  # for workers and runners
    options = ServeOptions(
        repositories=repositories,
        front=replace(front, http=http),
        runtime_directory=runtime_dir,
        limits=Limits(
            load=load_timeout_secs, drain=drain_timeout_secs, parallel_loads=load_parallelism
        ),
        control=ControlMode(model_control),
        load_models=load_models,
        polling_seconds=polling_seconds,
        settle_seconds=settle_secs,
        door=door,
    )
    asyncio.run(_run(options))


async def _run(options: ServeOptions) -> None:
    plugins = load_plugins()
    if plugins.routes:  # else nothing here needs the whole HTTP side
        from blink_server.http.plugin_routes import check_plugin_routes

        check_plugin_routes(plugins)
    await Provisioner(options, plugins, announce=_print_summary).run()


def _print_summary(provisioner: Provisioner) -> None:
    front = provisioner.front
    url = url_of(*front.address, scheme=front.options.http.scheme)
    click.echo(f"Blink server on {url}")
    if provisioner.door is not None:
        host, port = provisioner.door.address
        click.echo(f"Frontends elsewhere: blink-server frontend --connect {host}:{port}")
    supervisors = provisioner.manager.supervisors
    names = [str(s.wanted.key) for s in supervisors]
    names += [str(i.key) for i in provisioner.wanted.invalid]
    width = max(map(len, names), default=0)
    for supervisor in supervisors:
        click.echo(f"  {supervisor.wanted.key!s:{width}}  {_state(supervisor)}")
    for invalid in provisioner.wanted.invalid:
        click.echo(f"  {invalid.key!s:{width}}  {State.UNAVAILABLE}: {invalid.reason}")
    for problem in provisioner.wanted.problems:
        click.echo(f"  {problem}")
    if not names:
        click.echo("  no model in the repository: blink-server import --help")
    ready = [s for s in supervisors if s.harness.state is State.READY]
    if ready:
        click.echo(f"Try:\n  {_curl(url, ready[0], with_key=provisioner.front.needs_key)}")
    if front.options.http.console:
        click.echo(f"In a browser:\n  {url}/console")


def _state(supervisor: Supervisor) -> str:
    harness = supervisor.harness
    if harness.state is State.READY:
        return f"{harness.state} in {supervisor.load_seconds:.1f} s"
    return f"{harness.state}: {harness.reason}" if harness.reason else str(harness.state)


def _curl(url: str, supervisor: Supervisor, *, with_key: bool) -> str:
    """A command line that asks the model something and shows the answer as it arrives."""
    version = supervisor.wanted.version
    body: dict[str, object] = {"model": version.model, "stream": True}
    if version.config.get("chat_template"):
        path = "chat/completions"
        body["messages"] = [{"role": "user", "content": "Why is the sky blue?"}]
    else:
        path = "completions"
        body["prompt"] = "The sky is blue because"
    key = ' -H "Authorization: Bearer $BLINK_API_KEY"' if with_key else ""
    return (
        f"curl -N {url}/v1/{path}{key} -H 'Content-Type: application/json' -d '{json.dumps(body)}'"
    )
