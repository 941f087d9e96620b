"""The CUDA runtime does what the host function asks, on a driver that writes down what it is asked to do."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import HOST, Compiled, compile_in

from tkc.compiler import Tools, Unit, device_runtime, probe
from tkc.model import Backend, Target
from tkc.registry import load_catalog

pytestmark = pytest.mark.level1

FAKE = Path(__file__).parent / "fake"
RUNTIME = Path(device_runtime.__file__).parent


@dataclass(frozen=True)
class Run:
    """What a script printed, and the calls that it made the driver get: a name, and values by name."""

    printed: str
    calls: tuple[tuple[str, dict[str, str]], ...]

    def of(self, name: str) -> list[dict[str, str]]:
        return [values for called, values in self.calls if called == name]


RunScript = Callable[..., Run]
Artifact = Callable[[str], Path]


@pytest.fixture(scope="module")
def cuda_tools(stamps_dir: Path) -> Tools:
    unit = program("row_sums")
    return probe(unit.target, unit.host, unit.options, stamps_dir=stamps_dir)


@pytest.fixture(scope="module")
def artifact(cuda_tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The library of a sample program, compiled for sm90 when it is first asked for."""
    made: dict[str, Compiled] = {}
    root = tmp_path_factory.mktemp("artifacts")

    def compile_program(name: str) -> Path:
        if name not in made:
            made[name] = compile_in(program(name), cuda_tools, root / name)
        return made[name].library

    return compile_program


def program(name: str) -> Unit:
    entry = load_catalog("device_kernels").find("samples.programs")
    return Unit(entry, entry.spec.bind(program=name), Target.parse("sm90"), HOST)


@pytest.fixture(scope="module")
def driver(cuda_tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a ``libcuda.so.1`` that records, compiled against NVIDIA's own header."""
    folder = tmp_path_factory.mktemp("driver")
    compile_c(cuda_tools, folder, str(FAKE / "cuda.c"), "-shared", "-fPIC", "-o", "libcuda.so.1")
    return folder


def compile_c(tools: Tools, folder: Path, *arguments: str) -> None:
    """Compile C with every warning an error; it sees the CUDA headers of the build's packages."""
    strict = ("-std=gnu11", "-O1", "-fno-sanitize=all", "-Wall", "-Wextra", "-Werror")
    headers = [f"-I{path}" for path in (*cuda_headers(tools), *tools.cc_includes, RUNTIME.parent / "link_headers")]
    subprocess.run((*tools.cc, *strict, *arguments, *headers), check=True, cwd=folder, env=tools.cc_env(folder))


def cuda_headers(tools: Tools) -> list[Path]:
    return [path for path in tools.includes if (path / "cuda.h").is_file()]


@pytest.fixture
def run(driver: Path, tmp_path: Path) -> RunScript:
    """Run a script in a process of its own, with the names of fake/client.py; settings go to the driver."""

    def run_script(script: str, library: Path, *, drivers: Path = driver, **settings: Any) -> Run:
        log = tmp_path / "calls"
        log.unlink(missing_ok=True)
        environment = {
            **os.environ,
            **{f"FAKE_CUDA_{name.upper()}": str(value) for name, value in settings.items()},
            "FAKE_CUDA_LOG": str(log),
            "LD_LIBRARY_PATH": str(drivers),
            "PYTHONPATH": str(FAKE),
        }
        # tvm-ffi imports torch where it can, which takes two seconds.
        prelude = "import sys\nsys.modules['torch'] = None\nfrom client import *\n"
        command = (sys.executable, "-c", prelude + script, str(library))
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        lines = log.read_text().splitlines() if log.exists() else []
        return Run(done.stdout, tuple(parse(line) for line in lines))

    return run_script


def parse(line: str) -> tuple[str, dict[str, str]]:
    name, *pairs = line.split(" ")
    return name, dict(pair.split("=", 1) for pair in pairs)


ROW_SUMS = """
x, out = tensor((10, 256), address=0x10000), tensor((10,), address=0x20000)
"""


def test_a_launch_passes_sizes_arguments_and_the_current_stream(run: RunScript, artifact: Artifact) -> None:
    done = run(
        ROW_SUMS + "with tvm_ffi.use_raw_stream(tvm_ffi.device('cuda', 0), 0x55): library().main(x, out)",
        artifact("row_sums"),
        arguments="8,8,4",
    )
    (launch,) = done.of("cuLaunchKernelEx")
    assert launch["name"] == "row_sums_kernel"
    assert (launch["grid"], launch["block"]) == ("3,1,1", "128,1,1")
    assert launch["stream"] == "0x55" and launch["extra"] == "(nil)"
    pointers = [struct.unpack("<Q", bytes.fromhex(launch[f"arg{i}"]))[0] for i in (0, 1)]
    assert pointers == [0x20000, 0x10000]  # the kernel takes them in an order of its own
    assert struct.unpack("<i", bytes.fromhex(launch["arg2"])) == (10,)
    assert not {"pdl", "cooperative", "cluster"} & set(launch)


def test_numbers_reach_the_kernel_in_the_types_that_it_takes(run: RunScript, artifact: Artifact) -> None:
    done = run("library().main(tensor((300,)), 1.5)", artifact("clustered"), arguments="8,4,4")
    (launch,) = done.of("cuLaunchKernelEx")
    assert struct.unpack("<f", bytes.fromhex(launch["arg1"])) == (1.5,)
    assert struct.unpack("<i", bytes.fromhex(launch["arg2"])) == (300,)

    done = run("library().main(tensor((300,)), -7)", artifact("dependent"), arguments="8,4,4")
    (launch,) = done.of("cuLaunchKernelEx")
    assert struct.unpack("<i", bytes.fromhex(launch["arg1"])) == (-7,)


def test_a_cluster_is_launched_as_one(run: RunScript, artifact: Artifact) -> None:
    (launch,) = run("library().main(tensor((300,)), 1.5)", artifact("clustered")).of("cuLaunchKernelEx")
    assert (launch["cluster"], launch["grid"]) == ("2,1,1", "4,1,1")
    assert "pdl" not in launch


def test_a_barrier_of_the_grid_makes_a_cooperative_launch(run: RunScript, artifact: Artifact) -> None:
    (launch,) = run("library().main(tensor((2048,)))", artifact("two_passes")).of("cuLaunchKernelEx")
    assert launch["cooperative"] == "1"


def test_dependent_launch_is_the_callers_choice_and_the_kernels_ability(run: RunScript, artifact: Artifact) -> None:
    script = """
entries = library()
for entry in (entries.main, entries.main_pdl, entries.main):
    entry(tensor((300,)), 1)
"""
    launches = run(script, artifact("dependent")).of("cuLaunchKernelEx")
    assert [launch.get("pdl") for launch in launches] == [None, "1", None]

    launches = run(script.replace(", 1)", ", 1.5)"), artifact("clustered")).of("cuLaunchKernelEx")
    assert [launch.get("pdl") for launch in launches] == [None, None, None]  # it does not wait for its predecessor


def test_shared_memory_is_opted_into_once(run: RunScript, artifact: Artifact) -> None:
    done = run(
        """
a, b, c = tensor((256, 256), bits=16), tensor((256, 256), bits=16), tensor((256, 256))
main = library().main
for _ in range(3): main(a, b, c)
""",
        artifact("matmul"),
    )
    (opted,) = done.of("cuFuncSetAttribute")
    shared = done.of("cuLaunchKernelEx")[0]["shared"]
    assert int(shared) > 48 * 1024
    assert (opted["attribute"], opted["value"]) == ("8", shared)  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert len(done.of("cuLaunchKernelEx")) == 3


def test_tensor_maps_are_made_for_each_launch_and_passed_by_value(run: RunScript, artifact: Artifact) -> None:
    done = run(
        """
a = tensor((300, 256), bits=16, address=0x100000)
b = tensor((256, 256), bits=16, address=0x200000)
library().main(a, b, tensor((300, 256)))
""",
        artifact("matmul"),
        arguments="128,128,8,4",
    )
    first, second = done.of("cuTensorMapEncodeTiled")
    assert first["aligned"] == second["aligned"] == "1"
    assert (first["address"], first["rank"], first["dims"]) == ("0x100000", "2", "256,300")
    assert (first["strides"], first["box"], first["element_strides"]) == ("512", "64,128", "1,1")
    assert (second["address"], second["dims"]) == ("0x200000", "256,256")
    (launch,) = done.of("cuLaunchKernelEx")
    assert launch["arg0"] == launch["arg1"] == "a2" * 128  # what the fake writes into a map of rank 2


def test_a_convolution_gathers_through_an_im2col_map(run: RunScript, artifact: Artifact) -> None:
    done = run(
        """
x = tensor((2, 16, 16, 64), bits=16, address=0x100000)
library().main(x, tensor((3, 3, 64, 64), bits=16), tensor((2, 16, 16, 64)))
""",
        artifact("convolution"),
        arguments="8,128,128",
    )
    (made,) = done.of("cuTensorMapEncodeIm2col")
    assert (made["address"], made["rank"], made["dims"]) == ("0x100000", "4", "64,16,16,2")
    assert made["strides"] == "128,2048,32768"
    assert (made["lower"], made["upper"]) == ("-1,-1", "-1,-1")  # padding 1, windows of 3
    assert (made["channels"], made["pixels"]) == ("64", "128")
    (launch,) = done.of("cuLaunchKernelEx")
    assert launch["arg2"] == "c4" * 128


def test_the_cache_window_is_set_on_the_callers_stream_and_taken_back(run: RunScript, artifact: Artifact) -> None:
    done = run(
        """
x, out = tensor((4096, 256), address=0x100000), tensor((4096, 256))
with tvm_ffi.use_raw_stream(tvm_ffi.device('cuda', 0), 0x66): library().main(x, out)
""",
        artifact("persisting"),
    )
    names = [name for name, _ in done.calls]
    windows = done.of("cuStreamSetAttribute")
    assert (
        names.index("cuStreamSetAttribute")
        < names.index("cuLaunchKernelEx")
        < names.index("cuCtxResetPersistingL2Cache")
    )
    assert [window["stream"] for window in windows] == ["0x66", "0x66"]
    assert windows[0]["base"] == "0x100000" and windows[0]["ratio"] == "0.50"
    assert [window["bytes"] for window in windows] == [str(1 << 20), "0"]  # no more than the device sets aside
    assert [limit["value"] for limit in done.of("cuCtxSetLimit")] == [str(1 << 20), "4096"]


def test_eight_threads_load_a_module_once(run: RunScript, artifact: Artifact) -> None:
    done = run(
        ROW_SUMS
        + """
import threading
main, start = library().main, threading.Barrier(8)
def work():
    start.wait()
    for _ in range(20): main(x, out)
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
""",
        artifact("row_sums"),
        slow=1,
    )
    assert len(done.of("cuModuleLoadData")) == len(done.of("cuDevicePrimaryCtxRetain")) == len(done.of("cuInit")) == 1
    assert len(done.of("cuLaunchKernelEx")) == 160


def test_each_device_has_its_own_context_and_module_and_the_callers_stays_current(
    run: RunScript, artifact: Artifact
) -> None:
    done = run(
        """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
driver.cuCtxSetCurrent(ctypes.c_void_p(0x1000))  # the caller works on device 0
main = library().main
def call(device):
    main(tensor((10, 256), device=device), tensor((10,), device=device))
    current = ctypes.c_void_p()
    driver.cuCtxGetCurrent(ctypes.byref(current))
    print(current.value - 0x1000)
for device in (0, 1, 0, 1): call(device)
""",
        artifact("row_sums"),
    )
    launches = done.of("cuLaunchKernelEx")
    assert [(launch["device"], launch["current"]) for launch in launches] == [(d, d) for d in "0101"]
    assert sorted(load["device"] for load in done.of("cuModuleLoadData")) == ["0", "1"]
    assert done.printed.split() == ["0", "0", "0", "0"]


def test_warming_up_loads_everything_and_launches_nothing(run: RunScript, artifact: Artifact) -> None:
    done = run(ROW_SUMS + "library().load(1); print('loaded')", artifact("row_sums"))
    assert done.printed == "loaded\n"
    assert [load["device"] for load in done.of("cuModuleLoadData")] == ["1"]
    assert [found["name"] for found in done.of("cuModuleGetFunction")] == ["row_sums_kernel"]
    assert not done.of("cuLaunchKernelEx")


def test_what_is_warm_launches_inside_a_capture_and_what_is_not_says_what_to_do(
    run: RunScript, artifact: Artifact
) -> None:
    done = run(ROW_SUMS + "print(refusal(library().main, x, out))", artifact("row_sums"), capturing=1)
    assert done.printed.startswith("LoadError: row_sums is not loaded on CUDA device 0 yet")
    assert "tkc.warmup(...)" in done.printed
    assert not done.of("cuModuleLoadData") and not done.of("cuLaunchKernelEx")

    warm = (
        ROW_SUMS
        + """
import os
library().load(0)
os.environ["FAKE_CUDA_CAPTURING"] = "1"
library().main(x, out)
"""
    )
    assert len(run(warm, artifact("row_sums")).of("cuLaunchKernelEx")) == 1


def test_a_load_breaks_no_capture_of_another_thread(run: RunScript, artifact: Artifact) -> None:
    (load,) = run(ROW_SUMS + "library().main(x, out)", artifact("row_sums")).of("cuModuleLoadData")
    assert load["mode"] == "2"  # CU_STREAM_CAPTURE_MODE_RELAXED


def test_no_rows_launch_nothing(run: RunScript, artifact: Artifact) -> None:
    done = run("library().main(tensor((0, 256)), tensor((0,)))", artifact("row_sums"))
    assert not done.of("cuLaunchKernelEx") and not done.of("cuModuleLoadData")


def test_a_grid_that_no_device_has_is_refused_before_the_launch(run: RunScript, artifact: Artifact) -> None:
    rows = 65536 * 128
    script = f"a, c = tensor(({rows}, 256), bits=16), tensor(({rows}, 256))\n"
    done = run(script + "print(refusal(library().main, a, tensor((256, 256), bits=16), c))", artifact("matmul"))
    assert re.search(r"ValueError: kernel matmul_kernel on CUDA device 0 \(grid 2 x 65536 x 1, block", done.printed)
    assert "grid in y out of range; expected: 1 to 65535, got: 65536" in done.printed
    assert not done.of("cuLaunchKernelEx")


def test_a_misaligned_tensor_is_named(run: RunScript, artifact: Artifact) -> None:
    done = run(
        "print(refusal(library().main, tensor((10, 256), address=0x10008), tensor((10,))))", artifact("row_sums")
    )
    assert "misaligned" in done.printed and re.search(r"\bx\b", done.printed)
    assert "0x10008" in done.printed and "multiple of 16 bytes" in done.printed
    assert not done.of("cuLaunchKernelEx")


@pytest.mark.parametrize(
    "capability, message",
    [
        (80, "row_sums is built for sm_90a, and CUDA device 0 is an sm_80"),
        (100, "row_sums is built for sm_90a, and CUDA device 0 is an sm_100"),
    ],
)
def test_a_device_of_another_architecture_is_refused_before_anything_is_loaded(
    run: RunScript, artifact: Artifact, capability: int, message: str
) -> None:
    script = ROW_SUMS + "print(refusal(library().main, x, out)); print(refusal(library().load, 0))"
    done = run(script, artifact("row_sums"), capability=capability)
    assert done.printed.count(f"LoadError: {message}") == 2
    assert f"tkc build --target sm{capability}" in done.printed
    assert not done.of("cuModuleLoadData") and not done.of("cuDevicePrimaryCtxRetain")


def test_a_failing_driver_is_quoted_with_what_was_attempted(run: RunScript, artifact: Artifact) -> None:
    script = ROW_SUMS + "print(refusal(library().main, x, out))"
    launch = run(script, artifact("row_sums"), fail="cuLaunchKernelEx=700").printed
    assert launch.startswith("RuntimeError: kernel row_sums_kernel on CUDA device 0 (grid 3 x 1 x 1, block 128 x 1 x 1")
    assert "CUDA error 700, CUDA_ERROR_OF_THE_FAKE: words of the fake" in launch and "compute-sanitizer" in launch

    load = run(script, artifact("row_sums"), fail="cuModuleLoadData=209").printed
    assert load.startswith("LoadError: row_sums, built for sm_90a (")
    assert "does not load on CUDA device 0, an sm_90" in load and "CUDA_ERROR_NO_BINARY_FOR_GPU" in load

    capture = run(script, artifact("row_sums"), fail="cuLaunchKernelEx=900").printed
    assert "A CUDA graph is being captured" in capture

    missing = run(
        script.replace("(10, 256)", "(10, 256), device=5").replace("(10,)", "(10,), device=5"), artifact("row_sums")
    )
    assert missing.printed.startswith("LoadError: row_sums: there is no CUDA device 5: CUDA error 101")


def test_a_load_that_failed_is_tried_again(run: RunScript, artifact: Artifact) -> None:
    done = run(
        ROW_SUMS
        + """
import os
print(refusal(library().main, x, out))
del os.environ["FAKE_CUDA_FAIL"]
library().main(x, out)
""",
        artifact("row_sums"),
        fail="cuModuleLoadData=2",
    )
    assert "CUDA error 2" in done.printed and "no memory left" in done.printed
    assert len(done.of("cuLaunchKernelEx")) == 1


def test_a_machine_without_a_driver_is_told_so(run: RunScript, artifact: Artifact, tmp_path: Path) -> None:
    done = run(ROW_SUMS + "print(refusal(library().main, x, out))", artifact("row_sums"), drivers=tmp_path)
    assert done.printed.startswith("LoadError: row_sums is compiled for CUDA (sm_90a), and the NVIDIA driver's library")
    assert "libcuda.so.1" in done.printed


def test_an_old_driver_is_told_what_it_lacks(
    run: RunScript, artifact: Artifact, cuda_tools: Tools, tmp_path: Path
) -> None:
    source = (FAKE / "cuda.c").read_text().replace("CUresult cuLaunchKernelEx(", "CUresult not_cuLaunchKernelEx(")
    (tmp_path / "old.c").write_text(source)
    compile_c(cuda_tools, tmp_path, "old.c", "-shared", "-fPIC", "-o", "libcuda.so.1")
    done = run(ROW_SUMS + "print(refusal(library().main, x, out))", artifact("row_sums"), drivers=tmp_path)
    assert "the NVIDIA driver has no function `cuLaunchKernelEx`; it is too old" in done.printed


def test_a_forked_child_gets_an_error_and_the_parent_goes_on(run: RunScript, artifact: Artifact) -> None:
    done = run(
        ROW_SUMS
        + """
import os, sys
main = library().main
main(x, out)
child = os.fork()
if child == 0:
    print(refusal(main, x, out)); print(refusal(library().load, 0))
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
main(x, out)
""",
        artifact("row_sums"),
    )
    assert done.printed.count("RuntimeError: row_sums: this process was forked from one that had used CUDA") == 2
    assert "spawn" in done.printed
    assert len(done.of("cuLaunchKernelEx")) == 2


def test_a_child_forked_before_the_first_launch_works(run: RunScript, artifact: Artifact) -> None:
    done = run(
        ROW_SUMS
        + """
import os
main = library().main
child = os.fork()
if child == 0:
    main(x, out)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
""",
        artifact("row_sums"),
    )
    assert len(done.of("cuLaunchKernelEx")) == 1


def test_the_hot_path_asks_the_driver_for_nothing_but_the_launch(run: RunScript, artifact: Artifact) -> None:
    done = run(ROW_SUMS + "main = library().main\nfor _ in range(50): main(x, out)", artifact("row_sums"))
    first = [name for name, _ in done.calls].index("cuLaunchKernelEx")
    # A thread without a current context gets its own back each time: two calls that a thread of torch's saves.
    later = {name for name, _ in done.calls[first:]}
    assert later == {"cuLaunchKernelEx", "cuCtxSetCurrent"}


def test_every_number_and_layout_is_the_drivers(cuda_tools: Tools, tmp_path: Path) -> None:
    """cuda_driver.h repeats what cuda.h says; the compiler compares them."""
    text = (RUNTIME / "cuda_driver.h").read_text()
    constants = re.findall(r"^  (CU\w+) = (\d+),", text, re.MULTILINE)
    assert len(constants) > 30
    checks = [f'_Static_assert({name} == {value}, "{name}");' for name, value in constants]
    checks += [
        '_Static_assert(sizeof(CUlaunchAttribute) == 72, "attribute");',
        '_Static_assert(sizeof(CUlaunchConfig) == 56, "config");',
        '_Static_assert(sizeof(CUtensorMap) == 128, "map");',
        '_Static_assert(_Alignof(CUtensorMap) <= 128, "the host function aligns maps to 128 bytes");',
        '_Static_assert(sizeof(CUaccessPolicyWindow) == 32, "window");',
    ]
    (tmp_path / "check.c").write_text("#include <cuda.h>\n" + "\n".join(checks) + "\n")
    compile_c(cuda_tools, tmp_path, "-c", "check.c", "-o", "check.o")


@pytest.mark.parametrize("backend", Backend)
def test_the_sources_compile_without_a_warning(cuda_tools: Tools, tmp_path: Path, backend: Backend) -> None:
    for name, text in device_runtime.sources(backend).items():
        (tmp_path / name).write_text(text)
    for name in (name for name in device_runtime.sources(backend) if name.endswith(".c")):
        compile_c(cuda_tools, tmp_path, "-fvisibility=hidden", "-fPIC", "-c", name, "-o", f"{name}.o")


KERNEL = {
    "symbol": "k",
    "args": [{"name": "x", "kind": "pointer", "alignment_bytes": 16}, {"name": "e", "kind": "float32"}],
    "launch_params": ["blockIdx.x", "threadIdx.x", "tirx.use_dyn_shared_memory"],
    "cluster": None,
    "cooperative": True,
    "pdl": True,
    "arch": "sm_90a",
}


def runtime_alone(backend: Backend, kernel: dict[str, Any], main: str, folder: Path) -> list[str]:
    """Lay out a backend's runtime with a stand-in for tvm-ffi and `main`; give the sources to compile."""
    for name, text in device_runtime.sources(backend).items():
        (folder / name).write_text(text)
    table = device_runtime.kernel_table_c({"function": "f", "kernels": [kernel]})
    (folder / "kernel_table.c").write_text(table)
    shutil.copy(FAKE / "host.h", folder)
    shutil.copy(FAKE / main, folder / "main.c")
    return sorted(path.name for path in folder.glob("*.c"))


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
@pytest.mark.skipif(shutil.which("gcc") is None, reason="the sanitizers' runtimes come with gcc")
def test_sanitizers_find_nothing(cuda_tools: Tools, driver: Path, tmp_path: Path, sanitizer: str) -> None:
    """Eight threads load and launch on two devices."""
    sources = runtime_alone(Backend.CUDA, KERNEL, "stress.c", tmp_path)
    includes = [f"-I{path}" for path in (*cuda_tools.cc_includes, RUNTIME.parent / "link_headers")]
    flags = ("-std=gnu11", "-g", "-O1", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")
    subprocess.run(("gcc", *flags, *sources, *includes, "-o", "stress", "-lpthread", "-ldl"), cwd=tmp_path, check=True)
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(driver),
        "ASAN_OPTIONS": "detect_leaks=0",
        "FAKE_CUDA_SLOW": "1",
    }
    done = subprocess.run(("./stress",), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    launches, misaligned, miscounted = done.stdout.splitlines()
    assert launches == "800 launches"
    assert misaligned == (
        "ValueError: argument `x` of kernel k is misaligned: address 0x10008 is not a multiple of 16 bytes"
    )
    assert miscounted == "RuntimeError: kernel k takes 2 arguments and 3 launch parameters, got 4 values"


def test_ascend_packs_arguments_as_cann_wants_them(cuda_tools: Tools, tmp_path: Path) -> None:
    """On a libascendcl that prints; no Ascend device has run this."""
    kinds = {"x": "pointer", "a": "int16", "e": "float32", "flag": "bool", "n": "int64"}
    kernel = {
        **KERNEL,
        "args": [{"name": name, "kind": kind, "alignment_bytes": 16} for name, kind in kinds.items()],
        "launch_params": ["blockIdx.x", "blockIdx.y", "tirx.use_dyn_shared_memory"],
        "arch": "dav-3510",
    }
    sources = runtime_alone(Backend.ASCEND, kernel, "ascend.c", tmp_path)
    compile_c(cuda_tools, tmp_path, *sources, "-o", "main", "-lpthread", "-ldl")
    compile_c(cuda_tools, tmp_path, str(FAKE / "ascendcl.c"), "-shared", "-fPIC", "-o", "libascendcl.so")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(("./main",), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    # Each argument at a multiple of its size and of 4 bytes: x at 0, a at 8, e at 12, flag at 16, n at 24.
    packed = "0000010000000000" + "feff0000" + "0000003f" + "0100000000000000" + "0700000000000000"
    assert done.stdout.splitlines() == [
        "aclrtSetDevice 1",
        "aclrtBinaryLoadFromData ELF 4 no options",
        "aclrtBinaryGetFunction 0x20 k",
        f"aclrtLaunchKernelWithHostArgs 0x30 blocks=6 stream=(nil) reserved=(nil),0 arguments={packed}",
        f"aclrtLaunchKernelWithHostArgs 0x30 blocks=6 stream=(nil) attribute2=512 reserved=(nil),0 arguments={packed}",
        "ValueError: argument `x` of kernel k is misaligned: address 0x10008 is not a multiple of 16 bytes",
        "ValueError: kernel k: grid of 4294967296 x 2 x 1 blocks; expected: 1 to 2^32 - 1 together",
        "aclrtSetDevice 5",
        "LoadError: f: selecting the device on Ascend device 5 failed with ACL error 107001: words of the fake",
    ]


def test_a_type_that_cannot_be_passed_is_refused_when_linking() -> None:
    kernel = {**KERNEL, "args": [{"name": "x", "kind": "float16x2"}]}
    with pytest.raises(ValueError, match="argument `x` has type float16x2, which cannot be passed at launch"):
        device_runtime.kernel_table_c({"function": "f", "kernels": [kernel]})


def test_an_unknown_launch_parameter_is_refused_when_linking() -> None:
    kernel = {**KERNEL, "launch_params": ["blockIdx.x", "vthread.x"]}
    with pytest.raises(ValueError, match=r"unknown launch parameter 'vthread\.x'"):
        device_runtime.kernel_table_c({"function": "f", "kernels": [kernel]})
