"""What the headline's rows take for granted, in sentences."""

from __future__ import annotations

from estimator.families.spec import ModelSpec
from estimator.hardware.capacity import Capacity
from estimator.pipeline.defaults import CLIP
from estimator.pipeline.remedies import EXPERTS
from estimator.planner.by_engine import engine_of
from estimator.planner.ways import Platform, Way
from estimator.serving.vllm.engine import VLLM

STRATEGIES = {
    "ddp": "DDP (adapters)",
    "fsdp2": "FSDP2",
    "hsdp": "HSDP (a group in each node)",
    "zero3": "ZeRO-3",
    "zero2": "ZeRO-2",
    "fsdp1": "FSDP1",
    "tensor": "tensor parallelism (one sequence for a node)",
}
"""What a row may be spread by, in the order in which it is tried, in words."""


def taken_for_granted(
    asked: list[Way], serving: dict[str, int], training: dict[str, int], spec: ModelSpec, in_ram: bool
) -> list[str]:
    """What the rows take for granted. `in_ram`: there is no GPU."""
    engines = list(dict.fromkeys(filter(None, map(engine_of, asked))))
    pooled = next((engine for engine in engines if not engine.reads_gguf), None)
    local = next((engine for engine in engines if engine.reads_gguf), None)
    trained = [way.settings for way in asked if way.part == "training"]
    lora = next((each["adapter"] for each in trained if "adapter" in each), None)
    half = "fp16" if any(each["precision"].startswith("16") for each in trained) else "bf16"
    scaled = ", fp16 arithmetic (autocast) and a GradScaler" if half == "fp16" else ""
    but = f" but {', '.join(lora['exclude'])}, on which PEFT puts none" if lora and "exclude" in lora else ""
    pure = "; pure bf16: all in bf16" if half == "bf16" else ""
    requests = _so_many(serving["concurrency"], serving["context"])
    sequences = training["micro_batch_size"]
    batch = _so_many(sequences, training["sequence_length"])
    if spec.listens:
        clips = "one clip" if sequences == 1 else f"{sequences} clips"
        batch = f"{clips} of {CLIP.seconds:g} s"
    said = []
    if pooled:
        share = "92 % of the card" if pooled is VLLM else "the share of the card that it takes unasked"
        said.append(
            f"serving: {pooled.title}, {requests}, {share}; fp8 with a scale for each tensor, 4-bit as an AWQ checkpoint stores "
            "weights, in groups of 128"
        )
    if local:
        lies = "all layers in RAM" if in_ram else "all layers on the GPUs of a node"
        said.append(f"serving: {local.title}, {requests}, {lies}, cache in fp16")
    if trained:
        layers = "every layer recomputed" if spec.recomputed else "no layer recomputed"
        said.append(f"training: transformers on torch, {batch} per GPU, {spec.attentions[0]}, {layers}, AdamW (fused)")
    if lora:
        on = "all linear layers" if isinstance(lora["targets"], str) else ", ".join(lora["targets"])
        said.append(
            f"LoRA: rank {lora['rank']} on {on}{but}, {lora['dtype']}{scaled}; mixed: float32 weights, {half} arithmetic{pure}"
        )
    if spec.has_experts and any("quantization" in each for each in trained):
        said.append(
            "QLoRA: experts stay as they are: transformers 5 holds a layer's as one tensor, which bitsandbytes leaves whole; "
            f"{EXPERTS} does, as axolotl can"
        )
    if trained:
        tries = {strategy for way in asked for strategy in way.strategies}
        names = ", ".join(name for strategy, name in STRATEGIES.items() if strategy in tries)
        said.append(f"training on several GPUs: the first that fits of {names}")
    if pooled:
        said.append(
            "serving on several GPUs: each layer split over those of a node (tensor parallel), "
            "layers over nodes (pipeline) where one is too small"
        )
        said.append(f"per GPU, serving: what {pooled.title}'s share of the card must hold; the CUDA context lies beside it")
    if in_ram:
        return [
            *said,
            "needed: weights, cache and compute buffers; not counted: the program itself, and what its kernels work in",
        ]
    return [
        *said,
        "per GPU: what nvidia-smi would show, cached blocks, CUDA context and libraries included; tight: fragmentation decides",
        "not counted: workspaces inside kernels other than attention's",
    ]


def _so_many(count: int, tokens: int) -> str:
    return f"one sequence of {tokens} tokens" if count == 1 else f"{count} sequences of {tokens} tokens each"


def seen(spec: ModelSpec) -> str:
    """What is said of a model that sees images or hears: how it is trained here, or what to ask about instead."""
    if not ((spec.sees or spec.hears) and spec.forward_modelled):
        return spec.instead
    does = " and ".join(["sees images"] * spec.sees + ["hears"] * spec.hears)
    return f"training: on texts alone, with what {does} in memory"


def of_platform(card: Capacity, kind: Platform) -> str:
    """What is to be known of the kind of card, or of a machine without one."""
    name = "a CPU" if card.ram else card.accelerator.name if card.accelerator else ""
    return f"{name}: {kind.says}" if name and kind.says else ""
