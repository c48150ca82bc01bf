"""Messages: the bus announces work and events; the database decides who does what."""
