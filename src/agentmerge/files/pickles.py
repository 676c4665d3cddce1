"""What a pickle says, without doing any of it: a machine of data, which calls nothing and imports nothing.

Calls of a few known names become `Call` values, objects of a few known classes `Record` values; everything else that a
pickle might ask for is refused. Its work is linear in the length of the pickle.
"""

from __future__ import annotations

import struct
from collections import ChainMap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

PLAIN = {b"N": None, b"\x88": True, b"\x89": False, b")": ()}
"""Opcodes that push a value of their own."""
NUMBERS = {
    b"J": struct.Struct("<i"), b"K": struct.Struct("<B"), b"M": struct.Struct("<H"), b"G": struct.Struct(">d"),
}  # fmt: skip
TEXTS = {
    b"X": (struct.Struct("<I"), "utf-8"), b"\x8c": (struct.Struct("<B"), "utf-8"),
    b"\x8d": (struct.Struct("<Q"), "utf-8"), b"U": (struct.Struct("<B"), "latin-1"),
}  # fmt: skip
"""Opcodes that push a text: how its length is written, and its encoding."""
PASSED_OVER = {b"\x80": 1, b"\x95": 8}
"""Protocol and frame: bytes of their arguments."""
PLACES = {
    b"q": struct.Struct("<B"), b"r": struct.Struct("<I"), b"h": struct.Struct("<B"), b"j": struct.Struct("<I"),
}  # fmt: skip
"""Opcodes that put into the memo and get from it."""
STOP = b"."
DICT = "collections.OrderedDict"
GETATTR = ("__builtin__.getattr", "builtins.getattr")
"""How what is inside a class is named; here that makes the longer name, and looks at nothing."""


@dataclass(frozen=True, slots=True)
class Name:
    """Something that a pickle would import, here its name alone."""

    text: str
    """MODULE.NAME."""


@dataclass(frozen=True, slots=True, repr=False)
class Persistent:
    """What a pickle says of something that lies outside of it."""

    key: Any

    def __repr__(self) -> str:
        """Short: parts may hold each other many times over, here as below."""
        return "a storage"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Call:
    """A call that a pickle asks for, and nobody makes."""

    name: str
    arguments: tuple[Any, ...]

    def __repr__(self) -> str:
        """Short."""
        return f"{self.name}(...)"


@dataclass(slots=True, eq=False, repr=False)
class Record:
    """An object that a pickle describes, and nobody makes: its class's name, what it is made of, and its state."""

    name: str
    arguments: tuple[Any, ...]
    state: Any = None

    def __repr__(self) -> str:
        """Short."""
        return f"{self.name}(...)"

    @property
    def fields(self) -> Mapping[Any, Any]:
        """Its attributes by name."""
        return fields_of(self.state)


def fields_of(state: Any) -> Mapping[Any, Any]:
    """The attributes that a state sets, uncopied: a mapping, or one or none of attributes and one of slots."""
    parts = state if isinstance(state, tuple) and len(state) == 2 else (state,)
    return ChainMap(*(part for part in parts if isinstance(part, dict)))


class PickleRefused(ValueError):
    """It is broken, or asks for more than data."""


class _Mark:
    """Where the parts of a tuple, list or mapping begin."""


def described(raw: bytes, calls: Container[str], records: Container[str] = ()) -> Any:
    """What a pickle describes: texts, numbers, tuples, lists and mappings, with the classes above among them.

    Args:
        raw: the pickle.
        calls: the names that may be called.
        records: the classes that there may be objects of.

    Raises:
        PickleRefused: it is no pickle, or asks for something else.
    """
    machine = _Machine(raw, calls, records)
    try:
        while machine.step():
            pass
    except PickleRefused:
        raise
    except (ValueError, LookupError) as error:
        raise PickleRefused(f"broken: {str(error)[:120] or type(error).__name__}") from None
    if len(machine.stack) != 1 or isinstance(machine.stack[0], _Mark):
        raise PickleRefused("broken: it ends with more or less than one value")
    return machine.stack[0]


class _Machine:
    """The stack and the memo of one pickle."""

    def __init__(self, raw: bytes, calls: Container[str], records: Container[str]) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._raw, self._at, self._calls, self._records = raw, 0, calls, records

    def step(self) -> bool:
        """Carry out one opcode: False for the last."""
        opcode = self._take(1)
        if opcode in PASSED_OVER:
            self._take(PASSED_OVER[opcode])
        elif opcode in PLAIN:
            self.stack.append(PLAIN[opcode])
        elif opcode in NUMBERS:
            self.stack.append(self._number(NUMBERS[opcode]))
        elif opcode in TEXTS:
            length, encoding = TEXTS[opcode]
            self.stack.append(self._take(self._number(length)).decode(encoding))
        elif opcode in PLACES:
            self._remember(opcode, self._number(PLACES[opcode]))
        elif opcode in ACTS:
            ACTS[opcode](self)
        elif opcode != STOP:
            raise PickleRefused(f"its opcode {opcode!r} makes more than plain data")
        return opcode != STOP

    def _take(self, count: int) -> bytes:
        """The next bytes."""
        found = self._raw[self._at : self._at + count]
        if len(found) < count:
            raise PickleRefused("broken: it ends too early")
        self._at += count
        return found

    def _number(self, form: struct.Struct) -> Any:
        return form.unpack(self._take(form.size))[0]

    def _line(self) -> str:
        end = self._raw.index(b"\n", self._at)
        return self._take(end + 1 - self._at)[:-1].decode()

    def _remember(self, opcode: bytes, place: int) -> None:
        if opcode in b"qr":
            self._memo[place] = self.stack[-1]
        else:
            self.stack.append(self._memo[place])

    def long(self) -> None:
        """A whole number of up to 8 bytes; torch has no longer ones."""
        count = self._number(NUMBERS[b"K"])
        if count > 8:
            raise PickleRefused("a number of more than 64 bits")
        self.stack.append(int.from_bytes(self._take(count), "little", signed=True))

    def pop(self) -> Any:
        """The topmost value."""
        value = self.stack.pop()
        if isinstance(value, _Mark):
            raise PickleRefused("broken: a mark where a value belongs")
        return value

    def since_mark(self) -> list[Any]:
        """The values above the last mark, which goes, too."""
        found = []
        while not isinstance(value := self.stack.pop(), _Mark):
            found.append(value)
        return found[::-1]

    def named(self) -> None:
        """Something by its module and name, each on a line of its own."""
        module = self._line()
        self.stack.append(Name(f"{module}.{self._line()}"))

    def named_by_stack(self) -> None:
        """Something by its module and name, which are texts on the stack."""
        name, module = self.pop(), self.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise PickleRefused("broken: a name that is no text")
        self.stack.append(Name(f"{module}.{name}"))

    def memoize(self) -> None:
        """The topmost value into the next place of the memo."""
        self._memo[len(self._memo)] = self.stack[-1]

    def reduce(self) -> None:
        """A call, of which only the name and the arguments are kept."""
        arguments, called = self.pop(), self.pop()
        if not isinstance(called, Name) or not isinstance(arguments, tuple):
            raise PickleRefused("broken: a call of something that is no name")
        if called.text == DICT and arguments == ():
            self.stack.append({})
        elif called.text in self._calls:
            self.stack.append(Call(called.text, arguments))
        elif called.text in GETATTR and self._known_inside(name := _inner(arguments)):
            self.stack.append(Name(name))
        else:
            raise PickleRefused(f"it asks to call {called.text[:120]!r}")

    def _known_inside(self, name: str) -> bool:
        """Whether it is a known class in another one, or a member of a known enum (Python 3.11.0 to 3.11.3)."""
        return name in self._records or name.rpartition(".")[0] in self._calls

    def record(self) -> None:
        """An object, of which only the class's name and the arguments are kept."""
        arguments, made = self.pop(), self.pop()
        if not isinstance(made, Name) or not isinstance(arguments, tuple):
            raise PickleRefused("broken: an object of something that is no name")
        if made.text not in self._records:
            raise PickleRefused(f"it asks to make {made.text[:120]!r}")
        self.stack.append(Record(made.text, arguments))

    def build(self) -> None:
        """The state of a record is kept; what torch lays beside a mapping (`_metadata`) is passed over."""
        state, target = self.pop(), self.stack[-1]
        if isinstance(target, Record) and target.state is None:
            target.state = state
        elif not isinstance(target, dict) or not isinstance(state, dict):
            raise PickleRefused("it sets the state of something that is no mapping")

    def set_items(self, pairs: list[Any]) -> None:
        """Entries of the mapping below them."""
        target = self.stack[-1]
        if not isinstance(target, dict) or len(pairs) % 2:
            raise PickleRefused("broken: entries of something that is no mapping")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if not isinstance(key, str | int | Record):  # the hash of nested tuples can take forever
                raise PickleRefused("a key that is neither text nor number")
            target[key] = value

    def append(self, values: list[Any]) -> None:
        """Entries of the list below them."""
        target = self.stack[-1]
        if not isinstance(target, list):
            raise PickleRefused("broken: entries of something that is no list")
        target += values

    def tuple_of(self, count: int) -> None:
        """The topmost values as one."""
        self.stack.append(tuple([self.pop() for _ in range(count)][::-1]))


def _inner(arguments: tuple[Any, ...]) -> str:
    """The name of something inside of something else that has a name; "" for anything else."""
    if len(arguments) == 2 and isinstance(arguments[0], Name) and isinstance(arguments[1], str):
        return f"{arguments[0].text}.{arguments[1]}"
    return ""


ACTS: dict[bytes, Callable[[_Machine], Any]] = {
    b"(": lambda m: m.stack.append(_Mark()),
    b"}": lambda m: m.stack.append({}),
    b"]": lambda m: m.stack.append([]),
    b"c": _Machine.named,
    b"\x93": _Machine.named_by_stack,
    b"\x94": _Machine.memoize,
    b"\x8a": _Machine.long,
    b"Q": lambda m: m.stack.append(Persistent(m.pop())),
    b"R": _Machine.reduce,
    b"\x81": _Machine.record,
    b"b": _Machine.build,
    b"s": lambda m: m.set_items([m.pop(), m.pop()][::-1]),
    b"u": lambda m: m.set_items(m.since_mark()),
    b"a": lambda m: m.append([m.pop()]),
    b"e": lambda m: m.append(m.since_mark()),
    b"t": lambda m: m.stack.append(tuple(m.since_mark())),
    b"\x85": lambda m: m.tuple_of(1),
    b"\x86": lambda m: m.tuple_of(2),
    b"\x87": lambda m: m.tuple_of(3),
}
"""The other opcodes that make plain data; what is not here is refused."""
