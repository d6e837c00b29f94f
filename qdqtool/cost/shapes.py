"""What a decoder is made of, in numbers: by name, from its ``config.json``, or as ``layers=16,hidden=2048,…``."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping
from dataclasses import fields
from importlib import resources
from pathlib import Path

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError
from qdq_passes.numerics.documents import json_of, toml_of


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """A decoder without its weights.

    Args:
        name: what it is called.
        layers: blocks of attention and MLP.
        hidden: width between the layers.
        heads: of queries.
        kv_heads: of keys and values.
        head_dim: width of a head.
        ffn: width inside the MLP.
        vocab: words.
        ffn_mats: matrices of an MLP: 3 with a gate, else 2.
        tied: whether the head is the embedding.
        window: tokens that a layer with a sliding window sees; 0 without.
        global_every: every how many layers one sees all tokens.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    ffn_mats: int = 3
    tied: bool = False
    window: int = 0
    global_every: int = 0

    @property
    def layer_weights(self) -> int:
        """Weights of one layer's products."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + self.ffn_mats * self.hidden * self.ffn

    @property
    def head_weights(self) -> int:
        """Weights of the product with the words' vectors."""
        return self.hidden * self.vocab

    @property
    def weights(self) -> int:
        """Weights that a token is multiplied by: of all layers and the head."""
        return self.layers * self.layer_weights + self.head_weights

    @property
    def cache_per_token(self) -> int:
        """Elements of keys and values of one token in one layer."""
        return 2 * self.kv_heads * self.head_dim

    def attended(self, context: int) -> int:
        """Tokens that are attended to in all layers together, of ``context`` there are."""
        everywhere = self._global_layers
        return everywhere * context + (self.layers - everywhere) * min(context, self.window)

    def attended_pairs(self, tokens: int) -> float:
        """Pairs of tokens, one attending to the other, in all layers together in a prefill of ``tokens``."""
        everywhere, seen = self._global_layers, min(tokens, self.window)
        return everywhere * tokens**2 / 2 + (self.layers - everywhere) * seen * (tokens - seen / 2)

    @property
    def _global_layers(self) -> int:
        if not self.window:
            return self.layers
        return self.layers // self.global_every if self.global_every else 0


#: Ends of a name that do not change the shape, and a version's "v".
_SUFFIX = re.compile(r"(?:instruct|chat|it|hf|preview|base|quantized|gguf|awq|gptq|(?<=[a-z])v0\d|w\d+a\d+|int[48])$")
_VERSION = re.compile(r"(?<=[a-z])v(?=\d)")
#: What a shape's numbers are called in a ``config.json``, the first that is there.
_KEYS = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads", "num_attention_heads", "n_head"),
    "ffn": ("intermediate_size", "n_inner"),
    "vocab": ("vocab_size",),
}
#: Families without a gate in the MLP, those whose head is the embedding unless told, and what a family leaves out of its file.
_TWO_MATRICES = ("phi", "phi-msft", "gpt_neox", "gpt2", "gptj", "opt", "bloom", "falcon", "starcoder2")
_TIED = ("gemma", "gpt2", "opt", "bloom", "starcoder2")
_LEFT_OUT = {
    "gemma2": {"sliding_window_pattern": 2},
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "sliding_window_pattern": 6,
    },
}
_NUMBERS = "layers=16,hidden=2048,heads=32,kv_heads=8,ffn=8192,vocab=128256[,head_dim=64,tied=true,ffn_mats=3]"


def shapes() -> list[DecoderShape]:
    """Those of the table, by name."""
    named = _table()[0]
    return [named[name] for name in sorted(named)]


def shape_named(text: str) -> DecoderShape | None:
    """The shape of a published name: ``llama_v3_2_1b_instruct`` → Llama3.2-1B; None where the table has none."""
    return _table()[1].get(_key(text))


def read_shape(text: str) -> DecoderShape:
    """The shape that a person names.

    Args:
        text: a name of the table, the path of a ``config.json`` of Hugging Face (or of the folder that it is in), or
            ``layers=16,hidden=2048,heads=32,kv_heads=8,ffn=8192,vocab=128256[,head_dim=64,tied=true,ffn_mats=3]``.

    Raises:
        UsageError: it is none of these, the file cannot be read, or a number is missing or makes no sense.
    """
    if named := shape_named(text):
        return named
    if "=" in text and not Path(text).exists():
        return _from_numbers(text)
    path = Path(text, "config.json") if Path(text).is_dir() else Path(text)
    if path.suffix == ".json" or path.is_file():
        return _from_config(path)
    names = sorted(_table()[0])
    near = difflib.get_close_matches(text, names, n=3, cutoff=0.5) or names[:3]
    raise UsageError(f"no decoder is called {text!r}", hint=f"near: {', '.join(near)}; or a config.json, or {_NUMBERS}")


def _from_numbers(text: str) -> DecoderShape:
    given: dict[str, int | bool] = {}
    known = [f.name for f in fields(DecoderShape) if f.name != "name"]
    for part in text.split(","):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key not in known:
            near = difflib.get_close_matches(key, known, n=2, cutoff=0.5) or known
            raise UsageError(f"a decoder has no {key!r}", where=text, hint=f"near: {', '.join(near)}; write {_NUMBERS}")
        if key == "tied" and value.lower() in ("true", "false"):
            given[key] = value.lower() == "true"
        elif value.isdecimal() and key != "tied":
            given[key] = int(value)
        else:
            wanted = "true or false" if key == "tied" else "a whole number"
            raise UsageError(f"{key} is {value!r}", where=text, hint=f"write {wanted}")
    return _checked(text, text, given)


def _from_config(path: Path) -> DecoderShape:
    try:
        data = json_of(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot be read as JSON ({error})", where=str(path), hint="give a model's config.json"
        ) from error
    data = data if isinstance(data, dict) else {}
    data = data["text_config"] if isinstance(data.get("text_config"), dict) else data
    kind = str(data.get("model_type", ""))
    data = {**_LEFT_OUT.get(kind, {}), **{key: value for key, value in data.items() if value is not None}}
    if kind == "gpt2" and type(data.get("n_embd")) is int:
        data.setdefault("n_inner", 4 * data["n_embd"])
    given: dict[str, int | bool] = {}
    for name, keys in _KEYS.items():
        found = next((data[key] for key in keys if key in data), None)
        if type(found) is not int:
            raise UsageError(
                f"has no {' or '.join(keys)} that is a whole number", where=str(path), hint=f"write {_NUMBERS}"
            )
        given[name] = found
    if type(data.get("head_dim")) is int:
        given["head_dim"] = data["head_dim"]
    given["ffn_mats"] = 2 if kind in _TWO_MATRICES else 3
    given["tied"] = bool(data.get("tie_word_embeddings", kind.startswith(_TIED)))
    if type(data.get("sliding_window")) is int and data.get("use_sliding_window", True):
        given["window"] = data["sliding_window"]
        full = list(data.get("layer_types") or ()).count("full_attention")
        given["global_every"] = given["layers"] // full if full else int(data.get("sliding_window_pattern", 0))
    name = str(data.get("_name_or_path") or path.absolute().parent.name)
    return _checked(str(path), name, given)


def _checked(where: str, name: str, given: Mapping[str, int | bool]) -> DecoderShape:
    """The shape of these numbers, when they are all there and go together."""
    missing = [key for key in _KEYS if key not in given]
    if missing:
        raise UsageError(f"{', '.join(missing)} missing", where=where, hint=f"write {_NUMBERS}")
    wrong = [key for key in (*_KEYS, "head_dim") if given.get(key, 1) < 1]
    if wrong or given["heads"] % given["kv_heads"] or given.get("ffn_mats", 3) not in (2, 3):
        why = f"{', '.join(wrong)} below 1" if wrong else "heads are a multiple of kv_heads, ffn_mats 2 or 3"
        raise UsageError(f"not a decoder: {why}", where=where, hint=f"write {_NUMBERS}")
    head_dim = given["hidden"] // given["heads"]
    return DecoderShape(name=name, **{"head_dim": head_dim, **given})  # type: ignore[arg-type]


def _key(text: str) -> str:
    key = re.sub(r"[^a-z0-9]", "", text.rsplit("/", 1)[-1].lower())
    while (short := _SUFFIX.sub("", key)) != key:
        key = short
    return _VERSION.sub("", key)


@functools.cache
def _table() -> tuple[dict[str, DecoderShape], dict[str, DecoderShape]]:
    """The shapes of shapes.toml by name, and by what a name or an alias is without punctuation and suffixes."""
    data = toml_of(resources.files(__package__).joinpath("shapes.toml").read_text(encoding="utf-8"))
    named, keyed = {}, {}
    for name, one in data.items():
        aliases = one.pop("aliases", [])
        named[name] = DecoderShape(name=name, **one)
        keyed.update({_key(alias): named[name] for alias in (name, *aliases)})
    return named, keyed
