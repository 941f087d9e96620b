"""Stand-ins for the C library, to link against: its names and their oldest versions, no code.

An artifact linked against these needs nothing that a C library of ten years ago does not have, with
any compiler, for any host, and no C library of the host has to be there, or be built, to link it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostLibrary:
    """What one library of the C runtime offers: `symbols`, all of `version`."""

    soname: str
    version: str
    symbols: tuple[str, ...]

    @property
    def link_name(self) -> str:
        """The file name that a linker finds it by."""
        return f"lib{self.soname.removeprefix('lib').partition('.so')[0]}.so"

    def source(self) -> str:
        """C source of the stand-in."""
        return "".join(f"void {symbol}(void) {{}}\n" for symbol in self.symbols)

    def version_script(self) -> str:
        """Linker script that gives the symbols their version."""
        return f"{self.version} {{ global: {' '.join(f'{symbol};' for symbol in self.symbols)} local: *; }};\n"


def host_libraries(arch: str) -> tuple[HostLibrary, ...]:
    """The libraries of a host with this CPU architecture."""
    oldest = _OLDEST[arch]
    libraries = tuple(HostLibrary(soname, oldest, symbols) for soname, symbols in _SYMBOLS.items())
    return libraries + _LOADER[arch]


# The version that every symbol had when the architecture got its first glibc.
_OLDEST = {"x86_64": "GLIBC_2.2.5", "aarch64": "GLIBC_2.17"}

# Thread-local variables of a library loaded at run time; aarch64 reaches them by descriptors.
_LOADER: Mapping[str, tuple[HostLibrary, ...]] = {
    "x86_64": (HostLibrary("ld-linux-x86-64.so.2", "GLIBC_2.3", ("__tls_get_addr",)),),
    "aarch64": (),
}

_REAL_FUNCTIONS = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "sin", "sinh", "tan", "tanh"),
    *("cbrt", "erf", "erfc", "exp", "exp2", "expm1", "hypot", "lgamma", "log", "log10", "log1p", "log2", "pow"),
    *("sqrt", "tgamma", "ceil", "floor", "llrint", "llround", "lrint", "lround", "nearbyint", "rint", "round"),
    *("trunc", "copysign", "fabs", "fma", "fmax", "fmin", "fmod", "ldexp", "logb", "nextafter", "remainder"),
    "scalbn",
)

_SYMBOLS: Mapping[str, tuple[str, ...]] = {
    "libc.so.6": (
        *("__errno_location", "abort", "calloc", "free", "getenv", "malloc", "realloc"),
        *("memchr", "memcmp", "memcpy", "memmove", "memset"),
        *("strchr", "strcmp", "strerror", "strlen", "strncmp", "strncpy", "strrchr", "strstr", "strtol", "strtoul"),
        *("printf", "putchar", "puts", "snprintf", "vsnprintf"),
        *("madvise", "mmap"),
    ),
    "libdl.so.2": ("dlclose", "dlerror", "dlopen", "dlsym"),
    "libm.so.6": tuple(f"{name}{suffix}" for name in _REAL_FUNCTIONS for suffix in ("", "f")),
    "libpthread.so.0": (
        *("pthread_mutex_destroy", "pthread_mutex_init", "pthread_mutex_lock", "pthread_mutex_unlock"),
        *("pthread_getspecific", "pthread_key_create", "pthread_once", "pthread_self", "pthread_setspecific"),
    ),
}
