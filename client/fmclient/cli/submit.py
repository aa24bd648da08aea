"""fmctl submit."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from fmclient.cli.exits import DONE, FAILED, complain, fail
from fmclient.cli.files import naming, read
from fmclient.cli.options import ManifestOption, ServerOption, TimeoutOption, connect

if TYPE_CHECKING:
    from fmclient.client import Client
    from fmproto.v1.scheduler_pb2 import Job


class Form(StrEnum):
    TEXT = "text"
    NAME = "name"
    JSON = "json"
    YAML = "yaml"


class Until(StrEnum):
    RUNNING = "running"
    ENDED = "ended"


def submit(
    ctx: typer.Context,
    file: ManifestOption,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until the job has ended; exit 1 unless it succeeded.")] = False,
    until: Annotated[Until, typer.Option("--until", help="With --wait: what to wait for.")] = Until.ENDED,
    wait_s: Annotated[float | None, typer.Option("--wait-timeout", metavar="SECONDS", min=0.0, help="With --wait.")] = None,
    hold_s: Annotated[
        float, typer.Option("--hold", metavar="SECONDS", min=0.0, help="Allocation: freed when nobody held it so long.")
    ] = 0.0,
    request_id: Annotated[str | None, typer.Option("--request-id", help="The same id again finds the same job.")] = None,
    output: Annotated[Form, typer.Option("-o", "--output", help="How to print.")] = Form.TEXT,
    server: ServerOption = None,
    timeout_s: TimeoutOption = None,
) -> None:
    """Hand in a job. Prints its id; exit 2 for a faulty manifest, 4 where it can never be placed here."""
    source = read(file)
    with connect(ctx, server, timeout_s) as client:
        with naming(source.where):
            job = client.submit(source.raw, request_id=request_id, hold_s=hold_s)
        if not wait or output in (Form.TEXT, Form.NAME):
            _print(job, output)
        if wait:
            job = _follow(client, job.spec.id, until, wait_s)
            if output in (Form.JSON, Form.YAML):
                _print(job, output)
            raise typer.Exit(_outcome(job))


def _print(job: Job, output: Form) -> None:
    from fmclient.cli.human import count
    from fmclient.cli.jobs import gpus_asked
    from fmclient.cli.output import print_data, say, to_data
    from fmclient.states import words

    if output is Form.NAME:
        say(job.spec.id)
    elif output is Form.TEXT:
        say(f"job {job.spec.id} ({job.spec.name}, {count(gpus_asked(job), 'GPU')}): {words(job.status.state)}")
    else:
        print_data(to_data(job), output)


def _follow(client: Client, job: str, until: Until, wait_s: float | None) -> Job:
    """Waits for the start, then for the end if asked, and tells of each on stderr. Exit 1 when the time is over."""
    from fmclient.errors import JobEnded, StillWaiting
    from fmclient.states import has_ended, words

    began_s = time.monotonic()
    newest = client.get(job)
    for stage in (Until.RUNNING,) if until is Until.RUNNING else (Until.RUNNING, Until.ENDED):
        if has_ended(newest):
            break
        left_s = None if wait_s is None else max(0.0, began_s + wait_s - time.monotonic())
        try:
            newest = client.wait(job, stage.value, left_s)
        except JobEnded as error:
            newest = error.job
        except StillWaiting as error:
            state = words((error.job or newest).status.state)
            raise fail(f"fmctl: job {job} is {state} after {wait_s:g} s; waited for {stage.value}", FAILED) from error
        complain(f"job {job}: {words(newest.status.state)} after {time.monotonic() - began_s:.1f} s")
    return newest


def _outcome(job: Job) -> int:
    from fmclient.states import is_running
    from fmproto.v1.job_pb2 import JOB_STATE_SUCCEEDED

    if is_running(job) or job.status.state == JOB_STATE_SUCCEEDED:
        return DONE
    if job.status.reason:
        complain(f"fmctl: job {job.spec.id}: {job.status.reason}")
    return FAILED
