"""fmctl validate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fmclient.cli.exits import USAGE
from fmclient.cli.files import naming, print_violations, read
from fmclient.cli.offline import offline
from fmclient.cli.options import FormOption, ManifestOption, ServerOption, TimeoutOption, connect
from fmclient.cli.output import Form, print_data, say, to_data

if TYPE_CHECKING:
    from fmproto.v1.scheduler_pb2 import ValidateResponse


def validate(
    ctx: typer.Context,
    file: ManifestOption,
    remote: Annotated[bool, typer.Option("--remote", help="Let the service check; needs no extra installed.")] = False,
    output: FormOption = Form.TEXT,
    server: ServerOption = None,
    timeout_s: TimeoutOption = None,
) -> None:
    """Check a manifest and print the sum of its GPUs. Exit 2 where it has faults, one line for each."""
    source = read(file)
    if remote:
        with connect(ctx, server, timeout_s) as client, naming(source.where):
            found = client.validate(source.raw)
    else:
        found = offline("validate", source.raw, source.where)
    if output is not Form.TEXT:
        print_data(to_data(found), output)
    print_violations(source.where, found.violations)
    if found.violations:
        raise typer.Exit(USAGE)
    if output is Form.TEXT:
        for line in sum_lines(found):
            say(line)


def sum_lines(found: ValidateResponse) -> list[str]:
    """The name, a line for each group, the sum."""
    from fmclient.cli.human import count

    width = max([5, *(len(line.group) for line in found.lines)])
    per_group = max([0, *(len(count(line.gpus_per_group, "GPU")) for line in found.lines)])
    digits = len(f"{found.gpus:,}")
    lines = [f"{found.name}: valid"]
    for line in found.lines:
        product = f"{count(line.gpus_per_group, 'GPU'):>{per_group}} × {count(line.replicas, 'replica')}"
        lines.append(f"  {line.group:<{width}}  {product} = {line.gpus:>{digits},}")
    lines.append(f"  {'total':<{width}}  {count(found.gpus, 'GPU')}")
    return lines
