"""The names that users write mean functions, whatever was imported before, and cost nothing to import."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pydoc
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import kernel_specs
from kernel_specs._namespace import _public_names
from tkc.registry import load_catalog

FOLDER = Path(kernel_specs.__file__).parent
OPERATORS = sorted(FOLDER.glob("*/*/op.py"))
FAMILIES = sorted({path.parent.parent.name for path in OPERATORS})


def run(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


HEAVY = "print(sorted({'torch', 'tilelang', 'tvm', 'tvm_ffi', 'numpy'} & set(sys.modules)))"


@pytest.mark.parametrize(
    "statement",
    [
        "import kernel_specs",
        "import kernel_specs.moe, kernel_specs.quant, kernel_specs.transpose, kernel_specs.transform",
        "import kernel_specs.torch, kernel_specs.config, kernel_specs.utils",
        "from kernel_specs.moe.topk_gate.spec import SPEC",
        "import kernel_specs.moe.topk_gate.spec",
        "import kernel_specs; dir(kernel_specs.moe); dir(kernel_specs.torch); hasattr(kernel_specs.moe, 'nonsense')",
        "import kernel_specs; kernel_specs.set_pdl(True); kernel_specs.get_pdl(); kernel_specs.reset_runtime_config()",
    ],
)
def test_importing_needs_neither_torch_nor_tilelang(statement: str) -> None:
    """Listing, keying and cache tools run on machines that have neither."""
    assert run(f"import sys; {statement}; {HEAVY}") == "[]"


@pytest.mark.parametrize(
    "before",
    [
        "",
        "import kernel_specs.moe.topk_gate",
        "from kernel_specs.moe.topk_gate.spec import SPEC",
        "import kernel_specs.moe.topk_gate.op",
        "import kernel_specs.moe.topk_gate.reference",
        "import tkc.registry; tkc.registry.load_catalog()",
    ],
)
def test_the_name_is_the_function_though_a_folder_has_it_too(before: str) -> None:
    """Python binds a sub-package on its parent when anything inside it is imported."""
    code = f"{before}\nimport types, kernel_specs\nfrom kernel_specs.moe import topk_gate\n"
    code += "assert topk_gate is kernel_specs.moe.topk_gate and isinstance(topk_gate, types.FunctionType)\n"
    code += "from kernel_specs.moe.topk_gate import spec\nassert isinstance(spec, types.ModuleType)\n"
    code += "import kernel_specs.moe.topk_gate as again\nassert again is topk_gate\n"
    assert run(code + "print(topk_gate.__module__)") == "kernel_specs.moe.topk_gate.op"


def test_eight_threads_that_ask_first_get_one_function() -> None:
    code = """
import threading, kernel_specs
barrier, found = threading.Barrier(8), []
def ask():
    barrier.wait()
    found.append(kernel_specs.transpose.transpose)
threads = [threading.Thread(target=ask) for _ in range(8)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
print(len(found), len(set(found)))
"""
    assert run(code) == "8 1"


@pytest.mark.parametrize("path", OPERATORS, ids=lambda path: f"{path.parent.parent.name}.{path.parent.name}")
def test_every_operator_of_every_file_is_reachable(path: Path) -> None:
    family = getattr(kernel_specs, path.parent.parent.name)
    module = importlib.import_module(f"{family.__name__}.{path.parent.name}.op")
    assert module.__all__, f"{path} names no operator"
    for name in module.__all__:
        assert getattr(family, name) is getattr(module, name)
        assert name in dir(family) and name in family.__all__


@pytest.mark.parametrize("pattern", [*(f"{family}/*/op.py" for family in FAMILIES), "*/*/reference.py"])
def test_no_two_files_give_one_name(pattern: str) -> None:
    counted = Counter(name for path in FOLDER.glob(pattern) for name in _public_names(path))
    assert [name for name, count in counted.items() if count > 1] == []


def test_every_kernel_has_an_operator() -> None:
    missing = [entry.spec.name for entry in load_catalog("kernel_specs") if entry.folder / "op.py" not in OPERATORS]
    assert missing == []


def test_references_are_found_under_their_own_names() -> None:
    from kernel_specs import torch as references

    for name in references.__all__:
        function = getattr(references, name)
        assert inspect.isfunction(function) and function.__module__.endswith(".reference"), name
    assert {"stable_topk", "normalize_weight", "rotary_embedding_ref"} <= set(dir(references))


def test_functions_can_be_inspected_pickled_and_read_about() -> None:
    from kernel_specs.transform import apply_rotary

    assert list(inspect.signature(apply_rotary).parameters)[:3] == ["query", "cos_sin_cache", "key"]
    assert pickle.loads(pickle.dumps(apply_rotary)) is apply_rotary
    assert "apply_rotary(query" in pydoc.plain(pydoc.render_doc(kernel_specs.transform))


@pytest.mark.parametrize(
    ("module", "name", "near"),
    [
        ("kernel_specs.moe", "topk_gat", "topk_gate"),
        ("kernel_specs.transform", "aply_rotary", "apply_rotary"),
        ("kernel_specs.torch", "normalise_weight", "normalize_weight"),
        ("kernel_specs", "set_num_sm", "set_num_sms"),
        ("kernel_specs", "transpos", "transpose"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(module: str, name: str, near: str) -> None:
    with pytest.raises(AttributeError, match=f"Did you mean {near!r}"):
        getattr(importlib.import_module(module), name)


def test_a_private_name_is_refused_without_reading_a_file() -> None:
    with pytest.raises(AttributeError):
        kernel_specs.moe._nothing  # noqa: B018
    assert not hasattr(kernel_specs.moe, "__wrapped__")


def test_an_operator_that_cannot_be_imported_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken operator is not a missing operator."""
    monkeypatch.delitem(vars(kernel_specs.transform), "apply_rotary", raising=False)
    monkeypatch.delitem(sys.modules, "kernel_specs.transform.apply_rotary.op", raising=False)
    monkeypatch.setitem(sys.modules, "tkc.runtime", None)
    with pytest.raises(ModuleNotFoundError, match=r"tkc\.runtime"):
        kernel_specs.transform.apply_rotary  # noqa: B018
