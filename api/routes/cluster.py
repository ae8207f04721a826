"""A validating webhook of Kubernetes: whether the job of a pod fits on the GPUs that it asks for."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from estimator.contract.errors import InvalidJob
from estimator.contract.reading import decoded, parse_json
from estimator.exchange.gate import warning

from .. import documentation
from ..asking import ask
from ..problems import MEDIA_TYPE
from ..settings import settings
from .parameters import body

router = APIRouter(tags=["cluster"])


class Status(BaseModel):
    """Why an object is denied."""

    code: int
    reason: str
    message: str


class AdmissionResponse(BaseModel):
    """Whether an object is admitted, and what the user is told."""

    uid: str
    allowed: bool
    status: Status | None = None
    warnings: list[str] | None = None


class AdmissionReview(BaseModel):
    """What Kubernetes' API server gets (admission.k8s.io/v1)."""

    apiVersion: str  # noqa: N815
    kind: str
    response: AdmissionResponse


@router.post(
    "/v1/admission",
    response_class=Response,
    responses=documentation.answers(AdmissionReview),
    openapi_extra=documentation.ADMISSION_BODY,
)
async def admission(request: Request) -> Response:
    """An AdmissionReview of a pod, or of what has a template of one: allowed, with a warning where it is not known whether its
    job fits; denied only if that certainly does not fit and the service is set to say so (WILLITFIT_ENFORCE)."""
    review = _review(body(request))
    found = await ask(request, "admission", lasting=False, review=review, enforce=settings().enforce)
    if found.media_type != MEDIA_TYPE:
        return found
    said = json.loads(bytes(found.body))["detail"]  # too busy, or too large a question: no reason to keep a job from running
    response = {"uid": review["request"]["uid"], "allowed": True, "warnings": [warning(f"not known whether it fits: {said}")]}
    answer = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
    return Response(json.dumps(answer), media_type="application/json", headers={"Cache-Control": "no-store"})


def _review(text: bytes) -> dict[str, Any]:
    """The review that was sent. Raises `InvalidJob` for what is none."""
    given = parse_json(decoded(text, "request body"), "request body")
    request = given.get("request") if isinstance(given, dict) else None
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str):
        raise InvalidJob("is no AdmissionReview: it has no request with a uid (admission.k8s.io/v1)", "request body")
    return {"request": request}
