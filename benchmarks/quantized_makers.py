"""Writes quantized files with other tools, for `benchmarks/quantized_files.py`; it runs where the tool is installed.

    PYTHON_WITH_THE_TOOL benchmarks/quantized_makers.py TOOL FOLDER

TOOL is one of MAKERS. FOLDER holds `NAME.onnx`, float models whose one input is `image`, and `data.npz` with
`calibrate` and `labels`. Files are written as `TOOL.VARIANT.NAME.onnx`, and a line is printed for each: what it is, or
why the tool did not make it. Needs nothing of quantpipe.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

INPUT = "image"
Images = np.ndarray[Any, Any]
Variant = tuple[str, Callable[[Path, Images, Path], None]]


def onnxruntime_files() -> Iterator[Variant]:
    """Static, dynamic, 4-bit and weights-only files of onnxruntime's own quantizer."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.calibrate import CalibrationDataReader
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self, images: Images) -> None:
            self._feeds = iter([{INPUT: part} for part in np.split(images, 8)])

        def get_next(self) -> Any:
            return next(self._feeds, None)

    def static(**given: Any) -> Callable[[Path, Images, Path], None]:
        def make(model: Path, images: Images, out: Path) -> None:
            prepared = out.with_suffix(".prepared")
            quant_pre_process(str(model), str(prepared))
            quantize_static(str(prepared), str(out), Reader(images), **given)
            prepared.unlink()

        return make

    def packed(bits: int) -> Callable[[Path, Images, Path], None]:
        def make(model: Path, images: Images, out: Path) -> None:
            made = MatMulNBitsQuantizer(onnx.load(model), block_size=32, is_symmetric=True, bits=bits)
            made.process()
            onnx.save(made.model.model, out)

        return make

    def dynamic(model: Path, images: Images, out: Path) -> None:
        quantize_dynamic(str(model), str(out), weight_type=QuantType.QInt8)

    unsigned, signed = QuantType.QUInt8, QuantType.QInt8
    yield "qdq_u8s8", static(activation_type=unsigned, weight_type=signed, per_channel=True)
    yield "qdq_s8s8", static(activation_type=signed, weight_type=signed, per_channel=True)
    yield "qdq_s8s8_tensor", static(activation_type=signed, weight_type=signed)
    yield "qdq_u8u8", static(activation_type=unsigned, weight_type=unsigned)
    yield "qdq_4_bit_weights", static(activation_type=unsigned, weight_type=QuantType.QInt4, per_channel=True)
    yield "qdq_u16s8", static(activation_type=QuantType.QUInt16, weight_type=signed, per_channel=True)
    yield "qoperator", static(activation_type=unsigned, weight_type=signed, quant_format=QuantFormat.QOperator)
    yield "dynamic", dynamic
    yield "weights_4_bits", packed(4)
    yield "weights_8_bits", packed(8)


def nncf_files() -> Iterator[Variant]:
    """Post-training files of NNCF's ONNX back end: each preset, and for transformers."""
    import nncf

    def with_settings(**given: Any) -> Callable[[Path, Images, Path], None]:
        def make(model: Path, images: Images, out: Path) -> None:
            data = nncf.Dataset(np.split(images, 8), lambda part: {INPUT: part})
            onnx.save(nncf.quantize(onnx.load(model), data, subset_size=8, **given), out)

        return make

    def weights(model: Path, images: Images, out: Path) -> None:
        made = nncf.compress_weights(onnx.load(model), mode=nncf.CompressWeightsMode.INT8_SYM)
        onnx.save(made, out)

    yield "mixed", with_settings(preset=nncf.QuantizationPreset.MIXED)
    yield "performance", with_settings(preset=nncf.QuantizationPreset.PERFORMANCE)
    yield "transformer", with_settings(model_type=nncf.ModelType.TRANSFORMER)
    yield "weights_int8", weights


def brevitas_files() -> Iterator[Variant]:
    """A net of Brevitas' own layers, trained on the images: QCDQ and QONNX, 8 and 4 bits, scales of powers of two."""
    import brevitas.nn as bnn
    import torch
    from brevitas.export import export_onnx_qcdq, export_qonnx
    from brevitas.quant import (
        Int8ActPerTensorFixedPoint,
        Int8ActPerTensorFloat,
        Int8WeightPerChannelFloat,
        Int8WeightPerTensorFixedPoint,
        Int8WeightPerTensorFloat,
        Uint8ActPerTensorFloat,
    )
    from brevitas.quant.fixed_point import Uint8ActPerTensorFixedPoint

    def net(weight: Any, act: Any, relu: Any, bits: int) -> torch.nn.Sequential:
        kept = {"return_quant_tensor": True}
        layer = {"weight_quant": weight, "weight_bit_width": bits}
        return torch.nn.Sequential(
            bnn.QuantIdentity(act_quant=act, **kept),
            bnn.QuantConv2d(1, 8, 3, padding=1, bias=True, **layer),
            bnn.QuantReLU(act_quant=relu, bit_width=bits, **kept),
            bnn.QuantConv2d(8, 16, 3, stride=2, padding=1, bias=True, **layer),
            bnn.QuantReLU(act_quant=relu, bit_width=bits, **kept),
            torch.nn.Flatten(),
            bnn.QuantLinear(256, 10, bias=True, **layer),
            bnn.QuantIdentity(act_quant=act),
        )

    def trained(model: torch.nn.Sequential, images: Images, labels: Images) -> None:
        torch.manual_seed(0)
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        x, y = torch.from_numpy(images), torch.from_numpy(labels)
        for _ in range(40):
            for part in torch.randperm(len(x)).split(64):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x[part]), y[part]).backward()
                optimizer.step()
        model.eval()

    def make_of(export: Any, *parts: Any) -> Callable[[Path, Images, Path], None]:
        def make(model: Path, images: Images, out: Path) -> None:
            if model.stem != "digits":
                raise ValueError("its nets are of its own layers: one net")
            torch.manual_seed(0)
            made = net(*parts)
            trained(made, images, np.load(model.parent / "data.npz")["labels"])
            names = {"input_names": [INPUT], "output_names": ["logits"], "dynamo": False}
            export(
                made, args=torch.from_numpy(images[:1]), export_path=str(out), dynamic_axes={INPUT: {0: "N"}}, **names
            )

        return make

    floats = (Int8WeightPerTensorFloat, Int8ActPerTensorFloat, Uint8ActPerTensorFloat)
    channels = (Int8WeightPerChannelFloat, *floats[1:])
    powers = (Int8WeightPerTensorFixedPoint, Int8ActPerTensorFixedPoint, Uint8ActPerTensorFixedPoint)
    for form, export in (("qcdq", export_onnx_qcdq), ("qonnx", export_qonnx)):
        yield f"{form}_8", make_of(export, *floats, 8)
        yield f"{form}_8_channels", make_of(export, *channels, 8)
        yield f"{form}_4", make_of(export, *floats, 4)
        yield f"{form}_8_powers", make_of(export, *powers, 8)


def aimet_files() -> Iterator[Variant]:
    """Files of AIMET's simulation, exported as Q/DQ of ONNX."""
    import aimet_onnx
    from aimet_onnx.batch_norm_fold import fold_all_batch_norms_to_weight
    from aimet_onnx.quantsim import QuantizationSimModel

    def make_of(weights: str, activations: str) -> Callable[[Path, Images, Path], None]:
        def make(model: Path, images: Images, out: Path) -> None:
            net = onnx.load(model)
            fold_all_batch_norms_to_weight(net)
            types = {"param_type": getattr(aimet_onnx, weights), "activation_type": getattr(aimet_onnx, activations)}
            sim = QuantizationSimModel(net, providers=["CPUExecutionProvider"], **types)
            sim.compute_encodings([{INPUT: part} for part in np.split(images, 8)])
            onnx.save(sim.to_onnx_qdq(), out)

        return make

    yield "int8", make_of("int8", "int8")
    yield "int8_int16", make_of("int8", "int16")
    yield "int4_int8", make_of("int4", "int8")


def neural_compressor_files() -> Iterator[Variant]:
    """Static and dynamic files of ONNX Neural Compressor."""
    from onnx_neural_compressor import data_reader
    from onnx_neural_compressor.quantization import QuantFormat, QuantType, config, quantize

    class Reader(data_reader.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self, images: Images) -> None:
            self._images = images
            self.rewind()

        def get_next(self) -> Any:
            return next(self._feeds, None)

        def rewind(self) -> None:
            self._feeds = iter([{INPUT: part} for part in np.split(self._images, 8)])

    def static(form: Any, **given: Any) -> Callable[[Path, Images, Path], None]:
        def make(model: Path, images: Images, out: Path) -> None:
            settings = config.StaticQuantConfig(calibration_data_reader=Reader(images), quant_format=form, **given)
            quantize(str(model), str(out), settings)

        return make

    def dynamic(model: Path, images: Images, out: Path) -> None:
        quantize(str(model), str(out), config.DynamicQuantConfig())

    yield "qdq", static(QuantFormat.QDQ, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)
    yield "qdq_channels", static(QuantFormat.QDQ, per_channel=True)
    yield "qoperator", static(QuantFormat.QOperator)
    yield "dynamic", dynamic


MAKERS: dict[str, Callable[[], Iterator[Variant]]] = {
    "onnxruntime": onnxruntime_files,
    "nncf": nncf_files,
    "brevitas": brevitas_files,
    "aimet": aimet_files,
    "onc": neural_compressor_files,
}


def main() -> None:
    tool, folder = sys.argv[1], Path(sys.argv[2])
    images = np.load(folder / "data.npz")["calibrate"]
    models = [path for path in sorted(folder.glob("*.onnx")) if "." not in path.stem]
    for variant, make in MAKERS[tool]():
        for model in models:
            out = folder / f"{tool}.{variant}.{model.stem}.onnx"
            if out.is_file():
                continue
            try:
                make(model, images, out)
                print(f"{out.name}: {out.stat().st_size} bytes")
            except Exception as error:  # a tool that refuses a model is a row of the table, too
                traceback.print_exc()
                first = (str(error).strip() or type(error).__name__).splitlines()[0]
                out.with_suffix(".refused").write_text(f"{type(error).__name__}: {first}\n", encoding="utf-8")
                print(f"{out.name}: refused: {first}")


if __name__ == "__main__":
    main()
