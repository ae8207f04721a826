"""Errors as RFC 9457 problem details."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from estimator.contract.errors import WillItFitError


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


def problem(
    status: int, slug: str, detail: str, headers: dict[str, str] | None = None, code: str | None = None, where: str | None = None
) -> JSONResponse:
    """A problem document; `type` is the address of the paragraph that explains the slug; without one, HTTP's own words do."""
    kind = f"/problems#{slug}" if slug else "about:blank"
    title = slug.replace("-", " ") or HTTPStatus(status).phrase
    document = Problem(type=kind, title=title, status=status, detail=detail, code=code, where=where)
    return JSONResponse(document.model_dump(exclude_none=True), status, headers, MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Answer every error of the application with a problem document."""

    @app.exception_handler(WillItFitError)
    def ours(request: Request, error: WillItFitError) -> JSONResponse:
        return problem(error.status, error.slug, str(error), code=error.code, where=error.where or None)

    @app.exception_handler(RequestValidationError)
    def arguments(request: Request, error: RequestValidationError) -> JSONResponse:
        found = "; ".join(f"{'.'.join(map(str, item['loc'][1:]))}: {item['msg']}" for item in error.errors())
        return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-request", found)

    @app.exception_handler(HTTPException)
    def http(request: Request, error: HTTPException) -> JSONResponse:
        return problem(error.status_code, "", str(error.detail), dict(error.headers or {}))

    @app.exception_handler(Exception)
    def unforeseen(request: Request, error: Exception) -> JSONResponse:
        return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal-error", "this should not have happened; please report it")
