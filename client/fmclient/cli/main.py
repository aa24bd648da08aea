"""fmctl's root: the list of commands, and the options before a command's name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fmclient.cli import cancel, describe, drain, explain, get, logs, plan, submit, top, topo, validate, version
from fmclient.cli.exits import Commands
from fmclient.cli.options import Settings

_EXITS = (
    "Exit codes: 0 done, 1 failed, 2 usage or invalid manifest, 3 not found, 4 cannot be placed, 5 service unreachable."
)

app = typer.Typer(
    name="fmctl",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Submit foundation-model training to fm-scheduler, see where it runs and why it waits.",
    epilog=_EXITS,
)
app.command()(submit.submit)
app.add_typer(get.app, name="get")
app.add_typer(describe.app, name="describe")
app.command()(explain.explain)
app.command()(logs.logs)
app.command()(cancel.cancel)
app.command()(plan.plan)
app.command()(top.top)
app.add_typer(topo.app, name="topo")
app.command()(drain.drain)
app.command()(drain.undrain)
app.command()(validate.validate)
app.command()(version.version)


def _print_version(asked: bool) -> None:
    if asked:
        from fmproto import __version__

        typer.echo(f"fmctl {__version__}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    server: Annotated[
        str | None,
        typer.Option(
            "--server", metavar="HOST:PORT", envvar="FMSCHED_SERVER", help="Where fm-scheduler is: HOST:PORT[,HOST:PORT]."
        ),
    ] = None,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", min=0.001, help="For one call.")
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option("--tls-ca", metavar="FILE", envvar="FMSCHED_TLS_CA", help="PEM: TLS, with this CA.")
    ] = None,
    cert_file: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", envvar="FMSCHED_TLS_CERT", help="PEM: who I am.")
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", envvar="FMSCHED_TLS_KEY", help="PEM: its key.")
    ] = None,
    server_name: Annotated[
        str,
        typer.Option("--tls-server-name", metavar="NAME", help="The name in the server's certificate, if not the host."),
    ] = "",
    show_version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print fmctl's version and end.")
    ] = False,
) -> None:
    ctx.obj = Settings(server, timeout_s, ca_file, cert_file, key_file, server_name)


def main() -> None:
    """The console script. Ends the process with one of exits.py's codes."""
    app(prog_name="fmctl")


if __name__ == "__main__":
    main()
