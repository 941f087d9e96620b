"""Which loops may run all at once: those whose iterations cannot see what the others write."""

from __future__ import annotations

from typing import Any

from tkc.interpret.memory import Level, level_of
from tkc.interpret.translate import Node, Translator, operation

_ORDERED = frozenset(
    [
        "tl.loop_break",
        "tirx.thread_return",
        "tirx.tvm_storage_sync",
        "tl.sync_warp",
        "tl.sync_grid",
        "tl.device_assert",
        "tirx.call_extern",
        "tl.rng_init",
        "tl.rng_rand",
        "tl.rng_rand_float",
    ]
)


def iterations_are_independent(loop: Node) -> bool:
    """Whether a loop's iterations may run in any order, and so all at once.

    They may if every buffer that the body writes is only touched at one place an iteration, a different one
    for each, and the body holds nothing whose order matters. False is always a safe answer.
    """
    body = _Body(loop)
    return not body.ordered and all(body.separate(data) for data in body.written)


def stored_memories(translator: Translator, loop: Node, level: Level) -> tuple[int, ...]:
    """The memories of a level that a loop's body writes."""
    body = _Body(loop)
    return tuple(
        translator.memory(data)
        for data, places in body.written.items()
        if level_of(str(places[0].buffer.scope())) is level
    )


class _Body:
    """What one loop's body does to buffers."""

    def __init__(self, loop: Node) -> None:
        from tvm import tirx

        self.var = loop.loop_var
        self.ordered = False
        self.written: dict[Any, list[Node]] = {}
        self.touched: dict[Any, list[Node]] = {}
        self.inner: dict[Any, int | None] = {}
        self.bound: dict[Any, Node] = {}
        tirx.stmt_functor.post_order_visit(loop.body, self._visit)

    def _visit(self, node: Any) -> None:
        kind = type(node).__name__
        if kind == "BufferStore":
            self.written.setdefault(node.buffer.data, []).append(node)
            self.touched.setdefault(node.buffer.data, []).append(node)
        elif kind == "BufferLoad":
            self.touched.setdefault(node.buffer.data, []).append(node)
        elif kind == "For":
            self.inner[node.loop_var] = _constant(node.extent)
        elif kind in ("Bind", "LetStmt"):
            self.bound[node.var] = node.value
        elif kind == "While":
            self.ordered = True
        elif kind == "Call":
            name = operation(node)
            self.ordered |= name in _ORDERED or name.startswith("tl.tileop") or "ptr" in name or "atomic" in name
            self.ordered |= name == "tirx.address_of"

    def separate(self, data: Any) -> bool:
        """Whether each iteration touches its own element of a buffer that the body writes."""
        from tvm import ir

        first, *rest = self.touched[data]
        same = all(
            place.buffer.same_as(first.buffer)
            and all(ir.structural_equal(a, b) for a, b in zip(place.indices, first.indices, strict=True))
            for place in rest
        )
        return same and any(self._steps_apart(index) for index in first.indices)

    def _steps_apart(self, index: Node) -> bool:
        """Whether an index moves by more than what inner loops can move it, for each iteration."""
        terms = self._linear(index)
        if terms is None or not terms.get(self.var):
            return False
        reach = 0
        for var, factor in terms.items():
            if var in self.inner:
                extent = self.inner[var]
                if extent is None:
                    return False
                reach += abs(factor) * (extent - 1)
            elif var in self.bound:
                return False
        return abs(terms[self.var]) > reach

    def _linear(self, node: Node) -> dict[Any, int] | None:
        """An index as factors of variables, or None if it is not linear in the loop's variable."""
        kind = type(node).__name__
        if kind == "IntImm":
            return {}
        if kind == "Var":
            return self._linear(self.bound[node]) if node in self.bound else {node: 1}
        if kind in ("Add", "Sub"):
            left, right = self._linear(node.a), self._linear(node.b)
            return None if left is None or right is None else _sum(left, right, 1 if kind == "Add" else -1)
        if kind == "Mul":
            for factor, other in ((node.a, node.b), (node.b, node.a)):
                if (value := _constant(factor)) is not None and (terms := self._linear(other)) is not None:
                    return {var: value * count for var, count in terms.items()}
        return None if self._mentions(node) else {}

    def _mentions(self, node: Node) -> bool:
        """Whether an expression depends on anything that changes from iteration to iteration."""
        from tvm import tirx

        found = [False]

        def visit(part: Any) -> None:
            if (
                type(part).__name__ == "Var" and (part.same_as(self.var) or part in self.inner or part in self.bound)
            ) or (type(part).__name__ == "BufferLoad" and part.buffer.data in self.written):
                found[0] = True

        tirx.stmt_functor.post_order_visit(node, visit)
        return found[0]


def _sum(left: dict[Any, int], right: dict[Any, int], sign: int) -> dict[Any, int]:
    terms = dict(left)
    for var, factor in right.items():
        terms[var] = terms.get(var, 0) + sign * factor
    return terms


def _constant(node: Node) -> int | None:
    return int(node.value) if type(node).__name__ == "IntImm" else None
