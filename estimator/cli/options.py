"""What several commands take, and how it is read from text."""

from __future__ import annotations

import argparse
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from estimator.facts.spelling import shown

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

MODEL_HELP = "name or alias (llama-2-13b), size (13B, 8x7B), hub id, or path to a config.json or spec"
SPECS_HELP = "folder of your own specs, which add to the shipped ones and override them (also: WILLITFIT_SPECS)"
RUN_HELP = "tokens that a training run processes, for its hours and its cost: 100M, 1e9"
PRICES_HELP = "price list of your own, which adds to the shipped one and overrides it (also: WILLITFIT_PRICES)"
HARDWARE_HELP = (
    "2x24GB, rtx-4090, 8xH100, p5.48xlarge, '2 nodes of 8xA100-80GB'; here: this machine; here:free: less what is in use"
)
PLATFORMS = ("slurm", "skypilot", "dstack", "kubernetes", "kserve")
"""Of whom resources are asked, in the order of `estimator.exchange.ask.TO`."""
CHECKS = ("text", "json", "github", "gitlab", "sarif", "markdown")
PARTS = ("deepspeed", "accelerate", "torchtitan", "megatron")
FORMATS = (
    *PARTS,
    "trl",
    "axolotl",
    "llama-factory",
    "ms-swift",
    "oumi",
    "openrlhf",
    "litgpt",
    "torchtune",
    "nemo-automodel",
    "megatron-bridge",
    "verl",
    "vllm",
    "sglang",
    "tensorrt-llm",
)
"""Formats that jobs are exported to; those of `PARTS` say how a job is spread."""
ENGINE_HELP = "only the ways of serving, by one engine: vllm, sglang, tensorrt-llm, llama.cpp, ollama"
TASKS = ("serve", "serve-8bit", "serve-4bit", "serve-gguf", "qlora", "lora", "full", "full-mixed")
"""Usual ways of using a model, by the short names of `estimator.planner.ways`, which is not imported for the sake of speed."""
FRAMEWORKS = (
    *PARTS,
    "axolotl",
    "llama-factory",
    "llama-factory-v1",
    "trl",
    "transformers",
    "unsloth",
    "ms-swift",
    "ms-swift-megatron",
    "nemo-automodel",
    "megatron-bridge",
    "litgpt",
    "torchtune",
    "oumi",
    "deepspeed-chat",
    "verl",
    "openrlhf",
    "open-instruct",
    "llm-foundry",
    "vllm",
    "vllm-recipe",
    "sglang",
    "tensorrt-llm",
    "llama.cpp",
    "ollama",
    "skypilot",
    "dstack",
    "kserve",
    "kubernetes",
    "compose",
)
"""Whose files are imported, in the order of `estimator.exchange.READ`, which is not imported for the sake of speed."""


def takes_job(parser: argparse.ArgumentParser) -> None:
    """A job file."""
    parser.add_argument("job", metavar="JOB.yaml", help="a job file; - reads standard input")


def takes_any_job(parser: argparse.ArgumentParser) -> None:
    """Anything that is read as a job, and what it is to run on."""
    parser.add_argument(
        "job",
        metavar="JOB",
        help="a job file, or a file of a framework, a command or a script (see import); - reads standard input; or a model",
    )
    parser.add_argument("--on", metavar="HARDWARE", help=f"what it is to run on, in place of what the file says: {HARDWARE_HELP}")
    parser.add_argument("--task", metavar="TASK", help=f"how JOB, a model, is used on the hardware of --on: {', '.join(TASKS)}")


def takes_lengths(parser: argparse._ActionsContainer) -> None:
    """Lengths and numbers of sequences, served and in training."""
    parser.add_argument("--context", metavar="TOKENS", type=tokens, help="tokens of a served sequence, prompt and answer (4096)")
    parser.add_argument(
        "--concurrency", metavar="N", type=whole, default=1, help="sequences that are served at the same time (1)"
    )
    parser.add_argument("--sequence", metavar="TOKENS", type=tokens, help="tokens of a training sequence (2048)")
    parser.add_argument("--batch", metavar="N", type=whole, default=1, help="training sequences at a time on each GPU (1)")


def takes_file(parser: argparse.ArgumentParser) -> None:
    """A framework's file, and what is asked of it."""
    text = "YAML, JSON, TOML, a command or a script, which is not run; - reads standard input"
    parser.add_argument("file", metavar="FILE", help=text)
    parser.add_argument("--from", dest="given", metavar="FRAMEWORK", help=f"whose it is: {', '.join(FRAMEWORKS)}")
    parser.add_argument("--model", metavar="MODEL", help=f"the job's model: {MODEL_HELP}")
    parser.add_argument("--on", metavar="HARDWARE", help=f"what it is to run on, in place of what the file says: {HARDWARE_HELP}")


def takes_release(parser: argparse._ActionsContainer) -> None:
    """The release of a file's framework."""
    text = (
        "the framework's release whose defaults are taken, by its number or a day: 0.9.1, 2024-11 (the newest that is known here)"
    )
    parser.add_argument("--release", metavar="RELEASE", help=text)


def takes_data(parser: argparse._ActionsContainer) -> None:
    """A local file of the samples that a job trains on."""
    text = "JSON or Parquet on this machine: the samples that a file trains on, for the longest batch and the lengths of all"
    parser.add_argument("--data", metavar="FILE", help=text)
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        help="a tokenizer.json that counts their tokens; without it they are taken from a ratio to characters",
    )


def takes_check(parser: argparse.ArgumentParser, check: str) -> None:
    """How the answer is printed, what `--check` makes an error of, and the user's own specs."""
    parser.add_argument("--json", action="store_true", help="print the answer as REST would send it")
    parser.add_argument("--check", action="store_true", help=check)
    takes_specs(parser)


def takes_specs(parser: argparse.ArgumentParser) -> None:
    """The user's own specs."""
    parser.add_argument("--specs", metavar="DIR", help=SPECS_HELP)


def takes_prices(parser: argparse.ArgumentParser) -> None:
    """The user's own prices."""
    parser.add_argument("--prices", metavar="FILE", help=PRICES_HELP)


def size(text: str) -> float:
    """A number of parameters: 350M, 7B."""
    number, unit = text[:-1], text[-1:].lower()
    try:
        return float(number) * {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}[unit]
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(f"{shown(text)} is no number of parameters; write 350M or 7B") from None


def money(text: str) -> Decimal:
    """An amount of money."""
    try:
        found = Decimal(text)
    except InvalidOperation:
        found = Decimal(0)
    if not found.is_finite() or found <= 0:
        raise argparse.ArgumentTypeError(f"{shown(text)} is no amount of money; write 50 or 49.90")
    return found


def hours(text: str) -> float:
    """A number of hours."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"{shown(text)} is no number of hours; write 24 or 0.5")
    return found


def whole(text: str) -> int:
    """A number of things, up to 2^17."""
    if not text.isdecimal() or len(text) > 6 or not 1 <= int(text) <= 2**17:
        raise argparse.ArgumentTypeError(f"{shown(text)} is no such number; write one from 1 to {2**17}")
    return int(text)


def tokens(text: str) -> int:
    """A number of tokens, up to 2^24; 32k is 32768."""
    plain = text[:-1] if text[-1:] in ("k", "K") else text
    count = int(plain) * (1024 if plain != text else 1) if plain.isdecimal() and len(plain) <= 8 else 0
    if not 1 <= count <= 2**24:
        raise argparse.ArgumentTypeError(f"{shown(text)} is no such number; write one from 1 to {2**24}, such as 8192 or 32k")
    return count


def port(text: str) -> int:
    """A port."""
    if not text.isdecimal() or len(text) > 5 or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{shown(text)} is no port; write a number from 1 to 65535")
    return int(text)
