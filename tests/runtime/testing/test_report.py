from dataclasses import replace

from ge_runtime.testing.report import Failure, Report, Wrong

FAILURE = Failure(
    round=1,
    how="in random groups",
    batch=["1 row(s), tokens 4", "2 row(s), tokens 2", "1 row(s), tokens 9", "3 row(s), tokens 1"],
    wrong=Wrong(2, "output 'y': 1 of 4 element(s) differ"),
    groups=[[1, 2, 3], [0]],
    smallest=[[2, 3]],
    left=Wrong(2, "output 'y': 2 of 4 element(s) differ"),
)
REPORT = Report(
    model="encoder",
    seed=7,
    rounds=2,
    requests=8,
    executions=21,
    shared=5,
    pads={"input_ids": "9"},
    failure=FAILURE,
)


def test_a_failure_shows_its_execution_and_the_least_that_fails():
    assert not REPORT.passed
    assert (
        str(REPORT)
        == """\
encoder: 2 round(s) of seed 7, 8 request(s) in 21 launches, 5 of them shared
padding of 'input_ids' poisoned with 9
FAILED
round 1, requests executed in random groups:
  request 2: output 'y': 1 of 4 element(s) differ
its launch:
    request 1: 2 row(s), tokens 2
    request 2: 1 row(s), tokens 9
    request 3: 3 row(s), tokens 1
the least that fails:
    request 2: 1 row(s), tokens 9
    request 3: 3 row(s), tokens 1
  request 2: output 'y': 2 of 4 element(s) differ"""
    )


def test_several_executions_are_told_apart():
    lines = replace(FAILURE, smallest=[[0], [2, 3]]).lines()
    assert lines[lines.index("the least that fails, 2 launches:") :] == [
        "the least that fails, 2 launches:",
        "  launch 1",
        "    request 0: 1 row(s), tokens 4",
        "  launch 2",
        "    request 2: 1 row(s), tokens 9",
        "    request 3: 3 row(s), tokens 1",
        "  request 2: output 'y': 2 of 4 element(s) differ",
    ]


def test_a_failure_that_does_not_come_again_shows_no_least():
    lines = replace(FAILURE, smallest=None, left=None).lines()
    assert lines[-1] == "executed once more, the same launches give no wrong answer"


def test_a_failure_of_no_single_answer_shows_no_execution():
    failure = replace(FAILURE, wrong=Wrong(None, "1 launch(es) failed"))
    assert failure.lines()[:3] == [
        "round 1, requests executed in random groups:",
        "  1 launch(es) failed",
        "the least that fails:",
    ]


def test_a_pass_says_what_was_tried():
    report = replace(REPORT, failure=None, shared=0, pads={})
    assert report.passed
    assert report.lines() == [
        "encoder: 2 round(s) of seed 7, 8 request(s) in 21 launches, 0 of them shared",
        "no two requests shared a launch, so nothing is shown of company",
        "passed: every answer is that of the request by itself",
    ]
