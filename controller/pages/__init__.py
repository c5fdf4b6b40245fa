"""The pages that operators look at: fleet, topic, decisions and operations, backtests, bundles, policy.

Each file is one page: what it reads of schema `inspect`, and what its template in `templates/` is given. `app` puts them
together; `figures` draws. Airflow shows them (`plugins/cleave_pages.py`) and says who may see them. They change nothing: a
button fills in the form of a DAG, and whoever may run that DAG runs it.
"""
