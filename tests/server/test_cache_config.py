"""The option `--cache-config`: settings, sizes, refusals."""

from argparse import ArgumentTypeError

import pytest

from reference_server import config_options
from reference_server.core.errors import ServerError


def byte_size(*texts):
    return config_options.cache_byte_size(
        [config_options.cache_setting(text) for text in texts], "/caches"
    )


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], None),
        (["local,size=1048576"], 1048576),
        (["local,size=192"], 192),
        (["local,size=1000", "local,size=2000"], 2000),
        (["local,size= 1000x"], 1000),
        (["local,size=1000=3"], 1000),
        (["local,size=1000,other=1"], 1000),
        (["local,size=1000", "local,other=1"], 1000),
    ],
)
def test_settings_say_how_large_the_cache_is(texts, expected):
    assert byte_size(*texts) == expected


@pytest.mark.parametrize("text", ["local", "", ",size=1", "size=1"])
def test_a_setting_names_its_cache(text):
    with pytest.raises(ArgumentTypeError) as raised:
        config_options.cache_setting(text)
    assert str(raised.value) == (
        "No cache specified. --cache-config option format is <cache name>,<setting>=<value>. "
        f"Got {text}"
    )


@pytest.mark.parametrize("text", ["local,size", "local,size=", "local,=5"])
def test_a_setting_has_a_value(text):
    with pytest.raises(ArgumentTypeError) as raised:
        config_options.cache_setting(text)
    assert str(raised.value) == (
        f"--cache-config option format is '<cache name>,<setting>=<value>'. Got {text}"
    )


@pytest.mark.parametrize(
    ("texts", "code", "said"),
    [
        (["local,size=abc"], "Internal", "Failed to initialize LocalCache: stoull"),
        (["local,size=18446744073709551616"], "Internal", "LocalCache: stoull"),
        (["local,size=-1"], "Internal", "LocalCache: failed to allocate buffer"),
        (["local,size=9223372036854775808"], "Internal", "failed to allocate buffer"),
        (["local,size=0"], "Internal", "basic_managed_external_buffer constructor"),
        (["local,size=191"], "Internal", "Could not initialize buffer in basic_managed"),
        (["local,size=10M"], "Internal", "Could not initialize buffer in basic_managed"),
        (
            ["local,foo=bar"],
            "Invalid argument",
            "Failed to initialize LocalCache: config didn't contain a valid 'size' field.",
        ),
        (
            ["redis,host=x"],
            "Invalid argument",
            "unable to find 'libtritoncache_redis.so' for cache. Searched: /caches",
        ),
        (
            ["local,size=1000", "redis,host=x"],
            "Invalid argument",
            "found multiple cache configurations, but only a single cache is currently supported",
        ),
    ],
)
def test_what_triton_cannot_make_is_refused_in_its_words(texts, code, said):
    with pytest.raises(ServerError) as raised:
        byte_size(*texts)
    assert raised.value.code.value == code
    assert said in raised.value.message
