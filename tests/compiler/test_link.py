"""What is linked runs, refuses what it must, depends on nothing else, and is the same bytes each time."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import tvm_ffi
from conftest import HOST, Compiled, compile_in
from elftools.elf.elffile import ELFFile

from tkc.compiler import Tools, Unit, device_runtime, probe
from tkc.compiler.finders import host as host_finder
from tkc.compiler.finders.packages import package_folder
from tkc.errors import CompileError, ToolchainError
from tkc.model import Stage, Target
from tkc.registry import CatalogEntry, load_catalog

MakeUnit = Callable[..., Unit]
Compile = Callable[[Unit], Compiled]


def load(compiled: Compiled) -> Callable[..., None]:
    entry: Callable[..., None] = tvm_ffi.load_module(str(compiled.library)).get_function("main")
    return entry


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_cpu_artifact_computes_what_the_reference_says(unit: MakeUnit, compiled: Compile, dtype: str) -> None:
    made = compiled(unit(dtype=dtype))
    reference = made.unit.entry.reference().scale
    run = load(made)
    for rows, stride in ((0, 256), (1, 256), (5, 256), (7, 320)):
        x = torch.randn(rows, stride).to(getattr(torch, dtype))[:, :256]
        out = torch.full((rows, 256), float("nan"), dtype=x.dtype)
        run(x, out, 1.5, -2)
        assert torch.equal(out, reference(x, 1.5, -2))


def every_value(dtype: torch.dtype) -> torch.Tensor:
    """Each value of a narrow type; of float32, those on and beside every tie between values of narrow types.

    One NaN stands for all: TileLang's conversion to bfloat16 is right for no other.
    """
    values = _every_value(dtype)
    return torch.where(values.float().isnan(), torch.tensor(torch.nan), values.float()).to(dtype)


def _every_value(dtype: torch.dtype) -> torch.Tensor:
    if dtype.itemsize == 1:
        return torch.arange(256).to(torch.uint8).view(dtype)
    if dtype.itemsize == 2:
        return torch.arange(65536).to(torch.int32).to(torch.uint16).view(dtype)
    narrow = [every_value(other).float() for other in NARROW.values()]
    values = torch.cat([torch.cat([v, (v[1:] + v[:-1]) / 2]) for v in narrow])
    beside = [values, values.nextafter(torch.tensor(torch.inf)), values.nextafter(torch.tensor(-torch.inf))]
    return torch.cat([*beside, torch.randn(4096)])


NARROW = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")}


@pytest.mark.parametrize("narrow", NARROW)
def test_narrow_floats_on_the_cpu_convert_every_value_as_the_reference_does(
    convert: CatalogEntry, tools: Callable[[Unit], Tools], tmp_path: Path, narrow: str
) -> None:
    """Subnormals, ties, overflow, infinities and NaN included; both ways."""
    for source, target in (("float32", narrow), (narrow, "float32"), (narrow, "bfloat16")):
        made = Unit(convert, convert.spec.bind(source=source, target=target), Target.parse("cpu"), HOST)
        x = every_value(getattr(torch, source))
        out = torch.empty(x.shape, dtype=getattr(torch, target))
        load(compile_in(made, tools(made), tmp_path / f"{source}-{target}"))(x, out)
        wanted = convert.reference().convert(x, out.dtype)
        nan = wanted.float().isnan()
        assert torch.equal(out.float().isnan(), nan)
        assert torch.equal(out[~nan].view(torch.uint8), wanted[~nan].view(torch.uint8)), f"{source} to {target}"


@pytest.fixture(scope="session")
def convert() -> CatalogEntry:
    return load_catalog("sample_kernels").find("elementwise.convert")


@pytest.fixture
def arguments() -> dict[str, object]:
    return {"x": torch.randn(5, 256), "out": torch.empty(5, 256), "factor": 2.0, "bias": 1}


MISUSES = {
    "another dtype": ({"x": torch.zeros(5, 256, dtype=torch.float64)}, "input x dtype mismatch, expected float32"),
    "another rank": ({"x": torch.zeros(5)}, r"input x ndim mismatch, expected 2; expected: 2, got: 1"),
    "another width": ({"x": torch.zeros(5, 255)}, r"input x shape\[1\] .*expected: 256, got: 255"),
    "sizes that differ": ({"out": torch.zeros(3, 256)}, r"input out shape\[0\] .*expected: 5, got: 3"),
    "another stride": ({"out": torch.zeros(256, 5).t()}, r"input out strides\[1\] .*expected: 1, got: 5"),
    "a misaligned address": (
        {"x": torch.zeros(5 * 256 + 1)[1:].view(5, 256)},
        "input x data pointer is misaligned; expected: a multiple of 16 bytes",
    ),
    "a list for a tensor": ({"x": [1, 2]}, "input x expected pointer or tensor handle"),
    "a long text for a tensor": ({"x": "x" * 100}, "input x expected pointer or tensor handle"),
    "nothing for a tensor": ({"x": None}, "scale.x is expected to have non-NULL pointer"),
    "a number beyond int32": ({"bias": 2**31}, "scalar bias does not fit into int32.* got: 2147483648"),
    "a number below int32": ({"bias": -(2**31) - 1}, "scalar bias does not fit into int32.* got: -2147483649"),
}


@pytest.fixture(scope="module")
def run_scale(tmp_path_factory: pytest.TempPathFactory, scale: object, stamps_dir: Path) -> Callable[..., None]:
    unit = Unit(scale, scale.spec.bind(), Target.parse("cpu"), HOST)  # type: ignore[arg-type, attr-defined]
    tools = probe(unit.target, unit.host, unit.options, stamps_dir=stamps_dir)
    return load(compile_in(unit, tools, tmp_path_factory.mktemp("scale")))


@pytest.mark.parametrize("misuse", MISUSES)
def test_a_misuse_is_refused_saying_what_was_expected_and_what_came(
    run_scale: Callable[..., None], arguments: dict[str, object], misuse: str
) -> None:
    changed, message = MISUSES[misuse]
    with pytest.raises(Exception, match=message):
        run_scale(*{**arguments, **changed}.values())


def test_too_few_arguments_are_refused(run_scale: Callable[..., None], arguments: dict[str, object]) -> None:
    with pytest.raises(Exception, match="num_args should be 4; expected: 4, got: 3"):
        run_scale(*list(arguments.values())[:3])


def test_strides_of_one_row_or_none_do_not_matter(run_scale: Callable[..., None]) -> None:
    for rows in (0, 1):
        out = torch.empty(8, 7 * 256)[:rows].as_strided((rows, 256), (7, 1))
        run_scale(torch.ones(rows, 256), out, 2.0, 1)
        assert bool((out == 3).all())


# The first glibc of each architecture, and on x86_64 the version in which its loader got thread-local variables.
OLD_VERSIONS = {"x86_64": {"GLIBC_2.2.5", "GLIBC_2.3"}, "aarch64": {"GLIBC_2.17"}}
LIBC = {"libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2"}
MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
FROM_LIBC = {
    *("snprintf", "vsnprintf", "memcpy", "memset", "memcmp", "strcmp", "strncmp", "strlen", "strtol"),
    *("malloc", "calloc", "free", "getenv", "abort", "mmap", "madvise", "dlopen", "dlsym", "dlerror"),
    *("pthread_mutex_lock", "pthread_mutex_unlock", "pthread_once", "__tls_get_addr"),
}


@pytest.mark.level1
@pytest.mark.parametrize("host", MACHINES)
@pytest.mark.parametrize("target", ["cpu", "sm90"])
def test_both_hosts_are_built_on_either_and_need_an_old_libc_and_tvm_ffi_alone(
    unit: MakeUnit, compiled: Compile, target: str, host: str
) -> None:
    with compiled(unit(target, host, dtype="float16")).library.open("rb") as file:
        elf = ELFFile(file)
        assert elf["e_machine"] == MACHINES[host]
        tags = {
            (tag.entry.d_tag, getattr(tag, "needed", "")) for tag in elf.get_section_by_name(".dynamic").iter_tags()
        }
        assert {name for tag, name in tags if tag == "DT_NEEDED"} <= LIBC
        versions = {
            auxiliary.name
            for _, group in elf.get_section_by_name(".gnu.version_r").iter_versions()
            for auxiliary in group
        }
        assert versions <= OLD_VERSIONS[host]
        symbols = [symbol for symbol in elf.get_section_by_name(".dynsym").iter_symbols() if symbol.name]
        undefined = {symbol.name for symbol in symbols if symbol["st_shndx"] == "SHN_UNDEF"}
        assert {name for name in undefined if not name.startswith("TVMFFI")} <= FROM_LIBC
        exported = {symbol.name for symbol in symbols} - undefined
        assert {"__tvm_ffi_main", "__tvm_ffi_main_pdl"} <= exported
        assert all(name.startswith(("__tvm_ffi_", "__tkc_")) for name in exported)


@pytest.mark.level1
@pytest.mark.parametrize(("target", "host"), [("cpu", "x86_64"), ("cpu", "aarch64"), ("sm90", "x86_64")])
def test_rebuilt_elsewhere_from_nothing_it_is_bit_identical(
    unit: MakeUnit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, host: str
) -> None:
    """Another folder, another HOME or none, no stamps, and a scratch folder of its own."""
    images = []
    for number, home in enumerate(["/root", "/nonexistent", None]):
        if home is None:
            monkeypatch.delenv("HOME")
        else:
            monkeypatch.setenv("HOME", home)
        monkeypatch.setenv("SOURCE_DATE_EPOCH", str(number))
        stamps = tmp_path / f"stamps-{number}"
        made = unit(target, host)
        tools = probe(made.target, made.host, made.options, stamps_dir=stamps)
        images.append(compile_in(made, tools, tmp_path / ("x" * number) / str(number)).library.read_bytes())
    assert images[0] == images[1] == images[2]
    assert str(tmp_path).encode() not in images[0]


def test_artifacts_do_not_share_bytes_they_should_not(
    unit: MakeUnit, tools: Callable[[Unit], Tools], tmp_path: Path
) -> None:
    """A compiler that remembers results must not take one artifact's for another's."""
    made = [unit(dtype=dtype) for dtype in ("float32", "float16")]
    images = {compile_in(u, tools(u), tmp_path / str(n)).library.read_bytes() for n, u in enumerate(made)}
    assert len(images) == 2


@pytest.fixture
def no_ziglang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_finder, "package_folder", lambda name: None if name == "ziglang" else package_folder(name))


@pytest.mark.usefixtures("no_ziglang")
def test_the_system_compiler_links_for_an_old_libc_too(
    unit: MakeUnit, tools: Callable[[Unit], Tools], tmp_path: Path
) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no system compiler here; ziglang is the default")
    found = tools(unit())
    assert found.toolchain.only("cc").components[0].version.startswith("gcc ")
    made = compile_in(unit(), found, tmp_path)
    out = torch.empty(2, 256)
    load(made)(torch.ones(2, 256), out, 2.0, 1)
    assert bool((out == 3).all())
    with made.library.open("rb") as file:
        groups = ELFFile(file).get_section_by_name(".gnu.version_r").iter_versions()
        assert {auxiliary.name for _, group in groups for auxiliary in group} <= {"GLIBC_2.2.5", "GLIBC_2.17"}


@pytest.mark.usefixtures("no_ziglang")
def test_without_a_compiler_for_the_host_the_error_says_what_to_install(
    unit: MakeUnit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    tools = probe(unit().target, unit().host, unit().options, stamps_dir=None)
    with pytest.raises(ToolchainError, match=r"no C compiler for host .*ziglang.*cc and gcc on PATH.*pip install"):
        tools.require(Stage.LINK)


def test_a_kernel_that_calls_what_no_library_has_is_refused(
    unit: MakeUnit, tools: Callable[[Unit], Tools], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = device_runtime.kernel_table_c
    call = "extern int elsewhere(void); int (*volatile tkc_keeps)(void) = elsewhere;\n"
    monkeypatch.setattr(device_runtime, "kernel_table_c", lambda facts: table(facts) + call)
    with pytest.raises(CompileError, match="calls elsewhere, which neither libc nor tvm-ffi has") as caught:
        compile_in(unit(), tools(unit()), tmp_path)
    assert caught.value.stage == "link"


def test_a_failed_link_keeps_the_compilers_words(
    unit: MakeUnit, tools: Callable[[Unit], Tools], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_runtime, "kernel_table_c", lambda facts: "this is not C\n")
    with pytest.raises(CompileError, match=r"failed with status 1: .*artifact\.c|kernel_table\.c") as caught:
        compile_in(unit(), tools(unit()), tmp_path)
    assert caught.value.log_path is not None and "artifact.c" in caught.value.log_path.read_text()


def test_a_read_only_place_for_scratch_is_no_hindrance(
    unit: MakeUnit, tools: Callable[[Unit], Tools], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    found = replace(tools(unit()), kept=tmp_path / "file" / "scratch")
    assert compile_in(unit(), found, tmp_path / "out").library.is_file()
