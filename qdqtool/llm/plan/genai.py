"""genai_config.json: how onnxruntime-genai runs a prefill and a decode graph as a decoder pipeline (model type decoder-pipeline).

What each key means was read in onnxruntime-genai's sources and tried with 0.18: prefill must come first, as the first session's
logits decide their shape; the buffer of the cache is bound as past and present at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qdq_passes.decoder.look.io import decoder_io
from qdq_passes.errors import UsageError
from qdq_passes.graph.sizes import static_sizes

from qdqtool.llm.folder.decoder_config import DecoderConfig
from qdqtool.llm.folder.manifest import Manifest, StaticModel
from qdqtool.llm.plan.specializations import Specialization
from qdqtool.llm.plan.splitting import StaticGraph


def refuse_for_genai(shapes: Sequence[Specialization], in_parts: bool) -> None:
    """Refuse what a decoder pipeline has no place for.

    Raises:
        UsageError: there is not one prefill and one decode graph of one row and one context, or they are cut into parts.
    """
    if sorted(one.phase for one in shapes) != ["decode", "prefill"] or len({one.ctx_len for one in shapes}) != 1:
        raise UsageError(
            "onnxruntime-genai takes one prefill and one decode graph of one context",
            hint="give one --prefill, one --context and --decode 1",
        )
    if in_parts or any(one.batch_size != 1 for one in shapes):
        raise UsageError("onnxruntime-genai takes graphs of one row, in one part", hint="leave out --batch and --parts")


def genai_config(manifest: Manifest, graphs: tuple[StaticGraph, ...], beside: DecoderConfig) -> dict[str, Any]:
    """The configuration for the two graphs of ``manifest``, which `refuse_for_genai` lets pass.

    The width and the heads of queries are those of the configuration beside the source; without one, those of the cache are
    written: a decoder pipeline does not read them.
    """
    prefill = [m for m in manifest.models if m.phase == "prefill"]
    decode = [m for m in manifest.models if m.phase == "decode"]
    graph = next(g for g in graphs if g.specialization.name == prefill[0].name)
    io = decoder_io(graph.model)
    sizes = static_sizes(io.pairs[0].past) or []
    heads, slots, head_size = sizes[1], prefill[0].ctx_len, sizes[3]
    vocabulary = (static_sizes(io.logits) or [0])[-1]
    ends = list(manifest.eos_token_ids) or [0]
    record = prefill[0].decoder
    return {
        "model": {
            "type": "decoder-pipeline",
            "bos_token_id": manifest.bos_token_id if manifest.bos_token_id is not None else ends[0],
            "eos_token_id": ends if len(ends) > 1 else ends[0],
            "pad_token_id": manifest.pad_token_id if manifest.pad_token_id is not None else ends[0],
            "context_length": slots,
            "vocab_size": vocabulary,
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "head_size": head_size,
                "hidden_size": beside.hidden_size or heads * head_size,
                "num_attention_heads": beside.attention_heads or heads,
                "num_key_value_heads": heads,
                "num_hidden_layers": io.layers,
                "inputs": {
                    "input_ids": record.ids,
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                    "past_sequence_length": record.last_slot,
                    "total_sequence_length": record.total,
                },
                "outputs": {
                    "logits": record.logits,
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
                "sliding_window": {
                    "window_size": prefill[0].seq_len,
                    "pad_value": 0,
                    "alignment": "left",
                    "slide_key_value_cache": False,
                },
                "pipeline": [{"prefill": _stage(prefill[0], True)}, {"decode": _stage(decode[0], False)}],
            },
        },
        "search": {"max_length": slots, "do_sample": False, "num_beams": 1, "past_present_share_buffer": True},
    }


def _stage(model: StaticModel, is_prompt: bool) -> dict[str, Any]:
    part = model.parts[0]
    return {
        "filename": part.file,
        "inputs": list(part.inputs),
        "outputs": list(part.outputs),
        "run_on_prompt": is_prompt,
        "run_on_token_gen": not is_prompt,
    }
