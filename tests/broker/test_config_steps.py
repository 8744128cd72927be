"""Ensembles against the models of their steps: what fits, and the sentences for what does not."""

from __future__ import annotations

import pytest

from broker.config_steps import complete, make_plan, step_models
from broker.ensemble import Part
from broker.model_config import ModelConfig, from_message, parse_text
from protocol.errors import InvalidArgument
from protocol.signature import TensorSpec


def spec(text: str) -> TensorSpec:
    """ "X", "X:INT32" or "X:FP32:3,-1"; "?" at the end of the name makes it optional."""
    name, datatype, dims, *_ = [*text.split(":"), "", ""]
    shape = tuple(map(int, (dims or "4").split(",")))
    return TensorSpec(name.rstrip("?"), datatype or "FP32", shape, name.endswith("?"))


def part(inputs: str = "X", outputs: str = "Y", batch: int = 0, decoupled: bool = False, **labels) -> Part:
    return Part(batch, decoupled, tuple(map(spec, inputs.split())), tuple(map(spec, outputs.split())), labels)


def ensemble(*steps: str, inputs: str = "IN", outputs: str = "OUT", batch: int = 0, more: str = "") -> ModelConfig:
    """A step is "model X=IN ... > Y=OUT ..."."""
    rows = []
    for one in steps:
        model, *words = one.split()
        cut = words.index(">")
        maps = [("input_map", words[:cut]), ("output_map", words[cut + 1 :])]
        pairs = [(kind, *word.split("=")) for kind, some in maps for word in some]
        rows.append(f'model_name: "{model}" ' + " ".join(f'{k} {{ key: "{a}" value: "{b}" }}' for k, a, b in pairs))
    text = f'name: "e" platform: "ensemble" max_batch_size: {batch} '
    for kind, names in (("input", inputs), ("output", outputs)):
        for name, datatype, dims, *_ in map(spec, names.split()):
            text += f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: {list(dims)} }} '
    text += "ensemble_scheduling { " + " ".join(f"step {{ {row} }}" for row in rows) + more + " }"
    return from_message(parse_text(text.encode(), "config.pbtxt"))


PART = part()
STREAM = part(decoupled=True)


def test_a_plan_has_the_steps_with_their_tensors():
    config = ensemble("m X=IN > Y=t", "n X=t > Y=OUT", more=" max_inflight_requests: 3")
    assert step_models(config) == [("m", 0), ("n", 0)]
    plan = make_plan(config, [PART, part(batch=4)])
    assert [(one.model, one.inputs, one.outputs) for one in plan.steps] == [
        ("m", (("X", "IN"),), (("Y", "t"),)),
        ("n", (("X", "t"),), (("Y", "OUT"),)),
    ]
    assert (plan.outputs, plan.max_inflight, plan.decoupled) == (("OUT",), 3, False)


def test_one_decoupled_model_makes_the_ensemble_decoupled():
    config = ensemble("m X=IN > Y=t", "n X=t > Y=OUT")
    plan = make_plan(config, [STREAM, PART])
    assert complete(config, plan).decoupled


def test_an_output_has_the_labels_of_the_model_that_writes_it():
    config = ensemble("m X=IN > Y=OUT Z=u", "m X=u > Y=v", outputs="OUT v")
    plan = make_plan(config, [part(outputs="Y Z", Y=("a",), Z=("b",)), PART])
    assert plan.labels == {"OUT": ("a",)}


def test_optional_inputs_need_not_be_mapped_and_dimensions_that_vary_fit_any():
    make_plan(ensemble("m X=IN > Y=OUT"), [part("X:FP32:-1 Z?")])


def test_a_model_without_batches_may_have_the_batch_as_a_dimension_of_its_own():
    make_plan(ensemble("m X=IN > Y=OUT", batch=8), [part("X:FP32:-1,4", "Y:FP32:-1,4")])


REFUSED = [
    (
        ensemble("m X=IN > Y=OUT", batch=8),
        [part(batch=4)],
        "ensemble e allows maximum batch size 8, but it contains model m which only allows maximum batch size to be 4",
    ),
    (
        ensemble("m XX=IN X=IN > Y=OUT"),
        [PART],
        "in ensemble e, ensemble tensor IN is mapping to non-existing input XX in model m",
    ),
    (
        ensemble("m X=IN > Y=OUT YY=t", "n X=t > Y=OUT2", outputs="OUT OUT2"),
        [PART, PART],
        "in ensemble e, ensemble tensor t is mapped from non-existing output YY in model m",
    ),
    (
        ensemble("m X=IN > Y=OUT"),
        [part("X Z")],
        "in ensemble e, input Z in model m is not mapped to any ensemble tensors",
    ),
    (
        ensemble("m X=IN > Y=OUT"),
        [part("X:INT32")],
        "in ensemble e, ensemble tensor IN: inconsistent data type: TYPE_FP32 is inferred from model e while "
        "TYPE_INT32 is inferred from model m",
    ),
    (
        ensemble("m X=IN > Y=t", "n X=t > Y=OUT"),
        [part(outputs="Y:BYTES"), PART],
        "in ensemble e, ensemble tensor t: inconsistent data type: TYPE_STRING is inferred from model m while "
        "TYPE_FP32 is inferred from model n",
    ),
    (
        ensemble("m X=IN > Y=t", "n X=t > Y=OUT", batch=4),
        [part(batch=4), part("X:FP32:5")],
        "in ensemble e, ensemble tensor t: inconsistent shape: [-1,4] is inferred from model m while [5] is inferred "
        "from model n",
    ),
    (
        ensemble("m X=IN > Y=t", "m X=IN > Y=u", "n X=t Z=u > Y=OUT"),
        [STREAM, STREAM, part("X Z")],
        "in ensemble e, step of model 'e' receives inputs originated from different decoupled models",
    ),
    (
        ensemble("m X=IN > Y=t", "n X=t Z=IN > Y=u", "m X=u > Y=OUT"),
        [STREAM, part("X Z"), PART],
        "in ensemble e, step of model 'n' receives inputs originated from different decoupled models",
    ),
    (
        ensemble("m X=IN > Y=OUT", "n X=IN > Y=OUT2", outputs="OUT OUT2"),
        [STREAM, PART],
        "in ensemble e, step of model 'e' receives inputs originated from different decoupled models",
    ),
]


@pytest.mark.parametrize(("config", "parts", "text"), REFUSED, ids=[text[:60] for *_, text in REFUSED])
def test_what_does_not_fit_is_named(config: ModelConfig, parts: list[Part], text: str):
    with pytest.raises(InvalidArgument) as refused:
        make_plan(config, parts)
    assert str(refused.value) == text
