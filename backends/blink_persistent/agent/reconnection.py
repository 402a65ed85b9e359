"""After a lost connection: another one to the same ring, as often as needed within a limit."""

from __future__ import annotations

import logging
import select
import time

from blink_persistent.agent.agent import Agent
from blink_persistent.agent.attach import Refused, attach_again, open_port
from blink_persistent.agent.port import PortLost
from blink_persistent.lines import LineSocket
from blink_server.errors import Unavailable

log = logging.getLogger(__name__)

_FIRST_PAUSE = 0.05  # seconds
_LONGEST_PAUSE = 2.0


def reconnect(agent: Agent, link: LineSocket, lost: PortLost, *, stop: int, seconds: float) -> bool:
    """Resume over a new connection; False where `stop` became readable, or the runner is gone.

    Raises `PortLost`, the first one or the last, when the time is over, and `Unavailable` where
    the runner has taken the ranges back: what is in flight then ends with an error.
    """
    if seconds <= 0:
        raise lost
    log.warning("%s; trying for %g s to go on over another connection", lost, seconds)
    deadline, pause = time.monotonic() + seconds, _FIRST_PAUSE
    agent.disconnect()
    while time.monotonic() < deadline:
        try:
            port = open_port(attach_again(link), (), link)
        except Refused:
            raise
        except (Unavailable, PortLost) as error:
            lost = PortLost(f"no further connection: {error}")
        except (OSError, ValueError):  # the end of the link
            return False
        else:
            try:
                agent.resume(port)
            except PortLost as again:
                lost = again
                agent.disconnect()
            else:
                log.info("going on over another connection")
                return True
        if select.select([stop], [], [], pause)[0]:
            return False
        pause = min(2 * pause, _LONGEST_PAUSE)
    raise lost
