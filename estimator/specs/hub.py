"""A config.json from the Hugging Face hub, through `huggingface_hub` (extra `hub`): its cache first, and its offline mode."""

from __future__ import annotations

from pathlib import Path

TIMEOUT_S = 10.0
"""Seconds that the hub has to say what it has."""
CONFIG = "config.json"


class Unreachable(Exception):
    """Why there is nothing from the hub, as the end of a sentence."""


def fetched(name: str) -> Path:
    """The path of a hub model's config.json in the hub's cache, where it is put if it is not there. Raises `Unreachable`."""
    try:
        import huggingface_hub as hub
        from huggingface_hub import errors
    except ImportError:
        raise Unreachable("the Hugging Face hub is not asked without huggingface_hub: pip install 'willitfit[hub]'") from None
    cached = hub.try_to_load_from_cache(name, CONFIG)
    if isinstance(cached, str):
        return Path(cached)
    try:
        hub.get_hf_file_metadata(hub.hf_hub_url(name, CONFIG), timeout=TIMEOUT_S)  # a download would try five times
        return Path(hub.hf_hub_download(name, CONFIG, etag_timeout=TIMEOUT_S))
    except errors.GatedRepoError:
        raise Unreachable(f"the hub shows {name} only to those whom its owner let in: log in with `hf auth login`") from None
    except errors.RepositoryNotFoundError:
        raise Unreachable("the Hugging Face hub has none of that name either, or it is private") from None
    except errors.EntryNotFoundError:
        raise Unreachable(f"the hub's {name} has no config.json") from None
    except errors.HFValidationError:
        raise Unreachable("it is no name that the Hugging Face hub could have") from None
    except errors.OfflineModeIsEnabled:
        raise Unreachable("the Hugging Face hub is not asked offline (HF_HUB_OFFLINE), and its cache does not have it") from None
    except Exception as error:  # whatever the client's transport raises
        raise Unreachable(f"the Hugging Face hub cannot be reached ({type(error).__name__})") from None
