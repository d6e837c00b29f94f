"""Options of the references that ask for something that is done here anyway, or that has no equivalent: values that change
nothing are accepted, any other is refused with the reason or with our option for it. Sources: the docstring of
``onnxruntime.quantization.quantize_static`` (1.31) and the option list of AMD Quark for ONNX (0.12), which goes on with those of
the Vitis AI quantizer (vai_q_onnx)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """An option that selects nothing here.

    Args:
        why: why other values are refused, or which option of ours does it.
        accepts: values that say what is done here anyway.
    """

    why: str
    accepts: tuple[object, ...] = (False, None)


_OTHER = (None,)
_BF16 = Known("values are stored as integers here")
_FOLDED = Known("--no-fuse-layers leaves out folding and fusing, without it both are done", (True, None))
_DPU_OPERATOR = Known("there is no pass for it, and the Vitis line leaves it out by default")
_BINS = "histograms have 2048 to 4096 bins on the larger side of 0, with edges that depend on no sample"
_FINE_TUNING = Known("weights are not tuned by training", (False, None))
_LAYERWISE = Known("no method tries percentiles layer by layer; Percentile is one for all tensors", _OTHER)
_SEARCH = Known(
    "the squared error of all samples together decides, not most of them or a part of their values", ("All", None)
)
_RANDOM = Known("use --data random:N")
_MEMORY = Known("calibration streams: one sample's tensors are in memory at a time", (True, False, None))

KNOWN: dict[str, Known] = {
    # onnxruntime
    "ActivationRestrictedAsymmetric": Known("zero points are not snapped; ActivationSymmetric=true puts them at 0"),
    "BlockSize": Known("weights get one scale per tensor or axis; `qdqtool qdq insert --block-size` makes blocks", (0, None)),
    "CalibMaxIntermediateOutputs": Known(_MEMORY.why, _OTHER),
    "CalibStridedMinMax": Known(_MEMORY.why, _OTHER),
    "DefaultTensorType": Known("types are inferred (infer-shapes); a tensor without one stays float", _OTHER),
    "EnableSubgraph": Known("values in bodies of If and Loop stay float"),
    "SmoothQuant": Known("scales are not moved between activations and weights"),
    "SmoothQuantAlpha": Known("scales are not moved between activations and weights", (0.5, None)),
    "SmoothQuantFolding": Known("scales are not moved between activations and weights", (True, None)),
    "calibration_cache_path": Known("--save-ranges writes the ranges, --ranges reads them", _OTHER),
    "calibration_data_reader": Known("--data module:function takes a CalibrationDataReader", _OTHER),
    "calibration_providers": Known("calibration runs on the CPU", (None, ["CPUExecutionProvider"])),
    "extra.Sigmoid.nnapi": Known("no scale is forced on the output of Sigmoid; TensorQuantOverrides sets it"),
    "quant_format": Known("pairs are inserted (QDQ); `qdqtool qdq convert` changes the form", ("QDQ", "QuantFormat.QDQ", None)),
    "use_external_data_format": Known("a model over 2 GB is saved with a data file; `qdqtool externalize` asks for one"),
    # Quark and the Vitis AI quantizer: what is quantized
    "CopyBiasInit": Known("run unshare-initializers before, or Int32Bias=false", _OTHER),
    "CopySharedInit": Known("run unshare-initializers before", _OTHER),
    "AlignEltwiseQuantType": Known("constants are stored like weights; TensorQuantOverrides says otherwise"),
    "Int16Bias": Known('an int16 bias has a scale of its own here: a preset with bias = "int16"; Int32Bias=true has s_x·s_w'),
    "MixedPrecisionTensor": Known("TensorQuantOverrides gives single tensors a type", (None,)),
    "NodesToExcludeOutputQuantization": Known("OpTypesToExcludeOutputQuantization does it by operator type", ([], None)),
    "QuantizeAllOpTypes": Known("name the types in op_types_to_quantize"),
    "UseUnsignedReLU": Known("TensorQuantOverrides gives the outputs of single Relus another type"),
    "WeightsOnly": Known("activations are quantized too; `qdqtool qdq remove` takes their pairs out"),
    "EnableDualQuantNodePairs": Known("one pair stands on a tensor"),
    "specific_tensor_precision": Known("TensorQuantOverrides gives single tensors a type"),
    "subgraphs_to_exclude": Known("--exclude 'path:A..B' leaves out what lies between two nodes", ([], None)),
    "input_nodes": Known("--only 'after:NAME' quantizes from a node on", ([], None)),
    "output_nodes": Known("--only 'before:NAME' quantizes up to a node", ([], None)),
    # … the float graph
    "ConvertFP16ToFP32": Known("float16 models are quantized as they are (opset 19)"),
    "ConvertNCHWToNHWC": Known("run `qdqtool opt -p convert-layout` before, and give data in that layout"),
    "ConvertOpsetVersion": Known("run `qdqtool convert-opset` before", _OTHER),
    "FixShapes": Known("run `qdqtool fix-shapes` before", _OTHER),
    "FoldRelu": Known("no Relu or Clip is dropped; pairs between a layer and it are (RemoveQDQConvRelu)"),
    "OptimizeModel": _FOLDED,
    "PreprocessYAML": Known("passes before calibration are written in a preset", _OTHER),
    "RemoveInputInit": Known("run `qdqtool simplify` before; an initializer that is a graph input is no constant"),
    "SimplifyModel": Known("--no-fuse-layers leaves out folding and fusing", (True, None)),
    "SimplifyModelOptions": Known("the passes before calibration stand in the preset", ({}, None)),
    "SkipPreprocess": Known("--no-fuse-layers leaves out folding and fusing"),
    "convert_fp16_to_fp32": Known("float16 models are quantized as they are (opset 19)"),
    "convert_nchw_to_nhwc": Known("run `qdqtool opt -p convert-layout` before, and give data in that layout"),
    "optimize_model": _FOLDED,
    # … the DPU
    "AdjustBiasScale": Known("Int32Bias=true gives biases the scale s_x·s_w", (True, None)),
    "AlignReshape": Known("a Reshape shares the encoding of its input either way", (True, False, None)),
    "AlignTranspose": Known("a Transpose shares the encoding of its input either way", (True, False, None)),
    "ConvertInstanceNormToDPUVersion": _DPU_OPERATOR,
    "ConvertSoftmaxToDPUVersion": _DPU_OPERATOR,
    "RemoveFusedQDQ": Known("pairs inside fused groups are not inserted"),
    "RemoveQDQBetweenOps": Known("`qdqtool qdq remove` takes single pairs out", ([], None)),
    "RemoveQDQMulAdd": Known("`qdqtool qdq remove` takes single pairs out"),
    "enable_dpu": Known("--preset xint8 is the quantizer of the DPU", (True, None)),
    "enable_npu_cnn": Known("--preset xint8 is the quantizer of the DPU", (True, None)),
    "enable_npu_transformer": Known("there is no preset for it; `qdqtool list presets`"),
    # … calibration
    "CalibDataSize": Known("use --samples N", _OTHER),
    "CalibOptimizeDisk": _MEMORY,
    "CalibOptimizeMem": _MEMORY,
    "CalibPassthroughOpTypes": Known("operators that only move values share the encoding of their input", ([], None)),
    "CalibWorkerNum": Known("use --jobs N", (1, None)),
    "ExecutionProviders": Known("calibration runs on the CPU", (None, ["CPUExecutionProvider"])),
    "LWPMetric": _LAYERWISE,
    "MinMSEMode": _SEARCH,
    "MinMSEModeFloatScale": _SEARCH,
    "MinMSEModePof2Scale": _SEARCH,
    "NumBins": Known(_BINS, (2048, None)),
    "NumQuantizedBins": Known("entropy compares with the grid of the storage type: 128 points of |x|, or 256 of x", (128, None)),
    "PercentileCandidates": _LAYERWISE,
    "RandomDataReaderInputDataRange": Known(_RANDOM.why, _OTHER),
    "RandomDataReaderInputShape": Known(_RANDOM.why, ({}, None)),
    "SaveAndRestore": Known("--save-ranges writes the ranges, --ranges reads them", _OTHER),
    "SaveTensorHistFig": Known("no figures are drawn"),
    "TensorsRangeFile": Known("--save-ranges writes the ranges, --ranges reads them", _OTHER),
    "UseRandomData": _RANDOM,
    "execution_providers": Known("calibration runs on the CPU", (None, ["CPUExecutionProvider"])),
    # … numbers
    "ActivationScaled": Known("integers always have a scale", (True, None)),
    "BF16QDQToCast": _BF16,
    "BF16WithClip": _BF16,
    "BFPAttributes": Known(_BF16.why, ({}, None)),
    "EnableVaimlBF16": _BF16,
    "Int16Scale": Known("scales are floats, or powers of two (UsePowerOf2Scale=true)"),
    "MXAttributes": Known(_BF16.why, ({}, None)),
    "QuantizeFP16": Known("float16 models are quantized as they are (opset 19)"),
    "RefineBlockAxis": _BF16,
    "UseFP32Scale": Known("scales have the float type of their tensor"),
    "WeightScaled": Known("integers always have a scale", (True, None)),
    # … algorithms
    "AutoMixprecision": Known("choosing types by measurement is not part of `quantize`", ({}, None)),
    "CLEScaleAppendBias": Known("scales are not moved between layers", _OTHER),
    "CLESteps": Known("scales are not moved between layers", _OTHER),
    "CLETotalLayerDiffThreshold": Known("scales are not moved between layers", _OTHER),
    "FastFinetune": Known(_FINE_TUNING.why, ({}, None)),
    "GPTQParams": Known(_FINE_TUNING.why, ({}, None)),
    "MatMulNBitsParams": Known("weights are not packed into MatMulNBits here", ({}, None)),
    "RConfigPath": Known("weights are not rotated", _OTHER),
    "RMatrixDim": Known("weights are not rotated", _OTHER),
    "SmoothAlpha": Known("scales are not moved between activations and weights", _OTHER),
    "UseGPTQ": _FINE_TUNING,
    "UseMatMulNBits": Known("weights are not packed into MatMulNBits here"),
    "UseRandomHad": Known("weights are not rotated"),
    "include_auto_mp": Known("choosing types by measurement is not part of `quantize`"),
    "include_cle": Known("scales are not moved between layers"),
    "include_fast_ft": _FINE_TUNING,
    "include_rotation": Known("weights are not rotated"),
    "include_sq": Known("scales are not moved between activations and weights"),
    "use_dynamic_quant": Known("ranges are found before; activation scales computed in the graph are not part of `quantize`"),
    # … running it
    "CryptoMode": Known("files are written in the clear"),
    "DebugMode": Known("use -v"),
    "EncryptionAlgorithm": Known("files are written in the clear", _OTHER),
    "EvalDataReader": Known("use `qdqtool compare`", _OTHER),
    "EvalMetrics": Known("use `qdqtool compare`"),
    "FillAllValueInfo": Known("run infer-shapes after"),
    "IgnoreWarnings": Known("use -q", (True, False, None)),
    "PrintSummary": Known("use -q", (True, False, None)),
    "TmpDir": Known("no temporary files are written", _OTHER),
    "UserCustomOpLibPath": Known("custom operators stay float", _OTHER),
    "crypto_mode": Known("files are written in the clear"),
    "debug_mode": Known("use -v"),
    "ignore_warnings": Known("use -q", (True, False, None)),
    "log_severity_level": Known("use -v or -q", (1, None)),
    "print_summary": Known("use -q", (True, False, None)),
}  # fmt: skip
