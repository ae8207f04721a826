"""The server, how a tool is made of a function, and what tools take."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Literal, ParamSpec, TypeVar

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from estimator.contract.errors import WillItFitError
from estimator.contract.version import DATA_VERSION, SOFTWARE_VERSION
from estimator.hardware.parse import read_hardware

INSTRUCTIONS = """\
Whether training or serving a transformer fits on GPUs, derived operation by operation, without a GPU. Ask `fit` first with a
model and hardware in words; ask `estimate` with a job, of which resource willitfit://schema/job lists every field. `fits` is
true, false, or null where the honest answer is "unknown". Sizes are in bytes of one GPU; GiB is 2^30. Answers are short:
detail="full" gives everything."""
READS = ToolAnnotations(readOnlyHint=True, idempotentHint=True, destructiveHint=False, openWorldHint=False)

P = ParamSpec("P")
R = TypeVar("R")
On = Annotated[str, Field(description="hardware: 2x24GB, rtx-4090, 8xH100, 2 nodes of 8xA100-80GB")]
AJob = Annotated[
    dict[str, Any], Field(description='a job, such as {"model": "llama-3-8b", "training": {"precision": "bf16-true"}}')
]
Detail = Annotated[
    Literal["headline", "full"], Field(description="headline: a few numbers; full: everything, thousands of words")
]


server = MCPServer("willitfit", title="Will it fit?", version=SOFTWARE_VERSION, instructions=INSTRUCTIONS, log_level="WARNING")


def tool(function: Callable[P, R]) -> Callable[P, R]:
    """A tool that reads, and whose errors are ours, with their slug."""

    @wraps(function)
    def answered(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except WillItFitError as error:
            raise ToolError(f"{error} [{error.slug}]") from None

    return server.tool(annotations=READS, structured_output=True)(answered)


def versions() -> str:
    return f"willitfit {SOFTWARE_VERSION}, data {DATA_VERSION}"


def placed(job: dict[str, Any], on: str | None) -> dict[str, Any]:
    return {**job, "hardware": read_hardware(on).hardware.model_dump(exclude_defaults=True)} if on else job
