"""A local web server for tests: serves a folder, with byte ranges or without, and remembers what it was asked for."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class WebServer:
    """url       of the folder, with a slash at its end
    requests  (path, bytes of content sent) of every answered GET, in order
    """

    url: str
    requests: list[tuple[str, int]] = field(default_factory=list)

    @property
    def sent(self) -> int:
        return sum(amount for _, amount in self.requests)


class _Handler(SimpleHTTPRequestHandler):
    """Answers `Range: bytes=a-b`, `a-` and `-n` as RFC 9110 says; listings of folders are those of the base class."""

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

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def serving(folder: Path, *, ranges: bool = True) -> Iterator[WebServer]:
    """Serve a folder at `http://127.0.0.1:PORT/` while the block runs."""
    told = WebServer("")
    handler = partial(_Handler, folder=folder, ranges=ranges, server=told)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        told.url = f"http://127.0.0.1:{server.server_port}/"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield told
        finally:
            server.shutdown()
