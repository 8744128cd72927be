"""The repositories ``held`` and ``scheduling``: tests/models/scheduling/probe.py in many configurations.

Of ``held`` every scheduler waits until HELD requests have come, so that what it makes of them is no matter of time.
"""

from __future__ import annotations

import shutil
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "models" / "scheduling" / "probe.py"
HELD = 6

_TENSORS = 'output { name: "SEEN" data_type: TYPE_STRING dims: [ 1 ] }'
_FIXED = 'input { name: "X" data_type: TYPE_INT32 dims: [ 1 ] }\n' + _TENSORS
_VARIABLE = 'input { name: "X" data_type: TYPE_INT32 dims: [ -1 ] }\n' + _TENSORS
_RAGGED = 'input { name: "X" data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true }\n' + _TENSORS
_OPTIONAL = _FIXED + '\ninput { name: "EXTRA" data_type: TYPE_INT32 dims: [ 1 ] optional: true }'
_CONTROLS = """
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "END" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] } }
  control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } }
  control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
"""
_TEXT_ID = 'control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }'


def _batching(choice: str = "", rows: int = 8, tensors: str = _FIXED) -> str:
    return f"max_batch_size: {rows}\n{tensors}\ndynamic_batching {{ {choice} }}"


def _sequences(choice: str = "", rows: int = 2, controls: str = _CONTROLS, tensors: str = _FIXED) -> str:
    return f"max_batch_size: {rows}\n{tensors}\nsequence_batching {{ {choice} {controls} }}"


def _ensemble(*models: str) -> str:
    """X goes to each of the models, whose answers are OUT0, OUT1, ..."""
    outputs = [f'output {{ name: "OUT{number}" data_type: TYPE_STRING dims: [ 1 ] }}' for number in range(len(models))]
    steps = [
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "X" value: "X" }} '
        f'output_map {{ key: "SEEN" value: "OUT{number}" }} }}'
        for number, model in enumerate(models)
    ]
    tensors = 'input { name: "X" data_type: TYPE_INT32 dims: [ 1 ] }'
    return "\n".join(
        ['platform: "ensemble"', "max_batch_size: 4", tensors, *outputs, f"ensemble_scheduling {{ {' '.join(steps)} }}"]
    )


def _policy(text: str) -> str:
    return f"default_queue_policy {{ {text} }}"


_LEVELS = "priority_levels: 3 default_priority_level: 2"

MODELS = {
    "held": {
        "plain": _batching(),
        "small": _batching(rows=3),
        "preferred": _batching("preferred_batch_size: [ 4 ]"),
        "preferred_below": _batching("preferred_batch_size: [ 4, 7 ]"),
        "preferred_two": _batching("preferred_batch_size: [ 2, 6 ]"),
        # Longer than a case may take: that it is answered shows that the preferred size ends the delay.
        "preferred_delayed": _batching("preferred_batch_size: [ 6 ] max_queue_delay_microseconds: 60000000"),
        "delayed": _batching("max_queue_delay_microseconds: 300000"),
        "shapes": _batching(tensors=_VARIABLE),
        "ragged": _batching(tensors=_RAGGED),
        "extras": _batching(tensors=_OPTIONAL),
        "levels": _batching(_LEVELS, rows=2),
        "ordered": _batching("preserve_ordering: true", rows=2),
        "failing": _batching(),
        "unbatched": f"max_batch_size: 0\n{_FIXED}\ndynamic_batching {{ }}",
        "direct": _sequences(),
        "direct_backlog": _sequences(),
        "direct_three": _sequences(rows=3),
        "oldest": _sequences("oldest { max_candidate_sequences: 6 }", rows=6),
        "oldest_preferred": _sequences("oldest { max_candidate_sequences: 6 preferred_batch_size: [ 2 ] }", rows=4),
    },
    "scheduling": {
        "none": f"max_batch_size: 4\n{_FIXED}",
        "none_waiting": f"max_batch_size: 4\n{_FIXED}",
        "batched": _batching(),
        "few": _batching(_policy("max_queue_size: 2"), rows=1),
        "few_unbatched": _batching(_policy("max_queue_size: 2"), rows=0),
        "preferred": _batching("preferred_batch_size: [ 2, 4 ]"),
        "expiring": _batching(_policy("default_timeout_microseconds: 100000"), rows=1),
        "overridden": _batching(
            _policy("default_timeout_microseconds: 5000000 allow_timeout_override: true"), rows=1
        ),
        "not_overridden": _batching(_policy("allow_timeout_override: true"), rows=1),
        "not_allowed": _batching(_policy("default_timeout_microseconds: 5000000"), rows=1),
        "putting_off": _batching(
            _policy("timeout_action: DELAY default_timeout_microseconds: 5000000 allow_timeout_override: true"), rows=1
        ),
        "levels_of_policies": _batching(
            f"{_LEVELS} priority_queue_policy {{ key: 1 value {{ max_queue_size: 1 }} }}", rows=1
        ),
        "ordered_two": _batching("preserve_ordering: true", rows=1) + "\ninstance_group { count: 2 kind: KIND_CPU }",
        "two": _batching(rows=1) + "\ninstance_group { count: 2 kind: KIND_CPU }",
        # Each for cases of its own, since answers count executions.
        **{name: _sequences() for name in ("direct", "direct_slots", "direct_over", "direct_again", "direct_refused")},
        "direct_single": _sequences(rows=0),
        "oldest": _sequences("oldest { max_candidate_sequences: 2 }"),
        "text_ids": _sequences(controls=_TEXT_ID),
        "brief": _sequences("max_sequence_idle_microseconds: 200000", rows=1),
        "cached": _batching(rows=4) + "\nresponse_cache { enable: true }",
        "cached_alone": f"max_batch_size: 4\n{_VARIABLE}\nresponse_cache {{ enable: true }}",
        "cached_below": _ensemble("cached_part", "none"),
        "cached_part": _batching(rows=4) + "\nresponse_cache { enable: true }",
        "cached_above": _ensemble("none") + "\nresponse_cache { enable: true }",
        "warm": _batching(rows=4)
        + """
            model_warmup { name: "zero" batch_size: 2 count: 3
              inputs { key: "X" value { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } } }
            model_warmup { name: "skipped" batch_size: 0
              inputs { key: "X" value { data_type: TYPE_INT32 dims: [ 1 ] random_data: true } } }""",
        "warm_sequences": _sequences()
        + """
            model_warmup { name: "zero" batch_size: 1
              inputs { key: "X" value { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } } }""",
        "resources": _batching(rows=1)
        + """
            instance_group { count: 2 kind: KIND_CPU rate_limiter { resources { name: "R" count: 2 } } }""",
        "passive": _batching(rows=1)
        + """
            instance_group { name: "serving" count: 1 kind: KIND_CPU }
            instance_group { name: "passive" count: 1 kind: KIND_CPU passive: true }""",
    },
    "managed": {
        "one": f"max_batch_size: 4\n{_FIXED}",
        "two": f"max_batch_size: 4\n{_FIXED}",
        "raising": f'{_FIXED}\nparameters {{ key: "raises" value {{ string_value: "boom" }} }}',
        "refused": _batching("preferred_batch_size: [ 9 ]"),
        "unread": "nonsense { }",
        "pair": _ensemble("one", "two"),
        "lame": _ensemble("one", "raising"),
    },
}  # fmt: skip


def write(directory: Path, repository: str) -> None:
    for name, config in MODELS[repository].items():
        version = directory / name / "1"
        version.mkdir(parents=True)
        shutil.copy(SOURCE, version / "model.py")
        backend = "" if "platform" in config else 'backend: "python"'
        (version.parent / "config.pbtxt").write_text(f"{backend}\n{config}\n")
