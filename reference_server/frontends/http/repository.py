"""The endpoints of repository control. They block, so the work is done beside the loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from reference_server.codecs import repository_json
from reference_server.core.errors import ServerError, internal
from reference_server.frontends.aside import Aside
from reference_server.frontends.http import errors
from reference_server.frontends.http.handlers import Handler
from reference_server.frontends.http.request import Request
from reference_server.frontends.http.routes import Operation, Route
from reference_server.gateway.control import RepositoryControl

log = logging.getLogger(__name__)


def handlers(control: RepositoryControl, aside: Aside) -> Mapping[Operation, Handler]:
    """Who answers the operations on the repository."""

    def index(request: Request, route: Route) -> None:
        ready_only = repository_json.index_request(request.body)

        def encoded() -> bytes:
            # Unlike the others, this operation does not look at the repository's name.
            return repository_json.index(
                (row.name, row.version, row.state.value if row.state else None, row.reason)
                for row in control.index(ready_only=ready_only)
            )

        _answer(aside, request, encoded)

    def load(request: Request, route: Route) -> None:
        def loaded() -> bytes:
            parameters = repository_json.load_parameters(request.body)
            control.load(route.model, parameters, repository=route.name)
            return b""

        _answer(aside, request, loaded)

    def unload(request: Request, route: Route) -> None:
        dependents = repository_json.unload_dependents(request.body)

        def unloaded() -> bytes:
            control.unload(route.model, unload_dependents=dependents, repository=route.name)
            return b""

        _answer(aside, request, unloaded)

    return {
        Operation.REPOSITORY_INDEX: index,
        Operation.REPOSITORY_LOAD: load,
        Operation.REPOSITORY_UNLOAD: unload,
    }


def _answer(aside: Aside, request: Request, work: Callable[[], bytes]) -> None:
    """Reply with what `work` gives, or with its error."""

    def done(body: bytes) -> None:
        request.reply(errors.OK, [body] if body else ())

    def failed(error: Exception) -> None:
        if not isinstance(error, ServerError):  # a defect must not leave the client waiting
            log.error("%s %s", request.method, request.url, exc_info=error)
            error = internal(f"{type(error).__name__}: {error}")
        request.reply_error(errors.STATUS[error.code], error.message, as_json=True)

    aside.run(work, done, failed)
