"""What cleave_provider/, dags/, plugins/ and spark_jobs/ may import of ours; import-linter guards the floors below them.

DAGs, plugins and the provider reach the product through its interfaces and speak its domain's words; Spark jobs know the
domain alone. Folders of Airflow's are no packages, hence a test and not a contract.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INTERFACES = ("controller.pages", "controller.tasks", "controller.web")
ALLOWED = {
    "cleave_provider": (
        "controller.actions",
        *INTERFACES,
        "controller.domain",
        "cleave_provider",
    ),
    "dags": ("controller.tasks", "controller.domain", "cleave_provider", "plugins", "dags"),
    "plugins": (
        "controller.actions",
        *INTERFACES,
        "controller.domain",
        "cleave_provider",
        "plugins",
    ),
    "spark_jobs": ("controller.domain", "controller.backtest", "controller.bundles.domain", "spark_jobs"),
}
OURS = (
    "cleave_provider",
    "controller",
    "dags",
    "plugins",
    "pulsar_cleave",
    "spark_jobs",
    "tests",
    "benchmarks",
)
FILES = [path.relative_to(ROOT) for folder in ALLOWED for path in sorted((ROOT / folder).rglob("*.py"))]


def imported_names(source: str) -> list[str]:
    """Dotted names the source imports, those inside functions and TYPE_CHECKING blocks included."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def forbidden_imports(folder: str, source: str) -> list[str]:
    """Imports of our own code that ``folder`` may not make."""
    allowed = ALLOWED[folder]
    return [
        name
        for name in imported_names(source)
        if name.split(".")[0] in OURS and not any(f"{name}.".startswith(f"{prefix}.") for prefix in allowed)
    ]


@pytest.mark.parametrize("path", FILES, ids=str)
def test_it_imports_only_what_its_folder_may(path: Path) -> None:
    assert forbidden_imports(path.parts[0], (ROOT / path).read_text()) == []


def test_a_forbidden_import_is_found_wherever_it_hides() -> None:
    source = (
        "from controller import store\n"
        "import controller.domain.layout\n"
        "def late():\n    from controller.services.autoscaler import evaluate\n"
        "if TYPE_CHECKING:\n    import controller.tasks_of_another_kind\n"
        "from controller import tasks\n"
    )

    assert forbidden_imports("dags", source) == [
        "controller.store",
        "controller.services.autoscaler.evaluate",
        "controller.tasks_of_another_kind",
    ]
