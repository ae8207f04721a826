"""Every route of the service, by what it answers; in this order they stand in its description."""

from __future__ import annotations

from . import cluster, description, embedding, facts, files, health, pages, planning, questions, searches

ROUTERS = (
    questions.router,
    searches.router,
    planning.router,
    files.router,
    cluster.router,
    facts.router,
    embedding.router,
    health.router,
    pages.router,
    description.router,
)
