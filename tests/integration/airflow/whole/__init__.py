"""Tests on one whole Airflow; a package, since its fixture ends with the last of them: idle it takes most of a core."""
