"""`ibstat` and `ibstatus` text as a node's adapter ports. The parser is fmproto.ibstat's, which the agent uses too; here is what makes a
whole file of no use, and why.
"""

from __future__ import annotations

import re

from fmproto.dumptext import Problems, shown
from fmproto.ibstat import Ibstat, Port, read_ibstat
from fmsched.topology.readers.found import NodeFound, PortFound
from fmsched.topology.readers.slurm_looks import is_blank, looks_like

KIND = "ibstat"

_NAMES_ONLY = re.compile(r"\s{0,99}(?:[A-Za-z][A-Za-z0-9_.-]{0,63}\s{1,9}){1,999}\Z")
_GUIDS_ONLY = re.compile(r"\s{0,99}(?:0x[0-9A-Fa-f]{16}\s{1,9}){1,999}\Z")
_SHORT_TEXT = 65_536
# pdsh, clush and the like set the host's name before each line.
_PREFIXED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]{0,252}): [ \t]{0,9}(?:CA:? '|Infiniband device ')", re.MULTILINE)


def read(text: str, file: str) -> NodeFound:
    """Ports as printed, also those that are down. Raises ReaderError where the text has no port: it says whether there is no adapter, the
    tool failed, or the text is of another kind."""
    hosts = list(dict.fromkeys(match[1] for match in _PREFIXED.finditer(text)))
    if len(hosts) > 1:
        raise Problems(file).refuse(
            f"the output of {len(hosts)} hosts ({shown(', '.join(hosts))}); allowed: one host a file"
        )
    host = hosts[0] if hosts else ""
    if host:
        text = re.sub(rf"^{re.escape(host)}: ?", "", text, flags=re.MULTILINE)
    found = read_ibstat(text, file)
    if not found.ports:
        raise Problems(file).refuse(_why_nothing(text, found))
    return NodeFound(
        kind=KIND,
        file=file,
        name=host,
        ports=tuple(_port(port) for port in found.ports),
        complete=found.complete,
        problems=found.problems,
    )


def _why_nothing(text: str, found: Ibstat) -> str:
    if is_blank(text):
        return "no adapter: ibstat prints nothing where there is none"
    if found.adapters:
        return (
            f"{len(found.adapters)} adapters without their ports ({shown(', '.join(found.adapters))}): "
            "ibstat -s prints no ports; allowed: what plain ibstat prints"
        )
    if found.failed or found.warned:
        return f"no port: the tool failed ({found.failed or found.warned})"
    what = looks_like(text)
    if what:
        return f"no text of ibstat; this looks like: {what}"
    if len(text) < _SHORT_TEXT and "_" in text and _NAMES_ONLY.match(text + "\n"):
        return "names of adapters only (ibstat -l); allowed: what plain ibstat prints"
    if len(text) < _SHORT_TEXT and _GUIDS_ONLY.match(text + "\n"):
        return "GUIDs of ports only (ibstat -p); allowed: what plain ibstat prints"
    return "found no adapter (CA 'name'); allowed: what ibstat or ibstatus prints"


def _port(port: Port) -> PortFound:
    return PortFound(
        hca=port.hca,
        port=port.port,
        state=port.state,
        physical_state=port.physical_state,
        rate_gbps=port.rate_gbps,
        link_layer=port.link_layer,
        port_guid=port.port_guid,
        node_guid=port.node_guid,
        hca_type=port.hca_type,
        firmware=port.firmware,
        lid=port.lid,
    )
