"""The manifests that scale pods in deploy/kubernetes are valid and query the shipped rule."""

from __future__ import annotations

import ast
import datetime
import re
import shutil
import subprocess
import types
import typing
import zipfile
from pathlib import Path
from typing import Any

import pydantic
import pytest
import yaml
from support.prometheus import PROMTOOL, needs_promtool
from support.servers import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
OBSERVE = ROOT / "observe"
HPA = yaml.safe_load((FOLDER / "base" / "autoscaler.yaml").read_text())
ADAPTER = yaml.safe_load((FOLDER / "prometheus-adapter.yaml").read_text())
SCALED = yaml.safe_load((FOLDER / "keda" / "scaled-object.yaml").read_text())
#: Types that are made from KEDA's CRDs, in `make clients`' folder.
KEDA = ROOT / ".cache" / "wheels" / "cloudcoil_models_keda-2.16.1.0-py3-none-any.whl"

needs_keda = pytest.mark.skipif(
    not KEDA.exists(), reason=f"{KEDA.name} was not downloaded; make clients"
)
needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")


class Strict(pydantic.BaseModel):
    """A schema that rejects unknown fields."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)


@pytest.fixture(scope="module")
def scaled_object() -> type[Strict]:
    """The type of a ScaledObject: the fields of the wheel's classes, without their builders."""
    with zipfile.ZipFile(KEDA) as opened:
        tree = ast.parse(opened.read("cloudcoil/models/keda/v1alpha1.py"))
    classes = [part for part in tree.body if isinstance(part, ast.ClassDef)]
    for each in classes:
        each.body = [part for part in each.body if isinstance(part, ast.AnnAssign)] or [ast.Pass()]
    names: dict[str, Any] = {
        **vars(typing),
        "Field": pydantic.Field,
        "datetime": datetime.datetime,
        "RootModel": pydantic.RootModel,
        "BaseModel": Strict,
        "Resource": Strict,
        "__name__": __name__,
        "apimachinery": types.SimpleNamespace(ObjectMeta=dict[str, Any]),
    }
    wanted = _used_by("ScaledObject", {each.name: each for each in classes})
    body: list[ast.stmt] = [each for each in classes if each.name in wanted]
    # Its annotations are values at once, not texts as those of this file.
    exec(compile(ast.Module(body, []), KEDA.name, "exec", dont_inherit=True), names)
    found: type[Strict] = names["ScaledObject"]
    return found


def _used_by(name: str, classes: dict[str, ast.ClassDef]) -> set[str]:
    found, new = set[str](), {name}
    while new:
        found |= new
        words = {
            word.id
            for each in new
            for word in ast.walk(classes[each])
            if isinstance(word, ast.Name)
        }
        new = (words & classes.keys()) - found
    return found


@needs_keda
def test_what_keda_is_given_is_of_its_type(scaled_object: type[Strict]):
    scaled_object.model_validate(SCALED)


@needs_keda
@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("metricTypes", "Value"),  # a field that there is not
        ("metadata", {"threshold": 1}),  # of which all must be text
        ("type", None),
    ],
)
def test_what_keda_does_not_know_would_be_found(
    scaled_object: type[Strict], place: str, value: object
):
    (trigger,) = SCALED["spec"]["triggers"]
    spec = {**SCALED["spec"], "triggers": [{**trigger, place: value}]}
    with pytest.raises(pydantic.ValidationError, match=rf"spec\.triggers\.0\.{place}"):
        scaled_object.model_validate({**SCALED, "spec": spec})


@needs_kubectl
def test_kedas_overlay_scales_what_it_deploys_and_nothing_else_does():
    command = ("kubectl", "kustomize", str(FOLDER / "keda"))
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    kinds = {each["kind"]: each for each in yaml.safe_load_all(ran.stdout)}
    assert "HorizontalPodAutoscaler" not in kinds
    scaled = kinds["ScaledObject"]["spec"]["scaleTargetRef"]["name"]
    assert scaled == kinds["Deployment"]["metadata"]["name"]


def test_both_hold_the_same_numbers_of_pods():
    spec, hpa = SCALED["spec"], HPA["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (
        hpa["minReplicas"],
        hpa["maxReplicas"],
    )
    keda = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    assert keda == hpa["behavior"]["scaleDown"]


def test_the_adapter_tells_what_the_autoscaler_asks_for():
    (rule,) = ADAPTER["externalRules"]
    (metric,) = HPA["spec"]["metrics"]
    assert rule["name"]["as"] == metric["external"]["metric"]["name"]
    # With `Value` the pods are as many as there are, times the metric, over the target.
    assert metric["external"]["target"] == {"type": "Value", "value": "1"}
    (trigger,) = SCALED["spec"]["triggers"]
    assert (trigger["metricType"], trigger["metadata"]["threshold"]) == ("Value", "1")


def queries() -> dict[str, str]:
    """Return the queries to Prometheus, by manifest."""
    (rule,) = ADAPTER["externalRules"]
    series = re.match(r"[\w:]+", rule["seriesQuery"])
    assert series is not None
    labels = HPA["spec"]["metrics"][0]["external"]["metric"]["selector"]["matchLabels"]
    matchers = ",".join(f'{name}="{value}"' for name, value in labels.items())
    asked: str = rule["metricsQuery"]
    (trigger,) = SCALED["spec"]["triggers"]
    return {
        "adapter": asked.replace("<<.Series>>", series[0]).replace("<<.LabelMatchers>>", matchers),
        "keda": trigger["metadata"]["query"],
    }


@needs_promtool
def test_what_they_ask_has_one_answer_the_rule(tmp_path: Path):
    cases = yaml.safe_load((OBSERVE / "autoscaling_test.yml").read_text())
    case = cases["tests"][0]
    (told,) = (
        check["exp_samples"][0]["value"]
        for check in case["promql_expr_test"]
        if "replicas_wanted" in check["expr"]
    )
    case["promql_expr_test"] = [
        {
            "expr": f"round({query}, 0.001)",
            "eval_time": "4m",
            "exp_samples": [{"labels": "{}", "value": told}],
        }
        for query in queries().values()
    ]
    file = tmp_path / "test.yml"
    rules = [str(OBSERVE / "autoscaling.yml")]
    file.write_text(yaml.safe_dump({**cases, "rule_files": rules, "tests": [case]}))
    command = [str(PROMTOOL), "test", "rules", str(file)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
