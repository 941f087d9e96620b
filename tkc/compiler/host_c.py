"""Corrections to the host C that TileLang generates.

Each rewrites one pattern of the generated text, and leaves text that does not match alone. They make
the argument checks say the truth, and refuse what would otherwise be misread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tkc.errors import CompileError
from tkc.model import Arg, TensorArg


def correct(text: str, function: str, arguments: Iterable[Arg]) -> str:
    """Give `text`, the host C of `function`, with its argument checks corrected.

    Raises CompileError if the address of an argument, whose alignment must be checked, cannot be found.
    """
    text = _say_expected_first(text)
    text = _take_tensors_alone(text)
    text = _refuse_what_int32_cannot_hold(text, function)
    text = _let_strides_of_single_rows_be(text)
    for argument in arguments:
        if isinstance(argument, TensorArg) and argument.alignment_bytes > 1:
            text = _check_alignment(text, function, argument)
    return text


_COMPARISON = re.compile(
    r'snprintf\((?P<buffer>\w+), 512, "%s; expected: %lld, got: %lld", "(?P<message>[^"]*)", '
    r"\(long long\)\((?P<first>.*)\), \(long long\)\((?P<second>.*)\)\);"
)


def _say_expected_first(text: str) -> str:
    """Comparisons print their left side as expected and their right side as got; often it is the other way."""
    return _COMPARISON.sub(_ordered, text)


def _ordered(match: re.Match[str]) -> str:
    first, second, message = match["first"], match["second"], match["message"]
    if _is_expected(second, message) and not _is_expected(first, message):
        first, second = second, first
    return (
        f'snprintf({match["buffer"]}, 512, "%s; expected: %lld, got: %lld", "{message}", '
        f"(long long)({first}), (long long)({second}));"
    )


def _is_expected(expression: str, message: str) -> bool:
    """A number is what was expected, and so is what belongs to another argument than the one complained of."""
    if re.fullmatch(r"\(?(\(u?int\d+_t\))?-?\d+\)?", expression):
        return True
    named = re.match(r"kernel (\w+) input (\w+) ", message)
    if named is None or expression.startswith("condval"):
        return False
    function, argument = named.groups()
    return not re.search(rf"\b({argument}_handle|{function}_{argument}_(shape|strides))\b", expression)


def _take_tensors_alone(text: str) -> str:
    """Any object's type index would pass for a tensor's, and its memory be read as one."""
    return re.sub(r"\(64 <= (\w+_type_index)\)", r"(\1 == 70)", text)


_NARROWED = re.compile(
    r"^(?P<indent> *)(?P<declaration>int32_t )?(?P<name>\w+) = \(\(int32_t\)(?P<wide>"
    r"\(\(\(TVMFFIAny\*\)args\)\[\d+\]\.v_int64\)|\(\(int64_t\*\)\w+_(?:shape|strides)\)\[\d+\])\);$",
    re.MULTILINE,
)


def _refuse_what_int32_cannot_hold(text: str, function: str) -> str:
    """Numbers are narrowed to 32 bits without a look; one that does not fit becomes another number."""

    def with_check(match: re.Match[str]) -> str:
        what = _narrowed_thing(match["name"], match["wide"], function)
        message = f"kernel {function} {what} does not fit into int32"
        check = (
            f"if ((int64_t){match['name']} != (int64_t)({match['wide']})) {{ char tkc_message[512]; "
            f'snprintf(tkc_message, 512, "{message}; expected: at most 2147483647, got: %lld", '
            f"(long long)({match['wide']})); "
            f'TVMFFIErrorSetRaisedFromCStr("RuntimeError", tkc_message); return -1; }}'
        )
        return f"{match[0]}\n{match['indent']}{check}"

    text = _NARROWED.sub(with_check, text)
    return re.sub(r"\(\(int32_t\)(\(\(int64_t\*\)\w+_(?:shape|strides)\)\[\d+\])\)(?= [=!<>])", r"(\1)", text)


def _narrowed_thing(name: str, wide: str, function: str) -> str:
    of_tensor = re.match(rf"\(\(int64_t\*\){function}_(\w+)_(shape|strides)\)\[(\d+)\]", wide)
    return f"input {of_tensor[1]} {of_tensor[2]}[{of_tensor[3]}]" if of_tensor else f"scalar {name}"


def _let_strides_of_single_rows_be(text: str) -> str:
    """A dimension of size 1 may have any stride, and so may one of size 0."""
    return re.sub(r"\|\| \((\w+) == 1\)\)\)\) \{", r"|| (\1 <= 1)))) {", text)


def _check_alignment(text: str, function: str, argument: TensorArg) -> str:
    """Nothing looks at the address, and a misaligned one faults on the device, where no name is known."""
    message = f"kernel {function} input {argument.name} data pointer is misaligned"
    check = (
        f"  if (((uintptr_t){argument.name} & {argument.alignment_bytes - 1}) != 0) {{\n"
        "    char tkc_message[512];\n"
        f'    snprintf(tkc_message, 512, "{message}; expected: a multiple of {argument.alignment_bytes} bytes, '
        f'got: %p", {argument.name});\n'
        '    TVMFFIErrorSetRaisedFromCStr("RuntimeError", tkc_message);\n'
        "    return -1;\n  }\n"
    )
    declaration = re.compile(rf"^  void\* {argument.name} = \(.*\);\n", re.MULTILINE)
    checked, found = declaration.subn(lambda match: match[0] + check, text, count=1)
    if not found:
        raise CompileError(
            f"the host code of {function} declares no address of argument `{argument.name}`, so that its alignment "
            f"would not be checked; expected `void* {argument.name}`. Is this TileLang newer than tkc knows?",
            action=function,
            stage="lower",
        )
    return checked
