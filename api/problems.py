"""Errors as RFC 9457 problem details. The documents need no web framework: the browser's bundle makes them, too."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from pydantic import BaseModel

from estimator.contract.errors import WillItFitError

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response


class Problem(BaseModel):
    """An error's document (RFC 9457)."""

    type: str
    """Where it is explained, as a reference relative to the service; about:blank where HTTP's own words say all."""
    title: str
    status: int
    """HTTP's code."""
    detail: str
    """What was wrong, where, and what to write instead."""
    code: str | None = None
    """Which of its type: docs/errors.md lists them."""
    where: str | None = None
    """The field, file or option that it is about."""


MEDIA_TYPE = "application/problem+json"


def document(status: int, slug: str, detail: str, code: str | None = None, where: str | None = None) -> str:
    """A problem as JSON; `type` is the address of the paragraph that explains the slug; without one, HTTP's own words do."""
    kind = f"/problems#{slug}" if slug else "about:blank"
    title = slug.replace("-", " ") or HTTPStatus(status).phrase
    said = Problem(type=kind, title=title, status=status, detail=detail, code=code, where=where)
    return said.model_dump_json(exclude_none=True)


def problem(status: int, slug: str, detail: str, headers: dict[str, str] | None = None) -> Response:
    """The response that a problem is."""
    from fastapi import Response

    return Response(document(status, slug, detail), status, headers, MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Answer every error of the application with a problem document."""
    from fastapi import Response
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    @app.exception_handler(WillItFitError)
    def ours(request: Request, error: WillItFitError) -> Response:
        text = document(error.status, error.slug, str(error), error.code, error.where or None)
        return Response(text, error.status, media_type=MEDIA_TYPE)

    @app.exception_handler(RequestValidationError)
    def arguments(request: Request, error: RequestValidationError) -> Response:
        found = "; ".join(f"{'.'.join(map(str, item['loc'][1:]))}: {item['msg']}" for item in error.errors())
        return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-request", found)

    @app.exception_handler(HTTPException)
    def http(request: Request, error: HTTPException) -> Response:
        return problem(error.status_code, "", str(error.detail), dict(error.headers or {}))

    @app.exception_handler(Exception)
    def unforeseen(request: Request, error: Exception) -> Response:
        return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal-error", "this should not have happened; please report it")
