"""What runs a job: worker, executor, child process, settings, health."""
