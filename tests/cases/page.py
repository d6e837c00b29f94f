"""The examples of a page, executed in one interpreter: ``python page.py PAGE`` in a folder of their own; exit 1 at the first that
shows something else than the page says.

``qdqtool`` is called as its entry point calls it, without a new process: tests of the process itself are elsewhere."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

BLOCK = re.compile(r"^```(console|python|toml)([^\n]*)\n(.*?)^```$", re.M | re.S)


def execute(page: Path) -> None:
    """Execute the page's blocks in the present folder, one after the other, without those that need another package (tests/extra).

    Raises:
        AssertionError: a command shows or returns something else.
    """
    for kind, options, body in BLOCK.findall(page.read_text(encoding="utf-8")):
        if "needs=" in options:
            continue
        target = re.search(r"file=(\S+)", options)
        if target:
            Path(target[1]).parent.mkdir(parents=True, exist_ok=True)
            Path(target[1]).write_text(body, encoding="utf-8")
        elif kind == "python":
            exec(compile(body, f"{page.name}: {body.splitlines()[0]}", "exec"), {"__name__": "__main__"})
            _forget()
        else:
            _console(page, body)


def _console(page: Path, body: str) -> None:
    for part in re.split(r"^\$ ", body, flags=re.M)[1:]:
        command, _, wanted = part.partition("\n")
        words = shlex.split(command)
        finds = (words[:2] == ["qdqtool", "diff"] and "no differences" not in wanted) or "\nfailed: " in wanted
        code, out, err = _called(words[1:]) if words[0] == "qdqtool" else _process(words)
        shown = out + "".join(line for line in err.splitlines(True) if line.startswith("error:"))
        same = doctest.OutputChecker().check_output(wanted, shown, doctest.ELLIPSIS)
        assert same, f"{page.name}: $ {command}\nwanted:\n{wanted}\ngot:\n{shown}{err}"
        assert code == (2 if wanted.startswith("error:") else 1 if finds else 0), err


def _called(arguments: list[str]) -> tuple[int, str, str]:
    from qdqtool.cli.main import run

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(arguments)
    _forget()
    return code, out.getvalue(), err.getvalue()


def _process(words: list[str]) -> tuple[int, str, str]:
    program = sys.executable if words[0] == "python" else words[0]  # of this environment, activated or not
    done = subprocess.run([program, *words[1:]], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def _forget() -> None:
    """What a new process would not know: folders of ``--path``, and modules of this folder."""
    from qdq_passes.core import registry

    registry._added.clear()
    here = str(Path.cwd())
    for name, module in list(sys.modules.items()):
        if name != "__main__" and str(getattr(module, "__file__", None) or "").startswith(here):
            del sys.modules[name]


if __name__ == "__main__":
    sys.path[0] = ""  # as in `python -c`
    execute(Path(sys.argv[1]))
