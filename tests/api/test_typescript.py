"""The client in TypeScript: made from the OpenAPI document, checked by the compiler, and run by node against a service."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from api import documentation
from api.app import app
from estimator import estimate, fit
from tests.api.test_work import served
from tests.jobs import ROOT

pytestmark = pytest.mark.slow
CLIENT = ROOT / "clients" / "typescript"
CACHE = Path.home() / ".cache" / "willitfit-ci"
EXAMPLE = re.findall(r"```ts\n(.*?)```", (ROOT / "docs" / "rest.md").read_text(encoding="utf-8"), re.DOTALL)[0]
USE = """
import { willitfit, type Answer, type Job } from "./index.js";
const client = willitfit(process.argv[2] + "/");
const job: Job = { model: "gpt2", hardware: { gpu: "t4" }, task: "serve" };
const { data, error } = await client.POST("/v1/estimate", { body: job });
const answer: Answer | undefined = data;
const fits: boolean | null | undefined = answer?.fits;
const range: [number, number] | undefined = answer?.memory.range_bytes;
console.log(fits, answer?.memory.total_bytes, range?.[1], error?.detail);
const unknown = await client.POST("/v1/estimate", { body: { model: "gtp2" } });
console.log(unknown.data, unknown.error?.status, unknown.error?.type);
// @ts-expect-error no such path
await client.GET("/v1/nothing");
// @ts-expect-error no such verdict
export const wrong: Answer["verdict"] = "perhaps";
// @ts-expect-error no such field of a job
export const misspelt: Job = { model: "gpt2", trainning: {} };
"""


@pytest.fixture(scope="module")
def built() -> Path:
    """The client, compiled, with what the document and this test say of its use."""
    if not (shutil.which("npm") and shutil.which("node")):
        pytest.skip("no node and npm")
    folder = CACHE / f"typescript-{sha256((CLIENT / 'package.json').read_bytes()).hexdigest()[:12]}"
    (folder / "src").mkdir(parents=True, exist_ok=True)
    shutil.copy(CLIENT / "tsconfig.json", folder)
    shutil.copy(CLIENT / "package.json", folder)
    shutil.copy(CLIENT / "src" / "index.ts", folder / "src")
    (folder / "src" / "use.ts").write_text(f"declare const process: {{ argv: string[] }};\n{USE}")
    (folder / "src" / "example.ts").write_text(EXAMPLE.replace("willitfit-client", "./index.js"))
    (folder / "openapi.json").write_text(documentation.text(app))
    if not (folder / "node_modules" / ".package-lock.json").exists():
        found = _run(folder, "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=0")
        if found.returncode:
            pytest.skip(f"npm cannot install what makes the client: {found.stderr[-300:]}")
    made = _run(folder, "npm", "run", "build", OPENAPI="openapi.json")
    assert made.returncode == 0, made.stdout + made.stderr
    return folder


def _run(folder: Path, *words: str, **given: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, env={**os.environ, **given}, capture_output=True, text=True, check=False)


def test_the_client_is_typed_and_its_answers_are_the_services(built: Path) -> None:
    with served(WORKERS="0") as (_, address):
        used = _run(built, "node", "dist/use.js", address)
        compiled = (built / "dist" / "example.js").read_text()
        (built / "dist" / "example.js").write_text(compiled.replace("http://127.0.0.1:8000", address))
        shown = _run(built, "node", "dist/example.js")
    answer = estimate({"model": "gpt2", "hardware": {"gpu": "t4"}, "task": "serve"})
    memory = answer.memory
    fits = str(answer.fits).lower()
    first, second = used.stdout.splitlines()
    assert first == f"{fits} {memory.total_bytes} {memory.range_bytes[1]} undefined", used.stderr
    assert second == "undefined 404 /problems#unknown-name"
    for row in fit("llama-3-8b", "rtx-4090").rows:
        assert f"{row.way}: {row.verdict}" in shown.stdout
