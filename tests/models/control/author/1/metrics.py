"""Metrics that a model makes. Families go with their probes, but not at once: each has a name for its kind."""


def family(pb, name, kind="COUNTER"):
    return pb.MetricFamily(name=name, description="of a probe", kind=getattr(pb.MetricFamily, kind))


def made(kind, **more):
    return lambda pb, _: family(pb, f"made_{kind}", kind).Metric(**more) and None


def done(kind, *operations, **more):
    """The value after each operation; ("increment", 2.0) calls that with it."""

    def probe(pb, _):
        of = family(pb, f"done_{kind}", kind)
        metric = of.Metric(labels={"a": "x"}, **more)
        values = []
        for name, value in operations:
            getattr(metric, name)(value)
            values.append(metric.value())
        return values

    return probe


def tried(kind, operation, *values, **more):
    def probe(pb, _):
        of = family(pb, f"tried_{kind}", kind)
        return getattr(of.Metric(labels={"a": "x"}, **more), operation)(*values)

    return probe


def shared(pb, _):
    first, second = family(pb, "probe_shared"), family(pb, "probe_shared")
    one, other = first.Metric(labels={"a": "x"}), second.Metric(labels={"a": "x"})
    third = first.Metric(labels={"a": "y"})
    one.increment(2)
    other.increment(3)
    return [one.value(), other.value(), third.value()]


def other_kind(pb, _):
    first = family(pb, "probe_kind")
    return [first is not None, family(pb, "probe_kind", "GAUGE") and None]


def family_gone(pb, _):
    of = family(pb, "probe_gone")
    metric = of.Metric(labels={"a": "x"})
    del of
    metric.increment(1)


BOUNDS = [0.1, 1.0, 10.0]
PROBES = {
    "counter": done("COUNTER", ("increment", 2), ("increment", 0.5), ("increment", 0)),
    "gauge": done("GAUGE", ("set", 5), ("increment", -7.5), ("set", -1)),
    "histogram": tried("HISTOGRAM", "observe", 0.5, buckets=BOUNDS),
    "shared by label": shared,
    "counter falls": tried("COUNTER", "increment", -1.0),
    "counter set": tried("COUNTER", "set", 1.0),
    "counter observes": tried("COUNTER", "observe", 1.0),
    "gauge observes": tried("GAUGE", "observe", 1.0),
    "histogram increments": tried("HISTOGRAM", "increment", 1.0, buckets=BOUNDS),
    "histogram set": tried("HISTOGRAM", "set", 1.0, buckets=BOUNDS),
    "histogram's value": tried("HISTOGRAM", "value", buckets=BOUNDS),
    "increment by text": tried("COUNTER", "increment", "1"),
    "increment by None": tried("COUNTER", "increment", None),
    "increment by nothing": tried("COUNTER", "increment"),
    "metric without labels": made("COUNTER"),
    "labels None": made("COUNTER", labels=None),
    "labels a list": made("COUNTER", labels=["a"]),
    "labels text": made("COUNTER", labels="a"),
    "label value a number": made("COUNTER", labels={"a": 1}),
    "label name odd": made("COUNTER", labels={"a b": "x"}),
    "buckets of a counter": made("COUNTER", buckets=[1.0]),
    "buckets of a gauge": made("GAUGE", buckets=[]),
    "buckets missing": made("HISTOGRAM"),
    "buckets a tuple": made("HISTOGRAM", buckets=(1.0, 2.0)),
    "buckets of text": made("HISTOGRAM", buckets=["a"]),
    "buckets empty": made("HISTOGRAM", buckets=[]),
    "buckets in the wrong order": made("HISTOGRAM", buckets=[2.0, 1.0]),
    "kind a number": lambda pb, _: pb.MetricFamily("x", "y", 1) and None,
    "kind None": lambda pb, _: pb.MetricFamily("x", "y", None) and None,
    "kind missing": lambda pb, _: pb.MetricFamily(name="x", description="y") and None,
    "name None": lambda pb, _: pb.MetricFamily(None, "y", pb.MetricFamily.COUNTER) and None,
    "name odd": lambda pb, _: family(pb, "a b") and None,
    "name empty": lambda pb, _: family(pb, "") and None,
    "name of another kind": other_kind,
    "family gone": family_gone,
    "kinds": lambda pb, _: [repr(getattr(pb.MetricFamily, name)) for name in ("COUNTER", "GAUGE", "HISTOGRAM")],
}
