"""A node's own memory by phase, and the sizes of checkpoints: against files that were really written."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import peft
import pytest
import safetensors.torch
import torch
import transformers

from estimator import Answer, InvalidJob, estimate
from estimator.contract.units import GIB
from estimator.host.disk import model_bytes, safetensors_bytes, shards
from estimator.host.weights import Saved
from estimator.tape.dtypes import BY_NAME

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 500,
}


def saved(tensors: dict[str, torch.Tensor]) -> list[Saved]:
    return [Saved(name, BY_NAME[str(t.dtype).removeprefix("torch.")], tuple(t.shape)) for name, t in tensors.items()]


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_a_safetensors_file_is_as_large_as_its_header_and_tensors(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    tensors = {
        "b.weight": torch.zeros(3, 5, dtype=torch.bfloat16),
        "a": torch.zeros((), dtype=torch.float32),
        "größe": torch.zeros(7, dtype=torch.uint8),
        'with "quotes"': torch.zeros(2, 2, 2, dtype=torch.float16),
        "ids": torch.zeros(9, dtype=torch.int64),
    }
    file = tmp_path / "a.safetensors"
    safetensors.torch.save_file(tensors, file, metadata)
    assert safetensors_bytes(saved(tensors), metadata) == file.stat().st_size


def test_a_model_and_its_adapter_are_as_large_as_their_files(tmp_path: Path) -> None:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).bfloat16()  # type: ignore[arg-type]
    model.save_pretrained(tmp_path)
    assert model_bytes(saved(model.state_dict())) == (tmp_path / "model.safetensors").stat().st_size
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear"), autocast_adapter_dtype=False)
    adapted.save_pretrained(str(tmp_path))
    written = (tmp_path / "adapter_model.safetensors").stat().st_size
    assert model_bytes(saved(peft.get_peft_model_state_dict(adapted))) == written
    job = {"model": {"model_type": "llama", **SMALL}, "training": {"precision": "bf16-true", "adapter": {"rank": 4}}}
    host = estimate(job).host
    assert host is not None
    assert abs(host.disk_bytes["adapter"] - written) <= 64 * 2 * 7 * 3  # only the names differ


def test_shards_are_filled_in_order(tmp_path: Path) -> None:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).bfloat16()  # type: ignore[arg-type]
    model.save_pretrained(tmp_path, max_shard_size=40_000)
    files = shards(saved(model.state_dict()), 40_000)
    written = sorted(file.stat().st_size for file in tmp_path.glob("*.safetensors"))
    assert sorted(safetensors_bytes(file, {"format": "pt"}) for file in files) == written


def answer(**job: Any) -> Answer:
    return estimate({"model": "llama-3.2-1b", "hardware": {"gpu": "h200", "gpus": 4}, **job})


def phase(name: str, **job: Any) -> int:
    return answer(**job).memory.host_bytes[name]


PARAMETERS = 1_235_814_400


@pytest.mark.parametrize(
    ("host", "copies"), [({"loading": "each"}, 4), ({"loading": "first"}, 1), ({"loading": "device"}, 0), ({}, 4)]
)
def test_weights_of_another_type_are_copied_by_each_that_loads_them(host: dict[str, Any], copies: int) -> None:
    """float32 weights, as autocast wants them, from a file of bfloat16; weights of its own type stay mapped."""
    mixed, half = (phase("load", parallelism={"strategy": "ddp"}, training={"precision": p}, host=host) for p in PRECISIONS)
    assert mixed - half == copies * 4 * PARAMETERS


PRECISIONS = ("bf16-mixed", "bf16-true")


def test_older_releases_make_the_model_in_memory() -> None:
    old = {"precision": "bf16-true", "transformers_release": "4.48"}
    new = {"precision": "bf16-true"}
    grown = [phase("load", parallelism={"strategy": "ddp"}, training=training) for training in (new, old)]
    assert grown[1] - grown[0] == 4 * 2 * PARAMETERS


def test_sharded_models_are_gathered_to_be_saved() -> None:
    plain, model, checkpoint = (phase("save" if s != "none" else "train", host={"save": s}) for s in SAVES)
    assert model - plain == pytest.approx(4 * PARAMETERS, rel=1e-3)
    assert checkpoint - model == 8 * PARAMETERS


SAVES = ("none", "model", "checkpoint")


FSDP1 = {"strategy": "fsdp1"}


def _loaded_by(rank: int, port: int, path: str) -> float:
    """What one of two ranks finds in its parameters, loaded as `accelerate launch` has FSDP's ranks load them."""
    fsdp = {"ACCELERATE_USE_FSDP": "true", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", **fsdp}
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    return float(sum(parameter.detach().abs().sum() for parameter in model.parameters()))


def test_transformers_5_loads_on_every_rank_of_fsdp(tmp_path: Path) -> None:
    """transformers as judge of the default: both ranks have the whole model, with its values, in float32."""
    sizes: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 64, "num_attention_heads": 2}
    model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, vocab_size=100))
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        first, second = pool.map(partial(_loaded_by, port=port, path=str(tmp_path)), range(2))
    assert first == second > 0


@pytest.mark.parametrize("strategy", ["fsdp1", "fsdp2"])
def test_ranks_of_fsdp_load_as_replicas_do(strategy: str) -> None:
    mixed, half = (phase("load", parallelism={"strategy": strategy}, training={"precision": p}) for p in PRECISIONS)
    assert mixed - half == 4 * 4 * PARAMETERS


def test_under_fsdp1_the_first_rank_gathers() -> None:
    """As under fsdp2: a full state dict that is offloaded on the first rank."""
    for save in SAVES:
        assert phase("save" if save != "none" else "train", parallelism=FSDP1, host={"save": save}) == phase(
            "save" if save != "none" else "train", host={"save": save}
        )


def test_fsdp1_gathers_the_model_to_save_its_adapter() -> None:
    training = {"precision": "bf16-true", "adapter": {}}
    whole, alone = (phase("save", parallelism={"strategy": s}, training=training) for s in ("fsdp1", "fsdp2"))
    assert whole - alone == 2 * PARAMETERS


STATES = [
    # optimizer, its implementation, precision, strategy, bytes per parameter on disk
    ("adamw", "fused", "bf16-true", "fsdp2", 4),
    ("adamw", "fused", "bf16-mixed", "fsdp1", 8),
    ("adamw", "bitsandbytes", "bf16-true", "ddp", 8),
    ("adamw", "fused", "megatron-bf16", "ddp", 12),
    ("adamw", "fused", "bf16-mixed", "zero2", 12),
    ("sgd", "foreach", "bf16-true", "fsdp2", 0),
    ("lion", "bitsandbytes", "bf16-true", "ddp", 4),
    ("adagrad", "foreach", "bf16-true", "ddp", 2),
    ("paged-adamw", "bitsandbytes", "bf16-true", "ddp", 8),
]


@pytest.mark.parametrize(("optimizer", "by", "precision", "strategy", "each"), STATES)
def test_states_on_disk(optimizer: str, by: str, precision: str, strategy: str, each: int) -> None:
    training = {"optimizer": optimizer, "optimizer_implementation": by, "precision": precision}
    host = answer(training=training, parallelism={"strategy": strategy}, host={"save": "checkpoint"}).host
    assert host is not None
    assert host.disk_bytes["optimizer"] == pytest.approx(each * PARAMETERS, rel=1e-3)


def test_workers_and_their_batches_are_counted() -> None:
    none, some = (phase("train", host={"data_loader_workers": n}) for n in (0, 6))
    batch = 3 * 8 * 2048
    assert some - none == 4 * 6 * (60 * 2**20 + 2 * batch)


def test_merging_takes_the_model_in_half_precision_and_one_layer() -> None:
    found = answer(training={"adapter": {}}, host={"merge": True}).host
    assert found is not None
    assert found.phases["merge"] - found.phases["load"] // 4 < 2 * PARAMETERS + 8 * 128256 * 2048


def test_a_host_that_is_too_small_does_not_fit() -> None:
    small, large = (answer(host={"memory": memory}) for memory in ("10GB", "2TB"))
    assert (small.fits, large.fits) == (False, True)
    assert "of its own memory" in small.reason
    assert not small.suggestions


def test_the_scheduler_is_asked_for_the_high_end() -> None:
    host = answer().host
    assert host is not None
    assert sum(host.at_peak.values()) == host.peak_bytes == max(host.phases.values())
    asked = int(host.scheduler.removeprefix("--mem=").removesuffix("G"))
    assert (asked - 1) * GIB < host.range_bytes[1] <= asked * GIB


MEGATRON = {"implementation": "megatron", "activation_checkpointing": "none", "sequence_length": 1024}


def megatron(parallelism: dict[str, Any] | None = None, **host: Any) -> Any:
    job = {"model": "llama-3.2-1b", "hardware": {"gpu": "h200", "gpus": 8}, "parallelism": parallelism or {}}
    found = estimate({**job, "training": MEGATRON, "host": host}).host
    assert found is not None
    return found


def test_megatron_copies_all_that_it_saves_to_pinned_memory() -> None:
    """Its ranks together write 14 bytes per parameter, each tensor in a power of two, up to twice as large."""
    model, whole, none = (megatron(save=save).phases for save in ("model", "sharded", "none"))
    assert "save" not in none
    for phases, each in ((model, 2), (whole, 14)):
        saved = phases["save"] - phases["train"]
        assert each * PARAMETERS <= saved <= 2 * each * PARAMETERS
    assert megatron().phases == whole  # the default


@pytest.mark.parametrize("parallelism", [{}, {"tensor": 2}, {"tensor": 2, "pipeline": 2}, {"strategy": "ddp"}])
def test_megatrons_checkpoint_is_as_large_however_it_is_spread(parallelism: dict[str, Any]) -> None:
    found = megatron(parallelism).disk_bytes
    assert found["model"] == pytest.approx(2 * PARAMETERS, rel=1e-3)
    assert found["optimizer"] == pytest.approx(12 * PARAMETERS, rel=1e-3)


def test_only_some_of_megatrons_ranks_load_data() -> None:
    """The masks that come with sequences of 1,024 tokens: nine bytes per pair of tokens while they are made, one kept."""
    batch = 28 * 1024 + 1024**2
    each = 9 * 1024**2 + 2**21  # pinned, in a power of two
    processes = 8 * 1800 * 2**20
    alone, shared = (megatron(p).phases["train"] - processes for p in ({}, {"tensor": 4}))
    assert (alone, shared) == (8 * each, 2 * each)
    some = megatron(data_loader_workers=3, pin_memory=False).phases["train"] - processes
    assert some == 8 * 3 * (60 * 2**20 + 9 * 1024**2 + 2 * batch)


def test_megatrons_ranks_read_a_checkpoint_tensor_by_tensor() -> None:
    """The embedding's in bf16, or a rank's part of its states in float32; with one rank those are larger."""
    embedding, processes = 128256 * 2048, 8 * 1800 * 2**20
    assert megatron().phases["load"] - processes == 8 * 2 * embedding
    assert megatron({"tensor": 8}).phases["load"] - processes == 4 * 129024 * 2048  # padded to a multiple of 8 * 128 rows


def test_megatron_refuses_what_it_does_not_do() -> None:
    with pytest.raises(InvalidJob, match="gathers no checkpoint"):
        megatron(save="checkpoint")
    with pytest.raises(InvalidJob, match="on its GPU"):
        megatron(loading="first")


def test_tensor_parallel_ranks_gather_the_whole_model_to_save_it() -> None:
    job = {"parallelism": {"tensor": 4}, "model": "llama-3-8b", "training": {"precision": "bf16-true", "sequence_length": 256}}
    model, checkpoint, none = (answer(**job, host={"save": save}) for save in ("model", "checkpoint", "none"))
    whole = 2 * 8_030_261_248
    saved = [found.memory.host_bytes["save"] - none.memory.host_bytes["train"] for found in (model, checkpoint)]
    assert saved == [whole, 3 * whole]
    assert model.host is not None
    assert model.host.disk_bytes["model"] == pytest.approx(whole, rel=1e-5)


def test_serving_has_no_answer_about_the_host() -> None:
    found = estimate({"model": "llama-3.2-1b", "task": "serve"})
    assert found.host is None
    assert "the host's memory" in found.not_modelled
