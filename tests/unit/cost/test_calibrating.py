"""A chip moved by own rows, on made chips; which rows contradict it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qdqtool.chips.chip import Chip, Fitted, Measured, Profile
from qdqtool.cost.calibrating import calibrated, own_rows, predicted
from qdqtool.cost.chip_file import chip_text
from qdqtool.cost.contradictions import Contradiction, checked, contradictions
from qdqtool.cost.counting import Count
from qdqtool.cost.decoder_fit import fit_decoders
from qdqtool.cost.decoders import STREAMING, Call, log_ms
from qdqtool.cost.fitting import EIGHTY
from qdqtool.cost.networks import NAMES, amounts_of
from qdqtool.cost.networks import log_ms as network_log_ms
from qdqtool.cost.predicting import NEW_CHIP, network
from qdqtool.cost.rows import Row
from qdqtool.cost.shapes import read_shape
from qdqtool.verbs.calibrate_chip import CalibrateChip
from tests.bench.chip_rows import chips as load_chips
from tests.bench.chip_rows import public_networks

NETS = {f"net{index}": 0.5123 * 1.4**index for index in range(10)}


def profile(precision: str, factor: float) -> Profile:
    fitted = Fitted(NAMES, np.full(len(NAMES), -3.0), 0.04 * np.eye(len(NAMES)))
    measured = tuple(Measured(model=model, ms=ms * factor) for model, ms in NETS.items())
    return Profile(
        stack="rt", precision=precision, form="network", rows=10, fitted=fitted, noise={"run": 0.07}, measured=measured
    )


def made(name: str, factor: float) -> Chip:
    profiles = profile("float", factor), profile("w8a8", factor / 2.5)
    return Chip(name=name, file=name.lower(), vendor="v", npu="n", target="t", profiles=profiles)


BASE, OTHER = made("Base", 1.0), made("Other", 1.7)
NEW = replace(BASE, name="New", file="new", profiles=())


def row(model: str, ms: float, precision: str = "float", name: str = "") -> Row:
    return Row(id=name or f"{model} {precision}", model=model, stack="rt", precision=precision, value=ms)


def told(chip: Chip, model: str, precision: str) -> tuple[float, float]:
    (own,) = own_rows([row(model, 1.0, precision)], chip)[0]
    found = predicted([chip], chip, own, {})
    assert found is not None
    return math.exp(found[0]), found[1]


def test_two_rows_move_the_speed_of_a_new_chip() -> None:
    own, passed = own_rows([row("net1", 3 * NETS["net1"]), row("net7", 3 * NETS["net7"]), row("net1", 1, "int3")], BASE)
    assert [reason for _, reason in passed] == ["Base has no profile of 'rt int3'; it has rt float, rt w8a8"]
    elsewhere = replace(row("net1", 1), off_npu=70)
    assert own_rows([elsewhere], BASE) == ([], [(elsewhere, "70 of its operators did not run on the NPU")])
    found = calibrated([BASE, OTHER], BASE, NEW, own, {})
    assert {each.carried for each in found.profiles} == {"base"}
    assert told(found, "net4", "float")[0] == pytest.approx(3 * NETS["net4"], rel=0.05)
    ms, sd = told(found, "net4", "w8a8")
    assert ms == pytest.approx(3 * NETS["net4"] / 2.5, rel=0.1), "another precision goes along"
    assert sd > told(found, "net4", "float")[1], "and is less sure"
    assert told(found, "net1", "float")[0] == pytest.approx(3 * NETS["net1"])
    assert all(float(each.fitted.mean.mean()) > -2.6 for each in found.profiles), (
        "graphs that nobody measured take longer too"
    )


def test_on_a_new_chip_times_of_others_tell_more_than_the_graph() -> None:
    """How much more, `test_two_rows_tell_a_new_chip_from_the_chip_that_is_nearest` measures."""
    own, _ = own_rows([row("net1", 3 * NETS["net1"]), row("net7", 3 * NETS["net7"])], BASE)
    found = calibrated([OTHER], BASE, NEW, own, {})
    (profile,) = (one for one in found.profiles if one.precision == "float")
    graph = amounts_of([Count(name="c", op="Conv", kind="dense", macs=10**9, weights=10**6, reads=10**6, writes=10**6)])
    alone, beside = (network([found, OTHER], found, profile, "net3", graphs) for graphs in (None, graph))
    assert alone is not None
    assert beside is not None
    assert beside.span == alone.span
    ms, sd = profile.shifted["net3"]
    assert alone.span.width == pytest.approx(math.exp(2 * EIGHTY * NEW_CHIP * sd), rel=1e-6)
    assert alone.span.ms == pytest.approx(ms)


def test_a_row_of_ones_own_chip_moves_it_less_and_none_leaves_it() -> None:
    assert calibrated([OTHER], BASE, BASE, [], {}).profiles == BASE.profiles
    own, _ = own_rows([row("net1", 1.3 * NETS["net1"])], BASE)
    found = calibrated([OTHER], BASE, BASE, own, {})
    assert NETS["net4"] < told(found, "net4", "float")[0] < 1.3 * NETS["net4"]
    assert not found.profiles[0].carried


def test_the_same_rows_in_another_order_give_the_same_bytes() -> None:
    rows = [row("net1", 1.5), row("net7", 12.0), row("net2", 0.5, "w8a8"), row("net1", 1.6, name="again")]
    texts = {
        chip_text(calibrated([BASE, OTHER], BASE, NEW, own_rows(each, BASE)[0], {})) for each in (rows, rows[::-1])
    }
    assert len(texts) == 1


def test_the_only_part_of_a_network_is_the_network() -> None:
    def names(*rows: Row) -> list[str]:
        return [own.name for own in own_rows(rows, BASE)[0]]

    lone = replace(row("net1", 1.0), component="Net1")
    assert names(lone) == ["net1"], "as the base knows it"
    assert names(replace(lone, model="new")) == ["new"]
    parts = replace(lone, model="new"), replace(lone, model="new", component="Net2")
    assert names(*parts) == ["new--Net1", "new--Net2"]
    assert names(lone, replace(lone, component="Net2")) == ["net1--Net1", "net1--Net2"]
    known = replace(BASE.profiles[0], measured=(*BASE.profiles[0].measured, Measured(model="new--Net1", ms=1.0)))
    own, _ = own_rows(
        [replace(lone, model="new", component="Net2")], replace(BASE, profiles=(known, *BASE.profiles[1:]))
    )
    assert [one.name for one in own] == ["new--Net2"]


def test_a_network_is_carried_over_by_what_its_graph_does_too() -> None:
    count = Count(name="n", op="Conv", kind="dense", macs=10**9, weights=10**6)
    amounts = {"new": amounts_of([count])}
    theta = np.full(len(NAMES), -3.0)
    ms = math.exp(network_log_ms(theta, amounts["new"])[0])
    there, here = (replace(each, fitted=Fitted(NAMES, mean, 0.04 * np.eye(len(NAMES))))
                   for each, mean in zip(BASE.profiles, (theta, theta - 1.4), strict=True))  # fmt: skip
    chip = replace(BASE, profiles=(replace(there, measured=(*there.measured, Measured(model="new", ms=ms))), here))
    (asked,), _ = own_rows([row("new", 1.0, "w8a8")], chip)
    by_rows, by_both = predicted([chip], chip, asked, {}), predicted([chip], chip, asked, amounts)
    assert by_rows is not None
    assert by_both is not None
    assert math.exp(by_rows[0]) == pytest.approx(ms / 2.5)
    assert math.log(ms) - 1.4 < by_both[0] < by_rows[0] - 0.2, "its graph says 1.4, the other networks 0.92"


@pytest.mark.extra
def test_two_rows_tell_a_new_chip_from_the_chip_that_is_nearest() -> None:
    """Each chip left out, told by two rows of a runtime and precision: networks that other chips know, with their graphs."""
    graphs, known, found = public_networks(), load_chips(), list[tuple[str, float, bool, float]]()
    for left in known:
        others = [chip for chip in known if chip.file != left.file]
        rows = [
            Row(id=m.model, model=m.model, stack=p.stack, precision=p.precision, value=m.ms)
            for p in left.profiles if p.form == "network" for m in p.measured if m.model in graphs
        ]  # fmt: skip
        places = sorted({(row.stack, row.precision) for row in rows})
        for place in places:
            pair = [row for row in rows if (row.stack, row.precision) == place][1::4][:2]
            if len(pair) < 2:
                continue
            new = replace(left, profiles=(), like="")
            base, _ = CalibrateChip(rows=Path("own.csv"))._sibling(pair, others, {}, new)
            made = calibrated(
                others, base, new, own_rows(pair, base)[0], {row.model: graphs[row.model] for row in pair}
            )
            for row in rows[::3]:
                profile = made.profiles_of(row.stack).get(row.precision)
                if row in pair or profile is None:
                    continue
                told = network([made, *others], made, profile, row.model, graphs[row.model])
                assert told is not None
                span = told.span
                found.append(
                    (row.precision, abs(span.ms / row.value - 1), span.low <= row.value <= span.high, span.width)
                )
    for precision, most in (("float", 0.09), ("w8a8", 0.13)):
        _, errors, inside, widths = zip(*(one for one in found if one[0] == precision), strict=True)
        assert len(errors) > 300
        assert np.median(errors) < most
        assert 0.7 <= np.mean(inside) <= 0.92
        assert np.median(widths) <= 1.6


@pytest.mark.extra
def test_intervals_of_carried_networks_hold_what_they_say() -> None:
    """80 % of the times of networks with a graph, each precision of a network in turn taken out of all profiles: every fourth row
    of the chips that there are; 70 to 92 % of these 100 and more are no other share (two standard errors)."""
    graphs, known, at, inside, widths = public_networks(), load_chips(), 0, [], []
    for chip, place, row in [(c, p, r) for c in known for p in c.profiles if p.form == "network" for r in p.measured]:
        at += row.model in graphs
        if row.model not in graphs or at % 4:
            continue
        left = [_without(one, row.model, place.precision) for one in known]
        here = next(one for one in left if one.file == chip.file)
        found = network(left, here, here.profiles_of(place.stack)[place.precision], row.model, graphs[row.model])
        assert found is not None
        inside.append(found.span.low <= row.ms <= found.span.high)
        widths.append(found.span.width)
    assert len(inside) > 100
    assert 0.7 <= np.mean(inside) <= 0.92
    assert np.median(widths) < 1.4


def _without(chip: Chip, model: str, precision: str) -> Chip:
    def left(profile: Profile) -> Profile:
        rows = (row for row in profile.measured if row.model != model or profile.precision != precision)
        return replace(profile, measured=tuple(rows))

    return replace(chip, profiles=tuple(map(left, chip.profiles)))


def test_each_row_is_told_by_the_others() -> None:
    own, _ = own_rows([row(model, 2 * NETS[model]) for model in ("net1", "net3", "net7")], BASE)
    for one in checked([BASE, OTHER], BASE, NEW, own, {}):
        assert one.left_out == pytest.approx(one.own.ms, rel=0.1)
        assert one.before == pytest.approx(one.own.ms / 2)
        assert one.after == pytest.approx(one.own.ms)


def odd(*rows: Row) -> list[Contradiction]:
    return contradictions([OTHER], BASE, own_rows(rows, BASE)[0], {})


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        (row("net3", 1000 * NETS["net3"]), "probably in us"),
        (row("net3", NETS["net3"] / 1000), "probably in s,"),
        (row("net3", 5.1 * NETS["net3"]), "graph built inside the timing"),
        (row("net3", 30 * NETS["net3"]), "CPU fallback"),
        (row("net3", 1.6 * NETS["net3"]), "power mode"),
        (row("net3", NETS["net3"], "w8a8"), "it fits float"),
        (row("net3", NETS["net3"] / 2.5), "it fits w8a8"),
        (row("net9", NETS["net2"]), "published time of net2"),
    ],
)
def test_a_row_that_does_not_fit_says_why(given: Row, cause: str) -> None:
    (found,) = odd(given)
    assert cause in " ".join(found.causes)
    assert found.unusable == ("probably" in cause or "published" in cause)
    assert "% outside; " in found.text("Base with rt")


def test_rows_that_fit_are_not_listed_and_copied_ones_are() -> None:
    assert odd(row("net3", 1.05 * NETS["net3"]), row("net4", NETS["net4"])) == []
    (found,) = odd(row("net8", 1.01 * NETS["net3"]), row("net3", 1.01 * NETS["net3"]))
    assert found.own.name == "net8"
    assert any("those of net3" in cause for cause in found.causes)


def test_two_rows_of_a_new_model_tell_its_other_contexts() -> None:
    theta = np.log([each.ms for each in STREAMING.coefficients])
    phases = ("prefill", "decode")

    def time(model: str, phase: str, tokens: int, factor: float = 1.0) -> Row:
        call = (
            Call(phase="decode", context=tokens, precision="w4")
            if phase == "decode"
            else Call(phase="prefill", tokens=tokens, precision="w4")
        )
        ms = factor * math.exp(log_ms(STREAMING, theta, read_shape(model), call)[0])
        return Row(id=f"{model} {phase} {tokens}", model=model, stack="FastFlowLM", precision="w4", value=ms, chip="N",
                   phase="decode" if phase == "decode" else "prefill", seq_len=tokens)  # fmt: skip

    models = ("Llama3.2-1B", "Llama3.2-3B", "Qwen3-0.6B")
    fit = fit_decoders([time(model, phase, n) for model in models for phase in phases for n in (512, 4096)])[
        "N", "FastFlowLM"
    ]
    fitted = Fitted(STREAMING.names, fit.posterior.mean, fit.posterior.covariance)
    chip = replace(BASE, profiles=(Profile(stack="FastFlowLM", form="streaming", fitted=fitted, noise=fit.noise),))
    own, _ = own_rows([time("Gemma3-4B", phase, 1024, 1.3) for phase in phases], chip)
    found = calibrated([], chip, chip, own, {})
    for phase in phases:
        (other,), _ = own_rows([time("Gemma3-4B", phase, 4096, 1.3)], chip)
        log = predicted([found], found, other, {})
        assert log is not None
        assert math.exp(log[0]) == pytest.approx(other.ms, rel=0.1)
    swapped = replace(time("Gemma3-4B", "decode", 1024), value=1000 / time("Gemma3-4B", "decode", 1024).value)
    (found_odd,) = contradictions([], chip, own_rows([swapped], chip)[0], {})
    assert "probably in tok/s, not in ms" in found_odd.causes[0]
