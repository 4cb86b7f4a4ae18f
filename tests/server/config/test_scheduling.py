"""The settings of the dynamic batcher and of the instances, as a configuration gives them."""

from server.support.configs import model_config

from reference_server.config.scheduler_settings import (
    DynamicBatching,
    InstanceConfig,
    QueuePolicy,
    Resource,
)


def test_the_batcher_without_settings_is_free():
    batching = model_config("max_batch_size: 8 dynamic_batching { }").dynamic_batching
    assert batching == DynamicBatching((8,), 0)
    assert batching.is_free


def test_all_settings_of_the_batcher_are_read():
    batching = model_config("""max_batch_size: 8 dynamic_batching {
        preferred_batch_size: [4, 2] max_queue_delay_microseconds: 100 preserve_ordering: true
        priority_levels: 1 default_priority_level: 1
        default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 }
        priority_queue_policy { key: 1 value { allow_timeout_override: true max_queue_size: 3 } }
    }""").dynamic_batching
    assert batching == DynamicBatching(
        (2, 4),
        100,
        preserve_ordering=True,
        levels=1,
        default_level=1,
        default_policy=QueuePolicy(5, delays=True),
        policies={1: QueuePolicy(overridable=True, max_size=3)},
    )
    assert not batching.is_free


def test_instances_are_named_after_their_group_and_number():
    config = model_config("""
        instance_group { }
        instance_group { name: "x" kind: KIND_MODEL count: 2
          rate_limiter { priority: 3 resources { name: "R" count: 2 }
                         resources { name: "S" count: 1 global: true } } }
    """)
    resources = (Resource("R", 2, is_global=False), Resource("S", 1, is_global=True))
    assert config.instances == (
        InstanceConfig("m_0_0", "CPU"),
        InstanceConfig("x_0", "MODEL", 3, resources),
        InstanceConfig("x_1", "MODEL", 3, resources),
    )
    assert config.instance_names == ("m_0_0", "x_0", "x_1")
