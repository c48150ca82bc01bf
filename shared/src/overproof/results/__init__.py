"""The database: which jobs there are, who runs them, and what came out. SQLite or Postgres."""
