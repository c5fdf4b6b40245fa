"""All checks by name, in the order of the report.

Each check returns a sentence. It raises Note for something that the operator should know, CleaveError or OSError for something that is wrong.
No check changes anything.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.bootstrap import Application
from controller.doctor import airflow, control_plane, database, load, pulsar

CHECKS: dict[str, Callable[[Application], str]] = {
    "database": database.database,
    "schema": database.schema,
    "role": database.role,
    "loader role": database.loader_role,
    "public rights": database.public,
    "login limits": database.logins,
    "writes": database.writes,
    "workers": control_plane.workers,
    "worker schemas": control_plane.worker_schemas,
    "operations": control_plane.stuck_operations,
    "topics held": control_plane.held_topics,
    "unmanaged logs": control_plane.unmanaged_logs,
    "entry buckets": control_plane.buckets,
    "gates": control_plane.gates,
    "java": load.java,
    "spark": load.spark,
    "landing area": load.landing,
    "collectors": load.collectors,
    "load runs": load.load_runs,
    "set aside": control_plane.set_aside,
    "quarantine": load.quarantine,
    "pulsar": pulsar.cluster,
    "isolation policies": pulsar.isolation,
    "airflow": airflow.health,
    "airflow DAGs": airflow.dags,
    "airflow connection": airflow.connection,
}
