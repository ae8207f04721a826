"""Requests that a stranger might send, by the thousand, to a service that runs: `python -m tests.hostile URL --seconds 300`.

Each is a good request with something done to it: huge or tiny numbers, deep nesting, patterns, text that is no text, keys from
elsewhere, much of anything. What comes back must be an answer, or a problem whose status is below 500, or the 503 that sends away
who asks too much. Everything else is printed with its request, and is the exit code.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import httpx

from api.limits import LIMIT

MODEL = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
}
JOBS: list[dict[str, Any]] = [
    {"model": "llama-3-8b", "hardware": {"gpu": "h100", "gpus": 8}, "parallelism": {"strategy": "fsdp2"}},
    {"model": "gpt2", "training": {"adapter": {"type": "lora", "rank": 16, "targets": ["c_attn"]}, "quantization": "nf4"}},
    {"model": "mixtral-8x7b", "task": "serve", "hardware": {"gpu": "h100", "gpus": 2}, "serving": {"context": 8192}},
    {
        "model": "qwen3-8b",
        "task": "serve",
        "serving": {"engine": "llama.cpp", "weights": "q4_k_m", "override_tensor": ["exps=CPU"]},
    },
    {
        "model": dict(MODEL),
        "hardware": {"memory": "24GB"},
        "training": {"activation_checkpointing": {"every": 2}, "tokens": "1B"},
    },
    {
        "model": "llama-3.1-70b",
        "hardware": {"gpu": "h100", "gpus": 8, "nodes": 4},
        "training": {"implementation": "megatron", "precision": "megatron-bf16", "gradient_accumulation_steps": 16},
        "parallelism": {"tensor": 4, "pipeline": 2},
    },
]
NUMBERS: list[Any] = [
    0,
    -1,
    1,
    2,
    3,
    7,
    255,
    4096,
    2**16,
    2**20,
    2**24,
    2**31,
    2**53,
    2**63,
    10**30,
    10**400,
    0.5,
    1e308,
    5e-324,
    -0.0,
]
TEXTS = [
    "",
    " ",
    "x" * 5000,
    "\u0000",
    "\ud800",
    "💥",
    "../../etc/passwd",
    "a/b",
    "'; --",
    "NaN",
    "1e999",
    "9" * 400,
    "0x7",
    "٣",
    "24GB",
    "1B",
]
PATTERNS = [
    "(.*.*.*.*.*)*x$",
    "(a|a)*b",
    "((((((((((a",
    ".{1,999}" * 9,
    "(?!x)" * 90 + "a",
    "[",
    "\\",
    "(a{99}){99}",
    "$^" * 50,
    ".*",
]
KEYS = [
    "every",
    "budget",
    "mix",
    "type",
    "gpus",
    "model_type",
    "__class__",
    "$ref",
    "",
    "layers",
    "tensor",
    "num_experts",
    "rope_scaling",
]
GETS = [
    "/v1/models",
    "/v1/gpus",
    "/v1/nodes",
    "/v1/prices",
    "/v1/models/{}",
    "/v1/gpus/{}",
    "/v1/nodes/{}",
    "/v1/fit",
    "/v1/estimate",
    "/",
]
FILES = [
    "base_model: llama-3-8b\nadapter: lora\nsequence_len: 512\nmicro_batch_size: 2\n",
    "accelerate launch --num_processes 8 train.py --model_name_or_path gpt2 --per_device_train_batch_size 4 --bf16",
    "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2 --max-model-len 8192",
    '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}',
]

Request = tuple[str, str, dict[str, str], bytes | None]


def value(rng: random.Random, depth: int = 0) -> Any:
    """Anything that JSON can say, and some that it cannot."""
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind < 5:
        return rng.choice(
            [rng.choice(NUMBERS), rng.choice(TEXTS), rng.choice(PATTERNS), rng.choice([None, True, False, float("nan")])]
        )
    if kind == 5:
        return [value(rng, depth + 1) for _ in range(rng.choice([0, 1, 3, 500]))]
    if kind == 6:
        return {rng.choice(KEYS): value(rng, depth + 1) for _ in range(rng.randrange(4))}
    nested: Any = 1
    for _ in range(rng.choice([10, 300, 2000])):
        nested = [nested] if rng.random() < 0.5 else {"a": nested}
    return nested if depth == 0 else 1


def changed(rng: random.Random, job: Any) -> Any:
    """A job of which a few things are otherwise."""
    job = json.loads(json.dumps(job))
    for _ in range(rng.choice([1, 1, 2, 3])):
        part = job
        while (inner := [one for one in part.values() if isinstance(one, dict)]) and rng.random() < 0.7:
            part = rng.choice(inner)
        part[rng.choice([*part, *KEYS])] = rng.choice(NUMBERS) if rng.random() < 0.5 else value(rng)
    return job


def request(rng: random.Random) -> Request:
    kind = rng.random()
    if kind < 0.6:
        path = rng.choice(["/v1/estimate"] * 4 + ["/v1/limit", "/v1/budget", "/v1/export", "/v1/estimates"])
        query = {
            "/v1/limit": {"field": rng.choice(["training.micro_batch_size", "serving.context", "hardware.gpus", *KEYS])}
        }.get(path, {})
        if path == "/v1/export":
            query = {"to": rng.choice(["deepspeed", "accelerate", "torchtitan", "megatron", *KEYS])}
        try:
            body = json.dumps(changed(rng, rng.choice(JOBS))).encode()
        except (RecursionError, ValueError):
            body = b'{"model":' + b"[" * 3000
        if rng.random() < 0.05:
            at = rng.randrange(len(body))
            body = body[:at] + bytes([rng.randrange(256)]) + body[at + 1 :]
        return "POST", path, query, body
    if kind < 0.75:
        text = rng.choice(FILES)
        at = rng.randrange(len(text))
        text = text[:at] + str(rng.choice([*TEXTS, *PATTERNS, *NUMBERS[:14], "&a [*a, *a]", "\n- ", "$(x)", "\\\n"])) + text[at:]
        return (
            "POST",
            "/v1/import",
            {"from": rng.choice(["axolotl", "trl", "vllm"])} if rng.random() < 0.3 else {},
            text.encode(errors="replace"),
        )
    path = rng.choice(GETS).replace("{}", "".join(rng.choice("%/.?#a4090💥 -") for _ in range(rng.randrange(1, 30))))
    names = rng.sample(
        ["search", "model", "on", "task", "min", "max", "context", "batch", "training.adapter.targets", "training", *KEYS], 3
    )
    words = [*TEXTS, *PATTERNS, *map(str, NUMBERS), "llama-3-8b", "8xH100", "2x24GB", "train", "serve"]
    return "GET", path, {name: rng.choice(words).encode(errors="replace").decode() for name in names}, None


async def asked(client: httpx.AsyncClient, method: str, path: str, query: dict[str, str], body: bytes | None) -> httpx.Response:
    """The answer; a connection that was closed in the moment of asking is opened anew, once."""
    try:
        return await client.request(method, path, params=query, content=body)
    except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
        return await client.request(method, path, params=query, content=body)


async def attack(address: str, seconds: float, at_a_time: int, seed: int) -> int:
    """How many requests were answered as none may be."""
    rng, seen, slowest, bad = random.Random(seed), Counter[int](), 0.0, 0
    end = time.monotonic() + seconds

    async def one(client: httpx.AsyncClient) -> None:
        nonlocal slowest, bad
        while time.monotonic() < end:
            method, path, query, body = request(rng)
            begun = time.monotonic()
            try:
                answer = await asked(client, method, path, query, body)
                status, text = answer.status_code, answer.text[:300]
            except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
                if isinstance(error, httpx.InvalidURL | UnicodeError | httpx.LocalProtocolError):
                    continue
                status, text = 599, repr(error)
                if isinstance(error, httpx.ReadError | httpx.WriteError) and len(body or b"") > LIMIT:
                    status = 413  # which was sent, and the connection closed before all of the body was taken
            slowest = max(slowest, time.monotonic() - begun)
            seen[status] += 1
            if status >= 500 and status != 503:
                bad += 1
                print(status, method, path, query, (body or b"")[:1500], text, sep="\n  ", flush=True)

    async with httpx.AsyncClient(base_url=address, timeout=120) as client:
        await asyncio.gather(*(one(client) for _ in range(at_a_time)))
    print(f"{sum(seen.values())} requests: {dict(sorted(seen.items()))}; the slowest took {slowest:.1f} s", file=sys.stderr)
    return bad


def run(description: str | None, send: Callable[[str, float, int, int], Coroutine[Any, Any, int]]) -> int:
    """Send requests as the command line says: to which address, for how many seconds, by how many clients, with which seed."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("address", help="of a service, such as http://127.0.0.1:8000")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    return min(1, asyncio.run(send(options.address, options.seconds, options.clients, options.seed)))


if __name__ == "__main__":
    sys.exit(run(__doc__, attack))
