"""What a wheel of artifacts is called, and where things lie in it.

::

    tkc_kernels_sm90-0.1.0-py3-none-manylinux_2_28_x86_64.whl
    tkc_kernels_sm90/__init__.py              a docstring; nothing imports it
                     manifest.json            what is in the wheel (tkc.wheel/1)
                     store/…                  a store, read in place
    tkc_kernels_sm90-0.1.0.dist-info/entry_points.txt      [tkc.stores]
                                    /licenses/…            licence texts
                                    /sboms/tkc.cdx.json    CycloneDX
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from tkc.errors import TkcError
from tkc.model import Host, Target

MANIFEST = "manifest.json"
STORE = "store"
SBOM = "tkc.cdx.json"

_PLATFORM = re.compile(r"manylinux_(?P<glibc>\d+_\d+)_(?P<host>\w+)")


@dataclass(frozen=True, slots=True)
class WheelName:
    """The name of a wheel, part by part.

    Attributes:
        package: import package and distribution, such as ``tkc_kernels_sm90``.
        version: PEP 440, as written.
        platform: tag, such as ``manylinux_2_28_x86_64``.
    """

    package: str
    version: str
    platform: str

    @classmethod
    def of(cls, target: Target, host: Host, version: str) -> Self:
        """The name of tkc's own wheel. Raises TkcError for a version that is not one."""
        try:
            normal = str(Version(version))
        except InvalidVersion as error:
            raise TkcError(
                f"{version!r} is no version of a package; expected one such as 1.2.0 or 1.2.0+a1b2"
            ) from error
        return cls(f"tkc_kernels_{target.name}", normal, f"manylinux_{host.glibc.replace('.', '_')}_{host.arch}")

    @classmethod
    def parse(cls, filename: str) -> Self:
        """Read a file name. Raises ValueError, saying why, unless it is a pure-ABI wheel for one manylinux platform."""
        try:
            distribution, version, build, tags = parse_wheel_filename(filename)
        except InvalidWheelFilename as error:
            raise ValueError(f"{filename!r} is no wheel's name: {error}") from error
        names = {str(tag) for tag in tags}
        if build or len(names) != 1:
            raise ValueError(f"{filename!r} has {len(names)} tags or a build number; expected one tag and none")
        tag = names.pop()
        name = cls(distribution.replace("-", "_"), str(version), tag.removeprefix("py3-none-"))
        if not tag.startswith("py3-none-") or not _PLATFORM.fullmatch(name.platform):
            raise ValueError(f"tag {tag} is not py3-none-manylinux_X_Y_ARCH: artifacts need glibc, and no CPython")
        if name.filename != filename:
            raise ValueError(f"{filename!r} is not normal; expected {name.filename!r}")
        return name

    @property
    def filename(self) -> str:
        return f"{self.package}-{self.version}-{self.tag}.whl"

    @property
    def tag(self) -> str:
        return f"py3-none-{self.platform}"

    @property
    def dist_info(self) -> str:
        return f"{self.package}-{self.version}.dist-info"

    @property
    def distribution(self) -> str:
        """As pip writes it."""
        return self.package.replace("_", "-")

    @property
    def host(self) -> str:
        """CPU architecture that the tag promises."""
        return self._platform_part("host")

    @property
    def glibc(self) -> tuple[int, int]:
        """The newest C library level that a binary inside may ask for."""
        major, minor = self._platform_part("glibc").split("_")
        return int(major), int(minor)

    def _platform_part(self, name: str) -> str:
        match = _PLATFORM.fullmatch(self.platform)
        assert match, f"platform tag {self.platform!r} was not checked"
        return match[name]
