"""Any file that people have, as a job: whose it is, what it says, and what `estimate` is then asked."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import date
from math import prod
from pathlib import Path
from typing import Any

from estimator.contract.answer import Answer, Note
from estimator.contract.errors import InvalidJob, InvalidValue, NoJob, Unreadable, WillItFitError
from estimator.contract.job import Hardware, Job, read_job
from estimator.contract.notes import Said, all_said
from estimator.contract.reading import read_text
from estimator.contract.version import SOFTWARE_VERSION
from estimator.exchange import megatron_job, recognise, scripts, torchtitan_job
from estimator.exchange.cards import meant, unclear
from estimator.exchange.compose import dockerfile
from estimator.exchange.concessions import accepted
from estimator.exchange.configuration import WORDS, Configuration, Launch, Lines, Surroundings, silent
from estimator.exchange.found import Assumed, Found, LeftOut
from estimator.exchange.frameworks import ollama, other_servers
from estimator.exchange.launch import Program, arguments, expandable, in_mxfp8, programs, slurm
from estimator.exchange.nested import overridden, overrides
from estimator.exchange.platforms import Inside
from estimator.exchange.python.source import Source, source
from estimator.exchange.readers import FILES, FRAMEWORKS, LATER, OVERRIDES, PARTS, PLATFORMS, SCRIPTED, SHORT
from estimator.exchange.shell import MOST_SCRIPT, commands, sbatch
from estimator.exchange.spread import FEWEST, SHARDED, UNSAID, beside_accelerate
from estimator.hardware.parse import hardware_of
from estimator.pipeline.estimation import estimate
from estimator.pipeline.notes.gathered import of_kind, texts
from estimator.specs.resolve import WEIGHTS, resolve

MOST_NAME = 200
"""Letters of a model's name."""
MOST_STARTED, MOST_SCRIPTS = 200, 4
"""Commands of a script, and scripts in Python that they start, that are looked at."""


def read(text: str, given: str | None = None, *, model: str | None = None, around: Surroundings | None = None) -> Found:
    """What a file, a command or a script says, as a job. `given`: whose it is; without it, it is told by what it says.

    Raises `InvalidJob` for a file that cannot be read, `NotModelled` for one of a framework that is not read yet.
    """
    around = around or Surroundings()
    if given is not None and given not in (*FRAMEWORKS, *PARTS, *PLATFORMS):
        raise InvalidValue(f"{given!r} is no format; write {', '.join((*PARTS, *FRAMEWORKS, *PLATFORMS))}", "format")
    found = PARTS[given](text) if given in PARTS else _read(text, given, around)
    return _finished(found, model, around)


def read_file(
    path: str | Path,
    on: str | Hardware | None = None,
    model: str | None = None,
    given: str | None = None,
    release: str | None = None,
) -> Found:
    """What a file on disk says, with the files that it points to. `on`: hardware such as 2xA100-80GB, in place of its own;
    `release`: the framework's, such as 0.9.1 or 2024-11, in place of the newest that is known."""
    where = Path(path)
    return read(read_text(where), given, model=model, around=surroundings(where, on, release))


def surroundings(path: Path, on: str | Hardware | None, release: str | None = None) -> Surroundings:
    """What is known beside a file on disk: the hardware and the release that were asked about, and files in its folder."""
    hardware = hardware_of(on) if on else None
    return Surroundings(str(path), hardware, lambda name: _beside(path.parent, name), True, release)


def job_of(job: Job | Mapping[str, Any] | str | Path, on: str | Hardware | None = None) -> Job:
    """A job as `estimate` takes it, or the path of any file that `read_file` reads. `on`: hardware in place of its own."""
    if isinstance(job, str | Path):
        _refuse_model(str(job))
        found = read_file(job, on)
        if not found.job.get("model"):
            raise InvalidValue(f"a file of {found.framework} names no model: import it with --model first", "model")
        return read_job(found.job)
    given = read_job(job)
    return given if on is None else given.model_copy(update={"hardware": hardware_of(on)})


def _refuse_model(text: str) -> None:
    """Raise `InvalidValue` for a model's name where a job is asked about."""
    if len(text) > MOST_NAME or Path(text).suffix in (".yaml", ".yml", ".json") or {"/", "\0"} & {*text} or Path(text).exists():
        return
    name = ""
    with suppress(WillItFitError):
        name = resolve(text, allow_files=False).name
    if name:
        raise InvalidValue(
            f"is a model, and this is asked of a job: write a file with `model: {name}` in it, and with what is done with it; "
            f"or say it beside the name, `--task qlora --on rtx-4090`; or ask `willitfit which {name}`",
            text,
        )


def answer(found: Found, allow_files: bool = True, today: date | None = None) -> Answer:
    """What `estimate` says of the job that was found, and what the file leaves open. Raises as `estimate`."""
    if not found.job.get("model"):
        raise unnamed(found)
    said = estimate(found.job, allow_files=allow_files, today=today)
    notes = [*_notes(found), *said.notes]
    return said.model_copy(update={"notes": notes, **texts(notes)})


def unnamed(found: Found) -> InvalidValue:
    """The error of a file that names no model, with why its sizes describe none, where it has some."""
    untold = next((f" ({one.why})" for one in found.left_out if one.key == megatron_job.UNREAD_MODEL), "")
    return InvalidValue(f"a file of {found.framework} names no model{untold}: say which with --model", "model")


def _notes(found: Found) -> Iterator[Note]:
    """What reading a file adds to an answer's sentences."""
    whose = found.framework
    filled_in = (Said("filled-in", f"{whose}: {one}") for one in found.assumed)
    yield from of_kind("assumption", [Said("read-as", f"read as a file of {whose} {found.version}".rstrip()), *filled_in])
    yield from of_kind("not modelled", all_said("left-out", (f"{whose}: {one}" for one in found.left_out)))
    misspelt = (one for one in found.left_out if one.meant)
    yield from of_kind("warning", all_said("unknown-key", (f"{whose}: {one}" for one in misspelt)))


def is_configuration(path: Path) -> bool:
    """Whether a file is a job, or a framework's, and not a model's configuration, specification or weights."""
    if not os.path.isfile(path) or path.name.lower().endswith(WEIGHTS):
        return False
    text = read_text(path)
    if source(text) is not None:
        return True
    settings = recognise.settings(text, str(path))
    return settings is None or _is_job(settings) or recognise.file(settings) is not None


def is_of_framework(path: Path) -> bool:
    """Whether a file is a framework's, a command or a script, and no job."""
    text = read_text(path)
    if source(text) is not None:
        return True
    settings = recognise.settings(text, str(path))
    if settings is None:
        return recognise.command_like(text)
    return not _is_job(settings) and recognise.file(settings) is not None


def _is_job(settings: Mapping[str, Any]) -> bool:
    # torchtitan's tables, and oumi's sections, have a job's names
    flavored = isinstance(model := settings.get("model"), Mapping) and not {"flavor", "model_name"}.isdisjoint(model)
    return "model" in settings and not flavored and set(settings) <= set(Job.model_fields)


def _beside(folder: Path, name: str) -> str | None:
    """The text of a file that a file points to, from its own folder or the current one."""
    if not name or len(name) > 400 or "\0" in name:
        return None
    for path in (folder / name, Path(name), folder / Path(name).name):
        if path.is_file():
            return read_text(path)
    return None


def _read(text: str, given: str | None, around: Surroundings) -> Found:
    if (python := source(text)) is not None:
        return _of_python(python, Launch(), around)
    settings = recognise.settings(text, "file")
    if settings is not None:
        if given is None and _is_job(settings):
            return Found(framework="willitfit", version=SOFTWARE_VERSION, job=dict(settings))
        whose = given or recognise.file(settings)
        if whose is None:
            raise recognise.unknown("file", settings)
        if whose == "torchtitan":
            return torchtitan_job.whole(settings, Launch(), around)
        if whose in PARTS:
            return PARTS[whose](text)
        if whose in PLATFORMS:
            return _within(whose, PLATFORMS[whose](settings), around)
        return _configured(whose, settings, Lines.of(text).found, Launch(), around)
    if (several := recognise.of_documents(text)) is not None:
        return _read(several, given, around)
    if given is None and len(text) <= MOST_SCRIPT and (inside := dockerfile(text)) is not None:
        return _within("docker", inside, around)
    if (given or recognise.text(text)) == "ollama":
        return _configured("ollama", *ollama.settings(text), Launch(), around)
    if len(text) <= MOST_SCRIPT and (found := _of_script(text, given, around)) is not None:
        return found
    raise recognise.unknown("file")


def _of_python(python: Source, launch: Launch, around: Surroundings, options: Mapping[str, Any] | None = None) -> Found:
    """The job of a script, or of a notebook; of one that only starts a command, that of the command."""
    try:
        said = scripts.read(python, dict(options or {}))
    except NoJob:
        if len(python.commands) <= MOST_SCRIPT and (found := _of_script(python.commands, None, around)) is not None:
            return found
        raise
    launch = replace(launch, program=said.program, expandable=said.expandable or launch.expandable)
    found = _configured(said.framework, said.settings, said.lines, launch, around)
    left = [one for one in said.left_out if not silent(said.framework, one.key)]
    return found.model_copy(update={"left_out": [*left, *found.left_out], "assumed": [*said.assumed, *found.assumed]})


def _within(whose: str, inside: Inside, around: Surroundings) -> Found:
    """The job of the command that a platform's file starts, on the GPUs that it asks for."""
    around = replace(around, hardware=around.hardware or inside.hardware)
    found = _of_script(inside.script, None, around) if len(inside.script) <= MOST_SCRIPT else None
    if found is None:
        raise NoJob("starts no command that is known here", whose)
    asked = inside.hardware
    card = f"{asked.gpus} x {asked.gpu or asked.memory}" if asked and (asked.gpu or asked.memory) else None
    said = Assumed(key=whose, value=card, why=f"the command that a file of {whose} starts, and the GPUs that it asks for")
    return found.model_copy(update={"assumed": [said, *found.assumed], "left_out": [*found.left_out, *inside.left_out]})


def _configured(whose: str, settings: Mapping[str, Any], lines: Mapping[str, int], launch: Launch, around: Surroundings) -> Found:
    conf = Configuration(whose, settings, lines, launch, around)
    beside_accelerate(conf)
    FRAMEWORKS[whose](conf)
    if launch.expandable and isinstance(conf.get("training"), dict):
        conf.put("training.expandable_segments", True)
    _check(conf)
    return conf.found()


def _check(conf: Configuration) -> None:
    """Raise what a job's own checks say of a field in the words of the file: by the key that says it, and its line."""
    try:
        read_job({**conf.job, "model": conf.get("model") or "gpt2"})
    except InvalidJob as error:
        raise type(error)(_FIELD.sub(lambda field: _said_by(conf, field[0]), error.message), error.where) from None


def _said_by(conf: Configuration, field: str) -> str:
    """The key of the file that says a field, where one does."""
    key = conf.facts.edits.get(field)
    return conf.where(key) if isinstance(key, str) and conf.has(key) else field


_FIELD = re.compile(r"^[a-z_.]+(?=: )", re.MULTILINE)


def programs_of(text: str, given: str | None) -> list[tuple[str, Program]]:
    """The programs that a script's commands start and that are known, each with whose it is. Raises what is said of one that
    is known by sight alone, if there is no other."""
    found: list[tuple[str, Program]] = []
    refused: WillItFitError | None = None
    for command in commands(text):
        for one in programs(command) or ([Program("", command.words)] if command.words[0].text.startswith("--") else []):
            options, _, words = arguments(one.arguments)
            try:
                whose = given or recognise.program(one.name, one.words(1), options)
            except WillItFitError as error:
                refused = refused or other_servers.refused(recognise.server(one.name), options, words) or error
                continue
            if whose is not None:
                one.launch.expandable = expandable(command.environment)
                one.launch.mxfp8 = in_mxfp8(command.environment)
                one.launch.variables = command.environment
                found.append((whose, one))
    if not found and refused is not None:
        raise refused
    return found


def _of_script(text: str, given: str | None, around: Surroundings) -> Found | None:
    """The first command of a script that is known, on the GPUs that its header asks for."""
    header = slurm(sbatch(text))
    found = _of_commands(text, given, header, around)
    if found is None or around.hardware is not None or not header.card:
        return found
    if not (card := meant(header.card)):
        return found.model_copy(update={"left_out": [*found.left_out, unclear(header.card, "#SBATCH")]})
    said = Assumed(key="#SBATCH", value=card.gpu or card.memory, why=f"the script's header asks for {header.card}")
    job = {**found.job, "hardware": {**card.model_dump(exclude_defaults=True), **found.job.get("hardware", {})}}
    return found.model_copy(update={"job": job, "assumed": [*found.assumed, said]})


def _of_commands(text: str, given: str | None, header: Launch, around: Surroundings) -> Found | None:
    """The first command of a script that is known; its later ones are counted."""
    found = programs_of(text, given)
    if (not found or found[0][0] in SCRIPTED) and (scripted := _of_file(text, found, header, around)) is not None:
        return scripted
    if not found:
        return None
    whose, program = found[0]
    launch = _started(program.launch, header)
    if whose == "torchtitan":
        return torchtitan_job.command(program, launch, around)
    if whose == "megatron":
        text = shlex.join(word.text for word in program.arguments)
        return megatron_job.read(text, replace(launch, program=program.name), around)
    read = _of_program(whose, program, replace(launch, program=" ".join([program.name, *program.words(1)])), around)
    if len(found) > 1:
        said = [*read.assumed, _several(len(found))]
        return read.model_copy(update={"assumed": said})
    return read


def _started(launch: Launch, header: Launch) -> Launch:
    """What starts a program, with what a batch script's header says."""
    gpus = header.gpus if launch.gpus is None else launch.gpus
    return replace(launch, gpus=gpus, nodes=launch.nodes or header.nodes)


def _of_file(text: str, known: list[tuple[str, Program]], header: Launch, around: Surroundings) -> Found | None:
    """The job of a script in Python that a command starts and that lies beside it, unless the command itself names the model."""
    if (known and names_model(known[0][1])) or not around.allow_files:
        return None
    started = [
        (one, command) for command in commands(text)[:MOST_STARTED] for one in programs(command) if one.name.endswith(".py")
    ]
    for one, command in started[:MOST_SCRIPTS]:
        script = around.beside(one.name)
        python = source(script) if script is not None else None
        if python is None:
            continue
        one.launch.expandable = expandable(command.environment)
        with suppress(NoJob):
            return _of_python(python, _started(one.launch, header), around, arguments(one.arguments)[0])
    return None


def names_model(program: Program) -> bool:
    """Whether a command's own arguments say the model, or name a file of settings."""
    return not {"model_name_or_path", "config", "model"}.isdisjoint(arguments(program.arguments)[0])


def _several(count: int) -> Assumed:
    return Assumed(key="command", value=1, why=f"the script has {count} commands that are known; the first is read")


def _of_program(whose: str, program: Program, launch: Launch, around: Surroundings) -> Found:
    if whose in OVERRIDES:
        settings, lines = overrides(program.arguments)
        if whose in SHORT:  # with options of its own before them
            options, places, _ = arguments(program.arguments, SHORT[whose])
            settings = {key: value[0] if isinstance(value, list) else value for key, value in options.items()} | settings
            lines = {**places, **lines}
        return _configured(whose, settings, lines, launch, around)
    options, lines, words = arguments(program.arguments, SHORT.get(whose))
    settings = {}
    path = options.pop("config", None)
    if isinstance(path, list) and path:  # with settings of their own after it: `tune run … --config FILE batch_size=2`
        path, words = str(path[0]), [*map(str, path[1:]), *words]
    if whose in FILES and path is None:
        path = next((word for word in words if re.search(r"\.(ya?ml|json)$", word)), None)
    if isinstance(path, str):
        text = around.beside(path.removeprefix("oumi://"))
        if text is None:
            raise Unreadable(f"{path[:80]!r}, to which the command points, is not beside it: send that file", "file")
        content = recognise.settings(text, path)
        if content is None:
            raise Unreadable("holds no mapping of settings", path)
        if (later := LATER.get(whose)) is not None and recognise.file(content) == later:
            whose = later
        settings, lines = {**overridden(content, [word for word in program.arguments if word.text in words]), **options}, {}
    else:
        settings = options
    if words:
        settings[WORDS] = words
    return _configured(whose, settings, lines, launch, around)


def _finished(found: Found, model: str | None, around: Surroundings) -> Found:
    """The job with the model that was asked for, as one that `estimate` takes wherever one can be had."""
    job: dict[str, Any] = dict(found.job)
    if model:
        job = {"model": model, **{key: value for key, value in job.items() if key != "model"}}
    if around.hardware is not None and found.framework in (*PARTS, "willitfit"):
        job["hardware"] = around.hardware.model_dump(mode="json", exclude_unset=True, exclude_defaults=True)
    found = found.model_copy(update={"job": job})
    if around.release is not None and found.framework in (*PARTS, "willitfit"):
        why = f"{around.release}: no default of {found.framework} is known to have been another once"
        found = found.model_copy(update={"left_out": [*found.left_out, LeftOut(key="release", why=why)]})
    if job.get("model") and "hardware" not in job and str(job.get("parallelism", {}).get("strategy")).startswith(SHARDED):
        fewest = FEWEST * prod(job["parallelism"].get(degree) or 1 for degree in ("tensor", "pipeline", "context"))
        job["hardware"] = {"gpus": fewest}
        found = found.model_copy(update={"assumed": [*found.assumed, Assumed(key="gpus", value=fewest, why=UNSAID)]})
    if found.framework == "willitfit":
        read_job(job)
        return found
    if not job.get("model"):
        read_job({**job, "model": "gpt2"})  # whatever the model is, its fields are those of a job
        return found
    read_job(found.job)
    return accepted(found, around.allow_files)
