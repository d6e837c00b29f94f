"""The faults that explanations are judged by: they cost what they say, their culprits are there, and a seed gives one fault."""

from __future__ import annotations

import math

import numpy as np
import pytest
from qdq_passes.graph.uses import all_nodes, all_values

from qdqtool.runtime.session import compute
from tests.bench.faults.baselines import by_local_sqnr, by_onnxruntime, rank
from tests.bench.faults.explained import verdict
from tests.bench.faults.fault import LOUD_DB, Fault, base, sqnr
from tests.bench.faults.kinds import KINDS
from tests.bench.planted_faults import LEAST_DB, faults


@pytest.fixture(scope="module")
def planted() -> dict[str, Fault]:
    """Of an activation, of scales per channel, of a function that is kept, of a bias, and of a layer left float, by kind."""
    return {fault.kind: fault for fault in faults([0, 6, 7, 26, 10])}


def test_they_cost(planted: dict[str, Fault]) -> None:
    assert set(planted) == {"scale-too-large", "wrong-axis", "outlier-channel", "saturated-bias", "excluded-neighbour"}
    for fault in planted.values():
        good, bad = (sqnr(fault.float_model, model, fault.data) for model in (fault.good, fault.bad))
        assert good - bad == pytest.approx(fault.cost_db)
        assert fault.cost_db >= LEAST_DB


def test_culprits_are_in_the_model(planted: dict[str, Fault]) -> None:
    for fault in planted.values():
        there = {node.name for node in all_nodes(fault.bad)} | {value.name for value in all_values(fault.bad)}
        floats = {
            value.name for value in (*all_values(fault.float_model), *fault.float_model.graph.initializers.values())
        }
        assert fault.culprits
        assert fault.culprits <= there | floats
        assert fault.cause == KINDS[fault.kind].cause


def test_an_outlier_keeps_the_function(planted: dict[str, Fault]) -> None:
    """Powers of two on both sides of a Relu: bit for bit, where onnxruntime adds in one order."""
    outlier, other = planted["outlier-channel"], planted["scale-too-large"]
    assert outlier.float_model is not other.float_model
    found, wanted = (compute(fault.float_model, list(outlier.feeds())) for fault in (outlier, other))
    for one, same in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one["logits"], same["logits"])


def test_a_seed_gives_one_fault(planted: dict[str, Fault]) -> None:
    [again] = faults([26])
    first = planted["saturated-bias"]
    assert (again.name, again.culprits, again.cost_db) == (first.name, first.culprits, first.cost_db)


def test_rankings_name_what_is_there(planted: dict[str, Fault]) -> None:
    fault = planted["wrong-axis"]
    for ranker in (by_onnxruntime, by_local_sqnr):
        names = ranker(fault)
        assert len(names) == len(set(names))
        assert rank(names, fault.culprits) < math.inf
    assert rank(["a", "b"], frozenset({"b", "c"})) == 2
    assert rank(["a"], frozenset({"b"})) == math.inf


@pytest.mark.product(days=3)
def test_loud_tensors_do_no_harm() -> None:
    quiet, loud = base("detector", "8a8w"), base("detector", "8a8w", 2)
    assert len(loud.loud) == 2
    one, other = (sqnr(each.float_model, each.good, each.test) for each in (quiet, loud))
    assert one - other < LOUD_DB
    [fault] = faults([17], loud=2)
    assert fault.good is loud.good
    assert not fault.culprits & loud.loud_names


def test_the_excluded_neighbour_is_found(planted: dict[str, Fault]) -> None:
    """Without the pair that stands for it alone the model is as good as without the fault."""
    fault = planted["excluded-neighbour"]
    told = verdict(fault)
    assert (told.place, told.cause, told.is_kept) == (1, "boundary", True)
    assert told.won_db > fault.cost_db / 2
