"""What a command starts: the launcher with its number of GPUs, the program, and the program's arguments.

torch/distributed/run.py, accelerate/commands/launch.py, deepspeed/launcher/runner.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from estimator.contract.errors import InvalidValue
from estimator.exchange.configuration import Launch
from estimator.exchange.shell import MOST_SCRIPT, Command, Word, commands

ALONE = frozenset(
    [
        "--multi_gpu",
        "--use_deepspeed",
        "--use_fsdp",
        "--cpu",
        "--tpu",
        "--module",
        "-m",
        "--no_python",
        "--debug",
        "--quiet",
        "-q",
        "--same_network",
        "--standalone",
        "--run_path",
        "--no-python",
        "--use_megatron_lm",
        "--enable_each_rank_log",
        "--no_local_rank",
        "--force_multi",
        "--bind_cores_to_rank",
    ]
)
"""Options of launchers that no value follows."""
CONTAINERS = ("docker", "podman", "sudo", "nerdctl")
IMAGES = {
    "vllm/vllm-openai": "vllm.entrypoints.openai.api_server",
    "huggingface/text-generation-inference": "text-generation-launcher",
    "llama.cpp:server": "llama-server",
    "rocm/vllm": "vllm.entrypoints.openai.api_server",
}
"""What an image starts with the words after it, by a part of its name."""
MASON = "mason.py"
SHELLS, DEEPEST = ("bash", "sh"), 2
"""Shells, and how many of them are read within each other."""
PYTHON = re.compile(r"(?:.*/)?python(?:3(?:\.\d+)?)?")
TORCH = ("torch.distributed.run", "torch.distributed.launch")
MOST_DEVICES = 2**17
_COUNT = re.compile(r"\d{1,6}")
_NUMBER = re.compile(r"[-+]?(?:\d{1,18}|\d{0,18}\.\d{0,18}(?:[eE][-+]?\d{1,3})?|\d{1,18}(?:\.\d{0,18})?[eE][-+]?\d{1,3})")


@dataclass(slots=True)
class Program:
    """A program that a command starts, with its arguments."""

    name: str
    """A script's path, a module's dotted name, or a command such as `vllm`."""
    arguments: list[Word] = field(default_factory=list)
    launch: Launch = field(default_factory=Launch)

    def words(self, count: int) -> list[str]:
        """The first arguments, up to the first option."""
        found: list[str] = []
        for word in self.arguments[:count]:
            if word.text.startswith("-"):
                break
            found.append(word.text)
        return found


def programs(command: Command, depth: int = 0) -> list[Program]:
    """What a command may be taken to start, from its outermost launcher inwards; wrappers around it are passed over, and what a
    shell is given to run (`bash -c`) is a script of its own."""
    texts = [word.text for word in command.words]
    for at, text in enumerate(texts):
        text = text.removeprefix("&&")  # an escaped operator, for the shell of another machine
        name = text.rpartition("/")[2]
        following = texts[at + 1] if at + 1 < len(texts) else ""
        if name == MASON and "--" in texts[at:]:
            return _submitted(command, at + 1, depth) if depth < DEEPEST else []
        if name in SHELLS and following in ("-c", "-lc") and at + 2 < len(texts):
            inside = commands(texts[at + 2]) if depth < DEEPEST and len(texts[at + 2]) <= MOST_SCRIPT else []
            return [one for inner in inside for one in programs(_within(inner, command.words[at + 2].line), depth + 1)]
        if name == "accelerate" and following == "launch":
            return [_accelerated(command, at + 2)]
        if name == "tune" and following == "run":  # torchtune's, which has torchrun's options before a recipe's name
            started = _started(command, at + 2, "torchrun")
            return [Program(name, started.arguments, started.launch)]
        if name in ("torchrun", "deepspeed"):
            return [_started(command, at + 1, name)]
        if PYTHON.fullmatch(text):
            if following == "-m" and at + 2 < len(texts):
                if texts[at + 2] in TORCH:
                    return [_started(command, at + 3, "torchrun")]
                return [Program(texts[at + 2], command.words[at + 3 :], _alone(command))]
            if following.endswith(".py") and not any(
                one in ("--", "torchrun", "accelerate", "deepspeed") for one in texts[at + 2 :]
            ):
                return [Program(following, command.words[at + 2 :], _alone(command))]
        elif text.endswith(".py") and at > 1 and "uv" in texts[: at - 1] and texts[texts.index("uv") + 1] == "run":
            return [Program(text, command.words[at + 1 :], _alone(command))]
        elif at and (entry := next((entry for part, entry in IMAGES.items() if part in text), None)) and texts[0] in CONTAINERS:
            return [Program(entry, command.words[at + 1 :], _alone(command))]
        elif name in COMMANDS and (at == 0 or not texts[at - 1].startswith("-")):
            return [Program(name, command.words[at + 1 :], _alone(command))]
    return []


def _submitted(command: Command, at: int, depth: int) -> list[Program]:
    """open-instruct's mason.py: each of its nodes starts what follows `--`."""
    end = at + [word.text for word in command.words[at:]].index("--")
    options, _, _ = arguments(command.words[at:end])
    found = programs(Command(command.words[end + 1 :], command.environment), depth + 1)
    for one in found:
        one.launch.nodes = one.launch.nodes or _count(str(options.get("num_nodes")))
        one.launch.gpus = one.launch.gpus or _count(str(options.get("gpus")))
    return found


def _within(command: Command, line: int) -> Command:
    """A command within a word, whose words have no place of their own in the script."""
    return Command([Word(word.text, line + word.line - 1, alone=False) for word in command.words], command.environment)


COMMANDS = (
    "vllm",
    "swift",
    "megatron",
    "axolotl",
    "llamafactory-cli",
    "trl",
    "llama-server",
    "llama-cli",
    "sglang",
    "litgpt",
    "tune",
    "oumi",
    "ollama",
    "trtllm-serve",
    "text-generation-launcher",
)
"""Commands of frameworks that start themselves."""


def _alone(command: Command) -> Launch:
    """A program that starts its processes itself: their number is in variables of the environment."""
    given = command.environment
    for name in ("NPROC_PER_NODE", "SLURM_GPUS_ON_NODE"):
        if _COUNT.fullmatch(given.get(name, "")):
            nodes = given.get("NNODES", "1")
            return Launch(int(given[name]), int(nodes) if _COUNT.fullmatch(nodes) else 1)
    devices = given.get("CUDA_VISIBLE_DEVICES", "").strip()
    visible = len(devices.rstrip(",").split(",")) if re.fullmatch(r"\d+(,\d+)*,?", devices) else None
    return Launch(visible, processes="NPROC_PER_NODE" in given)


def expandable(environment: Mapping[str, str]) -> bool | None:
    """Whether torch's allocator is told to have expandable segments (torch/cuda/memory.py), by either name of its settings; None
    where it is told nothing."""
    said = ",".join(environment.get(name, "") for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")).strip(",")
    return None if not said else "expandable_segments:true" in said.lower().replace(" ", "")


def in_mxfp8(environment: Mapping[str, str]) -> bool:
    """Whether vLLM is told to multiply experts in MXFP4 by numbers in MXFP8 (vllm/envs.py)."""
    return environment.get("VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8", "").strip() == "1"


def _started(command: Command, start: int, launcher: str) -> Program:
    """torchrun's, or DeepSpeed's."""
    options, at = _options(command.words, start)
    nodes, each = ("nnodes", "nproc_per_node") if launcher == "torchrun" else ("num_nodes", "num_gpus")
    launch = Launch(_count(options.get(each)), _count(options.get(nodes)) or None)
    if launch.gpus is None:
        launch.gpus = _alone(command).gpus
    if launcher == "deepspeed" and (listed := options.get("include") or options.get("i")):
        launch.gpus = len(listed.rpartition(":")[2].split(","))
    return _program(command, at, launch)


def _accelerated(command: Command, start: int) -> Program:
    """`accelerate launch`: its options are the keys of the file that `accelerate config` writes."""
    options, at = _options(command.words, start)
    settings: dict[str, Any] = {}
    kind = "MULTI_GPU" if "multi_gpu" in options else None
    inner: dict[str, Any] = {}
    for name, value in options.items():
        if name in ("mixed_precision", "num_processes", "num_machines"):
            settings[name] = value
        elif name in DEEPSPEED:
            inner[name] = value
        elif name.startswith("fsdp_"):
            settings.setdefault("fsdp_config", {})[name] = scalar(value)
    if "use_deepspeed" in options or "deepspeed_config_file" in options:
        kind, settings["deepspeed_config"] = "DEEPSPEED", inner
    elif "use_fsdp" in options:
        kind = "FSDP"
    elif kind is None and "config_file" not in options and (_count(options.get("num_processes")) or 1) > 1:
        kind = "MULTI_GPU"  # as `accelerate launch` then takes it for itself
    if kind:
        settings["distributed_type"] = kind
    launch = Launch(_count(options.get("num_processes")), accelerate=settings or None)
    if (machines := _count(options.get("num_machines"))) and launch.gpus:
        launch.gpus, launch.nodes = max(1, launch.gpus // machines), machines
    if path := options.get("config_file"):
        launch.accelerate = {**settings, "config_file": path}
    return _program(command, at, launch)


DEEPSPEED = (
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "gradient_clipping",
    "gradient_accumulation_steps",
    "deepspeed_config_file",
    "deepspeed_multinode_launcher",
    "zero3_init_flag",
    "zero3_save_16bit_model",
)


def _program(command: Command, at: int, launch: Launch) -> Program:
    words = command.words[at:]
    return Program(words[0].text, words[1:], launch) if words else Program("", [], launch)


def _options(words: Sequence[Word], at: int) -> tuple[dict[str, str], int]:
    """A launcher's options up to the program, and where that begins."""
    found: dict[str, str] = {}
    while at < len(words) and words[at].text.startswith("-") and words[at].text != "--":
        name, given, value = words[at].text.partition("=")
        key = name.lstrip("-").replace("-", "_")
        at += 1
        if not given and name not in ALONE and at < len(words):
            value = words[at].text
            at += 1
        found[key] = value
    return found, at


def _count(text: str | None) -> int | None:
    """A number of processes; None where the machine decides."""
    return int(text) if text and _COUNT.fullmatch(text) and 0 < int(text) <= MOST_DEVICES else None


def arguments(words: Sequence[Word], short: Mapping[str, str] | None = None) -> tuple[dict[str, Any], dict[str, int], list[str]]:
    """A program's options by their names with underscores, the line of each, and the words that belong to none.

    An option has the words up to the next one as its value: one, or a list; without any it is true. `short` names short options.
    """
    found: dict[str, Any] = {}
    lines: dict[str, int] = {}
    alone: list[str] = []
    key, values = "", list[str]()

    def end() -> None:
        if key:
            found[key] = True if not values else scalar(values[0]) if len(values) == 1 else [scalar(value) for value in values]

    for word in words:
        text = word.text
        if short is not None and text[:2] in short and text[2:].isdecimal():  # -O3
            text = f"{text[:2]}={text[2:]}"
        option = text.startswith("--") or (short is not None and text.startswith("-") and text.partition("=")[0] in short)
        if (option and len(text) > 2) or (option and short):
            end()
            name, given, value = text.partition("=")
            key = short[name] if short and name in short else name.lstrip("-").replace("-", "_")
            values = [value] if given else []
            lines.setdefault(key, word.line)
        elif key:
            values.append(text)
        else:
            alone.append(text)
    end()
    return found, lines, alone


def scalar(text: str) -> Any:
    """A word of a command as YAML would take it: true, false, nothing, a number, JSON, or itself."""
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if lowered in ("none", "null"):
        return None
    if _NUMBER.fullmatch(text) and any(letter.isdigit() for letter in text):
        return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)
    if text[:1] in "{[" and len(text) < 10_000:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def slurm(header: Mapping[str, str]) -> Launch:
    """GPUs and nodes of a batch script's header. Raises `InvalidJob` for a number that is none."""
    nodes = _count(header.get("--nodes", "").partition("-")[0]) or 1
    for name, each in (("--gpus-per-node", 1), ("--gres", 1), ("--gpus-per-task", 1), ("--gpus", nodes)):
        given = header.get(name, "")
        if name == "--gres":
            given = _generic(given)
        if given:
            card, _, digits = given.rpartition(":")
            count = _count(digits)
            if count is None:
                raise InvalidValue(f"{given[:40]!r} is no number of GPUs", f"#SBATCH {name}")
            tasks = _count(header.get("--ntasks-per-node")) if name == "--gpus-per-task" else 1
            return Launch(max(1, count * (tasks or 1) // each), nodes, card=card)
    return Launch(None, nodes if nodes > 1 else None)


def _generic(given: str) -> str:
    """The GPUs of Slurm's generic resources, as its other options have them; empty where none are asked for."""
    first = next((one for one in given.split(",") if one.partition(":")[0] == "gpu"), "").partition("(")[0]
    _, _, said = first.partition(":")
    last = said.rpartition(":")[2]
    if last.isdecimal():
        return said if _count(last) else ""
    return f"{said}:1" if said else "1" if first else ""
