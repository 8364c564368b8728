"""A TCP port for ranks that join later."""

from __future__ import annotations

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """A port that nothing listens on, drawn at random from ports that no system gives away before the ranks use it.

    Systems give the ports from 32,768 on (Linux) or 49,152 on (macOS) to whoever asks for any, and Ray those from
    10,002 to 19,999 to its workers; this port is between them.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
