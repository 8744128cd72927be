"""``pb_utils.ModelConfig``: what a model may complete, and what it must not contradict."""

import json


def config(pb, **more):
    return pb.ModelConfig(json.dumps({"name": "m", "max_batch_size": 4, "input": [], "output": [], **more}))


def after(change, **more):
    """The configuration that ``change`` leaves."""

    def probe(pb, _):
        made = config(pb, **more)
        change(made)
        return made.as_dict()

    return probe


def adds(kind, *properties, **more):
    def change(made):
        for each in properties:
            getattr(made, f"add_{kind}")(each)

    return after(change, **more)


def tensor(**more):
    return {"name": "T", "data_type": "TYPE_FP32", "dims": [4], **more}


def lacking(name):
    return {key: value for key, value in tensor().items() if key != name}


def configured(kind, **more):
    return {kind: [tensor(**more)]}


def both(name, *properties, **more):
    """For inputs and for outputs; ``more`` configures the tensor T before."""
    return {
        f"{kind}: {name}": adds(kind, *properties, **(configured(kind, **more) if more else {}))
        for kind in ("input", "output")
    }


def policy(value, **more):
    return after(lambda made: made.set_model_transaction_policy(value), **more)


PROBES = {
    **both("added", tensor()),
    **both("two added", tensor(), tensor(name="U")),
    **both("no name", lacking("name")),
    **both("no type", lacking("data_type")),
    **both("no dims", lacking("dims")),
    **both("a strange property", tensor(is_shape_tensor=False)),
    **both("a strange property, no name", {"is_shape_tensor": False}),
    **both("optional", tensor(optional=True)),
    **both("the same again", tensor(), data_type="TYPE_FP32"),
    **both("another type", tensor(), data_type="TYPE_INT32"),
    **both("other dims", tensor(), dims=[16]),
    **both("a type to complete", tensor(), data_type="TYPE_INVALID"),
    **both("dims to complete", tensor(), dims=[]),
    "input: optional against the configuration": adds(
        "input", tensor(optional=True), **configured("input", optional=False)
    ),
    "input: optional as configured": adds("input", tensor(optional=True), **configured("input", optional=True)),
    "max_batch_size": after(lambda made: made.set_max_batch_size(8)),
    "max_batch_size as configured": after(lambda made: made.set_max_batch_size(4)),
    "max_batch_size below": after(lambda made: made.set_max_batch_size(2)),
    "max_batch_size none": after(lambda made: made.set_max_batch_size(0)),
    "dynamic batching": after(lambda made: made.set_dynamic_batching()),
    "dynamic batching again": after(
        lambda made: made.set_dynamic_batching(), dynamic_batching={"max_queue_delay_microseconds": 5}
    ),
    "dynamic batching of sequences": after(lambda made: made.set_dynamic_batching(), sequence_batching={}),
    "dynamic batching of an ensemble": after(lambda made: made.set_dynamic_batching(), ensemble_scheduling={}),
    "decoupled": policy({"decoupled": True}),
    "not decoupled": policy({"decoupled": False}),
    "decoupled as configured": policy({"decoupled": True}, model_transaction_policy={"decoupled": True}),
    "decoupled against the configuration": policy({"decoupled": True}, model_transaction_policy={"decoupled": False}),
    "a strange policy": policy({"coupled": True}),
    "an empty policy": policy({}),
    "no JSON": lambda pb, _: pb.ModelConfig("{"),
}
