"""What a model asks of ``per_token_cast`` and its two halves, with scale factors alone and with given ones."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernel_specs._calls import GAPS, TOKENS, dtypes, rows, widths
from kernel_specs.quant._formats import Recipe, recipes
from kernel_specs.quant._layouts import empty_sf, sf_shape
from kernel_specs.quant.per_token_cast.op import (
    per_token_cast,
    per_token_cast_with_precomputed_sf,
    per_token_cast_with_sf_only,
)
from tkc.model import Calls, ModelDims

_COLUMNS = 64
"""What rows are a multiple of."""


def calls(dims: ModelDims) -> Iterator[Calls]:
    """Casts by each of the model's recipes; and into its e4m3 recipes from what has the same kind of scale factors."""
    wanted = tuple(recipes(dims))
    for recipe in wanted:
        yield from _plain(dims, recipe)
        if recipe.fmt == "e4m3":
            for source in wanted:
                if source.sf == recipe.sf:
                    yield _again(dims, source, recipe)


def _flags(recipe: Recipe) -> dict[str, bool]:
    return {
        "round_sf": recipe.sf in ("pow2", "ue8m0"),
        "use_packed_ue8m0": recipe.sf == "ue8m0",
        "use_e4m3_sf": recipe.sf == "e4m3",
    }


def _plain(dims: ModelDims, recipe: Recipe) -> Iterator[Calls]:
    def cast(num_tokens: int, gap: int, dtype: torch.dtype, hidden: int, by_columns: bool, by_chance: bool) -> None:
        x = rows(num_tokens, hidden, dtype, gap)
        per_token_cast(x, recipe.fmt, recipe.width, None, by_columns, stochastic_cast=by_chance, **_flags(recipe))

    def halves(num_tokens: int, gap: int, dtype: torch.dtype, hidden: int, by_columns: bool) -> None:
        x = rows(num_tokens, hidden, dtype, gap)
        sf = per_token_cast_with_sf_only(x, recipe.fmt, recipe.width, by_columns, **_flags(recipe))
        per_token_cast_with_precomputed_sf(x, recipe.fmt, recipe.width, sf, by_columns, **_flags(recipe))

    some = {"dtype": dtypes(dims), "hidden": widths(dims, _COLUMNS), "by_columns": (False, True)}
    yield Calls(cast, num_tokens=TOKENS, gap=GAPS, **some, by_chance=(False, True))
    yield Calls(halves, num_tokens=TOKENS, gap=GAPS, **some)


def _again(dims: ModelDims, source: Recipe, recipe: Recipe) -> Calls:
    """Casts of what was quantised by `source`, in blocks of any number of its rows."""

    def cast(num_tokens: int, hidden: int, block_rows: int) -> None:
        block = (block_rows, source.width)
        stored = (hidden, torch.float8_e4m3fn) if source.fmt == "e4m3" else (hidden // 2, torch.int8)
        sf = empty_sf(sf_shape(num_tokens, hidden, block, source.sf), source.sf, False, torch.device("meta"))
        per_token_cast((rows(num_tokens, *stored), sf), recipe.fmt, recipe.width, block, **_flags(recipe))

    return Calls(cast, num_tokens=TOKENS, hidden=widths(dims, _COLUMNS), block_rows=(1, source.width))
