"""fmctl cancel."""

from __future__ import annotations

from typing import Annotated

import typer

from fmclient.cli.exits import DONE, report
from fmclient.cli.options import ServerOption, TimeoutOption, connect
from fmclient.cli.output import say


def cancel(
    ctx: typer.Context,
    jobs: Annotated[list[str], typer.Argument(metavar="JOB...", help="Ids, or names: then the newest job of each.")],
    reason: Annotated[str | None, typer.Option("--reason", help="Kept with the job.")] = None,
    server: ServerOption = None,
    timeout_s: TimeoutOption = None,
) -> None:
    """Cancel jobs. Each is tried; the exit code is that of the first which failed."""
    from fmclient.client import CANCEL_REASON
    from fmclient.errors import FmschedError
    from fmclient.states import words

    code = DONE
    with connect(ctx, server, timeout_s) as client:
        for job in jobs:
            try:
                found = client.cancel(job, reason or CANCEL_REASON)
            except FmschedError as error:
                failed = report(error)
                code = code or failed
            else:
                say(f"job {found.spec.id}: {words(found.status.state)}")
    raise typer.Exit(code)
