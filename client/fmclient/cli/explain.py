"""fmctl explain."""

from __future__ import annotations

import typer

from fmclient.cli.options import FormOption, JobArgument, ServerOption, TimeoutOption, connect
from fmclient.cli.output import Form, print_data, say, to_data


def explain(
    ctx: typer.Context,
    job: JobArgument,
    output: FormOption = Form.TEXT,
    server: ServerOption = None,
    timeout_s: TimeoutOption = None,
) -> None:
    """Say why a job waits, and what would help."""
    from fmclient.cli.why import why_lines
    from fmclient.states import words

    with connect(ctx, server, timeout_s) as client:
        found = client.explain(job)
    if output is not Form.TEXT:
        print_data(to_data(found), output)
        return
    # With constraints listed below, the sentence would only say them twice.
    say(f"job {found.id}: {words(found.state)}" + (f": {found.summary}" if found.summary and not found.why else ""))
    if found.never:
        say("It can never run on this cluster as it is:")
    for line in why_lines(found.why):
        say(f"  {line}")
    if found.ahead:
        say(f"ahead in the queue: {', '.join(found.ahead)}")
