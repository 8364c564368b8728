"""The server of the page: it listens on 127.0.0.1 alone, and answers only the page's own requests.

The address holds a random token, so that other users of the machine and other pages cannot guess it. Requests that name
another host are refused (a page elsewhere may point its own name at 127.0.0.1), and so are requests that a browser
sends for another origin. The Content-Security-Policy allows no connection but to this server, no inline script and no
inline style, so that no text of a corpus can run or send anything. Only GET is answered, and no files are served but
those of page/. A report has a policy of its own, which is as strict, and stands in a frame without any rights.
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
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from pilekit.errors import PilekitError, visible
from pilekit.explore.sources import Sources

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

IN_FRAME = {"Content-Security-Policy": "frame-ancestors 'self'"}
"""Added to the policy that a report holds, which may not say this itself."""

QUESTIONS = (
    *("corpus", "documents", "search", "document", "scored", "pairs", "pair", "cuts", "cut"),
    *("texts", "text", "passage", "result", "trained"),
)
"""Methods of `Sources` that the page calls. The query of a request holds the arguments."""
NUMBERS = ("start", "end", "number", "place", "folder")


def make_app(sources: Sources, hosts: tuple[str, ...], token: str) -> Starlette:
    """The application: the page under `/TOKEN/`, and its questions under `/TOKEN/api/`."""
    lock = threading.Lock()  # Starlette answers in threads, which must not share the sources.

    async def only_the_page(request: Request, answer: RequestResponseEndpoint) -> Response:
        response = _refusal(request, hosts, token) or await answer(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    def answer(question: Callable[..., dict[str, Any] | str]) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            try:
                arguments: dict[str, Any] = dict(request.query_params)
                numbers = {name: int(arguments[name]) for name in NUMBERS if name in arguments}
                if min(numbers.values(), default=0) < 0:
                    raise ValueError(numbers)
                with lock:
                    reply = question(**arguments | numbers)
                return HTMLResponse(reply, headers=IN_FRAME) if isinstance(reply, str) else JSONResponse(reply)
            except (PilekitError, OSError) as error:
                return JSONResponse({"error": visible(error)}, 400)
            except (TypeError, ValueError, IndexError):
                return JSONResponse({"error": "the explorer has no such question; reload the page"}, 400)

        return endpoint

    page = StaticFiles(directory=Path(__file__).parent / "page", html=True)
    routes = [Route(f"/{token}/api/{name}", answer(getattr(sources, name))) for name in QUESTIONS]
    return Starlette(
        routes=[*routes, Mount(f"/{token}", page)], middleware=[Middleware(BaseHTTPMiddleware, dispatch=only_the_page)]
    )


def _refusal(request: Request, hosts: tuple[str, ...], token: str) -> Response | None:
    """The answer to a request for another host, from another origin or without the token; None for the page's own."""
    headers = request.headers
    if headers.getlist("host") not in [[host] for host in hosts]:
        return PlainTextResponse("another host", 403)
    if any(origin not in [f"http://{host}" for host in hosts] for origin in headers.getlist("origin")):
        return PlainTextResponse("another origin", 403)
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return PlainTextResponse("another site", 403)
    path_token = request.url.path.removeprefix("/").partition("/")[0]
    return None if secrets.compare_digest(path_token.encode(), token.encode()) else PlainTextResponse("not found", 404)


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
