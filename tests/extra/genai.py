"""onnxruntime-genai on what `split --naming genai` writes: the same tokens as the dynamic model, in an environment of its own."""

from __future__ import annotations

import json
import tempfile
import tomllib
from pathlib import Path

import numpy as np

from qdqtool.llm.run.dynamic import DynamicDecoder
from qdqtool.verbs.split import split
from tests.extra.part import ROOT, Failed, call, environment

#: A cache that Concat grows, and one that GroupQueryAttention keeps.
MODELS = ("llama_dynamo_anon", "llama_genai_int4")
#: Tokens of the prompts; the graphs take 16 at once.
LENGTHS = (1, 7, 16, 33)
CHUNK, CONTEXT, NEW, VOCABULARY = 16, 96, 20, 1000
#: Runs every prompt of the list through the folder, and prints the list of what was generated.
CLIENT = """
import json, sys
import onnxruntime_genai as og
folder, prompts, new, longest = sys.argv[1], *map(json.loads, sys.argv[2:])
model, found = og.Model(folder), []
for ids in prompts:
    options = og.GeneratorParams(model)
    options.set_search_options(max_length=longest)
    generator, tokens = og.Generator(model, options), []
    generator.append_tokens(ids)
    while not generator.is_done() and len(tokens) < new:
        generator.generate_next_token()
        tokens.append(int(generator.get_next_tokens()[0]))
    found.append(tokens)
print(json.dumps(found))
"""


def run() -> str:
    """Split, generate with both, compare."""
    python = environment("genai", _packages())
    generator = np.random.default_rng(1)
    prompts = [[int(token) for token in generator.integers(3, VOCABULARY, count)] for count in LENGTHS]
    for name in MODELS:
        source = ROOT / "tests" / "data" / "decoders" / name / "model.onnx"
        with tempfile.TemporaryDirectory() as folder:
            split(source, Path(folder) / "split", prefill=(CHUNK,), context=(CONTEXT,), naming="genai")
            arguments = [json.dumps(prompts), str(NEW), str(CONTEXT)]
            found = json.loads(call([python, "-c", CLIENT, str(Path(folder) / "split"), *arguments]).splitlines()[-1])
        for ids, tokens in zip(prompts, found, strict=True):
            wanted = _greedy(source, ids)
            if tokens != wanted:
                raise Failed(f"{name}, a prompt of {len(ids)} tokens: {tokens}, the dynamic model gives {wanted}")
    return f"{len(MODELS)} models, prompts of {', '.join(map(str, LENGTHS))} tokens: {NEW} equal tokens behind each"


def _greedy(source: Path, ids: list[int]) -> list[int]:
    """The likeliest tokens of the dynamic model."""
    decoder = DynamicDecoder(source, optimize=True)
    found = [int(decoder.prefill(ids).argmax())]
    while len(found) < NEW:
        found.append(int(decoder.decode(found[-1]).argmax()))
    return found


def _packages() -> list[str]:
    """What the extra ``genai`` asks for."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        packages: list[str] = tomllib.load(file)["project"]["optional-dependencies"]["genai"]
    return packages
