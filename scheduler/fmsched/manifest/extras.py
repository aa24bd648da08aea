"""Reading the optional extensions: template, checkpoint, parallelism, model sizes, priority, durations."""

from __future__ import annotations

import re

from fmproto.fields import Fields, nearest
from fmproto.yamltext import Items, Scalar, Table, Tree, describe, join
from fmsched.manifest.job import DEFAULT_PRIORITY_CLASS, PRIORITIES, Checkpoint, Parallelism, Template
from fmsched.model.work import ModelSizes

DEGREE_MAX = 100_000
PRIORITY_MAX = 1_000_000
TEXT_BYTES_MAX = 131_072  # of one argument or value of an environment: what Linux takes (MAX_ARG_STRLEN)
DURATION_S_MAX = 10 * 365 * 86_400.0
CPUS_MAX = 100_000.0
MEMORY_GB_MAX = 1_000_000.0
SIZE_MAX = 1 << 40

_DURATION = re.compile(r"(?:(\d{1,5})d)?(?:(\d{1,6})h)?(?:(\d{1,7})m)?(?:(\d{1,9}(?:\.\d{1,3})?)s)?")
_DURATION_UNITS_S = (86_400.0, 3_600.0, 60.0, 1.0)
DURATION_ALLOWED = 'a time with units, such as "30s", "2h30m" or "7d"'
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_SIGNALS = ("SIGUSR1", "SIGUSR2", "SIGTERM", "SIGINT", "SIGHUP")
_COUNT = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)([KMBT]?)")
_COUNT_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def read_duration(fields: Fields, name: str, *, default: float = 0.0) -> float:
    """Seconds."""
    tree = fields.raw(name)
    if tree is None:
        return default
    match = _DURATION.fullmatch(tree.text) if isinstance(tree, Scalar) else None
    if match is None or not any(match.groups()):
        fields.wrong(tree, fields.at(name), DURATION_ALLOWED)
        return default
    seconds = sum(float(part or 0) * unit_s for part, unit_s in zip(match.groups(), _DURATION_UNITS_S, strict=True))
    if seconds > DURATION_S_MAX:
        fields.wrong(tree, fields.at(name), "at most 3650 days")
        return default
    return seconds


def read_priority(spec: Fields) -> tuple[str, int]:
    """(class or empty, number)."""
    allowed = f"{', '.join(PRIORITIES)}, or a whole number from 0 to {PRIORITY_MAX}"
    tree = spec.raw("priority")
    if tree is None:
        return DEFAULT_PRIORITY_CLASS, PRIORITIES[DEFAULT_PRIORITY_CLASS]
    value = tree.value if isinstance(tree, Scalar) else None
    if isinstance(value, str) and value in PRIORITIES:
        return value, PRIORITIES[value]
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= PRIORITY_MAX:
        return "", value
    near = nearest(value, PRIORITIES) if isinstance(value, str) else ""
    spec.wrong(tree, spec.at("priority"), allowed + (f"; nearest known name: {near}" if near else ""))
    return "", 0


def read_template(spec: Fields) -> Template | None:
    fields = spec.table("template")
    if fields is None:
        return None
    command = _read_command(fields)
    resources = fields.table("resources", "{cpus, memoryGB}")
    cpus = memory_gb = 0.0
    if resources is not None:
        cpus = resources.number("cpus", "CPUs (per rank)", CPUS_MAX)
        memory_gb = resources.number("memoryGB", "GB (decimal, per rank)", MEMORY_GB_MAX)
        resources.finish()
    template = Template(
        image=fields.text("image", "the name of a container image"),
        command=command,
        args=_checked(fields, "args", fields.strings("args", "a list of strings")),
        env=_read_env(fields),
        working_dir=fields.text("workingDir", "an absolute path", pattern=re.compile(r"/[^\x00]*")),
        volumes=_read_volumes(fields),
        cpus=cpus,
        memory_gb=memory_gb,
    )
    if not template.image and not fields.has("command"):
        fields.faults.add(fields.line, fields.at("command"), "found nothing, and no image; allowed: what each rank runs")
    fields.finish()
    return template


def _read_command(fields: Fields) -> tuple[str, ...]:
    """A list is run as it is; a string by a shell."""
    tree = fields.raw("command")
    if isinstance(tree, Scalar):
        if not isinstance(tree.value, str) or not tree.text.strip():
            fields.wrong(tree, fields.at("command"), "a shell command, or a list of strings")
            return ()
        return _checked(fields, "command", ("/bin/sh", "-c", tree.text))
    if isinstance(tree, Items) and not tree.items:
        fields.wrong(tree, fields.at("command"), "a shell command, or a list of at least one string")
        return ()
    return _checked(fields, "command", fields.strings("command", "a shell command, or a list of strings"))


def _checked(fields: Fields, name: str, texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        _check_text(fields, fields.line_of(name), fields.at(name), text)
    return texts


def _check_text(fields: Fields, line: int, path: str, text: str) -> None:
    if "\x00" in text:
        fields.faults.add(
            line, path, "found a NUL character in a string; allowed: none, since a process cannot be given one"
        )
    elif len(text.encode()) >= TEXT_BYTES_MAX:
        fields.faults.add(line, path, f"found a string of {len(text.encode())} bytes; allowed: less than {TEXT_BYTES_MAX}")


def _read_env(fields: Fields) -> tuple[tuple[str, str], ...]:
    """A mapping of names to strings, or a list of {name, value}. Numbers and truth values are taken as they are written."""
    rows = _env_rows(fields) if isinstance(fields.raw("env"), Items) else _env_pairs(fields)
    found: dict[str, str] = {}
    for name, line, value, path in rows:
        if name and not _ENV_NAME.fullmatch(name):
            fields.faults.add(line, path, f"found the name {name[:60]!r}; allowed: letters, digits and '_', no digit first")
        elif name in found:
            fields.faults.add(line, path, f"found {name} again; allowed: a name once")
        _check_text(fields, line, path, value)
        found[name] = value
    return tuple(found.items())


def _env_pairs(fields: Fields) -> list[tuple[str, int, str, str]]:
    """(name, line, value, path)."""
    pairs = fields.scalars_by_name("env", "a mapping of names to strings")
    return [(name, line, value, join(fields.at("env"), name)) for name, line, value in pairs]


def _env_rows(fields: Fields) -> list[tuple[str, int, str, str]]:
    rows = []
    for path, item in fields.items("env", "a mapping of names to strings"):
        row = Fields(item, path, fields.faults)
        name = row.text("name", "the name of a variable", required=True)
        value = row.strings("value", "a string", single=True)
        row.finish()
        rows.append((name, item.line, value[0] if value else "", path))
    return rows


def _read_volumes(fields: Fields) -> tuple[str, ...]:
    allowed = "a list of /host/path:/container/path or …:ro"
    volumes = fields.strings("volumes", allowed)
    for volume in volumes:
        parts = volume.split(":")
        well_formed = (
            len(parts) in (2, 3) and all(part.startswith("/") for part in parts[:2]) and parts[2:] in ([], ["ro"], ["rw"])
        )
        if not well_formed:
            fields.faults.add(fields.line_of("volumes"), fields.at("volumes"), f"found {volume[:60]!r}; allowed: {allowed}")
    return volumes


def read_checkpoint(spec: Fields) -> Checkpoint | None:
    fields = spec.table("checkpoint")
    if fields is None:
        return None
    checkpoint = Checkpoint(
        signal=fields.choice("signal", _SIGNALS),
        grace_period_s=read_duration(fields, "gracePeriod"),
        interval_s=read_duration(fields, "interval"),
    )
    fields.finish()
    return checkpoint


def read_degrees(fields: Fields) -> Parallelism:
    """The degrees of a `parallelism` mapping; the caller reads what else is in it."""
    return Parallelism(
        tensor=fields.whole("tensor", 1, DEGREE_MAX, default=1),
        pipeline=fields.whole("pipeline", 1, 256, default=1),
        data=fields.whole("data", 1, DEGREE_MAX, default=1),
        expert=fields.whole("expert", 1, DEGREE_MAX, default=1),
        context=fields.whole("context", 1, DEGREE_MAX, default=1),
    )


def read_model(spec: Fields) -> tuple[str, ModelSizes | None]:
    """(name, sizes): a string is a name, a mapping gives sizes and perhaps a name."""
    tree = spec.raw("model")
    if tree is None:
        return "", None
    if isinstance(tree, Table):
        fields = Fields(tree, spec.at("model"), spec.faults)
        name = fields.text("name", "a model's name")
        sizes = ModelSizes(
            parameters=_read_count(fields, "parameters"),
            layers=fields.whole("layers", 1, SIZE_MAX),
            hidden_size=fields.whole("hiddenSize", 1, SIZE_MAX),
            attention_heads=fields.whole("attentionHeads", 1, SIZE_MAX),
            vocabulary=fields.whole("vocabulary", 1, SIZE_MAX),
            sequence_length=fields.whole("sequenceLength", 1, SIZE_MAX),
            experts=fields.whole("experts", 1, SIZE_MAX),
            micro_batch=fields.whole("microBatch", 1, SIZE_MAX),
            global_batch=fields.whole("globalBatch", 1, SIZE_MAX),
        )
        fields.finish()
        return name, sizes
    return spec.text("model", "a model's name, or a mapping of its sizes"), None


def _read_count(fields: Fields, name: str) -> float:
    tree: Tree | None = fields.raw(name)
    if tree is None:
        return 0.0
    match = _COUNT.fullmatch(tree.text) if isinstance(tree, Scalar) else None
    if match is None:
        value = tree.value if isinstance(tree, Scalar) else None
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e18:
            return float(value)
        fields.faults.add(tree.line, fields.at(name), f"found {describe(tree)}; allowed: a number such as 120B or 7e9")
        return 0.0
    return float(match[1]) * _COUNT_UNITS[match[2]]
