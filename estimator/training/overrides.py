"""Parts of a precision recipe that a job sets otherwise: what the frameworks let one choose, and nothing else.

FSDP's policy has the type that gradients are reduced in, and shards are of whatever type the model was loaded in
(torch/distributed/fsdp/_fully_shard/_fsdp_api.py, `MixedPrecisionPolicy`); Megatron's buffer of gradients is float32 or of the
weights' type (`--accumulate-allreduce-grads-in-fp32`, `--grad-reduce-in-bf16`).
"""

from __future__ import annotations

from dataclasses import replace

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Dtypes, Job
from estimator.parallel.strategies import Strategy
from estimator.parallel.topology import Topology
from estimator.tape import dtypes
from estimator.tape.dtypes import BY_NAME, DType
from estimator.training.recipes import Recipe, recipe


def parts(recipe: Recipe, strategy: Strategy) -> dict[str, DType | None]:
    """The types of what is kept for each trained parameter; None where there is no such thing."""
    copied = recipe.summed is not None or (strategy.stage > 0 and recipe.weights is not dtypes.float32)
    return {
        "weights": recipe.weights,
        "gradients": recipe.summed or recipe.reduced or recipe.weights,
        "master_weights": dtypes.float32 if copied else None,
        "optimizer_states": dtypes.float32 if copied else recipe.weights,
    }


def overridden(recipe: Recipe, asked: Dtypes | None, precision: str, strategy: Strategy) -> Recipe:
    """The recipe with the parts that the job sets. Raises `InvalidJob` for what no framework has."""
    if asked is None:
        return recipe
    wanted = {name: BY_NAME[value] for name, value in asked if value is not None}
    changed = recipe
    if recipe.gathered and strategy.mixed == "policy":
        changed = replace(recipe, weights=wanted.get("weights", recipe.weights), reduced=wanted.get("gradients", recipe.reduced))
    elif recipe.summed and wanted.get("gradients") in (dtypes.float32, recipe.weights):
        changed = replace(recipe, summed=wanted["gradients"])
    for name, has in parts(changed, strategy).items():
        if name in wanted and wanted[name] is not has:
            known = f"are {has.name}" if has else "do not exist"
            raise Contradiction(
                f"the {name.replace('_', ' ')} of {precision} under {strategy} {known}; leave it out, or name another precision",
                f"training.dtypes.{name}",
            )
    return changed


def precision_of(job: Job, topology: Topology) -> Recipe:
    """The recipe that the job's precision names; `NotModelled` if there is none for its strategy."""
    alone = topology.tensor > 1 and topology.strategy.alone  # where torchtitan has neither a policy nor autocast
    implementation = "transformers" if alone else job.training.implementation
    found = recipe(job.training.precision, topology.strategy, implementation)
    if found is None:
        raise NotModelled(
            f"{job.training.precision} under {topology.strategy} is not modelled yet; use bf16-mixed, or 32-true",
            "training.precision",
        )
    found = overridden(found, job.training.dtypes, job.training.precision, topology.strategy)
    if job.training.tf32 and found.compute is not dtypes.float32:
        raise Contradiction(f"matrix products run in {found.compute.name}; leave it out, or write 32-true", "training.tf32")
    return found
