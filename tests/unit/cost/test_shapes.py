"""Shapes of decoders by name, from a config.json, and in numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from qdq_passes.errors import UsageError

from qdqtool.cost.shapes import read_shape, shape_named

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("llama_v3_2_1b_instruct", "Llama3.2-1B"),
        ("meta-llama/Llama-3.2-1B-Instruct", "Llama3.2-1B"),
        ("llama_v2_7b_chat", "Llama2-7B"),
        ("qwen2_7b_instruct", "Qwen2.5-7B"),
        ("mistral_7b_instruct_v0_3", "Mistral-7B"),
        ("gemma3:4b", "Gemma3-4B"),
    ],
)
def test_published_names_find_their_shape(text: str, name: str) -> None:
    shape = shape_named(text)
    assert shape is not None
    assert shape.name == name


def test_a_name_that_only_looks_alike_finds_none() -> None:
    for text in ("indus_1b", "Qwen3.5-2B", "Gemma4-E2B", "gemma_2_2b", "LFM2-1.2B"):
        assert shape_named(text) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"head_dim": 64, "ffn_mats": 3, "tied": False, "window": 0}),
        ({"model_type": "phi"}, {"ffn_mats": 2}),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, {"window": 0}),
        ({"model_type": "mistral", "sliding_window": 4096}, {"window": 4096, "global_every": 0}),
        (
            {"model_type": "gemma2", "sliding_window": 4096, "head_dim": 256},
            {"global_every": 2, "tied": True, "head_dim": 256},
        ),
        (
            {"model_type": "qwen3", "sliding_window": 512, "layer_types": ["sliding_attention", "full_attention"] * 8},
            {"global_every": 2},
        ),
    ],
)
def test_a_config_is_read(tmp_path: Path, changes: dict[str, object], expected: dict[str, object]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    shape = read_shape(str(tmp_path))
    assert {key: getattr(shape, key) for key in expected} == expected
    assert (shape.layers, shape.kv_heads, shape.name) == (16, 8, tmp_path.name)


def test_a_part_for_text_is_found_with_what_its_family_leaves_out(tmp_path: Path) -> None:
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    shape = read_shape(str(path))
    assert (shape.heads, shape.kv_heads, shape.head_dim, shape.global_every, shape.tied) == (8, 4, 256, 6, True)


def test_a_gpt2_without_n_inner_has_four_times_its_width(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    config = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_inner": None, "n_layer": 2, "vocab_size": 1000}
    path.write_text(json.dumps(config))
    shape = read_shape(str(path))
    assert (shape.hidden, shape.ffn, shape.ffn_mats, shape.kv_heads, shape.tied) == (64, 256, 2, 4, True)


def test_numbers_are_read() -> None:
    shape = read_shape("layers=16,hidden=2048,heads=32,kv_heads=8,ffn=8192,vocab=128256,tied=true")
    known = shape_named("Llama3.2-1B")
    assert known is not None
    assert (shape.weights, shape.head_dim, shape.tied) == (known.weights, 64, True)


def test_windows_bound_what_is_attended() -> None:
    shape = read_shape("layers=6,hidden=64,heads=4,kv_heads=4,ffn=64,vocab=64,window=10,global_every=3")
    assert shape.attended(100) == 2 * 100 + 4 * 10
    assert shape.attended_pairs(100) == 2 * 5000 + 4 * (10 * 100 - 50)
    everywhere = read_shape("layers=6,hidden=64,heads=4,kv_heads=4,ffn=64,vocab=64,window=10")
    assert everywhere.attended(100) == 60


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Qwen3-5B", "near: Qwen3"),
        ("layers=16,hidden=2048", "heads, kv_heads, ffn, vocab missing"),
        ("layers=16,hiden=2048", "near: hidden"),
        ("layers=many", "write a whole number"),
        ("layers=6,hidden=64,heads=4,kv_heads=3,ffn=64,vocab=64", "multiple of kv_heads"),
        ("nowhere.json", "cannot be read"),
    ],
)
def test_what_is_wrong_is_named_with_the_way_out(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_shape(text)
    assert said in str(caught.value)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({key: value for key, value in LLAMA.items() if key != "hidden_size"}))
    with pytest.raises(UsageError, match="hidden_size or n_embd"):
        read_shape(str(path))
