"""What Ctrl-C does to the process of a command, from its first line to its last; importing the package elsewhere changes nothing.

While modules are imported, and after the result is out, the process ends at once: nothing is half done then, and an exception in
the midst of an extension module that is imported ends in `std::terminate`, or in an ImportError. Else a KeyboardInterrupt unwinds
the command; that it became another error on the way is known by `State.heard`. A second interrupt ends the process at once: files
are whole at every moment, and what lies under hidden names is taken away. SIGTERM and SIGHUP, of a terminal that closes, are
interrupts like SIGINT."""

from __future__ import annotations

import _thread
import atexit
import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

#: Module of the command line, as ``python -m`` runs it.
MODULE = "qdqtool.cli.main"
#: Exit code of an interrupted command is this and the number of the signal.
BASE = 128
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
#: Files named where a command was interrupted.
SHOWN = 3


class State:
    """Where the process is.

    Attributes:
        running: the command runs; before, modules are imported.
        heard: number of the signal that interrupts it, 0 for none.
        is_command: the process was started for the command alone.
    """

    running = is_command = False
    heard = 0


def is_command() -> bool:
    """Whether this process was started as ``qdqtool …``."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    return name.removesuffix(".exe") == "qdqtool" or (name == "-m" and MODULE in sys.orig_argv)


def listen() -> None:
    """Hear interrupts, those that whoever started the process has it ignore excepted. For processes of commands."""
    State.is_command = True
    for number in _SIGNALS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _interrupted)
    sys.unraisablehook = _unraisable
    atexit.register(_deaf)  # there first, it is run last: from then on the interpreter gives signals back


def begin() -> None:
    """From here on an interrupt unwinds; of a command that ended before in this process nothing is left."""
    State.running, State.heard = True, 0


def end(code: int) -> NoReturn:
    """End the process with ``code``; from here on there is nothing to unwind.

    A process that is nothing but the command ends at once: an interpreter that takes each object of a graph and each module apart
    before takes a tenth of a second for it. It does where a profiler or debugger looks on, or a thread is left to be waited for.
    """
    State.running = False
    was_heard = State.heard != 0  # if it came out of a text that was run, the interpreter would end by the signal
    State.heard = State.heard or -1
    if was_heard or (
        State.is_command and threading.active_count() == 1 and not sys.gettrace() and not sys.getprofile()
    ):
        atexit._run_exitfuncs()
        try:
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
        except (OSError, ValueError):  # closed, or nobody reads: the interpreter says so
            if not was_heard:
                sys.exit(code)
        os._exit(code)
    sys.exit(code)


def code() -> int:
    """Exit code of a command that was interrupted."""
    return BASE + (State.heard if State.heard > 0 else signal.SIGINT)


def written() -> str:
    """The files that an interrupted command has written, in words."""
    put = getattr(sys.modules.get("qdqtool.io.files.atomic"), "PUT", ())  # the module may be half imported
    found = [path for path in dict.fromkeys([*put]) if os.path.lexists(path)]
    return f"written is {', '.join(found[-SHOWN:])}" if found else "nothing was written"


def _interrupted(number: int, frame: FrameType | None) -> None:
    if State.running and not State.heard and not _is_importing(frame):
        State.heard = number
        raise KeyboardInterrupt
    if State.heard == 0:
        with suppress(OSError):  # nobody listens
            os.write(2, f"interrupted; {written()}\n".encode(errors="replace"))
    getattr(sys.modules.get("qdqtool.io.files.stale"), "remove_hidden", bool)()  # the module may be half imported
    os._exit(BASE + number)


def _is_importing(frame: FrameType | None) -> bool:
    """Whether ``frame`` runs for an import."""
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def _deaf() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _unraisable(problem: Any) -> None:
    """An interrupt that came where nothing can be raised, as while an object goes away, comes again."""
    if problem.exc_type is KeyboardInterrupt and State.heard > 0:
        number, State.heard = signal.Signals(State.heard), 0
        again = threading.Timer(0.01, _thread.interrupt_main, (number,))  # behind this function, which cannot raise
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(problem)
