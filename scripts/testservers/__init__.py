"""The real Kafka, S3 and Postgres servers of the tests, with the standard library alone."""
