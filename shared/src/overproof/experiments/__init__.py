"""From a spec to jobs in the database and their announcements."""
