"""fmctl cancel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fmclient.cli.exits import DONE, complain, report
from fmclient.cli.options import ServerOption, TimeoutOption, connect
from fmclient.cli.output import say

if TYPE_CHECKING:
    from fmclient.client import Client


def cancel(
    ctx: typer.Context,
    jobs: Annotated[list[str], typer.Argument(metavar="JOB...", help="Ids, or names: then the newest job of each.")],
    reason: Annotated[str | None, typer.Option("--reason", help="Kept with the job.")] = None,
    server: ServerOption = None,
    timeout_s: TimeoutOption = None,
) -> None:
    """Cancel jobs. Each is tried; the exit code is that of the first which failed. A job that had ended stays as it is."""
    from fmclient.client import CANCEL_REASON
    from fmclient.errors import FmschedError

    code = DONE
    with connect(ctx, server, timeout_s) as client:
        for job in jobs:
            try:
                _cancel(client, job, reason or CANCEL_REASON)
            except FmschedError as error:
                failed = report(error)
                code = code or failed
    raise typer.Exit(code)


def _cancel(client: Client, name: str, reason: str) -> None:
    """Tells on stdout what is done by it, and on stderr that nothing had to be. Raises FmschedError."""
    from fmclient.states import has_ended, words
    from fmproto.v1.job_pb2 import JOB_STATE_CANCELLED

    job = client.get(name)
    if not has_ended(job):
        job = client.cancel(job.spec.id, reason)  # by its id: the name may mean a newer job by now
        if job.status.state == JOB_STATE_CANCELLED or not has_ended(job):
            say(f"job {job.spec.id}: {'cancelled' if has_ended(job) else 'cancelling'}")
            return
    end = "been cancelled" if job.status.state == JOB_STATE_CANCELLED else words(job.status.state)
    complain(f"fmctl: job {job.spec.id} had already {end}")
