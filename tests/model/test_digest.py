"""The canonical encoding and digests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tkc.model import Digest, canonical, parse_canonical
from tkc.model.digest import MAX_DEPTH

KEYS = st.text().filter(lambda key: not key.startswith("$"))
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def test_known_value() -> None:
    """A change of the encoding would orphan every store: it needs a new schema, and this line says so."""
    digest = Digest.of_fields("tkc.test/1", {"name": "é", "count": 3, "ratio": 0.1, "flag": True, "none": None})
    assert digest.hex == "d98a16d54e7d4d108e36bcb08b1a5576cfe4dfea290b4d5a1b61b8280117a6fc"


@given(st.dictionaries(KEYS, PLAIN, max_size=5))
def test_order_of_insertion_does_not_matter(fields: dict) -> None:
    assert canonical(fields) == canonical(dict(reversed(fields.items())))


@given(PLAIN, PLAIN)
def test_different_values_have_different_encodings(left: object, right: object) -> None:
    same = _typed(left) == _typed(right)
    assert (canonical(left) == canonical(right)) == same


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes", {1, 2}, Path("x"), object(), {1: "int key"}])
def test_what_has_no_canonical_form_is_refused_by_name(value: object) -> None:
    with pytest.raises(TypeError, match=r"value\.field"):
        canonical({"field": value})


@given(PLAIN)
def test_what_was_read_back_encodes_to_the_same_bytes(value: object) -> None:
    assert canonical(json.loads(canonical(value))) == canonical(value)


def test_a_mapping_cannot_pass_for_a_float() -> None:
    with pytest.raises(TypeError, match="reserved"):
        canonical({"$float": "0.5"})


def test_keys_do_not_depend_on_the_process() -> None:
    code = "from tkc.model import Digest; print(Digest.of_fields('a/1', {'x': [1, 'b', {'k': 0.5}]}).hex)"
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("0", "1", "12345")
    }
    assert len(seen) == 1


@pytest.mark.parametrize(
    "text", ["", "sha256:", "sha256:" + "g" * 64, "sha256:" + "A" * 64, "md5:" + "0" * 64, "0" * 64]
)
def test_malformed_digests_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="digest"):
        Digest.parse(text)


def _typed(value: object) -> object:
    """Tell 1 from True from 1.0, as the encoding must; -0.0 from 0.0 too."""
    if isinstance(value, list):
        return [_typed(item) for item in value]
    if isinstance(value, dict):
        return {key: _typed(item) for key, item in value.items()}
    return type(value).__name__, repr(value)


@given(st.dictionaries(KEYS, PLAIN, max_size=5).filter(lambda value: _printable(value)))
def test_what_was_encoded_is_read_back_and_encodes_the_same(value: dict[str, object]) -> None:
    assert canonical(parse_canonical(canonical(value))) == canonical(value)


def _printable(value: object) -> bool:
    try:
        return bool(json.dumps(value, ensure_ascii=False).encode()) or True
    except UnicodeEncodeError:
        return False


@pytest.mark.parametrize(
    "text",
    [
        *("0.5", "-0.0", "1e3", "Infinity", "NaN", '{"a": [1.0]}'),
        *('{"$float": "1"}', '{"$float": 1}', '{"$other": 1}', '{"a": {"$float": "0x1.0p+0", "b": 1}}'),
        *('"\\ud800"', '{"a": "\\uDfff"}', "\ufeff{}", "{", ""),
        "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
        '{"a":' * 500 + "1" + "}" * 500,
        "[" * 100_000,
    ],
    ids=lambda text: text[:24],
)
def test_what_could_not_be_encoded_again_is_not_read(text: str) -> None:
    """A record that reads and does not write broke import, pull and the sum of misses, later and elsewhere."""
    with pytest.raises(ValueError):
        parse_canonical(text.encode())


def test_nesting_that_is_allowed_can_be_written() -> None:
    text = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert canonical(parse_canonical(text)) == text
