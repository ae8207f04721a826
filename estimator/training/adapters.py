"""The adapter of a job, as PEFT applies it (peft 0.21).

Experts are no linear layers, but one parameter for all of them. For some models PEFT adapts that, too, since each expert had
linear layers once: where the targets name those, or all (utils/transformers_weight_conversion.py, `_convert_peft_config_moe`).
"""

from __future__ import annotations

from collections.abc import Mapping

from estimator.contract import job
from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Training
from estimator.contract.job.adapter import ALL_LINEAR, OnWeights
from estimator.families.build import Builder
from estimator.families.spec import ModelSpec
from estimator.parallel.strategies import Feature, Strategy
from estimator.tape.dtypes import BY_NAME, DType
from estimator.training.adalora import HEADS_OF_PEFT, AdaLora
from estimator.training.dora import Dora
from estimator.training.ia3 import Ia3
from estimator.training.lora import Lora
from estimator.training.lycoris import LoHa, LoKr
from estimator.training.methods import Method
from estimator.training.rotations import Boft, Oft
from estimator.training.targets import Names, Targets, matches
from estimator.training.vera import Vera

TARGETS = "training.adapter.targets"

WHOLE = ("gptq", "hqq", "torchao", "fp8", "awq", "eetq")
"""Formats over which PEFT has no DoRA, or it is not modelled."""
SHARED = {"vera": ("none",), "adalora": ("none", "ddp"), "oft": ("none", "fsdp2"), "boft": ("none", "fsdp2")}
"""Strategies under which a method is known, where that is not under every one but DeepSpeed's: matrices and places of VeRA,
OFT and BOFT are buffers, which DDP sends around; and AdaLoRA's loss reads parameters that FSDP2 has scattered again."""


def adapter(asked: OnWeights, training: Training, spec: ModelSpec, strategy: Strategy) -> Method:
    """The method that a job trains with. Raises `InvalidJob` for what PEFT refuses, `NotModelled` for what is not known."""
    if strategy.name not in SHARED.get(asked.type, ("none", "ddp", "fsdp2")) and asked.type != "lora":
        raise NotModelled(f"{asked.type} under {strategy} is not modelled yet; lora is", "parallelism.strategy")
    needs: dict[str, Feature] = {
        "bias": "trained_biases_and_copies",
        "layers": "trained_layers_by_number",
        "modules_to_save": "trained_biases_and_copies",
    }
    unknown = [key for key, feature in needs.items() if feature not in strategy.models]
    more = [key for key in unknown if getattr(asked, key, None) not in (None, "none", [])]
    if more:
        raise NotModelled(f"lora's {' and '.join(more)} under {strategy} are not modelled yet", "parallelism.strategy")
    _check_init(asked, training.quantization)
    joined = spec.held_in if training.transformers_release == "5" else {}
    layers = _parameters(asked, joined)
    chosen = _targets(asked, frozenset(old for old in joined if joined[old] in layers))
    bias = getattr(asked, "bias", "none")
    bias = "only" if bias.endswith("only") else bias
    if bias != "none" and training.quantization:
        raise NotModelled("trained biases of quantized layers are not modelled yet; write none", "training.adapter.bias")
    common = chosen, BY_NAME[asked.dtype], training.quantization, bias
    fused = training.implementation == "fast-kernels"
    if asked.type != "lora" and (fused or layers):
        what = "fast-kernels" if fused else f"the parameters that hold {', '.join(layers)}"
        where = "training.implementation" if fused else TARGETS
        raise Contradiction(f"{asked.type} has no form for {what}: write lora, or other", where)
    if layers and strategy.flattens:
        raise NotModelled(f"lora on the parameters that hold {', '.join(layers)} under fsdp1 is not modelled yet", TARGETS)
    if asked.type == "lora":
        if layers and asked.dropout:
            raise Contradiction(
                f"LoRA on the parameters that hold {', '.join(chosen.hidden)} has no dropout: write 0, or other targets",
                "training.adapter.dropout",
            )
        return Lora(*common, asked.rank, asked.dropout, fused, layers)
    if training.quantization and (asked.type != "dora" or training.quantization.startswith(WHOLE)):
        raise NotModelled(f"{asked.type} over {training.quantization} is not modelled yet; lora is", "training.adapter.type")
    if asked.type == "dora":
        return Dora(*common, asked.rank, asked.dropout)
    if asked.type == "adalora":
        return AdaLora(*common, asked.rank, asked.dropout, training.head in HEADS_OF_PEFT)
    if asked.type == "vera":
        return Vera(*common, asked.rank, asked.dropout)
    if asked.type == "ia3":
        return Ia3(*common, tuple(asked.feedforward))
    if asked.type == "oft":
        size = 0 if asked.blocks else asked.block_size or 32
        return Oft(*common, size, asked.blocks or 0, asked.shared, asked.neumann)
    if asked.type == "boft":
        return Boft(*common, asked.block_size)
    return (LoHa if asked.type == "loha" else LoKr)(*common, asked.rank)


def _check_init(asked: OnWeights, quantization: str | None) -> None:
    """What PEFT's ways to initialise adapters need (tuners/lora/layer.py, `pissa_init`, `corda_init`, `olora_init`,
    `orthogonal_init`)."""
    if not isinstance(asked, job.Lora) or asked.init is None:
        return
    where = "training.adapter.init"
    whole = asked.init in ("pissa", "corda") or (asked.init == "olora" and (quantization or "").startswith("gptq"))
    if quantization and whole:
        raise Contradiction(f"{asked.init} begins with weights that are not quantized: leave out quantization, or init", where)
    if asked.init == "orthogonal" and asked.rank % 2:
        raise Contradiction(f"orthogonal asks for an even rank, and {asked.rank} is odd", where)


def _targets(asked: OnWeights, hidden: frozenset[str]) -> Targets:
    names = None if asked.targets == ALL_LINEAR else _names(asked.targets)
    layers: list[int] | None = getattr(asked, "layers", None)
    if layers is not None and isinstance(asked.targets, str):
        raise Contradiction("PEFT chooses layers by number only where targets are a list of names", "training.adapter.layers")
    excluded: str | list[str] | None = getattr(asked, "exclude", None)
    return Targets(
        names,
        () if excluded is None else _names(excluded),
        hidden,
        tuple(asked.modules_to_save),
        None if layers is None else frozenset(layers),
    )


def _names(asked: str | list[str]) -> Names:
    return asked if isinstance(asked, str) else tuple(asked)


def _parameters(asked: OnWeights, joined: Mapping[str, str]) -> dict[str, int]:
    """The parameters that are adapted themselves, each with how many of its layers are named; all of them, or none."""
    if not joined:
        return {}
    if getattr(asked, "exclude", None) is not None or (isinstance(asked.targets, str) and asked.targets != ALL_LINEAR):
        raise NotModelled("patterns and exclusions are not modelled for mixtures of experts yet; list the targets", TARGETS)
    if getattr(asked, "layers", None) is not None:
        raise NotModelled("chosen layers are not modelled for mixtures of experts yet", "training.adapter.layers")
    named = [old for old in joined if asked.targets == ALL_LINEAR or matches(tuple(asked.targets), old)]
    counts: dict[str, int] = {}
    for old in named:
        counts[joined[old]] = counts.get(joined[old], 0) + 1
    for old in joined:
        if old not in named and joined[old] in counts:
            raise Contradiction(f"{old} lies in one parameter with another target: name both, or neither", TARGETS)
    return counts


def check_gathered(training: Training, gathered: DType | None) -> None:
    """Raise `InvalidJob` where fsdp1 gathers an adapter in another type than PEFT casts its inputs to.

    PEFT reads that type off a weight that is not gathered yet (tuners/lora/layer.py, `_cast_input_dtype`).
    """
    asked = training.adapter
    if asked and asked.dtype and gathered and BY_NAME[asked.dtype] is not gathered and not training.autocast:
        raise Contradiction(
            f"fsdp1 gathers the adapter's weights as {gathered.name}, but PEFT casts their inputs to {asked.dtype}: "
            f"write autocast: true, as Accelerate has it, or an adapter in {gathered.name}",
            "training.adapter.dtype",
        )


def check_applied(asked: OnWeights, build: Builder, spec: ModelSpec, strategy: Strategy) -> None:
    """Raise `InvalidJob` where an adapter found nothing, `NotModelled` where PEFT would find more than the tape has."""
    layers: list[int] | None = getattr(asked, "layers", None)
    deepest = max(build.stacks, default=0)
    if layers is not None and max(layers, default=-1) >= deepest:
        raise Contradiction(f"there is no layer {max(layers)}: the model has {deepest}, from 0 on", "training.adapter.layers")
    if not build.adapted:
        known = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in build.linears))
        wanted = asked.targets if isinstance(asked.targets, str) else " or ".join(asked.targets)
        raise Contradiction(f"no linear layer is called {wanted}; this model has {known}", TARGETS)
    if twice := next((name for name in build.adapted if name in build.saved), None):
        raise Contradiction(
            f"peft trains a copy of {twice}, for the end of its name, and puts no adapter on a layer of which it does: "
            "write targets without it",
            TARGETS,
        )
    joined = spec.held_in
    ends = {name.rpartition(".")[2] for name in build.adapted} if joined and asked.targets == ALL_LINEAR else set()
    if also := next((name for name in build.convolutions if name.rpartition(".")[2] in ends), None):
        raise NotModelled(
            f"of a mixture of experts PEFT takes {ALL_LINEAR} by the ends of names, and so adapts the convolution {also}, too, "
            "which is not modelled yet: name the layers, such as [q_proj, k_proj, v_proj, o_proj]",
            TARGETS,
        )
    given = asked.targets if isinstance(asked.targets, list) else []
    passed_over = [t for t in given if t not in joined and not any(matches((t,), name) for name in build.adapted)]
    if passed_over:
        build.tape.remarks[f"no layer is called {' or '.join(passed_over)} here: PEFT passes over that without a word"] = None
    both = "is_encoder_decoder" in spec.modelled
    for name in (*build.saved, *build.adapted) if both else ():
        if name in build.embeddings:  # whose modules PEFT changes in one of the two places only
            raise NotModelled(f"adapters on {name}, which encoder and decoder share, are not modelled yet", TARGETS)
    if "adapters_on_embeddings" not in strategy.models and any(name in build.embeddings for name in build.adapted):
        raise NotModelled(f"lora on embeddings under {strategy} is not modelled yet", TARGETS)
    above = {part for name in build.linears for part in name.split(".")[:-1]}
    for target in asked.targets if isinstance(asked.targets, list) else ():
        if any(part.isdigit() for part in target.split(".")):
            raise NotModelled(f"{target} names a layer by its number: write that under layers", TARGETS)
        if target in above:
            raise Contradiction(f"{target} is no linear layer, but holds several: name those", TARGETS)
    for saved in asked.modules_to_save:
        whole_layers = saved.lstrip(".").isdigit() or any(part.endswith(saved) for part in above)
        if whole_layers or not any(name.endswith(saved) for name in build.saved):
            raise NotModelled(
                f"a trained copy of {saved} is not modelled yet; embeddings, norms, linear and output layers are",
                "training.adapter.modules_to_save",
            )
