"""Write the JSON schemas of what commands print: ``python docs/make_schemas.py``, from the documents that the test runs make.

A key that every document has is required, one that some lack is not. Where names of a model are keys, the schema says what each
value is. Further keys may come with other options and later versions. Afterwards ``SCHEMAS=write pytest -n 0 tests/unit`` widens
the schemas by the documents that other tests print: each of them must fit."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from tests.cases.documents import documents
    from tests.cases.json_schemas import described, path_of, text, united

    os.environ["SCHEMAS"] = "write"  # what is there may be too narrow
    with tempfile.TemporaryDirectory() as folder:
        for name, values in documents(Path(folder)):
            path_of(name).write_text(text(name, united(map(described, values))), encoding="utf-8")
