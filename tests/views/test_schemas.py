"""Every answer in JSON keeps to the schema that is published for it, at docs/schema/ and in the OpenAPI document."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient
from jsonschema import Draft202012Validator, ValidationError

from api.app import app
from api.documentation import EXPLAIN_BODY
from estimator import estimate, inspect_model
from estimator.cli.commands import COMMANDS
from estimator.cli.main import main
from estimator.cli.parsers import command_parser, headline_parser
from estimator.exchange import WRITE
from estimator.views import listing
from estimator.views.schemas import KINDS, schemas
from tests.jobs import ROOT, cases, content, job_of, merged, table
from tests.schemas import of_route, schema

pytestmark = pytest.mark.slow

client = TestClient(app)
NAMES = sorted(path.stem for path in (ROOT / "docs" / "schema").glob("*.json"))
TABLES = ("fake_steps", "real_steps", "cpu_offload", "asked", "gpu", "golden")
TINY = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
TINY_JOB = {"model": {**TINY, "vocab_size": 100}, "training": {"sequence_length": 32, "micro_batch_size": 1}}
OWNED = {"purchase_price": 40000, "currency": "USD", "lifetime_years": 4, "utilisation": 0.7, "electricity_price": "0.12"}
EXTRA: dict[str, dict[str, Any]] = {
    "a host with workers": {"model": "gpt2", "hardware": {"gpu": "t4"}, "host": {"data_loader_workers": 4, "memory": "512GB"}},
    "states on NVMe": {
        "model": "llama-3-8b",
        "hardware": {"gpu": "h100", "gpus": 8},
        "parallelism": {"strategy": "zero3"},
        "offload": {"optimizer": "nvme", "parameters": "nvme"},
    },
    "activations on the host": {"model": "llama-3-8b", "hardware": {"gpu": "h100"}, "offload": {"activations": "cpu"}},
    "served by llama.cpp": {
        "model": "llama-3-8b",
        "task": "serve",
        "hardware": {"gpu": "rtx-4090"},
        "serving": {"engine": "llama.cpp", "weights": "q4_k_m", "context": 4096},
    },
    "served, with a price for tokens": {
        "model": "llama-3.1-8b",
        "task": "serve",
        "hardware": {"gpu": "h100"},
        "serving": {"context": 8192, "concurrency": 16, "hours": 720},
    },
    "GPUs of one's own, and a run that evaluates": {
        "model": "llama-3-8b",
        "hardware": {"gpu": "h100", "gpus": 8, "owned": OWNED, "grid": "de"},
        "training": {"tokens": "1B", "adapter": {}, "evaluation": {"micro_batch_size": 4}},
        "parallelism": {"strategy": "ddp"},
    },
    "stages of a pipeline": content(ROOT / "docs" / "examples" / "megatron.yaml"),
    "a card of which only the memory is known": {"model": "7B", "hardware": {"memory": "24GB"}},
    "a chip without CUDA": {"model": "llama-3-8b", "task": "serve", "hardware": {"gpu": "tpu-v5e"}},
}


def drawn(count: int) -> list[dict[str, Any]]:
    """Jobs of every table of cases, the same ones each time."""
    draw, found = Random(2026), []
    for name in TABLES:
        rows = [row for row in cases(name) if "job" in row or "model" in row]
        found += [row.get("job") or job_of(row) for row in draw.sample(rows, min(count, len(rows)))]
    changes = table("techniques")
    for row in draw.sample(changes["rows"], count):
        found.append(merged(changes["base"], row.get("to", {})))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_one(name: str) -> None:
    schema(name)


def test_every_kind_has_a_file_and_none_is_left_over() -> None:
    assert {*NAMES} == {*schemas(), "problem"} == {*KINDS, "model", "problem"}


def test_a_name_means_one_thing_in_all_schemas_and_in_the_openapi_document() -> None:
    """Two classes of one name would overwrite each other among the document's components."""
    components = app.openapi()["components"]["schemas"]
    assert not [name for name in components if "__" in name or re.search(r"-(In|Out)put$", name)]
    meanings: dict[str, list[str]] = {}
    for name in set(NAMES) - {"model"}:
        content = schema(name).schema
        assert isinstance(content, dict)
        parts = dict(content.get("$defs", {}))
        if content.get("type") == "object":
            parts[content["title"]] = {key: value for key, value in content.items() if key not in ("$defs", "$schema")}
        for title, part in parts.items():
            meanings.setdefault(title, []).append(_in_one_form(part))
    assert {title for title, said in meanings.items() if len({*said}) > 1} == set()
    for title in components.keys() & meanings.keys():
        assert _in_one_form(components[title]) == meanings[title][0], title
    assert components.keys() >= meanings.keys() - {
        "Counted",
        "OfferRow",
        "RunRecord",
        "Difference",
    }  # which REST has no route for


def _in_one_form(part: dict[str, Any]) -> str:
    """A schema as text, however its references are written, and without defaults of null, which FastAPI leaves out."""
    text = json.dumps(part, sort_keys=True).replace("#/$defs/", "#/components/schemas/")
    return text.replace(', "default": null', "").replace('"default": null, ', "")


def _check_answer(found: dict[str, Any]) -> None:
    schema("answer").validate(found)
    schema("job").validate(found["job"])
    of_route("get", "/v1/estimate").validate(found)


@pytest.mark.parametrize("path", sorted((ROOT / "tests" / "golden").glob("*.json")), ids=lambda path: path.stem)
def test_golden_answers(path: Path) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))
    if path.stem == "headline":
        schema("fit").validate(found)
        of_route("get", "/v1/fit").validate(found)
    else:
        _check_answer(found)


@pytest.mark.parametrize("job", EXTRA.values(), ids=EXTRA)
def test_an_answer_with_every_part(job: dict[str, Any]) -> None:
    schema("job").validate(job)
    _check_answer(json.loads(estimate(job, every_rank=True).to_json()))
    sent = client.post("/v1/estimate", json=job)
    assert sent.status_code == 200
    _check_answer(sent.json())


@pytest.mark.share(3)
@pytest.mark.parametrize("job", drawn(12), ids=lambda job: str(job["model"])[:20])
def test_answers_to_drawn_jobs(job: dict[str, Any]) -> None:
    schema("job").validate(job)
    sent = client.post("/v1/estimate", json=job)
    assert sent.status_code == 200
    _check_answer(sent.json())


@pytest.mark.share(8)
@pytest.mark.parametrize("name", [row["name"] for row in listing.models()])
def test_a_model_s_card(name: str) -> None:
    found = json.loads(inspect_model(name).model_dump_json())
    schema("card").validate(found)
    of_route("get", "/v1/models/{name}").validate(found)
    schema("model").validate(found["published"])


@pytest.mark.parametrize(("listed", "one"), [("gpus", "accelerator"), ("nodes", "node"), ("models", "card")])
def test_catalogues(listed: str, one: str) -> None:
    answer = client.get(f"/v1/{listed}")
    assert answer.status_code == 200
    schema(listed).validate(answer.json())
    of_route("get", f"/v1/{listed}").validate(answer.json())
    rows = answer.json() if one != "card" else answer.json()[::40]
    for row in rows:
        about = client.get(f"/v1/{listed}/{row['name']}")
        assert about.status_code == 200, row["name"]
        schema(one).validate(about.json())
        of_route("get", f"/v1/{listed}/{{name}}").validate(about.json())


@pytest.mark.parametrize(
    ("model", "on"), [("gpt2", "t4"), ("qwen2.5-vl-7b", "h100"), ("8x7B", "2 nodes of 8xh100"), ("bert-base", "24GB")]
)
def test_headline_answers(model: str, on: str) -> None:
    answer = client.get("/v1/fit", params={"model": model, "on": on})
    assert answer.status_code == 200
    schema("fit").validate(answer.json())
    of_route("get", "/v1/fit").validate(answer.json())
    for row in answer.json()["rows"]:
        assert row["job"] is None or schema("job").is_valid(row["job"])


def test_limits() -> None:
    job = {"model": "llama-3-8b", "task": "serve"}
    sent = client.post("/v1/limit", params={"field": "serving.context", "on": "h100"}, json=job)
    assert sent.status_code == 200
    schema("limit").validate(sent.json())
    of_route("post", "/v1/limit").validate(sent.json())
    schema("job").validate(sent.json()["job"])
    asked = client.get("/v1/limit", params={**job, "field": "serving.context", "bound": "max", "on": "h100"})
    of_route("get", "/v1/limit").validate(asked.json())
    assert asked.json()["value"] == sent.json()["value"]


def test_watched_runs() -> None:
    for line in (ROOT / "tests" / "data" / "watched_runs.jsonl").read_text(encoding="utf-8").splitlines():
        schema("watched-run").validate(json.loads(line))


def test_timelines_and_explanations() -> None:
    sent = client.post("/v1/timeline", params={"on": "t4", "tensors": 5}, json=TINY_JOB)
    asked = client.get("/v1/timeline", params={"model": "gpt2", "on": "t4"})
    for answer, method in ((sent, "post"), (asked, "get")):
        assert answer.status_code == 200
        schema("timeline").validate(answer.json())
        of_route(method, "/v1/timeline").validate(answer.json())
    for measured in (
        "max_memory_allocated: 1 GiB",
        EXPLAIN_BODY["requestBody"]["content"]["application/json"]["example"]["measured"],
    ):
        answer = client.post("/v1/explain", json={"job": TINY_JOB, "measured": measured})
        assert answer.status_code == 200, answer.text
        schema("explanation").validate(answer.json())
        of_route("post", "/v1/explain").validate(answer.json())


@pytest.mark.parametrize("limits", [{"on": "2xrtx-4090", "deny": ["offload", "training.loss"]}, {"on": "8GB", "top": 1}])
def test_plans(limits: dict[str, str]) -> None:
    answer = client.post("/v1/plan", params=limits, json={"model": "gpt2", "training": {"micro_batch_size": 4}})
    assert answer.status_code == 200, answer.text
    schema("plan").validate(answer.json())
    of_route("post", "/v1/plan").validate(answer.json())
    assert answer.json()["rows"]
    for row in answer.json()["rows"]:
        schema("job").validate(row["job"])


@pytest.mark.parametrize("limits", [{}, {"max_cost": "0.01"}, {"top": 3}])
def test_budgets(limits: dict[str, str]) -> None:
    job = {"model": "llama-3-8b", "training": {"tokens": "100M", "adapter": {}}, "hardware": {"gpu": "h100"}}
    answer = client.post("/v1/budget", params=limits, json=job)
    assert answer.status_code == 200
    schema("budget").validate(answer.json())
    of_route("post", "/v1/budget").validate(answer.json())
    for row in answer.json()["rows"]:
        schema("job").validate(row["job"])


@pytest.mark.parametrize("program", WRITE)
def test_what_other_programs_configurations_say(program: str) -> None:
    job: dict[str, Any] = {"model": "llama-3-8b", "hardware": {"gpu": "h100", "gpus": 8}}
    own: dict[str, dict[str, Any]] = {
        "deepspeed": {"parallelism": {"strategy": "zero3"}},
        "accelerate": {"parallelism": {"strategy": "fsdp2"}},
        "torchtitan": {"parallelism": {"strategy": "fsdp2"}, "training": {"implementation": "torchtitan"}},
        "megatron": {"parallelism": {"tensor": 8}, "training": {"implementation": "megatron"}},
    }
    job |= own[program]
    text = client.post("/v1/export", params={"to": program}, json=job)
    assert text.status_code == 200, text.text
    answer = client.post("/v1/import", params={"from": program}, content=text.text)
    assert answer.status_code == 200, answer.text
    schema("import").validate(answer.json())
    of_route("post", "/v1/import").validate(answer.json())
    schema("job").validate({"model": "gpt2", **answer.json()["job"]})


@pytest.mark.parametrize("case", [case for case in cases("refused") if "job" in case][::10], ids=lambda case: case["name"])
def test_problems(case: dict[str, Any]) -> None:
    answer = client.post("/v1/estimate", json=case["job"])
    schema("problem").validate(answer.json())
    of_route("post", "/v1/estimate", answer.status_code).validate(answer.json())


PRINTED: dict[str, list[tuple[str, list[str]]]] = {
    "": [("fit", ["gpt2", "--on", "t4"])],
    "estimate": [("answer", ["JOB"]), ("answer", ["JOB", "--ranks"])],
    "max": [("limit", ["JOB", "training.micro_batch_size", "--on", "24GB"]), ("limit", ["JOB", "training.sequence_length"])],
    "min": [("limit", ["JOB", "hardware.gpus", "--on", "h100"])],
    "what-if": [("what-if", ["JOB", "training.micro_batch_size=1,2", "--on", "24GB"])],
    "sweep": [("sweep", ["JOB", "training.micro_batch_size=1,2", "--on", "24GB"])],
    "which": [("which", ["JOB", "--memory", "24GB"])],
    "plan": [("plan", ["JOB", "--on", "h100", "--top", "2"])],
    "replicas": [("replicas", ["gpt2", "--requests", "1", "--on", "h100"])],
    "timeline": [("timeline", ["JOB"]), ("timeline", ["JOB", "--on", "h100", "--tensors", "3"])],
    "explain": [("explanation", ["JOB", "--measured", str(ROOT / "tests" / "cases" / "memory_records.yaml")])],
    "bottleneck": [("bottleneck", ["JOB", "--on", "a100-80gb", "--profile", str(ROOT / "docs" / "examples" / "dmon.txt")])],
    "calibrate": [("calibration", [str(ROOT / "docs" / "examples" / "runs.jsonl")])],
    "fix": [("fix", ["JOB", "--on", "24GB"]), ("fix", ["JOB", "--on", "1GB"])],
    "diff": [("diff", ["JOB", "JOB", "--on", "24GB"])],
    "budget": [("budget", ["JOB", "--top", "2"])],
    "verify": [("verify", ["JOB"])],
    "models": [("models", ["llama"]), ("card", ["show", "gpt2"]), ("card", ["show", "13B"])],
    "gpus": [("gpus", []), ("accelerator", ["h100"])],
    "nodes": [("nodes", ["aws"]), ("node", ["dgx-h100"])],
    "prices": [("prices", ["h100"])],
    "import": [("import", ["JOB"])],
}
"""The schema of what each command prints with --json, and arguments to have it print that."""


def test_every_command_that_prints_json_is_here() -> None:
    known = {name for name, parser in [("", headline_parser()), *_commands().items()] if "--json" in parser.format_help()}
    assert known == PRINTED.keys()


def _commands() -> dict[str, argparse.ArgumentParser]:
    (chosen,) = (action for action in command_parser()._actions if isinstance(action, argparse._SubParsersAction))
    assert [*chosen.choices] == [*COMMANDS]
    return dict(chosen.choices)


@pytest.mark.parametrize(
    ("command", "kind", "arguments"),
    [(command, kind, arguments) for command, asked in PRINTED.items() for kind, arguments in asked],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_what_the_command_line_prints(
    command: str, kind: str, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.yaml"
    job = merged(TINY_JOB, {"training": {"tokens": 1000}}) if command == "budget" else TINY_JOB
    path.write_text(yaml.safe_dump(job), encoding="utf-8")
    words = [str(path) if word == "JOB" else word for word in arguments]
    assert main([*filter(None, [command]), *words, "--json"]) == 0
    schema(kind).validate(json.loads(capsys.readouterr().out))


def test_every_route_says_what_it_answers() -> None:
    for path, methods in app.openapi()["paths"].items():
        for method, said in methods.items():
            forms = said["responses"]["200"].get("content", {})
            if "application/json" not in forms:
                assert forms.keys() <= {"text/plain", "application/x-ndjson", "image/svg+xml"}
                continue
            assert forms["application/json"]["schema"].keys() & {"$ref", "items", "additionalProperties", "anyOf"}, (
                path,
                method,
            )
            assert method == "get" or said["requestBody"]["content"], (path, method)


def test_the_tests_can_fail() -> None:
    found = json.loads((ROOT / "tests" / "golden" / "gpt2-zero2.json").read_text(encoding="utf-8"))
    for broken in ({**found, "fits": "yes"}, {**found, "memory": {}}, {**found, "host": {"workers": 4}}):
        for validator in (schema("answer"), of_route("get", "/v1/estimate")):
            with pytest.raises(ValidationError):
                validator.validate(broken)
    fact = json.loads((ROOT / "docs" / "schema" / "accelerator.json").read_text(encoding="utf-8"))["$defs"]["Fact"]
    fact = Draft202012Validator(fact, format_checker=schema("accelerator").format_checker)
    assert not fact.is_valid({"value": 1, "unit": "W", "source": "-", "as_of": "yesterday"})
