"""Requests made of the OpenAPI document, to a service that runs: `python -m tests.described URL --seconds 300`.

Each is drawn from the schemas of an operation: its required fields and some others, most of them with values that the schema
allows, a few with others. What comes back must be as the document says: a status that it has, of a media type that it has there,
a body that its schema allows. All else is printed with its request, once for each operation and kind, and is the exit code.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
import time
from collections import Counter
from typing import Any
from urllib.parse import quote

import httpx

from api.app import app
from tests.hostile import run
from tests.schemas import of_route

DOCUMENT: dict[str, Any] = app.openapi()
MODELS = ("gpt2", "llama-3-8b", "qwen3-8b", "13B", "mixtral-8x7b", "bert-base", "whisper-small", "qwen2.5-vl-7b", "mamba-2.8b")
CARDS = ("rtx-4090", "24GB", "2x24GB", "8xH100", "t4", "mi300x", "64GB RAM", "2 nodes of 8xA100-80GB", "m4-16gb", "nothing")
WORDS: dict[str, tuple[str, ...]] = {
    "model": MODELS,
    "name": (*MODELS, "h100", "rtx-4090", "p5.48xlarge"),
    "on": CARDS,
    "gpu": ("h100", "rtx-4090", "t4", "mi300x", "l4"),
    "task": ("serve", "serve-4bit", "serve-gguf", "qlora", "lora", "full", "train"),
    "field": ("training.sequence_length", "training.micro_batch_size", "serving.context", "hardware.gpus", "model"),
    "change": (
        "training.sequence_length=1k..4k",
        "hardware=t4,h100",
        "training.optimizer=sgd,adamw",
        "serving.context=1k..4k:1k",
    ),
    "to": ("deepspeed", "accelerate", "trl", "axolotl", "vllm", "megatron", "litgpt"),
    "as": ("slurm", "skypilot", "dstack", "kubernetes", "kserve"),
    "within": ("24h", "3d"),
    "under": ("$50", "$2/h", "30 EUR"),
    "memory": ("24GB", "24GB..80GB", "16GiB"),
    "ram": ("64GB", "512GiB"),
    "in_use": ("2GB",),
    "currency": ("USD", "EUR"),
    "tokens": ("10M", "1e9"),
    "search": ("llama", "24GB ada", "aws h100"),
    "url": ("http://x/?model=gpt2&on=t4", "/?model=gpt2&on=rtx-4090&way=qlora", "/cost"),
    "from": ("axolotl", "trl", "deepspeed", "vllm"),
    "max_cost": ("50", "0.5"),
}
"""Text that means something, by the name of the field that it is for."""
TEXTS = (
    "base_model: llama-3-8b\nadapter: lora\nsequence_len: 512\n",
    "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2",
    '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}',
    '{"model": "gpt2", "hardware": {"gpu": "t4"}}\n{"model": "gpt2", "task": "serve"}\n',
    "x",
    "",
    "\u0000",
    "é💥",
)
WRONG: tuple[Any, ...] = (None, -1, 0, 10**30, 0.5, True, "", "x", [], {}, [1], {"a": 1})
DEEP = 4
Value = str | int | float | bool | None
Drawn = tuple[str, str, list[tuple[str, Value]], bytes | None]


def drawn(rng: random.Random, schema: dict[str, Any], name: str = "", depth: int = 0) -> Any:
    """A value that a schema allows, but for a few."""
    if rng.random() < 0.02:
        return rng.choice(WRONG)
    if "$ref" in schema:
        return drawn(rng, DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]], name, depth)
    for several in ("anyOf", "oneOf"):
        if several in schema:
            words = [one for one in schema[several] if one.get("type") == "string" and name in WORDS and rng.random() < 0.8]
            return drawn(rng, rng.choice(words or schema[several]), name, depth)
    if "enum" in schema or "const" in schema:
        return rng.choice(schema["enum"]) if "enum" in schema else schema["const"]
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return _number(rng, schema)
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "null":
        return None
    if kind == "array":
        items = schema.get("items", {"type": "integer", "maximum": 8})
        least = schema.get("minItems", 0)
        return [drawn(rng, items, name, depth + 1) for _ in range(rng.randint(least, max(least, 3)))]
    if kind == "object" or "properties" in schema:
        known, required = schema.get("properties", {}), schema.get("required", [])
        often = 0.3 if len(known) < 12 else 0.04
        chosen = [key for key in known if key in required or (depth < DEEP and rng.random() < often)]
        return {key: drawn(rng, known[key], key, depth + 1) for key in chosen}
    return rng.choice(WORDS[name] if name in WORDS and rng.random() < 0.9 else TEXTS)


def _number(rng: random.Random, schema: dict[str, Any]) -> int | float:
    """Mostly small ones; the ends of what is allowed, too."""
    low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
    high = schema.get("maximum", 2**20)
    found = low + math.expm1(rng.random() ** 3 * math.log1p(max(0, high - low)))
    found = rng.choice((low, high)) if rng.random() < 0.03 else found
    return int(found) if schema["type"] == "integer" else float(found)


def request(rng: random.Random) -> tuple[Drawn, str]:
    """A request, and the path of its operation as the document has it."""
    path = rng.choice(list(DOCUMENT["paths"]))
    method, operation = rng.choice(list(DOCUMENT["paths"][path].items()))
    query: list[tuple[str, Value]] = []
    at = path
    for one in operation.get("parameters", ()):
        if rng.random() > (0.98 if one.get("required") else 0.3):
            continue
        value = drawn(rng, one["schema"], one["name"])
        several = value if isinstance(value, list) else [value]
        texts = [one if isinstance(one, str) else json.dumps(one) for one in several]
        if one["in"] == "path":
            at = at.replace(f"{{{one['name']}}}", quote("".join(texts).replace("/", ""), errors="replace") or "x")
        else:
            query += [(one["name"], text) for text in texts]
    body = None
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        value = content["example"] if rng.random() < 0.1 else drawn(rng, content["schema"])
        body = json.dumps(value).encode() if media == "application/json" else str(value).encode("utf-8", "replace")
    return (method.upper(), at, query, body), path


def wrong(path: str, method: str, status: int, kind: str, content: bytes) -> str:
    """How an answer is not as the document says; empty where it is. `kind`: its Content-Type."""
    said = DOCUMENT["paths"][path][method.lower()]["responses"].get(str(status))
    if said is None:
        return f"the document has no {status}"
    media = kind.partition(";")[0]
    if said.get("content") and media not in said["content"]:
        return f"{status} with {media or 'no media type'}"
    if media not in ("application/json", "application/problem+json") or not said.get("content"):
        return ""
    try:
        found = json.loads(content, parse_constant=_no_number)
    except ValueError as unread:
        return f"{status}: {unread}"
    error = next(of_route(method, path, status).iter_errors(found), None)
    return "" if error is None else f"{status}: {'.'.join(map(str, error.absolute_path))}: {error.message[:300]}"


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


async def ask(address: str, seconds: float, clients: int, seed: int) -> int:
    """How many kinds of answers were not as the document says."""
    rng, seen, kinds = random.Random(seed), Counter[int](), set[tuple[str, str]]()
    end, slowest = time.monotonic() + seconds, 0.0

    async def one(client: httpx.AsyncClient) -> None:
        nonlocal slowest
        while time.monotonic() < end:
            (method, at, query, body), path = request(rng)
            begun = time.monotonic()
            status, text = 0, ""
            try:
                answer = await client.request(method, at, params=query, content=body)
            except (httpx.InvalidURL, UnicodeError):
                continue
            except httpx.HTTPError as error:
                found = f"no answer: {error!r}"
            else:
                status, text = answer.status_code, answer.text
                found = wrong(path, method, status, answer.headers.get("content-type", ""), answer.content)
            slowest = max(slowest, time.monotonic() - begun)
            seen[status] += 1
            if found and (path, found[:40]) not in kinds:
                kinds.add((path, found[:40]))
                print(found, method, at, query, (body or b"")[:1500].decode(), text[:300], sep="\n  ", flush=True)

    async with httpx.AsyncClient(base_url=address, timeout=120) as client:
        await asyncio.gather(*(one(client) for _ in range(clients)))
    print(f"{seen.total()} requests: {dict(sorted(seen.items()))}; the slowest took {slowest:.1f} s", file=sys.stderr)
    return len(kinds)


if __name__ == "__main__":
    sys.exit(run(__doc__, ask))
