"""The nouns of tkc: frozen values, no I/O, standard library only. What a spec.py may import."""

from typing import TYPE_CHECKING

from tkc._lazy import lazily
from tkc.model.digest import Digest, canonical, parse_canonical
from tkc.model.manifest import FileEntry, Manifest, manifest_of
from tkc.model.spec import (
    LOADER_ABI,
    ConstAxis,
    KernelSpec,
    ModelDims,
    Params,
    Request,
    Specialization,
    Tolerance,
    Value,
    VarAxis,
)
from tkc.model.stage import Stage
from tkc.model.target import HOST_NAMES, TARGET_NAMES, Backend, Host, Limits, Target
from tkc.model.tensor import Arg, DType, Role, ScalarArg, TensorArg

if TYPE_CHECKING:
    from tkc.model.action import Action, FieldDiff, diff_fields
    from tkc.model.calls import Calls, Domain, Span
    from tkc.model.toolchain import Component, Toolchain

__all__ = [
    "HOST_NAMES",
    "LOADER_ABI",
    "TARGET_NAMES",
    "Action",
    "Arg",
    "Backend",
    "Calls",
    "Component",
    "ConstAxis",
    "DType",
    "Digest",
    "Domain",
    "FieldDiff",
    "FileEntry",
    "Host",
    "KernelSpec",
    "Limits",
    "Manifest",
    "ModelDims",
    "Params",
    "Request",
    "Role",
    "ScalarArg",
    "Span",
    "Specialization",
    "Stage",
    "Target",
    "TensorArg",
    "Tolerance",
    "Toolchain",
    "Value",
    "VarAxis",
    "canonical",
    "diff_fields",
    "manifest_of",
    "parse_canonical",
]

# What only compiling and proving needs.
__getattr__ = lazily(
    __name__,
    {
        "Action": "tkc.model.action",
        "FieldDiff": "tkc.model.action",
        "diff_fields": "tkc.model.action",
        "Calls": "tkc.model.calls",
        "Domain": "tkc.model.calls",
        "Span": "tkc.model.calls",
        "Component": "tkc.model.toolchain",
        "Toolchain": "tkc.model.toolchain",
    },
)
