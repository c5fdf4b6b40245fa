"""The cell `helm`: what the chart's tests need, and the tests."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.matrix.environments import PROJECT, ROOM, Broken, Skipped, run

CHART = PROJECT / "deploy" / "helm" / "cleave"
KUBERNETES = "1.31"
"""Its schemas are those that the documents are tried against."""
HELM = "helm.sh/helm/v3/cmd/helm@latest"
OPERATOR = "github.com/prometheus-operator/prometheus-operator"
OPERATOR_VERSION = "v0.85.0"
VALIDATE = "kubernetes-validate==1.37.0"


def values() -> list[Path]:
    """Files of values with which the chart is tried."""
    return sorted((CHART / "ci").glob("*.yaml"))


def prepared() -> dict[str, str]:
    """The tools' places, for the tests; `helm lint` has passed with each file of values."""
    if shutil.which("go") is None:
        raise Skipped("no go, with which helm and the operator's definitions are had")
    helm = _helm()
    for file in values():
        run([helm, "lint", "--strict", "--kube-version", KUBERNETES, "--values", file, CHART])
    return {
        "CLEAVE_TEST_HELM": str(helm),
        "CLEAVE_TEST_KUBERNETES_VALIDATE": str(_kubernetes_validate()),
        "CLEAVE_TEST_CRDS": str(_definitions()),
    }


def _helm() -> Path:
    """The helm on PATH; otherwise one is built."""
    if there := shutil.which("helm"):
        return Path(there)
    built = ROOM / "go" / "helm"
    if not built.exists():
        run(["go", "install", HELM], env={"GOBIN": str(built.parent)})
    return built


def _kubernetes_validate() -> Path:
    home = ROOM / VALIDATE.replace("==", "-")
    program = home / "bin" / "kubernetes-validate"
    if not program.exists():
        run([sys.executable, "-m", "venv", home])
        run(
            [
                home / "bin" / "python",
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                VALIDATE,
            ]
        )
    return program


def _definitions() -> Path:
    """The operator's definitions of its resources, which its module contains."""
    module = f"{OPERATOR}@{OPERATOR_VERSION}"
    run(["go", "mod", "download", module])
    modules = Path(run(["go", "env", "GOMODCACHE"]).strip())
    found = modules / module / "example" / "prometheus-operator-crd"
    if not found.is_dir():
        raise Broken(f"{module} has no {found}")
    return found
