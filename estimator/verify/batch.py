"""What a model is called with: a batch of its main input, and labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from estimator.contract.job import Job, Training
from estimator.contract.job.images import Images
from estimator.families.other import OtherSpec
from estimator.verify.known import know, know_all


def batch(job: Job, spec: Any, model: Any) -> dict[str, Any]:
    """What the model is called with: a batch of its main input, and labels."""
    training = job.training
    rows, tokens = training.micro_batch_size, training.sequence_length
    targets = (rows, training.target_length or tokens)
    made: dict[str, Any] = {}
    if training.head == "image-text-to-text" and not isinstance(spec, OtherSpec):
        return (_sensed if spec.hears else _seen)(training, spec, model, rows, tokens)
    if training.head == "audio-text-to-text":
        return (_heard if hasattr(spec, "spectrograms") else _sensed)(training, spec, model, rows, tokens)
    if model.main_input_name == "input_ids":
        made["input_ids"] = torch.randint(0, spec.vocab_size, (rows, tokens))
        if training.head == "sequence-classification" and model.config.is_encoder_decoder:
            _end(made["input_ids"], model.config.eos_token_id)
    elif model.main_input_name == "input_values":
        made["input_values"] = torch.rand(rows, training.audio.samples, dtype=model.dtype)  # type: ignore[union-attr]
    elif model.main_input_name == "pixel_values":
        made["pixel_values"] = torch.rand(rows, spec.num_channels, spec.image_size, spec.image_size, dtype=model.dtype)
    elif spec.listens:
        frames = spec.spectrogram(training.audio.samples)  # type: ignore[union-attr]
        made["input_features"] = torch.rand(rows, frames, spec.encoder_config.num_mel_bins, dtype=model.dtype)
        made["attention_mask"] = torch.arange(frames).expand(rows, -1) < frames - 1  # as its feature extractor makes it
    else:
        made["input_features"] = torch.rand(rows, spec.num_mel_bins, 2 * spec.max_source_positions, dtype=model.dtype)
    if training.attention_mask == "padding":
        made["attention_mask"] = torch.ones((rows, tokens), dtype=torch.int64)
    if training.attention_mask == "packed":
        made["position_ids"] = torch.randint(0, tokens, (rows, tokens))
    elif job.parallelism.tensor > 1:  # transformers would count those of this rank's tokens only
        made["position_ids"] = torch.arange(tokens)[None]
    if training.head in ("causal-lm", "masked-lm", "image-text-to-text"):  # of no family: texts alone
        made["labels"] = made["input_ids"]
    elif training.head in ("seq2seq-lm", "speech-seq2seq-lm"):
        made["labels"] = torch.randint(0, spec.vocab_size, targets)
    elif training.head == "ctc":  # which asks whether they are of its vocabulary
        made["labels"] = torch.ones(targets, dtype=torch.int64)
        know(made["labels"], [[1] * targets[1]] * rows)
    elif training.head == "contrastive":
        shape = (rows, spec.num_channels, spec.image_size, spec.image_size)
        made |= {"pixel_values": torch.rand(shape, dtype=model.dtype), "return_loss": True}
    else:
        made["labels"] = torch.randint(0, training.labels or 2, (rows,))
    return made


def _heard(training: Training, spec: Any, model: Any, rows: int, tokens: int) -> dict[str, Any]:
    """Texts that begin with the tokens of their clips, and these as the model's processor makes them, in float32."""
    heard, audio, tower = model.config.audio_token_id, training.audio, spec.audio_config
    ids = torch.randint(0, spec.language_model.vocab_size, (rows, tokens))
    ids.masked_fill_(ids == heard, 0)
    made = {"input_ids": ids, "labels": ids}
    if audio is None:
        return made
    ids[:, : audio.count * spec.audio_tokens(audio)].fill_(heard)
    shape = (rows * audio.count * spec.spectrograms(audio), tower.num_mel_bins, 2 * tower.max_source_positions)
    return made | {"input_features": torch.rand(shape, dtype=torch.float32)}


def _sensed(training: Training, spec: Any, model: Any, rows: int, tokens: int) -> dict[str, Any]:
    """Texts that begin with the tokens of their clips, then of their images; spectrograms of as many frames as all have, and
    which of these are of a clip; patches. Numbers of fake tensors are known of what lengths are computed from."""
    ids, audio, images = torch.randint(0, spec.language_model.vocab_size, (rows, tokens)), training.audio, training.images
    made: dict[str, Any] = {"input_ids": ids, "labels": ids}
    places: list[int] = []
    if audio is not None:
        places += [model.config.audio_token_id] * audio.count * spec.audio_tokens(audio)
        clips, tower = rows * audio.count, spec.audio_config
        most = spec.most_frames(audio)
        dtype = model.dtype if spec.pixels_as_weights else torch.float32
        made["input_features"] = torch.rand(clips, tower.num_mel_bins, most, dtype=dtype)
        mask, frames = torch.zeros(clips, most, dtype=torch.int32), tower.frames(audio, most)
        made[spec.mask_of_sound] = mask
        know(mask, [[1] * frames + [0] * (most - frames)] * clips)
    if images is not None:
        seen = _in_patches(ids, model, spec, images, spec.grid(images))
        made |= {name: seen[name] for name in ("pixel_values", "image_grid_thw")}
        places += [model.config.image_token_id] * images.count * spec.image_tokens(images)
    know(ids, [places + [0] * (tokens - len(places))] * rows)
    return made


def _seen(training: Training, spec: Any, model: Any, rows: int, tokens: int) -> dict[str, Any]:
    """Texts that begin with their images, and these as the model's processor makes them, in float32."""
    picture = model.config.image_token_id
    ids = torch.randint(0, spec.language_model.vocab_size, (rows, tokens))
    ids.masked_fill_(ids == picture, 0)
    made = {"input_ids": ids, "labels": ids}
    images = training.images
    if images is None:
        return made
    tower, count = spec.vision_config, images.count * spec.image_tokens(images)
    if (grid := spec.grid(images)) is not None:
        return made | _in_patches(ids, model, spec, images, grid)
    if (grids := spec.grids(images)) is not None:
        return made | _in_filled_tiles(ids, picture, spec, grids * (rows * images.count), count)
    tiles = spec.tiles(images)
    if tiles is not None and spec.tiles_by_text:
        return made | _in_tiles(ids, picture, spec, images.count * tiles, count)
    if spec.beside_texts:
        return made | _beside(ids, tower, images.count)
    if (size := spec.sized(images)) is not None:
        return made | _of_any_size(ids, picture, tower, count, (rows * images.count, *size))
    ids[:, :count].fill_(picture)
    if tiles is not None and spec.tiles_by_image:
        made |= _in_tiles_of_images(rows * images.count, tiles, tower, images)
        if spec.counts_images:
            made["batch_num_images"] = torch.zeros(rows, dtype=torch.int64)
            know(made["batch_num_images"], [images.count] * rows)
        return made
    if spec.patches_images:
        each = _patches(spec, images)
        made["image_position_ids"] = each.expand(rows * images.count, -1, -1).contiguous()
        made["pixel_values"] = torch.rand(rows * images.count, len(each), tower.patch_numbers)
        made["mm_token_type_ids"] = (ids == picture).long()
        return made
    shape = (rows * images.count * (tiles or spec.squares(images)), tower.num_channels, tower.image_size, tower.image_size)
    made["pixel_values"] = torch.rand(shape, dtype=torch.bfloat16 if spec.narrow_pixels else torch.float32)
    if spec.images_by_mask:
        made["token_type_ids"] = (ids == picture).long()
    return made


def _in_patches(ids: torch.Tensor, model: Any, spec: Any, images: Images, grid: tuple[int, int]) -> dict[str, Any]:
    """The patches of images, with rows and columns of each; and texts that begin with images, a token after each of them where
    the model tells them apart by that, and is told which tokens are of them.

    Numbers of fake tensors are known of what models compute positions and lengths from.
    """
    (rows, tokens), each, apart = ids.shape, spec.image_tokens(images), int(spec.tells_images_apart)
    total, picture = rows * images.count, model.config.image_token_id
    places = [i // (each + apart) < images.count and i % (each + apart) < each for i in range(tokens)]
    grids = torch.zeros(total, 3, dtype=torch.int64)
    know(ids, [[picture if place else 0 for place in places]] * rows)
    know(grids, [[1, *grid]] * total)
    dtype = model.dtype if spec.pixels_as_weights else torch.float32
    pixels = torch.rand(total * grid[0] * grid[1], *spec.vision_config.patch_shape, dtype=dtype)
    made = {"pixel_values": pixels, "image_grid_thw": grids}
    if apart:
        made["mm_token_type_ids"] = torch.zeros(rows, tokens, dtype=torch.int64)
        know(made["mm_token_type_ids"], [[int(place) for place in places]] * rows)
    return made


def _in_filled_tiles(ids: torch.Tensor, picture: int, spec: Any, grids: Sequence[tuple[int, int]], count: int) -> dict[str, Any]:
    """The patches of tiles, filled up to so many, with rows and columns of each, and texts that begin with `count` tokens of
    images."""
    (rows, tokens), most = ids.shape, spec.most_patches
    shapes = torch.zeros(len(grids), 2, dtype=torch.int64)
    mask = torch.zeros(len(grids), most, dtype=torch.int32)
    know(ids, [[picture] * count + [0] * (tokens - count)] * rows)
    know(shapes, grids)
    know(mask, [[1] * (high * wide) + [0] * (most - high * wide) for high, wide in grids])
    pixels = torch.rand(len(grids), most, spec.vision_config.patch_numbers)
    return {"pixel_values": pixels, "spatial_shapes": shapes, "pixel_attention_mask": mask}


def _in_tiles(ids: torch.Tensor, picture: int, spec: Any, tiles: int, count: int) -> dict[str, Any]:
    """So many tiles for each text, of which all pixels are there, and texts that begin with `count` tokens of images."""
    tower, (rows, tokens) = spec.vision_config, ids.shape
    pixels = torch.rand(rows, tiles, tower.num_channels, tower.image_size, tower.image_size)
    mask = torch.ones(rows, tiles, tower.image_size, tower.image_size, dtype=torch.int64)
    know(ids, [[picture] * count + [0] * (tokens - count)] * rows)
    know_all(pixels, 1)
    return {"pixel_values": pixels, "pixel_attention_mask": mask}


def _beside(ids: torch.Tensor, tower: Any, count: int) -> dict[str, Any]:
    """So many images of all tiles for each text, every token of which sees all of them."""
    (rows, tokens), tiles = ids.shape, tower.max_num_tiles
    return {
        "pixel_values": torch.rand(rows, count, tiles, tower.num_channels, tower.image_size, tower.image_size),
        "aspect_ratio_ids": torch.ones(rows, count, dtype=torch.int64),
        "aspect_ratio_mask": torch.ones(rows, count, tiles, dtype=torch.int64),
        "cross_attention_mask": torch.ones(rows, tokens, count, tiles, dtype=torch.int64),
    }


def _of_any_size(ids: torch.Tensor, picture: int, tower: Any, count: int, shape: tuple[int, int, int]) -> dict[str, Any]:
    """So many images of one height and width, which are told of each, and texts that begin with `count` tokens of images."""
    (rows, tokens), (total, *size) = ids.shape, shape
    sizes = torch.zeros(total, 2, dtype=torch.int64)
    know(ids, [[picture] * count + [0] * (tokens - count)] * rows)
    know(sizes, [size] * total)
    return {"pixel_values": torch.rand(total, tower.num_channels, *size), "image_sizes": sizes}


def _in_tiles_of_images(total: int, tiles: int, tower: Any, images: Images) -> dict[str, Any]:
    """So many tiles of each image, and how large they were, which numbers are known of."""
    sizes = torch.zeros(total, 2, dtype=torch.int64)
    know(sizes, [[images.height, images.width]] * total)
    pixels = torch.rand(total, tiles, tower.num_channels, tower.image_size, tower.image_size)
    return {"pixel_values": pixels, "image_sizes": sizes}


def _patches(spec: Any, images: Images) -> torch.Tensor:
    """Columns and rows of an image's patches, [patches, 2], with -1 where it is filled up."""
    columns, rows = (spec.vision_config.pooling_kernel_size * side for side in spec.image_grid(images.width, images.height))
    number = torch.arange(spec.most_patches)
    places = torch.stack((number % columns, number // columns), -1)
    return torch.where((number < columns * rows)[:, None], places, -1)


def _end(ids: torch.Tensor, token: int) -> None:
    """End each sequence, and only there, by this token, which is what an encoder–decoder classifies by."""
    ids.masked_fill_(ids == token, 0)
    ids[:, -1].fill_(token)
