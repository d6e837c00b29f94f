"""Print the modules in the process after one command: ``python -m tests.costs.importing ARGUMENT…``; without arguments, after
``import qdqtool``."""

import sys
from types import ModuleType

if __name__ == "__main__":
    before = set(sys.modules)  # of the interpreter, and of this script
    if sys.argv[1:]:
        import contextlib
        import io

        from qdqtool.cli.main import run

        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = run(sys.argv[1:])
        if code:
            sys.exit(f"exit {code}")
    else:
        import qdqtool  # noqa: F401
    # A deferred module that nothing has used is of another type.
    found = {name for name, module in sys.modules.items() if type(module) is ModuleType} - before
    import json

    tops = {name.partition(".")[0] for name in found}
    own = {"qdqtool", "qdq_passes"}
    packages = sorted(name for name in tops - own - sys.stdlib_module_names if not name.startswith(("_", "tests")))
    row = {"own": sum(name.partition(".")[0] in own for name in found), "total": len(found), "packages": packages}
    print(json.dumps(row))
