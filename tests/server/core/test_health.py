"""The health of models."""

from reference_server.core.health import Health


def test_a_model_is_unhealthy_while_an_instance_is():
    health = Health()
    assert health.reason == ""
    health.mark_unhealthy("a", "a fell")
    health.mark_unhealthy("b", "b fell")
    assert health.reason == "a fell; b fell"
    health.mark_healthy("a")
    assert health.reason == "b fell"
    health.mark_healthy("b")
    assert health.reason == ""


def test_an_ensemble_is_unhealthy_with_one_of_its_models():
    parts = [Health(), Health()]
    ensemble = Health(parts)
    parts[1].mark_unhealthy("m_0", "gone")
    assert ensemble.reason == "gone"
    parts[1].mark_healthy("m_0")
    assert ensemble.reason == ""


def test_each_instance_has_one_probe():
    health = Health()
    assert health.probes == ()
    health.add_probe("a", lambda: True)
    health.add_probe("b", second := lambda: True)
    health.add_probe("a", first := lambda: False)
    assert health.probes == (first, second)


def test_an_ensemble_has_the_probes_of_its_models():
    parts = [Health(), Health()]
    ensemble = Health(parts)
    assert ensemble.probes == ()
    parts[1].add_probe("m_0", question := lambda: True)
    assert ensemble.probes == (question,)
