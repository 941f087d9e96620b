"""From a traced program to closures: one walk over the tree, before anything runs.

An expression becomes a function of the frame that gives a value; a statement becomes a function of the frame
that does something. So an operation that the interpreter does not know is found before a single block runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tkc.interpret import dtypes
from tkc.interpret.access import BufferView
from tkc.interpret.errors import InterpretError, UnsupportedError
from tkc.interpret.frame import Evaluate, Execute, Frame

Node: TypeAlias = Any
"""A node of TileLang's tree."""

Lanes: TypeAlias = tuple[Any, ...]
"""A value of a vector type: one array a lane."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """An element of a buffer: what ``address_of`` and ``access_ptr`` give."""

    view: BufferView
    indices: tuple[Evaluate, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """A box of a buffer: where it starts, and how far it reaches."""

    view: BufferView
    starts: tuple[Evaluate, ...]
    extents: tuple[Evaluate, ...]


@dataclass(frozen=True)
class Semantics:
    """What depends on the backend and the passes that the program is compiled with.

    Attributes:
        guards: whether accesses to device memory outside a buffer are guarded: reads give 0, writes do nothing.
        barriers: whether the compiler puts barriers between statements that share memory.
    """

    backend: str = "cuda"
    guards: bool = True
    barriers: bool = True


ExpressionRule: TypeAlias = "Callable[[Translator, Node], Evaluate]"
StatementRule: TypeAlias = "Callable[[Translator, Node], Execute]"

EXPRESSIONS: dict[str, ExpressionRule] = {}
STATEMENTS: dict[str, StatementRule] = {}
CALLS: dict[str, ExpressionRule] = {}


def expression(*kinds: str) -> Callable[[ExpressionRule], ExpressionRule]:
    """Register how expressions of these node types are translated."""
    return _register(EXPRESSIONS, kinds)


def statement(*kinds: str) -> Callable[[StatementRule], StatementRule]:
    """Register how statements of these node types are translated."""
    return _register(STATEMENTS, kinds)


def call(*operations: str) -> Callable[[ExpressionRule], ExpressionRule]:
    """Register how calls of these operations are translated."""
    return _register(CALLS, operations)


def _register(table: dict[str, Any], names: Sequence[str]) -> Callable[[Any], Any]:
    def add(rule: Any) -> Any:
        for name in names:
            table[name] = rule
        return rule

    return add


@dataclass
class Translator:
    """Holds what the walk knows: variables in scope, buffers, and facts about the whole program."""

    kernel: str
    semantics: Semantics = field(default_factory=Semantics)
    slots: dict[Any, int] = field(default_factory=dict)
    inlined: dict[Any, Node] = field(default_factory=dict)
    memories: dict[Any, int] = field(default_factory=dict)
    views: dict[Any, BufferView] = field(default_factory=dict)
    narrowest: dict[int, int] = field(default_factory=dict)
    reducers: dict[int, str] = field(default_factory=dict)
    grid_slots: dict[str, int] = field(default_factory=dict)
    vector_loops: list[Any] = field(default_factory=list)
    whole_grid: bool = False
    here: Node = None

    def expr(self, node: Node) -> Evaluate:
        """Translate an expression."""
        rule = EXPRESSIONS.get(type(node).__name__)
        if rule is None:
            raise self.unsupported(f"the expression {type(node).__name__}")
        return rule(self, node)

    def exprs(self, nodes: Sequence[Node]) -> tuple[Evaluate, ...]:
        """Translate several."""
        return tuple(self.expr(node) for node in nodes)

    def stmt(self, node: Node) -> Execute:
        """Translate a statement."""
        rule = STATEMENTS.get(type(node).__name__)
        if rule is None:
            self.here = node
            raise self.unsupported(f"the statement {type(node).__name__}")
        return rule(self, node)

    def slot(self, var: Node) -> int:
        """The slot of a variable, which this introduces."""
        return self.slots.setdefault(var, len(self.slots))

    def memory(self, data: Node) -> int:
        """The key of the memory that a buffer's data variable stands for."""
        return self.memories.setdefault(data, len(self.memories))

    def view(self, buffer: Node) -> BufferView:
        """The view that a buffer is."""
        if buffer not in self.views:
            element = dtypes.parse(str(buffer.dtype))
            key = self.memory(buffer.data)
            width = element.numpy.itemsize
            self.narrowest[key] = min(width, self.narrowest.get(key, width))
            self.views[buffer] = BufferView(
                name=str(buffer.name),
                memory=key,
                scope=str(buffer.scope()),
                element=element,
                shape=tuple(self.number(dim) for dim in buffer.shape),
                strides=tuple(self.number(step) for step in buffer.strides),
                offset=self.number(buffer.elem_offset) if buffer.elem_offset is not None else 0,
            )
        return self.views[buffer]

    def number(self, node: Node) -> Evaluate | int:
        """A size: a plain integer where it is constant."""
        return int(node.value) if type(node).__name__ == "IntImm" else self.expr(node)

    def pointer(self, node: Node) -> Pointer:
        """Translate an argument that is the address of an element."""
        name = operation(node)
        if name in ("tl.access_ptr", "tirx.address_of"):
            return self.pointer(node.args[0])
        if name == "tirx.tvm_access_ptr":
            return self._flat_pointer(node)
        if type(node).__name__ == "BufferLoad":
            return Pointer(self.view(node.buffer), self.exprs(node.indices))
        if type(node).__name__ == "Var":
            for buffer, view in self.views.items():
                if buffer.data.same_as(node):
                    return Pointer(view, tuple(constant(np.int64(0)) for _ in view.shape))
        raise self.unsupported(f"the address {one_line(node)}")

    def flattened(self, node: Node) -> Pointer:
        """The same address in a view of the whole memory as a row of elements."""
        pointer = self.pointer(node)
        view = pointer.view
        if len(view.shape) == 1 and view.strides == (1,):
            return pointer

        def index(frame: Frame) -> Any:
            steps = view.steps(frame)
            return sum(np.int64(s) * i(frame).astype(np.int64) for i, s in zip(pointer.indices, steps, strict=True))

        return Pointer(self._row(view.name, view.memory, view.scope, view.element), (index,))

    def _flat_pointer(self, node: Node) -> Pointer:
        """``tvm_access_ptr(type, data, offset, …)``: an offset in elements from where the memory starts."""
        element = dtypes.parse(str(node.args[0].dtype))
        data = node.args[1]
        key = self.memory(data)
        scope = next((view.scope for view in self.views.values() if view.memory == key), "")
        if not scope:
            raise self.unsupported(f"the address {one_line(node)}")
        self.narrowest[key] = min(element.numpy.itemsize, self.narrowest[key])
        return Pointer(self._row(str(data.name), key, scope, element), (self.expr(node.args[2]),))

    def _row(self, name: str, key: int, scope: str, element: dtypes.ElementType) -> BufferView:
        def size(frame: Frame) -> Any:
            return np.int64(frame.memories[key].size_bytes * 8 // element.bits)

        return BufferView(name, key, scope, element, (size,), (1,), 0)

    def region(self, node: Node) -> Region:
        """Translate ``T.region(buffer[starts], access, extents…)``."""
        if not is_region(node):
            raise self.unsupported(f"the region {one_line(node)}")
        load, extents = node.args[0], node.args[2:]
        return Region(self.view(load.buffer), self.exprs(load.indices), self.exprs(extents))

    def unsupported(self, what: str) -> UnsupportedError:
        """The error for something unknown, naming the statement that holds it."""
        error = UnsupportedError(what)
        error.at(self.kernel, one_line(self.here) if self.here is not None else "the function's declaration")
        return error


def operation(node: Node) -> str:
    """Name of the operation that a call calls; empty for other nodes."""
    return str(node.op.name) if type(node).__name__ == "Call" and hasattr(node.op, "name") else ""


def is_region(node: Node) -> bool:
    """Whether an argument is a box of a buffer."""
    return operation(node) == "tl.region"


def constant(value: Any) -> Evaluate:
    """An expression that is always `value`."""
    return lambda frame: value


def lanewise(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, applied lane by lane where an operand is of a vector type."""

    def apply(*operands: Any) -> Any:
        lanes = next((len(operand) for operand in operands if isinstance(operand, tuple)), 0)
        if not lanes:
            return function(*operands)
        spread = [operand if isinstance(operand, tuple) else (operand,) * lanes for operand in operands]
        return tuple(function(*parts) for parts in zip(*spread, strict=True))

    return apply


def elementwise(function: Callable[..., Any], operands: Sequence[Evaluate]) -> Evaluate:
    """An expression that applies `function` to the values of `operands`."""
    apply = lanewise(function)
    if len(operands) == 1:
        (only,) = operands
        return lambda frame: apply(only(frame))
    if len(operands) == 2:
        left, right = operands
        return lambda frame: apply(left(frame), right(frame))
    return lambda frame: apply(*(operand(frame) for operand in operands))


def annotations_of(node: Node) -> Mapping[str, Any]:
    """What a node is annotated with."""
    found = getattr(node, "annotations", None)
    return {str(key): value for key, value in found.items()} if found else {}


def one_line(node: Node) -> str:
    """A node as TileLang prints it, cut to one line that fits a message."""
    lines = [line.strip() for line in str(node).splitlines()]
    code = [line for line in lines if line and not line.startswith(("#", "@")) and not _DECLARATION.search(line)]
    text = " ".join(code)
    return text if len(text) <= 200 else text[:197] + "…"


_DECLARATION = re.compile(
    r"^[\w, ]+ = (T\.(Buffer|handle|u?int\d+|float\d+|bool)\([^)]*\)(, )?)+|^[\w, ]+ = T\.Buffer\("
)


def remembered(translator: Translator, node: Node, run: Execute) -> Execute:
    """`run`, remembering which statement is being run so that an error can say so."""

    def execute(frame: Frame) -> None:
        frame.statement = node
        if frame.sanitizer is not None:
            frame.sanitizer.statement(frame)
        try:
            run(frame)
        except InterpretError as error:
            raise error.at(translator.kernel, one_line(node)) from None

    return execute
