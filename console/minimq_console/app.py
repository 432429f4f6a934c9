"""Makes the console as an ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from minimq import __version__
from minimq_console.action import Action
from minimq_console.action_faces import ActionFaces
from minimq_console.action_runs import ActionRuns
from minimq_console.actions.all_actions import ACTIONS
from minimq_console.body_decoder import decoder
from minimq_console.console_options import ConsoleOptions
from minimq_console.downloads import BODY_PATH, Downloads
from minimq_console.faces import Faces, failure_response
from minimq_console.failures import failure, failure_of
from minimq_console.guard import Guard
from minimq_console.json_api import JsonApi
from minimq_console.page import Page
from minimq_console.pages.action_run import run_page
from minimq_console.pages.all_pages import PAGES
from minimq_console.proxy import ProxiedApp
from minimq_console.rendering import Rendering
from minimq_console.signing_in import SigningIn
from minimq_console.surroundings import Surroundings
from minimq_console.visitors import Visitors

#: Answers smaller than this, in bytes, are not compressed.
_COMPRESSED = 1_000


def make_app(
    visitors: Visitors,
    nameservers: Sequence[str],
    options: ConsoleOptions,
    *,
    pages: Sequence[Page] = PAGES,
    actions: Sequence[Action] = ACTIONS,
) -> tuple[ASGIApp, Surroundings]:
    """Return the console, and what all its pages share."""
    rendering = Rendering(
        {
            "navigation": [page for page in pages if page.label is not None],
            "nameservers": ", ".join(nameservers),
            "version": __version__,
        }
    )
    decode = decoder(options.registry) if options.registry else None
    surroundings, runs = Surroundings(rendering, allow_changes=options.allow_changes, decode=decode), ActionRuns()

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return failure_response(surroundings, request, failure(error.status_code, _sentence_about(error.status_code)))

    async def on_error(request: Request, error: Exception) -> Response:
        return failure_response(surroundings, request, failure_of(error))

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        surroundings.serve_on(asyncio.get_running_loop())
        async with visitors.open():
            yield
        surroundings.close()

    app = Starlette(
        routes=[
            *(Route(page.path, Faces(page, surroundings).answer, methods=["GET"]) for page in (*pages, run_page(runs))),
            *(
                Route(action.path, ActionFaces(action, surroundings, runs).answer, methods=["GET", "POST"])
                for action in actions
            ),
            *JsonApi(surroundings).routes(),
            Route(BODY_PATH, Downloads(surroundings).answer, methods=["GET"]),
            *SigningIn(surroundings, visitors).routes(),
            Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
        ],
        middleware=[Middleware(GZipMiddleware, minimum_size=_COMPRESSED)],
        exception_handlers={HTTPException: on_http_error, Exception: on_error},
        lifespan=lifespan,
    )
    # Around all of Starlette: its answers to errors have the headers of `Guard` as well.
    guarded = Guard(app, visitors, options.hosts)
    return ProxiedApp(guarded, options.trusted_proxies, options.root_path), surroundings


def _sentence_about(status: int) -> str:
    if status == 404:
        return "The console has no page at this address: the links above lead to all that there are."
    return "The console shows pages to GET requests."
