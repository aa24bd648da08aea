"""fmctl's exit codes, and how an error becomes one with a line on stderr. Nothing else ends the program."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from fmclient.errors import FmschedError

DONE = 0
FAILED = 1
USAGE = 2  # or an invalid manifest
NOT_FOUND = 3
CANNOT_BE_PLACED = 4
UNREACHABLE = 5
INTERRUPTED = 128 + 2  # as a shell reports SIGINT
BROKEN_PIPE = 128 + 13  # as a shell reports SIGPIPE

SERVER_HINT = "is fm-scheduler running there? --server HOST:PORT or FMSCHED_SERVER names it"
# gRPC's words where something listens and the connection ends before a call: TLS on one side only, or a certificate not accepted.
REFUSED_SIGNS = ("Socket closed", "handshake failed", "Connection reset")
REFUSED_HINT = (
    "something listens there, but ended the connection: "
    "--tls-ca, --tls-cert and --tls-key must be what that fm-scheduler asks for"
)


def complain(message: str) -> None:
    """To stderr, as it stands: no markup is read into it."""
    typer.echo(message, err=True)


def fail(message: str, code: int = FAILED) -> typer.Exit:
    """For `raise fail(...)`."""
    complain(message)
    return typer.Exit(code)


def report(error: FmschedError) -> int:
    """Says what went wrong, with reasons where there are any; the exit code."""
    from fmclient import errors
    from fmclient.cli.why import why_lines

    complain(f"fmctl: {_headline(error)}")
    match error:
        case errors.CannotBePlaced():
            for line in why_lines(error.why):
                complain(f"  {line}")
            return CANNOT_BE_PLACED
        case errors.InvalidManifest() | errors.InvalidArgument():
            return USAGE
        case errors.NotFound():
            return NOT_FOUND
        case errors.StillWaiting():
            return FAILED
        case errors.NotServing():
            return UNREACHABLE
        case errors.Unreachable():
            refused = any(sign in str(error) for sign in REFUSED_SIGNS)
            complain(f"fmctl: {REFUSED_HINT if refused else SERVER_HINT}")
            return UNREACHABLE
        case errors.DeadlineExceeded():
            return UNREACHABLE
        case _:
            return FAILED


def _headline(error: FmschedError) -> str:
    """Its sentence, without the reasons that are listed below it."""
    from fmclient.cli.why import why_line
    from fmclient.errors import CannotBePlaced

    if not isinstance(error, CannotBePlaced):
        return str(error)
    return str(error).removesuffix("; ".join(why_line(why) for why in error.why)).rstrip(": ")


class Commands(TyperGroup):
    """The root group: what any command raises ends here, in the terminal and in tests alike."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # a reader that has gone must show here, not at the interpreter's end
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            _forget_stdout()
            raise typer.Exit(BROKEN_PIPE) from None
        except Exception as error:
            from fmclient.errors import FmschedError

            if isinstance(error, FmschedError):
                raise typer.Exit(report(error)) from error
            raise
        return result


def _forget_stdout() -> None:
    """Python flushes stdout once more when it ends; that must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
