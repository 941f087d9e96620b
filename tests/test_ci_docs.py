"""The workflow and the image that docs/ci.md gives away: linted, and their commands run for real."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from tests.wheel.environments import ROOT, Environment
from tkc.cli import cli
from tkc.model import HOST_NAMES, TARGET_NAMES, Host

WORKFLOW, DOCKERFILE = ROOT / "docs" / "ci" / "wheels.yml", ROOT / "docs" / "ci" / "Dockerfile"
CODE_AND_PAGES = ("tkc", "cache_tools", "kernel_specs", "docs", "examples")
TOOLS = Path(sys.executable).parent


def test_every_extra_that_a_message_or_page_names_is_one_of_this_distribution() -> None:
    """What is called tkc on an index is somebody else's: nobody may be told to install that."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    files = [*ROOT.glob("*.md"), *(path for folder in CODE_AND_PAGES for path in (ROOT / folder).rglob("*.*"))]
    named = {
        (path.relative_to(ROOT).as_posix(), name, extra)
        for path in files
        if path.suffix in {".py", ".md", ".yml"}
        for name, extra in re.findall(r"\b([\w-]*tkc)\[([a-z]+)\]", path.read_text())
    }
    assert len(named) > 5
    known = {(project["name"], extra) for extra in project["optional-dependencies"]}
    assert {one for one in named if one[1:] not in known} == set()


def _lint(tool: str, path: Path) -> None:
    done = subprocess.run([TOOLS / tool, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflow_passes_actionlint() -> None:
    _lint("actionlint", WORKFLOW)


def test_the_image_passes_hadolint() -> None:
    _lint("hadolint", DOCKERFILE)


def _job() -> dict:
    return yaml.safe_load(WORKFLOW.read_text())["jobs"]["wheel"]


def test_the_workflow_builds_three_targets_for_two_hosts() -> None:
    matrix = _job()["strategy"]["matrix"]
    assert len(matrix["target"]) == 3
    assert set(matrix["target"]) <= set(TARGET_NAMES)
    assert set(matrix["host"]) == set(HOST_NAMES)


def _commands_in_docs() -> Iterator[tuple[str, str]]:
    """Every line that begins with ``tkc`` in a code block of a page, or in the workflow or the image."""
    for page in sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]):
        for block in re.findall(r"^```(?:sh)?\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            for line in block.replace("\\\n", " ").splitlines():
                if line.strip().startswith("tkc "):
                    yield page.relative_to(ROOT).as_posix(), line.strip()
    for step in _job()["steps"]:
        if step.get("run", "").startswith("tkc "):
            yield "docs/ci/wheels.yml", step["run"]


def _understood(words: list[str]) -> None:
    """Parse as the command line does, without looking at files or running anything."""
    context = click.Context(cli, info_name="tkc")
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        command, context = found, click.Context(found, info_name=name, parent=context)
    command.make_parser(context).parse_args(args=words)


def test_every_command_in_the_docs_is_understood() -> None:
    found = list(_commands_in_docs())
    assert len(found) > 15
    for page, line in found:
        for part in re.split(r"\s(?:&&|\|\||\||;)\s|;\s", line.partition("  #")[0].partition(" # ")[0]):
            words = shlex.split(re.sub(r"\$\([^)]*\)", "x", part.replace("…", "x")))
            if words and words[0] == "tkc" and "SPEC" not in words:
                try:
                    _understood(words[1:])
                except click.UsageError as error:
                    raise AssertionError(f"{page}: {line!r}: {error.format_message()}") from error


@pytest.mark.level2
def test_the_workflows_steps_make_a_wheel_and_the_images_steps_install_and_prove_it(tmp_path: Path) -> None:
    """All `run` steps in a fresh environment, then all of the image's, for the CPU and the smallest grid."""
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(checkout)], check=True)
    builder = Environment.make(tmp_path / "builder", "3.11")
    here = {"GRID": "smoke", "TARGET": "cpu", "HOST": Host.this_machine().arch}
    for step in _job()["steps"]:
        if "run" in step:
            _run(step["run"], builder, checkout, {**here, "TKC_CACHE_DIR": str(checkout / ".tkc/store")})
    certificate = json.loads((checkout / "dist" / f"coverage-cpu-{here['HOST']}.json").read_text())
    assert certificate["covered"] is True

    _run("python -m pip wheel --quiet --no-deps --wheel-dir dist .", builder, checkout, {})
    trainer = Environment.make(tmp_path / "trainer", "3.11")
    trainer.install("torch")  # what the base image brings
    kernels = tmp_path / "kernels"
    kernels.symlink_to(checkout / "dist")
    for instruction, text in _instructions():
        if instruction == "RUN":
            _run(text.replace("/opt/kernels", str(kernels)), trainer, tmp_path, {**here, "TKC_ON_MISS": "error"})
    assert json.loads((kernels / "coverage.json").read_text())["covered"] is True
    checked = json.loads(trainer.output("-c", _EVERY_KERNEL))
    assert checked["wrong"] == []
    assert checked["kernels"] == checked["asked"] > 30


_EVERY_KERNEL = """
import json
from tkc.grids import load_grid
from tkc.registry import load_catalog
from tkc.runtime.check import check_loaded

kernels, wrong, asked = 0, [], 0
for entry in load_catalog():
    for one in entry.spec.specializations(load_grid("smoke")):
        asked += 1
        results = list(check_loaded(entry, one, "cpu"))
        kernels += bool(results)
        wrong += [str(one) for result in results if not result.ok]
print(json.dumps({"kernels": kernels, "wrong": wrong, "asked": asked}))
"""


def _run(command: str, environment: Environment, folder: Path, env: dict[str, str]) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TKC_", "PYTHON"))}
    path = f"{environment.folder / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**clean, **env, "PATH": path},
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def _instructions() -> Iterator[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    for line in text.splitlines():
        instruction, _, rest = line.partition(" ")
        if instruction:
            yield instruction, rest
