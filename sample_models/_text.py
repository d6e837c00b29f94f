"""The free text that tiny_llama is trained on: the language topics of Python's built-in help.

Source: module ``pydoc_data.topics`` of CPython (generated from the Python language reference and library reference), copyright
Python Software Foundation, PSF License Agreement version 2 (`text/LICENSE`). The text is committed; `python _text.py` writes it
anew from the interpreter that runs it (committed: CPython 3.11)."""

from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "text"
TRAIN, HELD_OUT = FOLDER / "train.txt", FOLDER / "held_out.txt"
#: Every so many topics, one is held out.
HELD_OUT_EVERY = 12
#: What stands between two topics, and the token that ends a text.
END = "<|end|>"


def topics(path: Path) -> list[str]:
    """The topics of one of the two files."""
    return path.read_text(encoding="utf-8").split(f"\n{END}\n")


def main() -> None:
    """Write both files from the standard library."""
    from pydoc_data.topics import topics as source  # the only place that needs it

    texts = sorted(set(source.values()))
    held_out = texts[HELD_OUT_EVERY // 2 :: HELD_OUT_EVERY]
    FOLDER.mkdir(exist_ok=True)
    for path, chosen in ((TRAIN, [text for text in texts if text not in held_out]), (HELD_OUT, held_out)):
        path.write_text(f"\n{END}\n".join(chosen), encoding="utf-8")


if __name__ == "__main__":
    main()
