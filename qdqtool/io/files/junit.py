"""Results as JUnit XML, which continuous integration shows: one test case for each thing that was judged."""

from __future__ import annotations

import os
from collections.abc import Sequence

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.io.files.atomic import write_whole


@dataclass(frozen=True, kw_only=True)
class Case:
    """A test case.

    Args:
        name: what was judged.
        group: what it is part of.
        failure: why it fails; "" where it does not.
        skipped: why it says nothing, as of an operator on the CPU; "" where it does.
        note: what is said of it besides.
    """

    name: str
    group: str
    failure: str = ""
    skipped: str = ""
    note: str = ""


def write_junit(path: str | os.PathLike[str], suite: str, cases: Sequence[Case], *, overwrite: bool) -> None:
    """Write ``cases`` as the test suite ``suite``, whole or not at all; of none, that nothing was found is one."""
    from xml.etree import ElementTree

    shown = cases or [Case(name="no findings", group=suite)]
    failures, skipped = sum(bool(case.failure) for case in shown), sum(bool(case.skipped) for case in shown)
    counts = {"name": suite, "tests": str(len(shown)), "failures": str(failures), "skipped": str(skipped)}
    root = ElementTree.Element("testsuites")
    top = ElementTree.SubElement(root, "testsuite", counts)
    for case in shown:
        element = ElementTree.SubElement(top, "testcase", {"classname": _plain(case.group), "name": _plain(case.name)})
        for tag, text in (("failure", case.failure), ("skipped", case.skipped)):
            if text:
                ElementTree.SubElement(element, tag, {"message": _plain(text)})
        if case.note:
            ElementTree.SubElement(element, "system-out").text = _plain(case.note)
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode", xml_declaration=False)
    write_whole(os.fspath(path), f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'.encode(), overwrite=overwrite)


def _plain(text: str) -> str:
    """``text`` without characters that XML cannot hold, which names in a model may have."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)
