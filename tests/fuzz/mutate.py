"""Mutations by a seed: of bytes, of JSON-like data, of protobuf messages, of text."""

from __future__ import annotations

import copy
import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

NUMBERS = (0, 1, -1, 2, 7, 255, 2**15, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**31), -(2**63))
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 10**9, 10**30, -(10**30), 0.5, 1e308, float("nan"), float("inf"), "", "x", "[x]",
    "a" * 5000, "\u0000", "../..", [], [[]], [None], {}, {"": 0}, {"low": 1, "high": -1},
)  # fmt: skip
"""Values that stand where something else belongs."""
WORDS = (
    "\t", "  ", "&a ", "*a ", "!!int ", "!x ", "{", "}", "[", "]", ": ", "- ", "? ", "${x}", "${", "'", '"', "\ufeff",
    "<<: ", "%", "@", "`", "|", ">", "---\n", "# @package _global_\n", "\r", ",", ".inf", "0x",
)  # fmt: skip
"""What means something to a parser of YAML or CSV."""


def of_bytes(data: bytes, rng: random.Random) -> bytes:
    """Some bits turned, some bytes cut out, doubled or put in."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        if not found:
            break
        place, length = rng.randrange(len(found)), rng.choice((1, 2, 4, 8, 64))
        kind = rng.randrange(5)
        if kind == 0:
            found[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del found[place : place + length]
        elif kind == 2:
            found[place:place] = rng.randbytes(length)
        elif kind == 3:
            found[place : place + length] = rng.choice((b"\xff", b"\x00", b"\x80")) * length
        else:
            del found[place:]
    return bytes(found)


def of_data(data: Any, rng: random.Random) -> Any:
    """A copy with one place changed: another value, that of another place, a name taken away, doubled, or exchanged."""
    found = copy.deepcopy(data)
    places = _places(found)
    holder, key = rng.choice(places)
    kind = rng.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[rng.choice(("", "x", "__class__", str(key) + "x"))] = holder.pop(key)
    elif kind == 2 and isinstance(holder, list):
        holder.extend([holder[key]] * rng.choice((1, 50)))
    elif kind == 3 and isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
        holder[key] = rng.choice((-holder[key], holder[key] * 2**20, holder[key] + 1, float(holder[key])))
    elif kind > 4:  # a value of another place, which may mean something here
        others = [h[k] for h, k in places if type(h[k]) is type(holder[key])]
        holder[key] = copy.deepcopy(rng.choice(others))
    else:
        holder[key] = rng.choice(ODD)
    return found


def _places(data: Any) -> list[tuple[Any, Any]]:
    """(list or mapping, key) of every value within; the first ones are as likely as all below them."""
    found: list[tuple[Any, Any]] = []
    pending = [data]
    while pending:
        holder = pending.pop()
        for key in holder if isinstance(holder, dict) else range(len(holder)):
            found.append((holder, key))
            if isinstance(holder[key], dict | list) and len(found) < 5000:
                pending.append(holder[key])
    return found


def of_text(text: str, rng: random.Random) -> str:
    """Lines exchanged, indented anew, taken away, doubled; words put in that mean something to a parser."""
    lines = text.split("\n")
    for _ in range(rng.choice((1, 1, 2, 5))):
        place = rng.randrange(len(lines))
        line = lines[place]
        kind = rng.randrange(5)
        if kind == 0:
            lines.pop(place)
        elif kind == 1:
            lines.insert(place, rng.choice(lines))
        elif kind == 2:
            cut = rng.randrange(len(line) + 1)
            lines[place] = line[:cut] + rng.choice(WORDS) + line[cut:]
        elif kind == 3:
            head, colon, _ = line.partition(":")
            lines[place] = f"{head}{colon} {rng.choice(ODD)}"
        else:
            lines[place] = line[: rng.randrange(len(line) + 1)]
        lines = lines or [""]
    return "\n".join(lines)


def of_message(message: Message, rng: random.Random) -> None:
    """One field of the message or of one within it, changed in place as its type allows."""
    target = message
    for _ in range(rng.randrange(1, 8)):  # the deeper, the smaller what is changed
        inner = [value for field, value in target.ListFields() if field.type == FieldDescriptor.TYPE_MESSAGE]
        flat = [m for value in inner for m in ([value] if isinstance(value, Message) else list(value))]
        if not flat:
            break
        target = rng.choice(flat)
    fields = list(target.DESCRIPTOR.fields)
    present = [field for field, _ in target.ListFields()]
    field = rng.choice(present if present and rng.random() < 0.8 else fields)
    if field.is_repeated:
        _repeated(getattr(target, field.name), field, rng)
    elif rng.random() < 0.3:
        target.ClearField(field.name)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        getattr(target, field.name).SetInParent()
    else:
        setattr(target, field.name, _value(field, rng, getattr(target, field.name)))


def _repeated(values: Any, field: FieldDescriptor, rng: random.Random) -> None:
    kind = rng.randrange(4)
    if kind == 0 and len(values):
        del values[rng.randrange(len(values))]
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        if len(values) > 1 and kind == 1:  # two change places
            first, second = rng.randrange(len(values)), rng.randrange(len(values))
            kept = copy.deepcopy(values[first])
            values[first].CopyFrom(values[second])
            values[second].CopyFrom(kept)
        elif len(values):
            values.add().CopyFrom(rng.choice(list(values)))
        else:
            values.add()
    elif len(values) and kind < 3:
        place = rng.randrange(len(values))
        values[place] = _value(field, rng, values[place])
    else:
        values.append(_value(field, rng, values[0] if len(values) else None))


def _value(field: FieldDescriptor, rng: random.Random, old: Any) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return of_bytes(old or b"x", rng)
        return rng.choice(("", "x", "Conv", "Loop", "If", "Add", "Relu", "Reshape", (old or "") + "_", "\u0000", "é"))
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice([value.number for value in field.enum_type.values])
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return rng.choice((0.0, -1.0, 1e30, float("nan"), float("inf"), 1e-30))
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    bits = 32 if kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32) else 64
    signed = kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    near = [old + 1, old - 1, -old, old * 2] if isinstance(old, int) else []
    return rng.choice([n for n in (*NUMBERS, *near) if low <= n <= high])
