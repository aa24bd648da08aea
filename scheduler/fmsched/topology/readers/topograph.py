"""Topograph (github.com/NVIDIA/topograph): its simulation models, and the topology that it writes for Slurm.

A model is YAML with `switches`, each with the switches or nodes below it, and `blocks` of nodes behind one switch. Its three generations
differ: lists or mappings of switches; `capacity_blocks` with `nvlink`, or `blocks` with annotations or labels that name the accelerator
domain. What Topograph writes is topology.conf or topology.yaml, with real names in comments; the Slurm reader reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from fmproto.dumptext import Problems
from fmproto.yamltext import Items, Scalar, Table, Tree, describe
from fmsched.topology.readers import slurm_topology
from fmsched.topology.readers.found import FabricFound
from fmsched.topology.readers.slurm_fabric import Listing
from fmsched.topology.readers.slurm_looks import CONF, YAML, is_blank, looks_like
from fmsched.topology.readers.slurm_names import Names
from fmsched.topology.readers.slurm_yaml import BadField, list_of, load_tree, table, text_of

KIND = "topograph"

_MODEL = re.compile(r"^(?:switches|capacity_blocks|blocks):", re.MULTILINE)
# Keys of annotations and labels that name a node's NVLink domain, in the order of their right.
_DOMAIN_KEYS = (
    "accelerator.topology.test/domain",
    "network.topology.nvidia.com/accelerator",
    "accelerated.topology.nvidia.com/level-0",
    "nvidia.com/gpu.clique",
)

Fields = dict[str, tuple[int, Tree]]


def read(text: str, file: str) -> FabricFound:
    """Raises ReaderError."""
    problems = Problems(file)
    if is_blank(text):
        raise problems.refuse("empty: found no line; allowed: a model (YAML) or the Slurm topology that Topograph writes")
    what = looks_like(text)
    if what in (CONF, YAML):
        return replace(slurm_topology.read(text, file), kind=KIND)
    if what not in ("", "simulation model of Topograph", "JSON") or not _MODEL.search(text):
        raise problems.refuse(f"no model and no output of Topograph{f'; this looks like: {what}' if what else ''}")
    root = load_tree(text, problems)
    if not isinstance(root, Table):
        raise problems.refuse(
            f"found {describe(root)} as the root; allowed: a mapping with switches and blocks", line=root.line
        )
    return _Model(problems).read(root.fields)


class _Model:
    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._names = Names(problems)
        self._listing = Listing(problems)
        self._blocks_of: dict[str, list[str]] = {}  # switch → blocks that it names
        self._first: BadField | None = None

    def read(self, fields: Fields) -> FabricFound:
        for line, name, body in self._entries(fields, "switches", "name"):
            self._guarded(line, name, self._switch, body)
        switch_of = {block: switch for switch, blocks in self._blocks_of.items() for block in blocks}
        for key in ("blocks", "capacity_blocks"):
            for line, name, body in self._entries(fields, key, "name"):
                self._guarded(line, name, partial(self._block, switch_of.get(name, "")), body)
        for line, name, body in self._entries(fields, "nodes", "name"):
            self._guarded(line, name, self._node, body)
        if not self._listing.hosts and not any(listed.children for listed in self._listing.switches.values()):
            first = self._first
            raise self._problems.refuse(
                f"a model without nodes and links{f': {first.why}' if first else ''}",
                first.what if first else "the whole file",
            )
        self._define_the_rest()
        return self._listing.found(KIND)

    def _define_the_rest(self) -> None:
        """Models name a leaf only where another switch, or a block, lists it."""
        for name, listed in self._listing.switches.items():
            if not listed.defined:
                self._listing.switch(listed.line, name)

    def _entries(self, fields: Fields, key: str, name_key: str) -> Iterator[tuple[int, str, Fields]]:
        """(line, name, fields) of a mapping by name, of a list with a name field, or of a list of names."""
        if key not in fields:
            return
        line, tree = fields[key]
        if isinstance(tree, Table):
            for name, (at, body) in tree.fields.items():
                if isinstance(body, Table) or (isinstance(body, Scalar) and body.value is None):
                    yield at, name, body.fields if isinstance(body, Table) else {}
                else:
                    self._set_aside(BadField(at, f"{key}: {name}", f"found {describe(body)}; allowed: a mapping"))
        elif isinstance(tree, Items):
            for row in tree.items:
                if isinstance(row, Table):
                    named = row.fields.get(name_key, (0, None))[1]
                    yield row.line, named.text.strip() if isinstance(named, Scalar) else "", row.fields
                elif not isinstance(row, Scalar):
                    self._set_aside(BadField(row.line, key, f"found {describe(row)}; allowed: a mapping"))
        elif not (isinstance(tree, Scalar) and tree.value is None):
            self._set_aside(BadField(line, key, f"found {describe(tree)}; allowed: a mapping or a list"))

    def _guarded(self, line: int, name: str, take: Callable[[int, str, Fields], None], body: Fields) -> None:
        try:
            take(line, name, body)
        except BadField as bad:
            self._set_aside(bad)

    def _set_aside(self, bad: BadField) -> None:
        self._first = self._first or bad
        self._problems.add(bad.line, bad.what, bad.why)

    def _switch(self, line: int, name: str, body: Fields) -> None:
        if not name:
            raise BadField(line, "switches", "a switch without a name")
        children = self._names.expand(list_of(body, "switches"), line, "switches")
        nodes = self._names.expand(list_of(body, "nodes"), line, "nodes")
        for key in ("capacity_blocks", "blocks"):
            self._blocks_of.setdefault(name, []).extend(self._names.expand(list_of(body, key), line, key))
        self._listing.switch(line, name)
        self._listing.below(name, children, nodes)

    def _block(self, switch: str, line: int, name: str, body: Fields) -> None:
        nodes = self._names.expand(list_of(body, "nodes"), line, "nodes")
        switch = text_of(body, "switch") or switch
        if switch:
            if switch not in self._listing.switches or not self._listing.switches[switch].defined:
                self._listing.switch(line, switch)
            self._listing.below(switch, (), nodes)
        self._listing.domain(line, self._domain(body), nodes)

    def _node(self, line: int, name: str, body: Fields) -> None:
        domain = self._domain(body)
        if name and domain:
            self._listing.domain(line, domain, (name,))
        elif name:
            self._listing.hosts.setdefault(name, "")

    def _domain(self, body: Fields) -> str:
        """The NVLink domain that a block or a node names; empty where it names none."""
        if "nvlink" in body:
            return text_of(body, "nvlink")
        for part in ("annotations", "labels", "attributes"):
            if part in body and isinstance(body[part][1], Table):
                marks = table(body[part][1], part).fields
                for key in ("nvlink", *_DOMAIN_KEYS):
                    if key in marks and (domain := text_of(marks, key)):
                        return domain
        return ""
