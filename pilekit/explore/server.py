"""The page's server: on 127.0.0.1 only, and only for the page itself.

The address holds a random token, so that other users of the machine and other pages cannot guess it. Requests that name
another host are refused (a page elsewhere may point its own name at 127.0.0.1), and so are requests that a browser
sends for another origin. The Content-Security-Policy allows no connection but to this server, no inline script and no
inline style, so that no text of a corpus can run or send anything. Only GET is answered, and no files are served but
those of page/.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pilekit.errors import PilekitError, visible
from pilekit.explore.sources import Sources

PAGE_FILES = ("", "explore.js", "explore.css")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class OnlyThePage:
    """ASGI: refuses requests for another host, from another origin, or without the token."""

    def __init__(self, app: ASGIApp, *, hosts: tuple[str, ...], token: str):
        self.app, self.hosts, self.token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer with 403 or 404."""
        if scope["type"] == "http" and (refusal := self._refusal(Request(scope))) is not None:
            await refusal(scope, receive, send)
        elif scope["type"] in ("http", "lifespan"):
            await self.app(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        origins = [f"http://{host}" for host in self.hosts]
        headers = request.headers
        if headers.getlist("host") not in [[host] for host in self.hosts]:
            return PlainTextResponse("another host", 403, HEADERS)
        if any(origin not in origins for origin in headers.getlist("origin")):
            return PlainTextResponse("another origin", 403, HEADERS)
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return PlainTextResponse("another site", 403, HEADERS)
        given = request.url.path.removeprefix("/").partition("/")[0]
        if not secrets.compare_digest(given.encode(), self.token.encode()):
            return PlainTextResponse("not found", 404, HEADERS)
        return None


def make_app(sources: Sources, hosts: tuple[str, ...], token: str) -> Starlette:
    """The application: the page under `/TOKEN/`, and its questions under `/TOKEN/api/`."""
    lock = threading.Lock()  # Starlette answers in threads, which must not share the sources.

    def page(request: Request) -> Response:
        name = request.path_params.get("name", "")
        if name not in PAGE_FILES:
            return PlainTextResponse("not found", 404, HEADERS)
        return FileResponse(Path(__file__).parent / "page" / (name or "explore.html"), headers=HEADERS)

    def answer(question: Callable[[Any], dict[str, Any]]) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            try:
                with lock:
                    return JSONResponse(question(request.query_params), 200, HEADERS)
            except (PilekitError, OSError) as error:
                return JSONResponse({"error": visible(str(error))}, 400, HEADERS)
            except (KeyError, ValueError, IndexError):
                return JSONResponse({"error": "the page does not ask this"}, 400, HEADERS)

        return endpoint

    questions: dict[str, Callable[[Any], dict[str, Any]]] = {
        "corpus": lambda asked: sources.corpus(),
        "documents": lambda asked: sources.documents(asked.get("subset"), _natural(asked["start"])),
        "search": lambda asked: sources.search(
            asked["text"], asked.get("subset"), _natural(asked["start"]), exact="exact" in asked
        ),
        "document": lambda asked: sources.document(asked["shard"], _natural(asked["number"])),
        "pairs": lambda asked: sources.pairs(asked.get("subset")),
        "pair": lambda asked: sources.pair(asked.get("subset"), _natural(asked["place"])),
        "scored": lambda asked: sources.scored(_natural(asked["start"])),
    }
    routes = [Route(f"/{token}/api/{name}", answer(question)) for name, question in questions.items()]
    routes += [Route(f"/{token}/", page), Route(f"/{token}/{{name}}", page)]
    return Starlette(routes=routes, middleware=[Middleware(OnlyThePage, hosts=hosts, token=token)])


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def serve(sources: Sources, announce: Callable[[str], None]) -> None:
    """Serve the page until the process is interrupted; `announce` is called with its address."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port, token = listening.getsockname()[1], secrets.token_urlsafe(24)
        app = make_app(sources, (f"127.0.0.1:{port}", f"localhost:{port}"), token)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, ws="none", lifespan="off"
        )
        listening.listen()
        announce(f"http://127.0.0.1:{port}/{token}/")
        uvicorn.Server(config).run(sockets=[listening])
