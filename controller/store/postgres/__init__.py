"""What the store needs of PostgreSQL itself: connections, prepared statements, errors, COPY,
notifications, migrations.
"""
