"""Run every part; each says PASSED, FAILED, or SKIPPED with the missing thing. Exit 1 when one failed."""

from __future__ import annotations

import sys
import time

from tests.extra import benches, browser, genai, interpreters, new_onnxruntime, npu, old_onnxruntime, wheel
from tests.extra.part import Missing

PARTS = {
    "wheel": wheel.run,
    "onnxruntime 1.23.2": old_onnxruntime.run,
    "newest onnxruntime": new_onnxruntime.run,
    "other interpreters": interpreters.run,
    "simulated NPU": npu.run,
    "onnxruntime-genai": genai.run,
    "browser": browser.run,
    "benches": benches.run,
}


def main(names: list[str]) -> int:
    """Run the parts called ``names``, all by default."""
    passed = failed = skipped = 0
    for name, part in PARTS.items():
        if names and name not in names:
            continue
        start = time.perf_counter()
        try:
            detail = part()
            verdict, passed = "PASSED", passed + 1
        except Missing as error:
            verdict, detail, skipped = "SKIPPED", f"missing: {error}", skipped + 1
        except Exception as error:  # noqa: BLE001  (one part's failure is reported, the others still run)
            verdict, detail, failed = "FAILED", f"{type(error).__name__}: {error}", failed + 1
        print(f"{verdict:8} {name}: {detail} ({time.perf_counter() - start:.0f} s)", flush=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
