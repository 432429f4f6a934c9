"""A whole console: the ASGI application of its pages, and the server that serves it."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
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

from minimq import Cluster, __version__
from minimq.local.access_file import AccessFile
from minimq_common.errors import MinimqError
from minimq_common.security.channel_security import open_credentials
from minimq_common.security.credentials import CredentialsArgument
from minimq_console.action_pages import ActionPages
from minimq_console.answers import Rendering, failure_answer, failure_of
from minimq_console.bodies import decoder
from minimq_console.console import Console
from minimq_console.console_options import ConsoleOptions
from minimq_console.guard import Guard, SignInPages
from minimq_console.json_api import JsonApi
from minimq_console.page import PageHandler
from minimq_console.pages import cluster, deferred, groups, messages, topics
from minimq_console.server import ConsoleServer, ProxiedApp
from minimq_console.visitors import Observer, Visitors

#: Responses smaller than this, in bytes, are not compressed.
_COMPRESSED = 1_000
#: All pages of a console without --secrets, in the order of the navigation.
PAGES = (*cluster.PAGES, *topics.PAGES, *groups.PAGES, *deferred.PAGES, *messages.PAGES)


@contextmanager
def open_console(
    nameserver: str | Sequence[str] | None, options: ConsoleOptions, credentials: CredentialsArgument | None = None
) -> Iterator[ConsoleServer]:
    """Serve the console of a cluster within the block."""
    secured, users = open_credentials(credentials), AccessFile(Path(options.secrets)) if options.secrets else None
    options.check(asks_for_keys=secured is not None)
    with Cluster(nameserver, credentials=credentials) as cluster:  # finds out the name servers, and connects to none
        nameservers = cluster.nameservers

    def open_observer(own: CredentialsArgument) -> Observer:
        return Observer(nameservers, own, options.interval_s)

    with ExitStack() as opened:
        everybody = open_observer("") if secured is None else None
        app, console = make_app(Visitors(everybody, secured, open_observer, users), nameservers, options, users)
        # Called last: an action that is under way ends when its connection is closed, and writes its audit line.
        opened.callback(console.wait_for_actions)
        if everybody is not None:
            opened.callback(everybody.close)
        served = opened.enter_context(ConsoleServer(app, console, options))
        if everybody is not None:
            everybody.start()
        yield served


def make_app(
    visitors: Visitors, nameservers: Sequence[str], options: ConsoleOptions, users: AccessFile | None = None
) -> tuple[ASGIApp, Console]:
    """Return the application, and the state that its pages share."""
    pages = PAGES if users is None else (*PAGES, cluster.USERS)
    rendering = Rendering(
        {
            "navigation": [page for page in pages if page.label is not None],
            "nameservers": ", ".join(nameservers),
            "version": __version__,
        }
    )
    decode = decoder(options.registry) if options.registry else None
    console = Console(rendering, allow_changes=options.allow_changes, decode=decode, users=users)

    async def on_error(request: Request, error: Exception) -> Response:
        return failure_answer(console.rendering, request, failure_of(error))

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        with console.serving():
            async with visitors.open():
                yield

    app = Starlette(
        routes=[
            *(Route(page.path, PageHandler(page, console).answer, methods=["GET"]) for page in pages),
            *ActionPages(console).routes(),
            *JsonApi(console).routes(),
            Route(messages.BODY_PATH, functools.partial(messages.download, console), methods=["GET"]),
            *SignInPages(console, visitors).routes(),
            Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
        ],
        middleware=[Middleware(GZipMiddleware, minimum_size=_COMPRESSED)],
        exception_handlers=dict.fromkeys((HTTPException, MinimqError, Exception), on_error),
        lifespan=lifespan,
    )
    # Around all of Starlette, so that error responses have the headers of `Guard`, too.
    guarded = Guard(app, visitors, options.hosts)
    return ProxiedApp(guarded, options.trusted_proxies, options.root_path), console
