"""Action → files: lower, assemble, link. Knows nothing of the store.

Importing this imports no tool; `lower` imports tilelang when it is called.
"""

from tkc.compiler.assemble import assemble
from tkc.compiler.link import link
from tkc.compiler.lower import lower
from tkc.compiler.probe import Tools, probe
from tkc.compiler.stages import (
    CompileOptions,
    StageOutput,
    Unit,
    assemble_action,
    compile_action,
    link_action,
    lower_action,
)

__all__ = [
    "CompileOptions",
    "StageOutput",
    "Tools",
    "Unit",
    "assemble",
    "assemble_action",
    "compile_action",
    "link",
    "link_action",
    "lower",
    "lower_action",
    "probe",
]
