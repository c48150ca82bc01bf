"""The history of the schema, one file a change; applied by `results.migrate`."""
