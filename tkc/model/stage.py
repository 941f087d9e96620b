"""The stages of a compile."""

from enum import StrEnum


class Stage(StrEnum):
    """What an action does. ``COMPILE`` is the whole: its inputs are known before any tool runs."""

    COMPILE = "compile"
    LOWER = "lower"
    ASSEMBLE = "assemble"
    LINK = "link"
