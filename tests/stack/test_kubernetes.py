"""The manifests of deploy/kubernetes: valid by the schemas, and true of the servers they start."""

from __future__ import annotations

import ast
import functools
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from support.servers import ROOT

from reference_server.command import cli

FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("cpu", "gpu", "npu", "reference")
#: The oldest release whose schemas are asked, and the newest there is.
KUBERNETES = ("1.29", kubernetes_validate.latest_version().rpartition(".")[0])
#: The release of KServe whose types are asked, in `make clients`' folder.
KSERVE = ROOT / ".cache" / "wheels" / "kserve-0.21.0-py3-none-any.whl"

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")
needs_kserve = pytest.mark.skipif(
    not KSERVE.exists(), reason=f"{KSERVE.name} was not downloaded; make clients"
)
Manifest = dict[str, Any]


@functools.cache
def built(overlay: str) -> list[Manifest]:
    """Return kubectl's rendering of an overlay."""
    command = ("kubectl", "kustomize", str(FOLDER / overlay))
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "deprecated" not in ran.stderr
    return list(yaml.safe_load_all(ran.stdout))


def pod_of(overlay: str) -> Manifest:
    (deployment,) = (found for found in built(overlay) if found["kind"] == "Deployment")
    spec: Manifest = deployment["spec"]["template"]["spec"]
    return spec


@needs_kubectl
@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_is_valid_and_whole(overlay: str, version: str):
    manifests = built(overlay)
    for manifest in manifests:
        kubernetes_validate.validate(manifest, version, strict=True)
    assert sorted(manifest["kind"] for manifest in manifests) == [
        "Deployment",
        "HorizontalPodAutoscaler",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Service",
        "Service",
    ]
    by_kind = {manifest["kind"]: manifest for manifest in manifests}
    deployment = by_kind["Deployment"]
    scaled = by_kind["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert scaled["name"] == deployment["metadata"]["name"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    selectors = (
        by_kind["Service"]["spec"]["selector"],
        by_kind["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        by_kind["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    )
    assert all(selector and selector.items() <= labels.items() for selector in selectors)
    # Another overlay beside it has pods of its own.
    assert by_kind["Service"]["spec"]["selector"]["app.kubernetes.io/instance"] == overlay


def test_a_wrong_field_would_be_found():
    (deployment,) = yaml.safe_load_all((FOLDER / "base" / "deployment.yaml").read_text())
    deployment["spec"]["template"]["spec"]["terminationGrace"] = 60
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, KUBERNETES[0], strict=True)


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_ends_after_its_requests(overlay: str):
    pod = pod_of(overlay)
    (container,) = pod["containers"]
    (grace,) = re.findall(r"--exit-timeout-secs=(\d+)", " ".join(container["args"]))
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert pod["terminationGracePeriodSeconds"] > int(grace) + pause


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nothing_of_a_pod_is_privileged(overlay: str):
    pod = pod_of(overlay)
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    for container in (*pod["containers"], *(pod.get("initContainers") or ())):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }


@needs_kubectl
@pytest.mark.parametrize(
    ("overlay", "resource"),
    [("cpu", None), ("gpu", "nvidia.com/gpu"), ("npu", "huawei.com/Ascend910")],
)
def test_a_pod_asks_for_its_device(overlay: str, resource: str | None):
    (container,) = pod_of(overlay)["containers"]
    assert [name for name in container["resources"]["limits"] if "/" in name] == (
        [resource] if resource else []
    )


@needs_kubectl
def test_the_reference_server_takes_its_arguments():
    (container,) = pod_of("reference")["containers"]
    options, _ = cli.parse(container["args"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert options.http is not None
    assert options.grpc is not None
    assert options.metrics is not None
    assert ports == {
        "http": options.http.port,
        "grpc": options.grpc.port,
        "metrics": options.metrics.port,
    }


# -------------------------------------------------------------------------------------- KServe


class Types:
    """The types of KServe's API as its Python package has them, which are made from its CRDs."""

    def __init__(self, wheel: Path) -> None:
        self._classes: dict[str, tuple[Mapping[str, str], Mapping[str, str]]] = {}
        with zipfile.ZipFile(wheel) as opened:
            for name in opened.namelist():
                if re.fullmatch(r"kserve/models/v1\w+\.py", name):
                    self._read(ast.parse(opened.read(name)))

    def _read(self, module: ast.Module) -> None:
        for part in module.body:
            if isinstance(part, ast.ClassDef):
                tables = {
                    statement.targets[0].id: ast.literal_eval(statement.value)
                    for statement in part.body
                    if isinstance(statement, ast.Assign)
                    and isinstance(statement.targets[0], ast.Name)
                    and statement.targets[0].id in ("openapi_types", "attribute_map")
                }
                if len(tables) == 2:
                    self._classes[part.name] = (tables["openapi_types"], tables["attribute_map"])

    def faults(self, kind: str, value: object, place: str) -> Iterator[str]:
        """Yield the parts of a value that do not match the type, each with its path."""
        if listed := re.fullmatch(r"list\[(.*)\]", kind):
            if not isinstance(value, list):
                yield f"{place}: found {value!r}, expected a list"
                return
            for index, element in enumerate(value):
                yield from self.faults(listed[1], element, f"{place}[{index}]")
        elif kind in self._classes:
            yield from self._members(kind, value, place)
        elif kind in ("str", "int", "bool"):
            expected = {"str": str, "int": int, "bool": bool}[kind]
            if not isinstance(value, expected):
                yield f"{place}: found {value!r}, expected {kind}"
        elif kind == "V1Container":  # Kubernetes' own
            pod = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [value]}}
            try:
                kubernetes_validate.validate(pod, KUBERNETES[1], strict=True)
            except kubernetes_validate.ValidationError as error:
                yield f"{place}: {error.message}"

    def _members(self, kind: str, value: object, place: str) -> Iterator[str]:
        types, names = self._classes[kind]
        attributes = {name: attribute for attribute, name in names.items()}
        if not isinstance(value, dict):
            yield f"{place}: found {value!r}, expected {kind}"
            return
        for name, member in value.items():
            if name not in attributes:
                yield f"{place}.{name}: {kind} has no such field"
            else:
                yield from self.faults(types[attributes[name]], member, f"{place}.{name}")


@pytest.fixture(scope="module")
def types() -> Types:
    return Types(KSERVE)


RUNTIME = FOLDER / "kserve" / "serving-runtime.yaml"
SERVICE = FOLDER / "kserve" / "inference-service.yaml"
KINDS = {RUNTIME: "V1alpha1ServingRuntime", SERVICE: "V1beta1InferenceService"}


@needs_kserve
@pytest.mark.parametrize("file", KINDS, ids=lambda file: file.stem)
def test_what_kserve_is_given_is_of_its_types(file: Path, types: Types):
    manifest = yaml.safe_load(file.read_text())
    assert list(types.faults(KINDS[file], manifest, file.stem)) == []


@needs_kserve
def test_what_kserve_does_not_know_would_be_found(types: Types):
    manifest = yaml.safe_load(RUNTIME.read_text())
    manifest["spec"]["containers"][0]["imagePolicy"] = "Always"
    manifest["spec"]["supportedModelFormats"][0]["versions"] = ["2"]
    manifest["spec"]["protocolVersions"] = "v2"
    found = list(types.faults("V1alpha1ServingRuntime", manifest, "runtime"))
    assert len(found) == 3, found


def test_the_service_names_the_runtime():
    runtime, service = (yaml.safe_load(file.read_text()) for file in (RUNTIME, SERVICE))
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    formats = [known["name"] for known in runtime["spec"]["supportedModelFormats"]]
    assert model["modelFormat"]["name"] in formats
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
