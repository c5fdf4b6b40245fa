"""What deploy/helm/cleave renders: Kubernetes takes it, its processes have few rights, and what it tells Cleave exists.

`make matrix ONLY=helm` runs these tests; the cell gives them a helm, a kubernetes-validate and the definitions of the Prometheus operator.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml

from controller.commands.cli import app
from controller.settings import Settings
from controller.store.postgres.migrations import MIGRATION_STATEMENT_SECONDS
from tests.matrix.helm import CHART, KUBERNETES, values

pytestmark = pytest.mark.matrix

Document = dict[str, Any]
PAGE = (CHART.parents[2] / "docs" / "how-to" / "run-on-kubernetes.md").read_text()
CUSTOM = "monitoring.coreos.com/"
VALUES = sorted(path.stem for path in values())


def rendered(name: str, *options: str) -> list[Document]:
    """Documents of the chart with the values of ci/<name>.yaml."""
    command = [os.environ["CLEAVE_TEST_HELM"], "template", "cleave", CHART, "--namespace", "cleave"]
    command += ["--kube-version", KUBERNETES, "--values", CHART / "ci" / f"{name}.yaml", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


@pytest.fixture(params=VALUES)
def documents(request: pytest.FixtureRequest) -> list[Document]:
    """Documents of each file of values."""
    return rendered(request.param)


def pods(documents: list[Document]) -> Iterator[tuple[str, Document]]:
    """Specification of every pod, by the name of what starts it."""
    for document in documents:
        if "template" in document.get("spec", {}):
            yield document["metadata"]["name"], document["spec"]["template"]["spec"]


def containers(documents: list[Document]) -> Iterator[tuple[str, Document]]:
    """Every container, by the name of what starts it."""
    for name, pod in pods(documents):
        for container in pod["containers"]:
            yield name, container


def test_full_values_render_every_kind() -> None:
    kinds = {document["kind"] for document in rendered("full")}

    assert kinds == {
        *("Deployment", "Job", "NetworkPolicy", "PodDisruptionBudget"),
        *("PrometheusRule", "Service", "ServiceAccount", "ServiceMonitor", "StatefulSet"),
    }


def test_kubernetes_takes_each_document(documents: list[Document], tmp_path: Path) -> None:
    own = [document for document in documents if not document["apiVersion"].startswith(CUSTOM)]
    written = tmp_path / "rendered.yaml"
    written.write_text(yaml.safe_dump_all(own))

    done = subprocess.run(
        [
            os.environ["CLEAVE_TEST_KUBERNETES_VALIDATE"],
            "--strict",
            "--kubernetes-version",
            KUBERNETES,
            written,
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, "WARN" in done.stdout) == (0, False), done.stdout + done.stderr


def test_the_prometheus_operator_takes_its_documents() -> None:
    definitions = Path(os.environ["CLEAVE_TEST_CRDS"])
    tried = []
    for document in rendered("full"):
        if document["apiVersion"].startswith(CUSTOM):
            file = definitions / f"monitoring.coreos.com_{document['kind'].lower()}s.yaml"
            versions = {one["name"]: one for one in yaml.safe_load(file.read_text())["spec"]["versions"]}
            schema = versions[document["apiVersion"].partition("/")[2]]["schema"]["openAPIV3Schema"]
            # The schema itself is not checked: some of its patterns are Go's.
            jsonschema.Draft202012Validator(closed(schema)).validate(document)
            tried.append(document["kind"])

    assert sorted(tried) == ["PrometheusRule", "ServiceMonitor"]


def closed(schema: Any) -> Any:
    """The schema that refuses what the API server would drop: properties that it does not name."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    narrowed = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        open_ended = (
            schema.get("x-kubernetes-preserve-unknown-fields") or "apiVersion" in schema["properties"]
        )
        narrowed.setdefault("additionalProperties", bool(open_ended))
    return narrowed


def test_a_property_that_the_operator_does_not_know_is_refused() -> None:
    schema = closed({"type": "object", "properties": {"port": {"type": "string"}}})

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"prot": "metrics"}, schema)


def test_no_process_is_root_or_may_become_it(documents: list[Document]) -> None:
    for name, pod in pods(documents):
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True, name
        assert context["runAsUser"] == context["runAsGroup"] == 50000, f"{name}: the image's user"
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert pod["automountServiceAccountToken"] is False, f"{name}: no process talks to Kubernetes"
    for name, container in containers(documents):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False, name
        assert context["capabilities"] == {"drop": ["ALL"]}, name
        assert not context.get("privileged"), name


def test_no_process_writes_to_its_image(documents: list[Document]) -> None:
    for name, pod in pods(documents):
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, name
            mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
            assert mounts.keys() == volumes.keys(), name
            assert mounts["tmp"]["mountPath"] == "/tmp", name
            for volume in volumes.values():
                if "secret" in volume:
                    assert mounts[volume["name"]]["readOnly"] is True, f"{name}: {volume['name']}"


def test_secrets_are_references_only(documents: list[Document]) -> None:
    assert [document for document in documents if document["kind"] == "Secret"] == []
    seen = 0
    for name, container in containers(documents):
        for variable in container["env"]:
            if variable["name"].endswith(
                ("PASSWORD", "SECRET", "USERNAME", "_KEY", "DATABASE_URL", "OWNER_URL")
            ):
                assert set(variable["valueFrom"]["secretKeyRef"]) == {"name", "key"}, f"{name}: {variable}"
                seen += 1
    assert seen >= 3


def test_what_lasts_has_probes_at_a_port_that_it_opens(documents: list[Document]) -> None:
    lasting = [document for document in documents if document["kind"] in ("Deployment", "StatefulSet")]
    for name, container in containers(lasting):
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        paths = {}
        for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
            asked = container[probe]["httpGet"]
            assert asked["port"] in ports, f"{name}: {probe}"
            paths[probe] = asked["path"]
        assert paths["livenessProbe"] == "/live", f"{name}: a database that is away restarts no process"
        assert paths["readinessProbe"] == "/health", name
        told = [word for word in container["args"] if word.startswith(("--port=", "--metrics-port="))]
        assert told[0].partition("=")[2] == str(ports["metrics"]), name


def test_every_process_has_bounds(documents: list[Document]) -> None:
    for name, container in containers(documents):
        assert {"cpu", "memory"} <= set(container["resources"]["requests"]), name
        assert "memory" in container["resources"]["limits"], name


def test_variables_are_settings(documents: list[Document]) -> None:
    known = {
        str(field.validation_alias or f"CLEAVE_{name.upper()}")
        for name, field in Settings.model_fields.items()
    }
    known |= {"CLEAVE_OWNER_URL", "CLEAVE_LOG_LEVEL"}
    given = {variable["name"] for _, container in containers(documents) for variable in container["env"]}

    assert {name for name in given if name.startswith("CLEAVE_")} - known == set()


def test_variables_are_given_once_and_refer_to_earlier_ones(documents: list[Document]) -> None:
    for name, container in containers(documents):
        seen: set[str] = set()
        for variable in container["env"]:
            assert variable["name"] not in seen, name
            parts = variable.get("value", "").split("$(")[1:]
            assert {part.partition(")")[0] for part in parts} <= seen, f"{name}: {variable}"
            seen.add(variable["name"])


def test_commands_exist_with_their_options(documents: list[Document]) -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    seen = set()
    for name, container in containers(documents):
        program, command, *words = [*container["command"], *container.get("args", [])]
        assert program == "cleave", name
        options = {
            one
            for parameter in commands[command].load().params
            for one in (*parameter.opts, *parameter.secondary_opts)
        }
        assert {word.partition("=")[0] for word in words} <= options, f"{name}: {words}"
        seen.add(command)
    assert {"migrate", "worker"} <= seen <= {"migrate", "worker", "collect", "metrics"}


def test_selectors_find_the_pods_that_they_mean(documents: list[Document]) -> None:
    labels = {
        document["metadata"]["name"]: document["spec"]["template"]["metadata"]["labels"]
        for document in documents
        if "template" in document.get("spec", {})
    }

    def found(selector: dict[str, str]) -> set[str]:
        return {name for name, has in labels.items() if selector.items() <= has.items()}

    [worker] = [document["metadata"]["name"] for document in documents if document["kind"] == "StatefulSet"]
    lasting = {
        document["metadata"]["name"]
        for document in documents
        if document["kind"] in ("Deployment", "StatefulSet")
    }
    for document in documents:
        name, spec = document["metadata"]["name"], document.get("spec", {})
        match document["kind"]:
            case "Service":
                assert found(spec["selector"]) == (lasting if name.endswith("-metrics") else {worker}), name
            case "PodDisruptionBudget":
                assert found(spec["selector"]["matchLabels"]) == {worker}
            case "NetworkPolicy":
                assert found(spec["podSelector"]["matchLabels"]) == lasting
            case "Deployment" | "StatefulSet":
                assert found(spec["selector"]["matchLabels"]) == {name}


def test_the_service_monitor_finds_the_service_of_metrics() -> None:
    documents = rendered("full")
    [monitor] = [document["spec"] for document in documents if document["kind"] == "ServiceMonitor"]
    selected = [
        document["spec"]
        for document in documents
        if document["kind"] == "Service"
        and monitor["selector"]["matchLabels"].items() <= document["metadata"]["labels"].items()
    ]

    assert len(selected) == 1
    assert monitor["endpoints"][0]["port"] in {port["name"] for port in selected[0]["ports"]}


def test_without_a_signing_secret_nothing_of_the_api_is_there() -> None:
    documents = rendered("minimal", "--set", "api.secret.name=")
    ports = {port["name"] for _, container in containers(documents) for port in container.get("ports", [])}
    services = {
        port["name"] for one in documents if one["kind"] == "Service" for port in one["spec"]["ports"]
    }
    variables = {variable["name"] for _, container in containers(documents) for variable in container["env"]}

    assert (ports, services) == ({"metrics"}, {"metrics"})
    assert [name for name in variables if "SERVE" in name or "API_SECRET" in name] == []


def created_secrets(namespace: str) -> set[tuple[str, str]]:
    """Name and key of everything in the secrets that the page creates in the namespace."""
    commands = re.findall(
        rf"--namespace {namespace} create secret generic (\S+)((?:.*\\\n)*.*)", PAGE, re.MULTILINE
    )
    return {
        (name, key)
        for name, rest in commands
        for key in re.findall(r"--from-(?:literal|file)=([\w-]+)=", rest)
    }


def test_the_page_gives_airflow_the_secrets_that_it_creates_and_settings_that_exist() -> None:
    (block,) = re.findall(r"```yaml\n(# values of Airflow's chart\n.*?)```", PAGE, re.DOTALL)
    values = yaml.safe_load(block)
    names = {one["envName"] for one in values["secret"]} | {one["name"] for one in values["env"]}
    variables = {str(field.validation_alias) for field in Settings.model_fields.values()}
    variables |= {f"CLEAVE_{name.upper()}" for name in Settings.model_fields}

    assert {(one["secretName"], one["secretKey"]) for one in values["secret"]} == created_secrets("airflow")
    assert {name for name in names if not name.startswith(("AIRFLOW_CONN_CLEAVE", "AWS_"))} <= variables
    assert {name for name in names if "PULSAR" in name} == {
        "CLEAVE_PULSAR_ADMIN_URL",
        "CLEAVE_PULSAR_SERVICE_URL",
        "CLEAVE_PULSAR_TOKEN",
    }


def test_the_page_waits_for_the_longest_migration() -> None:
    (minutes,) = re.findall(r"^helm upgrade .* --wait --timeout (\d+)m$", PAGE, re.MULTILINE)
    (migration,) = [one["spec"] for one in rendered("minimal") if one["kind"] == "Job"]

    assert int(minutes) * 60 > migration["activeDeadlineSeconds"] > MIGRATION_STATEMENT_SECONDS


def test_the_page_names_the_hadoop_of_pyspark() -> None:
    (version,) = re.findall(r"org\.apache\.hadoop:hadoop-aws:([\d.]+)", PAGE)
    (found,) = importlib.util.find_spec("pyspark").submodule_search_locations  # type: ignore[union-attr,misc]

    assert (Path(found) / "jars" / f"hadoop-client-api-{version}.jar").exists()


def test_the_page_installs_with_the_secrets_that_it_creates(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(# cleave\.yaml\n.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "cleave.yaml"
    file.write_text(block)
    used = set()
    documents = rendered("minimal", "--values", str(file))
    for _, container in containers(documents):
        for variable in container["env"]:
            if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                used.add((reference["name"], reference["key"]))
    for _, pod in pods(documents):
        mounted = {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
        used |= {(name, "token") for name in mounted}
    assert used == created_secrets("cleave")
    assert {document["kind"] for document in documents} >= {"ServiceMonitor", "PrometheusRule", "Job"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--set", "worker.collect=false"], "enable collector"),
        (["--set", "worker.fleetMetrics=false"], "enable metrics"),
        (["--set", "landing.url=/var/lib/cleave/landing"], "landing.existingClaim"),
        (["--set", "landing.url=file:///var/lib/cleave/landing"], "landing.existingClaim"),
        (["--set", "landing.url=/srv/landing,landing.existingClaim=samples"], "landing.existingClaim"),
        (["--set", "settings.CLEAVE_API_SECRET=plain"], "extraEnv"),
        (["--set", "settings.CLEAVE_AIRFLOW_PASSWORD=plain"], "extraEnv"),
        (["--set", "settings.CLEAVE_TOKEN=plain"], "extraEnv"),
        (["--set", "settings.CLEAVE_DATABASE_URL=plain"], "extraEnv"),
        (["--set", "settings.CLEAVE_OWNER_URL=plain"], "extraEnv"),
        (["--set", "settings.CLEAVE_LOADER_URL=plain"], "extraEnv"),
        (["--set", "settings.AWS_SECRET_ACCESS_KEY=plain"], "extraEnv"),
    ],
)
def test_values_that_leave_a_part_out_or_a_secret_in_the_open_are_refused(
    options: list[str], sentence: str
) -> None:
    with pytest.raises(AssertionError, match=sentence):
        rendered("minimal", *options)
