"""How a .tflite file is used: the section of SHIP.md."""

from __future__ import annotations

from quantpipe.realize.tflite.write import Written


def howto(file: str, written: Written, *, whole: bool) -> str:
    """Return the section as Markdown.

    Args:
        file: the name of the file.
        written: what is in it.
        whole: whether its inputs and outputs are the stored integers.
    """
    name, port = next(iter(written.inputs.items()))
    feed = f"samples: {name}, axes in the order {port.layout}"
    kind = "the stored integers (scale and zero point: `get_input_details`)" if whole else "real numbers, preprocessed"
    return f"""The file has the plan's own integers and scales; LiteRT quantizes nothing. Its inputs and outputs are
{kind}.
Axes of maps lie as TFLite has them, channels last: `{name}` is {port.layout} here. The integers are those of LiteRT's
reference kernels; XNNPACK, which LiteRT takes by default, rounds otherwise here and there.

```python
from ai_edge_litert.interpreter import Interpreter, OpResolverType

interpreter = Interpreter("{file}", experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
run = interpreter.get_signature_runner()
print(run(**{{"{name}": samples}}))  # {feed}
```
"""
