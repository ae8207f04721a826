"""How a run is spread over GPUs: what starts it, DeepSpeed's file, FSDP's settings, Accelerate's configuration beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from estimator.contract.errors import InvalidValue, Unreadable, WillItFitError
from estimator.contract.reading import parse_json, parse_yaml
from estimator.exchange import accelerate, deepspeed
from estimator.exchange.configuration import Configuration
from estimator.exchange.found import Found
from estimator.specs.resolve import resolve

_STAGE = re.compile(r"(?:zero|stage|z)[_-]?([0-3])(?!\d)", re.IGNORECASE)
_OFFLOADED = re.compile(r"(?<!no)(?<!no[_-])offload", re.IGNORECASE)
HELD = ("parallelism", "offload")
SHARDED = ("zero3", "fsdp", "hsdp")
FEWEST, UNSAID = 2, "the file does not say on how many it runs, but shards the model; say on how many with --on"


def spread(conf: Configuration, *, deepspeed_key: str = "deepspeed", fsdp_key: str = "fsdp") -> str | None:
    """Put the strategy into the job. What Accelerate's `mixed_precision` says is returned, where it says anything."""
    given = conf.take(deepspeed_key) if deepspeed_key else None
    if isinstance(path := conf.given.get("fsdp_config"), str) and path:
        conf.given["fsdp_config"] = _written(conf, "fsdp_config", path)
    fsdp, settings = conf.take(fsdp_key), conf.part("fsdp_config")
    if conf.has("fsdp_offload_params"):  # Accelerate's key beside the Trainer's
        settings = {"offload_params": conf.yes("fsdp_offload_params"), **settings}
    mixed = None
    if conf.launch.accelerate is not None:
        mixed = of_accelerate(conf, conf.launch.accelerate)
    if given and str(given).lower() not in ("false", "none"):
        of_deepspeed(conf, deepspeed_key, given)
    elif (fsdp and str(fsdp).lower() not in ("false", "none")) or (settings and settings.get("enabled", True)):
        of_fsdp(conf, fsdp, settings)
    settle(conf)
    return mixed


def settle(conf: Configuration) -> None:
    """One GPU needs no strategy but ZeRO's; several without any have DDP; what is sharded runs on two at least."""
    sharded = (conf.get("parallelism.strategy") or "").startswith(SHARDED)
    if sharded and conf.around.hardware is None and conf.launch.gpus is None:
        conf.launch.gpus = FEWEST
        conf.assume("gpus", FEWEST, UNSAID)
    if conf.gpus == 1 and not (conf.get("parallelism.strategy") or "").startswith("zero"):
        conf.job.pop("parallelism", None)
    elif conf.gpus > 1 and conf.get("parallelism.strategy") is None:
        conf.put("parallelism.strategy", "ddp")


def of_accelerate(conf: Configuration, given: Mapping[str, Any]) -> str | None:
    """What Accelerate's configuration adds."""
    settings = dict(given)
    inner = settings.get("deepspeed_config")
    if isinstance(inner, Mapping) and (path := inner.get("deepspeed_config_file")):
        del settings["deepspeed_config"]
        settings["distributed_type"] = "MULTI_GPU" if settings.get("num_processes") else "NO"
        of_deepspeed(conf, "deepspeed", path)
    before = conf.get("parallelism")
    found = accelerate.found(settings)
    _merge(conf, found)
    if before:
        conf.job["parallelism"] = before
    if (found.job.get("training") or {}).get("activation_checkpointing") == "full":
        conf.put("training.activation_checkpointing", "full")
    hardware = found.job["hardware"]
    if conf.launch.gpus is None:
        conf.launch.gpus, conf.launch.nodes = hardware["gpus"], hardware["nodes"]
    said = str(settings.get("mixed_precision", "")).lower()
    return said if said in ("bf16", "fp16", "no") else None


def beside_accelerate(conf: Configuration) -> None:
    """Put the file of `accelerate launch --config_file` in its place."""
    given = dict(conf.launch.accelerate or {})
    path = given.pop("config_file", None)
    if path is None:
        return
    text = conf.around.beside(str(path))
    if text is None:
        processes = given.get("num_processes") or conf.gpus
        told = accelerate_named(str(path), int(processes) if str(processes).isdigit() else 1)
        kind = told.get("distributed_type", "")
        named = {"": "the options alone are taken", "MULTI_GPU": "its name tells nothing, and DDP is taken"}
        said = named.get(kind, f"read as {kind}, by its name")
        conf.leave("accelerate --config_file", f"{path}: is not beside this file; {said}")
        conf.launch.accelerate = {**told, **given} or None
        return
    content = parse_yaml(text, str(path))
    if not isinstance(content, Mapping):
        raise Unreadable("holds no mapping of settings", str(path))
    conf.launch.accelerate = {**content, **given}


def accelerate_named(path: str, processes: int) -> dict[str, Any]:
    """What the name of a file of Accelerate's tells, where the file is not here: ZeRO's stage, FSDP and its version, else DDP of
    several processes; nothing of one."""
    name = path.rpartition("/")[2].lower()
    stage = _STAGE.search(name)
    away = "cpu" if _OFFLOADED.search(name) else "none"
    if stage is not None and int(stage[1]):
        zero = {"zero_stage": int(stage[1]), "offload_optimizer_device": away}
        return {
            "distributed_type": "DEEPSPEED",
            "deepspeed_config": {**zero, "offload_param_device": away if int(stage[1]) == 3 else "none"},
        }
    if "fsdp" in name:
        settings = {"fsdp_version": 2 if re.search(r"fsdp_?v?2", name) else 1, "fsdp_offload_params": away == "cpu"}
        return {"distributed_type": "FSDP", "fsdp_config": settings}
    return {"distributed_type": "MULTI_GPU"} if processes > 1 else {}


def of_deepspeed(conf: Configuration, key: str, given: Any) -> None:
    """DeepSpeed's settings: a mapping, a file beside this one, or a name that tells the stage."""
    hidden = hidden_size(conf.get("model"), conf.around.allow_files)
    if isinstance(given, Mapping):
        _merge(conf, deepspeed.found(given, trained=True, hidden=hidden))
        return
    name = str(given)
    known = conf.facts.tables.get("deepspeed", {}).get(name)
    stage = _STAGE.search(name.rpartition("/")[2])
    here = name.lstrip().startswith("{") or conf.around.beside(name) is not None
    if here or (known is None and stage is None):
        _merge(conf, deepspeed.found(_written(conf, key, name), trained=True, hidden=hidden))
        return
    offloaded = _OFFLOADED.search(name) is not None
    zero: dict[str, Any] = known or {"stage": int(stage[1]) if stage else 0}
    if known is not None and "/" in name:
        conf.assume(key, name, f"the file is not here: {conf.facts.framework}'s own by that name, of {conf.facts.release}")
    elif known is None:
        conf.assume(
            key, name, f"the file is not here: ZeRO-{zero['stage']}{' with offloading' if offloaded else ''}, by its name"
        )
        if offloaded:
            zero["offload_optimizer"] = {"device": "cpu"}
            if zero["stage"] == 3:
                zero["offload_param"] = {"device": "cpu"}
    _merge(conf, deepspeed.found({"zero_optimization": zero}, trained=True, hidden=hidden))


def hidden_size(model: Any, allow_files: bool) -> int | None:
    """The width of the model that a file names, of one that sees that of its language model; None where nothing here knows it."""
    try:
        spec = resolve(model, allow_files).spec if model else None
    except WillItFitError:
        return None
    width = getattr(getattr(spec, "language_model", spec), "hidden_size", None)
    return width if isinstance(width, int) else None


def _written(conf: Configuration, key: str, name: str) -> Any:
    """Settings by the path of their file, or as JSON. Raises `Unreadable` for a file that is not beside this one."""
    text = name if name.lstrip().startswith("{") else conf.around.beside(name)
    if text is None:
        raise Unreadable(
            f"{name[:80]!r} is not beside this file: send its content in its place, or put it there", conf.where(key)
        )
    where = conf.where(key) if text is name else name
    return parse_json(text, where) if text.lstrip().startswith("{") else parse_yaml(text, where)


def of_fsdp(conf: Configuration, words: Any, given: Mapping[str, Any]) -> None:
    """The Trainer's `fsdp` and `fsdp_config`, by the reader of Accelerate's."""
    said = " ".join(map(str, words)) if isinstance(words, list) else str(words or "")
    settings = {str(key).removeprefix("fsdp_"): value for key, value in given.items()}
    version = settings.pop("version", None) or conf.take("fsdp_version") or conf.facts.tables.get("fsdp", {}).get("version", 1)
    if "fsdp2" in said:
        version = 2
    if "offload" in said.split():
        settings["offload_params"] = True
    if "hybrid_shard" in said or "shard_grad_op" in said:
        conf.leave("fsdp", f"{said}: read as full_shard")
    for name in (
        "min_num_params",
        "xla",
        "xla_fsdp_v2",
        "xla_fsdp_grad_ckpt",
        "xla_fsdp_settings",
        "limit_all_gathers",
        "enabled",
    ):
        settings.pop(name, None)
    settings.pop("mixed_precision_policy", None)
    if str(settings.get("sharding_strategy", "FULL_SHARD")) not in ("FULL_SHARD", "1"):
        conf.leave("fsdp_config.sharding_strategy", f"{settings.pop('sharding_strategy')}: read as FULL_SHARD")
    if str(settings.get("reshard_after_forward", "")) in ("SHARD_GRAD_OP", "HYBRID_SHARD", "NO_SHARD"):
        conf.leave("fsdp_config.reshard_after_forward", f"{settings.pop('reshard_after_forward')}: read as FULL_SHARD")
    recomputes = bool(settings.get("activation_checkpointing"))
    inner = {f"fsdp_{key}": value for key, value in settings.items()}
    inner["fsdp_version"] = 2 if str(version) == "2" else 1
    found = accelerate.found({"distributed_type": "FSDP", "fsdp_config": inner})
    _merge(conf, found)
    if recomputes:
        conf.put("training.activation_checkpointing", "full")


def _merge(conf: Configuration, found: Found) -> None:
    """Take over how a run is spread, and what was left out of that."""
    for part in HELD:
        conf.job[part] = {**conf.job.get(part, {}), **found.job.get(part, {})}
        if not conf.job[part]:
            del conf.job[part]
    if (found.job.get("training") or {}).get("gradient_clipping"):
        conf.put("training.gradient_clipping", True)
    conf.left_out += found.left_out


def degrees(conf: Configuration, **keys: str) -> None:
    """Tensor, context, pipeline and expert parallelism where a key says more than 1."""
    for ours, theirs in keys.items():
        if (degree := conf.whole(theirs)) and degree > 1:
            conf.put(f"parallelism.{ours}", degree)


def hardware(conf: Configuration) -> None:
    """The GPUs of the job: those of the question, or as many as are started."""
    if (given := conf.around.hardware) is not None:
        conf.job["hardware"] = given.model_dump(mode="json", exclude_unset=True, exclude_defaults=True)
        started = (conf.launch.gpus or 0) * (conf.launch.nodes or 1)
        if started and started != conf.gpus:
            conf.assume("gpus", conf.gpus, f"as asked, though the file starts {started}")
        return
    gpus, nodes = conf.launch.gpus, conf.launch.nodes or 1
    if gpus is None:
        conf.assume("gpus", 1, "the file does not say on how many it runs")
    if not 0 < (gpus or 1) <= 2**17 or nodes < 1:
        raise InvalidValue(f"{gpus} GPUs on {nodes} nodes are no number that can be started", f"{conf.facts.framework} GPUs")
    conf.put("hardware.gpus", gpus or 1)
    if nodes > 1:
        conf.put("hardware.nodes", nodes)
