"""The MCP server, asked by the SDK's own client: of every tool over standard input and output, as agents do, else in process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest
from jsonschema import Draft202012Validator
from mcp import Client, StdioServerParameters
from mcp.server import MCPServer

from api.agents import server
from estimator import estimate, fit
from tests.jobs import ROOT

pytestmark = pytest.mark.slow

TOOLS = {"fit", "which", "estimate", "limit", "plan", "budget", "read_config", "find_models", "find_gpus"}
TOOLS |= {"replicas", "what_if", "fix", "explain"}
JOB = {"model": "gpt2", "hardware": {"gpu": "t4"}, "training": {"tokens": "1B"}}
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("fit", {"model": "gpt2", "on": "t4", "tokens": "1B"}),
    ("fit", {"model": "gpt2", "on": "t4", "detail": "full"}),
    ("which", {"model": "gpt2", "task": "serve-4bit", "memory": "24GB", "top": 2}),
    ("estimate", {"job": JOB}),
    ("estimate", {"job": {"model": "gpt2", "task": "serve"}, "on": "t4"}),
    ("estimate", {"job": {"model": "gpt2"}, "on": "2x24GB", "detail": "full"}),
    ("limit", {"job": JOB, "field": "training.micro_batch_size"}),
    ("budget", {"job": {**JOB, "hardware": {"gpu": "h100"}}, "max_cost": 100, "top": 2}),
    ("plan", {"job": JOB, "on": "rtx-4090"}),
    ("read_config", {"text": "base_model: llama-3-8b\nadapter: lora\nsequence_len: 512\nbf16: true\n"}),
    ("replicas", {"model": "llama-3.1-8b", "requests": 1, "on": "h100", "ttft": 0.5}),
    ("what_if", {"job": JOB, "changes": ["training.sequence_length=128..512", "training.optimizer=sgd,adamw"]}),
    ("fix", {"text": "model: gpt2\ntraining:\n  micro_batch_size: 256\n", "on": "rtx-4090"}),
    (
        "explain",
        {"job": JOB, "measured": "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14.6 GiB"},
    ),
    ("find_models", {"search": "llama 3 8b"}),
    ("find_gpus", {"search": "24GB ada", "top": 3}),
]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("fit", {"model": "llama-2-31b", "on": "t4"}, "llama-2-13b"),
    ("estimate", {"job": {"model": "gpt2", "training": {"optimiser": "sgd"}}}, "Did you mean 'optimizer'"),
    ("estimate", {"job": {"model": "/etc/passwd.json"}}, "files cannot be named here"),
    ("fit", {"model": "gpt2"}, "on"),
    ("what_if", {"job": JOB, "changes": ["training.sequence_length=1..1000:1"]}, "more than 64"),
    ("explain", {"job": JOB, "measured": "all is well"}, "measured"),
]


STARTED = StdioServerParameters(
    command=sys.executable, args=["-m", "estimator.cli", "mcp"], env={**os.environ, "PYTHONPATH": str(ROOT)}
)
"""The server as an agent starts it."""


def with_client(ask: Callable[[Client], Coroutine[Any, Any, None]], to: MCPServer[Any] | StdioServerParameters = server) -> None:
    async def asked() -> None:
        async with Client(to) as client:
            await ask(client)

    anyio.run(asked)


def test_every_tool_reads_and_its_answers_are_as_its_schema_says() -> None:
    async def ask(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == TOOLS == {name for name, _ in ASKED}
        for tool in tools.values():
            assert tool.description
            assert tool.annotations is not None
            assert tool.annotations.read_only_hint
        for name, arguments in ASKED:
            found = await client.call_tool(name, arguments)
            assert not found.is_error, found.content
            schema = tools[name].output_schema
            assert schema is not None
            Draft202012Validator(schema).validate(found.structured_content)

    with_client(ask, STARTED)


def test_answers_are_short_and_those_of_python() -> None:
    async def ask(client: Client) -> None:
        found = (await client.call_tool("estimate", {"job": JOB})).structured_content
        expected = estimate(JOB)
        assert found is not None
        assert (found["fits"], found["total_bytes"]) == (expected.fits, expected.memory.total_bytes)
        assert len(str(found)) < 1500
        ways = (await client.call_tool("fit", {"model": "gpt2", "on": "t4"})).structured_content
        assert ways is not None
        assert [way["total_bytes"] for way in ways["ways"]] == [row.total_bytes for row in fit("gpt2", "t4").rows]
        assert [way["longest_context"] for way in ways["ways"]] == [row.longest_context for row in fit("gpt2", "t4").rows]
        rent = fit("gpt2", "t4").rent
        assert rent is not None
        assert ways["rent"] == rent.model_dump(mode="json")
        served = (await client.call_tool("estimate", {"job": {"model": "gpt2", "task": "serve"}, "on": "t4"})).structured_content
        assert served is not None
        assert served["served"]["output_tokens_per_second"] > 0
        full = (await client.call_tool("estimate", {"job": JOB, "detail": "full"})).structured_content
        assert full is not None
        assert full["full"] == expected.model_dump(mode="json")

    with_client(ask)


def test_what_is_wrong_is_said() -> None:
    async def ask(client: Client) -> None:
        for name, arguments, says in REFUSED:
            found = await client.call_tool(name, arguments)
            assert found.is_error
            assert says in str(found.content)
            assert "Traceback" not in str(found.content)

    with_client(ask)


def test_resources_and_the_prompt() -> None:
    async def ask(client: Client) -> None:
        for address, says in (("schema/job", "micro_batch_size"), ("models/gpt2", "parameters"), ("gpus/rtx-4090", "memory")):
            (content,) = (await client.read_resource(f"willitfit://{address}")).contents
            assert says in str(content)
        prompt = await client.get_prompt("make_it_fit", {"model": "llama-3-8b", "on": "24GB"})
        assert "llama-3-8b fits on 24GB" in str(prompt.messages[0].content)

    with_client(ask)
