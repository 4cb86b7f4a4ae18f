"""Whether a model is well."""

from reference_server.core.health import Health


def test_a_model_is_ill_while_one_of_its_instances_is():
    health = Health()
    assert health.reason == ""
    health.mark_unhealthy("a", "a fell")
    health.mark_unhealthy("b", "b fell")
    assert health.reason == "a fell; b fell"
    health.mark_healthy("a")
    assert health.reason == "b fell"
    health.mark_healthy("b")
    assert health.reason == ""


def test_the_last_reason_counts():
    health = Health()
    health.mark_unhealthy("a", "first")
    health.mark_unhealthy("a", "second")
    assert repr(health) == "Health(second)"


def test_an_instance_that_was_well_may_recover():
    health = Health()
    health.mark_healthy("a")
    assert repr(health) == "Health(well)"


def test_an_ensemble_is_ill_with_one_of_its_models():
    parts = [Health(), Health()]
    ensemble = Health(parts)
    parts[1].mark_unhealthy("m_0", "gone")
    assert ensemble.reason == "gone"
    parts[1].mark_healthy("m_0")
    assert ensemble.reason == ""


def test_instances_are_asked_each_once():
    health = Health()
    assert health.probes == ()
    health.add_probe("a", lambda: True)
    health.add_probe("b", second := lambda: True)
    health.add_probe("a", first := lambda: False)
    assert health.probes == (first, second)


def test_an_ensembles_models_are_asked():
    parts = [Health(), Health()]
    ensemble = Health(parts)
    assert ensemble.probes == ()
    parts[1].add_probe("m_0", question := lambda: True)
    assert ensemble.probes == (question,)
