from metrics.recorder import BACKEND, FAILURE_REASONS, ModelRecorder, Recorder


def test_a_success_moves_the_counters_of_its_request_and_its_batch() -> None:
    recorder = ModelRecorder("m", 1)
    recorder.queued()
    recorder.dequeued()
    recorder.executed(4, input_ns=10, infer_ns=20, output_ns=30)
    recorder.succeeded(4, total_ns=100, queue_ns=5, input_ns=10, infer_ns=20, output_ns=30, now_ms=1_700_000_000_000)

    assert (recorder.success, recorder.inference_count, recorder.execution_count) == (1, 4, 1)
    assert (recorder.success_ns, recorder.queue_ns) == (100, 5)
    assert (recorder.compute_input_ns, recorder.compute_infer_ns, recorder.compute_output_ns) == (10, 20, 30)
    assert recorder.last_inference_ms == 1_700_000_000_000
    assert recorder.pending == 0
    recorder.check()


def test_each_batch_size_has_its_own_record() -> None:
    recorder = ModelRecorder("m", 1)
    for batch_size in (1, 8, 8):
        recorder.executed(batch_size, 1, 2, 3)

    assert {size: (b.count, b.input_ns, b.infer_ns, b.output_ns) for size, b in recorder.batches.items()} == {
        1: (1, 1, 2, 3),
        8: (2, 2, 4, 6),
    }
    recorder.check()


def test_a_failure_counts_under_its_reason_and_in_no_success_figure() -> None:
    recorder = ModelRecorder("m", 1)
    recorder.executed(1, 1, 1, 1)
    recorder.failed(BACKEND, total_ns=70)

    assert recorder.failures == {reason: int(reason == BACKEND) for reason in FAILURE_REASONS}
    assert (recorder.fail_count, recorder.fail_ns) == (1, 70)
    assert (recorder.success, recorder.inference_count, recorder.execution_count) == (0, 0, 1)
    recorder.check()


def test_recorders_come_in_order_and_vanish_at_unload() -> None:
    recorder = Recorder()
    for model, version in (("b", 1), ("a", 10), ("a", 9)):
        recorder.add(ModelRecorder(model, version))
    assert [(m.model, m.version) for m in recorder] == [("a", 9), ("a", 10), ("b", 1)]

    recorder.remove("a", 9)
    recorder.remove("never", 1)
    assert [(m.model, m.version) for m in recorder] == [("a", 10), ("b", 1)]


def test_a_reload_takes_the_place_of_the_earlier_load() -> None:
    recorder = Recorder()
    recorder.add(ModelRecorder("m", 1))
    again = ModelRecorder("m", 1)
    recorder.add(again)
    assert list(recorder) == [again]
