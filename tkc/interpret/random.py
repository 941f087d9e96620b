"""cuRAND's Philox4x32-10 generator, one state a thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tkc.interpret.dtypes import Array
from tkc.interpret.errors import InterpretError
from tkc.interpret.frame import Evaluate, Frame
from tkc.interpret.translate import Node, Translator, call

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)


@dataclass
class Generator:
    """The state of every thread: where its stream starts, and how many words it has drawn."""

    seed: Array
    sequence: Array
    drawn: Array

    def draw(self, mask: Array | None) -> Array:
        """The next word of each active thread's stream, as uint32."""
        word = self._word()
        step = np.uint64(1) if mask is None else np.asarray(mask).astype(np.uint64)
        self.drawn = self.drawn + step
        return word

    def _word(self) -> Array:
        block = self.drawn >> np.uint64(2)
        counter = [*_halves(block), *_halves(self.sequence)]
        key = list(_halves(self.seed))
        for number in range(_ROUNDS):
            counter = _round(counter, key)
            if number + 1 < _ROUNDS:
                key = [half + weyl for half, weyl in zip(key, _WEYL, strict=True)]
        which = (self.drawn & np.uint64(3)).astype(np.int64)
        return np.choose(which, np.broadcast_arrays(*counter))


def _halves(value: Array) -> tuple[Array, Array]:
    wide = np.asarray(value).astype(np.uint64)
    return (wide & _LOW).astype(np.uint32), (wide >> np.uint64(32)).astype(np.uint32)


def _round(counter: list[Array], key: list[Array]) -> list[Array]:
    x, y, z, w = counter
    low0, high0 = _halves(_MULTIPLIERS[0] * x.astype(np.uint64))
    low1, high1 = _halves(_MULTIPLIERS[1] * z.astype(np.uint64))
    return [high1 ^ y ^ key[0], low1, high0 ^ w ^ key[1], low0]


@call("tl.rng_init")
def _init(translator: Translator, node: Node) -> Evaluate:
    generator = str(node.args[3].value)
    if generator != "curandStatePhilox4_32_10_t":
        raise translator.unsupported(f"the random number generator {generator}")
    seed, sequence, offset = translator.exprs(node.args[:3])

    def evaluate(frame: Frame) -> None:
        if frame.mask is not None or frame.tile:
            raise InterpretError("rng_init that only some threads reach, or in a tile-level loop")
        parts = (_wide(part(frame)) for part in (seed, sequence, offset))
        frame.generator = Generator(*(frame.full(part) for part in parts))

    return evaluate


def _wide(value: Any) -> Array:
    return np.asarray(value).astype(np.int64).astype(np.uint64)


def _draw(frame: Frame) -> Array:
    if not isinstance(frame.generator, Generator):
        raise InterpretError("a random number is drawn, and nothing initialised the generator")
    if frame.tile or frame.depth:
        raise InterpretError("a random number is drawn in a loop that runs all at once")
    return frame.generator.draw(frame.mask)


@call("tl.rng_rand")
def _rand(translator: Translator, node: Node) -> Evaluate:
    return _draw


@call("tl.rng_rand_float")
def _rand_float(translator: Translator, node: Node) -> Evaluate:
    if str(node.args[0].value) != "uniform" or str(node.dtype) != "float32":
        raise translator.unsupported(f"random numbers of distribution {node.args[0]} and type {node.dtype}")
    return lambda frame: uniform(_draw(frame))


def uniform(word: Array) -> Array:
    """A float32 above 0 and at most 1."""
    return word.astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
