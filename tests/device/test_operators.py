"""The operators through the loader on a real device: right, in graphs, on streams and threads, and refused early."""

from __future__ import annotations

import importlib
import os
import threading
from pathlib import Path

import pytest

import tkc
from tkc import runtime
from tkc.errors import ArgumentError, ArtifactMissingError, LoadError
from tkc.registry import load_catalog

from .conftest import FAMILIES

pytestmark = pytest.mark.device
torch = pytest.importorskip("torch")


@pytest.fixture
def scores() -> torch.Tensor:
    return torch.randn(128, 256, device="cuda")


@pytest.mark.parametrize("family", FAMILIES)
def test_operators_equal_their_references(family: str) -> None:
    importlib.import_module(f"tests.device.cases.{family}").correctness(torch.device("cuda", 0))


@pytest.mark.parametrize("entry", list(load_catalog()), ids=lambda entry: entry.spec.name)
def test_every_artifact_of_the_grid_equals_its_reference(entry: object) -> None:
    from tkc.grids import load_grid
    from tkc.runtime.check import check_loaded

    seed = int.from_bytes(os.urandom(4), "little")
    chosen = entry.spec.specializations(load_grid("deepseek-v3"))
    results = [result for one in chosen for result in check_loaded(entry, one, "cuda", seed=seed)]
    assert results or not chosen
    assert [result for result in results if not result.ok] == [], f"seed {seed}"


def test_warm_up_loads_the_whole_grid() -> None:
    report = tkc.warmup("deepseek-v3", device="cuda:0", progress=False)
    assert not report.missed and report.loaded


def test_launches_inside_a_cuda_graph(scores: torch.Tensor) -> None:
    from kernel_specs.moe import topk_gate

    topk_gate(scores, 8)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        picked = topk_gate(scores, 8)
    for _ in range(3):
        scores.normal_()
        graph.replay()
        assert torch.equal(picked, scores.sort(dim=-1, descending=True, stable=True).indices[:, :8])


def test_the_first_call_after_a_warm_up_may_be_inside_a_capture(scores: torch.Tensor) -> None:
    """What stands for the arguments that a call leaves out is made at the first call, whichever that is."""
    from kernel_specs.moe import group_count, moe_topk_gate_forward

    tkc.warmup("deepseek-v3", device="cuda:0", progress=False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        topk_idx, _ = moe_topk_gate_forward(scores, 8, False, 0, 1.0, 0, "sigmoid")
        counts = group_count(topk_idx, 256)
    for _ in range(3):
        scores.normal_()
        graph.replay()
        want, _ = moe_topk_gate_forward(scores, 8, False, 0, 1.0, 0, "sigmoid")
        assert torch.equal(topk_idx, want)
        assert torch.equal(counts, torch.bincount(want.flatten(), minlength=256).int())


def test_loading_inside_a_capture_is_refused_and_the_capture_lives(scores: torch.Tensor) -> None:
    """F1: a module loaded during capture ended a serving engine after 29 hours."""
    from kernel_specs.moe import topk_gate

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = scores * 2
        with pytest.raises(LoadError, match=r"tkc\.warmup\("):
            topk_gate(scores, 8)
    graph.replay()
    assert torch.equal(doubled, scores * 2)
    assert topk_gate(scores, 8).shape == (128, 8)


def test_launches_on_the_current_stream(scores: torch.Tensor) -> None:
    from kernel_specs.moe import topk_gate

    topk_gate(scores, 8)
    stream = torch.cuda.Stream()
    late = torch.empty_like(scores)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # the write below comes late: a launch on another stream would not see it
        late.copy_(scores)
        picked = topk_gate(late, 8)
    stream.synchronize()
    assert torch.equal(picked, scores.sort(dim=-1, descending=True, stable=True).indices[:, :8])


def test_many_threads_load_once_and_launch_on_streams_of_their_own() -> None:
    from kernel_specs.moe import topk_gate

    barrier, wrong = threading.Barrier(8), []

    def work(seed: int) -> None:
        generator = torch.Generator(device="cuda").manual_seed(seed)
        stream = torch.cuda.Stream()
        barrier.wait()
        with torch.cuda.stream(stream):
            for _ in range(50):
                x = torch.randn(64, 256, device="cuda", generator=generator)
                picked = topk_gate(x, 8)
                if not torch.equal(picked, x.sort(dim=-1, descending=True, stable=True).indices[:, :8]):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("on", [False, True])
def test_chain_of_dependent_launches_is_right_with_and_without_pdl(scores: torch.Tensor, on: bool) -> None:
    import kernel_specs.config
    from kernel_specs.moe import normalize_weight

    with kernel_specs.config.override(pdl=on):
        weights = torch.rand(4096, 8, device="cuda")
        for _ in range(200):
            _, weights = normalize_weight(weights)
    assert torch.allclose(weights.sum(dim=1), torch.ones(4096, device="cuda"), atol=1e-5)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda x: x.double(), "float64"),
        (lambda x: x[None], "2 dimensions"),
        (lambda x: x.T.contiguous().T, "stride"),
        (lambda x: x.cpu(), "cpu"),
    ],
    ids=["dtype", "rank", "stride", "device"],
)
def test_wrong_argument_is_named_before_anything_is_launched(scores: torch.Tensor, spoil: object, said: str) -> None:
    kernel = tkc.kernel("moe.topk_gate", device="cuda:0", num_experts=256, num_topk=8)
    out = torch.full((128, 8), -7, device="cuda")
    with pytest.raises(ArgumentError, match=said) as raised:
        kernel(spoil(scores), out)
    torch.cuda.synchronize()
    assert raised.value.argument == "scores"
    assert bool((out == -7).all())


def test_misaligned_pointer_is_refused_by_name() -> None:
    kernel = tkc.kernel("moe.topk_gate", device="cuda:0", num_experts=256, num_topk=8)
    scores = torch.zeros(128, 256, device="cuda")
    room = torch.full((128 * 8 + 1,), -7, device="cuda")
    out = room[1:].view(128, 8)  # 8 bytes past a multiple of 16
    with pytest.raises(ArgumentError, match=r"`topk_idx`.*(aligned|multiple)"):
        kernel(scores, out)
    torch.cuda.synchronize()
    assert bool((room == -7).all())


def test_an_artifact_for_another_architecture_is_never_loaded(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G3: elsewhere a prebuilt of the wrong architecture imported fine and died at launch."""
    from tkc.cache import Hit, Store
    from tkc.model import Host, Request, Target
    from tkc.registry import find_entry

    entry = find_entry("moe.topk_gate")
    specialization = entry.spec.bind(num_experts=256, num_topk=8)
    source, host = entry.source_digest(Target.parse("sm90").backend), Host.this_machine().arch
    wrong = Store(store).resolve(Request(specialization, source, "sm100", host).key)
    assert isinstance(wrong, Hit), "the carried store should hold topk_gate for sm100 too"
    planted = Store(tmp_path / "planted", writable=True)
    with planted.stage() as folder:
        for file in wrong.manifest.files:
            (folder / file.name).write_bytes(wrong.store.read_blob(file.digest))
            planted._blobs.publish((folder / file.name).read_bytes())
        planted.commit_manifest(wrong.manifest)
    request = Request(specialization, source, "sm90", host)
    planted.write_ref(request.key, request.fields(), wrong.manifest.key)
    monkeypatch.setenv("TKC_STORES", str(planted.root))
    runtime.reset()
    with pytest.raises(ArtifactMissingError, match="sm_100"):
        tkc.kernel("moe.topk_gate", device="cuda:0", num_experts=256, num_topk=8)


def test_a_forked_child_gets_a_clear_error_and_the_parent_goes_on(scores: torch.Tensor) -> None:
    kernel = tkc.kernel("moe.topk_gate", device="cuda:0", num_experts=256, num_topk=8)
    before, after = (torch.empty(128, 8, dtype=torch.int64, device="cuda") for _ in range(2))
    kernel(scores, before)
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            kernel(scores, before)
            os.write(write, b"no error")
        except Exception as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(read, 4096).decode()
    assert "fork" in said, said
    kernel(scores, after)
    assert torch.equal(after, before)


def test_a_miss_under_the_policy_error_names_the_line_that_builds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TKC_STORES", str(tmp_path / "empty"))
    runtime.reset()
    with pytest.raises(ArtifactMissingError, match=r"tkc build moe\.topk_gate .*--target sm90"):
        tkc.kernel("moe.topk_gate", device="cuda:0", num_experts=256, num_topk=8)
