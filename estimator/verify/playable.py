"""Which jobs torch can run on tensors without data. All others are refused: what is counted of another job would be no judgement.

A setting that the judge does not read is refused unless it is at its default: one that is added to the contract is refused until
somebody lets the judge honour it and says so here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib.util import find_spec
from typing import NamedTuple

import transformers

from estimator.contract.errors import NotJudged
from estimator.contract.job import Bottleneck, CheckpointForm, Job, Training
from estimator.contract.job.adapter import PromptLearning, PTuning
from estimator.contract.job.trainable import Trainable
from estimator.families.other import OtherSpec
from estimator.families.spec import ModelSpec
from estimator.parallel.offloading import CPU_OFFLOAD_POLICY, offloads
from estimator.parallel.topology import topology
from estimator.parallel.torchtitan_checks import check_torchtitan
from estimator.training.overrides import precision_of

HONOURED = {
    "training": {
        *("precision", "dtypes", "float8", "autocast", "attention", "attention_mask", "loss", "implementation"),
        *("optimizer", "optimizer_implementation", "optimizer_states", "optimizer_rank", "optimizer_in_backward"),
        *(
            "micro_batch_size",
            "sequence_length",
            "target_length",
            "images",
            "audio",
            "head",
            "labels",
            "gradient_accumulation_steps",
        ),
        *("activation_checkpointing", "reentrant_checkpointing", "gradient_clipping", "zero_grad_to_none"),
        *("adapter", "trainable", "pruning", "quantization", "quantization_group", "unquantized", "evaluation", "objective"),
    },
    "parallelism": {
        *("strategy", "data", "tensor", "sequence", "replicas"),
        *("reshard_after_forward", "backward_prefetch", "gradient_sync"),
    },
    "offload": {"optimizer", "parameters", "gradients", "activations"},
}
"""Settings that the judge reads: their values that it cannot run are among `_unplayable`."""
WITHOUT_BYTES = {
    "training": {"tf32", "expandable_segments", "tokens", "dataset", "lengths", "run"},
    "serving": {"prompt_length", "output_length", "hours"},
}
"""Settings on which no byte of what is run depends: the longest of `lengths` is its sequence length once defaults are filled
in, and a context is of the same bytes wherever its prompt ends."""
SHARDED = ("fsdp2", "hsdp")
QUANTIZED = ("torchao-int8", "torchao-fp8", "fp8", "fp8-block", "eetq-int8", "awq-int4")
LIBRARIES = {
    "lion-pytorch": "lion_pytorch",
    "galore-torch": "galore_torch",
    "apollo-torch": "apollo_torch",
    "pytorch-optimizer": "pytorch_optimizer",
    "llama-cookbook": "llama_cookbook",
}
"""What an optimizer's implementation is imported as."""


class Unplayable(NamedTuple):
    """A reason not to run a job, and where in the job it is; `asked`: whether it holds for the job."""

    asked: bool
    why: str
    where: str


def refuse_unplayable(job: Job, spec: ModelSpec, elsewhere: Collection[str] = ()) -> None:
    """Raise `NotModelled` for a training job with its defaults whose step would be counted as another's; `InvalidJob` where
    its parts contradict each other. `elsewhere`: fields, as `training.quantization`, that the caller runs by itself."""
    refuse(_unplayable(job, spec), elsewhere)
    refuse(unread(job, HONOURED), elsewhere)
    place = topology(job, spec)
    precision_of(job, place)  # which refuses types that no recipe of this strategy has
    if job.training.implementation == "torchtitan":
        check_torchtitan(job, spec, place)


def refuse(reasons: Iterable[Unplayable], elsewhere: Collection[str] = ()) -> None:
    """Raise `NotModelled` for the first reason that a job gives, unless its field is handled `elsewhere`."""
    for asked, why, where in reasons:
        if asked and where not in elsewhere:
            raise NotJudged(f"torch cannot play this job on tensors without data: {why}", where)


def unread(job: Job, honoured: Mapping[str, Collection[str]]) -> Iterator[Unplayable]:
    """The settings of some parts of a job that are not read there, where they are not at their defaults."""
    for part, names in honoured.items():
        given = getattr(job, part)
        for name, field in type(given).model_fields.items():
            if name not in names and name not in WITHOUT_BYTES.get(part, ()):
                usual = field.get_default()
                yield Unplayable(getattr(given, name) != usual, f"it is played as {usual} only", f"{part}.{name}")


def _unplayable(job: Job, spec: ModelSpec) -> Iterator[Unplayable]:
    yield Unplayable(job.task != "train", "training is what is played", "task")
    yield Unplayable(not spec.forward_modelled and not isinstance(spec, OtherSpec), f"{spec.model_type} is only counted", "model")
    yield from _of_modules(job.training)
    yield from _of_a_step(job.training)
    yield from _of_checkpoints(job)
    yield from _of_ranks(job)


def _of_modules(training: Training) -> Iterator[Unplayable]:
    """Layers, kernels and losses."""
    quantized, implementation = training.quantization, training.implementation
    where = "training.quantization"
    yield Unplayable(
        quantized is not None and quantized not in QUANTIZED,
        "bitsandbytes, GPTQModel and HQQ have no kernels for tensors without data",
        where,
    )
    yield Unplayable(quantized == "awq-int4" and not find_spec("gptqmodel"), "pip install gptqmodel==7.7.0", where)
    grouped = training.quantization_group is not None and quantized != "awq-int4"
    yield Unplayable(grouped, "awq-int4 alone is played in groups of another size", "training.quantization_group")
    torchao = training.float8 is not None or (quantized or "").startswith("torchao")
    yield Unplayable(torchao and not find_spec("torchao"), "pip install torchao", "training")
    where = "training.implementation"
    yield Unplayable(
        implementation == "torchtitan" and not find_spec("torchtitan"),
        "pip install torchtitan==0.2.2",
        where,
    )
    yield Unplayable(implementation not in ("transformers", "torchtitan"), "fused kernels need a GPU", where)
    yield Unplayable(training.loss in ("fused", "cut", "flash"), "fused kernels need a GPU", "training.loss")
    yield Unplayable(training.attention.startswith("flash"), "FlashAttention needs a GPU", "training.attention")
    yield Unplayable(
        isinstance(training.adapter, Bottleneck) and not transformers.__version__.startswith("4.57"),
        "AdapterHub's library runs with transformers 4.57",
        "training.adapter",
    )
    yield Unplayable(
        isinstance(training.adapter, PromptLearning) and training.head != "causal-lm",
        "prompts are played before causal language models",
        "training.head",
    )
    lstm = isinstance(training.adapter, PTuning) and training.adapter.encoder == "lstm"
    yield Unplayable(lstm, "p-tuning is played with encoder: mlp", "training.adapter.encoder")
    turns = training.trainable if isinstance(training.trainable, Trainable) else None
    yield Unplayable(
        turns is not None and (turns.lisa is not None or turns.badam) and not (turns.layers or turns.names or turns.outside),
        "say which layers' turn it is (layers: 0-1)",
        "training.trainable",
    )


def _of_a_step(training: Training) -> Iterator[Unplayable]:
    """Optimizers, what comes before them, and losses of several models."""
    by = training.optimizer_implementation
    where = "training.optimizer_implementation"
    yield Unplayable(by in ("bitsandbytes", "torchao", "transformer-engine"), f"optimizers of {by} step on a GPU only", where)
    library = LIBRARIES.get(by or "")
    yield Unplayable(library is not None and not find_spec(library), f"pip install {by}", where)
    turns = isinstance(training.trainable, Trainable) and training.trainable.badam
    yield Unplayable(turns and not find_spec("badam"), "pip install badam", "training.trainable")
    at_once = training.optimizer_in_backward
    where = "training.optimizer_in_backward"
    for other, what in (
        (turns, "a part that is trained in turn"),
        (training.precision == "16-mixed" or training.precision.startswith("megatron"), training.precision),
        (training.gradient_clipping, "clipped gradients"),
        (not training.zero_grad_to_none, "gradients that are kept"),
        (training.gradient_accumulation_steps > 1, "several micro-steps"),
    ):
        yield Unplayable(at_once and other, f"a step within backward is not played with {what}", where)
    summed = training.precision.startswith("megatron")
    yield Unplayable(
        summed and (training.optimizer == "muon" or training.gradient_clipping),
        f"{training.precision} is played with one optimizer, whose gradients are not clipped",
        "training.precision",
    )
    objective = training.objective
    if objective is None:
        return
    where = "training.objective"
    yield Unplayable(objective.type == "ppo", "TRL 1.16, whose objectives are played, has no trainer for ppo", where)
    yield Unplayable(not find_spec("trl"), "objectives are played by TRL's own code: pip install trl==1.16.0", where)
    yield Unplayable(
        training.attention_mask != "none", f"the batches of {objective.type} are whole sequences", "training.attention_mask"
    )


def _of_checkpoints(job: Job) -> Iterator[Unplayable]:
    """What is recomputed, and what of it lies in the host's memory."""
    training, where = job.training, "training.activation_checkpointing"
    asked = training.activation_checkpointing
    form = CheckpointForm(operations="torchtitan") if asked == "selective" else asked
    in_parts, in_runs = False, form == "sqrt"
    if isinstance(form, CheckpointForm):
        yield Unplayable(form.budget is not None, "say what its solution recomputes, as an answer's job does", where)
        yield Unplayable(form.uniform is not None, "segments are played, not uniform runs", where)
        in_parts = bool(form.modules or form.operations or form.mix)
        in_runs = form.segments is not None
    yield Unplayable(
        training.reentrant_checkpointing and in_parts,
        "torch recomputes parts of a layer without re-entrance only",
        "training.reentrant_checkpointing",
    )
    offloaded, kind = job.offload.activations, isinstance(form, CheckpointForm) and form.modules is not None
    yield Unplayable(
        offloaded == "nvme" or (offloaded == "cpu" and (in_runs or kind)),
        "activations are offloaded to the host's memory, all of them or the inputs of layers",
        "offload.activations",
    )


def _of_ranks(job: Job) -> Iterator[Unplayable]:
    """How a model is spread, and what lies in the host's memory."""
    asked = job.parallelism
    strategy = asked.strategy or "none"
    where = "parallelism.strategy"
    yield Unplayable(strategy not in ("none", "fsdp1", *SHARDED), "only one process and FSDP are played", where)
    yield Unplayable(strategy == "none" and offloads(job), "torchao's optimizer needs a GPU", "offload")
    kept = job.offload.model_copy(update={"activations": "none"})
    yield Unplayable(
        offloads(job) and (strategy not in SHARDED or kept != CPU_OFFLOAD_POLICY),
        "fully_shard's policy is played, which offloads parameters, gradients and optimizer together",
        "offload",
    )
    yield Unplayable(strategy == "fsdp1" and asked.tensor > 1, "tensor parallelism is played beside fsdp2", where)
    yield Unplayable(
        asked.sequence is False and asked.tensor > 1,
        "tensor-parallel ranks share tokens, too",
        "parallelism.sequence",
    )
    for name, where_read in (
        ("reshard_after_forward", SHARDED),
        ("gradient_sync", SHARDED),
        ("backward_prefetch", ("fsdp1",)),
    ):
        yield Unplayable(
            not getattr(asked, name) and strategy not in where_read,
            f"{' and '.join(where_read)} alone can do without",
            f"parallelism.{name}",
        )
