"""What agents and editors read: llms.txt, the skill, the schemas."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from fastapi.testclient import TestClient

from api.app import app
from estimator.cli.main import main
from tests.documents import documents
from tests.jobs import ROOT

client = TestClient(app)
SHORT = client.get("/llms.txt").text
LINKS = re.findall(r"\]\(([^)]+)\)", SHORT)
SKILL = (ROOT / "skills" / "willitfit" / "SKILL.md").read_text(encoding="utf-8")
NAMES = [path.stem for path, _ in documents() if path.parent.name == "schema" and path.stem != "problem"]


def test_llms_txt_is_in_its_form() -> None:
    """A title, a summary as a quotation, sections with lists of links (llmstxt.org)."""
    title, _, summary, *_ = SHORT.splitlines()
    assert title == "# willitfit"
    assert summary.startswith("> ")
    assert re.findall(r"^## (.*)$", SHORT, re.MULTILINE)[-1] == "Optional"
    assert len(LINKS) == len(set(LINKS)) > 10
    for line in SHORT.partition("\n## ")[2].splitlines():
        assert not line or line.startswith(("Questions", "#", "- [")), line


@pytest.mark.slow
@pytest.mark.parametrize("link", LINKS)
def test_each_link_of_llms_txt_is_answered(link: str) -> None:
    assert not link.startswith(("/", "http")), "relative: a proxy may offer the service under a path"
    assert client.get(f"/{link.removeprefix('.')}").status_code == 200


def test_the_skill_says_when_it_is_of_use() -> None:
    _, head, body = SKILL.split("---\n", 2)
    said = yaml.safe_load(head)
    assert said["name"] == "willitfit" == (ROOT / "skills" / "willitfit").name
    assert re.fullmatch(r"[a-z0-9-]{1,64}", said["name"])
    assert 100 < len(said["description"]) <= 1024
    assert len(body.splitlines()) < 60


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_served_and_printed_as_it_is_published(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    published = (ROOT / "docs" / "schema" / f"{name}.json").read_text(encoding="utf-8")
    answer = client.get(f"/schema/{name}.json")
    assert (answer.text, answer.headers["content-type"]) == (published, "application/schema+json")
    assert main(["schema", name]) == 0
    assert capsys.readouterr().out == published


def test_a_schema_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert client.get("/schema/jab.json").status_code == 422
    assert main(["schema", "jab"]) == 2
    assert "Did you mean 'job'" in capsys.readouterr().err


def test_a_job_that_names_its_schema_for_editors_is_a_job() -> None:
    text = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")
    block = re.findall(r"```yaml\n(# yaml-language-server: \$schema=\S+/schema/job\.json\n.*?)```", text, re.DOTALL)[0]
    answer = client.post("/v1/estimate", content=json.dumps(yaml.safe_load(block)))
    assert answer.status_code == 200
