"""An installed wheel on a real device: ``pytest tests/device/test_wheel.py --store DIR --wheel FILE``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.fresh_process import install, start

pytestmark = pytest.mark.device


@pytest.mark.parametrize("how", [(), ("--warmup",)], ids=["on first use", "by tkc.warmup"])
def test_a_fresh_process_launches_every_artifact_of_an_installed_wheel_under_error(
    how: tuple[str, ...], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Right against the references, read in place, nothing compiled or copied, no compiler imported."""
    wheel = request.config.getoption("--wheel")
    if wheel is None:
        pytest.fail("give --wheel FILE, which `tkc wheel` wrote for this device")
    installed = install(Path(wheel), tmp_path / "site")
    run = ("--device", installed.device, "artifacts", "--grid", installed.grid, *how)
    told = start(*run, home=tmp_path / "home", path=installed.folder, TKC_ON_MISS="error")
    assert told["wrong"] == []
    assert (told["layers"], told["heavy"]) == ([str(installed.store)], [])
    assert told["kernels"] > 30
    assert [path.name for path in (tmp_path / "home").iterdir() if path.name != ".nv"] == []  # the driver's own folder
