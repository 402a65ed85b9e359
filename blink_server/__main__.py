"""`python -m blink_server`: the command line without its installed script."""

from blink_server.cli import main

main(prog_name="blink-server")
