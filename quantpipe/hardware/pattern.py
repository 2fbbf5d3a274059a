"""Read the pattern of a kernel: one line per value, `y: Conv(x, w)`, alternatives joined by `|`.

The lines are expressions in Python's syntax and are read by its parser, so no grammar of our own is needed. Names are
values, numbers are constants that an operand must be, and keywords are attributes that the node must have. `...`
represents further operands of any kind.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from quantpipe.errors import nearest
from quantpipe.hardware.reader import Data, Reader
from quantpipe.oprules import OP_RULES
from quantpipe.option_checks import is_number
from quantpipe.types.kernel import PatternCall, PatternStep

LEGAL = "a line per value, such as {y: Conv(x, w), z: HardSwish(y) | LeakyRelu(y)}"


def read_pattern(reader: Reader, value: object, conditions: Mapping[str, Data], field: str) -> tuple[PatternStep, ...]:
    """Return the steps of a pattern (value -> expression), in the order of the file.

    `conditions` maps a value to its `when`; `field` is the pattern's name in errors. Raises HardwareError for anything
    but a pattern, unknown ops, values that depend on themselves, and steps that do not contribute to the result.
    """
    lines = reader.mapping(value, field, LEGAL)
    if not lines:
        raise reader.error(field, f"is empty; legal is {LEGAL}")
    steps = tuple(
        PatternStep(
            str(name),
            _calls(reader, text, f"{field}.{name}"),
            tuple((str(k), str(v)) for k, v in conditions.get(str(name), {}).items()),
        )
        for name, text in lines.items()
    )
    _refuse_circle(reader, steps, field)
    _refuse_apart(reader, steps, field)
    return steps


def read_of(step: PatternStep) -> set[str]:
    """Return the values that a step reads."""
    return {a for call in step.calls for a in call.arguments if isinstance(a, str)}


def _calls(reader: Reader, text: object, field: str) -> tuple[PatternCall, ...]:
    try:
        tree = ast.parse(str(text), mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        raise reader.error(field, f"is {text!r}, which is no expression; legal are such as Conv(x, w)") from None
    pending, found = [tree], []
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            pending = [node.left, node.right, *pending]
        else:
            found.append(_call(reader, node, field))
    return tuple(found)


def _call(reader: Reader, node: ast.expr, field: str) -> PatternCall:
    said = ast.unparse(node)
    if not isinstance(node, ast.Call):
        raise reader.error(field, f"is {said!r}; legal are ops with their operands, such as Conv(x, w), joined by |")
    op = ast.unparse(node.func)
    if op not in OP_RULES:
        raise reader.error(field, f"names {op!r}, no op with a rule{nearest(op, OP_RULES)}")
    arguments: list[str | float] = []
    further = bool(node.args) and _literal(node.args[-1]) is Ellipsis
    for argument in node.args[:-1] if further else node.args:
        number = _literal(argument)
        if isinstance(argument, ast.Name):
            arguments.append(argument.id)
        elif is_number(number):
            arguments.append(float(number))
        else:
            raise reader.error(
                field,
                f"has the operand {ast.unparse(argument)!r}; legal are names of values, numbers, and `...` after them",
            )
    attributes = []
    for keyword in node.keywords:
        literal = _literal(keyword.value)
        if keyword.arg is None or literal is None:
            raise reader.error(field, f"has the attribute {ast.unparse(keyword)!r}; legal are such as group=1")
        attributes.append((keyword.arg, tuple(literal) if isinstance(literal, list) else literal))
    return PatternCall(op, tuple(arguments), tuple(attributes), further)


def _literal(node: ast.expr) -> object:
    try:
        found: object = ast.literal_eval(node)
    except ValueError:
        return None
    return found


def _refuse_circle(reader: Reader, steps: tuple[PatternStep, ...], field: str) -> None:
    reads = {step.value: read_of(step) for step in steps}
    for step in steps:
        pending, behind = [step.value], set[str]()
        while pending:
            for value in reads.get(pending.pop(), ()):
                if value == step.value:
                    raise reader.error(
                        f"{field}.{step.value}", "depends on itself; legal are patterns without a circle"
                    )
                if value not in behind:
                    behind.add(value)
                    pending.append(value)


def _refuse_apart(reader: Reader, steps: tuple[PatternStep, ...], field: str) -> None:
    """Reject steps that are not connected with the last one."""
    joined = {steps[-1].value, *read_of(steps[-1])}
    left, before = list(steps[:-1]), -1
    while len(left) != before:
        before = len(left)
        for step in list(left):
            if step.value in joined or joined & read_of(step):
                joined |= {step.value, *read_of(step)}
                left.remove(step)
    if left:
        raise reader.error(
            f"{field}.{left[0].value}", f"has nothing to do with {steps[-1].value}; legal are steps that share values"
        )
