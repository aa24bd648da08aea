"""Slurm's topology.yaml (topology.yaml(5)): a list of topologies, each a tree, blocks, or of a kind that says nothing of switches.

Several topologies of one file are views of one cluster for its partitions: a tree places each node once, by the first topology that
names it (the cluster's default first), and blocks add the NVLink domains.
"""

from __future__ import annotations

from fmproto.dumptext import Problems
from fmproto.yamltext import Items, Limits, Scalar, Table, Tree, describe, load
from fmsched.topology.readers.found import FabricFound
from fmsched.topology.readers.slurm_fabric import Listing
from fmsched.topology.readers.slurm_names import Names

LIMITS = Limits(bytes_max=2 << 20, depth_max=32, values_max=50_000)  # pure-Python YAML reads 20,000 values a second
KINDS = ("block", "flat", "ring", "torus3d", "tree")


class BadField(Exception):
    """Something of the wrong form; ends the reading of the part it is in."""

    def __init__(self, line: int, what: str, why: str) -> None:
        super().__init__(why)
        self.line, self.what, self.why = line, what, why


def load_tree(text: str, problems: Problems) -> Tree:
    """Raises ReaderError with the first fault."""
    tree = load(text, LIMITS)
    if isinstance(tree, tuple):
        raise problems.refuse(f"not readable as YAML: {tree[0].message}", tree[0].path or "the whole file", tree[0].line)
    return tree


def read_yaml(text: str, problems: Problems, kind: str) -> FabricFound:
    """Raises ReaderError where no topology of the file can be used."""
    root = load_tree(text, problems)
    topologies = root.items if isinstance(root, Items) else [root]
    if isinstance(root, Scalar):
        raise problems.refuse(f"found {describe(root)} as the root; allowed: a list of topologies, or one", line=root.line)
    reader = _Reader(problems)
    ordered = sorted(topologies, key=lambda one: not _is_default(one))
    for topology in ordered:
        reader.topology(topology)
    return reader.found(kind)


def _is_default(topology: Tree) -> bool:
    default = topology.fields.get("cluster_default") if isinstance(topology, Table) else None
    return default is not None and isinstance(default[1], Scalar) and default[1].value is True


class _Reader:
    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._names = Names(problems)
        self._listing = Listing(problems)
        self._bad: BadField | None = None
        self._used = 0
        self._flat = 0

    def found(self, kind: str) -> FabricFound:
        if not self._used:
            if self._bad is not None:
                raise self._problems.refuse(self._bad.why, self._bad.what, self._bad.line)
            raise self._problems.refuse(
                "no topology in it has switches or blocks" + (" (topology/flat has none)" if self._flat else "")
            )
        return self._listing.found(kind)

    def topology(self, tree: Tree) -> None:
        try:
            self._topology(tree)
        except BadField as bad:
            self._bad = self._bad or bad
            self._problems.add(bad.line, bad.what, bad.why)

    def _topology(self, tree: Tree) -> None:
        fields = table(tree, "a topology").fields
        name = text_of(fields, "topology") or "topology"
        kinds = [key for key in fields if key in KINDS and not _is_off(fields[key][1])]
        if len(kinds) > 1:
            line = fields[kinds[1]][0]
            raise BadField(line, name, f"{' and '.join(kinds)} exclude one another; allowed: one of {', '.join(KINDS)}")
        for key, (line, _) in fields.items():
            if key not in KINDS and key not in ("topology", "cluster_default"):
                allowed = ", ".join(("topology", "cluster_default", *KINDS))
                self._problems.add(line, f"{name}: {key}", f"no field of a topology; allowed: {allowed}")
        if not kinds:
            raise BadField(tree.line, name, f"no kind of topology; allowed: one of {', '.join(KINDS)}")
        line, body = fields[kinds[0]]
        if kinds[0] == "tree":
            self._tree(name, table(body, f"tree of {name}"))
        elif kinds[0] == "block":
            self._block(name, table(body, f"block of {name}"))
        elif kinds[0] == "flat":
            self._flat += 1
        else:
            self._problems.add(
                line, f"{name}: {kinds[0]}", f"topology/{kinds[0]} has no switches and no NVLink domains; it is not read"
            )

    def _tree(self, name: str, body: Table) -> None:
        rows = [
            (row, table(row, f"a switch of {name}").fields) for row in items(body.fields, "switches", f"tree of {name}")
        ]
        lists = []
        for row, fields in rows:
            switch = text_of(fields, "switch")
            if not switch:
                raise BadField(row.line, name, "a switch without a name (field switch)")
            children = self._names.expand(list_of(fields, "children"), row.line, "children")
            lists.append((row.line, switch, children, self._names.expand(list_of(fields, "nodes"), row.line, "nodes")))
        nodes = {node for *_, below in lists for node in below}
        again = nodes & self._placed() or {switch for _, switch, *_ in lists} & self._listing.switches.keys()
        if again:
            raise BadField(
                body.line,
                name,
                f"{len(again)} of its nodes or switches ({min(again)}) are in another topology's tree; only that is read",
            )
        self._used += 1
        for line, switch, children, below in lists:
            self._listing.switch(line, switch)
            self._listing.below(switch, children, below)

    def _placed(self) -> set[str]:
        return {node for listed in self._listing.switches.values() for node in listed.nodes}

    def _block(self, name: str, body: Table) -> None:
        sizes = []
        if "block_sizes" in body.fields:
            for size in items(body.fields, "block_sizes", f"block of {name}"):
                value = size.value if isinstance(size, Scalar) else None
                sizes.append(value if isinstance(value, int) and not isinstance(value, bool) else 0)
            why = sizes_fault(sizes)
            if why:
                raise BadField(body.fields["block_sizes"][0], f"{name}: block_sizes", why)
        for row in items(body.fields, "blocks", f"block of {name}"):
            fields = table(row, f"a block of {name}").fields
            block = text_of(fields, "block")
            if not block:
                raise BadField(row.line, name, "a block without a name (field block)")
            nodes = self._names.expand(list_of(fields, "nodes"), row.line, "nodes")
            self._used += bool(nodes)
            self._listing.domain(row.line, block, nodes)


def _is_off(tree: Tree) -> bool:
    return isinstance(tree, Scalar) and (tree.value is None or tree.value is False)


def sizes_fault(sizes: list[int]) -> str:
    """What Slurm would not take as block sizes; empty where it takes them."""
    if not sizes or min(sizes) < 1:
        return "the block sizes are no list of whole numbers above 0"
    base = min(sizes)
    for size in sizes:
        times = size // base
        if size % base or times & (times - 1):
            return f"block size {size} is not a power of two of the base block size {base}"
    return ""


def table(tree: Tree, what: str) -> Table:
    """Raises BadField where `tree` is no mapping."""
    if not isinstance(tree, Table):
        raise BadField(tree.line, what, f"found {describe(tree)}; allowed: a mapping")
    return tree


def items(fields: dict[str, tuple[int, Tree]], key: str, what: str) -> list[Tree]:
    """The list under `key`. Raises BadField where it is missing, or no list."""
    if key not in fields:
        raise BadField(min((line for line, _ in fields.values()), default=0), what, f"no field {key}")
    line, tree = fields[key]
    if not isinstance(tree, Items):
        raise BadField(line, f"{what}: {key}", f"found {describe(tree)}; allowed: a list")
    return tree.items


def text_of(fields: dict[str, tuple[int, Tree]], key: str) -> str:
    """The name under `key`, as written; empty where there is none. Raises BadField where it is no scalar."""
    if key not in fields:
        return ""
    line, tree = fields[key]
    if not isinstance(tree, Scalar):
        raise BadField(line, key, f"found {describe(tree)}; allowed: a name")
    return "" if tree.value is None else tree.text.strip()


def list_of(fields: dict[str, tuple[int, Tree]], key: str) -> str:
    """The host list under `key`, or several of them joined. Raises BadField where it is neither."""
    line, tree = fields.get(key, (0, Scalar(0, "")))
    if isinstance(tree, Items):
        if not all(isinstance(one, Scalar) for one in tree.items):
            raise BadField(line, key, "found a list of lists or mappings; allowed: names and ranges")
        return ",".join(one.text for one in tree.items if isinstance(one, Scalar))
    return text_of(fields, key)
