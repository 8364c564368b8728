"""A local web server for tests: serves a folder, with byte ranges or without, and records its requests.

It can fail on purpose: `server.failures` has the failure for each of the next range requests.
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
    failures  the failures of the next GETs for a range
    always    the failure of all GETs for a range after these
    asked     the number of GETs for a range, failed ones included
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
        content, status = path.read_bytes(), HTTPStatus.OK
        whole = len(content)
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if self.ranges and asked:
            first, last = asked[1], asked[2]
            begin = int(first) if first else max(0, whole - int(last))
            end = min(whole, int(last) + 1) if first and last else whole
            if begin >= whole:
                self.send_response(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
                self.send_header("Content-Range", f"bytes */{whole}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            content, status = content[begin:end], HTTPStatus.PARTIAL_CONTENT
            told = self.web_server
            if self.command == "GET":
                told.asked += 1
                failure = told.failures.pop(0) if told.failures else told.always
                if failure is not None:
                    self._fail(failure, content, f"bytes {begin}-{end - 1}/{whole}")
                    return
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if self.ranges:
            self.send_header("Accept-Ranges", "bytes")
        if status == HTTPStatus.PARTIAL_CONTENT:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{whole}")
        self.end_headers()
        if self.command == "GET":
            self.web_server.requests.append((self.path.lstrip("/"), len(content)))
            with suppress(ConnectionError):  # A client may leave in the middle.
                self.wfile.write(content)

    def _fail(self, failure: Failure, content: bytes, content_range: str) -> None:
        if failure == "silent":
            self.web_server.stopped.wait(20)
        if failure in ("cut", "short"):
            half = content[: len(content) // 2]
            self.send_response(HTTPStatus.PARTIAL_CONTENT)
            self.send_header("Content-Length", str(len(content if failure == "cut" else half)))
            self.send_header("Content-Range", content_range)
            self.end_headers()
            self.wfile.write(half)
            self.close_connection = failure == "cut"
            if failure == "cut":
                self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self.send_error(404 if failure == "404" else 500)

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
