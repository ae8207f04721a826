"""docker compose's files: the first service that starts a command that is known, or that asks for GPUs.

The Compose specification of 2026-11: `services`, their `command`, `entrypoint`, `environment`, devices that `deploy` reserves,
and `${NAME:-default}` in any of them.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from estimator.contract.errors import InvalidValue, NoJob
from estimator.contract.job import Hardware
from estimator.exchange.cards import mapping, number
from estimator.exchange.found import LeftOut
from estimator.exchange.platforms import Inside, assigned

SERVERS = ("vllm", "sglang", "llama.cpp", "text-generation-inference", "tensorrt", "trtllm")
"""Words of the images, or of the commands, of services that serve or train a model."""


def compose(given: Mapping[str, Any]) -> Inside:
    """What a file of services starts. Raises `NoJob` where none has a command."""
    services = {str(name): mapping(one) for name, one in mapping(given.get("services")).items()}
    found = [(name, one) for name, one in services.items() if _words(one)]
    if not found:
        raise NoJob("no service of it has a command", "compose services")
    name, service = next((one for one in found if _serves(one[1])), next((one for one in found if _gpus(one[1])), found[0]))
    others = [other for other, one in found if other != name and _gpus(one)]
    left = [LeftOut(key=f"services.{other}", why=f"the answer is of {name}") for other in others]
    script = " ".join(_quoted(word) for word in _words(service))
    if service.get("entrypoint") is None:
        script = f"docker run {shlex.quote(str(service.get('image') or 'image'))} {script}"
    count = _gpus(service)
    return Inside(assigned(_variables(service)) + script, Hardware(gpus=count) if count else None, left)


_INSTRUCTION = re.compile(r"^[ \t]*(FROM|CMD|ENTRYPOINT|ENV)[ \t]+((?:[^\n]*\\\n)*[^\n]*)", re.IGNORECASE | re.MULTILINE)


def dockerfile(text: str) -> Inside | None:
    """What an image starts by its last ENTRYPOINT and CMD, where either is a list of words; None of any other text. A line for a
    shell is read as any script's."""
    found: dict[str, str] = {}
    variables: dict[str, str] = {}
    for match in _INSTRUCTION.finditer(text):
        name, said = match[1].lower(), match[2].replace("\\\n", " ").strip()
        found[name] = said
        if name == "env" and "=" in said:
            variables |= dict(one.split("=", 1) for one in said.split() if "=" in one)
    parts = {key: found[name] for key, name in (("entrypoint", "entrypoint"), ("command", "cmd")) if name in found}
    if "from" not in found or not any(part.startswith("[") for part in parts.values()):
        return None
    service: dict[str, Any] = {"image": found["from"].split()[0], "environment": variables}
    for key, part in parts.items():
        try:
            service[key] = json.loads(part) if part.startswith("[") else part
        except (ValueError, RecursionError):
            raise InvalidValue("is no list of words in JSON", f"Dockerfile {key}") from None
    return compose({"services": {"image": service}})


def _words(service: Mapping[str, Any]) -> list[str]:
    """The entry point with its command, each a list or a line as a shell splits it."""
    found: list[str] = []
    for key in ("entrypoint", "command"):
        part = service.get(key)
        if isinstance(part, list):
            found += [str(word) for word in part]
        elif part is not None:
            try:
                found += shlex.split(str(part))
            except ValueError as error:
                raise InvalidValue(f"cannot be split into words: {error}", f"compose {key}") from None
    return found


def _quoted(word: str) -> str:
    """A word as a script has it, in which variables may still be put in."""
    return f'"{word}"' if "$" in word and not set(word) & set('"`\\') else shlex.quote(word)


def _serves(service: Mapping[str, Any]) -> bool:
    said = " ".join([str(service.get("image") or ""), *_words(service)[:4]]).lower()
    return any(word in said for word in SERVERS)


def _variables(service: Mapping[str, Any]) -> Mapping[str, Any]:
    """Variables of the environment, a mapping or a list of `NAME=value`."""
    listed = service.get("environment")
    if isinstance(listed, list):
        return dict(str(one).split("=", 1) for one in listed if "=" in str(one))
    return mapping(listed)


def _gpus(service: Mapping[str, Any]) -> int | None:
    """GPUs that are reserved by number or by name; None for all of a machine, or none."""
    resources = mapping(mapping(mapping(service.get("deploy")).get("resources")).get("reservations"))
    devices = resources.get("devices")
    for device in devices if isinstance(devices, list) else []:
        device = mapping(device)
        if isinstance(names := device.get("device_ids"), list) and names:
            return len(names)
        if device.get("count") not in (None, "all"):
            return number(device["count"], "compose devices.count")
    return None
