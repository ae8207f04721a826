"""What a training job takes of one node's own memory in each phase, by what it is.

Not counted: files that are mapped (weights that need no conversion), which the operating system drops when it needs the room.
"""

from __future__ import annotations

from dataclasses import dataclass

from estimator.contract.job import Job
from estimator.families.build import Builder
from estimator.host.contents import Content, contents
from estimator.host.states import states_bytes
from estimator.parallel.strategies import ZERO3, strategy_of
from estimator.simulation.simulation import Simulation
from estimator.tape.host import pinned_bytes
from estimator.tape.offload import host_bytes
from estimator.tape.replay import Replay
from estimator.tape.tape import COMPONENTS, Tape

IDS = 3
"""Numbers of 8 bytes per token in a batch: its id, its mask, its label."""

Parts = dict[str, int]


@dataclass(frozen=True, slots=True)
class Offloaded:
    """What one rank keeps in the host's memory for its tensors: while it is set up, between steps, at most in a step."""

    setting_up_bytes: int = 0
    resident_bytes: int = 0
    peak_bytes: int = 0
    components: tuple[tuple[str, int], ...] = ()
    """Bytes at the peak of a step, by what they are."""


def offloaded(tape: Tape | None, simulated: Replay | None) -> Offloaded:
    """Read off the host's tape."""
    if tape is None or simulated is None:
        return Offloaded()
    steps = [phase for phase in simulated.phases if phase.name != "load"]
    load = max(phase.peak_bytes for phase in simulated.phases if phase.name == "load")
    peak = max(phase.peak_bytes for phase in steps)
    parts = dict.fromkeys(COMPONENTS, 0)
    for i, count in enumerate(simulated.alive):
        parts[tape.components[i]] += count * tape.sizes[i]
    rest = peak - sum(parts.values())  # what is alive at the highest moment of all, which may be while it is set up
    known = tuple((name, size) for name, size in parts.items() if size) if not rest else (("offloaded", peak),)
    return Offloaded(load, steps[0].start_bytes, peak, known)


def phases(job: Job, simulation: Simulation, kept: Offloaded, process: int, worker: int) -> dict[str, Parts]:
    """By phase and part, bytes per node. `process` and `worker`: what a rank and a worker of its data loader take."""
    ranks, host = job.hardware.gpus, job.host
    model, adapter = contents(simulation)
    always = {"processes": ranks * process}
    load = {**always, "loaded_weights": _loaded(job, model), "offloaded": ranks * kept.setting_up_bytes}
    running = {**always, "data_loader": ranks * _data_loader(job, worker)}
    train = running | {name: ranks * size for name, size in kept.components}
    train["activations"] = train.get("activations", 0) + ranks * host_bytes(simulation.build.tape)
    found = {"load": load, "train": train}
    if host.save != "none":  # fsdp2's pinned gradients are freed by then, but torch keeps the blocks
        held = kept.peak_bytes if strategy_of(job).dtensors else kept.resident_bytes
        found["save"] = {**running, "offloaded": ranks * held, "saved": _gathered(job, simulation.build, model, adapter)}
    if host.merge:
        widest = max(t.numel for t in model.tensors if len(t.shape) > 1)
        found["merge"] = {"processes": process, "loaded_weights": 2 * model.numel, "merged_layer": 8 * widest}
    return {phase: {name: size for name, size in parts.items() if size} for phase, parts in found.items()}


def _loaded(job: Job, model: Content) -> int:
    """Copies of the weights before they are on the GPUs.

    transformers 5 keeps weights mapped that need no conversion; of another type than the file's bfloat16 they are a copy
    (core_model_loading.py, `_materialize_copy`), on every rank: of FSDP's ranks it spares none, only ZeRO-3's (5.23,
    modeling_utils.py, `_load_pretrained_model`). Releases before it make the model first, in memory (`from_pretrained`).
    """
    copies = {"each": job.hardware.gpus, "first": 1, "device": 0}[job.host.loading or "each"]
    if model.half and job.training.transformers_release == "5":
        return 0
    return copies * model.nbytes


def _data_loader(job: Job, worker: int) -> int:
    """Bytes of one rank's data loader: its workers, and the batches that are ready, one of them in pinned memory."""
    host, training = job.host, job.training
    batch = IDS * 8 * training.micro_batch_size * training.sequence_length
    ready = host.data_loader_workers * host.prefetch_factor
    return host.data_loader_workers * worker + ready * batch + host.pin_memory * pinned_bytes(batch)


def _gathered(job: Job, build: Builder, model: Content, adapter: Content) -> int:
    """What the first rank has in memory of what it saves.

    The tensors of a file go to the host together (safetensors/torch.py, `_flatten_as_ptr`); sharded models are gathered there
    whole (transformers, `gather_full_state_dict`; DeepSpeed, `_zero3_consolidated_16bit_state_dict`; fsdp1's FULL_STATE_DICT,
    `offload_to_cpu` and `rank0_only` in accelerate/utils/fsdp_utils.py; of DTensors, `full_state_dict` and `cpu_offload` in
    torch/distributed/checkpoint/state_dict.py), as is the optimizer, except zero3's. fsdp1's adapter is picked from the whole
    (`get_peft_model_state_dict`). Parts are saved tensor by tensor (torch.save, torch.distributed.checkpoint).
    """
    strategy = strategy_of(job)
    ranks = max(1, job.parallelism.data or 1) * job.parallelism.tensor
    if job.host.save == "adapter":
        return adapter.nbytes + (model.nbytes if strategy.flattens else 0)
    if job.host.save == "sharded":
        return job.hardware.gpus * max(t.nbytes for t in model.tensors) // ranks
    if strategy.gathers or job.parallelism.tensor > 1:
        optimizer = states_bytes(job, build) if job.host.save == "checkpoint" and strategy is not ZERO3 else 0
        return model.nbytes + optimizer
    return model.largest_file_bytes
