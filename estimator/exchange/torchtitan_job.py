"""torchtitan's file, or the command that names it, as a whole job: the model by its flavor, the optimizer, and the GPUs.

torchtitan/config/manager.py of release 0.2: an option such as --training.seq_len 4096 stands in place of the file's.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from estimator.contract.errors import Unreadable
from estimator.contract.reading import parse_toml
from estimator.exchange import torchtitan
from estimator.exchange.configuration import Launch, Surroundings, framework
from estimator.exchange.found import Assumed, Found, LeftOut
from estimator.exchange.launch import Program, arguments

SPLIT = ("tensor", "pipeline", "context")
IMPLEMENTATIONS = {"fused": "fused", "foreach": "foreach", "for-loop": "forloop"}
OPTIMIZERS = {"Adam": "adam", "AdamW": "adamw"}
OWN = "llama3"
"""The models whose modules are modelled as torchtitan's own."""


def read(text: str) -> Found:
    """What a file says."""
    return whole(parse_toml(text, "torchtitan"), Launch(), Surroundings())


def command(program: Program, launch: Launch, around: Surroundings) -> Found:
    """What a command says, with the file that it points to. Raises `Unreadable` where that is not beside it."""
    options, _, _ = arguments(program.arguments)
    path = options.pop("job.config_file", options.pop("job.config-file", None))
    settings: dict[str, Any] = {}
    if path is not None:
        text = around.beside(str(path))
        if text is None:
            raise Unreadable(f"{str(path)[:80]!r}, to which the command points, is not beside it: send that file", "file")
        settings = parse_toml(text, str(path))
    for name, value in options.items():
        table, _, key = name.partition(".")
        if key and isinstance(settings.setdefault(table, {}), dict):
            settings[table][key.replace("-", "_")] = value
    return whole(settings, launch, around)


def whole(settings: Mapping[str, Any], launch: Launch, around: Surroundings) -> Found:
    """The job of a file's tables on the GPUs that are started."""
    found = torchtitan.found(settings)
    job, left, assumed = dict(found.job), list(found.left_out), list(found.assumed)
    gpus = (launch.gpus or 0) * (launch.nodes or 1)
    if around.hardware is None and gpus:
        job["hardware"] = {"gpus": launch.gpus, **({"nodes": launch.nodes} if (launch.nodes or 1) > 1 else {})}
    table = settings.get("model")
    model: Mapping[str, Any] = table if isinstance(table, Mapping) else {}
    name, flavor = str(model.get("name", ""))[:60], str(model.get("flavor", ""))[:60]
    if not name:
        return found.model_copy(update={"job": job})
    known = framework("torchtitan").tables["flavors"].get(name.replace("-", "_"), {}).get(flavor)
    if known is None:
        left.append(
            LeftOut(key="torchtitan.model.flavor", why=f"{name} {flavor}: no model is known by it; say which with --model")
        )
        return found.model_copy(update={"job": job, "left_out": left})
    assumed.append(Assumed(key="model", value=known, why=f"torchtitan's {name} {flavor} has its sizes"))
    training = {**job["training"], "gradient_clipping": True}
    if name == OWN:
        training["implementation"] = "torchtitan"
    _optimizer(settings.get("optimizer"), training, left)
    if _on(settings.get("compile"), "enable"):
        left.append(
            LeftOut(
                key="torchtitan.compile",
                why="compiled kernels keep fewer activations, and other temporaries; the estimate is of plain ones",
            )
        )
    for part in ("float8", "quantize"):
        if settings.get(part):
            left.append(LeftOut(key=f"torchtitan.{part}", why="is not read: products are taken for those of the weights' type"))
    asked = around.hardware.gpus * around.hardware.nodes if around.hardware else gpus
    _batches(settings, job, training, asked)
    return found.model_copy(update={"job": {"model": known, **job, "training": training}, "left_out": left, "assumed": assumed})


def _on(table: Any, key: str) -> bool:
    return isinstance(table, Mapping) and bool(table.get(key))


def _optimizer(table: Any, training: dict[str, Any], left: list[LeftOut]) -> None:
    """Adam or AdamW, in one kernel unless it is said."""
    given: Mapping[str, Any] = table if isinstance(table, Mapping) else {}
    name, how = str(given.get("name", "AdamW")), str(given.get("implementation", "fused"))
    training["optimizer"] = OPTIMIZERS.get(name, "adamw")
    if name not in OPTIMIZERS:
        left.append(LeftOut(key="torchtitan.optimizer.name", why=f"{name[:40]}: AdamW is taken"))
    training["optimizer_implementation"] = IMPLEMENTATIONS.get(how, "fused")
    if _on(table, "early_step_in_backward"):
        training["optimizer_in_backward"] = True


def _batches(settings: Mapping[str, Any], job: dict[str, Any], training: dict[str, Any], gpus: int) -> None:
    """Accumulation, where the file says the batch of all ranks and the ranks are known."""
    table = settings.get("training")
    batch = table.get("global_batch_size", -1) if isinstance(table, Mapping) else -1
    if not gpus or not isinstance(batch, int) or batch < 1 or job["parallelism"].get("data"):
        return
    ranks = prod(job["parallelism"].get(name, 1) for name in SPLIT)
    passes = training.get("gradient_accumulation_steps", 1)
    local = training["micro_batch_size"] * passes
    training["gradient_accumulation_steps"] = passes * max(1, batch // (local * max(1, gpus // ranks)))
