"""The pages that operators look at: fleet, topic, decisions and operations, backtests, bundles, policy.

Each file is one page: it reads schema `inspect` and fills a template in `templates/`. `app` joins the pages, `figures` draws. Airflow
shows the pages (`plugins/cleave_pages.py`) and controls who may see them. The pages change nothing: a button fills in the form of a DAG,
which users with the right to run that DAG can run.
"""
