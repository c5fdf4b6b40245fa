"""PostgreSQL services for the store: connections, prepared statements, errors, COPY, migrations and inspection."""
