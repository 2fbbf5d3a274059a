"""The whole check: digests, every kernel, the ways in and out, and what no check has seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quantpipe.errors import some_of
from quantpipe.verify.cache_ports import check_caches, check_lengths
from quantpipe.verify.checked_kernels import KernelCheck
from quantpipe.verify.checked_loops import check_loops
from quantpipe.verify.ends import check_ends
from quantpipe.verify.files import Folder, Wrong, expect
from quantpipe.verify.float_blocks import check_weighted
from quantpipe.verify.geometry import check_geometry
from quantpipe.verify.grammar import check_file, check_kernel, check_nodes
from quantpipe.verify.half_precision import casts_of_floats
from quantpipe.verify.numbers import ClaimedNumbers, limits
from quantpipe.verify.placement import check_placement
from quantpipe.verify.real_part import check_real_part, states_real_part
from quantpipe.verify.realized_model import Model

FORMS = ("qdq", "matmul_nbits", "qoperator", "integer")
REQUIRED = ("form", "values", "kernels", "float_nodes", "summary", "digests")
SHIFTS = ("shift", "left_shift")
LONGEST_SHIFT, WIDEST, NAMED = 1 << 12, 16, 8
EARLIER = (
    "; the certificate is of an earlier version. It does not name the graph's inputs and outputs, its opsets, and the "
    "tensors and attributes of nodes in float, so these were not compared. Run the same command again to write them"
)
PLANNED = ("quantizers", "weights", "constants", "accumulators", "narrowings", "kernels")


@dataclass(frozen=True)
class Verdict:
    """State whether a run folder is as its certificate claims.

    `wrong`: the first thing that is not, or None. `proved` of `kernels` hold for all inputs. `complete`: the
    certificate names nodes in float, inputs and outputs; earlier versions did not. `uncompared`: kernels that are
    neither proved nor compared with plan.json.
    """

    wrong: str | None
    kernels: int = 0
    proved: int = 0
    float_nodes: int = 0
    complete: bool = True
    uncompared: Sequence[str] = ()

    def __str__(self) -> str:
        if self.wrong is not None:
            return f"wrong: {self.wrong}"
        left = self.kernels - self.proved
        other = f"; not compared: {some_of(self.uncompared, NAMED)}" if self.uncompared else ""
        return (
            f"every claim of the certificate holds: proved for all inputs: {self.proved} of {self.kernels} kernels; "
            f"claimed on samples only: {_counted(left, 'kernel')} (functions of rows and tables are compared here with "
            f"plan.json, and not proved{other}), and {_counted(self.float_nodes, 'node')} in float, whose results are "
            f"not checked here{'' if self.complete else EARLIER}"
        )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def verify_folder(root: Path) -> Verdict:
    """Check a run folder. ArtifactError where its files cannot be read."""
    folder = Folder(root)
    try:
        return _checked(folder)
    except Wrong as wrong:
        return Verdict(str(wrong))
    except (RecursionError, MemoryError) as error:
        return Verdict(f"model.onnx, plan.json: they are nested or sized beyond what is read ({type(error).__name__})")
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        found = f"{type(error).__name__}: {error}"
        return Verdict(f"certificate.json, plan.json: they are not of the form that docs/artifacts.md gives ({found})")


def _checked(folder: Folder) -> Verdict:
    folder.check_digests()
    plan, certificate = folder.plan, folder.certificate
    for name, content, keys in (("plan.json", plan, PLANNED), ("certificate.json", certificate, REQUIRED)):
        missing = [k for k in keys if k not in content]
        expect(not missing, name, f"it has no {', '.join(missing)}")
    if certificate["form"] not in FORMS:
        return _of_another_form(certificate)
    check_file(folder.model, certificate)
    stated = states_real_part(certificate)
    model = Model(folder)
    numbers = ClaimedNumbers(plan, certificate, model)
    model.stops |= {str(v) for v in certificate["values"].values()}
    model.stop_at_constants({f"{t}_q" for t in plan["constants"]})
    _quantizers(plan)
    _same_kernels(numbers)
    followed = _kernels(numbers, whole=stated)
    kernels = set(model.seen_nodes)
    by_run = check_weighted(plan, model)
    _expect_readers(plan)
    followed |= model.seen_nodes - kernels
    floats = {str(f["node"]) for f in certificate["float_nodes"]} | check_loops(plan, model)
    floats |= by_run | _looking_up(model, numbers.plan.get("tables", {}))
    floats |= casts_of_floats(model.nodes, floats)
    if stated:
        check_real_part(folder, model, floats)
    check_lengths(folder, numbers)
    check_ends(numbers, floats, tied=stated, stored=check_caches(folder, numbers))
    check_nodes((n for n in model.nodes if id(n) in model.seen_nodes - followed), "the ends of the integer part")
    _all_seen(model, floats)
    check_placement(model, plan)
    return _summed_up(certificate, stated, numbers.uncompared)


def _expect_readers(plan: Mapping[str, Any]) -> None:
    """Each weight of plan.json belongs to a kernel, a loop or a node in float, by which it is checked."""
    readers = [*plan["kernels"].values(), *plan.get("weighted", {}).values()]
    readers += [product for loop in plan.get("loops", {}).values() for product in loop["products"]]
    read = {str(reader[key]) for reader in readers for key in ("weight", "state_weight") if key in reader}
    unread = sorted(plan["weights"].keys() - read)
    expect(not unread, "plan.json", f"nothing reads its weights {', '.join(unread[:8])}")


def _kernels(numbers: ClaimedNumbers, *, whole: bool) -> set[int]:
    """Check all kernels; returns their nodes, by identity. `whole`: the certificate names all attributes."""
    model, checked = numbers.model, set[int]()
    for node, kernel in numbers.kernels.items():
        before = set(model.seen_nodes)
        try:
            KernelCheck(numbers, node).check()
            own = [n for n in model.nodes if id(n) in model.seen_nodes and id(n) not in before]
            check_kernel(node, kernel, own)
            check_geometry(node, kernel, numbers.claims[node]["attributes"], own, whole=whole)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise Wrong(
                node, f"its entry is not of the form that docs/artifacts.md gives ({type(error).__name__}: {error})"
            ) from error
        checked |= {id(n) for n in own}
    return checked


def _of_another_form(certificate: Mapping[str, Any]) -> Verdict:
    """Of a form that is not known here, a plug-in package's, nothing may be claimed but the files' digests."""
    proved = [node for node, claim in certificate["kernels"].items() if claim["proved"]]
    form = certificate["form"]
    expect(not proved, "certificate.json", f"the form {form!r} is unknown, and {len(proved)} kernels claim a proof")
    return _summed_up(certificate, states_real_part(certificate))


def _quantizers(plan: Mapping[str, Any]) -> None:
    """Bits, ranges and types of stored tensors fit each other; what follows enumerates them, and shifts by shifts."""
    for node, shift in _shifts((*plan["kernels"].items(), *plan["narrowings"].items())):
        expect(abs(shift) <= LONGEST_SHIFT, node, f"it shifts by {shift}")
    for tensor, q in plan["quantizers"].items():
        (low, high), (least, most) = q["range"], limits(q["dtype"])
        signed = least < 0
        top = (1 << (q["bits"] - signed)) - 1
        fits = (
            high == top <= most and low in ((-top, -top - 1) if signed else (0, 1)) and low <= q["zero_point"] <= high
        )
        expect(q["bits"] <= WIDEST, tensor, f"it has {q['bits']} bits; stored tensors have at most {WIDEST}")
        expect(fits, tensor, f"{q['bits']} bits of {q['dtype']} do not hold [{low}, {high}] around {q['zero_point']}")
        expect(np.float32(q["scale"]) == q["scale"] > 0, tensor, f"its scale {q['scale']} is no positive float32")
    for tensor, weight in plan["weights"].items():
        expect(2 <= weight["bits"] <= limits(weight["dtype"])[1].bit_length() + (not weight["dtype"].startswith("u")),
               tensor, f"{weight['dtype']} has no room for {weight['bits']} bits")  # fmt: skip


def _shifts(items: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, int]]:
    """Every shift in entries of plan.json, with the name of its entry."""
    pending = [(name, "", content) for name, content in items]
    while pending:
        name, key, content = pending.pop()
        if isinstance(content, Mapping):
            pending += [(name, str(inner), value) for inner, value in content.items()]
        elif isinstance(content, list) and (key in SHIFTS or (content and isinstance(content[0], Mapping | list))):
            pending += [(name, key, value) for value in content]
        elif key in SHIFTS and isinstance(content, int):
            yield name, content


def _same_kernels(numbers: ClaimedNumbers) -> None:
    for node in numbers.kernels:
        expect(node in numbers.claims, node, "the certificate has no entry for this kernel")
    for node in numbers.claims:
        expect(node in numbers.kernels, node, "the certificate claims something of a kernel that plan.json has not")
        claim = numbers.claims[node]
        said = isinstance(claim["reason"], str) and bool(claim["reason"])
        expect(said or claim["reason"] is None, node, f"its reason is {claim['reason']!r}, neither a text nor null")
        expect(claim["op"] == numbers.kernels[node]["op"], node, f"its op is {claim['op']!r} in the certificate")
        for read in numbers.kernels[node]["reads"]:
            tensor, form = read["tensor"], read["form"]
            part = {"quantized": "quantizers", "raw": "accumulators"}.get(form)
            held = part is not None and tensor in numbers.plan[part]
            expect(held, node, f"it reads {tensor} as {form}, which plan.json has not")
        expect(isinstance(claim["proved"], bool) and claim["proved"] != said, node,
               "it is neither proved nor has it a reason why not")  # fmt: skip


def _summed_up(certificate: Mapping[str, Any], stated: bool, uncompared: Sequence[str] = ()) -> Verdict:
    claims, summary = certificate["kernels"], certificate["summary"]
    proved = sum(bool(c["proved"]) for c in claims.values())
    found = {"kernels": len(claims), "proved": proved, "checked": len(claims) - proved,
             "float_nodes": len(certificate["float_nodes"])}  # fmt: skip
    expect(dict(summary) == found, "certificate.json", f"its summary is {dict(summary)}, its entries give {found}")
    return Verdict(None, len(claims), proved, found["float_nodes"], stated, tuple(uncompared))


def _looking_up(model: Model, tables: Mapping[str, Any]) -> set[str]:
    """Names of the nodes that a float node which looks rows up in a table of integers is written in."""
    heads = tuple(f"{name}/" for tensor, table in tables.items() for name in (*table["nodes"], tensor, f"{tensor}_q"))
    return {node.name for node in model.nodes if heads and node.name.startswith(heads)}


def _all_seen(model: Model, floats: set[str]) -> None:
    """Check that every node belongs to a kernel, to a way in or out, or to the nodes in float.

    Every number that such nodes read must have been compared.
    """
    for node in model.nodes:
        seen = id(node) in model.seen_nodes
        name = node.name or str(node.output[0])
        expect(seen or name in floats, name, "it is in no kernel of plan.json, and not among the nodes in float")
        if seen:
            for value in node.input:
                known = not value or value not in model.initializers or value in model.seen_constants
                expect(known, node.name, f"its constant {value} was compared with nothing")
