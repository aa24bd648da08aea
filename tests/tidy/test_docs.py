"""What the documents show is what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fmsched.lifecycle.table import mermaid
from fmsched.manifest import Manifest, parse

ROOT = Path(__file__).resolve().parents[2]


def test_the_state_diagram_is_made_from_the_table() -> None:
    assert mermaid() in (ROOT / "ARCHITECTURE.md").read_text()


def test_the_readme_shows_a_valid_job_and_valid_python() -> None:
    readme = (ROOT / "README.md").read_text()
    (job,) = re.findall(r"```yaml\n(.*?)```", readme, re.DOTALL)
    assert isinstance(parse(job), Manifest)
    for snippet in re.findall(r"```python\n(.*?)```", readme, re.DOTALL):
        compile(snippet, "README.md", "exec")


def test_the_readme_works_without_a_service(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    commands = re.findall(r"^    (fmctl (?:topo generate|plan [^\n]*--cluster)[^\n]*)$", readme, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        line = command.replace("fmctl", f"{sys.executable} -m fmclient.cli.main").replace(
            "cluster.yaml", f"{tmp_path}/cluster.yaml"
        )
        done = subprocess.run(line, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr


LINKED = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("path", LINKED, ids=lambda path: path.name)
def test_links_and_paths_in_documents_exist(path: Path) -> None:
    text = path.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    missing = [link for link in links if not (path.parent / link).exists()]
    assert not missing


def test_every_make_target_that_the_readme_names_exists() -> None:
    targets = set(re.findall(r"^    make ([a-z-]+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    defined = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert targets
    assert targets <= defined
