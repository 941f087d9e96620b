"""Settings, read once from the environment. The only reader of ``TKC_*`` variables and platformdirs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

from tkc.errors import TkcError, unknown_name


class MissPolicy(StrEnum):
    """What the runtime does when no artifact answers a request."""

    JIT = "jit"
    ERROR = "error"
    REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment asks for. docs/environment.md describes each variable.

    Attributes:
        cache_dir: the writable user store; None if there is no place for one (HOME unset).
        stores: read-only stores that are asked before the user store.
        on_miss: the runtime's policy.
        check: whether operators verify what costs a device synchronisation.
        jobs: compiles at a time; 0 means one for each core.
        remote: address of a remote store that is asked on a miss, before compiling; empty for none.
        signers: public keys; what comes from shared stores and remotes must be signed by one of them.
    """

    cache_dir: Path | None
    stores: tuple[Path, ...] = ()
    on_miss: MissPolicy = MissPolicy.JIT
    check: bool = False
    jobs: int = 0
    remote: str = ""
    signers: tuple[str, ...] = ()

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Self:
        """Read `env` (default: the process's). Raises TkcError for a value that cannot be meant."""
        env = os.environ if env is None else env
        return cls(
            cache_dir=_cache_dir(env),
            stores=tuple(Path(part) for part in env.get("TKC_STORES", "").split(os.pathsep) if part),
            on_miss=_policy(env.get("TKC_ON_MISS", "") or "jit"),
            check=_flag("TKC_CHECK", env.get("TKC_CHECK", "")),
            jobs=_jobs(env.get("TKC_JOBS", "") or "0"),
            remote=env.get("TKC_REMOTE", "").strip(),
            signers=tuple(env.get("TKC_REQUIRE_SIGNATURE", "").replace(",", " ").split()),
        )


def _cache_dir(env: Mapping[str, str]) -> Path | None:
    if given := env.get("TKC_CACHE_DIR"):
        return Path(given).absolute()
    if not (env.get("HOME") or env.get("XDG_CACHE_HOME")):
        return None
    import platformdirs

    return Path(platformdirs.user_cache_dir("tkc", appauthor=False))


def _policy(text: str) -> MissPolicy:
    try:
        return MissPolicy(text)
    except ValueError:
        raise TkcError(f"TKC_ON_MISS: {unknown_name('policy', text, list(MissPolicy))}") from None


def _flag(name: str, text: str) -> bool:
    if text.lower() in {"", "0", "false", "no", "off"}:
        return False
    if text.lower() in {"1", "true", "yes", "on"}:
        return True
    raise TkcError(f"{name} is {text!r}; expected 1 or 0")


def _jobs(text: str) -> int:
    if not text.isdecimal():
        raise TkcError(f"TKC_JOBS is {text!r}; expected a number of compiles at a time, or 0 for one a core")
    return int(text)
