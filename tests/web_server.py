"""A local web server for tests: serves a folder, with byte ranges or without, and records its requests.

It can fail on purpose: `server.failures` has the failure for each of the next requests.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

Failure = Literal["500", "404", "cut", "short", "silent"]
"""Two statuses; cut: half of the content, then a closed connection; short: half, declared as all; silent: no answer."""


@dataclass
class WebServer:
    """url       of the folder, with a slash at its end
    requests  (path, bytes of content sent) of every answered GET, in order
    failures  the failures of the next GETs for a range, or for a file if the server does not know ranges
    always    the failure of all such GETs after these
    asked     the number of such GETs, failed ones included
    """

    url: str
    requests: list[tuple[str, int]] = field(default_factory=list)
    failures: list[Failure | None] = field(default_factory=list)
    always: Failure | None = None
    asked: int = 0
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def sent(self) -> int:
        return sum(amount for _, amount in self.requests)


class _Handler(SimpleHTTPRequestHandler):
    """Answers `Range: bytes=a-b`, `a-` and `-n` as RFC 9110 says; the base class lists folders."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # Else each answer waits 40 ms between its header and its content.

    def __init__(self, *arguments: object, folder: Path, ranges: bool, server: WebServer):
        self.ranges, self.web_server = ranges, server
        super().__init__(*arguments, directory=str(folder))  # type: ignore[arg-type]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            super().do_GET() if self.command == "GET" else super().do_HEAD()
            return
        content, status, headers = path.read_bytes(), HTTPStatus.OK, {}
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")) if self.ranges else None
        if self.ranges:
            headers["Accept-Ranges"] = "bytes"
        if asked:
            first, last, whole = asked[1], asked[2], len(content)
            begin = int(first) if first else max(0, whole - int(last))
            content = content[begin : int(last) + 1 if first and last else whole]
            status = HTTPStatus.PARTIAL_CONTENT if content else HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
            headers["Content-Range"] = f"bytes {f'{begin}-{begin + len(content) - 1}' if content else '*'}/{whole}"
        failure, told, sent = None, self.web_server, content
        if self.command == "GET" and (asked or not self.ranges):
            told.asked += 1
            failure = told.failures.pop(0) if told.failures else told.always
        if failure == "silent":
            told.stopped.wait(20)
        if failure in ("500", "404", "silent"):
            self.send_error(404 if failure == "404" else 500)
            return
        if failure is not None:
            sent = content[: len(content) // 2]
        headers["Content-Length"] = str(len(sent if failure == "short" else content))
        self.send_response(status)
        for header in headers.items():
            self.send_header(*header)
        self.end_headers()
        if self.command == "GET":
            if failure is None:
                told.requests.append((self.path.lstrip("/"), len(content)))
            with suppress(ConnectionError):  # A client may leave in the middle.
                self.wfile.write(sent)
        if failure == "cut":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *arguments: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore the error: a client that ends or is killed leaves its connections open."""


@contextmanager
def serving(folder: Path, *, ranges: bool = True) -> Iterator[WebServer]:
    """Serve a folder at `http://127.0.0.1:PORT/` while the block runs."""
    told = WebServer("")
    handler = partial(_Handler, folder=folder, ranges=ranges, server=told)
    with _Server(("127.0.0.1", 0), handler) as server:
        told.url = f"http://127.0.0.1:{server.server_port}/"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield told
        finally:
            told.stopped.set()
            server.shutdown()
