"""Pickles as data: a small machine that builds plain values, and calls nothing off its list.

`pickle.Unpickler` runs what a file says; even with a list of allowed names it lets the file set
attributes of whatever is on the list. Here each instruction is read by `pickletools` and carried
out by us. Those that could reach anything but values and the allowed names do not exist.
"""

from __future__ import annotations

import argparse
import pickletools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from overproof.errors import InvalidData
from overproof.ml.formats.allowed import ALLOWED, MAX_BYTES, set_array, set_dtype

MAX_INSTRUCTIONS = 5_000_000


@dataclass(frozen=True)
class _Global:
    """A name of the list, as a pickle refers to it."""

    make: Callable[..., Any]


class _Mark:
    """Where a run of items begins on the stack."""


_LITERALS = frozenset(
    name
    for names in (
        "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT",
        "STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8",
        "BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8",
    )
    for name in names.split()
)
_IGNORED = frozenset({"PROTO", "FRAME"})


def loads(content: bytes) -> Any:
    """The value of a pickle that names nothing but what `allowed.ALLOWED` lists.

    Raises:
        InvalidData: the pickle names anything else, does something other than building values, or
            is damaged. The message is a clause without a subject: "names os.system".
    """
    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            if count > MAX_INSTRUCTIONS:
                raise InvalidData(f"has more than {MAX_INSTRUCTIONS} instructions")
            if opcode.name == "STOP":
                return machine.pop()
            machine.do(opcode.name, argument)
    except InvalidData:
        raise
    except Exception as error:  # a damaged pickle raises whatever its instructions lead to
        raise InvalidData(f"is a damaged pickle ({' '.join(str(error).split())[:120]})") from None
    raise InvalidData("is a pickle without an end")


class _Machine:
    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._handed = 0  # bytes given to names so far; each may copy them

    def pop(self) -> Any:
        value = self._stack.pop()
        if isinstance(value, _Mark):
            raise ValueError("nothing is left of a run of items")
        return value

    def do(self, name: str, argument: Any) -> None:
        """Carry out one instruction."""
        if name in _LITERALS:
            self._stack.append(argument)
        elif name not in _IGNORED:
            do = _INSTRUCTIONS.get(name)
            if do is None:
                raise InvalidData(f"does more than hold data (instruction {name})")
            do(self, argument)

    # ---- values ------------------------------------------------------------------------------

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def run(self) -> list[Any]:
        """What was pushed since the last mark."""
        items: list[Any] = []
        while not isinstance(item := self._stack.pop(), _Mark):
            items.append(item)
        return items[::-1]

    def take(self, count: int) -> tuple[Any, ...]:
        """The top values, the deepest first."""
        return tuple([self.pop() for _ in range(count)][::-1])

    def append(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise ValueError("items for what is no list")
        target.extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) not in (dict, OrderedDict):
            raise ValueError("items for what is no dict")
        target.update(_dict(items))

    def store(self, index: int | None) -> None:
        self._memo[len(self._memo) if index is None else index] = self._stack[-1]

    def recall(self, index: int) -> None:
        self._stack.append(self._memo[index])

    # ---- names of the list -------------------------------------------------------------------

    def name(self, module: Any, name: Any) -> None:
        full = f"{module}.{name}"
        if full not in ALLOWED:
            raise InvalidData(f"names {full[:80]}, which is no data")
        self._stack.append(_Global(ALLOWED[full]))

    def call(self) -> None:
        known, arguments = self.take(2)
        if not isinstance(known, _Global) or not isinstance(arguments, tuple):
            raise InvalidData("calls what is no name")
        # A pickle can hand on the same value a million times.
        for each in arguments:
            if isinstance(each, bytes | bytearray | str):
                self._handed += len(each)
            elif isinstance(each, tuple | list):
                self._handed += 16 * len(each)
        if self._handed > MAX_BYTES:
            raise InvalidData(f"makes more than {MAX_BYTES} bytes")
        self._stack.append(known.make(*arguments))

    def build(self) -> None:
        """The state of an object; only of those whose state is data."""
        state = self.pop()
        target = self._stack[-1]
        if isinstance(target, argparse.Namespace) and isinstance(state, dict):
            vars(target).update({str(key): value for key, value in state.items()})
        elif isinstance(target, np.ndarray):
            set_array(target, state)
        elif isinstance(target, np.dtype):
            set_dtype(target, state)
        elif not (isinstance(target, OrderedDict) and isinstance(state, dict)):
            raise InvalidData(f"sets the state of a {type(target).__name__}")


_INSTRUCTIONS: Mapping[str, Callable[[_Machine, Any], object]] = {
    "MARK": lambda machine, _: machine.push(_Mark()),
    "POP": lambda machine, _: machine.pop(),
    "POP_MARK": lambda machine, _: machine.run(),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "LIST": lambda machine, _: machine.push(machine.run()),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.run())),
    "TUPLE1": lambda machine, _: machine.push(machine.take(1)),
    "TUPLE2": lambda machine, _: machine.push(machine.take(2)),
    "TUPLE3": lambda machine, _: machine.push(machine.take(3)),
    "DICT": lambda machine, _: machine.push(_dict(machine.run())),
    "APPEND": lambda machine, _: machine.append(list(machine.take(1))),
    "APPENDS": lambda machine, _: machine.append(machine.run()),
    "SETITEM": lambda machine, _: machine.set_items(list(machine.take(2))),
    "SETITEMS": lambda machine, _: machine.set_items(machine.run()),
    "PUT": lambda machine, index: machine.store(index),
    "BINPUT": lambda machine, index: machine.store(index),
    "LONG_BINPUT": lambda machine, index: machine.store(index),
    "MEMOIZE": lambda machine, _: machine.store(None),
    "GET": lambda machine, index: machine.recall(index),
    "BINGET": lambda machine, index: machine.recall(index),
    "LONG_BINGET": lambda machine, index: machine.recall(index),
    "GLOBAL": lambda machine, names: machine.name(*names.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.name(*machine.take(2)),
    "REDUCE": lambda machine, _: machine.call(),
    "NEWOBJ": lambda machine, _: machine.call(),
    "BUILD": lambda machine, _: machine.build(),
}


def _dict(items: list[Any]) -> dict[Any, Any]:
    # The hash of tuples in tuples takes as long as they would be when written out.
    if any(isinstance(part, tuple) for key in items[::2] if isinstance(key, tuple) for part in key):
        raise InvalidData("names values by tuples in tuples")
    return dict(zip(items[::2], items[1::2], strict=True))
