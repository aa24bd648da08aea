"""fmctl version."""

from __future__ import annotations

from typing import Annotated

import typer

from fmclient.cli.options import FormOption, ServerOption, TimeoutOption, connect
from fmclient.cli.output import Form, print_data, say, to_data


def version(
    ctx: typer.Context,
    client_only: Annotated[bool, typer.Option("--client", help="Ask no service.")] = False,
    output: FormOption = Form.TEXT,
    server: ServerOption = None,
    timeout_s: TimeoutOption = None,
) -> None:
    """Versions of fmctl and of the service, who leads, and how the state store is."""
    from fmproto import __version__

    if output is Form.TEXT:
        say(f"fmctl {__version__}")
    if client_only:
        if output is not Form.TEXT:
            print_data({"client": __version__}, output)
        return
    with connect(ctx, server, timeout_s) as client:
        found = client.version()
    if output is not Form.TEXT:
        print_data({"client": __version__, "service": to_data(found)}, output)
        return
    role = "leads" if found.leader else f"follows {found.leader_address or 'nobody yet'}"
    say(f"fm-scheduler {found.version}, {role}, state store {found.store or 'unknown'}")
