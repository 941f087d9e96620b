"""The nouns of tkc: frozen values, no I/O, standard library only. What a spec.py may import."""

from tkc.model.action import Action, FieldDiff, Stage, diff_fields
from tkc.model.calls import Calls, Domain, Span
from tkc.model.digest import Digest, canonical
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
from tkc.model.target import HOST_NAMES, TARGET_NAMES, Backend, Host, Limits, Target
from tkc.model.tensor import Arg, DType, Role, ScalarArg, TensorArg
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
]
