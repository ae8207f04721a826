"""Every route of the service, by what it answers; in this order they stand in its description."""

from __future__ import annotations

from . import facts, files, health, page, pages, questions, searches

ROUTERS = (questions.router, searches.router, files.router, facts.router, health.router, page.router, pages.router)
