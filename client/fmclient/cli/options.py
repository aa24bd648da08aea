"""Options that several commands share, and the connection that they describe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fmclient.cli.exits import USAGE, fail
from fmclient.cli.output import Form, Output

if TYPE_CHECKING:
    from fmclient.client import Client

TIMEOUT_S = 30.0
# A person waits at the prompt: long enough for a scheduler that is being restarted, short enough to try again by hand.
RETRY_S = 3.0

_SERVER_HELP = "Where fm-scheduler is: HOST:PORT[,HOST:PORT]; else $FMSCHED_SERVER, else 127.0.0.1:7070."
_TIMEOUT_HELP = "Seconds for one call to the service."

ServerOption = Annotated[str | None, typer.Option("--server", metavar="HOST:PORT", help=_SERVER_HELP)]
TimeoutOption = Annotated[float | None, typer.Option("--timeout", metavar="SECONDS", min=0.001, help=_TIMEOUT_HELP)]
ManifestOption = Annotated[
    str, typer.Option("-f", "--file", metavar="FILE", help="The job's manifest; - reads standard input.")
]
OutputOption = Annotated[Output, typer.Option("-o", "--output", help="How to print.")]
FormOption = Annotated[Form, typer.Option("-o", "--output", help="How to print.")]
WatchOption = Annotated[bool, typer.Option("-w", "--watch", help="Then print each change; Ctrl-C ends.")]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="An id, or a name: then its newest job.")]
NodeArgument = Annotated[str, typer.Argument(metavar="NODE")]


@dataclass(frozen=True, slots=True)
class Settings:
    """What was said before the command's name."""

    server: str | None = None
    timeout_s: float | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str = ""


def connect(ctx: typer.Context, server: str | None, timeout_s: float | None) -> Client:
    """A client by the options after the command's name, else those before it. Exit 2 where they make no sense."""
    from fmclient.client import Client
    from fmclient.servers import Tls

    before = ctx.find_root().obj
    settings = before if isinstance(before, Settings) else Settings()
    tls = None
    if settings.ca_file or settings.cert_file or settings.key_file or settings.server_name:
        tls = Tls(settings.ca_file, settings.cert_file, settings.key_file, settings.server_name)
    try:
        return Client(
            server if server is not None else settings.server,
            timeout_s or settings.timeout_s or TIMEOUT_S,
            retry_s=RETRY_S,
            tls=tls,
        )
    except (OSError, ValueError) as error:
        raise fail(f"fmctl: {error}", USAGE) from error
