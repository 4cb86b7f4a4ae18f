"""Invalid settings of the dynamic batcher, and the error text of each."""

import pytest
from server.support.configs import completed

from reference_server.config.check import check_polled
from reference_server.core.errors import Code, ServerError

LEVELS = "priority_levels: 2 default_priority_level: 1"
DELAYS = "{ timeout_action: DELAY default_timeout_microseconds: 5 }"
NO_DELAY = (
    "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m"
)
LEVEL_RANGE = "default priority level must be in range [1, 2] for m"
POLICY_RANGE = "priority queue policy must have priority level in range [1, 2] for m"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "preferred_batch_size: [4, 0]",
            "dynamic batching preferred size must be positive for m",
        ),
        (
            "preferred_batch_size: [4, 9]",
            "dynamic batching preferred size must be <= max batch size for m",
        ),
        ("priority_levels: 2", LEVEL_RANGE),
        ("priority_levels: 2 default_priority_level: 3", LEVEL_RANGE),
        (f"{LEVELS} priority_queue_policy {{ key: 3 value {{ }} }}", POLICY_RANGE),
        (f"{LEVELS} priority_queue_policy {{ key: 0 value {{ }} }}", POLICY_RANGE),
        (
            f"preserve_ordering: true {LEVELS}",
            "Only one priority level is allowed when 'preserve_ordering' is true for m",
        ),
        (f"preserve_ordering: true default_queue_policy {DELAYS}", NO_DELAY),
        (
            "preserve_ordering: true priority_levels: 1 default_priority_level: 1 "
            f"priority_queue_policy {{ key: 1 value {DELAYS} }}",
            NO_DELAY,
        ),
    ],
)
def test_refused_when_polled(text, said):
    config = completed(f"max_batch_size: 8 dynamic_batching {{ {text} }}")
    with pytest.raises(ServerError) as caught:
        check_polled(config)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, said)


@pytest.mark.parametrize(
    "text",
    [
        LEVELS,
        "default_priority_level: 3 priority_queue_policy { key: 3 value { } }",
        "preserve_ordering: true default_queue_policy { timeout_action: DELAY }",
        "preserve_ordering: true priority_levels: 1 default_priority_level: 1",
    ],
)
def test_accepted_when_polled(text):
    check_polled(completed(f"max_batch_size: 8 dynamic_batching {{ {text} }}"))
